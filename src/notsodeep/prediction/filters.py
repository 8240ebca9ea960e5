"""Ridge regression and gradient flow as sums of resolvents of the kernel.

A fit that is linear in the targets Y leaves the residual r(K) Y of the training targets, r(0) = 1,
and has the dual coefficients α = K⁻¹(1 − r(K)) Y: r(x) = λ/(x + λ) for ridge regression, exp(−tx)
for gradient flow until t.  With poles z_j and weights ρ_j,

    r(K) = Re Σ_j ρ_j (K − z_j)⁻¹,      α = Re Σ_j w_j (K − z_j)⁻¹ Y,      w_j = −ρ_j/z_j,

everything that is known of one resolvent is known of the fit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray

FLOW_NODES = 32
"""Nodes of the contour: r is right to 8e-15 and α to 7e-13 of t."""


def flow_poles(times: FloatArray) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Return poles z and weights ρ of dα/dt = Y − Kα from 0 until each time, shape (T, 16).

    Weideman and Trefethen's parabola (Math. Comp. 76, 2007) round s = −tx ≤ 0, of which the upper
    half is enough; it goes round the origin, so that the spectrum does not matter.

    Examples
    --------
    >>> z, weights = flow_poles(np.array([2.0]))
    >>> (weights / (0.5 - z)).sum(axis=1).real.round(12)
    array([0.36787944])
    """
    theta = (np.arange(FLOW_NODES // 2) + 0.5) * 2.0 * np.pi / FLOW_NODES
    # Their constants for e^s on the negative axis; the error falls as 2.85^{−nodes}, to 3e-15 here.
    s = FLOW_NODES * (0.1309 - 0.1194 * theta**2 + 0.25j * theta)
    slope = FLOW_NODES * (-0.2388 * theta + 0.25j)
    weights = 2.0 * np.exp(s) * slope / (1j * FLOW_NODES)
    poles, weights = -s / times[:, None], weights / times[:, None]
    # A pole below the axis and its conjugate have the same real part.
    below = poles.imag < 0.0
    return np.where(below, poles.conj(), poles), np.where(below, weights.conj(), weights)

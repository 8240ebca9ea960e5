"""The derivative of a DEQ's kernel in log σa², for the hyper-parameters of Gaussian processes.

At every pair of inputs the kernel is an analytic function of θ = log σa², as long as its fixed
points are stable, and the compiled loops deliver it to rounding.  So it is interpolated in θ, in
seven Chebyshev points around the value asked for, and the polynomial is differentiated: the error
of the interpolation falls geometrically in the number of points, and the rounding errors of the
kernel are multiplied by about a hundred.  (In σa² itself it would not do: at opposite inputs the
kernels of kinked activations grow like √σa².)  This needs no formula of its own for any activation,
convention or nearly equal pair.  The tests compare it with the implicit function theorem, which
needs E[φ″φ″] and E[φ‴φ′], and with plain differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from notsodeep import checks
from notsodeep.checks import FloatArray
from notsodeep.estimators.kernel_matrices import kernel_matrix
from notsodeep.models import Convention, DeepEquilibrium, KernelName

_POINTS = 7
_HALF_WIDTH = 0.05  # in θ, where σa² is small; less towards σa² = 1, which has to stay out of reach


def log_sigma_derivative(
    deq: DeepEquilibrium,
    X: FloatArray,
    Y: FloatArray | None = None,
    *,
    kernel: KernelName,
    convention: Convention,
) -> FloatArray:
    """Compute σa² ∂K/∂σa² of a DEQ's exact kernel, shape (n, n) or (n, m).

    σb² = 1 − σa² changes along, and so do the variances q of the samples.

    Raises
    ------
    NotConverged
        There is no kernel at a σa² that is larger by a factor of exp((1 − σa²)/20).
    """
    sigma_a2 = _positive_variance(deq.sigma_a2)
    points, weights = differentiation_rule()
    half = _HALF_WIDTH * (1.0 - sigma_a2)
    total: Any = 0.0
    for node, weight in zip(sigma_a2 * np.exp(half * points), weights / half, strict=True):
        moved = DeepEquilibrium(deq.activation, float(node))
        total = total + weight * kernel_matrix(moved, X, Y, kernel=kernel, convention=convention)
    return np.asarray(total)


def differentiation_rule() -> tuple[FloatArray, FloatArray]:
    """Return points x_k in (−1, 1) and weights w_k with f′(0) ≈ Σ w_k f(x_k), without x = 0.

    Exact for polynomials of degree six; Σ w_k T_j(x_k) = T_j′(0) for the Chebyshev polynomials.
    """
    points = chebyshev.chebpts1(_POINTS)
    slopes = [chebyshev.chebval(0.0, chebyshev.chebder(unit)) for unit in np.eye(_POINTS)]
    weights = np.linalg.solve(chebyshev.chebvander(points, _POINTS - 1).T, np.array(slopes))
    used = points != points[_POINTS // 2]  # the middle one has no weight, by symmetry
    return points[used], np.asarray(weights[used], dtype=np.float64)


def _positive_variance(sigma_a2: float) -> float:
    """Require σa² > 0, for a derivative in its logarithm."""
    remedy = "At 0 set sigma_a2_bounds='fixed': it has no logarithm to search in."
    return checks.positive_number(sigma_a2, "sigma_a2", "a gradient", remedy)

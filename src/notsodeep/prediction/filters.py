"""Linear fits as sums of resolvents of the kernel.

A method that is linear in the targets Y leaves the residual r(K) Y of the training targets,
r(0) = 1, and has the dual coefficients α = K⁻¹(1 − r(K)) Y: r(x) = λ/(x + λ) for ridge regression,
exp(−tx) for gradient flow until t, (1 − ηx)^k for k steps of gradient descent.  With poles z_j,

    r(K) = Re Σ_j ρ_j (K − z_j)⁻¹,      α = Re Σ_j w_j (K − z_j)⁻¹ Y,      w_j = −ρ_j/z_j,

everything that is known of one resolvent is known of the method.  Ridge regression has one pole;
the others come from Cauchy's integral over a contour round the spectrum and the origin, of which
the upper half is enough: the lower one is its conjugate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray

ComplexArray = NDArray[np.complex128]

_NODES = 32
_FEW = 16  # steps up to which a circle takes fewer poles than two parabolas
_ACCURACY = 21.0  # −log of what a circle of 2k poles leaves of w^k: 8e-10
_MOST = 1024  # poles of a circle; the cost grows with their square


@dataclass(frozen=True, eq=False)
class Filter:
    """A linear method as a sum of resolvents.

    Attributes
    ----------
    poles : ndarray of shape (m,)
        z_j, real and negative or in the closed upper half-plane.
    residual_weights : ndarray of shape (m,)
        ρ_j, doubled where the pole stands for its conjugate too.

    Examples
    --------
    >>> round(float(ridge(0.5).residual(np.array([1.5]))[0]), 12)
    0.25
    >>> flow = gradient_flow(3.0)
    >>> bool(abs(flow.residual(np.array([0.7])) - np.exp(-2.1)) < 1e-12)
    True
    """

    poles: ComplexArray
    residual_weights: ComplexArray

    @property
    def weights(self) -> ComplexArray:
        """w_j of the dual coefficients."""
        return np.asarray(-self.residual_weights / self.poles)

    @property
    def is_real(self) -> bool:
        """Whether the poles are on the real axis, left of the spectrum."""
        return bool((self.poles.imag == 0.0).all())

    def residual(self, eigenvalues: FloatArray) -> FloatArray:
        """Return r(x) at eigenvalues x of the kernel."""
        return self._sum(self.residual_weights, eigenvalues)

    def response(self, eigenvalues: FloatArray) -> FloatArray:
        """Return (1 − r(x))/x, which multiplies the targets to give α."""
        return self._sum(self.weights, eigenvalues)

    def _sum(self, weights: ComplexArray, eigenvalues: FloatArray) -> FloatArray:
        distances = np.asarray(eigenvalues)[..., None] - self.poles
        return np.asarray((weights / distances).sum(axis=-1).real)


def ridge(level: float) -> Filter:
    """Return the filter of ridge regression, α = (K + λ)⁻¹ Y.

    Examples
    --------
    >>> ridge(0.5).residual(np.array([0.0, 1.5]))
    array([1.  , 0.25])
    """
    return Filter(np.array([-level], np.complex128), np.array([level], np.complex128))


def gradient_flow(time: float, nodes: int = _NODES) -> Filter:
    """Return the filter of dα/dt = Y − Kα from 0 until a time t: r(x) = exp(−tx).

    Weideman and Trefethen's parabola (Math. Comp. 76, 2007) round s = −tx ≤ 0.  With 32 nodes r is
    right to 8e-15 and α to 7e-13 of t, whatever the spectrum: the contour goes round the origin.

    Examples
    --------
    >>> gradient_flow(2.0).residual(np.array([0.5])).round(12), round(math.exp(-1.0), 12)
    (array([0.36787944]), 0.367879441171)
    """
    s, weights = _parabola(nodes)
    return _upper(-s / time, weights / time)


def gradient_descent(
    rate: float, steps: int, *, momentum: float = 0.0, largest: float = math.inf
) -> Filter:
    """Return the filter of gradient descent, with heavy-ball momentum β if that is not zero.

    α_{k+1} = α_k + η(Y − Kα_k) + β(α_k − α_{k−1}), α_0 = 0, so that r_{k+1} = (1 + β − ηx) r_k −
    β r_{k−1}.  With ηx = (1 − v)(1 − β/v), v = 1 at x = 0, it is a sum of v^k and (β/v)^k.
    Few steps: a circle |v| > 1 with twice as many poles as steps.  Many: v^k is nothing but near
    ±1, and a parabola in k·log v goes round either end.

    Parameters
    ----------
    rate : float
        η.
    steps : int
        k.
    momentum : float
        β in [0, 1).
    largest : float
        Largest eigenvalue of K, if known; with η·largest < 1 nothing is near −1.

    Raises
    ------
    InvalidInput
        So many oscillating steps that the circle needs more than 1024 poles.

    Examples
    --------
    >>> gradient_descent(0.1, 20).residual(np.array([5.0])).round(9), 0.5**20
    (array([9.54e-07]), 9.5367431640625e-07)
    """
    fading = steps * -0.5 * math.log(momentum) if momentum > 0.0 else math.inf
    if steps <= _FEW or fading < 35.0:  # all of |v| = √β counts: exp(−35) is rounding
        return _circle(rate, steps, momentum)
    s, weights = _parabola(_NODES)
    # Without momentum and with ηx < 1 every v = 1 − ηx is positive.
    ends = (1.0,) if rate * largest < 1.0 and momentum == 0.0 else (1.0, -1.0)
    v = np.concatenate([end * np.exp(s / steps) for end in ends])
    # dv = v ds/k on either parabola; exp(s) of its weights is v^k, up to the sign.
    measure = np.concatenate([v[: len(s)] * weights * np.exp(-s) / steps * end for end in ends])
    return _from_roots(rate, steps, momentum, v, measure)


def _parabola(nodes: int) -> tuple[ComplexArray, ComplexArray]:
    """Nodes s and weights ω with Re Σ ω/(s − x) = exp(x) for x ≤ 0, upper half of the contour.

    The sign is that of 1/(x′ − s) with x′ = −x: as poles of K they are z = −s/t.
    """
    theta = (np.arange(nodes // 2) + 0.5) * 2.0 * np.pi / nodes
    # Their constants for e^s on the negative axis; the error falls as 2.85^{−nodes}, to 3e-15 here.
    s = nodes * (0.1309 - 0.1194 * theta**2 + 0.25j * theta)
    slope = nodes * (-0.2388 * theta + 0.25j)
    return s, 2.0 * np.exp(s) * slope / (1j * nodes)


def _circle(rate: float, steps: int, momentum: float) -> Filter:
    count = max(2 * steps, _NODES)
    if count > _MOST:
        remedy = (
            "Momentum oscillates in every direction until β^(steps/2) has died out; ask for fewer "
            "steps, or for the flow with time·1/(1 − momentum)."
        )
        requirement = f"need at most {_MOST // 2} steps"
        raise checks.invalid("time", "gradient descent with momentum", requirement, steps, remedy)
    # Larger circles alias less, e^{−21} = 8e-10 at this one, but |v|^k = e^{21/2} on it already
    # amplifies rounding to 4e-12.
    radius = math.exp(_ACCURACY / count)
    theta = (np.arange(count // 2) + 0.5) * 2.0 * np.pi / count
    v = radius * np.exp(1j * theta)
    return _from_roots(rate, steps, momentum, v, 2.0 * v / count)


def _from_roots(
    rate: float, steps: int, momentum: float, v: ComplexArray, measure: ComplexArray
) -> Filter:
    """Cauchy's integral of r over z(v); `measure` is dv/(2πi) with the quadrature's weights."""
    poles = (1.0 - v) * (1.0 - momentum / v) / rate
    slope = (momentum / v**2 - 1.0) / rate  # dz/dv
    other = momentum / v  # the residual starts with r_0 = 1, r_1 = 1 − ηz = v + β/v − β
    residual = ((1.0 - other) * v ** (steps + 1) - (1.0 - v) * other ** (steps + 1)) / (v - other)
    return _upper(poles, -residual * slope * measure)


def _upper(poles: ComplexArray, weights: ComplexArray) -> Filter:
    """Take the conjugate of a pole below the axis; the real part of the sum is the same."""
    below = poles.imag < 0.0
    return Filter(np.where(below, poles.conj(), poles), np.where(below, weights.conj(), weights))

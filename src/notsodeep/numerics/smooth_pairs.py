"""E[f(u)f(v)] for a Gaussian pair and an analytic f, by the trapezoidal rule in sinh coordinates.

f varies on a length of about one near the origin, and ever more slowly away from it, whereas u may
range over hundreds.  In t, with u = sinh t, both happen on one length, so equal steps in t suffice,
and the trapezoidal rule converges exponentially (Trefethen and Weideman, SIAM Review 56, 2014).
The inner integral over v given u uses the same coordinate: with m = ρτ₂u/τ₁ the mean of v and s its
spread, v = sinh(asinh m + δ), where v − m = 2 cosh(asinh m + δ/2) sinh(δ/2) is free of
cancellation however small s is.

About 10⁴ evaluations for a pair, against 10⁵ by panels (`notsodeep.numerics.pair_quadrature`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from notsodeep.arrays import FloatArray

_REACH = 9.0  # standard deviations; the density beyond is below 1e-17
_STEP = 0.2  # in t: what the poles of tanh, at distance π/2, ask for first
_FEWEST = 48  # steps that resolve the Gaussian density alone, with a reserve
_MOST = 1 << 20  # function values for one pair; beyond, panels that adapt are cheaper
_BLOCK = 1 << 13  # function values at a time: larger temporaries leave the cache
_LINEAR = 0.05  # widths in δ below which sinh is straight


def smooth_pair(
    function: Callable[[FloatArray], FloatArray],
    scale1: float,
    scale2: float,
    rho: float,
    root: float,
    tolerance: float,
) -> FloatArray | None:
    """Integrate f(u)f(v) for standard deviations τ₁, τ₂ and correlation ρ; None if f resists.

    Halving a step squares the error of the trapezoidal rule, ε(h) ≈ ε(2h)².  Every other node makes
    the rule of twice the step, so ε(2h) is known; as asymptotics need not have begun, no more than
    ε(h) ≤ ε(2h)^{6/5} is relied upon, in units of √(E f(u)² E f(v)²).  A function with a kink never
    meets that, and one that varies too fast asks for too many nodes.

    Parameters
    ----------
    function : callable
        Maps x to an array of shape (channels, *x.shape); each channel is paired with itself.
    scale1, scale2, rho : float
    root : float
        √(1 − ρ²), greater than 0.
    tolerance : float
        Largest estimated error.

    Returns
    -------
    ndarray of shape (channels,) or None

    Examples
    --------
    >>> value = smooth_pair(lambda x: np.cos(x)[None], 1.0, 1.0, 0.6, 0.8, 1e-12)
    >>> bool(abs(value[0] - np.exp(-1.0) * np.cosh(0.6)) < 1e-15)
    True
    """
    # ε(h) ≤ ε(2h)^{6/5} ≤ tolerance.
    enough = tolerance ** (5.0 / 6.0)
    # The outer nodes must see what f does to the mean of v as well: let u be the wider one.
    scale1, scale2 = max(scale1, scale2), min(scale1, scale2)
    # Both numbers stay even under doubling, so that every other node includes both ends.
    outer = max(_FEWEST, 2 * math.ceil(math.asinh(_REACH * scale1) / _STEP))
    inner = _FEWEST
    while (outer + 1) * (inner + 1) <= _MOST:
        with np.errstate(over="ignore", invalid="ignore"):
            value, coarse_outer, coarse_inner, size = _trapezoid(
                function, (scale1, scale2, rho, root), outer, inner
            )
        if not np.isfinite(value).all():
            return None
        rough_outer, rough_inner = (
            bool((np.abs(coarse - value) > enough * size).any())
            for coarse in (coarse_outer, coarse_inner)
        )
        if not rough_outer and not rough_inner:
            return value
        # Only the direction that is not resolved gets twice the nodes.
        outer <<= rough_outer
        inner <<= rough_inner
    return None


def _trapezoid(
    function: Callable[[FloatArray], FloatArray],
    pair: tuple[float, float, float, float],
    outer: int,
    inner: int,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the expectation, those with every other outer and inner node, and its size.

    Both numbers of steps are even.  All are of shape (channels,).
    """
    scale1, scale2, rho, root = pair
    spread = scale2 * root
    end = math.asinh(_REACH * scale1)
    t = np.linspace(-end, end, outer + 1)
    u = np.sinh(t)
    weights = _density(u / scale1) * np.cosh(t) * (2.0 * end / outer / scale1)
    of_u = function(u)
    fine, coarse = np.empty((2, *of_u.shape))
    steps = np.arange(inner + 1) / inner
    rows = max(1, _BLOCK // (inner + 1))
    for start in range(0, outer + 1, rows):
        part = slice(start, start + rows)
        mean = rho * scale2 / scale1 * u[part]
        centre = np.arcsinh(mean)
        low, high = _window(mean, centre, _REACH * spread)
        delta = low[:, None] + (high - low)[:, None] * steps
        place = centre[:, None] + delta
        away = 2.0 * np.cosh(place - 0.5 * delta) * np.sinh(0.5 * delta)
        inner_weights = (
            _density(away / spread) * np.cosh(place) * ((high - low) / (inner * spread))[:, None]
        )
        weighted = function(mean[:, None] + away) * inner_weights
        fine[:, part] = weighted.sum(axis=-1)
        # The ends would count half in a trapezoidal rule; the density makes them zero here.
        coarse[:, part] = 2.0 * weighted[..., ::2].sum(axis=-1)
    integrand = of_u * fine * weights
    squares = of_u**2, function(scale2 / scale1 * u) ** 2
    size = np.sqrt(math.prod((square * weights).sum(axis=-1) for square in squares))
    return (
        integrand.sum(axis=-1),
        2.0 * integrand[:, ::2].sum(axis=-1),
        (of_u * coarse * weights).sum(axis=-1),
        size,
    )


def _window(mean: FloatArray, centre: FloatArray, width: float) -> tuple[FloatArray, FloatArray]:
    """Return the ends of δ that take v from mean − width to mean + width."""
    straight = width / np.sqrt(1.0 + mean**2)
    # A difference of two asinh would lose the digits of a narrow window; sinh is straight there.
    # Where sinh is replaced by its tangent the ends are off by at most half of δ, 2.5 %: they stay
    # beyond 8.7 standard deviations, with a density below 2e-17.
    narrow = straight < _LINEAR
    low = np.where(narrow, -straight, np.arcsinh(mean - width) - centre)
    high = np.where(narrow, straight, np.arcsinh(mean + width) - centre)
    return low, high


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi))

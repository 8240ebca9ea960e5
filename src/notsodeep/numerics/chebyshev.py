"""Chebyshev series, and interpolants over scales made of them.

Moments and Hermite coefficients of an activation are analytic in log τ (for |arg τ| < π/4), so
they are computed at a few Chebyshev points of log τ and interpolated; where that does not reach
rounding, or would not pay, they are computed at every scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.fft import dct

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotIntegrable


def chebyshev_points(size: int) -> FloatArray:
    """Return the zeros of the Chebyshev polynomial T_size, descending in (−1, 1)."""
    return np.asarray(np.cos(np.pi * (np.arange(size) + 0.5) / size))


def chebyshev_series(values: FloatArray) -> FloatArray:
    """Return c with Σ_k c_k T_k(x) equal to values at `chebyshev_points`, both (size, …).

    Examples
    --------
    >>> chebyshev_series(2.0 * chebyshev_points(4) ** 2 - 1.0).round(12) + 0.0  # T_2
    array([0., 0., 1., 0.])
    """
    series = dct(values, type=2, axis=0) / len(values)
    # A DCT-II is twice the sum over the nodes; T_0 has norm 1 where the others have ½.
    series[0] *= 0.5
    return np.asarray(series)


ScaleFunction = Callable[[FloatArray], FloatArray]
Keep = Callable[[Any, Callable[[], Any]], Any]

_SIZES = (24, 48, 96, 192)
_RESOLVED = 1e-14
_GRID = 8  # ends of cached interpolants are powers of 2^(1/8)
_MIN_SHARE = 1e-8  # scales below this share of the largest are not interpolated


def interpolant(function: ScaleFunction, low: float, high: float, count: int) -> ScaleFunction:
    """Return a cheap function that agrees with `function` on low ≤ τ ≤ high to rounding.

    Parameters
    ----------
    function : callable
        Maps scales of shape (n,) to values of shape (n, columns).  What counts is the absolute
        error of each, 1e-14 max(1, largest value): give quantities that are at most about one at
        every scale, or logarithms.
    low, high : float
    count : int
        How many different scales are to be expected; nothing is tabulated at as many nodes.
    """
    half = 0.5 * np.log(high / low)
    middle = 0.5 * (np.log(low) + np.log(high))
    for size in _SIZES:
        if size >= count or half == 0.0:
            break
        values = function(np.exp(middle + half * chebyshev_points(size)))
        series = chebyshev_series(values)
        # A value that is not finite fails the comparison, and with it the table.
        # Several of the last terms, not one: a single one may vanish by symmetry.
        if np.abs(series[-(size // 6) :]).max() <= _RESOLVED * max(1.0, np.abs(values).max()):
            return _chebyshev(series, middle, half)
    return _at_different_scales(function)


def at_many_scales(
    function: ScaleFunction, scales: FloatArray, keep: Keep | None = None
) -> FloatArray:
    """Evaluate `function` at every scale, by an interpolant where that pays; shape (n, columns).

    Scales far below the largest, such as that of a zero row, would stretch the interpolant for
    ever, and are done by themselves.  With `keep`, called as keep(key, compute), the interpolant of
    a hashable function is kept for later calls.  Its range is widened to powers of 2^(1/8), so that
    other samples of the same data find it, and results do not depend on what was asked before.
    """
    ordinary = scales >= _MIN_SHARE * scales.max()
    low, high, count = float(scales[ordinary].min()), float(scales.max()), int(ordinary.sum())
    table: ScaleFunction | None = None
    if keep is not None and low < high:
        bottom, top = math.floor(_GRID * math.log2(low)), math.ceil(_GRID * math.log2(high))
        tried = sum(size < count for size in _SIZES)
        nodes = _SIZES[tried - 1] + 1 if tried else 0

        def compute() -> ScaleFunction | None:
            try:
                return interpolant(function, 2.0 ** (bottom / _GRID), 2.0 ** (top / _GRID), nodes)
            except NotIntegrable:  # a little beyond the scales that were asked for
                return None

        table = keep((function, bottom, top, tried), compute)
    table = table or interpolant(function, low, high, count)
    if ordinary.all():
        return table(scales)
    first = table(scales[ordinary])
    values = np.empty((len(scales), first.shape[1]))
    values[ordinary] = first
    values[~ordinary] = _at_different_scales(function)(scales[~ordinary])
    return values


def _chebyshev(series: FloatArray, middle: float, half: float) -> ScaleFunction:
    degrees = np.arange(len(series))

    def evaluate(scales: FloatArray) -> FloatArray:
        angles = np.arccos(np.clip((np.log(scales) - middle) / half, -1.0, 1.0))
        # T_k(cos θ) = cos kθ: one product for all columns, where Clenshaw's recurrence is a loop.
        return np.asarray(np.cos(angles[:, None] * degrees) @ series)

    return evaluate


def _at_different_scales(function: ScaleFunction) -> ScaleFunction:
    def evaluate(scales: FloatArray) -> FloatArray:
        different, index = np.unique(scales, return_inverse=True)
        return function(different)[index]

    return evaluate

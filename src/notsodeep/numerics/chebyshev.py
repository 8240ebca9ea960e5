"""Chebyshev series, and tables over scales made of them.

Moments and Hermite coefficients of an activation are analytic in log τ (for |arg τ| < π/4), so
they are computed at a few Chebyshev points of log τ and interpolated; where that does not reach
rounding, or would not pay, they are computed at every scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.fft import dct

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotIntegrable


def chebyshev_points(size: int) -> FloatArray:
    """Return the zeros of the Chebyshev polynomial T_size, descending in (−1, 1)."""
    return np.asarray(np.cos(np.pi * (np.arange(size) + 0.5) / size))


def chebyshev_series(values: FloatArray) -> FloatArray:
    """Return c with Σ_k c_k T_k(x) equal to the given values at `chebyshev_points`.

    Parameters
    ----------
    values : ndarray of shape (size, …)

    Returns
    -------
    ndarray of shape (size, …)
        For `numpy.polynomial.chebyshev`.

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

_SIZES = (24, 48, 96, 192)
_RESOLVED = 1e-14
_GRID = 8  # ends of kept tables are powers of 2^(1/8)
_ORDINARY = 1e-8  # scales below this share of the largest are left out of a table


def tabulated(function: ScaleFunction, low: float, high: float, count: int) -> ScaleFunction:
    """Return a cheap stand-in for `function` on low ≤ τ ≤ high, to be called for `count` scales.

    Parameters
    ----------
    function : callable
        Maps scales of shape (n,) to values of shape (n, columns).  What counts is the absolute
        error of each: give quantities that are at most about one at every scale, or logarithms.
    low, high : float
    count : int
        How many different scales are to be expected; below that many nodes nothing is tabulated.

    Returns
    -------
    callable
        Agrees with `function` to rounding, that is, to 1e-14 max(1, largest value).
    """
    half = 0.5 * np.log(high / low)
    middle = 0.5 * (np.log(low) + np.log(high))
    for size in _SIZES:
        # A table of as many nodes as there are scales saves nothing.
        if size >= count or half == 0.0:
            break
        values = function(np.exp(middle + half * chebyshev_points(size)))
        series = chebyshev_series(values)
        # A value that is not finite fails the comparison, and with it the table.
        # Several of the last terms, not one: a single one may vanish by symmetry.
        if np.abs(series[-(size // 6) :]).max() <= _RESOLVED * max(1.0, np.abs(values).max()):
            return _chebyshev(series, middle, half)
    return _at_different_scales(function)


def kept_table(function: ScaleFunction, low: float, high: float, count: int) -> ScaleFunction:
    """As `tabulated`, and kept for later calls.

    The range is widened to powers of 2^(1/8), so that other samples of the same data find the
    table; it depends on nothing but the arguments, and results not on what was asked before.

    Parameters
    ----------
    function : callable
        Hashable, and equal to those that have the same values.
    """
    if low == high:
        return tabulated(function, low, high, count)
    ends = math.floor(_GRID * math.log2(low)), math.ceil(_GRID * math.log2(high))
    sizes = sum(size < count for size in _SIZES)
    try:
        return _kept(function, 2.0 ** (ends[0] / _GRID), 2.0 ** (ends[1] / _GRID), sizes)
    except NotIntegrable:  # a little beyond the scales that were asked for
        return tabulated(function, low, high, count)


@lru_cache(maxsize=64)
def _kept(function: ScaleFunction, low: float, high: float, sizes: int) -> ScaleFunction:
    return tabulated(function, low, high, _SIZES[sizes - 1] + 1 if sizes else 0)


def at_many_scales(
    function: ScaleFunction, scales: FloatArray, *, keep: bool = False
) -> FloatArray:
    """Evaluate `function` at every scale, through a table where that pays; shape (n, columns).

    Scales far below the largest, such as that of a zero row, would stretch the table for ever, and
    are done by themselves.  `keep` is for functions that `kept_table` takes.
    """
    ordinary = scales >= _ORDINARY * scales.max()
    low, high = float(scales[ordinary].min()), float(scales.max())
    table = (kept_table if keep else tabulated)(function, low, high, int(ordinary.sum()))
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
        different, place = np.unique(scales, return_inverse=True)
        return function(different)[place]

    return evaluate

"""How smooth a function is, and its derivative by differences.

At each point the function is interpolated on a short interval around it by a polynomial of degree
15, and the polynomial is differentiated.  Near a kink the interval is pushed aside so as to stay on
one side of it.

A panel on which the Legendre coefficients do not fall to rounding level is halved.  A smooth
function is resolved long before the panels become tiny; a kink never is, so the panel that keeps
failing closes in on it.  What happens between the nodes of a panel does not show in its
coefficients: `unseen_panels` looks there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.numerics.quadrature import gauss_legendre

_NODES = 16
_RADII = tuple(2.0**-k for k in range(13))


def _legendre_transform() -> FloatArray:
    """Matrix from values at the nodes to Legendre coefficients."""
    x, w = gauss_legendre(_NODES)
    basis = np.polynomial.legendre.legvander(x, _NODES - 1)
    matrix: FloatArray = basis * w[:, None] * (np.arange(_NODES) + 0.5)
    return matrix


def _intervals(
    x: FloatArray, kinks: tuple[float, ...], radius: float
) -> tuple[FloatArray, FloatArray]:
    """Centres and radii of intervals that contain x and no kink in their interior."""
    ends = np.array([-math.inf, *kinks, math.inf])
    segment = np.searchsorted(ends, x)
    low, high = ends[segment - 1], ends[segment]
    # searchsorted puts a kink itself into the segment on its left, hence the slope there.
    local = np.minimum(radius, 0.5 * (high - low))
    return np.clip(x, low + local, high - local), local


def piecewise_derivative(
    function: Callable[[FloatArray], FloatArray],
    x: FloatArray,
    kinks: tuple[float, ...],
    radius: float,
) -> FloatArray:
    """Differentiate `function` at x; at a kink, the slope on its left.

    Parameters
    ----------
    function : callable
        Vectorised, smooth between the kinks.
    x : ndarray
    kinks : tuple of float
        Increasing.
    radius : float
        Half the length of the intervals; see `resolving_radius`.
    """
    centre, local = _intervals(x, kinks, radius)
    nodes, _ = gauss_legendre(_NODES)
    values = function(centre[..., None] + local[..., None] * nodes)
    with np.errstate(invalid="ignore"):  # where the function is not finite, neither is its slope
        coefficients = np.moveaxis(values @ _legendre_transform(), -1, 0)
        slopes = np.polynomial.legendre.legder(coefficients, axis=0)
        result: FloatArray = (
            np.polynomial.legendre.legval((x - centre) / local, slopes, tensor=False) / local
        )
    return result


def resolving_radius(
    function: Callable[[FloatArray], FloatArray],
    reach: float,
    kinks: tuple[float, ...],
    places: tuple[float, ...] = (),
) -> float:
    """Largest interval radius on which the polynomials reach rounding, on [-reach, reach].

    `places` are points to look at besides: where the function varies fast.
    """
    x = np.concatenate([np.linspace(-reach, reach, 801), places])
    nodes, _ = gauss_legendre(_NODES)
    transform = _legendre_transform()[:, -2:]
    # The largest that will do: differences amplify the rounding of f by 1/radius.
    for radius in _RADII:
        centre, local = _intervals(x, kinks, radius)
        values = function(centre[:, None] + local[:, None] * nodes)
        last = np.abs(values @ transform).sum(axis=1)
        # Relative to the largest value anywhere: where f is small its slope matters less.
        if (last <= 1e-13 * np.abs(values).max()).all():
            return radius
    # Not resolved at any radius: the derivative is then as good as rounding allows, and it is the
    # quadrature that judges the function.
    return _RADII[-1]


_ROUNDING = 5e-14  # Legendre coefficients below this, relative to the largest value, are noise
_KINK_WIDTH = 1e-4  # a panel this narrow that still fails contains a kink
_FINAL_WIDTH = 1e-10
_MANY = 64

_FARTHEST = 20  # octaves up to which a function is looked at between the nodes
_LOOKS = 8192  # points looked at in each first panel
_UNSEEN = 1e-6  # deviation from the polynomial, relative to the values, that was not foreseen
_NARROWEST = 1e-6  # relative to max(1, |x|)
_MOST_PANELS = 300


@dataclass(frozen=True)
class RoughPoint:
    """A place where a function is not smooth.

    Attributes
    ----------
    position : float
        To about 1e-6.
    jump : float
        |f(position + 2e-10) − f(position − 2e-10)|: far above 1e-9 where f is not continuous,
        or its slope is not bounded.
    """

    position: float
    jump: float


def rough_points(
    function: Callable[[FloatArray], FloatArray],
    reach: float,
    splits: tuple[float, ...] = (),
) -> list[RoughPoint]:
    """Locate undeclared kinks and jumps of `function` on [-reach, reach].

    Parameters
    ----------
    function : callable
    reach : float
    splits : tuple of float
        Declared kinks, and ends of panels within which the function varies fast.

    Returns
    -------
    list of RoughPoint
        In increasing order.  At most a few dozen are followed: a function that is rough everywhere
        (noise, single precision) gives a long list, not a long computation.
    """
    # Ends at irrational places, so that a kink at a round number is inside a panel and visible.
    grid = np.arange(-math.ceil(reach), math.ceil(reach) + 1) + (math.sqrt(2.0) - 1.0) / 3.0
    ends = np.concatenate([[-reach, reach], grid[np.abs(grid) < reach], splits])
    ends = np.unique(ends[np.abs(ends) <= reach])
    found = [
        _close_in(function, a, b) if b - a < _KINK_WIDTH else (a, b)
        for a, b in _rough_panels(function, ends[:-1], ends[1:])[: 4 * _MANY]
    ]
    return [_describe(function, a, b) for a, b in sorted(found)]


def is_rough(function: Callable[[FloatArray], FloatArray], position: float, radius: float) -> bool:
    """Whether a function is not smooth within `radius` of a position."""
    # The position is not in the middle, where an odd or even function would look smooth.
    left, right = np.array([position - 0.7 * radius]), np.array([position + radius])
    return bool(_rough_panels(function, left, right))


def _rough_panels(
    function: Callable[[FloatArray], FloatArray],
    left: FloatArray,
    right: FloatArray,
) -> list[tuple[float, float]]:
    """Halve the panels on which a function is not smooth until they are narrow; return those.

    If they become very many they are returned as they are.
    """
    x, w = gauss_legendre(_NODES)
    degrees = np.arange(_NODES - 2, _NODES)
    last = np.polynomial.legendre.legvander(x, _NODES - 1)[:, -2:] * w[:, None] * (degrees + 0.5)
    found: list[tuple[float, float]] = []
    most = max(4 * _MANY, 16 * len(left))
    # Narrow panels, as `is_rough` asks for, must be able to shrink too.
    narrowest = np.minimum(_KINK_WIDTH, 1e-3 * (right - left))
    while len(left):
        points = 0.5 * (left + right)[:, None] + 0.5 * (right - left)[:, None] * x
        values = function(points)
        # Rounding of x itself moves f by slope·|x|·eps, which matters where f passes through 0.
        slope = np.ptp(values, axis=1) / (right - left)
        size = np.abs(values).max(axis=1) + slope * np.abs(points).max(axis=1)
        rough = np.abs(values @ last).sum(axis=1) > _ROUNDING * size + 1e-300
        left, right, narrowest = left[rough], right[rough], narrowest[rough]
        narrow = right - left < narrowest
        found += zip(left[narrow].tolist(), right[narrow].tolist(), strict=True)
        left, right, narrowest = left[~narrow], right[~narrow], narrowest[~narrow]
        # A function that is rough everywhere would double its panels without end.
        if len(found) + len(left) > most:
            return found + list(zip(left.tolist(), right.tolist(), strict=True))
        middle = 0.5 * (left + right)
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        narrowest = np.tile(narrowest, 2)
    return found


def unseen_panels(
    function: Callable[[FloatArray], FloatArray], kinks: tuple[float, ...] = ()
) -> tuple[float, ...]:
    """Points that cut the panels between whose nodes a function does what the nodes do not show.

    The first panels lie between the integers up to 8, the powers of two beyond and the kinks.  Each
    is looked at in 8192 points: a spike narrower than about 1e-4 max(1, |x|) may still be missed,
    as it must in a function of which nothing is known but values.

    Examples
    --------
    >>> unseen_panels(np.tanh)
    ()
    >>> ends = unseen_panels(lambda x: x + np.exp(-((x - 1.2345) * 200) ** 2))
    >>> min(ends), max(ends)
    (1.0, 2.0)
    """
    far = np.ldexp(1.0, np.arange(4, _FARTHEST + 1))
    ends = np.unique(np.concatenate([-far, np.arange(-8.0, 9.0), far, kinks]))
    left, right = ends[:-1], ends[1:]
    found: list[FloatArray] = []
    looks = _LOOKS
    nodes, w = gauss_legendre(_NODES)
    transform = np.polynomial.legendre.legvander(nodes, _NODES - 1) * w[:, None]
    transform *= np.arange(_NODES) + 0.5
    while left.size:
        # Evenly spaced, but at irrational places.
        x = -1.0 + 2.0 * (np.arange(looks) + math.sqrt(0.5)) / looks
        middle, half = 0.5 * (left + right)[:, None], 0.5 * (right - left)[:, None]
        values = function(middle + half * x)
        with np.errstate(invalid="ignore", over="ignore"):
            foreseen = function(middle + half * nodes) @ transform
            foreseen = foreseen @ np.polynomial.legendre.legvander(x, _NODES - 1).T
            deviation = np.abs(values - foreseen).max(axis=1)
            # Not finite far out: left to the integrals, which will say so if they get there.
            unseen = deviation > _UNSEEN * np.abs(values).max(axis=1)
        unseen &= right - left > _NARROWEST * np.maximum(1.0, np.abs(left))
        left, right, middle = left[unseen], right[unseen], middle[unseen, 0]
        found += [left, middle, right]
        if sum(map(len, found)) > 3 * _MOST_PANELS:
            break
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        looks = 256
    return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()


def _close_in(
    function: Callable[[FloatArray], FloatArray], left: float, right: float
) -> tuple[float, float]:
    """Bisect towards the half with the larger second difference."""
    while right - left > _FINAL_WIDTH:
        middle = 0.5 * (left + right)
        points = np.array([np.linspace(left, middle, 9), np.linspace(middle, right, 9)])
        bend = np.abs(np.diff(function(points), n=2, axis=1)).max(axis=1)
        if bend[0] == bend[1]:  # at the middle itself, or lost in rounding
            left, right = 0.5 * (left + middle), 0.5 * (middle + right)
        elif bend[0] > bend[1]:
            right = middle
        else:
            left = middle
    return left, right


def _describe(
    function: Callable[[FloatArray], FloatArray], left: float, right: float
) -> RoughPoint:
    position = float(0.5 * (left + right))
    around = function(position + 2.0 * _FINAL_WIDTH * np.array([-1.0, 0.0, 1.0]))
    return RoughPoint(round(position, 6) + 0.0, float(np.abs(np.diff(around)).max()))

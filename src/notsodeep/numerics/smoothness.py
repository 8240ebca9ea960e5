"""Find the points where a function is not smooth, by adaptive piecewise polynomials.

A panel on which the Legendre coefficients do not fall to rounding level is halved.  A smooth
function is resolved long before the panels become tiny; a kink never is, so the panel that keeps
failing closes in on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep.numerics.quadrature import gauss_legendre

FloatArray = NDArray[np.float64]

_NODES = 16
_ROUNDING = 5e-14  # Legendre coefficients below this, relative to the largest value, are noise
_KINK_WIDTH = 1e-4  # a panel this narrow that still fails contains a kink
_FINAL_WIDTH = 1e-10
_MANY = 64


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
    kinks: tuple[float, ...] = (),
) -> list[RoughPoint]:
    """Locate undeclared kinks and jumps of `function` on [-reach, reach].

    Returns
    -------
    list of RoughPoint
        In increasing order.  At most a few dozen are followed: a function that is rough everywhere
        (noise, single precision) gives a long list, not a long computation.
    """
    # Ends at irrational places, so that a kink at a round number is inside a panel and visible.
    grid = np.arange(-math.ceil(reach), math.ceil(reach) + 1) + (math.sqrt(2.0) - 1.0) / 3.0
    ends = np.unique(np.concatenate([[-reach, reach], grid[np.abs(grid) < reach], kinks]))
    left, right = ends[:-1], ends[1:]
    x, w = gauss_legendre(_NODES)
    degrees = np.arange(_NODES - 2, _NODES)
    last = np.polynomial.legendre.legvander(x, _NODES - 1)[:, -2:] * w[:, None] * (degrees + 0.5)
    found: list[tuple[float, float]] = []
    while len(left):
        points = 0.5 * (left + right)[:, None] + 0.5 * (right - left)[:, None] * x
        values = function(points)
        # Rounding of x itself moves f by slope·|x|·eps, which matters where f passes through 0.
        slope = np.ptp(values, axis=1) / (right - left)
        size = np.abs(values).max(axis=1) + slope * np.abs(points).max(axis=1)
        rough = np.abs(values @ last).sum(axis=1) > _ROUNDING * size + 1e-300
        left, right = left[rough], right[rough]
        narrow = right - left < _KINK_WIDTH
        found += [
            _close_in(function, a, b) for a, b in zip(left[narrow], right[narrow], strict=True)
        ]
        left, right = left[~narrow], right[~narrow]
        if len(found) + len(left) > 4 * _MANY:
            found += [(float(a), float(b)) for a, b in zip(left, right, strict=True)]
            break
        middle = 0.5 * (left + right)
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    return [_describe(function, a, b) for a, b in sorted(found)]


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

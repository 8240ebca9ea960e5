"""Derivatives of a function known by its values, to near rounding, without crossing its kinks.

At each point the function is interpolated on a short interval around it by a polynomial of degree
15, and the polynomial is differentiated.  Near a kink the interval is pushed aside so as to stay on
one side of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
    for radius in _RADII:
        centre, local = _intervals(x, kinks, radius)
        values = function(centre[:, None] + local[:, None] * nodes)
        last = np.abs(values @ transform).sum(axis=1)
        if (last <= 1e-13 * np.abs(values).max()).all():
            return radius
    return _RADII[-1]

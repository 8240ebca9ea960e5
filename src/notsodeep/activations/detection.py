"""What can be found out about a user's own function, and what rules it out as an activation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.errors import InvalidInput, UndeclaredKink
from notsodeep.numerics.quadrature import resolved_samples
from notsodeep.numerics.smoothness import RoughPoint, rough_points

FloatArray = NDArray[np.float64]
ArrayFunction = Callable[[FloatArray], FloatArray]

REACH = 8.0
"""Functions are examined on [-REACH, REACH]: beyond, at unit scale, lies a mass of 1e-15."""

_FAR = np.array([s * 10.0**k for k in range(1, 7) for s in (-1.0, 1.0)])


def require_usable(
    value: ArrayFunction, derivative: ArrayFunction, kinks: tuple[float, ...], owner: str
) -> None:
    """Refuse what the theory cannot use, with the reason and the place.

    Raises
    ------
    InvalidInput
        Not finite, not continuous, or with an unbounded slope somewhere on [-REACH, REACH].
    NotIntegrable
        No Gaussian second moment at scale 1.
    UndeclaredKink
        Not smooth at a point that is not among the kinks.
    """
    x = np.linspace(-REACH, REACH, 1601)
    _require_finite(value(x), x, f"The {owner}")
    rough = rough_points(value, REACH, kinks)
    large = 1e-6 * max(1.0, float(np.abs(value(x)).max()))
    jumps = [point.position for point in rough if point.jump > large]
    jumps += [kink for kink in kinks if _jump(value, kink) > large]
    if jumps:
        raise InvalidInput(
            f"The {owner} is not continuous, or infinitely steep, near x = {jumps[0]:g}. "
            "An activation must be continuous with a bounded slope."
        )
    if rough:
        raise UndeclaredKink(_word_kinks(rough, kinks, owner))
    # Just off the kinks, where a one-sided slope may be infinite (√|x|).
    near = np.array([k + s * 10.0**-e for k in kinks for s in (-1, 1) for e in (6, 9, 12)])
    points = np.concatenate([x, near])
    slopes = derivative(points)
    _require_finite(slopes, points, f"The slope of the {owner}")
    steepest = float(np.abs(slopes).max())
    if steepest > 1e5 * (1.0 + float(np.abs(derivative(x[1::2])).max())):
        place = float(points[np.abs(slopes).argmax()])
        raise InvalidInput(
            f"The {owner} is infinitely steep near x = {place:.3g}: its slope reaches "
            f"{steepest:.3g}. An activation must have a bounded slope."
        )
    for _ in resolved_samples(
        lambda x: value(x)[None], np.array([1.0]), kinks, name=f"The {owner}"
    ):
        pass


def _jump(value: ArrayFunction, kink: float) -> float:
    """How much the function changes within 1e-12 of a kink."""
    step = 1e-12 * max(1.0, abs(kink))
    below, above = value(np.array([kink - step, kink + step]))
    return float(abs(above - below))


def _require_finite(values: FloatArray, x: FloatArray, what: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        raise InvalidInput(
            f"{what} must be finite for |x| ≤ {REACH:g}. Got {values[bad][0]} at "
            f"x = {x[bad][0]:.6g}, and at {int(bad.sum())} of {x.size} points. "
            "Guard that place, for instance with np.where."
        )


def _word_kinks(rough: list[RoughPoint], kinks: tuple[float, ...], owner: str) -> str:
    places = sorted({point.position for point in rough})
    if len(places) > 8:
        return (
            f"The {owner} is not smooth at {len(places)} or more places (the first near "
            f"x = {places[0]:g}). It may be computed in single precision or be noisy: "
            "an activation must be smooth, in double precision, away from a few kinks."
        )
    declare = ", ".join(f"{k:g}" for k in sorted({*kinks, *places}))
    comma = "," if len({*kinks, *places}) == 1 else ""
    return (
        f"The {owner} has an undeclared kink near x = {', '.join(f'{p:g}' for p in places)}. "
        f"Declare it: kinks=({declare}{comma}), with the exact position."
    )


def detect_facts(value: ArrayFunction, derivative: ArrayFunction) -> dict[str, Any]:
    """Find parity, Lipschitz constant and homogeneity on a grid.  Evidence, not proof."""
    x = np.linspace(0.0, REACH, 4001)[1:]
    right, left = value(x), value(-x)
    size = max(float(np.abs(right).max()), float(np.abs(left).max()), 1e-300)
    parity = None
    if (
        np.abs(right + left).max() <= 1e-14 * size
        and abs(float(value(np.zeros(1))[0])) <= 1e-14 * size
    ):
        parity = "odd"
    elif np.abs(right - left).max() <= 1e-14 * size:
        parity = "even"
    factors = (0.37, 2.0, 13.0)
    homogeneous = all(
        np.abs(value(c * y) - c * value(y)).max() <= 1e-13 * c * size
        for c in factors
        for y in (x, -x)
    )
    return {
        "parity": parity,
        "lipschitz": _largest_slope(derivative),
        "homogeneous": homogeneous,
        "detected": True,
    }


def _largest_slope(derivative: ArrayFunction) -> float:
    """Sup |φ′|: on a grid refined around its maximum; infinite if it keeps growing far out."""
    x = np.linspace(-REACH, REACH, 4001)
    for _ in range(4):
        slopes = np.abs(derivative(x))
        best = int(slopes.argmax())
        width = x[1] - x[0]
        x = np.linspace(x[best] - width, x[best] + width, 201)
    inside = float(slopes.max())
    # A careless formula may overflow far out (log(cosh(x))): what it says there is left aside.
    far = [float(s) for s in np.abs(derivative(_FAR)) if math.isfinite(s)]
    growing = len(far) > 2 and max(far[-2:]) > 1.01 * max(inside, *far[:-2])
    return math.inf if growing else max(inside, *far)

"""What can be found out about a user's own function, and what rules it out as an activation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from notsodeep.activations.activation import Parity
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, UndeclaredKink
from notsodeep.numerics.quadrature import gauss_legendre, resolved_samples
from notsodeep.numerics.smoothness import is_rough, rough_points

ArrayFunction = Callable[[FloatArray], FloatArray]

REACH = 8.0
"""Functions are examined on [-REACH, REACH]: beyond, at unit scale, lies a mass of 1e-15."""

_FAR = np.array([s * 10.0**k for k in range(1, 7) for s in (-1.0, 1.0)])


def require_usable(
    value: ArrayFunction,
    derivative: ArrayFunction,
    kinks: tuple[float, ...],
    owner: str,
    *,
    suspects: tuple[float, ...] = (),
    ends: tuple[float, ...] = (),
) -> None:
    """Refuse what the theory cannot use, with the reason and the place.

    Parameters
    ----------
    value, derivative : callable
    kinks : tuple of float
        As declared.
    owner : str
        What messages call the function.
    suspects : tuple of float
        Further places, near and far, where there may be a kink.
    ends : tuple of float
        Ends of panels within which the function varies fast.

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
    rough = rough_points(value, REACH, (*kinks, *ends))
    large = 1e-6 * max(1.0, float(np.abs(value(x)).max()))
    jumps = [point.position for point in rough if point.jump > large]
    jumps += [kink for kink in kinks if _jump(value, kink) > large]
    if jumps:
        raise InvalidInput(
            f"The {owner} is not continuous, or infinitely steep, near x = {jumps[0]:g}. "
            "An activation must be continuous with a bounded slope."
        )
    places = {point.position for point in rough} | set(_rough_suspects(value, suspects, kinks))
    if places:
        raise UndeclaredKink(_word_kinks(sorted(places), kinks, owner))
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
        lambda x: value(x)[None], np.array([1.0]), (*kinks, *ends), name=f"The {owner}"
    ):
        pass


def _rough_suspects(
    value: ArrayFunction, suspects: tuple[float, ...], kinks: tuple[float, ...]
) -> list[float]:
    """Those of the suspects that are kinks and were not declared."""
    known = np.unique([*suspects, *kinks])
    found = []
    for place in suspects:
        apart = np.abs(known - place)
        scale = max(1.0, abs(place))
        if any(abs(kink - place) <= 1e-6 * scale for kink in kinks):
            continue
        radius = 0.25 * min(scale, float(apart[apart > 1e-8 * scale].min(initial=scale)))
        if is_rough(value, place, radius):
            found.append(place)
    return found


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


def _word_kinks(places: list[float], kinks: tuple[float, ...], owner: str) -> str:
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


def require_symmetry(
    value: ArrayFunction, parity: Parity | None, homogeneous: bool, owner: str
) -> None:
    """Refuse a declared parity or homogeneity that the function does not have.

    Looked at up to |x| = 10⁶: evidence, not proof, but the user's word stands beside it.
    """
    x = np.concatenate([np.linspace(0.0, REACH, 4001), np.geomspace(REACH, 1e6, 4001)])
    right, left = value(x), value(-x)
    size = np.maximum(np.abs(right), np.abs(left))
    if parity is not None:
        wrong = ~(np.abs(right + left if parity == "odd" else right - left) <= 1e-13 * size)
        if wrong.any():
            first = int(wrong.argmax())
            raise InvalidInput(
                f"parity of the {owner} must be what the function has. Got {parity!r}, but at "
                f"x = ±{x[first]:.6g} the values are {right[first]:.6g} and {left[first]:.6g}. "
                "Leave parity out."
            )
    if homogeneous:
        for sign in (1.0, -1.0):
            wrong = ~(np.abs(value(sign * x) - x * value(np.array([sign]))) <= 1e-13 * size)
            if wrong.any():
                raise InvalidInput(
                    f"The {owner} was declared homogeneous, φ(cx) = c φ(x) for every c > 0, but "
                    f"is not at x = {sign * float(x[wrong.argmax()]):.6g}. Leave homogeneous out."
                )


def largest_slope(derivative: ArrayFunction, ends: tuple[float, ...]) -> float:
    """Sup |φ′|: on a grid refined around its maximum; infinite if it keeps growing far out.

    `ends` are those of panels within which φ varies fast.
    """
    nodes, _ = gauss_legendre(16)
    panels = np.array(ends)
    inside = 0.5 * (panels[1:] + panels[:-1])[:, None] + 0.5 * np.diff(panels)[:, None] * nodes
    x = np.unique(np.concatenate([np.linspace(-REACH, REACH, 4001), inside.reshape(-1)]))
    for _ in range(4):
        slopes = np.abs(derivative(x))
        best = int(np.nanargmax(slopes))
        low, high = x[max(best - 1, 0)], x[min(best + 1, x.size - 1)]
        x = np.linspace(low, high, 201)
    largest = float(np.nanmax(slopes))
    # A careless formula may overflow far out (log(cosh(x))): what it says there is left aside.
    far = [float(s) for s in np.abs(derivative(_FAR)) if math.isfinite(s)]
    growing = len(far) > 2 and max(far[-2:]) > 1.01 * max(largest, *far[:-2])
    return math.inf if growing else max(largest, *far)

"""The DEQ's own activation with another gain, and with another steepness."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from notsodeep.activations import Custom, scaled
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotSoDeepError
from notsodeep.matching.family import Family, Infeasible, Problem

# Steepness is searched for from one outwards, to a hundredth and to a hundred.
_LOGARITHMS = np.linspace(-math.log(100.0), math.log(100.0), 37)


def _has_a_formula(problem: Problem) -> bool:
    """Leave out a Python function: it may have no torch twin, and has no JSON form."""
    phi = problem.activation
    return not (isinstance(phi, Custom) and phi.formula is None)


def _gain(problem: Problem) -> FloatArray:
    """Both kernels of one layer are proportional to a²."""
    unscaled = problem.expanded(PLAIN.network(np.ones(1), problem))
    return np.array([math.sqrt(problem.target.four[-1] / unscaled.four[-1])])


PLAIN = Family(
    "plain",
    ("gain",),
    lambda x, problem: [scaled(problem.activation, float(x[0]), 1.0)],
    starts=(),
    meets=("scale2",),
    solve=_gain,
    in_auto=_has_a_formula,
)
"""a·φ(x): the kernel of an unmatched layer, rescaled.

Where that is as near as others are, a tuned read-out with a bias has no use for a match.
"""


def _gain_and_steepness(problem: Problem) -> FloatArray:
    """Find b of a·φ(b·x) between two points of a grid, then a in closed form.

    With V, m₁ and m₄ the variance of φ, E φ′ and E φ′² at scale s = bτ0, b is a root of
    V/(s m₁)² = T2/(τ0² A1) for the CK and of (V + s² m₄)/(2 (s m₁)²) = T2/(τ0² A1) for the NTK; of
    several roots the one nearest to 1 in ratio is taken.  Then a = √A1/(b|m₁|), or √(A1/2)/(b|m₁|).
    A homogeneous φ, such as ReLU, has one parameter only, and an even φ no E φ′.
    """
    linear, _, _, scale2 = problem.target.four
    tangent, phi = problem.kind == "ntk", problem.activation
    if phi.parity == "even" or not linear > 0.0:
        raise Infeasible(f"E φ′ is 0 for an even φ at every scale, and linear is {linear:.6g}")
    wanted = scale2 / (problem.scale**2 * linear)

    def ratio(logarithms: ArrayLike) -> FloatArray:
        m = phi.moments(problem.scale * np.exp(logarithms))
        top = 0.5 * (m.variance + m.scale**2 * m.slope_square) if tangent else m.variance
        # Far out E φ′ may vanish to rounding.
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(top / np.square(m.scale * m.slope))

    try:
        steepness = math.exp(_root(ratio, wanted, phi.homogeneous))
        slope = abs(phi.moments(problem.scale * steepness).slope)
    except Infeasible:
        raise
    except NotSoDeepError as error:  # moments that overflow at a hundred times the scale
        raise Infeasible(str(error)) from error
    gain = math.sqrt(0.5 * linear if tangent else linear) / (steepness * slope)
    return np.array([gain, steepness])


SCALED = Family(
    "scaled",
    ("gain", "steepness"),
    lambda x, problem: [scaled(problem.activation, float(x[0]), float(x[1]))],
    starts=(),
    meets=("linear", "scale2"),
    bounds=((-np.inf, 1e-2), (np.inf, 100.0)),
    solve=_gain_and_steepness,
    in_auto=_has_a_formula,
)
"""a·φ(b·x) with the φ of the DEQ."""


def _root(ratio: Callable[[ArrayLike], FloatArray], wanted: float, homogeneous: bool) -> float:
    """Find log b with ratio(log b) = wanted, nearest to 0."""
    if homogeneous:
        only = float(ratio(np.zeros(1))[0])
        if abs(only - wanted) <= 1e-12 * wanted:
            return 0.0
        raise Infeasible(
            f"scale2/(τ0²·linear) = {wanted:.6g}, and {only:.6g} for every multiple of this φ, "
            "which is homogeneous"
        )
    # For the others the ratio depends on b, though not always monotonically.
    values = ratio(_LOGARITHMS)
    sides = np.where(np.isfinite(values), np.sign(values - wanted), np.nan)
    changes = np.flatnonzero(sides[:-1] * sides[1:] <= 0.0)
    if not changes.size:
        finite = values[np.isfinite(values)]
        raise Infeasible(
            f"scale2/(τ0²·linear) = {wanted:.6g} must be between {finite.min(initial=np.inf):.6g} "
            f"and {finite.max(initial=-np.inf):.6g} for this φ"
        )
    brackets = _LOGARITHMS[np.stack([changes, changes + 1], axis=1)]
    low, high = min(brackets, key=lambda ends: float(np.abs(ends).min()))

    def excess(x: float) -> float:
        return float(ratio([x])[0]) - wanted

    if excess(low) * excess(high) > 0.0:  # a change of sign that rounding made
        raise Infeasible("the target is that of a linear network or of a jump, up to rounding")
    return float(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))

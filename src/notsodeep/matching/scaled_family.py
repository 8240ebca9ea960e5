"""The DEQ's own activation with another gain and steepness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from notsodeep.activations import Activation, Centred, Custom, centre, scaled
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotSoDeepError
from notsodeep.matching.family import LINEAR, SCALE, Family, Infeasible, MixtureFamily
from notsodeep.matching.problem import Problem
from notsodeep.models import ExplicitNetwork

# Steepness is searched for from one outwards, to a hundredth and to a hundred.
_LOGARITHMS = np.linspace(-math.log(100.0), math.log(100.0), 37)


@dataclass(frozen=True)
class Scaled(MixtureFamily):
    """One layer a·φ(b·x), centred, with the φ of the DEQ: meets linear and scale2.

    With V, m₁ and m₄ the variance of φ, E φ′ and E φ′² at scale s = bτ0, b is a root of
    V/(s m₁)² = T2/(τ0² A1) for the CK and of (V + s² m₄)/(2 (s m₁)²) = T2/(τ0² A1) for the NTK; of
    several roots the one nearest to 1 in ratio is taken.  Then a = √A1/(b|m₁|), or √(A1/2)/(b|m₁|).
    A homogeneous φ, such as ReLU, has one parameter only, and an even φ no E φ′.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> m = nsd.match(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), tau0=1.0, family=Scaled())
    >>> {name: round(value, 4) for name, value in m.parameters.items()}
    {'gain': 0.9771, 'steepness': 0.9815}
    """

    name = "scaled"
    promised = (LINEAR, SCALE)
    parameter_names = ("gain", "steepness")
    bounds = ((-np.inf, 1e-2), (np.inf, 100.0))

    def for_auto(self, problem: Problem) -> Family | None:
        """Leave out a Python function: it may have no torch twin, and has no JSON form."""
        if isinstance(phi := _plain(problem), Custom) and phi.formula is None:
            return None
        return super().for_auto(problem)

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build it from a and b."""
        layer = scaled(_plain(problem), float(parameters[0]), float(parameters[1]))
        return ExplicitNetwork([centre(layer, problem.scale)])

    def solve(self, problem: Problem) -> FloatArray:
        """Find b between two points of a grid, then a in closed form."""
        linear, _, _, scale2 = problem.target
        tangent, phi = problem.kind == "ntk", _plain(problem)
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
        return np.array(
            [math.sqrt(0.5 * linear if tangent else linear) / (steepness * slope), steepness]
        )


@dataclass(frozen=True)
class Plain(MixtureFamily):
    """One layer a·φ(x) with the φ of the DEQ: meets the scale of its kernel, scale2.

    It has the kernel of an unmatched layer, rescaled: where that is as near as others are, a tuned
    read-out with a bias has no use for a match.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> m = nsd.match(nsd.DeepEquilibrium("relu", sigma_a2=0.2), tau0=1.0, family=Plain())
    >>> {name: round(value, 4) for name, value in m.parameters.items()}
    {'gain': 0.9265, 'mean': 0.3858}
    """

    name = "plain"
    promised = (SCALE,)
    parameter_names = ("gain",)

    def for_auto(self, problem: Problem) -> Family | None:
        """Leave out a Python function, as `Scaled` does."""
        phi = _plain(problem)
        if isinstance(phi, Custom) and phi.formula is None:
            return None
        return super().for_auto(problem)

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build it from a."""
        layer = scaled(_plain(problem), float(parameters[0]), 1.0)
        return ExplicitNetwork([centre(layer, problem.scale)])

    def solve(self, problem: Problem) -> FloatArray:
        """Both kernels of one layer are proportional to a²."""
        unscaled = problem.achieved(self.network(np.ones(1), problem))
        return np.array([math.sqrt(problem.target.scale2 / unscaled.scale2)])


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
    # Homogeneous φ are done: for the others the ratio depends on b, though not always
    # monotonically.
    values = ratio(_LOGARITHMS)
    sides = np.where(np.isfinite(values), np.sign(values - wanted), np.nan)
    changes = np.flatnonzero(sides[:-1] * sides[1:] <= 0.0)
    if not changes.size:
        least = float(np.min(values, initial=np.inf, where=np.isfinite(values)))
        most = float(np.max(values, initial=-np.inf, where=np.isfinite(values)))
        raise Infeasible(
            f"scale2/(τ0²·linear) = {wanted:.6g} must be between {least:.6g} and {most:.6g} for "
            "this φ"
        )
    brackets = _LOGARITHMS[np.stack([changes, changes + 1], axis=1)]
    low, high = min(brackets, key=lambda ends: float(np.abs(ends).min()))

    def excess(x: float) -> float:
        return float(ratio([x])[0]) - wanted

    if excess(low) * excess(high) > 0.0:  # a change of sign that rounding made
        raise Infeasible("the target is that of a linear network or of a jump, up to rounding")
    return float(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))


def _plain(problem: Problem) -> Activation:
    """Return the DEQ's activation without its centring."""
    phi = problem.model.cell[-1].activation
    return phi.base if isinstance(phi, Centred) else phi

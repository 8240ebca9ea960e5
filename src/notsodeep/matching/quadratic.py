"""The papers' quadratic networks: one layer on the sphere, two on mixtures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from notsodeep.activations import Activation, polynomial
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import expansion
from notsodeep.equivalents.expansion import SphereNumbers
from notsodeep.matching.family import Family, Infeasible, Problem
from notsodeep.matching.record import Match
from notsodeep.models import ExplicitNetwork


def _layers(x: FloatArray, problem: Problem) -> list[Activation]:
    """a_l(x² − τ²) + b_l x from (a_1, b_1, a_2, b_2), centred at the scale that each layer sees."""
    layers: list[Activation] = []
    scale = problem.scale
    for a, b in np.reshape(x, (2, 2)).tolist():
        layers.append(polynomial((-a * scale**2, b, a)))
        scale = math.hypot(scale * b, math.sqrt(2.0) * scale**2 * a)
    return layers


def _starts(problem: Problem) -> Iterator[FloatArray]:
    target = problem.target
    linear, _, overlap, scale2 = target.four
    if problem.scale**4 * overlap <= 1e-14 * scale2:
        raise Infeasible(
            "covariance_overlap is 0 for an odd φ, which forces a quadratic network to be linear, "
            f"with scale2 = τ0²·linear = {problem.scale**2 * linear:.6g}; it should be {scale2:.6g}"
        )
    # Linear parts of two layers multiply, b₁²b₂² = linear; b₁ = 1 removes the free scale.
    gain = math.sqrt(max(linear, 1e-6))
    return (np.array([s, t, gain]) for s, t in ((0.1, 0.1), (0.3, 0.2), (-0.2, 0.2)))


def _with_unit(x: FloatArray) -> FloatArray:
    return np.array([x[0], 1.0, x[1], x[2]])


def _solve(problem: Problem) -> FloatArray:
    """Least squares, three unknowns for four coefficients (mixture paper, poly-ENN)."""
    free = Family(
        "quadratic",
        ("a1", "a2", "b2"),
        lambda x, problem: _layers(_with_unit(x), problem),
        starts=_starts,
    )
    return _with_unit(free._fitted(problem))


@dataclass(frozen=True, eq=False)
class _Quadratic(Family):
    """Two layers of which three numbers are free, or a2 x² + a1 x + a0 on the sphere."""

    def applies(self, problem: Problem) -> bool:
        """On the sphere; on mixtures they show what is possible, piecewise-linear ones are used."""
        return problem.unit

    def answer(self, problem: Problem) -> Match:
        """Meet the coefficients of the sphere, or come near those of the mixture theory."""
        if not problem.unit:
            return super().answer(problem)
        assert problem.dimension is not None
        choice = {"kind": problem.kind, "convention": problem.convention}
        target = expansion(problem.model, 1.0, **choice)  # type: ignore[arg-type]
        wanted = target.on_sphere(problem.dimension)
        try:
            a2, a1, a0 = _on_sphere(wanted, problem)
        except Infeasible as failure:
            return problem.answer(self.name, str(failure), target=target, tau0=1.0)
        network = ExplicitNetwork([polynomial((a0, a1, a2))])
        achieved = expansion(network, 1.0, kind=problem.kind)
        reached = achieved.on_sphere(problem.dimension)
        return problem.answer(
            self.name,
            "meets constant, linear, diagonal",
            fitted=network,
            parameters={"a2": a2, "a1": a1, "a0": a0},
            target=target,
            achieved=achieved,
            residuals=dict(zip(wanted._fields, np.subtract(reached, wanted).tolist(), strict=True)),
            feasible=True,
            tau0=1.0,
        )

    def refined(self, problem: Problem, found: Match) -> Match:
        """Refine two layers; the one for the sphere has a closed form."""
        return found if problem.unit else super().refined(problem, found)


def _on_sphere(target: SphereNumbers, problem: Problem) -> tuple[float, float, float]:
    """Meet α, β and μ with a2 t² + a1 t + a0 (sphere paper, arXiv 2308.16425, corollary 1).

    CK: a2 = √(μ/2), a1 = √β, a0 = √(α − μ/d) − a2.
    NTK: a2 = √(μ/6), a1 = √(β/2), a0 = √(α − μ/d) − a2.  All signs are free; these are positive.
    """
    assert problem.dimension is not None
    tangent = problem.kind == "ntk"
    a2 = math.sqrt(target.diagonal / (6.0 if tangent else 2.0))
    a1 = math.sqrt(target.linear / (2.0 if tangent else 1.0))
    square = target.constant - target.diagonal / problem.dimension
    if square < 0.0:
        raise Infeasible(
            f"(a0 + a2)² = constant − diagonal/d would be {square:.6g} and must not be negative: "
            "an odd φ has no constant, and a quadratic cannot do without one"
        )
    return a2, a1, math.sqrt(square) - a2


QUADRATIC = _Quadratic("quadratic", ("a1", "b1", "a2", "b2"), _layers, starts=(), solve=_solve)

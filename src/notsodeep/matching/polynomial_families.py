"""Quadratic networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from notsodeep.activations import Moments, hermite, polynomial
from notsodeep.activations.polynomial import moments_of_series
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import expansion
from notsodeep.equivalents.expansion import SphereNumbers
from notsodeep.matching.coefficient_fit import fit_coefficients
from notsodeep.matching.family import (
    Family,
    Infeasible,
    MixtureFamily,
    checked_layers,
)
from notsodeep.matching.problem import Problem
from notsodeep.matching.record import Match
from notsodeep.models import ExplicitNetwork


@dataclass(frozen=True)
class Quadratic(MixtureFamily):
    """Layers a(x² − τ²) + bx: two of them for mixtures, or one, a2 x² + a1 x + a0, for the sphere.

    Attributes
    ----------
    layers : int, optional
        1 for unit-norm data, 2 otherwise; what fits the data if left out.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("normalized_relu", sigma_a2=0.2)
    >>> m = nsd.match(deq, sphere=1200, family=Quadratic(), convention="preactivation")
    >>> {name: round(value, 4) for name, value in m.parameters.items()}
    {'a2': 0.1336, 'a1': 0.9452, 'a0': 0.1327}
    """

    layers: int | None = None
    name = "quadratic"
    lipschitz = False
    parameter_names = ("a1", "b1", "a2", "b2")

    def __post_init__(self) -> None:
        if self.layers is not None:
            checked_layers(self.name, self.layers, (1, 2))

    def for_auto(self, problem: Problem) -> Family | None:
        """On the sphere as it is; where a scale is known, the two layers for mixtures."""
        if problem.tau0 is None:
            return self
        return Quadratic(layers=2) if problem.is_centred else None

    def answer(self, problem: Problem) -> Match:
        """Meet the coefficients of the sphere or those of the mixture theory."""
        if problem.unit and self.layers != 2:
            return self._on_sphere(problem)
        if self.layers == 1:
            checked_layers(self.name, 1, (2,), "One quadratic layer is for the sphere.")
        return super().answer(problem)

    def refined(self, problem: Problem, found: Match) -> Match:
        """Refine two layers; the one for the sphere has a closed form and is left alone."""
        return found if problem.unit and self.layers != 2 else super().refined(problem, found)

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build two layers from (a_1, b_1, a_2, b_2)."""
        return layers_of(quadratic_table(parameters, problem.scale), problem.scale)

    def solve(self, problem: Problem) -> FloatArray:
        """Least squares: rescaling layer 1 against layer 2 leaves three unknowns for four."""
        target, tau0 = problem.target, problem.scale
        if target.covariance_overlap <= 1e-14 * target.scale2:
            raise Infeasible(
                "covariance_overlap is 0 for an odd φ, which forces a quadratic network to be "
                f"linear, with scale2 = τ0²·linear = {tau0**2 * target.linear:.6g}; it should be "
                f"{target.scale2:.6g}"
            )
        # Linear parts of two layers multiply, b₁²b₂² = linear.
        gain = max(target.linear, 1e-6) ** 0.25

        def full(x: FloatArray) -> FloatArray:
            return np.array([x[0], 1.0, x[1], x[2]])  # b_1 = 1: the free scale

        found = fit_coefficients(
            problem,
            lambda x: problem.achieved_by(moments_of(quadratic_table(full(x), tau0), tau0)),
            [np.array([s, t, gain**2]) for s, t in ((0.1, 0.1), (0.3, 0.2), (-0.2, 0.2))],
        )
        return full(found)

    def _on_sphere(self, problem: Problem) -> Match:
        assert problem.dimension is not None
        target = expansion(problem.model, 1.0, **problem.which)
        wanted = target.on_sphere(problem.dimension)
        try:
            a2, a1, a0 = _on_sphere(wanted, problem)
        except Infeasible as failure:
            return problem.answer(self.name, 1.0, target, str(failure))
        network = ExplicitNetwork([polynomial((a0, a1, a2))])
        achieved = expansion(network, 1.0, kind=problem.kind)
        reached = achieved.on_sphere(problem.dimension)
        return problem.answer(
            self.name,
            1.0,
            target,
            "meets constant, linear, diagonal",
            network=network,
            parameters={"a2": a2, "a1": a1, "a0": a0},
            achieved=achieved,
            residuals={
                f"{name} (sphere)": a - b
                for name, a, b in zip(wanted._fields, reached, wanted, strict=True)
            },
            feasible=True,
        )


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


def layers_of(table: FloatArray, tau0: float) -> ExplicitNetwork:
    """Layers Σ_k c_k h_k(x/τ), k ≥ 1, from rows (c_1, c_2, …); τ² is Σ c_k² of the layer before."""
    layers, scale = [], tau0
    for row in table:
        layers.append(hermite((0.0, *map(float, row)), scale))
        scale = math.sqrt(float(row @ row))
    return ExplicitNetwork(layers).centred(tau0)


def moments_of(table: FloatArray, tau0: float) -> Iterator[Moments]:
    """Moments of the layers that `layers_of` makes, each at its own scale."""
    scale = tau0
    for row in table:
        # Of c_0 there is nothing, and two zeros end the series.
        series = np.concatenate([[0.0], row, [0.0, 0.0]])
        yield Moments(scale, *moments_of_series(series[None], np.array([scale]))[:, 0].tolist())
        scale = math.sqrt(float(row @ row))


def quadratic_table(x: FloatArray, tau0: float) -> FloatArray:
    """Rows (c_1, c_2) of the layers a_l(x² − τ²) + b_l x, from (a_1, b_1, a_2, b_2)."""
    table, scale = [], tau0
    for a, b in x.reshape(-1, 2):
        table.append([scale * b, math.sqrt(2.0) * scale**2 * a])
        scale = math.hypot(*table[-1])
    return np.array(table)

"""The quadratic network of the sphere paper."""

from __future__ import annotations

import math

import numpy as np

from notsodeep.activations import polynomial
from notsodeep.equivalents import SphereCoefficients
from notsodeep.matching.family import Solution
from notsodeep.models import ExplicitNetwork, KernelName


def quadratic_network(parameters: tuple[float, float, float]) -> ExplicitNetwork:
    """One hidden layer with σ(t) = a2 t² + a1 t + a0, from (a2, a1, a0)."""
    a2, a1, a0 = parameters
    return ExplicitNetwork([polynomial((a0, a1, a2))])


def solve_sphere_quadratic(
    target: SphereCoefficients, dimension: int, kernel: KernelName
) -> Solution:
    """Meet α, β and μ with a quadratic (sphere paper, arXiv 2308.16425, corollary 1).

    CK: a2 = √(μ/2), a1 = √β, a0 = √(α − μ/d) − a2.
    NTK: a2 = √(μ/6), a1 = √(β/2), a0 = √(α − μ/d) − a2.  All signs are free; these are positive.
    """
    tangent = kernel == "tangent"
    a2 = math.sqrt(target.diagonal / (6.0 if tangent else 2.0))
    a1 = math.sqrt(target.linear / (2.0 if tangent else 1.0))
    square = target.constant - target.diagonal / dimension
    if square < 0.0:
        return Solution(
            None,
            False,
            f"(a0 + a2)² = constant − diagonal/d would be {square:.6g} and must not be negative: "
            "an odd φ has no constant, and a quadratic cannot do without one",
        )
    parameters = np.array([a2, a1, math.sqrt(square) - a2])
    return Solution(parameters, True, "meets constant, linear, diagonal")

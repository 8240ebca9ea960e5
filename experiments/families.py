"""Families of networks that the papers' experiments match with."""

from __future__ import annotations

import numpy as np

from notsodeep.activations import Activation, centre, leaky_relu
from notsodeep.arrays import FloatArray
from notsodeep.matching import Family, match
from notsodeep.matching.family import Problem


def _layers(x: FloatArray, problem: Problem) -> list[Activation]:
    """Two leaky layers, the first of slope 1 on the right: the free scale between them."""
    b, c, d = map(float, x)
    return [centre(leaky_relu(1.0, b), problem.scale), leaky_relu(c, d)]


def _starts(problem: Problem) -> list[FloatArray]:
    one = match(problem.model, tau0=problem.scale, family="leaky_relu", kind=problem.kind,
                convention=problem.convention)  # fmt: skip
    slopes = list(one.parameters.values())[:2]
    # First layers from nearly linear to bending back; the second as in the match of one layer.
    return [np.array([s, *slopes]) for s in (0.8, 0.3, -0.3)]


TWO_LEAKY_RELU = Family(
    "two_leaky_relu", ("negative_slope_1", "positive_slope_2", "negative_slope_2"), _layers, _starts
)
"""Least squares on all four coefficients of the mixture theory."""

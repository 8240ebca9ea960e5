"""The activations that every contract test runs over."""

from __future__ import annotations

from notsodeep import activations
from notsodeep.activations import Activation

REFERENCE: list[Activation] = [
    activations.named("relu"),
    activations.named("normalized_relu"),
    activations.leaky_relu(1.1, 0.7),
    activations.named("abs"),
    activations.hard_tanh(),
    activations.hard_tanh(0.7643, 1.1965),
    activations.named("identity"),
    activations.named("tanh"),
    activations.named("erf"),
    activations.named("arctan"),
    activations.named("sin"),
    activations.named("cos"),
    activations.named("swish"),
    activations.named("gelu"),
    activations.elu(1.0),
    activations.elu(1.5),
    activations.named("softplus"),
    activations.polynomial((0.3, 1.0, -0.5, 0.25)),
    activations.hermite((0.2, 0.7, 0.4, -0.3)),
    activations.piecewise_linear((-1.0, 0.0, 1.5), (0.1, 0.5, 1.2, 0.0)),
]
"""One or more of each name; the high-precision tables in references/ are about these."""

CONTRACT: list[Activation] = [
    *REFERENCE,
    activations.centre(activations.named("relu"), 0.9),
    activations.centre(activations.named("swish"), 1.3),
    activations.centre(activations.named("tanh"), 1.0),
    activations.scaled(activations.named("tanh"), 0.7, 1.3),
    activations.scaled(activations.named("erf"), -0.4, 3.0),
    activations.centre(activations.scaled(activations.elu(1.5), 1.2, 0.6), 0.9),
    activations.hermite((0.1, 0.5, 0.0, 0.2), scale=0.8),
    activations.piecewise_linear((1.0, 2.0), (0.0, 1.0, 0.0)),
    activations.centre(activations.named("cos"), 0.8),
    activations.from_formula("x / (1 + abs(x))", kinks=(0.0,)),
    activations.from_formula("max(x, 0.1 * x) + 0.3 * tanh(x - 1)", kinks=(0.0,)),
    activations.from_formula("exp(-x**2 / 2) * sin(2 * x)"),
]
"""Everything that behaves as an activation: the above, transformed ones and formulas."""


def identifier(activation: Activation) -> str:
    return str(activation).replace(" ", "")

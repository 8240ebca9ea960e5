"""Networks with weights of kinds that public code has, drawn instead of trained."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation, from_formula, hard_tanh, leaky_relu, named
from notsodeep.trained import AffineCell, EquilibriumCell

FloatArray = NDArray[np.float64]

ACTIVATIONS: dict[str, Activation] = {
    "relu": named("relu"),
    "tanh": named("tanh"),
    "sigmoid": from_formula("sigmoid(x)"),
    "hard tanh": hard_tanh(),
    "leaky relu": leaky_relu(1.0, 0.1),
    "slopes up to 1.4": leaky_relu(1.4, 0.2),
}


def drawn_cell(
    rng: np.random.Generator,
    activation: Activation,
    *,
    width: int = 8,
    inputs: int = 5,
    classes: int = 3,
    margin: float = 0.3,
    size: float = 1.0,
    spread: float = 0.0,
) -> AffineCell:
    """Return a network with sym(Λ(β⁻¹I − W)) = margin·I + size·(PSD), Λ = exp(spread·N(0, 1))."""
    beta = max(1.0, float(activation.lipschitz))
    if activation.lipschitz < 1.0:
        beta = float(activation.lipschitz)
    A, B = (rng.standard_normal((width, width)) / np.sqrt(width) for _ in range(2))
    scaling = np.exp(spread * rng.standard_normal(width))
    S = margin * np.eye(width) + size * A.T @ A
    G = (S + size * (B - B.T)) / scaling[:, None]
    return EquilibriumCell.from_weights(
        np.eye(width) / beta - G,
        rng.standard_normal((width, inputs)),
        rng.standard_normal(width),
        activation,
        (rng.standard_normal((classes, width)), rng.standard_normal(classes)),
        shift=0.1,
        scale=0.7,
    )

"""Networks with weights of kinds that public code has, drawn instead of trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from notsodeep.activations import Activation, from_formula, hard_tanh, leaky_relu, named
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell

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
) -> AffineDEQ:
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


@dataclass(frozen=True)
class Reference:
    """z = φ(Wz + h), h = U(x − shift)/scale + b, logits C z + c, in NumPy alone."""

    cell: AffineDEQ

    def __getattr__(self, name: str) -> FloatArray:
        return self.cell.arrays()[name]

    def drive(self, X: FloatArray) -> FloatArray:
        return np.asarray((X - self.shift) / self.scale @ self.U.T + self.b)

    def step_argument(self, z: FloatArray, X: FloatArray) -> FloatArray:
        return np.asarray(z @ self.W.T + self.drive(X))

    def step(self, z: FloatArray, drive: FloatArray) -> FloatArray:
        return self.cell.activation(z @ self.W.T + drive)

    def logits(self, z: FloatArray) -> FloatArray:
        return np.asarray(z @ self.C.T + self.c)


def exact_logits(cell: AffineDEQ, X: FloatArray) -> FloatArray:
    """Return the logits of the fixed points of rows."""
    with torch.no_grad():
        solved = cell.solve(cell.drive(X), 1e-12)
        solved.require()
        return np.asarray(cell.logits(solved.z).numpy())

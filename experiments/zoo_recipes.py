"""How the networks of the zoo were trained; run it to train them again.

``python -m experiments.zoo_recipes tanh-digits-64 --out DIRECTORY`` writes one safetensors file.
Both forms have a fixed point by their parametrisation, so that training needs neither a penalty
nor luck: *contracting* networks by ‖W‖₂ ≤ ρ < 1, *monotone* ones by W = (1 − m)I − AᵀA + B − Bᵀ
with m > 0 (Winston, Kolter, *Monotone operator equilibrium networks*, NeurIPS 2020).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from experiments.collapse.heads import cut_singular_values
from notsodeep.data import load
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell
from notsodeep.networks.implicit import Anderson, Solver, SolveRecord, implicit_layer
from notsodeep.networks.training import TrainingSettings, train
from notsodeep.networks.weights import save_cell

_TOLERANCE = 1e-4  # of the solves in training; gradients of batches are noisier than that


@dataclass(frozen=True)
class Recipe:
    """Everything that the weights of a network follow from."""

    name: str
    form: Literal["contracting", "monotone"]  # tanh, ‖W‖₂ ≤ bound; or relu, sym(I − W) ⪰ bound·I
    data: str
    shift: float  # inputs are (pixel − shift)/scale, pixels in [0, 1]
    scale: float
    width: int
    bound: float
    epochs: int  # of Adam with a cosine schedule, in batches of 128
    learning_rate: float
    weight_decay: float


_DIGITS = ("digits", 0.305, 0.376)
_MNIST = ("mnist", 0.1307, 0.3081)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("tanh-digits-64", "contracting", *_DIGITS, 64, 0.9, 60, 3e-3, 1e-4),
        Recipe("tanh-mnist-100", "contracting", *_MNIST, 100, 0.9, 25, 4e-3, 1e-4),
        Recipe("monotone-digits-64", "monotone", *_DIGITS, 64, 0.5, 60, 3e-3, 1e-4),
        Recipe("monotone-mnist-100", "monotone", *_MNIST, 100, 0.5, 15, 2e-3, 1e-5),
    )
}


class TrainedNetwork(nn.Module):
    """z* = φ(W z* + U x + b), f = C z* + c, with a W that keeps the fixed point unique."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.injection = nn.Linear(inputs, width)
        self.readout = nn.Linear(width, classes)
        self.record: SolveRecord | None = None  # of the last pass, for the training loop


class Contracting(TrainedNetwork):
    """tanh, ‖W‖₂ ≤ ρ: after every step of the optimiser W is taken back into that ball."""

    def __init__(self, inputs: int, width: int, classes: int, bound: float) -> None:
        super().__init__(inputs, width, classes)
        self.bound = bound
        self.matrix = nn.Parameter(0.5 * torch.randn(width, width) / math.sqrt(width))
        self.constrain()

    def recurrent(self) -> Tensor:
        """Return W."""
        return self.matrix

    @torch.no_grad()
    def constrain(self) -> None:
        """Go to the nearest matrix with ‖W‖₂ ≤ ρ."""
        cut_singular_values(self.matrix, self.bound)

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        drive = self.injection(X)
        h, self.record = implicit_layer(
            lambda h, d, W: nn.functional.linear(torch.tanh(h), W) + d,
            (drive, self.matrix),
            drive,
            solver=Solver(_TOLERANCE),
            on_failure="warn",
        )
        logits: Tensor = self.readout(torch.tanh(h))
        return logits


class Monotone(TrainedNetwork):
    """relu, W = (1 − m)I − AᵀA + B − Bᵀ, solved by Peaceman–Rachford.

    Plain iteration need not converge.  With V = (I + α(I − W))⁻¹ the map
    u ↦ 2V(2z − u + α(Ux + b)) − (2z − u), z = relu(u), contracts for every α > 0, and its fixed
    point has z = z*.
    """

    def __init__(self, inputs: int, width: int, classes: int, bound: float) -> None:
        super().__init__(inputs, width, classes)
        self.bound = bound
        self.factor = nn.Parameter(torch.randn(width, width) / math.sqrt(2 * width))
        self.skew = nn.Parameter(torch.randn(width, width) / math.sqrt(2 * width))

    def recurrent(self) -> Tensor:
        """Return W."""
        identity = torch.eye(len(self.factor), dtype=self.factor.dtype)
        gram: Tensor = self.factor.mT @ self.factor
        return (1.0 - self.bound) * identity - gram + self.skew - self.skew.mT

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        drive = self.injection(X)
        M = torch.eye(drive.shape[1]) - self.recurrent()
        # The best step of Peaceman–Rachford for a symmetric M with spectrum in [m, ‖M‖].
        with torch.no_grad():
            alpha = float((self.bound * torch.linalg.matrix_norm(M, 2)) ** -0.5)
        inverse = torch.linalg.inv(torch.eye(len(M)) + alpha * M)

        def reflected(u: Tensor, h: Tensor, V: Tensor) -> Tensor:
            half = u.abs()  # 2 relu(u) − u
            return 2.0 * (half + alpha * h) @ V.mT - half

        u, self.record = implicit_layer(
            reflected, (drive, inverse), drive, solver=Anderson(_TOLERANCE), on_failure="warn"
        )
        logits: Tensor = self.readout(torch.relu(u))
        return logits


def trained(recipe: Recipe) -> tuple[AffineDEQ, float]:
    """Train a network; return it and its test accuracy.

    The same machine, with the same number of threads, gives the same weights.
    """
    data = load(recipe.data, preprocessing="unit_range", rng=0, balanced=False)
    X, X_test = (
        ((rows - recipe.shift) / recipe.scale).astype(np.float32) for rows in (data.X, data.X_test)
    )
    bounded = recipe.form == "contracting"
    kind = Contracting if bounded else Monotone
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind(X.shape[1], recipe.width, len(data.classes), recipe.bound)
    chosen = {name: getattr(recipe, name) for name in ("epochs", "learning_rate", "weight_decay")}
    settings = TrainingSettings(optimiser="adam", schedule="cosine", seed=0, **chosen)
    options = {"decays": {"matrix": 0.0}, "after_step": network.constrain} if bounded else {}
    train(network, X, data.y, settings, **options)
    network.eval()
    with torch.no_grad():
        found = network(torch.from_numpy(X_test)).argmax(dim=1).numpy()
    cell = EquilibriumCell.from_weights(
        network.recurrent(),
        network.injection.weight,
        network.injection.bias,
        "tanh" if bounded else "relu",
        (network.readout.weight, network.readout.bias),
        shift=recipe.shift,
        scale=recipe.scale,
    )
    return cell, float((found == data.y_test).mean())


def main() -> None:
    """Train networks by their names and write them, as the package has them."""
    parser = argparse.ArgumentParser(description="Train networks of the zoo.")
    parser.add_argument("names", nargs="*", choices=[[], *RECIPES], help="all by default")
    parser.add_argument("--out", type=Path, default=Path("zoo"))
    options = parser.parse_args()
    for name in options.names or RECIPES:
        cell, accuracy = trained(RECIPES[name])
        path = options.out / f"{name}.safetensors"
        words = {"test_accuracy": f"{accuracy:.4f}", "seed": 0, "data": RECIPES[name].data}
        save_cell(cell, path, words, dtype="float32")
        print(f"{path}: {accuracy:.2%}")


if __name__ == "__main__":
    main()

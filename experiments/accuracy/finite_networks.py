"""Finite networks of the study: drawn, trained and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from notsodeep.data import Dataset, draw_rows
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.networks.implicit import Solver
from notsodeep.networks.random import build
from notsodeep.networks.readout import fit_readout
from notsodeep.networks.training import TrainingSettings, train

ROLES = ("deq", "matched", "unmatched")
DESCENT: dict[str, Any] = {
    "optimiser": "momentum",
    "learning_rate": 10.0,
    "momentum": 0.9,
    "schedule": "cosine",
}
"""In the theory's scaling a rate serves all widths: kernels do not depend on the width."""

_SCALE_ROWS = 256  # that give the size of features, to which the ridge is relative


def drawn_network(
    model: DeepEquilibrium | ExplicitNetwork, data: Dataset, cell: dict[str, Any], seed: int
) -> Any:
    """Build a network with the weights of a draw, and a read-out of zeros.

    All models of one draw use the same seed, so that explicit networks of the same shape hold the
    same weights: differences between them are not those of two independent draws.
    """
    module = build(
        model,
        data.X.shape[1],
        cell["width"],
        len(data.classes),
        np.random.default_rng([seed, cell["draw"]]),
        trainable=cell["train"],
        solver=Solver(cell["tolerance"]),
    )
    torch.nn.init.zeros_(module.readout)
    return module


def fit_network(module: Any, data: Dataset, cell: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train what is trainable in a new network, in place; return its record."""
    if cell["train"] == "readout":
        with torch.no_grad():
            rows = data.X[draw_rows(data.X, _SCALE_ROWS, seed)]
            features = module.features(torch.as_tensor(rows, dtype=torch.float32))
        ridge = cell["ridge"] * float(features.square().sum(dim=1).mean())
        fit = fit_readout(module, data.X, data.y, ridge)
        return {"ridge": ridge, "train_accuracy": fit.accuracy}
    chosen = {name: cell[name] for name in ("epochs", "batch_size", *DESCENT)}
    training = train(module, data.X, data.y, TrainingSettings(**chosen, seed=seed + cell["draw"]))
    record = {"train_accuracy": training.history[-1]["accuracy"], "epochs": len(training.history)}
    if module.closed:
        solves = [epoch["solver"] for epoch in training.history]
        record["unsolved_batches"] = sum(summary["failures"] for summary in solves)
        record["most_steps"] = max(summary["most_steps"] for summary in solves)
    return record


def right_rows(module: torch.nn.Module, X: Any, y: Any) -> NDArray[np.bool_]:
    """Return for each row whether the largest output is that of its class."""
    module.eval()
    with torch.no_grad():
        guesses = [
            module(torch.as_tensor(X[start : start + 1024], dtype=torch.float32)).argmax(dim=1)
            for start in range(0, len(X), 1024)
        ]
    return np.asarray(torch.cat(guesses).numpy() == np.asarray(y))

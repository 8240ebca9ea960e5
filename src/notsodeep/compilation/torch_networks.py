"""Finite networks in torch: images, and networks all of whose weights are trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from notsodeep.arrays import FloatArray
from notsodeep.compilation.random_deq import SCALE_ROWS, Trained
from notsodeep.compilation.record import Arrays, DataSummary, RandomSettings
from notsodeep.data import Dataset, draw_rows
from notsodeep.networks.implicit import Solver
from notsodeep.networks.random import build
from notsodeep.networks.readout import fit_readout
from notsodeep.networks.training import TrainingSettings, train

_ROWS = 1024  # in one pass


class TorchNetworks:
    """Networks that are drawn, trained and evaluated in torch."""

    library, side_by_side = "torch", False  # PyTorch has threads of its own

    def __init__(self, settings: RandomSettings, models: dict[str, Any], data: Dataset) -> None:
        self.settings, self.models, self.data = settings, models, data

    def train(self, role: str, index: int) -> Trained:
        """Draw a network, and fit its read-out or train all of its weights.

        All roles of a draw share their seed, so that networks of one shape share their weights.
        """
        asked, data = self.settings, self.data
        module = build(
            self.models[role],
            data.X.shape[1],
            asked.width,
            len(data.classes),
            np.random.default_rng([asked.random_state, index]),
            trainable=asked.train,
            solver=Solver(asked.tolerance),
        )
        nn.init.zeros_(module.readout)
        if asked.train == "readout":
            some = data.X[draw_rows(data.X, SCALE_ROWS, asked.random_state)]
            with torch.no_grad():
                features = module.features(torch.as_tensor(some, dtype=torch.float32))
            ridge = asked.ridge * float(features.square().sum(dim=1).mean())
            fit_readout(module, data.X, data.y, ridge)
        else:
            # In the theory's scaling a rate serves all widths: kernels do not depend on the width,
            # and a DEQ's recurrent weights move so little that it stays a contraction.  (Adam moves
            # every entry by its rate, which drives a wide DEQ to where its solver needs many
            # steps.)
            descent = TrainingSettings(
                asked.epochs,
                batch_size=32,
                optimiser="momentum",
                learning_rate=10.0,
                momentum=0.9,
                schedule="cosine",
                seed=asked.random_state + index,
            )
            train(module, data.X, data.y, descent, progress=False)
        module.eval()

        @torch.no_grad()
        def scores(X: FloatArray, tolerance: float) -> NDArray[Any]:
            module.solver = Solver(tolerance)
            parts = torch.split(torch.as_tensor(X, dtype=torch.float32), _ROWS)
            return torch.cat([module(part) for part in parts]).numpy()

        def steps(X: FloatArray, tolerance: float) -> int:
            scores(X, tolerance)
            return module.record.steps if module.record else 1

        weights = {name: value.numpy().copy() for name, value in module.state_dict().items()}
        return Trained(weights, scores, steps)


def module_of(model: Any, width: int, weights: Arrays, data: DataSummary) -> nn.Module:
    """Return a network as a torch module in evaluation mode, with its weights from arrays."""
    outputs = len(weights["readout"])
    module = build(model, data.features, width, outputs, 0, trainable="readout")
    module.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in weights.items()})
    vars(module).update(preprocessing=data.preprocessing, classes=data.classes)
    return module.eval()

"""Train one finite network of a job, and measure it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from notsodeep.compilation.settings import DESCENT, SCALE_ROWS, NetworkSettings
from notsodeep.data import Dataset, draw_rows
from notsodeep.models import ConvolutionalEquilibrium, DeepEquilibrium, ExplicitNetwork
from notsodeep.networks.build import build
from notsodeep.networks.modules import ExplicitModule, ImplicitNetwork
from notsodeep.networks.readout import fit_readout
from notsodeep.networks.timing import time_against
from notsodeep.networks.timing import tolerance_front as tolerance_front  # of this module too
from notsodeep.networks.training import train
from notsodeep.networks.training_records import TrainingSettings
from notsodeep.numerics.paired_times import TimingTable

FiniteNetwork = ImplicitNetwork | ExplicitModule


AT_ONCE = False
"""Whether networks may be trained in several threads: PyTorch has threads of its own."""


def train_network(
    model: DeepEquilibrium | ExplicitNetwork,
    data: Dataset,
    settings: NetworkSettings,
    index: int,
    checkpoint: Path | None,
) -> tuple[FiniteNetwork, dict[str, Any]]:
    """Build a network with the weights of draw `index`, train it, and measure its accuracy.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    data : Dataset
    settings : NetworkSettings
    index : int
        Number of the draw.
    checkpoint : Path or None
        Where gradient descent keeps its state.
    """
    module = drawn_network(model, data, settings, index)
    record = fit_network(module, data, settings, index, checkpoint=checkpoint)
    right = right_rows(module, data.X_test, data.y_test)
    packed = np.packbits(right).tobytes().hex()
    return module, {**record, "accuracy": float(right.mean()), "right": packed}


def drawn_network(
    model: DeepEquilibrium | ExplicitNetwork, data: Dataset, settings: NetworkSettings, index: int
) -> FiniteNetwork:
    """Build a network with the weights of draw `index`, and a read-out of zeros.

    All models of one draw use the same seed, so that explicit networks of the same shape hold the
    same weights: differences between them are not those of two independent draws.
    """
    solver = {"name": "fixed_point", "tolerance": settings.tolerance}
    options: dict[str, Any] = {
        "solver": solver,
        "gradient": {"name": "implicit", "solver": solver},
    }
    return build(
        model,
        data.X.shape[1],
        settings.width,
        len(data.classes),
        np.random.default_rng([settings.seed, index]),
        trainable=settings.train,
        readout_start="zeros",
        **(options if isinstance(model, DeepEquilibrium | ConvolutionalEquilibrium) else {}),
    )


def fit_network(
    module: FiniteNetwork,
    data: Dataset,
    settings: NetworkSettings,
    index: int,
    *,
    descent: TrainingSettings | None = None,
    checkpoint: Path | None = None,
) -> dict[str, Any]:
    """Train what is trainable in a new network, in place; return its record.

    A read-out is fitted by ridge regression, all weights by gradient descent.

    Parameters
    ----------
    module : ImplicitNetwork or ExplicitModule
    data : Dataset
    settings : NetworkSettings
    index : int
        Number of the draw, which sets the order of the samples.
    descent : TrainingSettings, optional
        Of gradient descent; `DESCENT` in batches of 32 if left out.
    checkpoint : Path, optional
        Where gradient descent keeps its state.
    """
    if settings.train == "readout":
        with torch.no_grad():
            rows = data.X[draw_rows(data.X, SCALE_ROWS, settings.seed)]
            features = module.features(torch.as_tensor(rows, dtype=torch.float32))
        ridge = settings.ridge * float(features.square().sum(dim=1).mean())
        fit = fit_readout(module, data.X, data.y, ridge)
        return {"ridge": ridge, "train_accuracy": fit.accuracy}
    if descent is None:
        descent = TrainingSettings(
            epochs=settings.epochs,
            batch_size=32,
            seed=settings.seed + index,
            **DESCENT,
        )
    training = train(module, data.X, data.y, descent, checkpoint=checkpoint)
    record = {"train_accuracy": training.history[-1].accuracy, "epochs": len(training.history)}
    if not isinstance(module, ExplicitModule):
        solves = [epoch.forward for epoch in training.history if epoch.forward is not None]
        record["unsolved_batches"] = sum(summary.failures for summary in solves)
        record["most_steps"] = max(summary.most_steps for summary in solves)
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


def time_models(
    deq: DeepEquilibrium,
    explicit: ExplicitNetwork,
    data: Dataset,
    settings: NetworkSettings,
    batch: int,
) -> TimingTable:
    """Time a new DEQ and a new network beside each other, on `batch` rows.

    A read-out is fitted once, by ridge regression: then there is no training step to measure.
    """
    sizes = (data.X.shape[1], settings.width, len(data.classes), settings.seed)
    first, second = (build(model, *sizes, trainable=settings.train) for model in (deq, explicit))
    return time_against(
        first,  # type: ignore[arg-type]
        second,  # type: ignore[arg-type]
        data.X[draw_rows(data.X, batch, settings.seed)],
        tolerance=settings.tolerance,
        training=settings.train == "all",
    )

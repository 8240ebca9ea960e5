"""Accuracy and cost against the width: the mixture paper's figure 3 (arXiv 2402.02697)."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.accuracy.vgg19 import weights_file, with_features
from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import Dataset, draw_rows, load
from notsodeep.matching import Match, match
from notsodeep.models import DeepEquilibrium, ExplicitNetwork, KernelName
from notsodeep.networks.implicit import Solver
from notsodeep.networks.random import build
from notsodeep.networks.readout import fit_readout
from notsodeep.networks.training import TrainingSettings, train

FAMILIES = {"relu": "leaky_relu", "tanh": "hard_tanh"}
"""What each DEQ is matched with."""
FEATURES = {"cifar10": False, "cifar10_pooled": True}
"""CIFAR-10 through VGG-19: the 16th convolution, as in the paper, or the last pooling."""

ROLES = ("deq", "matched", "unmatched")
DESCENT: dict[str, Any] = {
    "optimiser": "momentum",
    "learning_rate": 10.0,
    "momentum": 0.9,
    "schedule": "cosine",
}
"""In the theory's scaling a rate serves all widths: kernels do not depend on the width."""

_SCALE_ROWS = 256  # that give the size of features, to which the ridge is relative
Training = Literal["readout", "all"]
Widths = dict[Training, tuple[int, ...]]

_KERNELS: dict[Training, Any] = {"readout": "conjugate", "all": "tangent"}
_MATCHED, _CERTIFIED = 900, 600  # rows, at most
_TIMED_ROWS, _TIMED_PASSES = 1024, 5


def _cells(profile: Profile) -> list[Cell]:
    if profile == "smoke":
        small: Widths = {"readout": (16, 32), "all": (16, 32)}
        return _grid("digits", small, range(2), samples=200, epochs=1)
    if profile == "quick":
        medium: Widths = {"readout": (32, 64, 128, 256, 512), "all": (32, 64, 128)}
        return _grid("digits", medium, range(3))
    narrow: Widths = {
        "readout": tuple(2**k for k in range(5, 12)),
        "all": tuple(2**k for k in range(5, 10)),
    }
    wide: Widths = {"readout": (4096, 8192)}
    names = image_sets()
    readout: Widths = {"readout": narrow["readout"]}  # as in the paper, for its features of CIFAR
    cells = [
        cell
        for name in names
        for cell in _grid(name, readout if name in FEATURES else narrow, range(3))
    ]
    # Twice the steps to 1e-4 would move no accuracy; 1e-2 is the paper's authors' tolerance.
    return cells + [cell for name in names for cell in _grid(name, wide, range(1), tolerance=1e-2)]


def _grid(
    data: str,
    widths: Widths,
    draws: range,
    samples: int | None = None,
    epochs: int = 10,
    tolerance: float = 1e-4,
) -> list[Cell]:
    """Return the cells of one data set, from cheap to expensive."""
    cells = [
        {
            "data": data,
            # All images for the read-out; as many as this work affords for gradient descent.
            "samples": samples or (20_000 if training == "all" and data != "digits" else None),
            "activation": activation,
            "family": family,
            "sigma_a2": 0.2,
            "kernel": _KERNELS[training],
            "train": training,
            "width": width,
            "draw": draw,
            "tolerance": tolerance,
            **(_descent(epochs) if training == "all" else {"ridge": 1e-2}),
        }
        for training in widths
        for width in widths[training]
        for activation, family in FAMILIES.items()
        for draw in draws
    ]
    return sorted(cells, key=_cost)


def _descent(epochs: int) -> dict[str, Any]:
    return {"epochs": epochs, "batch_size": 256, **DESCENT}


def _cost(cell: Cell) -> int:
    """Return about how many thousand multiplications the three networks need for a sample.

    That is for 60,000 samples; fitted to measured times.
    """
    m, p = int(cell["width"]), {"cifar10": 2048, "cifar10_pooled": 512}.get(cell["data"], 784)
    if cell["train"] == "readout":
        return 1 + (3 * m * p + 16 * m * m) // 1000
    share = (cell["samples"] or 60_000) / 60_000
    return 1 + int(share * cell["epochs"] * (8 * m * p + 30 * m * m + 1_500_000)) // 1000


def _compute(cell: Cell, seed: int) -> Record:
    """Train and measure the DEQ, its matched network and an unmatched one, beside each other."""
    data = width_data(cell["data"], cell["samples"])
    found, gaps = _matched(
        cell["data"], cell["samples"], cell["activation"], cell["sigma_a2"], cell["kernel"]
    )
    models: dict[str, DeepEquilibrium | ExplicitNetwork] = {
        "deq": found.model,
        "matched": found.network,
        "unmatched": found.unmatched,
    }
    # The first optimiser of a process loads much of torch, which is no network's cost.
    torch.optim.Adam([torch.zeros(1)])
    modules, networks, training = {}, {}, {}
    for role in ROLES:
        module = drawn_network(models[role], data, cell, seed)
        begin = time.process_time()
        fit = fit_network(module, data, cell, seed)
        training[role] = time.process_time() - begin
        if role == "deq" and cell["train"] == "all":
            # Descent may leave the contractions; the record says how many batches were not solved.
            module.on_failure = "ignore"
        right = right_rows(module, data.X_test, data.y_test)
        networks[role] = {**fit, "accuracy": float(right.mean())}
        modules[role] = module
    return {
        "training_samples": len(data.X),
        "test_samples": len(data.X_test),
        "features": data.X.shape[1],
        "parameters": found.parameters,
        "kernel_gap": gaps,
        "networks": networks,
        "seconds": {
            "threads": torch.get_num_threads(),
            "training": training,
            "inference": _inference_seconds(modules, _some(data.X_test, _TIMED_ROWS)),
        },
    }


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


def _inference_seconds(modules: dict[str, Any], X: NDArray[Any]) -> dict[str, float]:
    """Median processor time of a pass over some rows, the networks taking turns."""
    rows = torch.as_tensor(X, dtype=torch.float32)
    passes: dict[str, list[float]] = {role: [] for role in modules}
    with torch.no_grad():
        for _ in range(_TIMED_PASSES):
            for role, module in modules.items():
                begin = time.process_time()
                module(rows)
                passes[role].append(time.process_time() - begin)
    return {role: float(np.median(values)) for role, values in passes.items()}


# A data set and its matches serve many cells; two sets are in use at a time.
@lru_cache(maxsize=2)
def width_data(name: str, samples: int | None, test_samples: int | None = None) -> Dataset:
    """Load a set of `image_sets`, or digits, in float32."""
    options: Any = {"samples": samples, "test_samples": test_samples, "rng": 0}
    weights = weights_file() if name in FEATURES else None
    if weights is not None:
        images = load("cifar10", preprocessing="none", **options)
        return with_features(images, weights, pooled=FEATURES[name])
    data = load(name, **options)
    single = np.float32
    return replace(data, X=data.X.astype(single), X_test=data.X_test.astype(single))


def image_sets() -> list[str]:
    """Return the names of the sets that figure 3 can be drawn for on this machine."""
    return ["mnist", "fashion_mnist", *(FEATURES if weights_file() else ())]


@lru_cache(maxsize=8)
def _matched(
    name: str, samples: int | None, activation: str, sigma_a2: float, kind: KernelName
) -> tuple[Match, dict[str, float]]:
    """Match on training rows; return the relative gaps of exact kernels on test rows too."""
    data = width_data(name, samples)
    rows = _some(data.X, _MATCHED).astype(np.float64)
    tau0 = float(np.sqrt(np.square(rows).sum(axis=1).mean()))
    found = match(
        DeepEquilibrium(activation, sigma_a2).centred(tau0),  # the paper's
        rows,
        family=FAMILIES[activation],
        kind=kind,
        refine=True,
    )
    certificate = found.certify(_some(data.X_test, _CERTIFIED).astype(np.float64))
    return found, {
        "matched": certificate.matched.relative_gap,
        "unmatched": certificate.unmatched.relative_gap,
    }


def _some(rows: NDArray[Any], count: int) -> NDArray[Any]:
    return rows[draw_rows(rows, count)]


EXPERIMENT = Experiment(
    "accuracy-versus-width",
    "Accuracy and cost of DEQs and of shallow networks against the width",
    "mixture paper, arXiv 2402.02697, figure 3",
    _cells,
    _compute,
    cost=_cost,
)

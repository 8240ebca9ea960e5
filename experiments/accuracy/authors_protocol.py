"""The mixture paper's figure 3 as its authors computed it, and what each of their choices does.

Their public code trains the read-out alone, by plain SGD, on random features; the DEQ is solved
loosely, training and test images are scaled by statistics of their own, and the unmatched network
has its constant inside the ReLU.  Every change leads from their protocol towards ours, one at a
time: who differs from the DEQ under one protocol and not under another is thereby explained.
"""

from __future__ import annotations

import json
import math
import time
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from experiments.accuracy.accuracy_versus_width import FEATURES, image_sets, width_data
from experiments.families import TWO_LEAKY_RELU
from experiments.runner import Cell, Experiment, Profile, Record, cell_name
from notsodeep.activations import named, piecewise_linear, scaled
from notsodeep.arrays import IntArray
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium, ExplicitNetwork

ROLES = ("deq", "matched", "plain")
_LOOSE = {"name": "anderson", "memory": 5, "max_steps": 25, "tolerance": 1e-2}
_STRICT = {"name": "plain", "tolerance": 1e-4}
_THEIRS: dict[str, dict[str, str]] = {
    "relu": {"matched": "leaky, 2 layers", "plain": "relu, 2 layers, constant inside"},
    "tanh": {"matched": "hard tanh", "plain": "tanh, weights scaled"},
}
_SCALE_ROWS = 2000

# What each change sets, for all networks or for one of them, on top of the authors' protocol.
_EVERY: dict[str, dict[str, Any]] = {
    "as the authors": {},
    "training statistics for the test images": {"all": {"scaling": "training"}},
    "DEQ solved to 1e-4": {"deq": {"solver": _STRICT}},
    "rate ten times as large": {"all": {"rate_factor": 10.0}},
    "ridge regression instead of SGD": {"all": {"readout": "ridge"}},
    "all images": {"all": {"samples": None, "test_samples": None}},
}
_OURS = {"scaling": "training", "readout": "ridge", "samples": None, "test_samples": None}
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "relu": {
        **_EVERY,
        "constant outside the ReLU": {"plain": {"network": "relu, 2 layers"}},
        "constant outside the ReLU, ridge regression": {
            "all": {"readout": "ridge"},
            "plain": {"network": "relu, 2 layers"},
        },
        "no constant": {"plain": {"network": "relu, 2 layers, no constant"}},
        "one layer": {
            "matched": {"network": "leaky, 1 layer"},
            "plain": {"network": "relu, 1 layer, constant inside"},
        },
        "as here": {
            "all": _OURS,
            "deq": {"solver": _STRICT},
            "matched": {"network": "leaky, 1 layer"},
            "plain": {"network": "relu, 1 layer"},
        },
    },
    "tanh": {
        **_EVERY,
        "weights not scaled": {"plain": {"network": "tanh"}},
        "as here": {"all": _OURS, "deq": {"solver": _STRICT}, "plain": {"network": "tanh"}},
    },
}
"""By activation of the DEQ, in the order of the table."""
_DECISIVE = ("as the authors", "constant outside the ReLU", "one layer", "as here")
CURVES = {
    "relu": ("as the authors", "constant outside the ReLU"),
    "tanh": ("as the authors", "weights not scaled"),
}
"""By activation of the DEQ, the changes that are followed over all widths."""


def runs(
    data: str, activation: str, change: str, width: int, draw: int, epochs: int = 100
) -> dict[str, Cell]:
    """Return the cells of the three networks under one change."""
    chosen = CHANGES[activation][change]
    sizes = [200, 100] if data == "digits" else [50_000, 8_000]
    cells = {}
    for role in ROLES:
        cell: Cell = {
            "data": data, "samples": sizes[0], "test_samples": sizes[1], "scaling": "own",
            "activation": activation, "sigma_a2": 0.2,
            "network": "DEQ" if role == "deq" else _THEIRS[activation][role],
            "width": width, "draw": draw, "readout": "sgd", "epochs": epochs, "batch_size": 128,
            "rate": 0.1 if data in FEATURES else 1.0,
        }  # fmt: skip
        if role == "deq":
            cell["solver"] = _LOOSE
        cell |= chosen.get("all", {}) | chosen.get(role, {})
        if factor := cell.pop("rate_factor", None):
            cell["rate"] *= factor
        if cell["readout"] == "ridge":  # a sum over the images, relative to their mean square
            for name in ("epochs", "batch_size", "rate"):
                del cell[name]
            cell["ridge"] = 1e-2
        cells[role] = cell
    return cells


def _cells(profile: Profile) -> list[Cell]:
    if profile != "paper":
        small = profile == "smoke"
        width, epochs, activations = (16, 2, ("relu",)) if small else (128, 100, tuple(CHANGES))
        places = [
            ("digits", act, change, width, 0, epochs)
            for act in activations for change in CHANGES[act]
        ]  # fmt: skip
    else:
        sets = [name for name in image_sets() if name != "cifar10_pooled"]  # not a set of theirs
        # The answer first, then repetitions of the changes that matter, then the paper's curves.
        places = [
            (data, act, change, 512, draw, 100)
            for draw in range(3) for data in sets for act in CHANGES for change in CHANGES[act]
            if draw == 0 or change in _DECISIVE
        ]  # fmt: skip
        places += [
            (data, act, change, 2**k, 0, 100) for act in CURVES for k in range(5, 14)
            for data in sets for change in CURVES[act]
        ]  # fmt: skip
    cells = (cell for place in places for cell in runs(*place).values())
    return list({cell_name(cell): cell for cell in cells}.values())


def _compute(cell: Cell, seed: int) -> Record:
    """Train the read-out of one network, and measure it on the test images."""
    begin = time.process_time()
    data = width_data(cell["data"], cell["samples"], cell["test_samples"])
    module, F, steps = _network(*(cell.get(name) for name in _NETWORK), _text(cell.get("solver")))
    X_test = data.X_test
    if cell["scaling"] == "own":
        X_test = Preprocessing.fit(X_test).apply(X_test, "float32")
    F_test = _features(module, X_test)[0]
    chosen = {name: cell[name] for name in cell if name != "scaling"}
    weights, fit = _fitted(json.dumps(chosen))
    return {
        **fit,
        "solver_steps": steps,
        "training_samples": len(F),
        "test_samples": len(F_test),
        "train_accuracy": _accuracy(F, weights, data.y),
        "accuracy": _accuracy(F_test, weights, data.y_test),
        "seed_of_cell": seed,
        "seconds": time.process_time() - begin,
    }


# How test images are scaled does not change the read-out.
@lru_cache(maxsize=4)
def _fitted(text: str) -> tuple[NDArray[np.float32], Record]:
    """Train the read-out of a cell; return it and what is to be recorded."""
    cell = json.loads(text)
    data = width_data(cell["data"], cell["samples"], cell["test_samples"])
    F = _network(*(cell.get(name) for name in _NETWORK), _text(cell.get("solver")))[1]
    squared = float(np.square(F[:_SCALE_ROWS]).sum(axis=1).mean())
    record: Record = {"mean_squared_norm": squared}
    if cell["readout"] == "ridge":
        T, level = np.eye(len(data.classes))[data.y], cell["ridge"] * squared
        wide = F.astype(np.float64)
        normal = wide.T @ wide + level * np.eye(F.shape[1])
        return linalg.solve(normal, wide.T @ T, assume_a="pos").T.astype(np.float32), record
    weights, record["losses"] = plain_descent(
        F, data.y, len(data.classes), epochs=cell["epochs"], batch_size=cell["batch_size"],
        rate=cell["rate"], seed=cell["draw"],
    )  # fmt: skip
    return weights, record


def plain_descent(
    F: NDArray[np.float32],
    y: IntArray,
    classes: int,
    *,
    epochs: int,
    batch_size: int,
    rate: float,
    seed: int,
) -> tuple[NDArray[np.float32], list[float]]:
    """Train a read-out from zero by plain SGD on the mean cross-entropy of batches.

    The gradient of a batch is (softmax(F aᵀ) − T)ᵀ F/batch_size, T the one-hot labels.  This is
    `notsodeep.networks.train` on given features, without the cost of a graph for every step.

    Returns
    -------
    ndarray of shape (classes, m), list of float
        The read-out a, and the mean loss over the batches of every epoch.
    """
    a = np.zeros((classes, F.shape[1]), dtype=np.float32)
    T = np.eye(classes, dtype=np.float32)[y]
    losses = []
    for epoch in range(epochs):
        order, total = np.random.default_rng([seed, epoch]).permutation(len(F)), 0.0
        for start in range(0, len(F), batch_size):
            chosen = order[start : start + batch_size]
            batch, target = F[chosen], T[chosen]
            scores = batch @ a.T
            scores -= scores.max(axis=1, keepdims=True)
            shares = np.exp(scores)
            sums = shares.sum(axis=1, keepdims=True)
            total += float(np.log(sums).sum() - (scores * target).sum())
            a -= (rate / len(chosen)) * ((shares / sums - target).T @ batch)
        losses.append(total / len(F))
    return a, losses


def _accuracy(F: NDArray[Any], weights: NDArray[Any], y: IntArray) -> float:
    return float(((F @ weights.T).argmax(axis=1) == y).mean())


# The networks of a change are those of the next but for one.
@lru_cache(maxsize=4)
def _network(
    name: str, samples: int | None, test_samples: int | None, network: str, activation: str,
    sigma_a2: float, width: int, draw: int, solver: str | None,
) -> tuple[Any, NDArray[np.float32], int]:  # fmt: skip
    """Draw a network and compute its features of the training images.

    Networks of the same shape and draw have the same weights.
    """
    from notsodeep.networks.random import build

    data = width_data(name, samples, test_samples)
    options: Any = {} if solver is None else {"solver": json.loads(solver)}
    module = build(
        _model(network, activation, sigma_a2), data.X.shape[1], width, len(data.classes),
        np.random.default_rng([width, draw]), trainable="readout", **options,
    )  # fmt: skip
    module.on_failure = None if solver is None else "ignore"
    return module, *_features(module, data.X)


_NETWORK = ("data", "samples", "test_samples", "network", "activation", "sigma_a2", "width", "draw")


def _text(content: dict[str, Any] | None) -> str | None:
    return None if content is None else json.dumps(content)


def _features(module: Any, X: NDArray[Any]) -> tuple[NDArray[np.float32], int]:
    """Return the features (n, m), and the most steps that a batch of 1024 rows needed."""
    import torch

    parts, steps = [], [0]
    with torch.no_grad():
        for rows in torch.split(torch.as_tensor(X), 1024):
            parts.append(module.eval().features(rows))
            steps += [] if module.record is None else [module.record.steps]
    return torch.cat(parts).numpy(), max(steps)


def _model(network: str, activation: str, sigma_a2: float) -> DeepEquilibrium | ExplicitNetwork:
    """Return a network for data of scale one."""
    deq = DeepEquilibrium(activation, sigma_a2).centred(1.0)
    kind, *details = network.split(", ")
    match kind:
        case "DEQ":
            return deq
        case "leaky":
            family = "leaky_relu" if details[0][0] == "1" else TWO_LEAKY_RELU
            return match(deq, tau0=1.0, family=family).network
        case "hard tanh":
            return match(deq, tau0=1.0, family="hard_tanh").network
        case "tanh":
            steepness = math.sqrt(sigma_a2) if details else 1.0
            return ExplicitNetwork([scaled(named("tanh"), 1.0, steepness)])
    plain = ExplicitNetwork(["relu"] * int(details[0][0]))
    if "no constant" in details:
        return plain
    centred = plain.centred(1.0)
    if "constant inside" not in details:
        return centred
    constants = [layer.constant for layer in centred.activations]  # type: ignore[attr-defined]
    return ExplicitNetwork([piecewise_linear((c,), (0.0, 1.0)) for c in constants])


def table(records: list[Record]) -> list[dict[str, Any]]:
    """Put the three networks under each change side by side, with the draws that are there.

    Each row has data, activation, width, change, and for every role the list of test accuracies
    in percent over the draws for which all three networks were run.
    """
    found = {cell_name(record["cell"]): record for record in records}
    cells = [record["cell"] for record in records]
    places = dict.fromkeys((c["data"], c["activation"], c["width"]) for c in cells)
    draws = range(1 + max(cell["draw"] for cell in cells))
    epochs = max(cell.get("epochs", 0) for cell in cells)
    rows = []
    for data, activation, width in places:
        for change in CHANGES[activation]:
            accuracies: dict[str, list[float]] = {role: [] for role in ROLES}
            for draw in draws:
                three = runs(data, activation, change, width, draw, epochs)
                names = {role: cell_name(cell) for role, cell in three.items()}
                if all(name in found for name in names.values()):
                    for role, name in names.items():
                        accuracies[role].append(100.0 * found[name]["accuracy"])
            if accuracies["deq"]:
                place = {"data": data, "activation": activation, "width": width}
                rows.append({**place, "change": change, "accuracies": accuracies})
    return rows


def _cost(cell: Cell) -> int:
    """Return about how many million multiplications an image needs; fitted to measured times."""
    m, p = int(cell["width"]), 784
    steps = 8 if cell["network"] == "DEQ" else int("2 layers" in cell["network"])
    fit = m * m if cell["readout"] == "ridge" else cell["epochs"] * (2_000 + 40 * m)
    return 1 + (m * p + steps * m * m + fit) // 1_000_000


EXPERIMENT = Experiment(
    "authors-protocol",
    "Accuracies by the mixture paper's protocol, changed step by step into ours",
    "mixture paper, arXiv 2402.02697, figure 3, and its authors' public code",
    _cells,
    _compute,
    cost=_cost,
)

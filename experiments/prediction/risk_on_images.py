"""Predicted risks on images, which are no mixtures: features, pilots, raw pixels."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from experiments.prediction.risk_simulations import with_errors
from experiments.runner import Cell, Experiment, Finding, Profile, Record
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import Dataset, load
from notsodeep.kernels import kernel
from notsodeep.models import DeepEquilibrium
from notsodeep.prediction import (
    estimated_mixture,
    pilot_curve,
    predict_on_points,
    predict_readout,
    predict_risk,
)
from notsodeep.prediction.problem import usual_targets

_QUANTITIES = ("test_mse", "accuracy")
_PIXEL_KERNELS = (
    ("tanh", "tangent", "preactivation"), ("relu", "conjugate", "feature"),
    ("relu", "tangent", "preactivation"),
)  # fmt: skip


def _cells(profile: Profile) -> list[Cell]:
    if profile != "paper":
        data = "digits"
        width, sizes = (10, [40, 80]) if profile == "smoke" else (12, [50, 100, 200])
        return [
            _features(data, "relu", width=width, known=600, points=200, sizes=sizes),
            _pilot(data, pilot=320, samples=640, points=400),
        ]
    cells = [
        _features(data, activation, width=300, known=12_000, points=3_000,
                  sizes=[200, 500, 1000, 2000, 8000])
        for data in ("mnist", "fashion_mnist")
        for activation in ("relu", "tanh")
    ]  # fmt: skip
    cells += [
        _pilot(data, pilot=2000, samples=8000, points=4000) for data in ("mnist", "fashion_mnist")
    ]
    cells.append(_pilot("digits", pilot=1000, samples=1000, points=400))
    cells += [
        {
            "part": "pixels", "data": "mnist", "classes": [6, 8], "activation": activation,
            "kernel": kind, "convention": convention, "sigma_a2": 0.2, "samples": samples,
            "ridges": [1e-2, 1.0], "points": 2000, "draws": 4,
        }
        for activation, kind, convention in _PIXEL_KERNELS
        for samples in (400, 1600)
    ]  # fmt: skip
    return cells


def _features(
    data: str, activation: str, *, width: int, known: int, points: int, sizes: list[int]
) -> Cell:
    return {
        "part": "features", "data": data, "activation": activation, "sigma_a2": 0.2,
        "width": width, "known": known, "points": points, "samples": sizes,
        "ridges": [1e-3, 0.1], "draws": 4,
    }  # fmt: skip


def _pilot(data: str, *, pilot: int, samples: int, points: int) -> Cell:
    return {
        "part": "pilot", "data": data, "activation": "relu", "sigma_a2": 0.2,
        "kernel": "tangent", "convention": "feature", "pilot": pilot, "samples": samples,
        "points": points, "ridges": [1e-3, 0.1, 1.0],
    }  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    parts = {"features": _on_features, "pilot": _from_pilot, "pixels": _on_pixels}
    return parts[cell["part"]](cell, seed)


def _on_features(cell: Cell, seed: int) -> Record:
    """Read-outs on a random DEQ: predicted from statistics of some images, measured on others."""
    known, points, largest = cell["known"], cell["points"], max(cell["samples"])
    data = _loaded(cell, known + points + 3 * largest, seed)
    F, y = _features_of(cell, data, seed), data.y
    statistics = estimated_mixture(F[:known], y[:known])
    new, truth = F[known : known + points], y[known : known + points]
    pool, labels = F[known + points :], y[known + points :]
    targets, rng = usual_targets(len(data.classes)), np.random.default_rng(seed)
    curves = []
    for n in cell["samples"]:
        counts = statistics.class_counts(n)
        rows = []
        for _ in range(cell["draws"]):
            chosen = _stratified(labels, counts, rng)
            X, Y = pool[chosen], targets[labels[chosen]]
            fits = [_readout(X, Y, level) for level in cell["ridges"]]
            rows.append([_measured(new @ W, targets, truth) for W in fits])
        gauss = predict_readout(statistics, counts, ridge=cell["ridges"])
        given = predict_on_points(statistics, counts, new, truth, ridge=cell["ridges"], rng=seed)
        predicted = {"Gaussian scores": gauss, "given points": given}
        curves.append({**with_errors(rows, _QUANTITIES), "predicted": _numbers(predicted)})
    return {"curves": curves}


def _from_pilot(cell: Cell, seed: int) -> Record:
    """Leave-one-out errors of a pilot, extended to more samples, beside errors on new images."""
    data = _loaded(cell, cell["samples"] + cell["points"], seed)
    model = DeepEquilibrium(cell["activation"], cell["sigma_a2"])
    n, ridges, N = cell["samples"], cell["ridges"], cell["pilot"]
    choice: Any = {"kind": cell["kernel"], "convention": cell["convention"]}
    K = np.asarray(kernel(model, data.X, data.X[:n], **choice))
    targets = usual_targets(len(data.classes))
    Y = targets[data.y[:n]]
    record: Record = {"pilots": []}
    for start in range(0, n - N + 1, N):  # disjoint pilots, all of the larger training set
        part = slice(start, start + N)
        curve = pilot_curve(K[part, part], data.y[part], ridges, rng=seed)
        (mse, error), scatter = curve.extrapolated(n), curve.standard_errors(n)
        record["pilots"].append({
            "leave_one_out": {
                "test_mse": curve.mse[-1].tolist(), "error": curve.error[-1].tolist(),
            },
            "cross_validation": curve.cross_validation[-1].tolist(),
            "leverage_spread": curve.leverage_spread.tolist(),
            # None where a pilot made too few mistakes
            "extrapolated": {"test_mse": mse.tolist(), "error": _known(error)},
            "scatter": {"test_mse": scatter[0].tolist(), "error": _known(scatter[1])},
        })  # fmt: skip
    fits = {"pilot": (N, K[n:, :N], data.y[n:]), "measured": (n, K[n:], data.y[n:])}
    own = np.asarray(kernel(model, data.X_test, data.X[:n], **choice))
    fits["test part"] = (n, own, data.y_test)
    for name, (size, cross, truth) in fits.items():
        rows = []
        for level in ridges:
            alpha = np.linalg.solve(K[:size, :size] + level * np.eye(size), Y[:size])
            rows.append(_point_errors(cross @ alpha, targets, truth))
        names = ("test_mse", "mse_error", "error", "error_error")
        record[name] = dict(zip(names, np.array(rows).T.tolist(), strict=True))
    return record


def _on_pixels(cell: Cell, seed: int) -> Record:
    """Kernel ridge regression on two classes of raw images, taken for a Gaussian mixture."""
    data = _loaded(cell, None, seed)
    model = DeepEquilibrium(cell["activation"], cell["sigma_a2"])
    statistics = estimated_mixture(data.X, data.y)
    targets, rng, points = usual_targets(2), np.random.default_rng(seed), cell["points"]
    counts = statistics.class_counts(cell["samples"])
    choice: Any = {"kernel": cell["kernel"], "convention": cell["convention"]}
    rows = []
    for _ in range(cell["draws"]):
        order = rng.permutation(len(data.X))
        new, rest = order[:points], order[points:]
        chosen = rest[_stratified(data.y[rest], counts, rng)]
        everyone = np.concatenate([data.X[chosen], data.X[new]])
        K = np.asarray(kernel(model, everyone, data.X[chosen], kind=cell["kernel"],
                              convention=cell["convention"]))  # fmt: skip
        n, Y = len(chosen), targets[data.y[chosen]]
        fits = [np.linalg.solve(K[:n] + level * np.eye(n), Y) for level in cell["ridges"]]
        rows.append([_measured(K[n:] @ alpha, targets, data.y[new]) for alpha in fits])
    curve = predict_risk(model, statistics, counts, ridge=cell["ridges"], **choice)
    return {
        "curves": [
            {**with_errors(rows, _QUANTITIES), "predicted": _numbers({"Gaussian scores": curve})}
        ]
    }


def _loaded(cell: Cell, rows: int | None, seed: int) -> Dataset:
    """Load images in a random order: neighbours in a file may be by one hand."""
    data = load(cell["data"], classes=cell.get("classes"), samples=rows, rng=seed)
    order = np.random.default_rng(seed).permutation(len(data.X))
    return dataclasses.replace(data, X=data.X[order], y=data.y[order])


def _features_of(cell: Cell, data: Dataset, seed: int) -> FloatArray:
    """Return the features of a random DEQ, shape (n, width)."""
    import torch

    from notsodeep.networks.build import build

    model = DeepEquilibrium(cell["activation"], cell["sigma_a2"])
    network: Any = build(
        model, data.X.shape[1], cell["width"], 1, seed, dtype=torch.float64, trainable="readout"
    )
    with torch.no_grad():
        batches = [
            network.features(torch.from_numpy(data.X[start : start + 2000])).numpy()
            for start in range(0, len(data.X), 2000)
        ]
    return np.concatenate(batches)


def _stratified(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Choose that many rows of every class."""
    chosen = [
        rng.choice(np.flatnonzero(labels == a), size, replace=False)
        for a, size in enumerate(counts)
    ]
    return np.concatenate(chosen)


def _readout(X: FloatArray, Y: FloatArray, ridge: float) -> FloatArray:
    return np.asarray(np.linalg.solve(X.T @ X + ridge * np.eye(X.shape[1]), X.T @ Y))


def _measured(scores: FloatArray, targets: FloatArray, truth: IntArray) -> list[float]:
    mse, _, error, _ = _point_errors(scores, targets, truth)
    return [mse, 1.0 - error]


def _point_errors(scores: FloatArray, targets: FloatArray, truth: IntArray) -> list[float]:
    """Return squared error and error rate, each with its standard error over the points."""
    squares = np.square(scores - targets[truth]).sum(axis=1)
    wrong = np.square(scores[:, None] - targets).sum(axis=2).argmin(axis=1) != truth
    root = math.sqrt(len(truth))
    return [squares.mean(), squares.std() / root, wrong.mean(), wrong.std() / root]


def _numbers(predicted: dict[str, Any]) -> Record:
    return {
        name: {quantity: getattr(risk, quantity).tolist() for quantity in _QUANTITIES}
        for name, risk in predicted.items()
    }


def _known(values: FloatArray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _findings(records: list[Record]) -> list[Finding]:
    found = []
    for record in records:
        cell = record["cell"]
        title = f"{cell['data']}, {cell['activation']}, {cell['part']}"
        if cell["part"] == "pilot":
            quantities = (("squared error", "test_mse"), ("error rate", "error"))
            for (what, key), (i, level) in itertools.product(quantities, enumerate(cell["ridges"])):
                pilots = [p for p in record["pilots"] if p["extrapolated"][key][i] is not None]
                if pilots:
                    told = ", ".join(f"{p['extrapolated'][key][i]:.4f}" for p in pilots)
                    scatter = np.mean([p["scatter"][key][i] for p in pilots])
                    ahead = f"{told} ± {scatter:.4f} from {cell['pilot']}"
                else:
                    ahead = f"too few mistakes of {cell['pilot']}"
                error = record["measured"]["mse_error" if key == "test_mse" else "error_error"][i]
                measured = f"{record['measured'][key][i]:.4f} ± {error:.4f}"
                name = f"{title} {cell['samples']}, λ = {level:g}: {what}"
                found.append(Finding(name, ahead, measured))
            continue
        sizes = np.atleast_1d(cell["samples"])
        for (n, curve), (i, level) in itertools.product(
            zip(sizes, record["curves"], strict=True), enumerate(cell["ridges"])
        ):
            predicted = "; ".join(
                f"{numbers['test_mse'][i]:.3f}, {numbers['accuracy'][i]:.1%} with {name}"
                for name, numbers in curve["predicted"].items()
            )
            ours = (
                f"{curve['measured']['test_mse'][i]:.3f} ± {curve['errors']['test_mse'][i]:.3f}, "
            )
            ours += f"{curve['measured']['accuracy'][i]:.1%}"
            name = f"{title}, n = {n}, λ = {level:g}: test error and accuracy"
            found.append(Finding(name, predicted, ours))
    return found


EXPERIMENT = Experiment(
    "risk-on-images",
    "Risks on images, from statistics of features, pilots and pixels",
    "notsodeep.prediction",
    _cells,
    _compute,
    _findings,
)

"""Leave-one-out errors of pilots of images, extended to more images."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from experiments.prediction.risk_simulations import default_targets
from experiments.runner import Cell, Experiment, Finding, Profile, Record
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import load
from notsodeep.kernels import kernel
from notsodeep.models import DeepEquilibrium
from notsodeep.prediction import pilot_curve


def _cells(profile: Profile) -> list[Cell]:
    if profile != "paper":
        return [_pilot("digits", pilot=320, samples=640, points=400)]
    cells = [
        _pilot(data, pilot=2000, samples=8000, points=4000) for data in ("mnist", "fashion_mnist")
    ]
    return [*cells, _pilot("digits", pilot=1000, samples=1000, points=400)]


def _pilot(data: str, *, pilot: int, samples: int, points: int) -> Cell:
    return {
        "part": "pilot", "data": data, "activation": "relu", "sigma_a2": 0.2,
        "kernel": "tangent", "convention": "feature", "pilot": pilot, "samples": samples,
        "points": points, "ridges": [1e-3, 0.1, 1.0],
    }  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    """Leave-one-out errors of a pilot, extended to more samples, beside errors on new images."""
    data = load(cell["data"], samples=cell["samples"] + cell["points"], rng=seed)
    # In a random order: neighbours in a file may be by one hand.
    order = np.random.default_rng(seed).permutation(len(data.X))
    data = dataclasses.replace(data, X=data.X[order], y=data.y[order])
    model = DeepEquilibrium(cell["activation"], cell["sigma_a2"])
    n, ridges, N = cell["samples"], cell["ridges"], cell["pilot"]
    choice: Any = {"kind": cell["kernel"], "convention": cell["convention"]}
    K = np.asarray(kernel(model, data.X, data.X[:n], **choice))
    targets = default_targets(len(data.classes))
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


def _point_errors(scores: FloatArray, targets: FloatArray, truth: IntArray) -> list[float]:
    """Return squared error and error rate, each with its standard error over the points."""
    squares = np.square(scores - targets[truth]).sum(axis=1)
    wrong = np.square(scores[:, None] - targets).sum(axis=2).argmin(axis=1) != truth
    root = math.sqrt(len(truth))
    return [squares.mean(), squares.std() / root, wrong.mean(), wrong.std() / root]


def _known(values: FloatArray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _findings(records: list[Record]) -> list[Finding]:
    found = []
    for record in records:
        cell = record["cell"]
        title = f"{cell['data']}, {cell['activation']}, {cell['part']}"
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
    return found


EXPERIMENT = Experiment(
    "risk-on-images",
    "Risks on images, from pilots",
    "notsodeep.prediction",
    _cells,
    _compute,
    _findings,
)

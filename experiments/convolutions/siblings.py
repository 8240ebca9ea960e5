"""Convolutional DEQs against explicit convolutions, on digits."""

from __future__ import annotations

from typing import Any

import numpy as np

import notsodeep as nsd
from experiments.convolutions.accuracy import SIGMA_A2, averaged, ridge_right
from experiments.runner import Cell, Experiment, Finding, Profile, Record


def _cells(profile: Profile) -> list[Cell]:
    n, test = (60, 50) if profile == "smoke" else (300, 500)
    return [{"pooling": p, "n": n, "test": test} for p in ("flatten", 3, "average")]


def _compute(cell: Cell, seed: int) -> Record:
    """Exact conjugate kernels of the DEQ and of one and two plain ReLU convolutions, on digits.

    A scale of the activation changes nothing here, as ridges are shares of the diagonal: one plain
    convolution stands for the twins that are rescaled ReLUs.  Leads are those of the DEQ.
    """
    pooling, n, test = cell["pooling"], cell["n"], cell["test"]
    data = nsd.data.load("digits", samples=n + test, preprocessing="pixels", rng=0)
    order = np.random.default_rng(0).permutation(n + test)
    X, y = data.X[order[:n]], data.y[order[:n]]
    X_test, y_test = data.X[order[n:]], data.y[order[n:]]
    layer = nsd.Convolution("relu", weight=SIGMA_A2, inject=1.0 - SIGMA_A2)
    models = {
        "DEQ": nsd.ConvolutionalEquilibrium([layer], (8, 8), pooling),
        "one": nsd.ConvolutionalNetwork(["relu"], (8, 8), pooling),
        "two": nsd.ConvolutionalNetwork(["relu", "relu"], (8, 8), pooling),
    }
    row: dict[str, Any] = {"seed_of_cell": seed}
    right = {}
    for name, model in models.items():
        own, cross = (
            nsd.kernel(model, A, B, convention="feature") for A, B in ((X, None), (X_test, X))
        )
        answer, _ = ridge_right(own, cross, y, y_test)
        right[name] = answer[None].astype(np.float64)
        row[name] = averaged(right[name])
        if name != "DEQ":
            row[f"lead over {name}"] = averaged(right["DEQ"] - right[name])
    return row


def _findings(records: list[Record]) -> list[Finding]:
    return [
        Finding(
            f"{record['cell']['pooling']}: accuracy of {name}",
            "",
            f"{100 * record[name][0]:.1f} ± {100 * record[name][1]:.1f} %",
        )
        for record in records
        for name in ("DEQ", "one", "two", "lead over one", "lead over two")
    ]


EXPERIMENT = Experiment(
    "convolution-siblings",
    "A convolutional DEQ against one and two plain convolutions",
    "documentation page on convolutions",
    _cells,
    _compute,
    _findings,
)

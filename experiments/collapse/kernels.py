"""Class variability of kernels: a DEQ, its matched network and an unmatched one."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.datasets import mixture_rows
from experiments.runner import Cell, Experiment, Finding, Profile, Record
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import kernel_collapse
from notsodeep.data import load
from notsodeep.equivalents.distances import operator_norm
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium, Model

MEASURES = ("nc1", "nc1_trace_ratio", "nc1_cdnv", "nc2_features")
"""What is recorded of every kernel."""
_WORDS = {"nc1": "tr(S_W S_B⁺)/K", "nc1_trace_ratio": "tr S_W/tr S_B"}

_PLACES: dict[str, list[Cell]] = {
    "smoke": [{"data": "digits", "samples": 100, "test_samples": 100}],
    "quick": [
        {"data": "digits", "samples": 400, "test_samples": 330},
        {"data": "gaussian_mixture", "samples": 300, "test_samples": 300, "dimension": 400},
    ],
    "paper": [
        {"data": "digits", "samples": 600, "test_samples": 330},
        {"data": "gaussian_mixture", "samples": 600, "test_samples": 1000, "dimension": 1000},
        {"data": "mnist", "samples": 600, "test_samples": 1000},
        {"data": "fashion_mnist", "samples": 600, "test_samples": 1000},
    ],
}
_SIGMA_A2 = {"smoke": (0.2,), "quick": (0.2, 0.5), "paper": (0.1, 0.2, 0.5)}
_DRAWS = {"smoke": 1, "quick": 2, "paper": 3}


def _cells(profile: Profile) -> list[Cell]:
    return [
        {**place, "draw": draw, "activation": phi, "sigma_a2": sigma_a2, "kernel": kernel}
        for place in _PLACES[profile]
        for phi in ("relu", "tanh")
        for sigma_a2 in _SIGMA_A2[profile]
        for kernel in ("conjugate", "tangent")
        for draw in range(_DRAWS[profile])
    ]


def _compute(cell: Cell, seed: int) -> Record:
    """Match on training rows, measure exact kernels on test rows."""
    rows, (X, y) = _data(cell)
    tau0 = float(np.sqrt(np.square(rows).sum(axis=1).mean()))
    deq = DeepEquilibrium(cell["activation"], cell["sigma_a2"]).centred(tau0)
    kernel: Any = cell["kernel"]
    found = match(deq, rows, kind=kernel, refine=False)
    models: dict[str, Model] = {
        "deq": found.model,
        "matched": found.network,
        "unmatched": found.unmatched,
    }
    kernels = {
        name: exact_kernel(model, X, kind=kernel, convention="feature")
        for name, model in models.items()
    }
    norm = operator_norm(kernels["deq"])
    return {
        **{name: _measured(K, y) for name, K in kernels.items()},
        "inputs": _measured(X @ X.T, y),
        "gaps": {
            name: operator_norm(kernels["deq"] - kernels[name]) / norm
            for name in ("matched", "unmatched")
        },
        "family": found.family,
        "network": str(found.network),
        "seed_of_cell": seed,
    }


def _data(cell: Cell) -> tuple[FloatArray, tuple[FloatArray, IntArray]]:
    """Return rows to match on, and rows to test on: one choice for all designs of a draw."""
    sizes = cell["samples"], cell["test_samples"]
    if cell["data"] == "gaussian_mixture":
        _, train, test = mixture_rows(cell["dimension"], *sizes, cell["draw"])
        return train[0], test
    data = load(cell["data"], samples=sizes[0], test_samples=sizes[1], rng=cell["draw"])
    return data.X, (data.X_test, data.y_test)


def _measured(K: FloatArray, y: IntArray) -> dict[str, float]:
    overall = kernel_collapse(K, y).overall
    return {name: overall[name] for name in MEASURES}


def _findings(records: list[Record]) -> list[Finding]:
    findings = []
    cells = [record["cell"] for record in records]
    designs = dict.fromkeys((c["data"], c["activation"], c["kernel"]) for c in cells)
    for design in designs:
        mine = [
            record
            for record in records
            if tuple(record["cell"][key] for key in ("data", "activation", "kernel")) == design
        ]
        name, phi, kernel = design
        label = f"{name}, {phi}, {'CK' if kernel == 'conjugate' else 'NTK'}"
        gaps = {side: max(r["gaps"][side] for r in mine) for side in ("matched", "unmatched")}
        for measure, words in _WORDS.items():
            values = [record["deq"][measure] for record in mine]
            inputs = np.mean([record["inputs"][measure] for record in mine])
            findings.append(
                Finding(
                    f"{label}: {words} of the DEQ",
                    "",
                    f"{min(values):.3g} to {max(values):.3g}; matched network within "
                    f"{_worst(mine, 'matched', measure):.2%}, unmatched within "
                    f"{_worst(mine, 'unmatched', measure):.2%}",
                    f"inputs themselves {inputs:.3g}; kernels differ by up to "
                    f"{gaps['matched']:.2%} and {gaps['unmatched']:.2%} of their norm",
                )
            )
    return findings


def _worst(records: list[Record], network: str, measure: str) -> float:
    """Return the largest distance of a network's measure from the DEQ's, relative to that."""
    return max(abs(record[network][measure] / record["deq"][measure] - 1.0) for record in records)


EXPERIMENT = Experiment(
    "collapse-kernels",
    "Class variability NC1 of the kernels of a DEQ and of explicit networks",
    "block means of exact kernels, documentation page on collapse, section on kernels",
    _cells,
    _compute,
    _findings,
)

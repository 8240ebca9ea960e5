"""Class variability of CK and NTK on Gaussian classes (arXiv 2406.02105), implicit kernels too."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.collapse import kernel_collapse
from notsodeep.kernels import kernel
from notsodeep.models import DeepEquilibrium, ExplicitNetwork, Model

KERNELS = ("conjugate", "tangent")
_ACTIVATIONS = ("relu", "erf")
_MEAN, _DEVIATION = 2.0, 0.5


def _cells(profile: Profile) -> list[Cell]:
    dimensions, sizes, draws = {
        "smoke": ((1, 8), (32,), 2),
        "quick": ((1, 8, 128), (128,), 3),
        "paper": ((1, 2, 8, 32, 128), (128, 1024), 10),
    }[profile]
    return [
        {"model": model, "dimension": d, "samples": n, "draws": draws}
        for n, d, model in itertools.product(sizes, dimensions, (0.0, 0.2, 0.5, 0.9))
    ]


def _compute(cell: Cell, seed: int) -> Record:
    """Measure tr S_W/tr S_B of both kernels on two classes N(∓2·1, 0.25·I), weights over √d.

    Model 0 is the network of one hidden layer; any other number is σa² of a DEQ.
    """
    # One choice of rows for all models.
    rng = np.random.default_rng([cell["dimension"], cell["samples"]])
    y = np.repeat([0, 1], cell["samples"] // 2)
    centres = np.where(y == 0, -_MEAN, _MEAN)[:, None]
    values: dict[str, dict[str, list[float]]] = {
        name: {kind: [] for kind in KERNELS} for name in _ACTIVATIONS
    }
    inputs = []
    for _ in range(cell["draws"]):
        noise = rng.standard_normal((len(y), cell["dimension"]))
        X = (centres + _DEVIATION * noise) / np.sqrt(cell["dimension"])
        inputs.append(_variability(X @ X.T, y))
        for name, kind in itertools.product(_ACTIVATIONS, KERNELS):
            K = kernel(_model(name, cell["model"]), X, kind=kind, convention="feature")  # type: ignore[arg-type]
            values[name][kind].append(_variability(K, y))
    return {"inputs": inputs, "nc1": values, "seed_of_cell": seed}


def _model(activation: str, sigma_a2: float) -> Model:
    if sigma_a2 == 0.0:
        return ExplicitNetwork([activation])
    return DeepEquilibrium(activation, sigma_a2)


def _variability(K: Any, y: Any) -> float:
    ratio = kernel_collapse(np.asarray(K), y).overall["nc1_trace_ratio"]
    assert ratio is not None  # there are two classes of many rows
    return float(ratio)


EXPERIMENT = Experiment(
    "kernel-variability",
    "Class variability of CK and NTK on Gaussian classes, explicit and implicit",
    "Kothapalli, Tirer, arXiv 2406.02105",
    _cells,
    _compute,
)

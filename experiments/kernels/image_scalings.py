"""How the mixture paper's gaps on MNIST depend on the scaling of the images, which it leaves open.

Figure 1 states 1.57 for a tanh DEQ (σa² = 0.1) and its equivalent, figure 2 states 1.83 for a ReLU
DEQ (σa² = 0.2) and its leaky-ReLU network, both on MNIST 6 against 8 with n = 6000.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from experiments.families import TWO_LEAKY_RELU
from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.arrays import FloatArray
from notsodeep.data import MixtureStatistics, load
from notsodeep.equivalents import equivalent
from notsodeep.equivalents.distances import operator_norm
from notsodeep.kernels import kernel
from notsodeep.matching import match
from notsodeep.models import Convention, DeepEquilibrium

PAPER = {"equivalent": 1.57, "matched": 1.83}
SCALINGS = (
    "mean removed, root mean squared norm 1",
    "values in [0, 1]",
    "values in [0, 1], mean removed",
    "values in [0, 1] over √p",
    "values in [0, 1] over √p, mean removed",
    "every norm 1",
    "every norm 1, mean removed",
)
_MULTIPLES = (SCALINGS[2], SCALINGS[3], SCALINGS[4])  # of the first two
_FACTORS = (0.3, 0.5, 0.6, 0.7, 0.8, 1.5, 2.0)
_CONVENTIONS: tuple[Convention, ...] = ("preactivation", "feature")


def _cells(profile: Profile) -> list[Cell]:
    data: Cell = {"data": "mnist", "classes": [6, 8], "samples": 6000}
    if profile != "paper":
        data = {"data": "digits", "classes": [6, 8], "samples": 60 if profile == "smoke" else 200}
    scalings = SCALINGS if profile != "smoke" else SCALINGS[::5]
    cells = [{**data, "scaling": scaling, "factor": 1.0} for scaling in scalings]
    return cells + [{**data, "scaling": SCALINGS[0], "factor": factor} for factor in _FACTORS]


def _compute(cell: Cell, seed: int) -> Record:
    """Compute both gaps by exact kernels; images that are multiples of others have the first alone.

    ReLU networks and their centring are homogeneous: a factor s on the images makes s² of a gap.
    """
    raw = load(
        cell["data"], classes=cell["classes"], samples=cell["samples"], preprocessing="none", rng=0
    )
    X = cell["factor"] * _scaled(raw.X, cell["scaling"])
    statistics = MixtureStatistics.estimate(X, raw.y)
    norm2 = float(np.square(X).sum() / len(X))
    deq = DeepEquilibrium("tanh", 0.1).centred(statistics.tau0)
    K = np.asarray(kernel(deq, X, kind="ck", convention="preactivation"))
    gap = operator_norm(
        K - equivalent(deq, X, raw.y, order=1, convention="preactivation").to_dense()
    )
    record: Record = {
        "mean_squared_norm": norm2,
        "tau0": statistics.tau0,
        "equivalent": {"gap": gap, "norm": operator_norm(K)},
        "seed_of_cell": seed,
    }
    if cell["factor"] == 1.0 and cell["scaling"] not in _MULTIPLES:
        record["matched"] = _matched_gaps(X, math.sqrt(norm2))
    return record


def _scaled(pixels: FloatArray, scaling: str) -> FloatArray:
    X = pixels / pixels.max()
    if "√p" in scaling:
        X = X / math.sqrt(X.shape[1])
    if "every norm" in scaling:
        X = X / np.linalg.norm(X, axis=1, keepdims=True)
    if "mean removed" in scaling:
        X = X - X.mean(axis=0)
    if "root mean squared" in scaling:
        X = X / math.sqrt(float(np.square(X).sum() / len(X)))
    return np.asarray(X)


def _matched_gaps(X: FloatArray, tau0: float) -> dict[str, dict[str, Any]]:
    gaps = {}
    for convention in _CONVENTIONS:
        target = None
        for layers in (1, 2):
            found = match(
                DeepEquilibrium("relu", 0.2).centred(tau0),
                tau0=tau0,
                family="leaky_relu" if layers == 1 else TWO_LEAKY_RELU,
                convention=convention,
            )
            if target is None:
                target = np.asarray(kernel(found.model, X, convention=convention))
            reached = np.asarray(kernel(found.network, X, convention="preactivation"))
            gaps[f"{convention}, {layers} layers"] = {
                "gap": operator_norm(target - reached),
                "norm": operator_norm(target),
            }
    return gaps


def factor_for(records: list[Record], wanted: float) -> list[float]:
    """Return the factors on the images at which the tanh DEQ's gap is `wanted`, by interpolation.

    Linear in the logarithms between the factors that were computed.
    """
    points = sorted(
        (record["cell"]["factor"], record["equivalent"]["gap"])
        for record in records
        if record["cell"]["scaling"] == SCALINGS[0]
    )
    found = []
    for (s, low), (t, high) in itertools.pairwise(points):
        if min(low, high) <= wanted < max(low, high):
            share = math.log(wanted / low) / math.log(high / low)
            found.append(s * (t / s) ** share)
    return found


EXPERIMENT = Experiment(
    "image-scalings",
    "Gaps on MNIST under the scalings of images that the mixture paper may have used",
    "mixture paper, arXiv 2402.02697, figures 1 and 2",
    _cells,
    _compute,
)

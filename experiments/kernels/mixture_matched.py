"""A ReLU DEQ and its matched network: the mixture paper's figure 2 (arXiv 2402.02697)."""

from __future__ import annotations

import numpy as np

from experiments.datasets import mixture_rows
from experiments.families import TWO_LEAKY_RELU
from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import load
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium


def _cells(profile: Profile) -> list[Cell]:
    pairs = [("relu", "leaky_relu", 1), ("relu", "leaky_relu", 2), ("tanh", "hard_tanh", 1)]
    places = {
        "smoke": [{"data": "gaussian_mixture", "samples": 80, "dimension": 100}],
        "quick": [{"data": "gaussian_mixture", "samples": 400, "dimension": 500}],
        "paper": [
            {"data": "gaussian_mixture", "samples": 800, "dimension": 1000},
            {"data": "mnist", "classes": [6, 8], "samples": 3000},
        ],
    }
    return [
        {**place, "activation": phi, "family": family, "layers": layers, "sigma_a2": 0.2,
         "convention": convention}
        for place in places[profile]
        for phi, family, layers in pairs
        for convention in ("preactivation", "feature")
    ]  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    """Match at the scale of the data and compare exact kernels."""
    # One draw of the data for all designs.
    if cell["data"] == "gaussian_mixture":
        mixture, (X, y), _ = mixture_rows(cell["dimension"], cell["samples"], 2, 0)
        tau0 = mixture.tau0(np.bincount(y))
    else:
        X = load(cell["data"], classes=cell["classes"], samples=cell["samples"], rng=0).X
        tau0 = float(np.sqrt(np.square(X).sum() / len(X)))
    found = match(
        DeepEquilibrium(cell["activation"], cell["sigma_a2"]).centred(tau0),
        tau0=tau0,
        family=TWO_LEAKY_RELU if cell["layers"] == 2 else cell["family"],
        convention=cell["convention"],
    )
    certificate = found.certify(X)
    return {
        "parameters": found.parameters,
        "residuals": found.residuals,
        "matched": certificate.matched.to_dict(arrays=False),
        "baseline": certificate.unmatched.to_dict(arrays=False),
        "eigenvalues": certificate.matched.eigenvalues.tolist(),
        "matched_eigenvalues": certificate.matched.other_eigenvalues.tolist(),
        "seed_of_cell": seed,
    }


EXPERIMENT = Experiment(
    "mixture-matched",
    "DEQs against the shallow networks matched to them",
    "mixture paper, arXiv 2402.02697, figure 2",
    _cells,
    _compute,
)

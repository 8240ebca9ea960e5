"""A DEQ's kernel and its equivalent: the mixture paper's figure 1 (arXiv 2402.02697)."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.datasets import mixture_rows
from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import MixtureStatistics, load
from notsodeep.equivalents import compare, equivalent
from notsodeep.equivalents.distances import operator_norm
from notsodeep.kernels import kernel
from notsodeep.models import DeepEquilibrium
from notsodeep.networks.sampling import monte_carlo

PAPER = {"gaussian_mixture": 0.12, "mnist": 1.57}
_PAPER_DRAWS = 400


def _cells(profile: Profile) -> list[Cell]:
    mixture = {"data": "gaussian_mixture", "activation": "arctan", "sigma_a2": 0.1}
    if profile == "smoke":
        return [{**mixture, "samples": 80, "dimension": 100, "draws": 4, "width": 64}]
    if profile == "quick":
        return [{**mixture, "samples": 400, "dimension": 500, "draws": 20, "width": 256}]
    sizes = {"draws": _PAPER_DRAWS, "width": 1024}
    return [
        {**mixture, "samples": 800, "dimension": 1000, **sizes},
        {"data": "mnist", "classes": [6, 8], "activation": "tanh", "sigma_a2": 0.1,
         "samples": 6000, **sizes},
    ]  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    """Compute the gap by the exact kernel, and by an average over random finite networks."""
    if cell["data"] == "gaussian_mixture":
        mixture, (X, y), _ = mixture_rows(cell["dimension"], cell["samples"], 2, seed)
        statistics = mixture.statistics(X, y)
    else:
        data = load(cell["data"], classes=cell["classes"], samples=cell["samples"], rng=seed)
        X, y, mixture = data.X, data.y, None
        statistics = MixtureStatistics.estimate(X, y)
    deq = DeepEquilibrium(cell["activation"], cell["sigma_a2"]).centred(statistics.tau0)
    eq = equivalent(deq, X, y, mixture, order=1, convention="preactivation")
    exact = kernel(deq, X, convention="preactivation")
    comparison = compare(exact, eq)
    record: dict[str, Any] = {
        "exact": comparison.to_dict(arrays=False),
        "norm": float(np.abs(comparison.eigenvalues).max()),
        "eigenvalues": comparison.eigenvalues.tolist(),
        "equivalent_eigenvalues": eq.eigvalsh().tolist(),
    }
    features = monte_carlo(deq, X, cell["width"], cell["draws"], rng=seed).ck
    sampled = deq.sigma_a2 * features + deq.sigma_b2 * (X @ X.T)
    record["monte_carlo"] = {
        "gap": operator_norm(sampled - eq.to_dense()),
        "own_error": operator_norm(sampled - exact),
    }
    return record


EXPERIMENT = Experiment(
    "mixture-equivalent",
    "A DEQ's conjugate kernel and its random-matrix equivalent",
    "mixture paper, arXiv 2402.02697, figure 1",
    _cells,
    _compute,
)

"""How the distance to the equivalent falls with the dimension."""

from __future__ import annotations

import numpy as np

from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import paper_mixture
from notsodeep.equivalents import equivalent
from notsodeep.equivalents.distances import difference_norms
from notsodeep.kernels import kernel
from notsodeep.models import DeepEquilibrium, KernelName

_ACTIVATIONS = ("relu", "tanh", "leaky_relu", "elu", "swish")
_SIZES = {"smoke": (60, 120), "quick": (125, 250, 500), "paper": (250, 500, 1000, 2000)}
_SEEDS = {"smoke": 1, "quick": 2, "paper": 3}


def _cells(profile: Profile) -> list[Cell]:
    names = _ACTIVATIONS[:2] if profile == "smoke" else _ACTIVATIONS
    return [
        {"activation": name, "dimension": p, "draw": draw, "sigma_a2": 0.2}
        for name in names
        for p in _SIZES[profile]
        for draw in range(_SEEDS[profile])
    ]


def _compute(cell: Cell, seed: int) -> Record:
    """Compute the gap and the difference of traces for both kernels, n = 0.8p."""
    p = cell["dimension"]
    mixture = paper_mixture(p)
    X, y = mixture.sample(4 * p // 5, rng=seed)
    statistics = mixture.statistics(X, y)
    deq = DeepEquilibrium(cell["activation"], cell["sigma_a2"]).centred(statistics.tau0)
    pair = kernel(deq, X, convention="preactivation", kind="both")
    record: Record = {}
    exact = {"conjugate": pair.ck, "tangent": pair.ntk}
    kinds: dict[str, KernelName] = {"conjugate": "ck", "tangent": "ntk"}
    for name, kind in kinds.items():
        eq = equivalent(deq, X, y, mixture, kind=kind, order=1, convention="preactivation")
        trace = (float(np.trace(exact[name])) - eq.trace()) / len(X)
        gap = difference_norms(np.asarray(exact[name], np.float64), eq)[0]
        record[name] = {"gap": gap, "trace": trace}
    return record


def slopes(records: list[Record], kind: str) -> dict[str, float]:
    """Return the slope of log gap against log p for each activation, draws averaged."""
    result = {}
    for name in dict.fromkeys(record["cell"]["activation"] for record in records):
        mine = [record for record in records if record["cell"]["activation"] == name]
        sizes = sorted({record["cell"]["dimension"] for record in mine})
        gaps = [
            np.mean([r[kind]["gap"] for r in mine if r["cell"]["dimension"] == p]) for p in sizes
        ]
        result[name] = float(np.polyfit(np.log(sizes), np.log(gaps), 1)[0])
    return result


EXPERIMENT = Experiment(
    "gap-versus-dimension",
    "Distance of kernels from their equivalents against the dimension",
    "mixture paper, arXiv 2402.02697, theorems 1 and 2",
    _cells,
    _compute,
)

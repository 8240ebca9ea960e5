"""The DEQ's tuned rate, epochs and ridge, used unchanged on matched and on plain networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.runner import Cell, Experiment, Finding, Profile, Record
from notsodeep.data import load
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium
from notsodeep.prediction import Transfer, transfer

_SIZES: dict[Profile, dict[str, Any]] = {
    "smoke": {"data": ["digits"], "samples": 100, "sigma_a2": [0.9], "activations": ["relu"]},
    "quick": {"data": ["digits"], "samples": 400, "sigma_a2": [0.1, 0.5, 0.9]},
    "paper": {
        "data": ["mnist", "fashion_mnist"],
        "samples": 1000,
        "test_samples": 4000,
        "sigma_a2": [0.1, 0.3, 0.5, 0.7, 0.9],
    },
}


def _cells(profile: Profile) -> list[Cell]:
    sizes = _SIZES[profile]
    return [
        {
            "data": data, "samples": sizes["samples"], "test_samples": sizes.get("test_samples"),
            "activation": activation, "sigma_a2": sigma_a2, "kernel": kernel,
        }
        for data in sizes["data"]
        for activation in sizes.get("activations", ["relu", "tanh"])
        for kernel in ("conjugate", "tangent")
        for sigma_a2 in sizes["sigma_a2"]
    ]  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:  # noqa: ARG001
    # One draw of the rows for all cells.
    data = load(cell["data"], samples=cell["samples"], test_samples=cell["test_samples"], rng=0)
    choice: Any = {"kind": cell["kernel"], "convention": "feature"}
    tau0 = float(np.sqrt(np.square(data.X).sum(axis=1).mean()))
    deq = DeepEquilibrium(cell["activation"], cell["sigma_a2"]).centred(tau0)
    found = match(deq, data.X, refine=False, **choice)
    models: dict[str, Any] = {
        "DEQ": found.model, "matched": found.network, "plain": found.unmatched,
    }  # fmt: skip
    seen = transfer(models, data.X, data.y, data.X_test, data.y_test, **choice)
    return {"family": found.family, "transfer": seen.to_dict()}


def _findings(records: list[Record]) -> list[Finding]:
    found = []
    for record in records:
        cell = record["cell"]
        kernel = {"conjugate": "CK", "tangent": "NTK"}[cell["kernel"]]
        title = f"{cell['data']}, {cell['activation']}, σa² = {cell['sigma_a2']:g}, {kernel}"
        if "transfer" in record:
            seen = Transfer.from_dict(record["transfer"])
            verdicts = {name: seen.verdict(name) for name in seen.names[1:]}
        else:  # stored without its curves
            deq = record["fixed"]["DEQ"]
            verdicts = {
                name: f"loss {one['loss']} (DEQ {deq['loss']}) at the DEQ's rate and "
                f"epochs, {one['ridge_loss']} (DEQ {deq['ridge_loss']}) at its ridge"
                for name, one in record["fixed"].items()
                if name != "DEQ"
            }
        found += [Finding(f"{title}: {name}", "", text) for name, text in verdicts.items()]
    return found


EXPERIMENT = Experiment(
    "hyper-parameters",
    "Hyper-parameters of a DEQ on other networks",
    "notsodeep.prediction",
    _cells,
    _compute,
    _findings,
)

"""A DEQ against its matched one-hidden-layer network of the same width, inference and training.

A tanh DEQ, σa² = 0.2, and the hard tanh that has the same feature kernel at τ0 = 1; 256 rows of
784 features, float32, all threads, every weight trained.  Ratios are medians over calls that take
turns; the DEQ has its fastest solver.  Arguments: --quick for the small widths only.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from measure import store

import notsodeep as nsd
from notsodeep.activations import hard_tanh
from notsodeep.networks.build import build
from notsodeep.networks.timing import Timing, time_against

BATCH, P, CLASSES = 256, 784, 10
WIDTHS, TOLERANCES = (256, 1024, 4096), (1e-3, 1e-6)


def row(width: int, tolerance: float, work: str, timing: Timing) -> dict[str, Any]:
    """One line of the table."""
    low, high = timing.quartiles
    return {
        "width": width,
        "tolerance": tolerance,
        "work": work,
        "ratio": timing.ratio,
        "ratio_quartiles": [low, high],
        "ratio_of_fastest": timing.ratio_of_fastest,
        "deq_seconds": timing.deq_seconds,
        "explicit_seconds": timing.explicit_seconds,
        "solver": timing.solver,
        "steps": timing.steps,
        "backward_steps": timing.backward_steps,
    }


def main() -> None:
    """Measure every width and tolerance and store the rows."""
    X = np.random.default_rng(0).normal(size=(BATCH, P)) / np.sqrt(P)
    deq_model = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    explicit_model = nsd.ExplicitNetwork([hard_tanh(0.7643, 1.1965)])
    rows: list[dict[str, Any]] = []
    for width in WIDTHS[:2] if "--quick" in sys.argv else WIDTHS:
        deq = build(deq_model, P, width, CLASSES, rng=0)
        explicit = build(explicit_model, P, width, CLASSES, rng=0)
        for tolerance in TOLERANCES:
            repeats = 31 if width < 2048 else 5
            table = time_against(deq, explicit, X, tolerance=tolerance, repeats=repeats)
            print(table, flush=True)
            rows.append(row(width, tolerance, "inference", table.inference))
            rows.append(row(width, tolerance, "training step", table.training_step))
    # Above the number of cores, other work was going on and the small widths are not to be trusted.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    threads = torch.get_num_threads()
    rows.append({"torch": torch.__version__, "threads": threads, "load_average": load})
    store("networks", rows)


if __name__ == "__main__":
    main()

"""A DEQ against its matched one-hidden-layer network of the same width, inference and training.

A tanh DEQ, σa² = 0.2, and the hard tanh that has the same feature kernel at τ0 = 1; 256 rows of
784 features, float32, all threads, every weight trained.  Ratios are medians over calls that take
turns.  The error is that of the DEQ's outputs, against the same
weights in double precision at a tolerance of 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from clocks import peak_growth
from measure import Results, benchmark_parser
from notsodeep.activations import hard_tanh
from notsodeep.compilation.evidence import seconds
from notsodeep.networks import Network, Solver, build

BATCH, P, CLASSES = 256, 784, 10
WIDTHS, TOLERANCES = (256, 1024, 4096), (1e-3, 1e-6)


def outputs(deq: Network, X: np.ndarray, solver: str, tolerance: float) -> Any:
    """Compute the outputs of the same weights with another solver; below 1e-8 in float64."""
    twin = build(
        deq.model,
        deq.in_features,
        deq.width,
        deq.out_features,
        rng=0,
        dtype=torch.float64 if tolerance < 1e-8 else torch.float32,
        solver={"name": solver, "tolerance": tolerance, "max_steps": 1000},
    )
    twin.load_state_dict(deq.state_dict())
    with torch.no_grad():
        return twin.eval()(torch.as_tensor(X, dtype=twin.readout.dtype)).double()


def passes(module: Any, X: torch.Tensor) -> dict[str, Callable[[], None]]:
    """Return functions that do one inference and one training step, gradients included."""

    @torch.no_grad()
    def inference() -> None:
        module(X)

    def training() -> None:
        module(X).square().sum().backward()
        module.zero_grad()

    return {"inference": inference, "training step": training}


def ratios(run_deq: Callable[[], None], run_explicit: Callable[[], None], repeats: int) -> Any:
    """Return quartiles of the DEQ's time over that of a call of the other right beside it."""
    run_deq(), run_explicit()
    found = [seconds(run_deq) / seconds(run_explicit) for _ in range(repeats)]
    return np.quantile(found, (0.25, 0.5, 0.75)).tolist()


def main() -> None:
    """Measure every width and tolerance and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    X = np.random.default_rng(0).normal(size=(BATCH, P)) / np.sqrt(P)
    deq_model = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    explicit_model = nsd.ExplicitNetwork([hard_tanh(0.7643, 1.1965)])
    results = Results("networks", options.results)
    for width in (64,) if options.quick else WIDTHS:
        deq = build(deq_model, P, width, CLASSES, rng=0)
        explicit = build(explicit_model, P, width, CLASSES, rng=0)
        exact = outputs(deq, X, "plain", 1e-12)
        for tolerance in TOLERANCES:
            repeats = 3 if options.quick else 31 if width < 2048 else 5
            deq.solver = Solver(tolerance)
            error = float((outputs(deq, X, "plain", tolerance) - exact).norm() / exact.norm())
            rows = torch.as_tensor(X, dtype=torch.float32)
            for work, run in passes(deq, rows).items():
                low, middle, high = ratios(run, passes(explicit, rows)[work], repeats)
                results.add(
                    width=width, tolerance=tolerance, work=work, ratio=middle,
                    ratio_quartiles=[low, high], steps=deq.record.steps, error=error,
                )  # fmt: skip
        rows = torch.as_tensor(X, dtype=torch.float32)
        for name, module in (("DEQ", deq), ("explicit", explicit)):

            def training(module: Any = module, rows: torch.Tensor = rows) -> None:
                module(rows).sum().backward()
                module.zero_grad()

            training()
            memory = peak_growth(training)
            results.add(width=width, work=f"memory of a training step, {name}", mebibytes=memory)
    results.write(batch=BATCH, features=P, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()

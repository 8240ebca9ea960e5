"""Kernel ridge classification of all of MNIST with the exact tangent kernel of a DEQ.

60,000 images, ten one-hot targets of mean zero, (K + λI) α = Y by preconditioned block conjugate
gradients on an operator that computes and keeps its upper triangle in float32; predictions of the
test set by a streamed cross kernel, in float32 too.  Writes benchmarks/results/full_mnist.json:
accuracy, time of each part, steps, peak memory.

    python benchmarks/full_mnist.py                      # all of it, in this process
    python benchmarks/full_mnist.py --samples 5000       # a short run, stored under another name
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

import notsodeep as nsd
from measure import RESULTS, Results
from notsodeep.data import MixtureStatistics
from notsodeep.kernel_solvers import Solution, preconditioner, solve

FloatArray = NDArray[np.float64]

_SIZE = 60_000


class Stopwatch:
    """Seconds of each part of a run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, name: str) -> None:
        """End a part."""
        now = time.perf_counter()
        self.seconds[f"{name}_seconds"] = now - self._last
        self._last = now
        print(f"{name}: {self.seconds[f'{name}_seconds']:.1f} s", flush=True)


@dataclass(frozen=True, eq=False)
class Task:
    """What is fitted: a model, samples with targets of mean zero, and a preconditioner."""

    model: nsd.DeepEquilibrium
    X: FloatArray
    Y: FloatArray
    preconditioner: LinearOperator
    ridge: float
    tolerance: float


def fit_and_score(
    task: Task, K: LinearOperator, cross: LinearOperator, watch: Stopwatch, checkpoint: str | None
) -> tuple[FloatArray, Solution]:
    """Fill the cache of K, solve, and return the outputs on the test set with the record."""
    _ = K @ task.Y
    watch.mark("kernel")
    solution = solve(
        K,
        task.Y,
        task.ridge,
        preconditioner=task.preconditioner,
        tolerance=task.tolerance,
        checkpoint=checkpoint,
    )
    watch.mark("solve")
    scores = cross @ solution.x
    watch.mark("predict")
    return scores, solution


def main() -> None:
    """Fit, predict, and store what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=_SIZE)
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--sigma-a2", type=float, default=0.2)
    parser.add_argument("--ridge", type=float, default=1e-2, help="λ, added to the diagonal of K")
    parser.add_argument("--rank", type=int, help="columns of the kernel for the preconditioner")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--checkpoint", help="directory for the state of the solve")
    parser.add_argument("--cache-directory", help="keep the kernel in a temporary file there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the JSON")
    options = parser.parse_args()
    rank = options.rank or min(2000, options.samples // 5)

    watch = Stopwatch()
    chosen = {"samples": options.samples, "rng": 0} if options.samples < _SIZE else {}
    data = nsd.data.load("mnist", **chosen)
    X, y, n = data.X, data.y, len(data.X)
    hot = (y[:, None] == np.arange(10)).astype(float)
    offset = hot.mean(axis=0)
    watch.mark("load")

    stats = MixtureStatistics.estimate(X, y)
    deq = nsd.DeepEquilibrium(options.activation, options.sigma_a2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, y, kind="ntk", order=1, convention="preactivation")
    choice: Any = {"kind": "ntk", "convention": "preactivation", "equivalent": eq}
    near = preconditioner(deq, X, rank, options.ridge, **choice)
    task = Task(deq, X, hot - offset, near, options.ridge, options.tolerance)
    watch.mark("preconditioner")

    chosen = {"kernel": "ntk", "cache": "float32"}
    memory = (4 * n * (n + 400)) // 2 + (1 << 30)
    place = options.cache_directory
    K = nsd.KernelOperator(deq, X, memory=memory, cache_directory=place, **chosen)
    cross = nsd.KernelOperator(
        deq, data.X_test, X, kind="ntk", dtype=np.float32, convention="preactivation"
    )
    scores, solution = fit_and_score(task, K, cross, watch, options.checkpoint)

    def row(where: str, scores: FloatArray, solution: Solution, watch: Stopwatch) -> dict[str, Any]:
        guess = (scores + offset).argmax(axis=1)
        return {
            "case": f"MNIST, {n} samples, tangent kernel, centred {options.activation}",
            "where": where,
            "sigma_a2": options.sigma_a2,
            "ridge": options.ridge,
            "rank": rank,
            "tolerance": options.tolerance,
            "test_accuracy": float((guess == data.y_test).mean()),
            "steps": solution.steps,
            "residual": float(solution.residual.max()),
            **watch.seconds,
            "total_seconds": sum(watch.seconds.values()),
            "residuals": [float(worst) for worst in solution.worst],
        }

    rows = [row("in this process", scores, solution, watch)]
    rows[0]["peak_gibibytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    results = Results("full_mnist" if n == _SIZE else f"mnist_{n}", options.results)
    for each in rows:
        results.add(**each)
    results.write()


if __name__ == "__main__":
    main()

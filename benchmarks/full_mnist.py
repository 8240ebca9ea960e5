"""Kernel ridge classification of all of MNIST with the exact tangent kernel of a DEQ.

60,000 images, ten one-hot targets of mean zero, (K + λI) α = Y by preconditioned block conjugate
gradients on a `KernelOperator` that keeps its upper triangle in single precision; predictions of
the test set by a streamed cross kernel.  Writes benchmarks/results/full_mnist.json: accuracy, time
of each part, steps, peak memory.

    python benchmarks/full_mnist.py                      # all of it: about 8.5 GiB
    python benchmarks/full_mnist.py --samples 5000       # a short run, stored under another name
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np
from measure import store

import notsodeep as nsd
from notsodeep.data import MixtureStatistics
from notsodeep.solvers import combined_preconditioner, solve

_SIZE = 60_000


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
    options = parser.parse_args()
    rank = options.rank or min(2000, options.samples // 5)

    marks: dict[str, float] = {}
    clock = time.perf_counter()

    def mark(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        marks[f"{name}_seconds"] = now - clock
        clock = now
        print(f"{name}: {marks[f'{name}_seconds']:.1f} s", flush=True)

    chosen: dict[str, Any] = {}
    if options.samples < _SIZE:
        chosen = {"samples": options.samples, "rng": 0}
    data = nsd.data.load("mnist", **chosen)
    X, y = np.asarray(data.X), np.asarray(data.y)
    X_test, y_test = np.asarray(data.X_test), np.asarray(data.y_test)
    n = len(X)
    classes = np.unique(y)
    Y = (y[:, None] == classes).astype(float)
    offset = Y.mean(axis=0)
    mark("load")

    stats = MixtureStatistics.estimate(X, y)
    deq = nsd.DeepEquilibrium(options.activation, options.sigma_a2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, stats, kernel="tangent")
    near = combined_preconditioner(eq, rank, options.ridge)
    mark("preconditioner")

    K = nsd.KernelOperator(
        deq, X, kernel="tangent", memory=(4 * n * (n + 400)) // 2 + (1 << 30), cache="float32",
        cache_directory=options.cache_directory,
    )  # fmt: skip
    _ = K @ (Y - offset)
    mark("kernel")

    solution = solve(
        K, Y - offset, options.ridge,
        preconditioner=near, tolerance=options.tolerance, checkpoint=options.checkpoint,
    )  # fmt: skip
    mark("solve")

    cross = nsd.KernelOperator(deq, X_test, X, kernel="tangent")
    scores = cross @ solution.x + offset
    accuracy = float((classes[scores.argmax(axis=1)] == y_test).mean())
    mark("predict")

    row = {
        "case": f"MNIST, {n} samples, tangent kernel, centred {options.activation}",
        "sigma_a2": options.sigma_a2,
        "ridge": options.ridge,
        "rank": rank,
        "tolerance": options.tolerance,
        "test_accuracy": accuracy,
        "steps": solution.steps,
        "residual": float(solution.residual.max()),
        **marks,
        "total_seconds": sum(marks.values()),
        "peak_gibibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "residuals": [float(worst) for worst in solution.worst],
    }
    store("full_mnist" if n == _SIZE else f"mnist_{n}", [row])


if __name__ == "__main__":
    main()

"""Steps and seconds to solve (K + λI) x = B to 1e-6 with each preconditioner.

MNIST if it is on this machine, a stand-in otherwise; tangent kernel of a centred tanh DEQ, ten
one-hot targets, λ = 1e-2 and 1e-3.  Also: a product with cached tiles, leading eigenpairs, the
density of all eigenvalues.
Arguments: --quick for 1000 samples instead of 4000; --samples N and --rank R for other sizes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import best_time, store

import notsodeep as nsd
from notsodeep.data import MixtureStatistics
from notsodeep.solvers import (
    combined_preconditioner,
    equivalent_preconditioner,
    nystrom_preconditioner,
    solve,
    spectral_density,
    top_eigenpairs,
)

_MOST = 1000  # steps of a solve


def images(n: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Load samples and labels, and say where they come from."""
    try:
        data = nsd.data.load("mnist", samples=n, rng=0)
        return np.asarray(data.X), np.asarray(data.y), "mnist"
    except nsd.errors.DataNotFound:
        mixture = nsd.data.paper_mixture(dimension=784)
        X, y = mixture.sample(n, rng=0)
        return X, y, "mixture"


def targets(y: np.ndarray) -> np.ndarray:
    """One-hot, of mean zero."""
    hot = (y[:, None] == np.unique(y)).astype(float)
    return np.asarray(hot - hot.mean(axis=0))


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--rank", type=int)
    options = parser.parse_args()
    n = options.samples or (1000 if options.quick else 4000)
    rank = options.rank or n // 4
    X, y, source = images(n)
    Y = targets(y)
    stats = MixtureStatistics.estimate(X, y)
    deq = nsd.DeepEquilibrium("tanh", 0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, stats, kernel="tangent")
    start = time.perf_counter()
    K = nsd.KernelOperator(deq, X, kernel="tangent", cache="float32", memory=4 << 30)
    _ = K @ Y
    about = {"data": source, "samples": n}
    rows: list[dict[str, Any]] = [
        {"case": "first product, kernel included", **about, "seconds": time.perf_counter() - start}
    ]
    for columns in (1, Y.shape[1], 100):
        V = np.ones((n, columns))
        seconds = best_time(lambda V=V: K @ V, repeats=5)
        speed = 4 * n * (n + 1) / 2 / seconds / 1e9
        rows.append(
            {"case": "product with cached float32 tiles", **about, "columns": columns,
             "seconds": seconds, "gigabytes_per_second": speed}
        )  # fmt: skip
    for ridge in (1e-2, 1e-3):
        makers: dict[str, Callable[[], Any]] = {
            "none": lambda: None,
            "equivalent": lambda ridge=ridge: equivalent_preconditioner(eq, ridge),
            "nystrom": lambda ridge=ridge: nystrom_preconditioner(
                deq, X, rank, ridge, kernel="tangent"
            ),
            "combined": lambda ridge=ridge: combined_preconditioner(eq, rank, ridge),
        }
        for name, make in makers.items():
            start = time.perf_counter()
            near = make()
            setup = time.perf_counter() - start
            solution = solve(K, Y, ridge, preconditioner=near, max_steps=_MOST, raises=False)
            rows.append(
                {"case": "solve", **about, "ridge": ridge, "preconditioner": name,
                 "rank": rank if name in ("nystrom", "combined") else 0,
                 "setup_seconds": setup, "steps": solution.steps, "seconds": solution.seconds,
                 "residual": float(solution.residual.max()), "converged": solution.converged}
            )  # fmt: skip
    pairs = top_eigenpairs(K, 20)
    rows.append(
        {"case": "20 leading eigenpairs", **about, "steps": pairs.steps, "seconds": pairs.seconds}
    )
    start = time.perf_counter()
    density = spectral_density(K)
    mean, error = density.average(lambda w: w / (w + 1e-2))
    rows.append(
        {"case": "density, 10 probes, 80 steps", **about, "seconds": time.perf_counter() - start,
         "effective_dimension": n * mean, "standard_error": n * error}
    )  # fmt: skip
    store("solvers", rows)


if __name__ == "__main__":
    main()

"""The equivalent of a kernel at 20,000 rows: solves, spectrum and limiting law.

Ratios are to one product Xᵀ X in the same run, the work that a solve cannot do without; all
threads.  The memory is the largest that a step needs above what was there before, and the last
column what the kernel as a matrix would take.
Arguments: --quick for a small size.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import best_time, store

import notsodeep as nsd
from notsodeep.data import GaussianMixture
from notsodeep.equivalents import Equivalent

P = 784
CLASSES = 10


def mixture() -> GaussianMixture:
    """Ten classes with means of their own and one spread-out covariance."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(CLASSES, P)) * 8.0 / np.sqrt(P)
    return GaussianMixture(means, np.stack([np.linspace(0.2, 1.8, P)] * CLASSES))


def steps(make: Callable[[], Equivalent], B: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Name and work of every step; each starts from a new equivalent, so that nothing is kept."""
    return {
        "equivalent": make,
        "product with 10 vectors": lambda: make() @ B,
        "solve for 10 vectors": lambda: make().solve(B, ridge=1e-2),
        "log-determinant": lambda: make().logdet(ridge=1e-2),
        "all eigenvalues": lambda: make().eigvalsh(),
        "limiting spectrum": lambda: nsd.limiting_spectrum(make()),
        "limiting spectrum, deconvolved": lambda: nsd.limiting_spectrum(
            make(), population="deconvolved"
        ),
    }


def peak_memory(function: Callable[[], Any]) -> int:
    """Bytes allocated at the worst moment of a call."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> None:
    """Measure every step and store the rows."""
    n = 2000 if "--quick" in sys.argv else 20_000
    known = mixture()
    X, y = known.sample(n, rng=0)
    start = time.perf_counter()
    stats = known.statistics(X, y)
    deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(stats.tau0)
    _ = stats.covariance_spectrum
    rows: list[dict[str, Any]] = [
        {"case": "statistics of the mixture", "seconds": time.perf_counter() - start}
    ]
    B = np.random.default_rng(1).normal(size=(n, CLASSES))

    def make() -> Equivalent:
        return nsd.equivalent(deq, X, stats, kernel="tangent")

    for case, work in steps(make, B).items():
        # The product is measured beside each case, so that a busy moment hits both.
        product = best_time(lambda: X.T @ X, repeats=3)
        seconds = best_time(work, repeats=3)
        product = min(product, best_time(lambda: X.T @ X, repeats=3))
        rows.append(
            {
                "case": f"{case}, {n:,} rows of {P}",
                "seconds": seconds,
                "product": product,
                "ratio": seconds / product,
                "mebibytes": peak_memory(work) / 2**20,
                "mebibytes_of_the_samples": X.nbytes / 2**20,
                "mebibytes_of_the_kernel": 8 * n * n / 2**20,
            }
        )
    store("equivalents", rows)


if __name__ == "__main__":
    main()

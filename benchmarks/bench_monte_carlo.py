"""Kernels by averaging random finite DEQs, as the papers' authors do, against the exact ones.

The conjugate kernel of the features, 200 rows of 784 features, all threads, networks solved to
1e-6.  The error is that of the mean, relative in operator norm, against the exact kernel; the exact
kernel's own is against quadrature on a few rows.  What it takes to reach an error is
extrapolated: with the number of networks N the error falls like 1/√N at best.  Finite width adds a
bias that more networks do not remove, so that the true cost is higher.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import notsodeep as nsd
from bench_kernels import P, near_orthogonal
from clocks import best_time, peak_growth
from measure import Results, benchmark_parser
from notsodeep.equivalents.distances import operator_norm
from notsodeep.networks.sampling import monte_carlo
from reference_kernels import SAMPLE, reference_pair, relative_errors

GOALS = (1e-2, 1e-3, 1e-6)
TOLERANCE = 1e-6


def exact_row(deq: nsd.DeepEquilibrium, X: np.ndarray) -> dict[str, Any]:
    """Time and error of the exact kernel."""

    def work() -> np.ndarray:
        return nsd.kernel(deq, X, convention="feature")

    pair = nsd.kernel(deq, X, convention="preactivation", kind="both")
    few = slice(0, SAMPLE)
    found = (pair.ck[few, few], pair.ntk[few, few])
    return {
        "seconds": best_time(work, repeats=9),
        "error": relative_errors(found, reference_pair(deq, X[few]))["error_conjugate"],
        "mebibytes": peak_growth(work),
    }


def main() -> None:
    """Measure every width and number of networks, and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    n = 40 if options.quick else 200
    # Width and number of networks.
    runs = [(100, 4)] if options.quick else [(1000, 8), (1000, 32), (4000, 8)]
    X = near_orthogonal(n, unit=False)
    results = Results("monte_carlo", options.results)
    for activation in ("tanh", "relu"):
        deq = nsd.DeepEquilibrium(activation, 0.2)
        exact = exact_row(deq, X)
        results.add(case=f"{activation}, exact", **exact)
        kernel = nsd.kernel(deq, X, convention="feature")
        size = operator_norm(kernel)
        for width, draws in runs:
            start = time.perf_counter()
            mean = monte_carlo(deq, X, width, draws, rng=width + draws).ck
            seconds = time.perf_counter() - start
            error = operator_norm(mean - kernel) / size
            needed = {f"networks_for_{goal:g}": draws * (error / goal) ** 2 for goal in GOALS}
            each = seconds / draws
            ratios = {
                f"ratio_at_{goal:g}": needed[f"networks_for_{goal:g}"] * each / exact["seconds"]
                for goal in GOALS
            }
            results.add(
                case=f"{activation}, random networks",
                width=width,
                networks=draws,
                seconds=seconds,
                ratio=seconds / exact["seconds"],
                error=error,
                **needed,
                **ratios,
            )
    results.write(rows=n, features=P, tolerance=TOLERANCE, extrapolated=[*needed, *ratios])


if __name__ == "__main__":
    main()

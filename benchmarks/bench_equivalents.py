"""The equivalent of a kernel at 20,000 rows: solves, spectrum and limiting law.

Ratios are to one product Xᵀ X in the same run, the work that a solve cannot do without; all
threads.  The kernel as a matrix would take what the last column says.  Errors are those of the same
steps at 2000 rows, where the matrix can be had, against dense linear algebra.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import notsodeep as nsd
from clocks import best_times, peak_growth
from measure import Results, benchmark_parser
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


def sampled(n: int) -> tuple[Callable[[], Equivalent], np.ndarray, np.ndarray, float]:
    """Return what makes the equivalent, samples, right-hand sides, and seconds of statistics."""
    known = mixture()
    X, y = known.sample(n, rng=0)
    start = time.perf_counter()
    stats = known.statistics(X, y)
    deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(stats.tau0)
    _ = stats.covariance_spectrum
    seconds = time.perf_counter() - start
    B = np.random.default_rng(1).normal(size=(n, CLASSES))
    return (
        lambda: nsd.equivalent(deq, X, y, known, kind="ntk", convention="preactivation"),
        X,
        B,
        seconds,
    )


def dense_errors(n: int) -> dict[str, float]:
    """Errors of the steps at n rows, relative, against the matrix itself.

    Of a law: the largest distance between its distribution function and that of the eigenvalues.
    """
    make, _, B, _ = sampled(n)
    work = steps(make, B)
    dense = make().to_dense()
    shifted = dense + 1e-2 * np.eye(n)
    values = np.linalg.eigvalsh(dense)

    def relative(found: np.ndarray, exact: np.ndarray) -> float:
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    determinant = float(np.linalg.slogdet(shifted)[1])
    errors = {
        "product with 10 vectors": relative(work["product with 10 vectors"](), dense @ B),
        "solve for 10 vectors": relative(shifted @ work["solve for 10 vectors"](), B),
        "log-determinant": abs(work["log-determinant"]() / determinant - 1.0),
        "all eigenvalues": relative(np.sort(work["all eigenvalues"]()), values),
    }
    for case in ("limiting spectrum", "limiting spectrum, deconvolved"):
        # Between eigenvalues, where the empirical distribution function has no step.
        apart = np.diff(values) > 1e-9 * values[-1]
        places = 0.5 * (values[1:] + values[:-1])[apart]
        share = (np.arange(1, n) / n)[apart]
        errors[case] = float(np.abs(work[case]().cdf(places) - share).max())
    return errors


def main() -> None:
    """Measure every step and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    n, small = (1000, 500) if options.quick else (20_000, 2000)
    make, X, B, seconds = sampled(n)
    results = Results("equivalents", options.results)
    results.add(case="statistics of the mixture", seconds=seconds)
    errors = dense_errors(small)
    for case, work in steps(make, B).items():
        seconds, product = best_times(work, lambda: X.T @ X, repeats=3)
        results.add(
            case=case,
            seconds=seconds,
            product=product,
            ratio=seconds / product,
            error=errors.get(case),
            mebibytes=peak_growth(work),
        )
    results.write(
        rows=n,
        features=P,
        rows_of_the_errors=small,
        mebibytes_of_the_samples=X.nbytes / 2**20,
        mebibytes_of_the_kernel=8 * n * n / 2**20,
    )


if __name__ == "__main__":
    main()

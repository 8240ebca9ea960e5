"""Steps and seconds to solve (K + λI) x = B to 1e-6 with each preconditioner.

MNIST if it is on this machine, a stand-in otherwise; tangent kernel of a centred tanh DEQ, ten
one-hot targets, λ = 1e-2 and 1e-3.  Also: a product with cached tiles, leading eigenpairs, the
density of all eigenvalues.  Ratios are to one product of the cached operator with the targets.
Errors are measured with the kernel as a matrix in double precision: the residual of a solution, the
eigenvalues of LAPACK.  Arguments: --samples N and --rank R for other sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import notsodeep as nsd
from clocks import best_time, peak_growth
from measure import Results, benchmark_parser
from notsodeep.data import MixtureStatistics
from notsodeep.kernel_solvers import (
    preconditioner,
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


def relative(found: np.ndarray, exact: np.ndarray) -> float:
    """Largest relative error of any column."""
    return float((np.linalg.norm(found - exact, axis=0) / np.linalg.norm(exact, axis=0)).max())


def solve_rows(
    results: Results, K: nsd.KernelOperator, dense: np.ndarray, task: dict[str, Any]
) -> None:
    """Add a row for every ridge and preconditioner."""
    deq, X, Y, eq, rank = (task[name] for name in ("deq", "X", "Y", "eq", "rank"))
    choice: Any = {"kind": "ntk", "convention": "feature"}
    for ridge in (1e-2, 1e-3):
        makers: dict[str, Callable[[], Any]] = {
            "none": lambda: None,
            "equivalent": lambda ridge=ridge: eq.inverse(ridge),
            "nystrom": lambda ridge=ridge: preconditioner(deq, X, rank, ridge, **choice),
            "combined": lambda ridge=ridge: preconditioner(
                deq, X, rank, ridge, equivalent=eq, **choice
            ),
        }
        for name, make in makers.items():
            start = time.perf_counter()
            near = make()
            setup = time.perf_counter() - start
            solutions = []

            def work(near: Any = near, ridge: float = ridge, kept: list[Any] = solutions) -> None:
                kept.append(solve(K, Y, ridge, preconditioner=near, max_steps=_MOST, raises=False))

            memory = peak_growth(work)
            solution = solutions[0]
            results.add(
                case="solve",
                ridge=ridge,
                preconditioner=name,
                rank=rank if name in ("nystrom", "combined") else 0,
                setup_seconds=setup,
                steps=solution.steps,
                seconds=solution.seconds,
                ratio=solution.seconds / task["product"],
                residual=float(solution.residual.max()),
                error=relative(dense @ solution.x + ridge * solution.x, Y),
                converged=solution.converged,
                mebibytes=memory,
            )


def main() -> None:
    """Measure and store."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--rank", type=int)
    options = parser.parse_args()
    n = options.samples or (300 if options.quick else 4000)
    rank = options.rank or n // 4
    X, y, source = images(n)
    Y = targets(y)
    stats = MixtureStatistics.estimate(X, y)
    deq = nsd.DeepEquilibrium("tanh", 0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, y, kind="ntk")
    results = Results("solvers", options.results)
    gram = best_time(lambda: X @ X.T, repeats=3)
    start = time.perf_counter()
    K = nsd.KernelOperator(deq, X, kind="ntk", cache="float32", memory=4 << 30)
    _ = K @ Y
    first = time.perf_counter() - start
    dense = nsd.kernel(deq, X, kind="ntk")
    results.add(
        case="first product, kernel included", columns=Y.shape[1], seconds=first, gram=gram,
        ratio_to_gram=first / gram, error=relative(K @ Y, dense @ Y),
    )  # fmt: skip
    product = best_time(lambda: K @ Y, repeats=5)
    for columns in (1, Y.shape[1], 100):
        V = np.random.default_rng(columns).normal(size=(n, columns))
        seconds = best_time(lambda V=V: K @ V, repeats=5)
        results.add(
            case="product with cached float32 tiles",
            columns=columns,
            seconds=seconds,
            ratio=seconds / product,
            gigabytes_per_second=4e-9 * n * (n + 1) / 2 / seconds,
            error=relative(K @ V, dense @ V),
        )
    task = {"deq": deq, "X": X, "Y": Y, "eq": eq, "rank": rank, "product": product}
    solve_rows(results, K, dense, task)
    values = np.linalg.eigvalsh(dense)
    pairs = top_eigenpairs(K, 20)
    results.add(
        case="20 leading eigenpairs", steps=pairs.steps, seconds=pairs.seconds,
        ratio=pairs.seconds / product,
        error=float(np.abs(np.sort(pairs.values) / values[-20:] - 1.0).max()),
    )  # fmt: skip
    start = time.perf_counter()
    mean, error = spectral_density(K).average(lambda w: w / (w + 1e-2))
    seconds = time.perf_counter() - start
    exact = float((values / (values + 1e-2)).mean())
    results.add(
        case="density, 10 probes, 80 steps", seconds=seconds, ratio=seconds / product,
        effective_dimension=n * mean, standard_error=n * error, error=abs(mean / exact - 1.0),
    )  # fmt: skip
    results.write(data=source, samples=n, rank=rank)


if __name__ == "__main__":
    main()

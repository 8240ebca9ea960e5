"""Collapse metrics of 50,000 × 512 features, and layer-peeled optima up to a hundred classes.

The metrics are compared with XᵀX of the same features, the least that any scatter matrix costs.
Errors beside the times: against two passes over the whole array, and duality gaps.  The matrices of
the layer-peeled model are small: OMP_NUM_THREADS=1 suits them best.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clocks import best_time, best_times, peak_growth
from measure import Results, benchmark_parser
from notsodeep.collapse import (
    CollapseMetrics,
    CollapseReport,
    kernel_collapse,
    layer_peeled,
    minority_collapse_threshold,
    simplex_etf,
)


def features(n: int, d: int, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nearly collapsed float32 features, labels and a classifier."""
    rng = np.random.default_rng(0)
    E = simplex_etf(num_classes, d, rng)
    y = rng.integers(0, num_classes, size=n)
    H = E[y] + 0.01 * rng.normal(size=(n, d)) + 0.5
    return H.astype(np.float32), y, E


def measure_in_batches(
    H: np.ndarray, y: np.ndarray, W: np.ndarray, batch: int, scatter: str
) -> CollapseReport:
    """One pass over batches, and the report."""
    metrics = CollapseMetrics(len(W), scatter=scatter)  # type: ignore[arg-type]
    for start in range(0, len(H), batch):
        metrics.update(H[start : start + batch], y[start : start + batch])
    return metrics.compute(W)


def two_passes(H: np.ndarray, y: np.ndarray, num_classes: int) -> float:
    """Compute tr S_W/tr S_B from arrays held whole."""
    X = H.astype(np.float64)
    means = np.array([X[y == k].mean(axis=0) for k in range(num_classes)])
    variances = [np.square(X[y == k] - means[k]).sum(axis=1).mean() for k in range(num_classes)]
    centred = means - means.mean(axis=0)
    return float(np.mean(variances) / np.square(centred).sum(axis=1).mean())


def metrics_rows(n: int, d: int) -> list[dict[str, Any]]:
    """Rows for one pass, with large and small batches, 10 and 100 classes."""
    rows = []
    for num_classes, batch, scatter in (
        (10, 4096, "full"),
        (10, 128, "full"),
        (100, 4096, "full"),
        (10, 128, "trace"),
    ):
        H, y, W = features(n, d, num_classes)
        X = H.astype(np.float64)
        arguments = (H, y, W, batch, scatter)

        def work(arguments: Any = arguments) -> CollapseReport:
            return measure_in_batches(*arguments)

        seconds, product = best_times(work, lambda X=X: X.T @ X, repeats=3)
        ratio = work().overall["nc1_trace_ratio"]
        reference = two_passes(H, y, num_classes)
        rows.append(
            {
                "case": f"{n} × {d}, {num_classes} classes, batches of {batch}, {scatter}",
                "seconds": seconds,
                "product": product,
                "ratio": seconds / product,
                "error": abs((ratio or np.nan) / reference - 1.0),
                "mebibytes": peak_growth(work),
            }
        )
    return rows


def layer_peeled_rows(quick: bool) -> list[dict[str, Any]]:
    """Rows for optima: two class sizes, and all sizes different."""
    cases: list[tuple[str, list[float], dict[str, Any]]] = [
        ("10 classes, two sizes", [100.0] * 5 + [1.0] * 5, {}),
        ("10 classes, all different", [500 * 100 ** (-k / 9) for k in range(10)], {}),
        ("100 classes, two sizes", [100.0] * 50 + [1.0] * 50, {}),
    ]
    if not quick:
        different = [500 * 100 ** (-k / 99) for k in range(100)]
        cases.append(("100 classes, all different", different, {}))
    rows = []
    for name, counts, options in cases:
        repeats = 1 if len(counts) == 100 else 3
        seconds = best_time(
            lambda c=counts, o=options: layer_peeled(c, budget=2.0, **o), repeats=repeats
        )
        optimum = layer_peeled(counts, budget=2.0, **options)
        rows.append(
            {
                "case": name,
                "seconds": seconds,
                "error": optimum.certificate.relative_gap,
                "steps": optimum.steps,
            }
        )
    sizes = {"num_majority": 5, "num_minority": 5, "budget": 2.0}
    seconds = best_time(lambda: minority_collapse_threshold(**sizes), repeats=3)
    residual = minority_collapse_threshold(**sizes).residual
    rows.append({"case": "threshold, 5 + 5 classes", "seconds": seconds, "error": residual})
    return rows


def kernel_row(samples: int, d: int) -> dict[str, Any]:
    """Row for the metrics from a Gram matrix."""
    H, y, _ = features(samples, d, 10)
    X = H.astype(np.float64)
    gram = X @ X.T
    seconds, product = best_times(lambda: kernel_collapse(gram, y), lambda: X @ X.T, repeats=3)
    ratio = kernel_collapse(gram, y).overall["nc1_trace_ratio"]
    return {
        "case": f"kernel of {samples} samples",
        "seconds": seconds,
        "product": product,
        "ratio": seconds / product,
        "error": abs((ratio or np.nan) / two_passes(H, y, 10) - 1.0),
        "mebibytes": peak_growth(lambda: kernel_collapse(gram, y)),
    }


def main() -> None:
    """Measure every case and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    n, d = (5_000, 128) if options.quick else (50_000, 512)
    results = Results("collapse", options.results)
    for row in metrics_rows(n, d):
        results.add(**row)
    results.add(**kernel_row(500 if options.quick else 4000, d))
    for row in layer_peeled_rows(options.quick):
        results.add(**row)
    results.write()


if __name__ == "__main__":
    main()

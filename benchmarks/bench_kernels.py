"""Both kernels of a model, CK and NTK together, against the Gram product X @ X.T in the same run.

n = 2000 rows of 784 features, float64, all threads; compilation is excluded and shown by itself.
Beside each time: the error against quadrature on a few rows, memory, and how near the machine's
limits in flops and bandwidth it comes.  Arguments: --large for the 20,000-row float32 run as well.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import notsodeep as nsd
from bounds import BYTES_PER_PAIR, LIMITS, counted_flops, machine_limits
from clocks import best_times, once, peak_growth
from measure import Results, benchmark_parser
from notsodeep.activations import leaky_relu, piecewise_linear
from reference_kernels import SAMPLE, reference_pair, relative_errors

P = 784


def near_orthogonal(n: int, unit: bool) -> np.ndarray:
    """Gaussian rows with norms spread over a factor of e, or of unit norm."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, P)) / np.sqrt(P)
    if unit:
        return np.asarray(X / np.linalg.norm(X, axis=1, keepdims=True))
    return np.asarray(X * np.exp(rng.uniform(-0.5, 0.5, size=(n, 1))))


def correlated(n: int) -> np.ndarray:
    """Rows with large correlations: images if MNIST is on this machine, a stand-in otherwise."""
    try:
        data = nsd.data.load("mnist", samples=n, rng=0)
        return np.asarray(data.X)
    except nsd.errors.DataNotFound:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(n, 10)) @ rng.normal(size=(10, P)) + rng.normal(size=(n, P))
        X -= X.mean(axis=0)
        return np.asarray(X / np.sqrt((X**2).sum(axis=1).mean()))


def cases(n: int) -> list[tuple[str, Any, np.ndarray]]:
    """Name, model and inputs of every case."""
    spread, unit, images = near_orthogonal(n, False), near_orthogonal(n, True), correlated(n)
    clipped = piecewise_linear((-1.0, 0.0, 1.5), (0.0, 0.5, 1.2, 0.0))
    models = {
        "tanh": nsd.DeepEquilibrium("tanh", 0.2),
        "swish, centred": nsd.DeepEquilibrium("swish", 0.2).centred(1.0),
        "gelu": nsd.DeepEquilibrium("gelu", 0.2),
        "relu": nsd.DeepEquilibrium("relu", 0.2),
        "relu, centred": nsd.DeepEquilibrium("relu", 0.2).centred(1.0),
        "leaky relu, centred": nsd.DeepEquilibrium(leaky_relu(1.1, 0.7), 0.2).centred(1.0),
        "hard tanh": nsd.DeepEquilibrium("hard_tanh", 0.2),
        "piecewise linear": nsd.DeepEquilibrium(clipped, 0.2),
        "elu": nsd.DeepEquilibrium("elu", 0.2),
        "two layers (relu, tanh)": nsd.ExplicitNetwork(["relu", "tanh"]),
    }
    rows = [(f"{name}, spread norms", model, spread) for name, model in models.items()]
    rows += [(f"{n}, unit norm", models[n], unit) for n in ("tanh", "relu", "elu", "hard tanh")]
    image_models = (
        "tanh", "swish, centred", "relu", "relu, centred", "hard tanh", "piecewise linear",
    )  # fmt: skip
    rows += [(f"{name}, images", models[name], images) for name in image_models]
    return rows


def kernel_row(name: str, model: Any, X: np.ndarray, flops: float) -> dict[str, Any]:
    """Measure one case, and the limits of the machine beside it."""
    seconds, gram = best_times(
        lambda: nsd.kernel_pair(model, X, convention="preactivation"), lambda: X @ X.T, repeats=9
    )
    limits = machine_limits()
    pair = nsd.kernel_pair(model, X, convention="preactivation")
    few = slice(0, SAMPLE)
    found = (pair.ck[few, few], pair.ntk[few, few])
    pairs = len(X) * (len(X) + 1) / 2
    rate = 1e-9 * pairs / seconds
    own = max(seconds - gram, 1e-9)
    return {
        "case": name,
        "seconds": seconds,
        "gram": gram,
        "ratio": seconds / gram,
        **relative_errors(found, reference_pair(model, X[few])),
        "mebibytes": peak_growth(lambda: nsd.kernel_pair(model, X, convention="preactivation")),
        "mebibytes_of_the_results": 2 * pair.ck.nbytes / 2**20,
        "route": pair.explanation.route,
        "terms": list(pair.explanation.terms),
        "careful_pairs": pair.explanation.careful_pairs,
        "flops_per_pair": 2 * X.shape[1] + flops,
        "flops_per_pair_beyond_gram": flops,
        "bytes_per_pair": BYTES_PER_PAIR,
        "share_of_peak_flops": rate * (2 * X.shape[1] + flops) / limits["gigaflops"],
        "share_of_peak_beyond_gram": 1e-9 * pairs * flops / own / limits["gigaflops"],
        "share_of_bandwidth": rate * BYTES_PER_PAIR / limits["gigabytes_per_second"],
        **limits,
    }


def large_row() -> dict[str, Any]:
    """20,000 rows, CK and NTK in float32: time, and memory above the results."""
    X = near_orthogonal(20_000, False)
    # Filled, so that the memory of the results is there before the measurement begins.
    room = [np.full((20_000, 20_000), 0.5, dtype=np.float32) for _ in range(2)]
    model = nsd.DeepEquilibrium("tanh", 0.2)
    times: list[float] = []

    def work() -> None:
        out = (room[0], room[1])
        times.append(
            once(
                lambda: nsd.kernel_pair(
                    model, X, dtype=np.float32, out=out, convention="preactivation"
                )
            )
        )

    above = peak_growth(work)
    return {
        "case": "tanh, 20,000 rows, float32",
        "seconds": times[0],
        "mebibytes_above_the_results": above,
    }


def main() -> None:
    """Measure every case and store the rows."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--large", action="store_true", help="20,000 rows in float32 as well")
    options = parser.parse_args()
    n = 300 if options.quick else 2000
    start = time.perf_counter()
    nsd.kernel_pair(nsd.DeepEquilibrium("tanh", 0.2), np.eye(3), convention="preactivation")
    first_call = time.perf_counter() - start
    results = Results("kernels", options.results)
    chosen = cases(n)[:: 6 if options.quick else 1]
    flops = counted_flops(n, [name for name, _, _ in chosen])
    for name, model, X in chosen:
        results.add(**kernel_row(name, model, X, flops[name]))
    best = {key: max(row[key] for row in results.rows) for key in LIMITS}
    results.add(case="first call in this process", seconds=first_call)
    if options.large:
        results.add(**large_row())
    results.write(rows=n, features=P, machine_limits=best)


if __name__ == "__main__":
    main()

"""Both kernels of a model, CK and NTK together, against the Gram product X @ X.T in the same run.

n = 2000 rows of 784 features, float64, all threads; compilation is excluded and shown by itself.
Beside each time: that of the NTK alone, the error against quadrature on a few rows, and memory.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import notsodeep as nsd
from clocks import best_times, peak_growth
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


def kernel_row(name: str, model: Any, X: np.ndarray) -> dict[str, Any]:
    """Measure one case."""
    seconds, gram = best_times(
        lambda: nsd.kernel(model, X, convention="preactivation", kind="both"),
        lambda: X @ X.T,
        repeats=9,
    )
    one = best_times(
        lambda: nsd.kernel(model, X, convention="preactivation", kind="ntk"),
        lambda: X @ X.T,
        repeats=9,
    )[0]
    pair = nsd.kernel(model, X, convention="preactivation", kind="both")
    few = slice(0, SAMPLE)
    found = (pair.ck[few, few], pair.ntk[few, few])
    return {
        "case": name,
        "seconds": seconds,
        "gram": gram,
        "ratio": seconds / gram,
        "ratio_ntk": one / gram,
        **relative_errors(found, reference_pair(model, X[few])),
        "mebibytes": peak_growth(
            lambda: nsd.kernel(model, X, convention="preactivation", kind="both")
        ),
        "mebibytes_of_the_results": 2 * pair.ck.nbytes / 2**20,
    }


def main() -> None:
    """Measure every case, and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    n = 300 if options.quick else 2000
    results = Results("kernels", options.results)
    start = time.perf_counter()
    nsd.kernel(nsd.DeepEquilibrium("tanh", 0.2), np.eye(3), kind="both")
    results.add(case="first call: compilation or its cache", seconds=time.perf_counter() - start)
    for name, model, X in cases(n):
        results.add(**kernel_row(name, model, X))
    results.write(rows=n, features=P)


if __name__ == "__main__":
    main()

"""Both kernels of a model, CK and NTK together, against the Gram product X @ X.T in the same run.

n = 2000 rows of 784 features, float64, all threads; compilation is excluded and shown by itself.
Arguments: --quick for a small size, --large for the 20,000-row float32 run as well.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import numpy as np
from measure import best_time, store

import notsodeep as nsd
from notsodeep.activations import leaky_relu, piecewise_linear

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
    image_models = ("tanh", "swish, centred", "relu", "relu, centred", "hard tanh")
    rows += [(f"{name}, images", models[name], images) for name in image_models]
    return rows


def main() -> None:
    """Measure every case and store the rows."""
    n = 500 if "--quick" in sys.argv else 2000
    rows: list[dict[str, Any]] = []
    start = time.perf_counter()
    nsd.kernel_pair(nsd.DeepEquilibrium("tanh", 0.2), np.eye(3))
    first_call = time.perf_counter() - start
    for name, model, X in cases(n):
        nsd.kernel_pair(model, X)
        # The product is measured beside each case, so that a busy moment hits both.
        product = best_time(lambda X=X: X @ X.T, repeats=9)
        seconds = best_time(lambda m=model, X=X: nsd.kernel_pair(m, X), repeats=9)
        product = min(product, best_time(lambda X=X: X @ X.T, repeats=9))
        pair = nsd.kernel_pair(model, X)
        rows.append(
            {
                "case": name,
                "seconds": seconds,
                "gram": product,
                "ratio": seconds / product,
                "route": pair.explanation.route,
                "terms": list(pair.explanation.terms),
                "careful_pairs": pair.explanation.careful_pairs,
            }
        )
    rows.append({"case": "first call in this process", "seconds": first_call})
    if "--large" in sys.argv:
        rows.append(large_run())
    store("kernels", rows)


def large_run() -> dict[str, Any]:
    """20,000 rows, CK and NTK in float32: time, and memory above the results."""
    X = near_orthogonal(20_000, False)
    # Filled, so that the memory of the results is there before the measurement begins.
    room = [np.full((20_000, 20_000), 0.5, dtype=np.float32) for _ in range(2)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    model = nsd.DeepEquilibrium("tanh", 0.2)
    nsd.kernel_pair(model, X, dtype=np.float32, out=(room[0], room[1]))
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "case": "tanh, 20,000 rows, float32",
        "seconds": seconds,
        "gibibytes_above_result": (after - before) / 2**20,
    }


if __name__ == "__main__":
    main()

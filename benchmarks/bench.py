"""What things cost: ratios measured in one run, as JSON.

``python benchmarks/bench.py [NAME …] [--quick] [--peer PYTHON] [--out FILE]``; without names all
but ``mnist``, which takes minutes.  Every ratio is of two calls that take turns, by the best of
several: other work on the machine slows both.  ``--peer`` is the Python of an environment with
neural-tangents, which ``peers/make_environment.py`` makes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import notsodeep as nsd

Row = dict[str, Any]
Options = argparse.Namespace
PEER = Path(__file__).parent / "peers" / "neural_tangents_images.py"


def best(*calls: Callable[[], object], repeats: int = 5) -> list[float]:
    """Seconds of the fastest of several rounds of calls, after one that is not counted."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, mine in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            mine.append(time.perf_counter() - start)
    return [min(mine) for mine in times]


def rows_of(n: int, p: int, norms: str) -> np.ndarray:
    """Gaussian rows with norms that spread, or all one; or images of MNIST."""
    if norms == "images":
        return nsd.data.load("mnist", samples=n).X
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p)) / np.sqrt(p)
    if norms == "unit norm":
        return X / np.linalg.norm(X, axis=1, keepdims=True)
    return X * np.exp(rng.uniform(-0.5, 0.5, (n, 1)))


def kernels(options: Options) -> Iterator[Row]:
    """CK and NTK together, in products ``X @ X.T``."""
    n = 300 if options.quick else 3000
    two = [nsd.Dense("relu", 0.3, inject=0.7), nsd.Dense("tanh", 0.2, inject=0.8)]
    models: dict[str, Any] = {
        name: nsd.DeepEquilibrium(name, sigma_a2=0.2) for name in ("tanh", "relu", "gelu", "elu")
    }
    models |= {
        "two layers": nsd.DeepEquilibrium(cell=two),
        "one layer": nsd.ExplicitNetwork(["tanh"]),
    }
    here = (nsd.data.data_directory() / "mnist.npz").exists()
    for norms in ("spread norms", "unit norm", *(["images"] if here else [])):
        X = rows_of(n, 784, norms)
        for name, model in models.items():

            def both(model: Any = model, X: Any = X) -> object:
                return nsd.kernel(model, X, kind="both")

            seconds, product = best(both, lambda X=X: X @ X.T)
            yield {"case": f"{name}, {norms}", "ratio": seconds / product, "seconds": seconds}


def convolutions(options: Options) -> Iterator[Row]:
    """Kernels of a convolutional DEQ, beside neural-tangents if it is there."""
    layer = nsd.Convolution("relu", weight=0.2, inject=0.8)
    for side in (8,) if options.quick else (8, 14, 28):
        n, repeats = 20 if options.quick else (200 if side < 20 else 100), 3
        model = nsd.ConvolutionalEquilibrium([layer], (side, side, 1))
        X = np.random.default_rng(0).standard_normal((n, side * side))
        (seconds,) = best(lambda m=model, X=X: nsd.kernel(m, X, kind="both"), repeats=repeats)
        row: Row = {"case": f"{side} × {side}, n = {n}", "seconds": seconds}
        if options.peer is not None:
            command = [options.peer, str(PEER), "--time", *map(str, (n, side, side, 1, repeats))]
            theirs = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            row["ratio"] = theirs["seconds"] / seconds
        yield row


def matching(options: Options) -> Iterator[Row]:
    """Match with refinement, in exact kernels of the DEQ on as many rows."""
    X = rows_of(100 if options.quick else 300, 100, "spread norms")
    for name in ("relu", "tanh"):
        deq = nsd.DeepEquilibrium(name, sigma_a2=0.2)
        seconds, kernel = best(
            lambda d=deq: nsd.match(d, X), lambda d=deq: nsd.kernel(d, X), repeats=3
        )
        yield {"case": name, "ratio": seconds / kernel, "seconds": seconds}


def networks(options: Options) -> Iterator[Row]:
    """Inference of a DEQ, in that of the network matched to it, one thread."""
    import torch

    torch.set_num_threads(1)
    deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    match = nsd.match(deq, tau0=1.0, family="hard_tanh")
    for width in (64,) if options.quick else (256, 1024):
        modules = [nsd.build(m, 784, width, 10, rng=0) for m in (deq, match.network)]
        rows = torch.as_tensor(rows_of(256, 784, "unit norm"), dtype=torch.float32)
        with torch.no_grad():
            slow, fast = best(*(lambda m=module, X=rows: m(X) for module in modules))
        yield {"case": f"width {width}", "ratio": slow / fast, "seconds": slow}


def solvers(options: Options) -> Iterator[Row]:
    """Kernel ridge regression by preconditioned conjugate gradients, in Cholesky solves."""
    from scipy.linalg import solve

    n, ridge = 300 if options.quick else 3000, 1e-2
    X = rows_of(n, 784, "spread norms")
    B = np.random.default_rng(1).standard_normal((n, 10))
    deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    K = nsd.kernel(deq, X)

    def iterative() -> object:
        near = nsd.kernel_solvers.preconditioner(deq, X, n // 5, ridge)
        return nsd.kernel_solvers.solve(K, B, ridge, preconditioner=near, progress=False)

    seconds, direct = best(
        iterative, lambda: solve(K + ridge * np.eye(n), B, assume_a="pos"), repeats=3
    )
    yield {"case": f"n = {n}", "ratio": seconds / direct, "seconds": seconds}


def mnist(options: Options) -> Iterator[Row]:
    """Kernel ridge regression on all of MNIST: seconds, peak memory and accuracy."""
    n = 1000 if options.quick else 60_000
    start = time.perf_counter()
    data = nsd.data.load("mnist", samples=None if n == 60_000 else n)
    hot = np.eye(10)[data.y]
    offset = hot.mean(axis=0)
    deq, ridge = nsd.DeepEquilibrium("tanh", sigma_a2=0.2), 1e-2
    near = nsd.kernel_solvers.preconditioner(deq, data.X, min(2000, n // 5), ridge, kind="ntk")
    K = nsd.KernelOperator(deq, data.X, kind="ntk", cache="float32")
    solution = nsd.kernel_solvers.solve(K, hot - offset, ridge, preconditioner=near)
    cross = nsd.KernelOperator(deq, data.X_test, data.X, kind="ntk")
    guess = (cross @ solution.x + offset).argmax(axis=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield {
        "case": f"n = {n}",
        "seconds": time.perf_counter() - start,
        "peak_gibibytes": peak,
        "steps": solution.steps,
        "accuracy": float((guess == data.y_test).mean()),
    }


BENCHMARKS: dict[str, Callable[[Options], Iterator[Row]]] = {
    work.__name__: work for work in (kernels, convolutions, matching, networks, solvers, mnist)
}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--peer", help="Python of an environment with neural-tangents")
    parser.add_argument("--out", type=Path, help="file for the JSON")
    options = parser.parse_args()
    rows = []
    for name in options.names or [name for name in BENCHMARKS if name != "mnist"]:
        for row in BENCHMARKS[name](options):
            rows.append({"benchmark": name, **row, "load": os.getloadavg()[0]})
            values = (f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float))
            print(f"{name:13} {row['case']:28}", *values, flush=True)
    packages = {package: version(package) for package in ("notsodeep", "numpy", "numba", "torch")}
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), **packages}
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

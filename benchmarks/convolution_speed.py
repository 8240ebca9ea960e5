"""Times of both kernels of a convolutional DEQ, their growth, and the ratio to neural-tangents.

Seconds of the clock, on as many threads as there are, and of the processors: other work on the
machine lengthens the former.  A peer is timed right after the same kernel here, on the same images.
What is stored in benchmarks/results/convolutions/speed.json is not measured again.

    python benchmarks/convolution_speed.py                        # costs and growth
    python benchmarks/convolution_speed.py --only 28x28 --again   # some of them, once more
    python benchmarks/convolution_speed.py --only MNIST           # a data set, and Gaussian images
    python benchmarks/convolution_speed.py --peer DIRECTORY/bin/python
    python benchmarks/convolution_speed.py --table                # for docs/convolutions.md
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import notsodeep as nsd
from measure import RESULTS, environment, load_average
from notsodeep.arrays import FloatArray
from notsodeep.files.atomic_files import write_json
from tables import markdown

PLACE = RESULTS / "convolutions" / "speed.json"
PEER = Path(__file__).parent / "peers" / "neural_tangents_images.py"
SHAPES = ((8, 8, 1), (14, 14, 1), (28, 28, 1), (32, 32, 3))
DATA = {"MNIST": (28, 28, 1), "CIFAR-10": (32, 32, 3)}
SIGMA_A2 = 0.2
REPEATS = 3


def named(shape: tuple[int, int, int]) -> str:
    """Name of a shape of images."""
    height, width, channels = shape
    return f"{height}x{width}" + (f"x{channels}" if channels > 1 else "")


def cases(peer: bool) -> Iterator[dict[str, Any]]:
    """List what to measure."""
    for shape in SHAPES:
        if peer:
            samples = 200 if shape[0] < 20 else 100
            yield {"kind": "peer", "images": named(shape), "activation": "relu", "n": samples}
            continue
        for activation in ("relu", "tanh", "swish"):
            yield {"kind": "cost", "images": named(shape), "activation": activation, "n": 1000}
    if peer:
        return
    for data, shape in DATA.items():
        for activation in ("relu", "tanh", "swish"):
            case = {"kind": "data", "images": named(shape), "data": data}
            yield {**case, "activation": activation, "n": 1000}
    for n in (250, 500, 2000):
        yield {"kind": "cost", "images": "14x14", "activation": "relu", "n": n}


def gaussian(n: int, shape: tuple[int, int, int]) -> FloatArray:
    """Draw images whose pixels have norm one in the mean square."""
    return np.random.default_rng(0).normal(size=(n, math.prod(shape))) / shape[2] ** 0.5


def timed(model: Any, X: FloatArray, dtype: Any = np.float64) -> tuple[float, float]:
    """Seconds of both kernels, by the clock and of the processors."""
    nsd.kernel(
        model,
        X[:16],
        dtype=dtype,
        convention="preactivation",
        kind="both",
    )  # compiled code is loaded
    start, busy = time.perf_counter(), time.process_time()
    nsd.kernel(model, X, dtype=dtype, convention="preactivation", kind="both")
    return time.perf_counter() - start, time.process_time() - busy


def beside(case: dict[str, Any]) -> dict[str, Any]:
    """Time both kernels of real images and of Gaussian ones."""
    shape, n = DATA[case["data"]], case["n"]
    name = case["data"].lower().replace("-", "")
    data = nsd.data.load(name, samples=n, test_samples=10, preprocessing="pixels", rng=0)
    layer = nsd.Convolution(case["activation"], weight=SIGMA_A2, inject=1.0 - SIGMA_A2)
    model = nsd.ConvolutionalEquilibrium([layer], shape)
    rows = {"processor": data.X, "gaussian": gaussian(n, shape)}
    times = {}
    for name, X in rows.items():
        times[name] = timed(model, X)[1]
        times[f"{name}_single"] = timed(model, X, np.float32)[1]
    pairs = n * (n + 1) / 2 * shape[0] * shape[1]
    taken = 1e9 * times["processor"] / pairs
    return {**case, **times, "nanoseconds": taken, "load": load_average()}


def measured(case: dict[str, Any], peer: str | None) -> dict[str, Any]:
    """Time both kernels; with a peer the best of some runs, and the same there."""
    if case["kind"] == "data":
        return beside(case)
    shape = next(shape for shape in SHAPES if named(shape) == case["images"])
    n = case["n"]
    X = gaussian(n, shape)
    layer = nsd.Convolution(case["activation"], weight=SIGMA_A2, inject=1.0 - SIGMA_A2)
    model = nsd.ConvolutionalEquilibrium([layer], shape)
    runs = [timed(model, X) for _ in range(REPEATS if peer else 1)]
    record = {"seconds": min(run[0] for run in runs), "processor": min(run[1] for run in runs)}
    record["nanoseconds"] = 1e9 * record["processor"] / (n * (n + 1) / 2 * shape[0] * shape[1])
    if not peer:
        seconds, processor = timed(model, X, np.float32)
        record |= {"seconds_single": seconds, "processor_single": processor}
    else:
        command = [peer, str(PEER), "--time", *map(str, (n, *shape, REPEATS))]
        theirs = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        record |= {f"peer_{name}": value for name, value in theirs.items()}
        record["ratio"] = record["peer_processor"] / record["processor"]
        record["clock_ratio"] = record["peer_seconds"] / record["seconds"]
    return {**case, **record, "load": load_average()}


def table(rows: list[dict[str, Any]]) -> str:
    """Make the tables of the page on convolutions: costs, and the ratio to the peer."""
    costs, peers, real = [], [], []
    order = [named(shape) for shape in SHAPES], ["relu", "tanh", "swish"]
    key = [lambda row: order[0].index(row["images"]), lambda row: order[1].index(row["activation"])]
    for row in sorted(rows, key=lambda row: (*(place(row) for place in key), row["n"])):
        images = row["images"].replace("x", " × ")
        if row["kind"] == "peer":
            times = [f"{row[key]:.2f}" for key in ("processor", "peer_processor")]
            peers.append(
                [images, str(row["n"]), *times, f"{row['ratio']:.0f}", f"{row['clock_ratio']:.0f}"]
            )
        elif row["kind"] == "data":
            times = [
                f"{row[key]:.1f}"
                for key in ("processor", "gaussian", "processor_single", "gaussian_single")
            ]
            what = [f"{row['data']}, {images}", row["activation"], str(row["n"])]
            real.append([*what, *times, f"{row['nanoseconds']:.0f}"])
        else:
            times = [
                f"{row[key]:.1f}"
                for key in ("seconds", "processor", "seconds_single", "processor_single")
            ]
            costs.append(
                [images, row["activation"], str(row["n"]), *times, f"{row['nanoseconds']:.0f}"]
            )
    head = (
        "images", "activation", "n", "seconds", "processor seconds", "seconds, float32",
        "processor seconds, float32", "ns for a pair of pixels",
    )  # fmt: skip
    against = ("images", "n", "processor seconds", "neural-tangents", "ratio", "ratio of the clock")
    images = (
        "images", "activation", "n", "processor seconds", "Gaussian images", "float32",
        "Gaussian images, float32", head[-1],
    )  # fmt: skip
    return "\n\n".join([markdown(head, costs), markdown(images, real), markdown(against, peers)])


def growth(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Exponents of the processor time in n (14 × 14) and in pixels (n = 1000), relu."""
    costs = [row for row in rows if row["kind"] == "cost" and row["activation"] == "relu"]
    found = []
    for chosen, size in (
        ([row for row in costs if row["images"] == "14x14"], lambda row: row["n"]),
        (
            [row for row in costs if row["n"] == 1000 and row["images"].count("x") == 1],
            lambda row: int(row["images"].split("x")[0]) ** 2,
        ),
    ):
        x, y = np.log([[size(row), row["processor"]] for row in chosen]).T
        found.append(float(np.polyfit(x, y, 1)[0]))
    return found[0], found[1]


def main() -> None:
    """Measure what is not stored yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="Python of an environment with neural-tangents")
    parser.add_argument("--only", nargs="+", help="images, and activations, such as 28x28 relu")
    parser.add_argument("--again", action="store_true", help="measure what is stored, too")
    parser.add_argument("--table", action="store_true", help="print the tables of what is stored")
    options = parser.parse_args()
    rows = json.loads(PLACE.read_text())["rows"] if PLACE.exists() else []
    if options.table:
        print(table(rows))
        print("\nexponents in n and in pixels:", *(f"{e:.2f}" for e in growth(rows)))
        sys.exit()
    for case in cases(options.peer is not None):
        known = [row for row in rows if case.items() <= row.items()]
        about = {case["images"], case["activation"]}
        wanted = (
            options.only is None or about <= {*options.only} or case.get("data") in options.only
        )
        if not wanted or (known and not options.again):
            continue
        row = measured(case, options.peer)
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        rows = [other for other in rows if other not in known] + [row]
        PLACE.parent.mkdir(exist_ok=True)
        model = {"sigma_a2": SIGMA_A2, "window": 3, "padding": "circular", "pooling": "flatten"}
        write_json(PLACE, {"environment": environment(), "about": model, "rows": rows})


if __name__ == "__main__":
    main()

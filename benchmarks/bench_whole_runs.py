"""Whole programs with an earlier version of this package and with the present one, in one run.

The two take turns, each in a process of its own: the first kernels of a process, from the end of
its imports on; what `make run` does; and kernel ridge regression on all of MNIST, if that is on the
machine.  Before times count each version has run once, so that its loops are compiled and on disk;
MNIST is done once by each.

    python benchmarks/bench_whole_runs.py --before c32d0c2
    python benchmarks/bench_whole_runs.py --skip MNIST       # without the ten minutes
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import notsodeep as nsd
from bench_cold_start import FIRST
from earlier import BEFORE, PRESENT, checked_out
from measure import Results, benchmark_parser
from notsodeep.errors import DataNotFound

COMPILE = [
    "-m", "notsodeep", "compile",
    "--activation", "relu", "--sigma-a2", "0.2", "--data", "digits",
]  # fmt: skip
MNIST_STAGES = ("preconditioner", "kernel", "solve", "predict")


def run(tree: Path, arguments: list[str]) -> tuple[float, str]:
    """Run Python with one version: seconds, and what it prints."""
    surroundings = {**os.environ, "PYTHONPATH": str(tree / "src")}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], env=surroundings, cwd=tree, check=True, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    return time.perf_counter() - start, done.stdout


def first_kernels(tree: Path, activation: str) -> dict[str, float]:
    """Time the first kernels of a new process, from the end of its imports on."""
    return {"seconds": float(run(tree, ["-c", FIRST.format(name=activation)])[1])}


def compilation(tree: Path) -> dict[str, float]:
    """Time what `make run` does, imports included."""
    with tempfile.TemporaryDirectory() as folder:
        return {"seconds": run(tree, [*COMPILE, "--out", folder])[0]}


def all_of_mnist(tree: Path, quick: bool) -> dict[str, float]:
    """Run the script of that version; where the time goes, memory, accuracy and residual."""
    script = tree / "benchmarks" / "full_mnist.py"
    samples, name = (["--samples", "1000"], "mnist_1000") if quick else ([], "full_mnist")
    place = tree / "benchmarks" / "results"
    with tempfile.TemporaryDirectory() as folder:
        if tree == PRESENT:  # an earlier one writes into its own tree
            place, samples = Path(folder), [*samples, "--results", folder]
        run(tree, [str(script), *samples])
        (row,) = json.loads((place / f"{name}.json").read_text())["rows"]
    return {
        "seconds": row["total_seconds"],
        **{name: row[f"{name}_seconds"] for name in MNIST_STAGES},
        "gibibytes": row["peak_gibibytes"],
        "accuracy": row["test_accuracy"],
        "residual": row["residual"],
    }


def has_mnist() -> bool:
    """Whether the images are on this machine."""
    try:
        nsd.data.load("mnist", samples=10, test_samples=10, rng=0)
    except DataNotFound:
        return False
    return True


def main() -> None:
    """Time both versions and store the rows."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--before", default=BEFORE, help="commit of the earlier version")
    parser.add_argument("--repeats", type=int, default=5, help="of the short ones")
    parser.add_argument("--skip", nargs="*", default=(), help="cases whose names contain one")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    work: list[tuple[str, int, Callable[[Path], dict[str, float]]]] = [
        ("first kernels, relu", repeats, lambda tree: first_kernels(tree, "relu")),
        ("first kernels, tanh", repeats, lambda tree: first_kernels(tree, "tanh")),
    ]
    if not options.quick:
        work.append(("make run", 2, compilation))
    if has_mnist():
        work.append(("all of MNIST", 1, lambda tree: all_of_mnist(tree, options.quick)))
    results = Results("whole_runs", options.results)
    results.keep_others(("case",), before=options.before)
    with checked_out(options.before) as earlier:
        trees = {"before": earlier, "after": PRESENT}
        for case, times, measured in work:
            if any(word in case for word in options.skip):
                continue
            found: dict[str, list[dict[str, float]]] = {key: [] for key in trees}
            for turn in range(times + 1 if times > 1 else 1):
                for key, tree in trees.items():
                    one = measured(tree)
                    if turn > 0 or times == 1:
                        found[key].append(one)
            row: dict[str, Any] = {"case": case, "times": times}
            for key, runs in found.items():
                for name in runs[0]:
                    row[f"{key}_{name}"] = statistics.median(each[name] for each in runs)
            row["gain"] = row["before_seconds"] / row["after_seconds"]
            results.add(**row)
    results.write(before=options.before)


if __name__ == "__main__":
    main()

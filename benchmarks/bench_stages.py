"""Where the time of both kernels goes, stage by stage, on one thread and on all.

Every case is measured in processes of their own, one for each number of threads, in turns with the
product X @ X.T.  Stages are the processor's time of the threads that work on tiles, so that what
they wait for is not in them; "other" is the rest of the process, mostly threads of OpenBLAS.
OpenBLAS keeps its threads spinning after a product, 2^28 ticks of the clock by default and as many
as OPENBLAS_THREAD_TIMEOUT says: two threads are measured both ways.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import notsodeep as nsd
from bench_kernels import cases
from clocks import once
from measure import Results, benchmark_parser
from notsodeep.kernels import compiled
from notsodeep.kernels.plan import Plan
from notsodeep.kernels.table import Table

NAMES = (
    "tanh, spread norms", "relu, spread norms", "tanh, unit norm", "tanh, images", "relu, images",
    "hard tanh, images", "piecewise linear, images",
)  # fmt: skip
STAGES: dict[str, tuple[Any, str]] = {
    "plan": (Plan, "__post_init__"),
    "products": (Plan, "_products"),
    "polynomials": (Table, "run"),
    "single_pairs": (Plan, "_fill_list"),
    "mirror": (compiled, "mirror"),
}
SLEEPY = "20"  # ticks, as a power of two, after which an idle thread sleeps: half a millisecond


class Stages:
    """Processor time of each stage, all threads together."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        for name, (owner, attribute) in STAGES.items():
            setattr(owner, attribute, self._timed(name, getattr(owner, attribute)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                taken = time.thread_time() - start
                with self._lock:
                    self.seconds[name] = self.seconds.get(name, 0.0) + taken

        return timed


def worker(n: int, repeats: int) -> None:
    """Print a row of JSON for every case."""
    known = {name: (model, X) for name, model, X in cases(n)}
    stages = Stages()
    for name in NAMES:
        model, X = known[name]
        nsd.kernel_pair(model, X, convention="preactivation")
        rows = []
        for _ in range(repeats):
            gram = once(lambda X=X: X @ X.T)
            stages.seconds = {}
            busy, start = time.process_time(), time.perf_counter()
            pair = nsd.kernel_pair(model, X, convention="preactivation")
            row = {"seconds": time.perf_counter() - start, "gram": gram}
            busy = time.process_time() - busy
            rows.append({**row, "processor": busy, **stages.seconds})
            del pair
        fastest: dict[str, Any] = min(rows, key=lambda row: row["seconds"])
        fastest["gram"] = min(row["gram"] for row in rows)
        print(json.dumps({"case": name, **fastest}), flush=True)


def main() -> None:
    """Measure with one thread, with all, and with all whose idle ones go to sleep."""
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]))
        return
    options = benchmark_parser(__doc__).parse_args()
    n, repeats = (300, 1) if options.quick else (2000, 9)
    results = Results("stages", options.results)
    cores = os.cpu_count() or 1
    for threads, sleepy in ((1, False), (cores, False), (cores, True)):
        settings = {**os.environ, "NOTSODEEP_THREADS": str(threads)}
        settings |= {"OPENBLAS_NUM_THREADS": str(threads), "OPENBLAS_THREAD_TIMEOUT": SLEEPY}
        if not sleepy:
            del settings["OPENBLAS_THREAD_TIMEOUT"]
        command = [sys.executable, str(Path(__file__)), "--worker", str(n), str(repeats)]
        answer = subprocess.run(
            command, env=settings, stdout=subprocess.PIPE, text=True, check=True
        )
        for line in answer.stdout.splitlines():
            row = json.loads(line)
            stages = sum(row.get(stage, 0.0) for stage in STAGES)
            ratio = row["seconds"] / row["gram"]
            results.add(
                **row, other=row["processor"] - stages, ratio=ratio, threads=threads, sleepy=sleepy
            )
    results.write(rows=n, repeats=repeats)


if __name__ == "__main__":
    main()

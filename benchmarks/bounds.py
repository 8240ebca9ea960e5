"""What bounds a kernel: flops and bytes per pair, and what the machine can do at the most.

Run as a script it counts the flops of the compiled loops: with compilation switched off they are
plain functions, and each call that works on a strip of pairs is counted with its operations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from clocks import best_time
from notsodeep.threads import map_threads, thread_count

BYTES_PER_PAIR = 32
"""Two kernels in float64, each written above and below the diagonal; tiles stay in cache."""

_ROWS, _COLUMNS = 4, 128  # pairs on which flops are counted


LIMITS = ("gigaflops", "gigabytes_per_second")
_SIDE, _SIZE = 1200, 1 << 23  # of a matrix; doubles for each thread


def machine_limits() -> dict[str, float]:
    """Flops of a matrix product and bytes of a copy, per second, on all threads."""
    A = np.random.default_rng(0).standard_normal((_SIDE, _SIDE))
    product = best_time(lambda: A @ A, repeats=5)
    threads = thread_count()
    source = [np.ones(_SIZE) for _ in range(threads)]
    target = [np.ones(_SIZE) for _ in range(threads)]

    def copy() -> None:
        list(map_threads(lambda k: np.copyto(target[k], source[k]), range(threads)))

    flops = 2e-9 * _SIDE**3 / product
    copied = 16e-9 * _SIZE * threads / best_time(copy, repeats=5)
    return dict(zip(LIMITS, (flops, copied), strict=True))


def counted_flops(n: int, names: list[str]) -> dict[str, float]:
    """Flops per pair of some cases of `bench_kernels`, beyond the Gram product."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__)), str(n), *names]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    flops: dict[str, float] = json.loads(answer.stdout)
    return flops


def _operations() -> dict[str, Callable[[tuple[Any, ...]], float]]:
    """Flops per pair of each function on a strip, from its arguments; a division counts as one."""
    return {
        # A multiplication and an addition for each of two kernels, ranks and powers.
        "_table_sums": lambda a: 4.0 * (sum(a[2]) + len(a[2])),
        "_series": lambda a: 6.0 * a[2],  # terms: three multiply-adds
        "_gather": lambda a: float(a[6] - a[5]),
        "_hinge": lambda _: 99.0,  # a polynomial of degree 24, two roots
        "_polynomials": lambda a: 4.0 * len(a[1]),
        "_newton": lambda _: 19.0,
        "_prepare": lambda _: 5.0,
        "_start_series": lambda _: 6.0,
        "_start_hinge": lambda _: 7.0,
        "_kernels": lambda _: 6.0,
        "_largest": lambda _: 1.0,
        "_load": lambda _: 1.0,
    }


def main() -> None:
    """Count, and print as JSON."""
    from bench_kernels import cases
    from notsodeep.kernels import compiled
    from notsodeep.kernels.exact import checked_plan
    from notsodeep.kernels.plan import Tile

    n, names = int(sys.argv[1]), sys.argv[2:]
    total = {"flops": 0.0}

    def count(function: Any, operations: Callable[[tuple[Any, ...]], float]) -> Any:
        def counted(*arguments: Any) -> Any:
            total["flops"] += operations(arguments)
            return function(*arguments)

        return counted

    for name, operations in _operations().items():
        setattr(compiled, name, count(getattr(compiled, name), operations))
    flops = {}
    tile = Tile(slice(0, _ROWS), slice(n - _COLUMNS, n))
    for name, model, X in cases(n):
        if name not in names:
            continue
        prepared = checked_plan(model, X, None, "preactivation", "a benchmark")
        prepared.tile(tile)  # tables and polynomials are made once
        total["flops"] = 0.0
        prepared.tile(tile)
        strips = _ROWS * _COLUMNS / compiled.PADDING
        flops[name] = total["flops"] / strips
    print(json.dumps(flops))


if __name__ == "__main__":
    main()

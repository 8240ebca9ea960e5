"""What one block of a kernel costs, and whole stores: the figures behind the cost-model page.

Processor seconds on one thread, which other work on the machine hardly changes; whole stores also
by the clock.  Images of MNIST if they are on this machine, a stand-in otherwise; tanh DEQ, NTK.
Arguments: --quick for small sizes, --large for a store of 20,000 rows as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_kernels import P, correlated
from measure import store

import notsodeep as nsd
from notsodeep.execution.threads import single_thread
from notsodeep.kernels.block_source import BLOCK, BlockSource
from notsodeep.kernels.evaluation import Tile
from notsodeep.kernels.store_writing import store_kernel
from notsodeep.kernels.stored_blocks import StoredBlocks
from notsodeep.kernels.tile_products import tile_parts

MODEL = nsd.DeepEquilibrium("tanh", 0.2)
COLUMNS = 10


def processor_seconds(function: Callable[[], Any], repeats: int = 3) -> float:
    """Processor seconds of the fastest of several calls, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def block_row(n: int) -> dict[str, Any]:
    """One off-diagonal block: computed, written, read and multiplied."""
    X = correlated(n)
    start = time.process_time()
    source = BlockSource.checked(MODEL, X, None, "tangent", "preactivation", "benchmark")
    source.block(Tile(slice(0, 64), slice(64, 128)))
    prepare = time.process_time() - start
    with tempfile.TemporaryDirectory() as directory, single_thread():
        blocks = StoredBlocks(Path(directory), len(X), min(BLOCK, n // 2), "float32", "")
        blocks.prepare()
        tile = blocks.tile((0, 1))
        block = source.block(tile, "float32")
        V = np.ones((len(X), COLUMNS))

        def multiply() -> None:
            full = block.astype(np.float64)
            tile_parts(tile, full, V, symmetric=True, transposed=False)

        compute = processor_seconds(lambda: source.block(tile, "float32"))
        gram = processor_seconds(lambda: X[tile.rows] @ X[tile.columns].T)
        write = processor_seconds(lambda: blocks.write((0, 1), block))
        read = processor_seconds(lambda: blocks.read((0, 1)))
        product = processor_seconds(multiply)
    return {
        "case": "one block",
        "samples": len(X),
        "side": blocks.side,
        "bytes": block.nbytes,
        "gram_flops": 2 * P * block.size,
        "gram": gram,
        "compute": compute,
        "write": write,
        "read": read,
        f"product_with_{COLUMNS}": product,
        "prepare_samples": prepare,
    }


def store_row(n: int) -> dict[str, Any]:
    """Store a whole kernel in process, then multiply with it."""
    X = correlated(n)
    with tempfile.TemporaryDirectory() as directory:
        start, busy = time.perf_counter(), time.process_time()
        stored = store_kernel(
            Path(directory) / "k.zarr", MODEL, X, kernel="tangent", dtype="float32"
        )
        seconds, processor = time.perf_counter() - start, time.process_time() - busy
        A, V = stored.operator(), np.ones((n, COLUMNS))
        product = processor_seconds(lambda: A @ V, repeats=1)
        size = sum(path.stat().st_size for path in stored.path.rglob("*") if path.is_file())
    return {
        "case": "whole store",
        "samples": n,
        "blocks": len(stored.blocks.places()),
        "bytes": size,
        "seconds": seconds,
        "processor": processor,
        f"product_with_{COLUMNS}": product,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Measure and store the rows."""
    quick = "--quick" in sys.argv
    rows = [block_row(4_000 if quick else 50_000)]
    sizes = [500, 1_000] if quick else [1_000, 4_000, 10_000]
    if "--large" in sys.argv:
        sizes.append(20_000)
    rows += [store_row(n) for n in sizes]
    store("scale", rows)


if __name__ == "__main__":
    main()

"""What one block of a kernel costs, and whole stores: the figures behind the cost-model page.

Processor seconds on one thread, which other work on the machine hardly changes; whole stores also
by the clock.  Images of MNIST if they are on this machine, a stand-in otherwise; tanh DEQ, NTK.
Errors: of a stored block against the same pairs in double precision, of a product against one with
the matrix.  Arguments: --large for a store of 20,000 rows as well.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import notsodeep as nsd
from bench_kernels import P, correlated
from clocks import best_time, peak_growth
from measure import Results, benchmark_parser
from notsodeep.kernels.block_source import BLOCK, BlockSource
from notsodeep.kernels.plan import Tile
from notsodeep.kernels.store_writing import store_kernel
from notsodeep.kernels.stored_blocks import StoredBlocks
from notsodeep.kernels.tiled_operator import tile_parts
from notsodeep.threads import single_thread

MODEL = nsd.DeepEquilibrium("tanh", 0.2)
COLUMNS = 10
DENSE = 5_000  # rows up to which the matrix is made, for the error


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
            tile_parts(tile, block, V, symmetric=True, transposed=False)

        compute, gram, write, read, product = (
            best_time(work, repeats=3, clock=time.process_time)
            for work in (
                lambda: source.block(tile, "float32"),
                lambda: X[tile.rows] @ X[tile.columns].T,
                lambda: blocks.write((0, 1), block),
                lambda: blocks.read((0, 1)),
                multiply,
            )
        )
        exact = source.block(tile)
        error = float(np.abs(blocks.read((0, 1)) - exact).max() / np.abs(exact).max())
        memory = peak_growth(lambda: source.block(tile, "float32"))
    return {
        "case": "one block",
        "samples": len(X),
        "side": blocks.side,
        "bytes": block.nbytes,
        "gram_flops": 2 * P * block.size,
        "gram": gram,
        "compute": compute,
        "ratio": compute / gram,
        "error": error,
        "mebibytes": memory,
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
        A, V = stored.operator(), np.random.default_rng(0).normal(size=(n, COLUMNS))
        product = best_time(lambda: A @ V, repeats=1, clock=time.process_time)
        error = None
        if n <= DENSE:
            exact = nsd.tangent_kernel(MODEL, X) @ V
            error = float(np.linalg.norm(A @ V - exact) / np.linalg.norm(exact))
        size = sum(path.stat().st_size for path in stored.path.rglob("*") if path.is_file())
    return {
        "case": "whole store",
        "samples": n,
        "blocks": len(stored.blocks.places()),
        "bytes": size,
        "seconds": seconds,
        "processor": processor,
        f"product_with_{COLUMNS}": product,
        "error": error,
    }


def main() -> None:
    """Measure and store the rows."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--large", action="store_true", help="a store of 20,000 rows as well")
    options = parser.parse_args()
    results = Results("scale", options.results)
    results.add(**block_row(1_000 if options.quick else 50_000))
    sizes = [200, 400] if options.quick else [1_000, 4_000, 10_000]
    for n in [*sizes, 20_000] if options.large else sizes:
        results.add(**store_row(n))
    results.write(features=P)


if __name__ == "__main__":
    main()

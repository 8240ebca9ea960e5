"""A kernel being stored, for the tests to kill: ``python killed_store.py DIRECTORY [local]``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import notsodeep as nsd
from notsodeep.cluster.executors import Executor, open_executor
from notsodeep.kernels.kernel_store import KernelStore
from notsodeep.kernels.store_writing import store_kernel

MODEL = nsd.DeepEquilibrium("tanh", 0.2)


def samples(n: int = 700) -> np.ndarray:
    """Rows of different norms."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 30)) / np.sqrt(30) * np.exp(rng.uniform(-0.5, 0.5, size=(n, 1)))


def store(directory: Path | str, executor: Executor | None = None, **options: bool) -> KernelStore:
    """Store a kernel in 66 blocks, or what is missing of it."""
    return store_kernel(
        directory, MODEL, samples(), kernel="tangent", side=64, executor=executor, **options
    )


def marks(directory: Path) -> list[Path]:
    """Return the marks of the blocks that are done."""
    return sorted(directory.glob("done/*.json"))


if __name__ == "__main__":
    with open_executor(*sys.argv[2:]) as executor:
        store(sys.argv[1], executor)

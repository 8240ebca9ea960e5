"""A small Dask cluster for tests, how to kill its workers, and work they can import."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from notsodeep.cluster.dask_executor import DaskExecutor
from notsodeep.threads import thread_count


@contextlib.contextmanager
def local_workers(number: int = 2) -> Iterator[DaskExecutor]:
    """Worker processes with one thread each, and an executor on them.

    A test that kills workers needs some of its own: it may leave fewer behind.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NOTSODEEP_THREADS", str(number))
        executor = DaskExecutor("local")
    with executor:
        yield executor


def kill_workers(executor: DaskExecutor, number: int) -> None:
    """Kill workers as the operating system would when memory runs out, two being all there are."""
    list(executor.map(abs, [0]))  # so that there is one
    for pid in list(executor.client.run(os.getpid, on_error="ignore").values())[:number]:
        os.kill(pid, signal.SIGKILL)


def scaled(item: int, vector: np.ndarray) -> np.ndarray:
    return item * vector


def total(item: int, kept: np.ndarray, vector: np.ndarray) -> float:
    time.sleep(0.02)
    return item + float(kept.sum() + vector.sum())


def threads(_: int) -> tuple[int, set[int]]:
    return thread_count(), {pool["num_threads"] for pool in threadpool_info()}


def fail(item: int) -> NoReturn:
    raise ArithmeticError(f"no result for {item}")


def die(_: int) -> NoReturn:
    os._exit(1)


def die_once(item: int, place: Path) -> int:
    """Kill the worker when the third item is worked on for the first time."""
    time.sleep(0.02)
    if item == 2:
        try:
            (place / "died").touch(exist_ok=False)
        except FileExistsError:
            return item
        os._exit(1)
    return item

"""A small Dask cluster for tests, how to kill its workers, and work they can import."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_info

from notsodeep.execution.dask_executor import DaskExecutor
from notsodeep.execution.threads import thread_count


@contextlib.contextmanager
def two_workers() -> Iterator[DaskExecutor]:
    """Two worker processes with one thread each, and an executor on them."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        DaskExecutor(client) as executor,
    ):
        yield executor


def kill_workers(executor: DaskExecutor, number: int) -> None:
    """Kill workers as the operating system would when memory runs out, two being all there are."""
    executor.client.wait_for_workers(1, timeout=120)
    for pid in list(executor.client.run(os.getpid).values())[:number]:
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

"""Work shared among threads, one level of parallelism at a time.

Each thread runs its own piece with single-threaded linear algebra.  Two pools on the same cores
would get in each other's way: idle threads of a BLAS library keep spinning for milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController, threadpool_limits

from notsodeep import checks

Item = TypeVar("Item")
Result = TypeVar("Result")

_BRING_BLAS = ("numpy", "scipy.linalg", "torch", "sklearn")  # packages with libraries of their own

_BATCH = 16  # items of a thread between two moments at which all have ended

# Each thread has its own value: whether it is one of several that share the cores already.
_one_of_several: ContextVar[bool] = ContextVar("one_of_several", default=False)


def thread_count() -> int:
    """Threads to use: `NOTSODEEP_THREADS` if set, otherwise the cores this process may run on.

    One, in a thread of `map_threads` and under `single_thread`: the cores are busy elsewhere.
    """
    if _one_of_several.get():
        return 1
    given = os.environ.get("NOTSODEEP_THREADS")
    if given is not None:
        number = int(given) if given.isdigit() else given
        return checks.positive_integer(number, "NOTSODEEP_THREADS", "the environment")
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Use one thread for compiled code and linear algebra: other processes use the other cores."""
    token = _one_of_several.set(True)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        _one_of_several.reset(token)


def single_blas_thread() -> AbstractContextManager[object]:
    """Use one thread for linear algebra, around loops whose parts share threads themselves."""
    loaded = frozenset(name for name in _BRING_BLAS if name in sys.modules)
    limits: AbstractContextManager[object] = _controller(loaded).limit(limits=1, user_api="blas")
    return limits


@lru_cache(maxsize=16)
def _controller(loaded: frozenset[str]) -> ThreadpoolController:  # noqa: ARG001  # the key
    """Find the libraries of this process, once for each set of packages: it takes milliseconds."""
    return ThreadpoolController()


def map_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Iterator[Result]:
    """Apply `function` to every item and yield the results in order, batch after batch.

    For functions that spend their time outside the interpreter's lock.  The first error stops what
    has not begun and is raised.
    """
    work = list(items)
    count = min(threads or thread_count(), len(work))
    if count <= 1:
        for item in work:
            with single_blas_thread():
                result = function(item)
            yield result
        return
    batch = _BATCH * count
    with ThreadPoolExecutor(count, initializer=_one_of_several.set, initargs=(True,)) as pool:
        for start in range(0, len(work), batch):
            # The limit holds for the whole process: not while a consumer works with the results.
            with single_blas_thread():
                futures = [pool.submit(function, item) for item in work[start : start + batch]]
                try:
                    results = [future.result() for future in futures]
                finally:
                    for future in futures:
                        future.cancel()
            yield from results

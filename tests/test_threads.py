"""One level of parallelism, in order, and no limit that outlives the work."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from notsodeep.threads import map_threads, single_thread, thread_count


def blas_threads() -> set[int]:
    pools = ThreadpoolController().info()
    numpys = [pool for pool in pools if "numpy" in pool["filepath"]]
    return {pool["num_threads"] for pool in numpys if pool["user_api"] == "blas"}


@pytest.mark.parametrize("threads", [1, 3])
def test_work_has_one_blas_thread_and_its_consumer_what_it_had(threads: int) -> None:
    np.linalg.norm(np.eye(3) @ np.eye(3))  # so that the library is there
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        assert before == {2}
        results = map_threads(lambda _: blas_threads(), range(4), threads)
        assert next(results) == {1}
        rest = list(results)
        assert rest == [{1}] * 3
        kept = map_threads(lambda k: k, range(3), threads)
        assert next(kept) == 0
        assert blas_threads() == before
        kept.close()


def test_results_come_in_order_and_the_first_error_stops() -> None:
    assert list(map_threads(lambda k: k * k, range(20), 3)) == [k * k for k in range(20)]
    begun: list[int] = []

    def work(k: int) -> None:
        begun.append(k)
        raise ArithmeticError(k)

    with pytest.raises(ArithmeticError, match="0"):
        list(map_threads(work, range(100), 2))
    assert len(begun) < 100


def test_items_are_worked_on_at_once() -> None:
    together = threading.Barrier(3, timeout=10.0)
    assert sorted(map_threads(lambda _: together.wait(), range(3), 3)) == [0, 1, 2]


def test_one_level_of_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTSODEEP_THREADS", "4")
    assert thread_count() == 4
    assert list(map_threads(lambda _: thread_count(), range(3))) == [1, 1, 1]
    with single_thread():
        assert thread_count() == 1
    assert thread_count() == 4

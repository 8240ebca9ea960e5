"""Work in this process, and what is refused before any work."""

from __future__ import annotations

import importlib.util
import threading
import time

import pytest

from notsodeep.cluster.executors import InProcess, open_executor
from notsodeep.errors import InvalidInput, MissingPackage
from notsodeep.threads import map_threads, single_thread, thread_count


def add(item: int, *values: int) -> int:
    return item + sum(values)


@pytest.mark.parametrize("at_once", [1, 3])
def test_shared_and_kept_values_reach_the_function(at_once: int) -> None:
    executor = InProcess(at_once)
    ten = executor.share(10)
    kept = executor.keep(add, [1, 2, 3], ten)
    assert list(executor.map(add, [100, 200, 300], kept, ten)) == [121, 222, 323]
    assert dict(executor.completed(add, [100, 200], kept)) == {0: 111, 1: 212}


def test_items_are_worked_on_at_once_as_asked() -> None:
    together = threading.Barrier(3, timeout=10.0)
    assert sorted(InProcess(3).map(lambda _: together.wait(), range(3))) == [0, 1, 2]


def test_results_come_while_others_are_to_be_done() -> None:
    begun: list[int] = []
    results = InProcess().map(begun.append, [1, 2, 3])
    next(results)
    assert begun == [1]


def test_an_error_stops_the_work() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise ArithmeticError(item)

    with pytest.raises(ArithmeticError, match="1"):
        list(InProcess().map(work, [1, 2]))
    assert begun == [1]


def test_one_level_of_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTSODEEP_THREADS", "4")
    assert thread_count() == 4
    assert list(map_threads(lambda _: thread_count(), range(3))) == [1, 1, 1]
    assert list(InProcess(2).map(lambda _: thread_count(), range(2))) == [1, 1]
    assert list(InProcess().map(lambda _: thread_count(), range(2))) == [4, 4]
    with single_thread():
        assert thread_count() == 1
    assert thread_count() == 4


def test_pieces_of_a_shared_pool_do_not_wait_for_each_other_needlessly() -> None:
    start = time.perf_counter()
    list(InProcess(4).map(lambda _: time.sleep(0.2), range(4)))
    assert time.perf_counter() - start < 0.75


@pytest.mark.parametrize("at_once", [0, 1.5, "all"])
def test_number_at_once_is_checked(at_once: object) -> None:
    with pytest.raises(InvalidInput, match="at_once of InProcess must be an integer"):
        InProcess(at_once)


def test_foreign_handles_are_refused() -> None:
    with pytest.raises(InvalidInput, match="made by its own share"):
        list(InProcess().map(add, [1], 10))


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "distributed" else real(name)
    )
    with pytest.raises(MissingPackage, match=r"\[cluster\]"):
        open_executor("local")


@pytest.mark.parametrize("where", [3, ""])
def test_a_place_must_be_local_an_address_or_a_client(where: object) -> None:
    with pytest.raises(InvalidInput, match="where of open_executor must be 'local'"):
        open_executor(where)

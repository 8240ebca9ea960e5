"""Work on Dask workers, some of which die."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cluster import die, fail, kill_workers, local_workers, scaled, threads, total
from notsodeep.cluster.dask_executor import DaskExecutor
from notsodeep.cluster.executors import InProcess, open_executor
from notsodeep.errors import ClusterUnreachable, InvalidInput, WorkersLost


@pytest.fixture(scope="module")
def executor() -> Iterator[DaskExecutor]:
    with local_workers() as executor:
        yield executor


def test_same_results_as_in_process_in_order(executor: DaskExecutor) -> None:
    results = []
    for each in (executor, InProcess()):
        vector = each.share(np.arange(5.0))
        kept = each.keep(scaled, range(12), vector)
        results.append(list(each.map(total, range(12), kept, vector)))
    assert results[0] == results[1]


def test_lists_and_dictionaries_are_shared_whole(executor: DaskExecutor) -> None:
    assert list(executor.map(max, [[0]], executor.share([1, 2]))) == [[1, 2]]
    assert list(executor.map(dict.__eq__, [{"a": 1}], executor.share({"a": 1}))) == [True]


def test_one_thread_for_compiled_code_and_linear_algebra(executor: DaskExecutor) -> None:
    for compiled, pools in executor.map(threads, range(4)):
        assert compiled == 1
        assert pools <= {1}


def test_the_error_of_an_item_is_raised_here(executor: DaskExecutor) -> None:
    with pytest.raises(ArithmeticError, match="no result for 7"):
        list(executor.map(fail, [7]))


def test_a_given_client_stays_open(executor: DaskExecutor) -> None:
    with open_executor(executor.client) as other:
        assert list(other.map(abs, [-2])) == [2]
    assert executor.client.status == "running"


def test_foreign_handles_are_refused(executor: DaskExecutor) -> None:
    with pytest.raises(InvalidInput, match="made by its own share"):
        list(executor.map(scaled, [1], InProcess().share(np.ones(2))))


def test_an_address(executor: DaskExecutor) -> None:
    with open_executor(executor.client.scheduler.address) as other:
        assert list(other.map(abs, [-2])) == [2]


def test_an_address_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notsodeep.cluster.dask_executor._CONNECT_SECONDS", 0.5)
    with pytest.raises(ClusterUnreachable, match=r"tcp://127\.0\.0\.1:9"):
        open_executor("tcp://127.0.0.1:9")


# Workers are killed from here on.  New ones take their place, when they have started.


@pytest.mark.parametrize(
    "number",
    [pytest.param(1, id="one-worker", marks=pytest.mark.slow), pytest.param(2, id="every-worker")],
)
def test_killed_workers_change_nothing(executor: DaskExecutor, number: int) -> None:
    vector = executor.share(np.arange(5.0))
    kept = executor.keep(scaled, range(60), vector)
    expected = [11.0 * item + 10.0 for item in range(60)]
    found = {}
    for position, value in executor.completed(total, range(60), kept, vector):
        found[position] = value
        if len(found) == 5:
            kill_workers(executor, number)
    assert found == dict(enumerate(expected))
    # And what was kept is there again.
    assert list(executor.map(total, range(60), kept, vector)) == expected


def test_work_that_kills_its_workers_is_given_up(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dask tries four times by default, and each time a worker must start.
    monkeypatch.setattr(executor.client.cluster.scheduler, "allowed_failures", 0)
    with pytest.raises(WorkersLost, match="more memory than a worker has"):
        list(executor.map(die, [0]))
    assert list(executor.map(abs, [-1])) == [1]

"""Workers of a cluster that die, are blamed, or do not come back: the work goes on, or ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from cluster import die, die_once, kill_workers, local_workers
from notsodeep.cluster.dask_executor import DaskExecutor
from notsodeep.cluster.executors import open_executor
from notsodeep.errors import InvalidInput, WorkersLost


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """One worker, which nobody here looks after."""
    address = "127.0.0.1:0"
    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=address, silence_logs=False
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mortal() -> Iterator[DaskExecutor]:
    """One worker; another takes its place whenever it dies."""
    with local_workers(1) as executor:
        # Dask blames work at the fourth death by default, and each time a worker must start.
        executor.client.cluster.scheduler.allowed_failures = 0
        yield executor


def test_nobody_waits_for_ever_for_a_worker(cluster: LocalCluster) -> None:
    with (
        Client(cluster, set_as_default=False) as client,
        open_executor(client, worker_timeout=1.0) as executor,
    ):
        three = executor.share(3)
        results = executor.completed(pow, [2] * 50, three)
        assert next(results)[1] == 8
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.01)
        with pytest.raises(WorkersLost, match=r"reached for 1 s\. .*worker_timeout"):
            list(executor.map(abs, [1]))
        with pytest.raises(WorkersLost, match="reached for 1 s"):
            executor.share(4)
        # Workers that come later do the rest, and are sent again what the others took with them.
        cluster.scale(1)
        client.wait_for_workers(1, timeout=200.0)
        assert sum(result for _, result in results) == 49 * 8
        assert list(executor.map(pow, [5], three)) == [125]


def test_a_lost_scheduler_ends_the_work(cluster: LocalCluster) -> None:
    with (
        Client(cluster, timeout=0.5, set_as_default=False) as client,
        open_executor(client) as executor,
    ):
        results = executor.completed(abs, range(-20, 0))
        next(results)
        cluster.close()
        with pytest.raises(WorkersLost):
            list(executor.map(abs, [-1]))


def test_workers_that_dask_has_given_up_start_again() -> None:
    # On a busy machine a worker takes longer to start again than the fifteen seconds it has.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}),
        local_workers(1) as executor,
    ):
        zero = executor.share(0)
        found = []
        for position, _ in executor.completed(pow, range(30), zero):
            found.append(position)
            if len(found) == 3:
                kill_workers(executor, 1)
        assert sorted(found) == list(range(30))


def test_work_blamed_for_the_deed_of_other_work_is_done(
    mortal: DaskExecutor, tmp_path: Path
) -> None:
    assert list(mortal.map(die_once, range(8), mortal.share(tmp_path))) == list(range(8))
    assert (tmp_path / "died").exists()


def test_kept_work_blamed_for_the_deed_of_other_work_is_done(
    mortal: DaskExecutor, tmp_path: Path
) -> None:
    kept = mortal.keep(die_once, range(8), mortal.share(tmp_path))
    assert list(mortal.map(max, range(8), kept)) == list(range(8))
    assert (tmp_path / "died").exists()


@pytest.mark.slow  # of one item, in tests/executors
def test_work_that_kills_every_worker_is_named(mortal: DaskExecutor) -> None:
    with pytest.raises(WorkersLost, match="more memory than a worker has"):
        list(mortal.map(die, range(3)))


def test_an_executor_may_be_closed_twice_and_without_workers() -> None:
    with local_workers(1) as executor:
        kill_workers(executor, 1)
        executor.close()


@pytest.mark.parametrize("seconds", [0.0, -1, float("nan"), "long"])
def test_the_time_to_wait_is_checked(seconds: object) -> None:
    with pytest.raises(InvalidInput, match="worker_timeout of open_executor must be"):
        open_executor("local", worker_timeout=seconds)

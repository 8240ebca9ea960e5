"""The workers of a Dask cluster: reached or started, watched while they work, and ended.

Dask itself waits for ever if the last worker is gone.  And on a busy machine that happens: if the
process of a local worker takes more than fifteen seconds to start again, Dask gives the worker up
and never tries once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from distributed import Client, LocalCluster

from notsodeep import checks
from notsodeep.errors import ClusterUnreachable, WorkersLost
from notsodeep.threads import thread_count

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 10.0  # a scheduler that takes longer to say who its workers are has none for us
_GLANCE_SECONDS = 0.01  # between looks for results
_LOOK_SECONDS = 0.5  # between looks for workers
_LOOPBACK = "127.0.0.1"


class Workers:
    """The workers that a client reaches.

    Parameters
    ----------
    where : "local", an address, or distributed.Client
        See `notsodeep.cluster.executors.open_executor`.
    timeout : float
        Seconds without any worker after which none is expected to come.

    Attributes
    ----------
    client : distributed.Client
    """

    def __init__(self, where: Any, timeout: float) -> None:
        self._timeout = timeout
        self._own = not isinstance(where, Client)
        self._cluster = _local_cluster() if where == "local" else None
        self.client = _connect(self._cluster or where) if self._own else where
        try:
            self._require_same_version()
        except BaseException:
            self.close()
            raise

    def _require_same_version(self) -> None:
        # A worker that cannot import what it is sent would leave the cluster without a word.
        found = self.client.run(version, "notsodeep", on_error="return").values()
        # An OSError stands for a worker that died meanwhile.
        answers = (str(answer) for answer in found if not isinstance(answer, OSError))
        _same_version(answers, version("notsodeep"))

    def wait_for_one(self) -> None:
        """Return as soon as there is a worker.

        Raises
        ------
        WorkersLost
            None came in time, or the connection to the scheduler is lost.
        """
        self.watch(self._present)

    def watch(self, ready: Callable[[], bool]) -> None:
        """Return as soon as `ready` says so, which it may do while there are workers.

        Raises
        ------
        WorkersLost
            There was no worker for too long, or the connection to the scheduler is lost.
        """
        seen = looked = time.monotonic()
        while not ready():
            time.sleep(_GLANCE_SECONDS)
            if time.monotonic() - looked < _LOOK_SECONDS:
                continue
            self._restart()
            present = self._present()
            looked = time.monotonic()
            if present:
                seen = looked
            elif looked - seen > self._timeout:
                raise _no_worker(self._timeout)

    def _present(self) -> bool:
        """Whether the scheduler knows of a worker; False if it does not answer."""
        scheduler = self.client.scheduler
        if scheduler is None or self.client.status in ("closing", "closed"):
            raise _scheduler_lost()
        try:
            return bool(self.client.sync(scheduler.ncores, callback_timeout=_ANSWER_SECONDS))
        except OSError:
            return False

    def _restart(self) -> None:
        """Start again what Dask has given up of our own workers, if anything."""
        if self._cluster is not None:
            self._cluster.scale(len(self._cluster.worker_spec))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Disconnect, and end the workers that were started here; a given client stays open."""
        if self._cluster is not None and self.client.status == "running":
            # A worker may notice that the scheduler has gone before it is told to go itself.
            self.client.run(_hush, on_error="ignore")
        if self._own:
            self.client.close()
        if self._cluster is not None:
            self._cluster.close()


def _connect(where: Any) -> Client:
    try:
        return Client(  # type: ignore[no-untyped-call]
            where, timeout=_CONNECT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError) as error:
        raise _unreachable(where, error) from error


def _local_cluster() -> LocalCluster:
    """Start one worker for each thread of this process; nothing listens to other machines."""
    return LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=thread_count(),
        threads_per_worker=1,
        host=_LOOPBACK,
        dashboard_address=f"{_LOOPBACK}:0",
        worker_dashboard_address=f"{_LOOPBACK}:0",
    )


def _hush() -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


def _unreachable(address: str, reason: object) -> ClusterUnreachable:
    """Say that no scheduler answers."""
    return ClusterUnreachable(
        f"No Dask scheduler answers at {address} ({reason}). Start one there with "
        "`dask scheduler`, or use 'local'."
    )


def _same_version(found: Iterable[str], here: str) -> None:
    """Require that every worker has the version of this package that is here."""
    other = sorted(set(found) - {here})
    if other:
        requirement = f"have notsodeep {here} on every worker, as here"
        remedy = "Install it in the environment that the workers run in."
        raise checks.refusal("where", "open_executor", requirement, other[0], remedy)


def _no_worker(seconds: float) -> WorkersLost:
    """Say that no worker came in time."""
    return WorkersLost(
        f"No worker could be reached for {seconds:g} s. Start workers (`dask worker ADDRESS`), or "
        "look into the logs of those that were there; if they take longer to come, choose a larger "
        "worker_timeout in open_executor."
    )


def _scheduler_lost() -> WorkersLost:
    """Say that work cannot go on without its scheduler."""
    return WorkersLost(
        "The connection to the Dask scheduler is lost, and the workers with it. Connect again with "
        "open_executor when it runs again."
    )

"""Work on the workers of a Dask cluster: reached or started, watched, and ended.

Dask itself waits for ever if the last worker is gone.  And on a busy machine that happens: if the
process of a local worker takes more than fifteen seconds to start again, Dask gives the worker up
and never tries once more.

A worker may be lost at any time.  Dask computes its results again elsewhere; but a value that was
brought to the workers from here has no recipe, and is lost with the last worker that holds it.
So every worker gets a copy, and if all copies are gone the value is brought again from here.

An item may itself kill the worker that works on it, by using too much memory.  Dask then blames
every item that the worker had in hand, so the blamed ones are tried once more, each on its own.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

from dask.utils import funcname
from distributed import Client, KilledWorker, LocalCluster, as_completed

from notsodeep import checks
from notsodeep.cluster.executors import WORKER_TIMEOUT, Executor, Handle, own_handles
from notsodeep.errors import ClusterUnreachable, WorkersLost
from notsodeep.threads import single_thread, thread_count

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
            # A worker may notice that the scheduler has gone before it is asked to end itself.
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
        raise checks.invalid("where", "open_executor", requirement, other[0], remedy)


def _no_worker(seconds: float) -> WorkersLost:
    """Say that no worker came in time."""
    return WorkersLost(
        f"No worker could be reached for {seconds:g} s. Start workers (`dask worker ADDRESS`), or "
        "look into the logs of those that were there; if they take longer to come, choose a larger "
        "worker_timeout in open_executor."
    )


def _scheduler_lost() -> WorkersLost:
    """Say that work cannot continue without its scheduler."""
    return WorkersLost(
        "The connection to the Dask scheduler is lost, and the workers with it. Connect again with "
        "open_executor when it runs again."
    )


Item = TypeVar("Item")
Result = TypeVar("Result")

_PATIENCE = 8  # attempts in vain, after losses, before giving up


class DaskExecutor(Executor):
    """Work on a Dask cluster, one item at a time on each thread of a worker.

    Parameters
    ----------
    where : "local", an address, or distributed.Client
    worker_timeout : float
        See `notsodeep.cluster.executors.open_executor` for both.

    Attributes
    ----------
    client : distributed.Client
    """

    def __init__(self, where: Any, worker_timeout: float = WORKER_TIMEOUT) -> None:
        _cluster_place(where, isinstance(where, Client))
        timeout = checks.positive_number(worker_timeout, "worker_timeout", "open_executor")
        self._workers = Workers(where, timeout)
        self.client = self._workers.client

    def close(self) -> None:
        """Disconnect, and end the workers that were started here; a given client stays open."""
        self._workers.close()

    def share(self, value: object) -> Handle:
        """Copy a value to every worker."""
        return _Shared(self._workers, value)

    def keep(
        self, function: Callable[..., object], items: Sequence[Any], *arguments: Handle
    ) -> Handle:
        """Begin to compute the results, which stay in the memory of the workers.

        Those of a lost worker are computed again when they are needed.
        """
        return _Kept(self.client, function, items, _own(arguments))

    def completed(
        self, function: Callable[..., Result], items: Sequence[Item], *arguments: Handle
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results as they are done, whatever happens to single workers.

        Raises
        ------
        WorkersLost
            An item killed several workers one after the other, or no worker comes back.
        """
        handles = _own(arguments)
        waiting = set(range(len(items)))
        blamed: set[int] = set()
        fruitless = 0
        while waiting:
            # The blamed one at a time, and after all others: then it can have been nobody else.
            positions = sorted(waiting - blamed) or [min(waiting)]
            before = len(waiting), len(blamed)
            for position, result in self._round(function, items, positions, handles):
                if not isinstance(result, KilledWorker):
                    waiting.remove(position)
                    yield position, result
                elif position in blamed:
                    raise _deadly_work(result) from result
                else:
                    blamed.add(position)
            fruitless = fruitless + 1 if (len(waiting), len(blamed)) == before else 0
            if fruitless > _PATIENCE:
                raise _work_lost(len(waiting), len(items), fruitless)

    def _round(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        positions: list[int],
        handles: list[_Remote],
    ) -> Iterator[tuple[int, Result | KilledWorker]]:
        """Submit some items; yield what comes back, which is not all if shared data were lost."""
        self._workers.wait_for_one()
        for handle in handles:
            handle.renew(positions)
        futures = _submit(self.client, function, items, positions, handles)
        place = {future.key: at for future, at in zip(futures, positions, strict=True)}
        done: Any = as_completed(  # type: ignore[no-untyped-call]
            futures, loop=self.client.loop, with_results=True, raise_errors=False
        )
        del futures  # so that each result is released on the workers as soon as it is here
        while not done.is_empty():
            self._workers.watch(done.has_ready)
            for future, result in done.next_batch(block=False):
                if future.status == "finished":
                    yield place[future.key], result
                elif future.status == "error":
                    yield place[future.key], _killed(future)


class _Remote(Handle, ABC):
    """A value for all items or one for each, on the workers."""

    @abstractmethod
    def future(self, position: int) -> Any:
        """Return the future that stands for the value at a position."""

    @abstractmethod
    def renew(self, positions: Sequence[int]) -> None:
        """Bring back what was lost of the values at some positions, if anything."""


class _Shared(_Remote):
    def __init__(self, workers: Workers, value: object) -> None:
        self._workers, self._value = workers, value
        self._future = self._scatter()

    def _scatter(self) -> Any:
        for attempt in range(_PATIENCE):
            self._workers.wait_for_one()
            try:
                # In a list, because a list or dictionary itself would be taken apart.
                client = self._workers.client
                return client.scatter([self._value], broadcast=True, hash=False)[0]
            except OSError as error:
                reason = error  # a worker died while it was sent its copy
                time.sleep(0.1 * 2**attempt)
        raise _data_not_taken(reason) from reason

    def future(self, position: int) -> Any:  # the same for all
        return self._future

    def renew(self, positions: Sequence[int]) -> None:  # likewise
        if self._future.cancelled():
            self._future = self._scatter()


class _Kept(_Remote):
    def __init__(
        self,
        client: Client,
        function: Callable[..., object],
        items: Sequence[Any],
        handles: list[_Remote],
    ) -> None:
        self._client, self._function, self._items, self._handles = client, function, items, handles
        self._futures = _submit(client, function, items, list(range(len(items))), handles)

    def future(self, position: int) -> Any:
        return self._futures[position]

    def renew(self, positions: Sequence[int]) -> None:
        lost = [at for at in positions if _is_lost(self._futures[at])]
        if not lost:
            return
        for handle in self._handles:
            handle.renew(lost)
        fresh = _submit(self._client, self._function, self._items, lost, self._handles)
        for at, future in zip(lost, fresh, strict=True):
            self._futures[at] = future


def _is_lost(future: Any) -> bool:
    """Whether a result is gone with its recipe, or the scheduler has given it up."""
    if future.status == "error":
        return isinstance(future.exception(), KilledWorker)
    return bool(future.cancelled())


def _own(arguments: Sequence[Handle]) -> list[_Remote]:
    handles = [handle for handle in arguments if isinstance(handle, _Remote)]
    own_handles(len(handles) == len(arguments), "DaskExecutor")
    return handles


def _submit(
    client: Client,
    function: Callable[..., object],
    items: Sequence[Any],
    positions: list[int],
    handles: list[_Remote],
) -> list[Any]:
    chosen = [items[at] for at in positions]
    values = [[handle.future(at) for at in positions] for handle in handles]
    name = funcname(function).strip("_")
    futures: list[Any] = client.map(
        _on_worker, chosen, *values, function=function, key=name, pure=False
    )
    return futures


def _on_worker(item: Any, *values: Any, function: Callable[..., Result]) -> Result:
    with single_thread():
        return function(item, *values)


def _killed(future: Any) -> KilledWorker:
    """Return what tells that workers were killed; raise what went wrong otherwise."""
    error: BaseException = future.exception()
    if isinstance(error, KilledWorker):
        return error
    raise error.with_traceback(future.traceback())


def _cluster_place(value: object, is_client: bool) -> None:
    """Require "local", an address or a client."""
    if not is_client and not (isinstance(value, str) and value):
        remedy = "An address looks like tcp://10.0.0.1:8786."
        requirement = "be 'local', the address of a Dask scheduler, or a distributed.Client"
        raise checks.invalid("where", "open_executor", requirement, repr(value), remedy)


def _data_not_taken(reason: object) -> WorkersLost:
    """Say that no worker could be sent its data."""
    return WorkersLost(f"No worker takes data ({reason}). Look into the workers' logs.")


def _deadly_work(reason: object) -> WorkersLost:
    """Say that a piece of work was given up because it kills the workers."""
    return WorkersLost(
        f"{reason} The work probably needs more memory than a worker has: use smaller blocks, or "
        "workers with more memory."
    )


def _work_lost(left: int, total: int, times: int) -> WorkersLost:
    """Say that pieces of work do not come back."""
    return WorkersLost(
        f"{left} of {total} pieces of work were lost {times} times, with the workers that held "
        "their data. See the workers' logs."
    )

"""Work on the workers of a Dask cluster.

A worker may be lost at any time.  Dask computes its results again elsewhere; but a value that was
brought to the workers from here has no recipe, and is lost with the last worker that holds it.
So every worker gets a copy, and if all copies are gone the value is brought again from here.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

from dask.utils import funcname
from distributed import Client, KilledWorker, LocalCluster, as_completed

from notsodeep.checks import storage
from notsodeep.errors import WorkersLost
from notsodeep.execution.executors import Executor, Handle
from notsodeep.execution.threads import single_thread, thread_count

Item = TypeVar("Item")
Result = TypeVar("Result")

_PATIENCE = 8  # attempts in vain, after losses, before giving up
_CONNECT_SECONDS = 10.0


class DaskExecutor(Executor):
    """Work on a Dask cluster, one item at a time on each thread of a worker.

    Parameters
    ----------
    where : "local", an address, or distributed.Client
        See `notsodeep.execution.executors.open_executor`.

    Attributes
    ----------
    client : distributed.Client
    """

    def __init__(self, where: Any) -> None:
        storage.cluster_place(where, isinstance(where, Client))
        self._connect(where)
        # A worker that cannot import what it is sent would leave the cluster without a word.
        found = self.client.run(version, "notsodeep", on_error="return")
        storage.same_version(map(str, found.values()), version("notsodeep"))

    def _connect(self, where: Any) -> None:
        self._cluster = None
        self._own = not isinstance(where, Client)
        if not self._own:
            self.client = where
            return
        if where == "local":
            self._cluster = LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=thread_count(), threads_per_worker=1, dashboard_address=":0"
            )
        try:
            self.client = Client(  # type: ignore[no-untyped-call]
                self._cluster or where, timeout=_CONNECT_SECONDS, set_as_default=False
            )
        except (OSError, ValueError) as error:
            raise storage.unreachable(where, error) from error

    def close(self) -> None:
        """Disconnect, and end the workers that were started here; a given client stays open."""
        if self._cluster is not None:
            # A worker may notice that the scheduler has gone before it is told to go itself.
            self.client.run(_hush, on_error="ignore")
        if self._own:
            self.client.close()
        if self._cluster is not None:
            self._cluster.close()

    def share(self, value: object) -> Handle:
        """Copy a value to every worker."""
        return _Shared(self.client, value)

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
        fruitless = 0
        while waiting:
            before = len(waiting)
            for position, result in self._round(function, items, sorted(waiting), handles):
                waiting.remove(position)
                yield position, result
            fruitless = fruitless + 1 if len(waiting) == before else 0
            if fruitless > _PATIENCE:
                raise WorkersLost(
                    f"{len(waiting)} of {len(items)} pieces of work were lost {fruitless} times, "
                    "with the workers that held their data. See the workers' logs."
                )

    def _round(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        positions: list[int],
        handles: list[_Remote],
    ) -> Iterator[tuple[int, Result]]:
        """Submit some items; yield what comes back, which is not all if shared data were lost."""
        for handle in handles:
            handle.renew()
        futures = _submit(self.client, function, items, positions, handles)
        place = {future.key: at for future, at in zip(futures, positions, strict=True)}
        done = as_completed(  # type: ignore[no-untyped-call]
            futures, loop=self.client.loop, with_results=True, raise_errors=False
        )
        del futures  # so that each result is released on the workers as soon as it is here
        for future, result in done:
            if future.status == "error":
                _raise(result[1])
            if future.status == "finished":
                yield place[future.key], result


class _Remote(Handle, ABC):
    """A value for all items or one for each, on the workers."""

    @abstractmethod
    def future(self, position: int) -> Any:
        """Return the future that stands for the value at a position."""

    @abstractmethod
    def renew(self) -> None:
        """Bring back what was lost, if anything."""


class _Shared(_Remote):
    def __init__(self, client: Client, value: object) -> None:
        self._client, self._value = client, value
        self._future = self._scatter()

    def _scatter(self) -> Any:
        for attempt in range(_PATIENCE):
            try:
                # In a list, because a list or dictionary itself would be taken apart.
                copies = self._client.scatter(  # type: ignore[no-untyped-call]
                    [self._value], broadcast=True, hash=False
                )
                return copies[0]
            except OSError as error:
                # A worker died while it was sent its copy; or there is none, and Dask has waited
                # half a minute for one to come.
                reason = error
                time.sleep(0.1 * 2**attempt)
        raise WorkersLost(
            f"No worker takes data ({reason}). Start workers (`dask worker ADDRESS`), or look into "
            "the logs of those that are there."
        ) from reason

    def future(self, position: int) -> Any:  # the same for all
        return self._future

    def renew(self) -> None:
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

    def renew(self) -> None:
        lost = [at for at, future in enumerate(self._futures) if future.cancelled()]
        if not lost:
            return
        for handle in self._handles:
            handle.renew()
        fresh = _submit(self._client, self._function, self._items, lost, self._handles)
        for at, future in zip(lost, fresh, strict=True):
            self._futures[at] = future


def _own(arguments: Sequence[Handle]) -> list[_Remote]:
    handles = [handle for handle in arguments if isinstance(handle, _Remote)]
    storage.own_handles(len(handles) == len(arguments), "DaskExecutor")
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


def _hush() -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


def _raise(error: BaseException) -> None:
    if isinstance(error, KilledWorker):
        raise WorkersLost(
            f"{error} The work probably needs more memory than a worker has: use smaller blocks, "
            "or workers with more memory."
        ) from error
    raise error

"""Where independent pieces of work run: in this process, or on the workers of a Dask cluster.

An executor applies a function to items.  What all of them need is shared once and stays where the
work is; what is too large to come back stays there as well.  Both are passed on as handles:

    source = executor.share(samples)                  # one value for all items
    blocks = executor.keep(compute, places, source)   # compute(place, samples), not brought back
    executor.map(use, places, blocks, source)         # use(place, block, samples), brought back
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from notsodeep import checks, extras
from notsodeep.threads import map_threads

if TYPE_CHECKING:
    from types import TracebackType

    from distributed import Client

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKER_TIMEOUT = 60.0
"""Seconds without any worker after which work on a cluster is given up."""


class Handle:
    """A value for all items, or one for each, that stays where the work is.

    Made by `Executor.share` and `Executor.keep`, and of use to the same executor only.  What it
    stands for is released with it.
    """


class Executor(ABC):
    """Applies functions to items; results do not depend on where.

    Examples
    --------
    >>> with open_executor() as executor:
    ...     offset = executor.share(100)
    ...     kept = executor.keep(pow, [1, 2, 3], executor.share(2))
    ...     list(executor.map(lambda item, square, base: square + base, [1, 2, 3], kept, offset))
    [101, 104, 109]
    """

    @abstractmethod
    def share(self, value: object) -> Handle:
        """Bring a value to where the work is, once; do not change it afterwards."""

    @abstractmethod
    def keep(
        self, function: Callable[..., object], items: Sequence[Any], *arguments: Handle
    ) -> Handle:
        """Apply a function to every item and leave the results where they are.

        The handle stands for the result of the item at the same position in later calls.
        """

    @abstractmethod
    def completed(
        self, function: Callable[..., Result], items: Sequence[Item], *arguments: Handle
    ) -> Iterator[tuple[int, Result]]:
        """Yield ``(position, function(item, *values))`` for every item, as they are done.

        `function` may be called more than once for an item if a worker is lost, so it must give
        the same result again.
        """

    def map(
        self, function: Callable[..., Result], items: Sequence[Item], *arguments: Handle
    ) -> Iterator[Result]:
        """Yield ``function(item, *values)`` for every item, in the order of the items."""
        early: dict[int, Result] = {}
        turn = 0
        for position, result in self.completed(function, items, *arguments):
            early[position] = result
            while turn in early:
                yield early.pop(turn)
                turn += 1

    @abstractmethod
    def close(self) -> None:
        """End what was started for this executor."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Values(Handle):
    """What `share` and `keep` return in process: the values themselves."""

    def __init__(self, of: Callable[[int], Any]) -> None:
        self.of = of


class InProcess(Executor):
    """Work in this process.

    Parameters
    ----------
    at_once : int, default 1
        Items worked on at the same time.  With one, the work on it may use all threads; with more,
        each item has one thread.

    Examples
    --------
    >>> with InProcess(at_once=2) as executor:
    ...     list(executor.map(abs, [-1, 2, -3]))
    [1, 2, 3]
    """

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = checks.positive_integer(at_once, "at_once", "InProcess")

    def share(self, value: object) -> Handle:
        """Return a handle of the value itself."""
        return _Values(lambda _: value)

    def keep(
        self, function: Callable[..., object], items: Sequence[Any], *arguments: Handle
    ) -> Handle:
        """Compute the results and hold them."""
        return _Values(list(self.map(function, items, *arguments)).__getitem__)

    def completed(
        self, function: Callable[..., Result], items: Sequence[Item], *arguments: Handle
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results in the order of the items."""
        handles = [handle for handle in arguments if isinstance(handle, _Values)]
        own_handles(len(handles) == len(arguments), "InProcess")

        def work(position: int) -> tuple[int, Result]:
            return position, function(items[position], *(h.of(position) for h in handles))

        if self._at_once > 1:
            yield from map_threads(work, range(len(items)), self._at_once)
        else:
            yield from map(work, range(len(items)))

    def close(self) -> None:
        """Do nothing: nothing was started."""


def open_executor(
    where: Client | str | None = None, *, worker_timeout: float = WORKER_TIMEOUT
) -> Executor:
    """Return an executor; use it as a context, so that what it started is ended.

    Parameters
    ----------
    where : None, "local", an address, or distributed.Client
        None works in this process, item after item on all threads.  "local" starts one worker
        process for each thread this process may use, which listen to this machine only.  An
        address such as ``tcp://host:8786`` connects to a scheduler that is there.  A client is
        used as it is, and stays open.
    worker_timeout : float, default 60
        Seconds without any worker after which the work fails with `WorkersLost`.  Choose more if
        workers come from a queue of jobs.

    Raises
    ------
    MissingPackage
        The package distributed is not installed.
    ClusterUnreachable
        No scheduler answers at the address.

    Examples
    --------
    >>> with open_executor() as executor:
    ...     list(executor.map(pow, [2, 3], executor.share(10)))
    [1024, 59049]
    """
    if where is None:
        return InProcess()
    extras.require("open_executor", "distributed")
    from notsodeep.cluster.dask_executor import DaskExecutor

    return DaskExecutor(where, worker_timeout)


def own_handles(own: bool, owner: str) -> None:
    """Require that handles come from the executor they are given to."""
    if not own:
        requirement = "be handles made by its own share() or keep()"
        raise checks.invalid("arguments", owner, requirement, "something else")

"""A progress bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Literal

from notsodeep import extras

Advance = Callable[[int, int | None], None]
"""Called as ``advance(done, total)``; `total` is None while it is not known."""


def _ignore(done: int, total: int | None) -> None:
    """Report nothing."""


@contextlib.contextmanager
def progress_bar(
    description: str, enabled: bool = True, unit: Literal["bytes", "items", "work"] = "items"
) -> Iterator[Advance]:
    """Show how far a long piece of work has come, on the standard error stream.

    Parameters
    ----------
    description : str
        What is being done.
    enabled : bool
        False shows nothing; neither does a stream that is not a terminal, or the package rich if it
        is not installed.
    unit : {"bytes", "items", "work"}
        What is counted.  Pieces of "work" may take minutes each: their sum is shown as a share, and
        the time left is estimated from all of them instead of the last half minute.

    Yields
    ------
    Advance
        To be called as ``advance(done, total)``.

    Examples
    --------
    >>> with progress_bar("squares", enabled=False) as advance:
    ...     for done in range(3):
    ...         advance(done + 1, 3)
    """
    if not enabled or not extras.is_installed("rich"):
        yield _ignore
        return
    # Loading rich takes longer than most things a bar is off for.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
    )
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ignore
        return
    counters = {"bytes": DownloadColumn, "items": MofNCompleteColumn, "work": TaskProgressColumn}
    columns = (TextColumn("{task.description}"), BarColumn(), counters[unit](), Remaining())
    period = math.inf if unit == "work" else 30.0
    with Progress(*columns, console=console, transient=True, speed_estimate_period=period) as bars:
        task = bars.add_task(description, total=None)

        def advance(done: int, total: int | None) -> None:
            bars.update(task, completed=done, total=total)

        yield advance

"""A progress bar on a terminal or in a notebook, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import html
import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from notsodeep import extras

Advance = Callable[[int, int | None], None]
"""Called as ``advance(done, total)``; `total` is None while it is not known."""


def _ignore(done: int, total: int | None) -> None:
    """Report nothing."""


@contextlib.contextmanager
def progress_bar(
    description: str, enabled: bool = True, unit: Literal["bytes", "items", "work"] = "items"
) -> Iterator[Advance]:
    """Show how far a long piece of work has come, on the standard error stream or in a notebook.

    Parameters
    ----------
    description : str
        What is being done.
    enabled : bool
        False shows nothing.  Neither does a stream that is no terminal; a terminal needs the
        package rich, a notebook nothing.
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
    if enabled and _in_notebook():
        with _notebook_bar(description) as advance:
            yield advance
        return
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

        yield lambda done, total: bars.update(task, completed=done, total=total)


def _in_notebook() -> bool:
    """Say whether this process is the kernel of a notebook, which IPython itself would know."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


@contextlib.contextmanager
def _notebook_bar(description: str) -> Iterator[Advance]:
    """Show a bar below the cell, which goes when the work is done.

    One output is replaced again and again, by HTML that needs no widgets and so no further package;
    at most five times a second, since every change is a message to the browser.
    """
    ipython: Any = importlib.import_module("IPython.display")  # untyped
    start = last = time.monotonic()
    handle: Any = ipython.display(ipython.HTML(_bar(description, 0, None, 0.0)), display_id=True)

    def advance(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.2 or done == total:
            last = now
            handle.update(ipython.HTML(_bar(description, done, total, now - start)))

    try:
        yield advance
    finally:
        handle.update(ipython.HTML(""))


def _bar(description: str, done: int, total: int | None, seconds: float) -> str:
    """Return the bar as HTML, with the time left once there is something to judge it by."""
    name = html.escape(description)
    if not total:
        return f"<div>{name} <progress></progress></div>"
    left = round(seconds * (total - done) / done) if done else None
    rest = "" if left is None else f", {left // 60}:{left % 60:02d} left"
    element = f"<progress value='{done}' max='{total}'></progress>"
    return f"<div>{name} {element} {done / total:.0%}{rest}</div>"

"""Runs of experiments in one JSON file, to which several processes may add, and pages of them."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from typing import Any

from notsodeep.errors import LockTimeout
from notsodeep.files.atomic_files import exclusive_lock
from notsodeep.papers.reproduction import Cell, cell_name


def missing(
    store: Path,
    stored: Callable[[], Container[str]],
    cells: list[Cell],
    seconds: float,
    wanted: dict[str, list[Any]],
) -> Iterator[Cell]:
    """Yield cells that are not stored and that no other process works on.

    Parameters
    ----------
    store : Path
        The file of the runs.
    stored : callable
        Reads the names of stored cells.
    cells : list of Cell
        What there is to run, in order.
    seconds : float
        No cell is begun after so many.
    wanted : dict of lists
        Only cells with one of these values each.
    """
    begin, known = time.monotonic(), stored()
    for cell in cells:
        name = cell_name(cell)
        if name in known or not all(cell.get(key) in values for key, values in wanted.items()):
            continue
        if time.monotonic() - begin > seconds:
            return
        try:
            # Held while the caller works on the cell.
            with exclusive_lock(store.with_name(f".{name}.lock"), timeout=0.0, passing=True):
                if name not in stored():
                    yield cell
        except LockTimeout:  # another process is at it
            continue


def writing(store: Path) -> AbstractContextManager[None]:
    """Keep other processes from changing the file between reading and writing it."""
    return exclusive_lock(store.with_name(f".{store.name}.lock"), passing=True)


def chosen_values(pairs: list[str]) -> dict[str, list[Any]]:
    """Turn ``KEY=VALUE`` and ``KEY=[VALUE, …]``, with values in JSON, into lists of values."""
    given = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    return {key: value if isinstance(value, list) else [value] for key, value in given.items()}


def printed(work: Callable[[], None]) -> str:
    """Return what a function prints."""
    with redirect_stdout(io.StringIO()) as text:
        work()
    return text.getvalue()


def filled(text: str, blocks: Mapping[str, Callable[[], None]]) -> str:
    """Put what functions print between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{printed(block)}\n{end}{rest.split(end)[1]}"
    return text

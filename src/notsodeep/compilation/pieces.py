"""Where the pieces of a compilation are kept while it runs: in a directory, or in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

TRAINED = "compile-trained"
"""What the directory of a compiled network with given weights is marked with."""


class Pieces(Protocol):
    """Records and arrays by name, each computed once; a `RunDirectory` is one."""

    def piece(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the record `name`, computing and keeping it if it is not there."""

    def arrays(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the arrays `name`, computing and keeping them if they are not there."""

    def has(self, name: str) -> bool:
        """Whether the record `name` is there."""

    def read(self, name: str) -> dict[str, Any]:
        """Return a record that is there."""

    def stored_arrays(self, name: str) -> Arrays:
        """Return arrays that are there."""

    def work_directory(self, name: str) -> Path | None:
        """Return a place for checkpoints of a piece in work, if there is one."""


class MemoryPieces:
    """Pieces that end with the process.

    Examples
    --------
    >>> pieces = MemoryPieces()
    >>> pieces.piece("answer", lambda: {"value": 42})
    {'value': 42}
    >>> pieces.piece("answer", lambda: {"value": 0})
    {'value': 42}
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[str, Any]] = {}
        self._arrays: dict[str, Arrays] = {}

    def piece(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the record `name`, computing and keeping it if it is not there."""
        if name not in self._records:
            self._records[name] = compute()
        return self._records[name]

    def arrays(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the arrays `name`, computing and keeping them if they are not there."""
        if name not in self._arrays:
            self._arrays[name] = compute()
        return self._arrays[name]

    def has(self, name: str) -> bool:
        """Whether the record `name` is there."""
        return name in self._records

    def read(self, name: str) -> dict[str, Any]:
        """Return a record that is there."""
        return self._records[name]

    def stored_arrays(self, name: str) -> Arrays:
        """Return arrays that are there."""
        return self._arrays[name]

    def work_directory(self, name: str) -> None:
        """Return None: what ends with the process needs no checkpoints."""

"""A directory in which a job keeps its results piece by piece, so that it can be resumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.errors import DataCorrupted, InvalidInput, LockTimeout, RunInUse
from notsodeep.execution import Manifest
from notsodeep.execution.atomic_files import atomic_write, make_directory, write_json
from notsodeep.execution.locks import exclusive_lock
from notsodeep.execution.stored_arrays import read_npz
from notsodeep.execution.versions import versions

_SETTINGS = "settings.json"
_PIECES = "pieces"


class RunDirectory:
    """Results of one job with one set of settings.

    Every piece (a JSON record, perhaps with arrays) is written atomically when it is done.  A job
    that is started again on the same directory computes only what is missing, so that it ends
    with the same numbers as one that was never stopped.

    Parameters
    ----------
    path : path
    kind : str
        What job it is, such as ``"compile"``.
    settings : Mapping
        Plain JSON values; a directory with other settings is refused.
    """

    def __init__(self, path: str | Path, kind: str, settings: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.kind = kind
        # Through JSON once, so that tuples compare equal to what is read back.
        self.settings: dict[str, Any] = json.loads(json.dumps(settings, allow_nan=False))

    @classmethod
    def stored(cls, path: str | Path, kind: str) -> RunDirectory:
        """Return a run that is on disk, to read; `stored_settings` says what may be wrong."""
        return cls(path, kind, stored_settings(path, kind))

    @contextlib.contextmanager
    def opened(self, *, force: bool = False) -> Iterator[None]:
        """Hold the directory for this process; check or write the settings.

        Parameters
        ----------
        force : bool
            Drop the results of other settings instead of refusing.

        Raises
        ------
        RunInUse
            Another process works in the directory.
        InvalidInput
            It holds results of other settings, or something else altogether.
        """
        lock = self.path / ".lock"
        try:
            with exclusive_lock(lock, timeout=0.0):
                self._check_settings(force)
                for left in self.path.rglob(".*.tmp"):  # by a process that was killed in writing
                    left.unlink(missing_ok=True)
                yield
        except LockTimeout as error:
            raise RunInUse(
                f"{self.path} is in use by another process. Wait for it to end, or choose another "
                "--out."
            ) from error

    def _check_settings(self, force: bool) -> None:
        stored = self._read_json(_SETTINGS)
        wanted = {"kind": self.kind, "settings": self.settings}
        if stored is None:
            foreign = [p.name for p in self.path.iterdir() if not p.name.startswith(".")]
            if foreign:
                raise InvalidInput(
                    f"{self.path} is not empty and holds no results of notsodeep (it has "
                    f"{foreign[0]}). Choose another --out."
                )
        elif {key: stored.get(key) for key in wanted} != wanted:
            if not force:
                raise InvalidInput(
                    f"{self.path} holds results of other settings ({self._difference(stored)}). "
                    "Choose another --out, or --force to replace them."
                )
            self._clear()
        elif force:
            self._clear()
        write_json(self.path / _SETTINGS, wanted)

    def _difference(self, stored: Mapping[str, Any]) -> str:
        if stored.get("kind") != self.kind:
            return f"a {stored.get('kind')} run"
        theirs = stored.get("settings")
        if not isinstance(theirs, dict):
            return "of another form"
        for key in sorted({*theirs, *self.settings}):
            if theirs.get(key) != self.settings.get(key):
                return f"{key} is {theirs.get(key)!r} there and {self.settings.get(key)!r} here"
        return "of another form"

    def _clear(self) -> None:
        for place in (self.path / _PIECES, self.path):
            for file in place.glob("*") if place.is_dir() else ():
                if file.is_file() and not file.name.startswith("."):
                    file.unlink()

    def piece(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the JSON record `name`, computing and storing it if it is not there."""
        stored = self._read_json(f"{_PIECES}/{name}.json")
        if stored is None:
            stored = compute()
            write_json(self.path / _PIECES / f"{name}.json", stored)
        return stored

    def arrays(
        self, name: str, compute: Callable[[], dict[str, NDArray[Any]]]
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays `name`, computing and storing them if they are not there."""
        path = self.path / _PIECES / f"{name}.npz"
        if not path.exists():
            values = compute()
            with atomic_write(path) as stream:
                np.savez(stream, allow_pickle=False, **values)
        return read_arrays(path)

    def has(self, name: str) -> bool:
        """Whether the record `name` is there."""
        return (self.path / _PIECES / f"{name}.json").exists()

    def read(self, name: str) -> dict[str, Any]:
        """Return a stored record."""
        stored = self._read_json(f"{_PIECES}/{name}.json")
        if stored is None:
            raise DataCorrupted(f"{self.path} has no piece {name}: the run is not finished.")
        return stored

    def stored_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Return stored arrays."""
        return read_arrays(self.path / _PIECES / f"{name}.npz")

    def work_directory(self, name: str) -> Path:
        """Return a place for checkpoints of a piece in work."""
        return make_directory(self.path / "checkpoints" / name)

    def finish(self, files: list[str]) -> None:
        """Write the manifest: versions, settings, and the SHA-256 of every result."""
        pieces = sorted(f"{_PIECES}/{p.name}" for p in (self.path / _PIECES).iterdir())
        facts = {"kind": self.kind, "settings": self.settings, "versions": versions()}
        Manifest.of_files(self.path, [*pieces, *files], f"{self.kind} run", facts).write(self.path)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            content = checks.strict_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DataCorrupted(
                f"{path} is not readable JSON ({error}). Remove it; the run computes it again."
            ) from error
        if not isinstance(content, dict):
            raise DataCorrupted(f"{path} does not hold a record. Remove it and run again.")
        return content


def stored_settings(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the settings of a run that is on disk.

    Raises
    ------
    InvalidInput
        There is no run of this kind.
    """
    place = Path(path) / _SETTINGS
    try:
        content = checks.strict_json(place.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} holds no {kind} run: {place.name} is not readable.") from error
    settings = content.get("settings") if isinstance(content, dict) else None
    if not isinstance(settings, dict) or content.get("kind") != kind:
        raise InvalidInput(f"{path} holds no {kind} run.")
    return settings


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read an npz file of a run, without objects."""
    return read_npz(path, "Remove it; the run computes it again.")

"""A directory in which a job keeps its results piece by piece, so that it can be resumed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from notsodeep._files import (
    canonical_json,
    lock,
    read_json,
    read_tensors,
    sha256_of_bytes,
    versions,
    write_json,
    write_tensors,
)
from notsodeep.errors import DataCorrupted, InvalidInput

SETTINGS = "settings.json"
_PROGRAM = "notsodeep"  # many programs have a settings.json; ours says whose it is
_PIECES = "pieces"
_REMEDY = "Remove it, and the run computes it again."


class Run:
    """Results of one job with one set of settings, on one set of data.

    Every piece is written atomically when it is done, with a checksum that is compared when it is
    read.  A job that is started again computes what is missing, and ends with the same numbers as
    one that was never stopped.  The run owns ``settings.json``, ``pieces`` and its `outputs`.

    Parameters
    ----------
    path : path
    kind : str
        What job it is, such as ``"compile"``.
    settings : Mapping
        Plain JSON values; a directory of other settings is rejected.
    inputs : Mapping of str to str
        SHA-256 of the data by name; a directory of results on other data is rejected.
    outputs : sequence of str
        Names of files that are made of the pieces, such as a report.
    free : sequence of str
        Settings on which no piece depends: they may change from one call to the next.
    """

    def __init__(
        self,
        path: str | Path,
        kind: str,
        settings: Mapping[str, Any],
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        free: Sequence[str] = (),
    ) -> None:
        self.path, self.kind = Path(path), kind
        # What is read back: lists in place of tuples.
        self.settings: dict[str, Any] = json.loads(canonical_json(settings))
        self.inputs = dict(inputs or {})
        self._outputs, self._free = tuple(outputs), tuple(free)

    @classmethod
    def stored(cls, path: str | Path, kind: str) -> Self:
        """Return a run that is on disk, to read its pieces."""
        record = _record(Path(path))
        if record is None or record["kind"] != kind:
            raise InvalidInput(f"path must be the directory of a {kind} run, got {path}.")
        return cls(
            path, kind, record["settings"], inputs=record["inputs"], free=record.get("free", ())
        )

    @contextlib.contextmanager
    def opened(self, *, force: bool = False) -> Iterator[None]:
        """Hold the directory for this process; compare settings and data, or replace the results.

        Parameters
        ----------
        force : bool
            Remove the results of another run instead of rejecting them.
        """
        self._require_ours()  # before a lock is left in a directory of somebody else
        with lock(self.path / ".lock"):
            self._require_ours()
            record = _record(self.path)
            if record is not None and (difference := self._difference(record)) and not force:
                if any((self.path / _PIECES).glob("*.*")):
                    raise InvalidInput(
                        f"{self.path} must hold results of this run, got others: {difference}. "
                        "Choose another directory, or force to replace them."
                    )
                record = None  # nothing was computed yet
            if record is None or force:
                shutil.rmtree(self.path / _PIECES, ignore_errors=True)
                for name in self._outputs:
                    (self.path / name).unlink(missing_ok=True)
            if record is None or force or record["settings"] != self.settings:
                content = {"settings": self.settings, "inputs": self.inputs, "kind": self.kind}
                about = {"program": _PROGRAM, "versions": versions(), "free": self._free}
                write_json(self.path / SETTINGS, {**content, **about})
            for abandoned in self.path.glob(f"{_PIECES}/.*.tmp"):  # of writers that were killed
                abandoned.unlink(missing_ok=True)
            yield

    def _require_ours(self) -> None:
        if not self.path.is_dir() or _record(self.path) is not None:
            return
        foreign = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
        if foreign:
            raise InvalidInput(
                f"{self.path} must be empty or hold results of notsodeep, got {foreign[0]}. "
                "Choose another directory."
            )

    def _difference(self, record: Mapping[str, Any]) -> str:
        if record["kind"] != self.kind:
            return f"a {record['kind']} run"
        for what, mine in (("settings", self.settings), ("inputs", self.inputs)):
            theirs = record[what]
            for key in sorted({*mine, *theirs} - {*self._free}):
                if mine.get(key) != theirs.get(key):
                    values = f"{key} is {theirs.get(key)!r} there and {mine.get(key)!r} here"
                    return values if what == "settings" else f"other data ({values})"
        return ""

    def require_same_inputs(self, inputs: Mapping[str, str]) -> None:
        """Require that the data are still those that the run was opened with."""
        for name in {*inputs, *self.inputs}:
            if inputs.get(name) != self.inputs.get(name):
                raise DataCorrupted(
                    f"{name} must not change during the run. Start over with force, and the data "
                    "as they are now."
                )

    def has(self, name: str) -> bool:
        """Whether a piece is there."""
        return any(self._path(name, ending).exists() for ending in ("json", "safetensors"))

    def piece(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the JSON record `name`, computing and storing it if it is not there."""
        path = self._path(name, "json")
        if not path.exists():
            content = compute()
            write_json(path, {"content": content, "sha256": self._digest(name, content)})
        return self.read(name)

    def arrays(
        self, name: str, compute: Callable[[], Mapping[str, NDArray[Any]]]
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays `name`, computing and storing them if they are not there."""
        path = self._path(name, "safetensors")
        if not path.exists():
            write_tensors(path, compute(), self._digest(name))
        return self.read_arrays(name)

    def read(self, name: str) -> dict[str, Any]:
        """Return a stored record."""
        path = self._stored_path(name, "json")
        stored = read_json(path)
        content = stored.get("content") if isinstance(stored, dict) else None
        if not isinstance(content, dict) or stored.get("sha256") != self._digest(name, content):
            raise DataCorrupted(f"{path} must be what this run has written. {_REMEDY}")
        return content

    def read_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Return stored arrays."""
        path = self._stored_path(name, "safetensors")
        arrays, digest = read_tensors(path)
        if digest != self._digest(name):
            raise DataCorrupted(f"{path} must be what this run has written. {_REMEDY}")
        return arrays

    def checkpoint(self, name: str) -> Path:
        """Return the path of a checkpoint of a piece in work."""
        (self.path / _PIECES).mkdir(exist_ok=True)
        return self._path(name, "checkpoint")

    def _path(self, name: str, ending: str) -> Path:
        return self.path / _PIECES / f"{name}.{ending}"

    def _stored_path(self, name: str, ending: str) -> Path:
        path = self._path(name, ending)
        if not path.exists():
            raise DataCorrupted(f"{self.path} must have a piece {name}: the run is not finished.")
        return path

    def _digest(self, name: str, content: Any = None) -> str:
        """Return a checksum that also ties a piece to its name and its run."""
        fixed = {key: value for key, value in self.settings.items() if key not in self._free}
        everything = [self.kind, fixed, self.inputs, name, content]
        return sha256_of_bytes(canonical_json(everything).encode())


def kind_of(path: str | Path) -> str | None:
    """Return what job a directory holds the results of; None if it is not a run of ours."""
    record = _record(Path(path))
    return None if record is None else str(record["kind"])


def _record(path: Path) -> dict[str, Any] | None:
    """Read the settings of a run; None if there are none that this program has written."""
    try:
        content = read_json(path / SETTINGS)
    except (OSError, DataCorrupted):
        return None
    match content:
        case {"program": "notsodeep", "kind": str(), "settings": dict(), "inputs": dict()}:
            return dict(content)
    return None

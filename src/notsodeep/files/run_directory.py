"""A directory in which a job keeps its results piece by piece, so that it can be resumed."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.errors import DataCorrupted, InvalidInput, LockTimeout, RunInUse
from notsodeep.files import Manifest, manifests
from notsodeep.files.atomic_files import (
    atomic_write,
    exclusive_lock,
    make_directory,
    remove_abandoned,
    write_json,
)
from notsodeep.files.manifests import is_inside, versions
from notsodeep.files.stored_arrays import read_npz
from notsodeep.files.stored_states import remove_state

FILE_NAME = "settings.json"
_PROGRAM = "notsodeep"  # many programs have a settings.json; ours says whose it is


@dataclass(frozen=True)
class RunRecord:
    """What a directory of results holds.

    Attributes
    ----------
    kind : str
        What job it is, such as ``"compile"``.
    settings : Mapping[str, Any]
        Plain JSON values.
    inputs : Mapping[str, str]
        SHA-256 of the user's files that the results were computed from, by name.
    files : tuple of str
        Names, in the directory, of the files that the run writes and of the directories of its
        checkpoints.  Each is recorded before it is written: nothing else is ever removed.
    """

    kind: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    files: tuple[str, ...] = ()

    def write(self, directory: Path) -> None:
        """Write ``settings.json``."""
        write_json(directory / FILE_NAME, {"program": _PROGRAM, **vars(self)})

    @classmethod
    def read(cls, directory: Path) -> RunRecord | None:
        """Read ``settings.json``; None if there is none, or none that this program has written."""
        try:
            content = checks.strict_json((directory / FILE_NAME).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        if not isinstance(content, dict) or content.pop("program", None) != _PROGRAM:
            return None
        files = content.get("files")
        if not isinstance(files, list) or not all(map(is_inside, files)):
            return None
        try:
            record = cls(**{**content, "files": tuple(files)})
        except TypeError:
            return None
        plain = isinstance(record.settings, dict) and isinstance(record.inputs, dict)
        return record if plain and isinstance(record.kind, str) else None

    def difference(self, wanted: RunRecord, apart_from: Iterable[str] = ()) -> str:
        """Say how the run that is wanted differs from this one; empty if it does not.

        Settings named in `apart_from` may differ.
        """
        if self.kind != wanted.kind:
            return f"a {self.kind} run"
        for key in sorted({*self.settings, *wanted.settings} - {*apart_from}):
            theirs, ours = self.settings.get(key), wanted.settings.get(key)
            if theirs != ours:
                return f"{key} is {theirs!r} there and {ours!r} here"
        for name in sorted({*self.inputs, *wanted.inputs}):
            theirs, ours = (_brief(record.inputs.get(name)) for record in (self, wanted))
            if theirs != ours:
                return f"other data: {name} has SHA-256 {theirs} there and {ours} here"
        return ""


def _brief(digest: str | None) -> str:
    return "none" if digest is None else f"{digest[:12]}…"


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read back after `content` was written as JSON: lists in place of tuples."""
    read_back: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
    return read_back


def stored_settings(path: str | Path, kind: str) -> dict[str, Any]:
    """Return the settings of a run that is on disk.

    Raises
    ------
    InvalidInput
        There is no run of this kind.
    """
    place = Path(path) / FILE_NAME
    try:
        content = checks.strict_json(place.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} holds no {kind} run: {place.name} is not readable.") from error
    settings = content.get("settings") if isinstance(content, dict) else None
    if not isinstance(settings, dict) or content.get("kind") != kind:
        raise InvalidInput(f"{path} holds no {kind} run.")
    return settings


_PIECES = "pieces"
_CHECKPOINTS = "checkpoints"


class RunDirectory:
    """Results of one job with one set of settings, on one set of data.

    Every piece (a JSON record, perhaps with arrays) is written atomically when it is done.  A job
    that is started again on the same directory computes only what is missing, so that it ends
    with the same numbers as one that was never stopped.  Files that the job has not written are
    neither read nor removed.

    Parameters
    ----------
    path : path
    kind : str
        What job it is, such as ``"compile"``.
    settings : Mapping
        Plain JSON values; a directory with other settings is rejected.
    inputs : Mapping of str to str, optional
        SHA-256 of the user's files that the job reads; a directory of results on others is
        rejected.
    pages : sequence of str
        Names of files that are made of the results when the job is done, such as a report.
    judged_by : Mapping of str to sequence of str, optional
        Settings that may change from one call to the next, and the pieces that depend on them:
        these are computed again, all others are kept.
    """

    def __init__(
        self,
        path: str | Path,
        kind: str,
        settings: Mapping[str, Any],
        *,
        inputs: Mapping[str, str] | None = None,
        pages: Sequence[str] = (),
        judged_by: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.path = Path(path)
        self._pages = tuple(pages)
        self._judged_by = dict(judged_by or {})
        self._record = RunRecord(kind, plain(settings), dict(inputs or {}))

    @classmethod
    def stored(cls, path: str | Path, kind: str) -> RunDirectory:
        """Return a run that is on disk, to read; `stored_settings` says what may be wrong."""
        run = cls(path, kind, stored_settings(path, kind))
        record = RunRecord.read(run.path)
        if record is not None:  # with the files that it has written
            run._record = record
        return run

    @property
    def kind(self) -> str:
        """What job it is."""
        return self._record.kind

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain JSON values."""
        return self._record.settings

    @contextlib.contextmanager
    def opened(self, *, force: bool = False) -> Iterator[None]:
        """Hold the directory for this process; check or write the settings.

        Parameters
        ----------
        force : bool
            Drop the results of another run instead of rejecting them.

        Raises
        ------
        RunInUse
            Another process works in the directory.
        InvalidInput
            It holds results of other settings or on other data, or something else altogether.
        """
        self._require_own()  # before a lock is left in a directory that is none of ours
        try:
            with exclusive_lock(self.path / ".lock", timeout=0.0):
                self._require_own()
                self._take_over(RunRecord.read(self.path), force)
                yield
        except LockTimeout as error:
            raise RunInUse(
                f"{self.path} is in use by another process. Wait for it to end, or choose another "
                "--out."
            ) from error

    def require_same_inputs(self, inputs: Mapping[str, str]) -> None:
        """Require that the files of the user are still those that the run was opened with.

        Raises
        ------
        DataCorrupted
            One of them has changed in the meantime.
        """
        changed = self._record.difference(replace(self._record, inputs=inputs))
        if changed:
            raise DataCorrupted(
                f"The data changed during the run ({changed}). Use --force to start over with the "
                "data as they are now."
            )

    def _require_own(self) -> None:
        if not self.path.is_dir() or RunRecord.read(self.path) is not None:
            return
        foreign = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
        if foreign:
            raise InvalidInput(
                f"{self.path} is not empty and holds no results of notsodeep that can be resumed "
                f"(it has {foreign[0]}). Choose another --out."
            )

    def _take_over(self, stored: RunRecord | None, force: bool) -> None:
        """Resume a stored run, or begin one."""
        if stored is not None:
            changed = [name for name in self._judged_by if self._changes(stored, name)]
            difference = stored.difference(self._record, changed)
            # A run that failed before it had any result has nothing that could be mixed up.
            if force or (difference and not self._has_results(stored)):
                self._clear(stored)
                stored = None
            elif difference:
                raise InvalidInput(
                    f"{self.path} holds results of another run ({difference}). Choose another "
                    "--out, or --force to replace them."
                )
            else:
                for name in changed:
                    for piece in self._judged_by[name]:
                        (self.path / _PIECES / f"{piece}.json").unlink(missing_ok=True)
        files = () if stored is None else stored.files
        self._record = replace(self._record, files=tuple(dict.fromkeys([*files, *self._pages])))
        self._record.write(self.path)
        # Pages are written without the lock, perhaps at this moment.
        ours = {Path(name).name for name in {FILE_NAME, *files} - {*self._pages}}
        for place in (self.path, self.path / _PIECES):
            remove_abandoned(place, "|".join(map(re.escape, ours)))

    def _changes(self, stored: RunRecord, name: str) -> bool:
        return stored.settings.get(name) != self.settings.get(name)

    def _has_results(self, stored: RunRecord) -> bool:
        """Say whether there is a file of the run; a place for checkpoints may still be empty."""
        places = (self.path / name for name in stored.files)
        return any(any(p.iterdir()) if p.is_dir() else p.exists() for p in places)

    def _clear(self, stored: RunRecord) -> None:
        """Remove what a run has written, the manifest first; whatever else is there stays."""
        for name in reversed(stored.files):
            path = self.path / name
            if path.is_dir():
                remove_state(path)
            else:
                path.unlink(missing_ok=True)
        for name in (_PIECES, _CHECKPOINTS):
            with contextlib.suppress(OSError):  # it is not there, or holds something else
                (self.path / name).rmdir()

    def file(self, name: str) -> Path:
        """Return the path of a file, or of a directory of checkpoints, that the run writes.

        Raises
        ------
        InvalidInput
            Something is there that the run has not written.
        """
        path = self.path / name
        if name not in self._record.files:
            if path.is_file():
                raise InvalidInput(
                    f"{path} is there, but this run has not written it. Move it elsewhere."
                )
            self._record = replace(self._record, files=(*self._record.files, name))
            self._record.write(self.path)
        return path

    def piece(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the JSON record `name`, computing and storing it if it is not there."""
        path = self.file(f"{_PIECES}/{name}.json")
        stored = _read_json(path)
        if stored is None:
            stored = compute()
            write_json(path, stored)
        return stored

    def arrays(
        self, name: str, compute: Callable[[], dict[str, NDArray[Any]]]
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays `name`, computing and storing them if they are not there."""
        path = self.file(f"{_PIECES}/{name}.npz")
        if not path.exists():
            values = compute()
            with atomic_write(path) as stream:
                np.savez(stream, allow_pickle=False, **values)
        return read_arrays(path)

    def has(self, name: str) -> bool:
        """Whether the record `name` is there."""
        file = f"{_PIECES}/{name}.json"
        return file in self._record.files and (self.path / file).exists()

    def read(self, name: str) -> dict[str, Any]:
        """Return a stored record."""
        stored = _read_json(self.path / _PIECES / f"{name}.json")
        if stored is None:
            raise DataCorrupted(f"{self.path} has no piece {name}: the run is not finished.")
        return stored

    def stored_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Return stored arrays."""
        return read_arrays(self.path / _PIECES / f"{name}.npz")

    def work_directory(self, name: str) -> Path:
        """Return a place for checkpoints of a piece in work."""
        return make_directory(self.file(f"{_CHECKPOINTS}/{name}"))

    def finish(self, files: list[str]) -> None:
        """Write the manifest: versions, settings, and the SHA-256 of every result."""
        self.file(manifests.FILE_NAME)
        written = (name for name in self._record.files if name.startswith(f"{_PIECES}/"))
        pieces = [name for name in written if (self.path / name).exists()]
        facts = {"kind": self.kind, "settings": self.settings, "versions": versions()}
        Manifest.of_files(self.path, [*pieces, *files], f"{self.kind} run", facts).write(self.path)


def _read_json(path: Path) -> dict[str, Any] | None:
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


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read an npz file of a run, without objects."""
    return read_npz(path, "Remove it; the run computes it again.")

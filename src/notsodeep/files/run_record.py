"""``settings.json`` of a run: what it is a run of, and which files belong to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notsodeep import checks
from notsodeep.errors import InvalidInput
from notsodeep.files.atomic_files import write_json
from notsodeep.files.manifests import is_inside

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

    def difference(self, wanted: RunRecord) -> str:
        """Say how the run that is wanted differs from this one; empty if it does not."""
        if self.kind != wanted.kind:
            return f"a {self.kind} run"
        for key in sorted({*self.settings, *wanted.settings}):
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

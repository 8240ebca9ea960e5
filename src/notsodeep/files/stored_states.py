"""The state of a long computation on disk: complete or absent, whatever kills the writer.

A directory holds one ``state-….safetensors`` and a manifest with its SHA-256 and the JSON part of
the state.  A new state gets a new name; the manifest, replaced atomically, is the switch from the
old one to it, and only then the old one is removed.  Whatever else is in the directory stays: a
state is known by the manifest that names it or, if its writer was killed before the manifest was
written, by its name, which is the beginning of its own SHA-256.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notsodeep import checks
from notsodeep.errors import DataCorrupted
from notsodeep.files.atomic_files import atomic_write, exclusive_lock, remove_abandoned
from notsodeep.files.manifests import FILE_NAME, Manifest, sha256_of_bytes, sha256_of_file

_NAME = r"state-[0-9a-f]{16}\.safetensors"
_LOCK = "lock"


@dataclass(frozen=True)
class StoredState:
    """What `read_state` found.

    Attributes
    ----------
    path : Path
        The file with the arrays.
    facts : Mapping[str, Any]
        Everything else, as plain JSON values.
    """

    path: Path
    facts: Mapping[str, Any]


@contextlib.contextmanager
def state_lock(directory: Path) -> Iterator[None]:
    """Keep other writers out of `directory`; they get `LockTimeout`, which names the first."""
    with exclusive_lock(directory / _LOCK, timeout=0.0):
        yield


def write_state(directory: Path, kind: str, content: bytes, facts: Mapping[str, Any]) -> None:
    """Make this the state that `read_state` finds in `directory`, which is created if need be.

    The caller holds `state_lock`.

    Raises
    ------
    NotWritable
        The directory cannot be written or the disk is full; the older state is still there.
    """
    known = _recorded(directory)
    digest = sha256_of_bytes(content)
    name = _name(digest)
    with atomic_write(directory / name) as stream:
        stream.write(content)
    Manifest(kind, {name: digest}, facts).write(directory)
    for path in _states(directory, {**known, name: digest}):
        if path.name != name:
            path.unlink(missing_ok=True)
    remove_abandoned(directory, f"{_NAME}|{re.escape(FILE_NAME)}")


def remove_state(directory: Path) -> None:
    """Remove what `write_state` has written to `directory`, and the directory if that was all.

    Nobody else may be writing there.
    """
    for path in _states(directory, _recorded(directory)):
        path.unlink(missing_ok=True)
    (directory / FILE_NAME).unlink(missing_ok=True)
    remove_abandoned(directory, f"{_NAME}|{re.escape(FILE_NAME)}")
    lock = directory / _LOCK
    if lock.is_file() and not lock.stat().st_size:
        lock.unlink()
    with contextlib.suppress(OSError):  # it holds something else
        directory.rmdir()


def _name(digest: str) -> str:
    return f"state-{digest[:16]}.safetensors"


def _recorded(directory: Path) -> Mapping[str, str]:
    manifest = Manifest.read(directory)
    return {} if manifest is None else manifest.sha256


def _states(directory: Path, recorded: Mapping[str, str]) -> list[Path]:
    """Return the states in `directory`, also those that are not recorded with their SHA-256."""
    found = []
    for path in directory.glob("state-*.safetensors"):
        if re.fullmatch(_NAME, path.name) and path.is_file():
            digest = recorded.get(path.name) or sha256_of_file(path)
            if path.name == _name(digest):
                found.append(path)
    return found


def read_state(directory: Path, kind: str, owner: str) -> StoredState | None:
    """Find the state in `directory`; None if there is none.

    Raises
    ------
    DataCorrupted
        The manifest or the file is not what was written.
    InvalidInput
        The directory holds something else.
    """
    manifest = Manifest.read(directory)
    if manifest is None:
        return None
    _own_checkpoint(manifest.kind, kind, directory, owner)
    problems = manifest.problems(directory)
    if len(manifest.sha256) != 1:
        problems = (*problems, f"its manifest names {len(manifest.sha256)} files instead of one")
    _intact_checkpoint(problems, directory)
    (name,) = manifest.sha256
    return StoredState(directory / name, manifest.facts)


def _own_checkpoint(kind: str, expected: str, directory: Path, owner: str) -> None:
    """Require that a directory with a manifest holds a checkpoint of the right kind."""
    if kind != expected:
        got = f"{directory}: {kind}"
        raise checks.invalid(
            "checkpoint", owner, f"be a {expected}", got, "Choose another directory."
        )


def _intact_checkpoint(problems: tuple[str, ...], directory: Path) -> None:
    """Require that every file of a checkpoint is what was written."""
    if problems:
        raise DataCorrupted(
            f"The checkpoint in {directory} is damaged: {'; '.join(problems)}. "
            "Remove its manifest.json and start again."
        )

"""The state of a long computation on disk: complete or absent, whatever kills the writer.

A directory holds one ``state-….safetensors`` and a manifest with its SHA-256 and the JSON part of
the state.  A new state gets a new name; the manifest, replaced atomically, is the switch from the
old one to it, and only then the old one is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notsodeep.checks import storage
from notsodeep.execution.atomic_files import atomic_write
from notsodeep.execution.digests import sha256_of_bytes
from notsodeep.execution.manifests import Manifest


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


def write_state(directory: Path, kind: str, content: bytes, facts: Mapping[str, Any]) -> None:
    """Make this the state that `read_state` finds in `directory`, which is created if need be.

    The caller holds a lock on the directory.

    Raises
    ------
    NotWritable
        The directory cannot be written or the disk is full; the older state is still there.
    """
    digest = sha256_of_bytes(content)
    name = f"state-{digest[:16]}.safetensors"
    with atomic_write(directory / name) as stream:
        stream.write(content)
    Manifest(kind, {name: digest}, facts).write(directory)
    # Older states, and what a killed writer left behind.
    for path in (*directory.glob("state-*.safetensors"), *directory.glob(".*.tmp")):
        if path.name != name:
            path.unlink(missing_ok=True)


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
    storage.own_checkpoint(manifest.kind, kind, directory, owner)
    problems = manifest.problems(directory)
    if len(manifest.sha256) != 1:
        problems = (*problems, f"its manifest names {len(manifest.sha256)} files instead of one")
    storage.intact_checkpoint(problems, directory)
    (name,) = manifest.sha256
    return StoredState(directory / name, manifest.facts)

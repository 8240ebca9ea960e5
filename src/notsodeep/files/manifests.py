"""What stored files are known by: SHA-256 sums, and manifests with parameters and versions.

A manifest is written last.  A directory without one is unfinished work, however many files it
holds, so something half-written never looks complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import __version__, checks
from notsodeep.errors import DataCorrupted
from notsodeep.files.atomic_files import write_json


def sha256_of_bytes(content: bytes) -> str:
    """Hexadecimal SHA-256 of a byte string.

    Examples
    --------
    >>> sha256_of_bytes(b"notsodeep")[:12]
    '658102ea796a'
    """
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     sha256_of_file(Path(file.name)) == sha256_of_bytes(b"")
    True
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_array(array: NDArray[Any]) -> str:
    """Hexadecimal SHA-256 of an array's values in C order, ``array.tobytes()``.

    The dtype and the shape are not part of the digest, so anyone can check it with standard
    tools; compare them beside it.

    Examples
    --------
    >>> sha256_of_array(np.arange(3)) == sha256_of_bytes(np.arange(3).tobytes())
    True
    """
    contiguous = np.ascontiguousarray(array)
    return hashlib.sha256(contiguous.reshape(-1).view(np.uint8).data).hexdigest()


FILE_NAME = "manifest.json"
_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """The files of a directory and the facts they were made from.

    Attributes
    ----------
    kind : str
        What the directory holds, such as ``"image set"``.
    sha256 : Mapping[str, str]
        Digest of each file, by its name in the directory.
    facts : Mapping[str, Any]
        Where the content comes from: plain JSON values.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = Path(place, "a.txt").write_text("one")
    ...     Manifest.of_files(Path(place), ["a.txt"], "notes", {"seed": 0}).write(Path(place))
    ...     _ = Path(place, "a.txt").write_text("two")
    ...     manifest = Manifest.read(Path(place))
    ...     manifest.facts, len(manifest.problems(Path(place)))
    ({'seed': 0}, 1)
    """

    kind: str
    sha256: Mapping[str, str]
    facts: Mapping[str, Any]

    @classmethod
    def of_files(
        cls, directory: Path, names: Iterable[str], kind: str, facts: Mapping[str, Any]
    ) -> Manifest:
        """Describe files that are in `directory` now."""
        digests = {name: sha256_of_file(directory / name) for name in sorted(names)}
        return cls(kind, digests, dict(facts))

    def write(self, directory: Path) -> None:
        """Write ``manifest.json``, the mark that the directory is complete."""
        content = {
            "version": _VERSION,
            "kind": self.kind,
            "sha256": dict(self.sha256),
            "facts": dict(self.facts),
        }
        write_json(directory / FILE_NAME, content)

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """Read the manifest of `directory`; None if it has none.

        Raises
        ------
        DataCorrupted
            The file is there, but is not a manifest.
        """
        path = directory / FILE_NAME
        try:
            content = checks.strict_json(path.read_bytes())
            if content["version"] != _VERSION:
                raise DataCorrupted(
                    f"{path} has version {content['version']}; this release reads {_VERSION}."
                )
            return cls(
                str(content["kind"]), _inside(dict(content["sha256"])), dict(content["facts"])
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DataCorrupted(
                f"{path} is not a readable manifest ({error}). If it is a damaged one of "
                "notsodeep's, remove it and make what it describes again; if it is something "
                "else, choose another directory."
            ) from error

    def problems(self, directory: Path) -> tuple[str, ...]:
        """Say for each file that is missing or changed what is wrong with it; () if nothing."""
        found = []
        for name, expected in self.sha256.items():
            path = directory / name
            if not path.is_file():
                found.append(f"{path} is missing")
            elif (got := sha256_of_file(path)) != expected:
                found.append(f"{path} has SHA-256 {got[:12]}…, expected {expected[:12]}…")
        return tuple(found)


def is_inside(name: object) -> bool:
    """Whether a name is that of a file in or below a directory, and of no other one.

    Examples
    --------
    >>> [is_inside(name) for name in ("pieces/a.json", "../a.json", "/etc/passwd", "", 5)]
    [True, False, False, False, False]
    """
    if not isinstance(name, str) or not name:
        return False
    place = PurePosixPath(name)
    return not place.is_absolute() and ".." not in place.parts


def _inside(digests: dict[str, str]) -> dict[str, str]:
    """Require names of files in or below the directory, and digests that are text."""
    for name, digest in digests.items():
        if not is_inside(name) or not isinstance(digest, str):
            raise ValueError(f"the entry {name!r} is not a file of the directory with its SHA-256")
    return digests


_PACKAGES = ("numpy", "scipy", "numba", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of those that compute for it."""
    found = {"notsodeep": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # torch is an extra
            found[name] = importlib.metadata.version(name)
    return found

"""Files that are whole or absent: atomic writes, locks, digests, and arrays with a checksum.

A reader never sees half a file, whatever kills the writer: bytes go to a temporary file in the same
directory and take the final name by `os.replace`.  The operating system holds locks and drops them
when a process ends, so none goes stale.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import uuid
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from notsodeep import __version__
from notsodeep.errors import DataCorrupted, RunInUse

_ENTRY = "notsodeep"  # of the metadata of safetensors files
_FORMAT = 1
_PACKAGES = ("numpy", "scipy", "numba", "torch")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing so that it appears only when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two writers never share a temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name != "nt":  # the rename survives a power cut, too
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON, atomically; NaN and infinities are rejected."""
    text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False)
    with atomic_write(path) as stream:
        stream.write(text.encode() + b"\n")


def read_json(path: Path) -> Any:
    """Read JSON, without NaN and infinities."""

    def reject(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(path.read_bytes(), parse_constant=reject)
    except (ValueError, RecursionError) as error:
        raise DataCorrupted(f"{path} must be readable JSON ({error}).") from error


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write one array in NumPy's format, atomically, without objects."""
    with atomic_write(path) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


@contextlib.contextmanager
def lock(path: Path, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` during the block, after at most `timeout` seconds of waiting."""
    from filelock import FileLock, Timeout  # not needed for kernels in memory

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Not the mere existence of a file, which would outlive its process.
        held = FileLock(path, timeout=timeout, thread_local=False, fallback_to_soft=False).acquire()
    except Timeout as error:
        raise RunInUse(
            f"{path.parent} is in use by another process. Wait for it to end, or choose another "
            "directory."
        ) from error
    with held:
        yield


def sha256_of_bytes(content: bytes) -> str:
    """Hexadecimal SHA-256 of a byte string."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_array(array: NDArray[Any]) -> str:
    """Hexadecimal SHA-256 of an array's values in C order; dtype and shape are not part of it."""
    contiguous = np.ascontiguousarray(array)
    return hashlib.sha256(contiguous.reshape(-1).view(np.uint8).data).hexdigest()


def canonical_json(content: Any) -> str:
    """Return the JSON text that equal content has in common."""
    return json.dumps(content, sort_keys=True, allow_nan=False)


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    found = {"notsodeep": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], content: Any) -> None:
    """Write arrays and JSON content to one safetensors file, with a SHA-256 over both."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    entry = {"content": content, "format": _FORMAT, "sha256": _digest(arrays, content)}
    with atomic_write(path) as stream:
        stream.write(save(arrays, {_ENTRY: canonical_json(entry)}))


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    """Read the arrays and the content that `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            entry = json.loads((file.metadata() or {})[_ENTRY])
        content, digest = entry["content"], entry["sha256"]
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupted(f"{path} must be a file of notsodeep ({error}).") from error
    if entry.get("format") != _FORMAT:
        raise DataCorrupted(f"{path} must have format {_FORMAT}, got {entry.get('format')}.")
    if _digest(arrays, content) != digest:
        raise DataCorrupted(f"{path} must have SHA-256 {digest}: it has changed since.")
    return arrays, content


def _digest(arrays: Mapping[str, NDArray[Any]], content: Any) -> str:
    digest = hashlib.sha256(canonical_json(content).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f";{name} {array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

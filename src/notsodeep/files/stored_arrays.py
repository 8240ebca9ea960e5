"""Arrays in files, read with suspicion: .npy, .npz and safetensors.

Nothing is unpickled, nothing is unpacked to disk, and nothing is allocated on the word of a header
alone: the size that it states must be the size of what follows, and must fit into memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.errors import DataCorrupted, NotSoDeepError
from notsodeep.files.atomic_files import atomic_write

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npy(path: Path) -> NDArray[Any]:
    """Read one array.

    Raises
    ------
    DataCorrupted
        The file is damaged, holds Python objects or is something else.
    NotEnoughMemory
        Its content does not fit into memory.
    """
    with _named_damage(path, ".npy"), path.open("rb") as stream:
        size = path.stat().st_size
        checks.unpacked_fits(size, path)
        return _read(stream, size)


def read_npz(path: Path, remedy: str = "") -> dict[str, NDArray[Any]]:
    """Read all arrays of an archive, by their names.

    Parameters
    ----------
    path : Path
    remedy : str
        Sentence that ends the message of a failure.

    Raises
    ------
    DataCorrupted
        The file is damaged, holds Python objects, one name twice, or is something else.
    NotEnoughMemory
        Its content does not fit into memory.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with _named_damage(path, ".npz", remedy), zipfile.ZipFile(path) as archive:
        # Of a member, no more is ever unpacked than the size stated here.
        checks.unpacked_fits(sum(member.file_size for member in archive.infolist()), path)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"it holds {name} twice")
            with archive.open(member) as stream:
                arrays[name] = _read(stream, member.file_size)
    return arrays


def _read(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Read the array in a stream of `size` bytes."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"format version {version}")
    shape, _, dtype = _HEADERS[version](stream)
    stated, found = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if not dtype.hasobject and stated != found:
        raise ValueError(f"its header states {stated} bytes of data, and {found} follow")
    stream.seek(0)
    return np.asarray(npy.read_array(stream, allow_pickle=False))


@contextlib.contextmanager
def _named_damage(path: Path, kind: str, remedy: str = "") -> Iterator[None]:
    """Turn whatever the parsers of damaged bytes raise into `DataCorrupted`."""
    try:
        yield
    except NotSoDeepError:
        raise
    except Exception as error:
        message = f"{path} is not a readable {kind} file ({error})."
        raise DataCorrupted(f"{message} {remedy}" if remedy else message) from error


ENTRY = "notsodeep"
"""Of the metadata."""

VERSION = 1
"""Of the format."""


def write_network_file(
    path: Path, arrays: Mapping[str, NDArray[Any]], content: Mapping[str, Any]
) -> None:
    """Write arrays and JSON content, with a SHA-256 over both, atomically."""
    from safetensors.numpy import save

    digest = sha256_of_arrays(arrays, canonical_json(content))
    # One entry only: safetensors writes several in no fixed order, and equal networks would then
    # not make equal files.
    entry = canonical_json({"version": VERSION, "sha256": digest, **content})
    with atomic_write(path) as stream:
        stream.write(save(dict(arrays), {ENTRY: entry}))


def canonical_json(content: Mapping[str, Any]) -> str:
    """Return the JSON text that equal content has in common.

    Examples
    --------
    >>> canonical_json({"b": 1, "a": None})
    '{"a": null, "b": 1}'
    """
    return json.dumps(content, sort_keys=True, allow_nan=False)


def sha256_of_arrays(arrays: Mapping[str, NDArray[Any]], beside: str = "") -> str:
    """Hexadecimal SHA-256 of a text and of names, dtypes, shapes and values, in order of names.

    Examples
    --------
    >>> sha256_of_arrays({"x": np.zeros(3)})[:12]
    '953e0cf98dae'
    """
    digest = hashlib.sha256(f"{beside};".encode())
    for name, given in sorted(arrays.items()):
        array = np.ascontiguousarray(given)
        digest.update(f"{name} {array.dtype} {tuple(given.shape)};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

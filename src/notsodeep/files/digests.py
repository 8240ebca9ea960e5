"""SHA-256 of files, bytes and arrays."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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

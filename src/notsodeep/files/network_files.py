"""The file of a network: arrays as safetensors, and all the rest as one JSON text beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.files.atomic_files import atomic_write

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

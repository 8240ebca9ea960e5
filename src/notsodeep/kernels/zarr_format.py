"""How a matrix lies on disk for Zarr: what ``zarr.json`` says, and an array that is so.

The file is there for other programs.  It may come from a stranger, and could lead Zarr to other
files, other numbers or code; so it is compared with what it must be, and never followed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep import checks, extras

if TYPE_CHECKING:
    import zarr

FILE_NAME = "zarr.json"
_CHECKSUM = 4  # bytes
_SMALL = 1 << 24  # bytes


def array_description(size: int, side: int, dtype: str) -> dict[str, Any]:
    """Return what zarr.json says of an n × n matrix.

    Parameters
    ----------
    size : int
        n.
    side : int
        Rows and columns of a chunk, which is a file.
    dtype : {"float32", "float64"}
    """
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [size, size],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [side, side]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "fill_value": "NaN",
        "attributes": {},
        "dimension_names": ["sample", "sample"],
        "storage_transformers": [],
    }


def chunk_bytes(side: int, dtype: str) -> int:
    """Return the size of any chunk: nothing is compressed, and those at the end are filled up."""
    return side**2 * np.dtype(dtype).itemsize + _CHECKSUM


def description_problem(directory: Path, expected: dict[str, Any]) -> str | None:
    """Say what is wrong with the zarr.json of a directory; None if it is as expected."""
    try:
        found = stored_json(directory / FILE_NAME)
    except FileNotFoundError:
        return "it is missing"
    except (OSError, ValueError) as error:
        return str(error)
    if not isinstance(found, dict):
        return "it describes no array"
    different = sorted(
        key
        for key in {*expected, *found}
        if key not in expected or key not in found or _text(expected[key]) != _text(found[key])
    )
    return f"it describes another array: {', '.join(different)}" if different else None


def _text(value: Any) -> str:
    # To compare by, because to Python 1, 1.0 and True are equal.
    return json.dumps(value, sort_keys=True)


def open_array(directory: Path, description: dict[str, Any], *, read_only: bool) -> zarr.Array[Any]:
    """Return the array in a directory, taken to be what `description` says."""
    extras.require("KernelStore", "zarr")
    import zarr
    from zarr.storage import LocalStore, StorePath

    store = LocalStore(directory, read_only=read_only)
    return zarr.Array.from_dict(StorePath(store), description)


def stored_json(path: Path) -> Any:
    """Read a JSON file, of which nobody knows where it comes from.

    Raises
    ------
    OSError
        There is no such file, or it cannot be read.
    ValueError
        It holds something else, or more than any of ours.
    """
    if path.exists() and not path.is_file():  # such as a pipe, at which one would wait for ever
        raise ValueError("it is not a file")
    if path.stat().st_size > _SMALL:
        raise ValueError(f"it has more than {_SMALL} bytes")
    return checks.strict_json(path.read_bytes())

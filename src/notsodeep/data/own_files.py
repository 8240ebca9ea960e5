"""A user's own data: an ``.npz`` file, a ``.csv`` file or a directory of ``.npy`` files.

Schema
------
``.npz``
    Arrays ``X`` (n, …) of numbers and ``y`` (n,) of labels; optionally ``X_test`` and ``y_test``.
directory
    The same four arrays as ``X.npy``, ``y.npy``, ``X_test.npy``, ``y_test.npy``.
``.csv``
    See `notsodeep.data.own_tables`.

Labels are integers or strings; the classes are the values in the training part, in ascending
order.  Arrays of Python objects are rejected, since reading them means unpickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.data.own_tables import read_table
from notsodeep.data.raw_data import RawData
from notsodeep.errors import DataNotFound
from notsodeep.files import sha256_of_file
from notsodeep.files.stored_arrays import read_npy, read_npz

_NAMES = ("X", "y", "X_test", "y_test")


def read_own_files(path: Path) -> RawData:
    """Read a user's data set from a file or a directory in the stated schema.

    Raises
    ------
    DataNotFound
        There is nothing at `path`.
    DataCorrupted
        The file is truncated, or not in its format.
    InvalidInput
        It can be read, but does not follow the schema.
    """
    digests = own_digests(path)
    if path.is_dir():
        arrays = {file.stem: read_npy(file) for file in _arrays_of(path)}
    elif path.suffix == ".npz":
        arrays = read_npz(path)
    elif path.suffix == ".csv":
        arrays = read_table(path)
    else:
        remedy = "See notsodeep.data.own_files for the schema of each."
        raise checks.refusal("name", "load", "end in .npz or .csv, or be a directory", path, remedy)
    return _labelled(arrays, str(path), digests)


def own_digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 of a user's file, or of the arrays in a directory, by file name.

    Raises
    ------
    DataNotFound
        There is nothing at `path`.
    """
    if path.is_dir():
        return {file.name: sha256_of_file(file) for file in _arrays_of(path)}
    if not path.is_file():
        raise DataNotFound(f"There is no file or directory {path}.")
    return {path.name: sha256_of_file(path)}


def _arrays_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.npy"))


def _labelled(arrays: Mapping[str, NDArray[Any]], owner: str, sha256: Mapping[str, str]) -> RawData:
    """Check the four arrays against each other and encode the labels."""
    unknown = sorted(set(arrays) - set(_NAMES))
    if (
        unknown
        or "X" not in arrays
        or "y" not in arrays
        or ("X_test" in arrays) != ("y_test" in arrays)
    ):
        requirement = "be X and y, with X_test and y_test both or neither"
        raise checks.refusal("arrays", owner, requirement, ", ".join(sorted(arrays)) or "none")
    X, y = _features(arrays["X"], "X", owner), _label_vector(arrays["y"], "y", owner)
    X_test = _features(arrays["X_test"], "X_test", owner) if "X_test" in arrays else X[:0]
    y_test = _label_vector(arrays["y_test"], "y_test", owner) if "y_test" in arrays else y[:0]
    for features, labels, name in ((X, y, "y"), (X_test, y_test, "y_test")):
        if len(features) != len(labels):
            requirement = f"have one label for each of the {len(features)} rows"
            raise checks.refusal(name, owner, requirement, f"{len(labels)} labels")
    if not len(X):
        raise checks.refusal("X", owner, "have at least one row", "none")
    if X_test.shape[1:] != X.shape[1:]:
        got = f"rows of shape {X_test.shape[1:]}"
        raise checks.refusal("X_test", owner, f"have rows of shape {X.shape[1:]} like X", got)
    classes, encoded = np.unique(y, return_inverse=True)
    known = np.isin(y_test, classes)
    if not known.all():
        got = f"the label {y_test[~known][0]}"
        raise checks.refusal("y_test", owner, "hold only labels that occur in y", got)
    return RawData(
        X=X,
        y=encoded.astype(np.int64),
        X_test=X_test,
        y_test=np.searchsorted(classes, y_test).astype(np.int64),
        class_names=tuple(str(name) for name in classes),
        source=owner,
        sha256=sha256,
    )


def _features(array: NDArray[Any], name: str, owner: str) -> NDArray[Any]:
    if array.ndim < 2 or 0 in array.shape[1:]:
        requirement = "have one row per sample, shape (n, …)"
        raise checks.refusal(name, owner, requirement, f"shape {array.shape}")
    if array.dtype.kind not in "iub":
        checks.real_array(array, name, owner)
    return array


def _label_vector(array: NDArray[Any], name: str, owner: str) -> NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        requirement = "be a vector of integers or strings"
        got = f"shape {array.shape} and dtype {array.dtype}"
        raise checks.refusal(name, owner, requirement, got)
    return array

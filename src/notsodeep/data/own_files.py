"""A user's own data: an ``.npz`` file, a ``.csv`` file or a directory of ``.npy`` files.

Schema
------
``.npz``
    Arrays ``X`` (n, …) of numbers and ``y`` (n,) of labels; optionally ``X_test`` and ``y_test``.
directory
    The same four arrays as ``X.npy``, ``y.npy``, ``X_test.npy``, ``y_test.npy``.
``.csv``
    A header line with the column names.  The column ``label`` holds the labels; an optional column
    ``split`` holds ``train`` or ``test``; every other column is a feature and holds numbers.

Labels are integers or strings; the classes are the values in the training part, in ascending
order.  Arrays of Python objects are refused, since reading them means unpickling.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.data.raw_data import RawData
from notsodeep.errors import DataCorrupted, DataNotFound
from notsodeep.execution import sha256_of_array, sha256_of_file
from notsodeep.execution.stored_arrays import read_npy, read_npz

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
    owner = str(path)
    if path.is_dir():
        arrays = {p.stem: read_npy(p) for p in sorted(path.glob("*.npy"))}
        digests = {name: sha256_of_array(array) for name, array in arrays.items()}
    elif not path.is_file():
        raise DataNotFound(f"There is no file or directory {path}.")
    elif path.suffix == ".npz":
        arrays, digests = read_npz(path), {path.name: sha256_of_file(path)}
    elif path.suffix == ".csv":
        arrays, digests = _load_csv(path), {path.name: sha256_of_file(path)}
    else:
        remedy = "See notsodeep.data.own_files for the schema of each."
        raise checks.refusal("name", "load", "end in .npz or .csv, or be a directory", path, remedy)
    return _labelled(arrays, owner, digests)


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


def _load_csv(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.reader(stream)
            header = [name.strip() for name in next(lines, [])]
            first = next(lines, None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataCorrupted(f"{path} is not a table in UTF-8 ({error}).") from error
    if first is None:
        requirement = "have a header line and at least one row"
        raise checks.refusal("table", str(path), requirement, "no row")
    features = [k for k, name in enumerate(header) if name not in ("label", "split")]
    if header.count("label") != 1 or header.count("split") > 1 or not features:
        requirement = "name one column label, at most one split, and at least one feature"
        raise checks.refusal("header", str(path), requirement, ", ".join(header) or "nothing")
    X = _columns(path, features, np.dtype(np.float64))
    labels = np.char.strip(_columns(path, [header.index("label")], np.dtype(str))[:, 0])
    y = _as_integers(labels)
    if "split" not in header:
        return {"X": X, "y": y}
    split = np.char.strip(_columns(path, [header.index("split")], np.dtype(str))[:, 0])
    if not np.isin(split, ("train", "test")).all():
        got = repr(str(split[~np.isin(split, ("train", "test"))][0]))
        raise checks.refusal("split", str(path), "be train or test in every row", got)
    test = split == "test"
    return {"X": X[~test], "y": y[~test], "X_test": X[test], "y_test": y[test]}


def _columns(path: Path, columns: list[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        with warnings.catch_warnings():
            # Blank lines are left out, as they should be; NumPy explains what it used to do.
            warnings.filterwarnings("ignore", "Input line .* contained no data", UserWarning)
            return np.loadtxt(
                path,
                dtype=dtype,
                delimiter=",",
                skiprows=1,
                usecols=columns,
                ndmin=2,
                comments=None,
                quotechar='"',
                encoding="utf-8-sig",
            )
    except (ValueError, IndexError) as error:
        raise DataCorrupted(f"{path} is not a table of numbers ({error}).") from error


def _as_integers(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as integers where all of them are, so that 10 sorts after 9."""
    try:
        return labels.astype(np.int64)
    except (ValueError, OverflowError):
        return labels

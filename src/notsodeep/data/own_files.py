"""A user's own data: an ``.npz`` file, a ``.csv`` file or a directory of ``.npy`` files.

Schema
------
``.npz``
    Arrays ``X`` (n, …) of numbers and ``y`` (n,) of labels; optionally ``X_test`` and ``y_test``.
directory
    The same four arrays as ``X.npy``, ``y.npy``, ``X_test.npy``, ``y_test.npy``.
``.csv``
    See `notsodeep.data.own_files`.

Labels are integers or strings; the classes are the values in the training part, in ascending
order.  Arrays of Python objects are rejected, since reading them means unpickling.
"""

from __future__ import annotations

import array
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.data.raw_data import RawData
from notsodeep.errors import DataCorrupted, DataNotFound
from notsodeep.files import sha256_of_file
from notsodeep.files.stored_arrays import read_npy, read_npz

_ROW_NAMES = (
    "If the first column holds the names of rows, leave it out: write.csv(…, row.names=FALSE) in "
    "R, DataFrame.to_csv(…, index=False) in pandas."
)


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays X and y, and X_test and y_test if there is a column ``split``.

    Raises
    ------
    DataCorrupted
        It is not a table of numbers in UTF-8; the message says in which row.
    InvalidInput
        It is one, but without the columns it should have.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.reader(stream, skipinitialspace=True, strict=True)
            return _arrays(lines, path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataCorrupted(f"{path} is not a table in UTF-8 ({error}).") from error


def _arrays(lines: Any, path: Path) -> dict[str, NDArray[Any]]:
    owner = str(path)
    header = [name.strip() for name in next(lines, [])]
    if header:
        _check_header(header, owner)
    features = [k for k, name in enumerate(header) if name not in ("label", "split")]
    values, labels, parts = array.array("d"), [], []
    for where, row in _rows(lines, len(header), path):
        cells = [row[k] for k in features]
        values.extend(_numbers(cells, where, path))
        labels.append(_text(row[header.index("label")], "label", where, path))
        if "split" in header:
            parts.append(row[header.index("split")].strip())
    if not labels:
        raise checks.invalid("table", owner, "have a header line and at least one row", "no row")
    X = np.frombuffer(values, dtype=np.float64).reshape(len(labels), len(features))
    y = _as_integers(labels)
    if "split" not in header:
        return {"X": X, "y": y}
    split = np.array(parts)
    known = np.isin(split, ("train", "test"))
    if not known.all():
        got = repr(str(split[~known][0]))
        raise checks.invalid("split", owner, "be train or test in every row", got)
    test = split == "test"
    return {"X": X[~test], "y": y[~test], "X_test": X[test], "y_test": y[test]}


def _check_header(header: list[str], owner: str) -> None:
    named = [name for name in header if name not in ("label", "split")]
    got = ", ".join(header) or "nothing"
    if header.count("label") != 1 or header.count("split") > 1 or not named:
        requirement = "name one column label, at most one split, and at least one feature"
        other = next((mark for mark in (";", "\t") if len(header) == 1 and mark in got), None)
        remedy = "" if other is None else f"Separate cells by commas instead of {other!r}."
        raise checks.invalid("header", owner, requirement, got, remedy)
    if "" in header:
        raise checks.invalid("header", owner, "name every column", got, _ROW_NAMES)


def _rows(lines: Any, width: int, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield rows of the width of the header, each with words for where it is."""
    number = 0
    for row in lines:
        if len(row) <= 1 and not "".join(row).strip():
            continue
        number += 1
        where = f"row {number}, which ends in line {lines.line_num}"
        if len(row) != width:
            remedy = f" {_ROW_NAMES}" if len(row) == width + 1 else ""
            raise DataCorrupted(
                f"{path} is not a table of numbers: {where}, has {len(row)} cells, and the header "
                f"has {width}.{remedy}"
            )
        yield where, row


def _numbers(cells: list[str], where: str, path: Path) -> list[float]:
    together = "".join(cells)
    # Python would read 1_0, and digits of other scripts, as numbers too.
    if "_" not in together and together.isascii():
        try:
            return list(map(float, cells))
        except ValueError:
            pass
    odd = next((cell for cell in cells if not _is_number(cell)), "")
    raise DataCorrupted(
        f"{path} is not a table of numbers: {where}, has {odd[:40]!r} where a number should be."
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and cell.isascii()


def _text(cell: str, column: str, where: str, path: Path) -> str:
    text = cell.strip()
    # An array of strings would drop zero bytes at the end.
    if not text or "\0" in text:
        raise DataCorrupted(
            f"{path} is not a table with a label in every row: {where}, has {cell[:40]!r} in the "
            f"column {column}."
        )
    return text


def _as_integers(labels: list[str]) -> NDArray[Any]:
    """Labels as integers where all of them are written as such, so that 10 sorts after 9."""
    try:
        numbers = np.array([int(label) for label in labels], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(labels)
    same = all(str(number) == label for number, label in zip(numbers, labels, strict=True))
    return numbers if same else np.array(labels)


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
        raise checks.invalid("name", "load", "end in .npz or .csv, or be a directory", path, remedy)
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
        raise checks.invalid("arrays", owner, requirement, ", ".join(sorted(arrays)) or "none")
    X, y = _features(arrays["X"], "X", owner), _label_vector(arrays["y"], "y", owner)
    X_test = _features(arrays["X_test"], "X_test", owner) if "X_test" in arrays else X[:0]
    y_test = _label_vector(arrays["y_test"], "y_test", owner) if "y_test" in arrays else y[:0]
    for features, labels, name in ((X, y, "y"), (X_test, y_test, "y_test")):
        if len(features) != len(labels):
            requirement = f"have one label for each of the {len(features)} rows"
            raise checks.invalid(name, owner, requirement, f"{len(labels)} labels")
    if not len(X):
        raise checks.invalid("X", owner, "have at least one row", "none")
    if X_test.shape[1:] != X.shape[1:]:
        got = f"rows of shape {X_test.shape[1:]}"
        raise checks.invalid("X_test", owner, f"have rows of shape {X.shape[1:]} like X", got)
    classes, encoded = np.unique(y, return_inverse=True)
    known = np.isin(y_test, classes)
    if not known.all():
        got = f"the label {y_test[~known][0]}"
        raise checks.invalid("y_test", owner, "hold only labels that occur in y", got)
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
        raise checks.invalid(name, owner, requirement, f"shape {array.shape}")
    if array.dtype.kind not in "iub":
        checks.real_array(array, name, owner)
    return array


def _label_vector(array: NDArray[Any], name: str, owner: str) -> NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        requirement = "be a vector of integers or strings"
        got = f"shape {array.shape} and dtype {array.dtype}"
        raise checks.invalid(name, owner, requirement, got)
    return array

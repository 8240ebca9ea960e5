"""A user's own data: an ``.npz``, ``.npy`` or ``.csv`` file, or a directory of ``.npy`` files.

``.npz`` or directory
    Arrays ``X`` (n, …) of numbers and ``y`` (n,) of labels; optionally ``X_test`` and ``y_test``.
    Images have the order (n, height, width, channels) or (n, height, width).
``.npy``
    An array ``X`` (n, …) without labels: all rows are of one class.
``.csv``
    A header, one column ``label``, perhaps a column ``split`` of train and test, and features.

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
from notsodeep._files import sha256_of_file
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput

_ROW_NAMES = (
    "If the first column holds the names of rows, leave it out: write.csv(…, row.names=FALSE) in "
    "R, DataFrame.to_csv(…, index=False) in pandas."
)
_NAMES = ("X", "y", "X_test", "y_test")


def read_files(path: Path) -> tuple[dict[str, NDArray[Any]], tuple[str, ...], dict[str, str]]:
    """Read the four arrays of a user's data set, the names of its classes, and digests by file."""
    if not path.exists():
        raise DataNotFound(f"There is no file or directory {path}.")
    files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
    digests = {file.name: sha256_of_file(file) for file in files}
    if path.suffix == ".csv":
        arrays = read_table(path)
    elif path.is_dir():
        arrays = {file.stem: _load(file) for file in files}
    elif path.suffix == ".npz":
        arrays = dict(_load(path))
    elif path.suffix == ".npy":
        X = _load(path)
        arrays = {"X": X, "y": np.zeros(len(X) if X.ndim else 0, dtype=np.int64)}
    else:
        raise InvalidInput(f"name must be a data set, .npz, .npy, .csv or a directory, got {path}.")
    return *labelled(arrays, str(path)), digests


def _load(path: Path) -> Any:
    """Read what NumPy has written, without unpickling; zip files compare a checksum."""
    try:
        with path.open("rb") as stream:
            found = np.load(stream, allow_pickle=False)
            several = not isinstance(found, np.ndarray)
            if several is not (path.suffix == ".npz"):
                raise ValueError("its content is of another kind")
            return {name: found[name] for name in found.files} if several else found
    except Exception as error:  # whatever the parsers of damaged bytes raise
        raise DataCorrupted(f"{path} must be a readable NumPy file ({error}).") from error


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


def labelled(
    arrays: Mapping[str, NDArray[Any]], owner: str
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Check the arrays against each other; return them with labels 0 … K − 1, and the names."""
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
    encoded_test = np.searchsorted(classes, y_test)
    parts = (X, encoded, X_test, encoded_test)
    return dict(zip(_NAMES, parts, strict=True)), tuple(str(name) for name in classes)


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

"""A user's own table: a ``.csv`` file with a header.

Cells are separated by commas, and may be quoted with ``"``.  The header names every column: the
column ``label`` holds the labels; an optional column ``split`` holds ``train`` or ``test``; every
other column is a feature and holds numbers.  Every row has as many cells as the header; blank
lines are left out, as are spaces around a cell.

Labels are integers if all of them are written as Python writes integers, so that 10 comes after 9;
otherwise they are text, and ``1`` and ``01`` are two classes.
"""

from __future__ import annotations

import array
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.errors import DataCorrupted

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
        raise checks.refusal("table", owner, "have a header line and at least one row", "no row")
    X = np.frombuffer(values, dtype=np.float64).reshape(len(labels), len(features))
    y = _as_integers(labels)
    if "split" not in header:
        return {"X": X, "y": y}
    split = np.array(parts)
    known = np.isin(split, ("train", "test"))
    if not known.all():
        got = repr(str(split[~known][0]))
        raise checks.refusal("split", owner, "be train or test in every row", got)
    test = split == "test"
    return {"X": X[~test], "y": y[~test], "X_test": X[test], "y_test": y[test]}


def _check_header(header: list[str], owner: str) -> None:
    named = [name for name in header if name not in ("label", "split")]
    got = ", ".join(header) or "nothing"
    if header.count("label") != 1 or header.count("split") > 1 or not named:
        requirement = "name one column label, at most one split, and at least one feature"
        other = next((mark for mark in (";", "\t") if len(header) == 1 and mark in got), None)
        remedy = "" if other is None else f"Separate cells by commas instead of {other!r}."
        raise checks.refusal("header", owner, requirement, got, remedy)
    if "" in header:
        raise checks.refusal("header", owner, "name every column", got, _ROW_NAMES)


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

"""Tables that one could read in a wrong way: they are read rightly, or rejected with the row."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notsodeep.data.user_files import read_files
from notsodeep.errors import DataCorrupted, InvalidInput, NotSoDeepError


def table(path: Path, text: str) -> Path:
    (path / "d.csv").write_text(text, encoding="utf-8")
    return path / "d.csv"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # write.table(df, sep=",") in R: the header has no cell for the names of rows.
        ("height,label\n1,1.7,well\n2,1.8,sick\n", r"row 1, .*line 2, has 3 cells.*header has 2.*"),
        ('"height","label"\n"1",1.7,"well"\n', r"row 1, .*line 2, has 3 cells.*row\.names=FALSE"),
        ("a,label\n1,x\n\n2,y,3\n", r"row 2, .*line 4, has 3 cells"),
        ('a,label\n"1",x\n1,"two\nlines",3\n', r"row 2, .*line 4, has 3 cells"),
        ("a,b,label\n1,2,x\n3,y\n", "row 2, .*has 2 cells, and the header has 3"),
        ("a,label\n1,x,\n", "has 3 cells"),
        ("a,b,label\n1.5;2,0;x\n", "has 2 cells"),
        ("a,label\n1_0,x\n", "row 1, .*'1_0' where a number"),
        ("a,label\n1,x\n１,y\n", "row 2, .*'１' where a number"),
        ("a,label\n0x10,x\n", "'0x10' where a number"),
        ('a,label\n"1,5",x\n', "'1,5' where a number"),
        ("a,label\n1,\n", "row 1, .*'' in the column label"),
        ("a,label\n1,x\0\n", "in the column label"),
        ('a,label\n1,"x"y\n', "not a table in UTF-8"),
    ],
)
def test_rows_that_do_not_fit_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataCorrupted, match=message):
        read_files(table(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a,label\n0,1.5,x\n1,2.5,y\n", r"name every column\. Got , a, label.*index=False"),
        ("a,label,\n1.5,x,\n", "name every column"),
        ("a;b;label\n1;2;x\n", "Separate cells by commas instead of ';'"),
        ("a\tlabel\n1\tx\n", "Separate cells by commas instead of"),
    ],
)
def test_headers_that_do_not_fit_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_files(table(tmp_path, text))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["1", "01", "1_0", "10"], ("01", "1", "10", "1_0")),
        (["1", "+1"], ("+1", "1")),
        (["0", "-0"], ("-0", "0")),
        (["1", "１"], ("1", "１")),
        (["1", "1.0", "1e0"], ("1", "1.0", "1e0")),
        (["10", "9", "-3"], ("-3", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["9223372036854775808", "9"], ("9", "9223372036854775808")),
        (["a", "A", "á"], ("A", "a", "á")),
    ],
)
def test_labels_that_differ_are_different_classes(
    tmp_path: Path, labels: list[str], classes: tuple[str, ...]
) -> None:
    lines = "".join(f"{k},{label}\n" for k, label in enumerate(labels * 2))
    arrays, names, _ = read_files(table(tmp_path, f"a,label\n{lines}"))
    assert names == classes
    assert [names[k] for k in arrays["y"]] == labels * 2


def test_quotes_spaces_and_line_ends_are_no_trouble(tmp_path: Path) -> None:
    text = 'a, "b, c", label \r\n 1.5 , "2", "well, or ""so"""\r\n   \r\n-1e-3,+4,sick\r\n'
    arrays, names, _ = read_files(table(tmp_path, text))
    assert arrays["X"].tolist() == [[1.5, 2.0], [-1e-3, 4.0]]
    assert names == ("sick", 'well, or "so"')
    assert arrays["y"].tolist() == [1, 0]


@given(content=st.binary(max_size=80), ending=st.sampled_from([".csv", ".npz", ".npy"]))
def test_any_bytes_are_read_or_named(
    content: bytes, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / f"d{ending}"
    path.write_bytes(content)
    with contextlib.suppress(NotSoDeepError):
        read_files(path)


@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_damaged_archives_are_named_or_unchanged(
    position: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "d.npz"
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    np.savez(path, X=X, y=y)
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= flip
    path.write_bytes(content)
    with contextlib.suppress(NotSoDeepError):
        assert (read_files(path)[0]["X"] == X).all()

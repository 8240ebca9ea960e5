"""Uploaded files: refused with a reason before anything is read that could do harm."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pytest

from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput
from notsodeep.explorer import explorer_data
from notsodeep.explorer.explorer_data import prepared
from notsodeep.explorer.state import ExplorerState, digest_of

UPLOAD = ExplorerState(data="upload", samples=60)


def archive(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=True, **arrays)
    return buffer.getvalue()


def two_classes(n: int = 120, p: int = 20) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    return {"X": rng.standard_normal((n, p)) + y[:, None], "y": y}


def test_half_of_a_file_without_a_test_part_is_held_out() -> None:
    data = prepared(UPLOAD, ("mine.npz", archive(**two_classes(100))))
    assert data.X.shape == data.X_test.shape == (50, 20)
    assert not set(data.train_indices) & set(data.test_indices)


def test_a_test_part_is_used() -> None:
    given = two_classes(90)
    content = archive(**given, X_test=given["X"][:40], y_test=given["y"][:40])
    data = prepared(UPLOAD, ("MINE.NPZ", content))
    assert (len(data.X), len(data.X_test)) == (60, 40)


def test_a_table_is_read() -> None:
    given = two_classes(80, 3)
    lines = [",".join(map(str, [*row, "ab"[k]])) for row, k in zip(*given.values(), strict=True)]
    content = "\n".join(["u,v,w,label", *lines]).encode()
    data = prepared(UPLOAD, ("mine.csv", content))
    assert data.classes == ("a", "b")
    assert data.X.shape == (40, 3)


def not_finite() -> dict[str, Any]:
    given = two_classes()
    given["X"][3, 4] = np.nan
    return given


@pytest.mark.parametrize(
    ("name", "content", "error", "told"),
    [
        ("mine.pkl", b"\x80\x04N.", InvalidInput, "must end in .npz or .csv"),
        ("mine.npz", b"\x80\x04N.", InvalidInput, "not a readable .npz archive"),
        ("mine.npz", archive(**two_classes())[:-200], InvalidInput, "not a readable .npz"),
        ("mine.npz", b"", InvalidInput, "not a readable .npz archive"),
        ("mine.npz", archive(**not_finite()), InvalidInput, r"NaN .* index \(3, 4\)"),
        ("mine.npz", archive(X=np.ones((50, 2))), InvalidInput, "must be X and y"),
        ("mine.npz", archive(**two_classes(20)), InvalidInput, "at least 32 rows. Got 20"),
        (
            "mine.npz",
            archive(X=np.array([print] * 50, dtype=object), y=np.zeros(50, np.int64)),
            InvalidInput,
            "X.npy of the uploaded file must hold no Python objects",
        ),
        (
            "mine.npz",
            archive(X=np.array([["a", "b"]] * 50), y=np.zeros(50, np.int64)),
            InvalidInput,
            "X of the uploaded file must",
        ),
        ("mine.csv", b"a,label\n1,x\noops,y\n", DataCorrupted, "not a table of numbers"),
        ("mine.csv", b"\xff\xfe\x00\x00a,label\n1,x\n", DataCorrupted, "not a table in UTF-8"),
        ("mine.csv", b"", InvalidInput, "header line and at least one row"),
    ],
)
def test_what_cannot_be_used_is_refused(
    name: str, content: bytes, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told) as caught:
        prepared(UPLOAD, (name, content))
    assert "/tmp" not in str(caught.value)


def test_a_large_file_is_refused() -> None:
    content = bytes(explorer_data.MAX_MEGABYTES * 2**20 + 1)
    with pytest.raises(InvalidInput, match=r"at most 20 MB\. Got 20\.0 MB"):
        prepared(UPLOAD, ("mine.csv", content))


def test_a_small_file_that_unpacks_to_a_large_one_is_refused() -> None:
    content = archive(X=np.zeros((40, 700_000)), y=np.zeros(40, np.int64))
    assert len(content) < 2**20
    with pytest.raises(InvalidInput, match=r"at most 200 MB together\. Got 214 MB"):
        prepared(UPLOAD, ("mine.npz", content))


def test_a_header_that_promises_too_much_is_refused() -> None:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as files:
        files.writestr("X.npy", stream.getvalue())
    with pytest.raises(InvalidInput, match="MB together"):
        prepared(UPLOAD, ("mine.npz", buffer.getvalue()))


def test_without_a_file_the_page_asks_for_it() -> None:
    state = ExplorerState(data="upload", upload=digest_of(b"other"))
    with pytest.raises(DataNotFound, match=f"SHA-256 begins with {digest_of(b'other')}"):
        prepared(state)

"""Digests agree with hashlib on the plain bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from notsodeep.files import sha256_of_array, sha256_of_bytes, sha256_of_file


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float64).reshape(2, 3, 4),
        np.arange(24, dtype=np.int32).reshape(4, 6).T,
        np.zeros((0, 5), dtype=np.uint8),
        np.array(3.5),
    ],
    ids=["contiguous", "transposed", "empty", "scalar"],
)
def test_array_digest_is_that_of_its_c_order_bytes(array: np.ndarray) -> None:
    assert sha256_of_array(array) == hashlib.sha256(array.tobytes()).hexdigest()


def test_file_and_bytes_agree(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of_file(tmp_path / "f") == sha256_of_bytes(b"abc") == expected

"""A manifest notices everything that happens to its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from notsodeep.errors import DataCorrupted
from notsodeep.files import Manifest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 100)
    Manifest.of_files(tmp_path, "ab", "letters", {"source": "test", "n": 2}).write(tmp_path)
    return tmp_path


def test_round_trip(directory: Path) -> None:
    manifest = Manifest.read(directory)
    assert manifest is not None
    assert manifest.kind == "letters"
    assert manifest.facts == {"source": "test", "n": 2}
    assert set(manifest.sha256) == {"a", "b"}
    assert manifest.problems(directory) == ()


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert Manifest.read(tmp_path) is None
    assert Manifest.read(tmp_path / "absent") is None


def test_a_flipped_bit_a_truncation_and_a_missing_file_are_noticed(directory: Path) -> None:
    manifest = Manifest.read(directory)
    assert manifest is not None
    content = bytearray((directory / "a").read_bytes())
    content[50] ^= 1
    (directory / "a").write_bytes(content)
    (directory / "b").unlink()
    first, second = manifest.problems(directory)
    assert "SHA-256" in first
    assert "missing" in second


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 99}'])
def test_a_damaged_manifest_is_an_error(directory: Path, content: str) -> None:
    (directory / "manifest.json").write_text(content)
    with pytest.raises(DataCorrupted, match="manifest"):
        Manifest.read(directory)

"""Packed files that unpack to more than they should: rejected before that is unpacked or held."""

from __future__ import annotations

import contextlib
import gzip
import io
import struct
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from notsodeep.data.catalogue import ImageSet
from notsodeep.data.image_files import CIFAR10_SHEETS, CIFAR100_BINARY, IDX, read_png_sheet
from notsodeep.data.image_store import find_and_read
from notsodeep.errors import DataCorrupted, NotEnoughMemory

BOMB = 200 << 20
"""Bytes that a bomb unpacks to; one of zeros is a thousandth of that."""
HEADER = bytes([0, 0, 8, 3]) + struct.pack(">3I", 6, 4, 4)


@pytest.fixture(scope="module")
def zeros() -> bytes:
    return gzip.compress(bytes(BOMB), compresslevel=1, mtime=0)


@contextlib.contextmanager
def little() -> Iterator[None]:
    """Fail if more than a hundredth of a bomb is held, or if it takes long."""
    tracemalloc.start()
    begin = time.process_time()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < BOMB // 100
        assert time.process_time() - begin < 1.0
    finally:
        tracemalloc.stop()


SMALL = ImageSet(
    name="small",
    image_shape=(4, 4),
    num_train=6,
    num_test=2,
    class_names=("a", "b"),
    raw_format=IDX,
    official=(),
    directories=("small",),
)
COLOUR = ImageSet(
    name="colour",
    image_shape=(3, 32, 32),
    num_train=3,
    num_test=1,
    class_names=("a", "b"),
    raw_format=CIFAR100_BINARY,
    official=(),
    archives=("colour.tar.gz",),
)


def with_forged_size(content: bytes) -> bytes:
    """Let the last bytes, which state what is unpacked, be modest."""
    return content[:-4] + struct.pack("<I", 100)


@pytest.mark.parametrize(
    "forge",
    [
        lambda zeros: zeros,
        with_forged_size,
        lambda zeros: gzip.compress(HEADER, mtime=0) + zeros,
        lambda zeros: zeros + gzip.compress(b"", mtime=0),
        lambda zeros: zeros + bytes(100),
    ],
    ids=["zeros", "forged size", "right header", "two members", "padded"],
)
def test_gzip_bombs(tmp_path: Path, zeros: bytes, forge: Callable[[bytes], bytes]) -> None:
    (tmp_path / "small").mkdir()
    for name in IDX.members:
        (tmp_path / "small" / f"{name}.gz").write_bytes(forge(zeros))
    with little(), pytest.raises(DataCorrupted, match="too long: it should hold at most 112 bytes"):
        find_and_read(SMALL, tmp_path)


def test_plain_files_are_read_as_far_as_they_should_reach(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    for name in IDX.members:
        with (tmp_path / "small" / name).open("wb") as stream:
            stream.truncate(BOMB)
    with little(), pytest.raises(DataCorrupted, match="too long"):
        find_and_read(SMALL, tmp_path)


def member(name: str, size: int, kind: bytes) -> bytes:
    header = tarfile.TarInfo(name)
    header.size, header.type = size, kind
    return header.tobuf(tarfile.GNU_FORMAT)


def tar(*parts: tuple[str, int, bytes]) -> bytes:
    """Pack members of zeros, no more than a bomb in all, without ever holding them."""
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as packed:
        for name, size, kind in parts:
            packed.write(member(name, size, kind))
            for _ in range(min(size, BOMB) >> 20):
                packed.write(bytes(1 << 20))
    return stream.getvalue()


@pytest.mark.parametrize(
    "parts",
    [
        [("x/train.bin", BOMB, tarfile.REGTYPE), ("test.bin", 0, tarfile.REGTYPE)],
        [("holiday.mov", BOMB, tarfile.REGTYPE), ("train.bin", 0, tarfile.REGTYPE)],
        [("pax", BOMB, tarfile.XHDTYPE), ("train.bin", 0, tarfile.REGTYPE)],
        [("long", BOMB, tarfile.GNUTYPE_LONGNAME), ("train.bin", 0, tarfile.REGTYPE)],
        [("x", 1 << 40, tarfile.REGTYPE)],
    ],
    ids=["member", "beside", "extended header", "long name", "stated only"],
)
def test_archives_that_hold_too_much(tmp_path: Path, parts: list[tuple[str, int, bytes]]) -> None:
    (tmp_path / "colour.tar.gz").write_bytes(tar(*parts))
    with little(), pytest.raises(DataCorrupted, match="too long"):
        find_and_read(COLOUR, tmp_path)


@pytest.mark.parametrize("size", [BOMB, BOMB // 40])
def test_bombs_inside_an_archive(tmp_path: Path, size: int) -> None:
    bomb = with_forged_size(gzip.compress(bytes(size), mtime=0))
    with tarfile.open(tmp_path / "colour.tar.gz", "w:gz") as archive:
        for name in ("train.bin.gz", "test.bin.gz"):
            header = tarfile.TarInfo(name)
            header.size = len(bomb)
            archive.addfile(header, io.BytesIO(bomb))
    with little(), pytest.raises(DataCorrupted, match="too long"):
        find_and_read(COLOUR, tmp_path)


def test_sets_beyond_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small").mkdir()
    for name in IDX.members:
        (tmp_path / "small" / name).write_bytes(b"")
    monkeypatch.setattr("notsodeep.checks.available_memory", lambda: 100)
    with pytest.raises(NotEnoughMemory):
        find_and_read(SMALL, tmp_path)


def test_sizes_are_those_of_real_files() -> None:
    """The largest size is that of the published file, or a little more."""
    rng = np.random.default_rng(0)
    image = pytest.importorskip("PIL.Image")
    pixels = rng.integers(0, 256, (40, 1024, 3), dtype=np.uint8)  # as hard to pack as can be
    stream = io.BytesIO()
    image.fromarray(pixels).save(stream, "PNG")
    sizes = dict(zip(CIFAR10_SHEETS.members, CIFAR10_SHEETS.sizes(200, 40, 3072), strict=True))
    assert len(stream.getvalue()) < sizes["data_batch_1.png"] == sizes["test_batch.png"]
    assert COLOUR.sizes(CIFAR100_BINARY) == {"train.bin": 3 * 3074, "test.bin": 3074}
    assert SMALL.sizes(IDX)[IDX.members[0]] == len(HEADER) + 6 * 16


def test_a_sheet_is_not_unpacked_on_the_word_of_its_header() -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("RGB", (1024, 2)).save(stream, "PNG")
    content = stream.getvalue()
    sizes = struct.pack(">2I", 1024, 2)
    assert content.count(sizes) == 1
    for width, height in ((1024, 2**31 - 1), (2**31 - 1, 1024)):
        forged = content.replace(sizes, struct.pack(">2I", width, height))
        with pytest.raises(DataCorrupted):
            read_png_sheet(forged, "sheet.png")

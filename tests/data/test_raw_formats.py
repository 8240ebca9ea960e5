"""IDX, binary CIFAR and PNG sheets: what is read, and how damage is noticed."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from notsodeep.data.image_files import (
    CIFAR10_BINARY,
    CIFAR10_SHEETS,
    CIFAR100_BINARY,
    IDX,
    directory_has,
    read_archive,
    read_cifar_records,
    read_directory,
    read_idx,
    read_png_sheet,
)
from notsodeep.errors import DataCorrupted


def encode_idx(array: np.ndarray) -> bytes:
    sizes = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def images(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


def labels(n: int, K: int) -> np.ndarray:
    return (np.arange(n) % K).astype(np.uint8)


def records(pixels: np.ndarray, *columns: np.ndarray) -> bytes:
    flat = pixels.reshape(len(pixels), -1)
    return np.concatenate([*(c[:, None] for c in columns), flat], axis=1).tobytes()


def sheet(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    rows = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).reshape(len(pixels), 1024, 3)
    Image.fromarray(rows).save(stream, "PNG")
    return stream.getvalue()


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=6)))
def test_idx_round_trip(array: np.ndarray) -> None:
    np.testing.assert_array_equal(read_idx(encode_idx(array), "f"), array)


@given(st.data())
def test_no_truncation_of_idx_is_read(data: st.DataObject) -> None:
    whole = encode_idx(np.arange(60, dtype=np.uint8).reshape(3, 4, 5))
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(DataCorrupted, match=r"truncated|header|not an IDX"):
        read_idx(short, "f")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a", "not an IDX file"),
        (encode_idx(np.zeros(3, np.uint8)) + b"x", "too long"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00", "not an IDX file of unsigned"),
    ],
)
def test_what_is_not_idx_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataCorrupted, match=message):
        read_idx(content, "f")


def test_binary_cifar10_keeps_the_order_of_batches() -> None:
    pixels, classes = images(0, 12), labels(12, 10)
    files = {
        name: records(pixels[2 * k : 2 * k + 2], classes[2 * k : 2 * k + 2])
        for k, name in enumerate(CIFAR10_BINARY.members)
    }
    arrays = CIFAR10_BINARY.decode(files)
    np.testing.assert_array_equal(arrays.train_images, pixels[:10])
    np.testing.assert_array_equal(arrays.train_labels, classes[:10])
    np.testing.assert_array_equal(arrays.test_images, pixels[10:])
    np.testing.assert_array_equal(arrays.test_labels, classes[10:])


def test_binary_cifar100_takes_the_fine_label() -> None:
    pixels, fine, coarse = images(1, 6), labels(6, 100) + 40, labels(6, 20)
    files = {
        "train.bin": records(pixels[:4], coarse[:4], fine[:4]),
        "test.bin": records(pixels[4:], coarse[4:], fine[4:]),
    }
    arrays = CIFAR100_BINARY.decode(files)
    np.testing.assert_array_equal(arrays.train_labels, fine[:4])
    np.testing.assert_array_equal(arrays.test_images, pixels[4:])


@pytest.mark.parametrize("length", [0, 1, 3072, 3073 * 2 - 1])
def test_truncated_cifar_is_refused(length: int) -> None:
    with pytest.raises(DataCorrupted, match="record length 3073"):
        read_cifar_records(b"\x00" * length, "data_batch_1.bin")


def test_sheets_and_binary_files_yield_the_same_arrays() -> None:
    """Every source of a set must decode to the same bytes in the same order."""
    pixels, classes = images(2, 18), labels(18, 10)
    binary, sheets = {}, {}
    for k, name in enumerate(CIFAR10_BINARY.members):
        part = slice(3 * k, 3 * k + 3)
        binary[name] = records(pixels[part], classes[part])
        sheets[name.replace(".bin", ".png")] = sheet(pixels[part])
    sheets["train_lables.json"] = json.dumps(classes[:15].tolist()).encode()
    sheets["test_lables.json"] = json.dumps(classes[15:].tolist()).encode()
    assert CIFAR10_SHEETS.decode(sheets).sha256 == CIFAR10_BINARY.decode(binary).sha256


def test_damaged_sheets_are_refused() -> None:
    content = sheet(images(3, 30))
    for damaged in (content[: len(content) // 2], b"", b"not a png"):
        with pytest.raises(DataCorrupted, match="not a complete PNG"):
            read_png_sheet(damaged, "sheet.png")
    narrow = io.BytesIO()
    Image.fromarray(np.zeros((4, 100, 3), np.uint8)).save(narrow, "PNG")
    with pytest.raises(DataCorrupted, match="100 pixels wide"):
        read_png_sheet(narrow.getvalue(), "sheet.png")


@pytest.mark.parametrize("content", [b"", b"{}", b'["a"]', b"[1.5]", b"[300]", b"[-1]", b"[[1]]"])
def test_damaged_labels_are_refused(content: bytes) -> None:
    files = {name: sheet(images(0, 1)) for name in CIFAR10_SHEETS.members[:6]}
    files |= {"train_lables.json": content, "test_lables.json": b"[1]"}
    with pytest.raises(DataCorrupted, match="not a JSON list of labels"):
        CIFAR10_SHEETS.decode(files)


def test_directories_are_read_plain_and_gzipped(tiny, tmp_path: Path) -> None:
    tiny.write_raw(tmp_path / "plain")
    tiny.write_raw(tmp_path / "packed", compressed=True)
    for name in ("plain", "packed"):
        assert directory_has(tmp_path / name, IDX)
        assert read_directory(tmp_path / name, IDX, tiny.sizes) == tiny.files
    (tmp_path / "plain" / IDX.members[0]).unlink()
    assert not directory_has(tmp_path / "plain", IDX)
    with pytest.raises(DataCorrupted, match=f"no {IDX.members[0]}"):
        read_directory(tmp_path / "plain", IDX, tiny.sizes)


def test_a_truncated_gzip_file_is_refused(tiny, tmp_path: Path) -> None:
    tiny.write_raw(tmp_path / "raw", compressed=True)
    path = tmp_path / "raw" / f"{IDX.members[0]}.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[:5], b"plain text", b""):
        path.write_bytes(damaged)
        with pytest.raises(DataCorrupted, match=r"not a complete gzip|truncated|not an IDX"):
            IDX.decode(read_directory(tmp_path / "raw", IDX, tiny.sizes))


def test_archives_are_read_without_extracting(tiny, tmp_path: Path) -> None:
    archive = tiny.write_package(tmp_path / "package.tgz")
    assert read_archive(archive, IDX, tiny.sizes) == tiny.files
    assert [p.name for p in tmp_path.iterdir()] == ["package.tgz"]


def test_archives_may_hold_gzipped_members_and_other_things(tiny, tmp_path: Path) -> None:
    path = tmp_path / "deb.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo(f"./{IDX.members[0]}")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name, data in tiny.files.items():
            packed = gzip.compress(data)
            member = tarfile.TarInfo(f"../../usr/share/{name}.gz")
            member.size = len(packed)
            archive.addfile(member, io.BytesIO(packed))
    assert read_archive(path, IDX, tiny.sizes) == tiny.files


def test_damaged_archives_are_refused(tiny, tmp_path: Path) -> None:
    path = tiny.write_package(tmp_path / "package.tgz")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:20], b"", b"not an archive"):
        path.write_bytes(damaged)
        with pytest.raises(DataCorrupted, match=r"package\.tgz"):
            read_archive(path, IDX, tiny.sizes)
    path.write_bytes(whole)
    with pytest.raises(DataCorrupted, match=r"has no test\.bin, train\.bin"):
        read_archive(path, CIFAR100_BINARY, tiny.sizes)

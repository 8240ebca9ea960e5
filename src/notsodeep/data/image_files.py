"""Published image files: their bytes, in directories or archives, and readers of their formats.

A format names its files and turns their bytes into arrays; where the bytes come from (a
directory, an archive, a package) is not its business.  Nothing here unpickles.

A few kilobytes can unpack to anything, so every file comes with the largest size that it can have
(`ImageSet.sizes`), and no more than that is ever unpacked or held.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np

from notsodeep import checks
from notsodeep.data.raw_data import ByteArray, ImageArrays
from notsodeep.errors import DataCorrupted

_CIFAR_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class RawFormat:
    """How a set is published.

    Attributes
    ----------
    name : str
        For messages.
    members : tuple of str
        The files it consists of, without directories and without ``.gz``.
    decode : callable
        From the bytes of each member to arrays; raises `DataCorrupted`.
    sizes : callable
        (training images, test images, values of an image) ↦ the largest number of bytes that each
        member can have, in their order.
    """

    name: str
    members: tuple[str, ...]
    decode: Callable[[Mapping[str, bytes]], ImageArrays]
    sizes: Callable[[int, int, int], Sequence[int]]


def read_idx(content: bytes, name: str) -> ByteArray:
    """Decode an IDX file of unsigned bytes: magic 0, 0, 8, rank; big-endian sizes; values."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataCorrupted(f"{name} is not an IDX file of unsigned bytes.")
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise DataCorrupted(f"{name} ends inside its header ({len(content)} bytes).")
    shape = struct.unpack(f">{rank}I", content[4:start])
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataCorrupted(
            f"{name} has {len(content)} bytes; its header promises {expected}. It is "
            f"{'truncated' if len(content) < expected else 'too long'}."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _idx_sizes(train: int, test: int, values: int) -> list[int]:
    header = 4 + 4 * 3  # at most: magic, and the three axes of grey images
    return [header + n * each for n in (train, test) for each in (values, 1)]


def _decode_idx(files: Mapping[str, bytes]) -> ImageArrays:
    return ImageArrays(*(read_idx(files[name], name) for name in IDX.members))


def read_cifar_records(
    content: bytes, name: str, label_bytes: int = 1
) -> tuple[ByteArray, ByteArray]:
    """Decode binary CIFAR records: labels, then 3072 bytes of red, green and blue planes.

    Parameters
    ----------
    content : bytes
        The file.
    name : str
        Its name, for messages.
    label_bytes : int
        1 for CIFAR-10; 2 for CIFAR-100 (coarse, then fine).

    Returns
    -------
    images : ndarray of shape (n, 3, 32, 32)
        Pixels.
    labels : ndarray of shape (n,)
        The last label byte of each record: the fine class.
    """
    length = label_bytes + _CIFAR_PIXELS
    if not content or len(content) % length:
        raise DataCorrupted(
            f"{name} has {len(content)} bytes, not a multiple of the record length {length}. "
            "It is truncated, or not a binary CIFAR file."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, length)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def _decode_cifar(
    files: Mapping[str, bytes], members: tuple[str, ...], label_bytes: int
) -> ImageArrays:
    *train, test = (read_cifar_records(files[name], name, label_bytes) for name in members)
    return ImageArrays(
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        np.ascontiguousarray(test[0]),
        np.ascontiguousarray(test[1]),
    )


def _cifar_sizes(train: int, test: int, values: int, batches: int, label_bytes: int) -> list[int]:
    length = label_bytes + values
    return [_batch(train, batches) * length] * batches + [test * length]


def _batch(train: int, batches: int) -> int:
    """Training images in one of several files that share them."""
    return -(-train // batches)


def read_png_sheet(content: bytes, name: str) -> ByteArray:
    """Decode a sheet with one 32 × 32 colour image per row of 1024 pixels.

    Returns
    -------
    ndarray of shape (n, 3, 32, 32)
        Pixels, channels first like the binary files.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as sheet:
            width, height = sheet.size  # as the file states it; nothing is unpacked yet
            if width != 32 * 32:
                raise DataCorrupted(f"{name} is {width} pixels wide, not 1024.")
            checks.unpacked_fits(width * height * 4, Path(name))
            pixels = np.asarray(sheet.convert("RGB"))
    except DataCorrupted:
        raise
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,
        ValueError,
    ) as error:
        raise DataCorrupted(f"{name} is not a complete PNG file ({error}).") from error
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def _read_json_labels(content: bytes, name: str) -> ByteArray:
    try:
        labels = np.asarray(checks.strict_json(content))
        if labels.ndim != 1 or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() > 255:
            raise ValueError("not a list of small integers")
    except ValueError as error:
        raise DataCorrupted(f"{name} is not a JSON list of labels ({error}).") from error
    return labels.astype(np.uint8)


def _sheet_sizes(train: int, test: int, values: int) -> list[int]:
    def sheet(images: int) -> int:
        return 2 * images * values + (1 << 20)  # packing never adds as much

    def labels(images: int) -> int:
        return 32 * images + 1024

    return [sheet(_batch(train, 5))] * 5 + [sheet(test), labels(train), labels(test)]


def _decode_sheets(files: Mapping[str, bytes]) -> ImageArrays:
    *train, test, train_labels, test_labels = CIFAR10_SHEETS.members
    return ImageArrays(
        np.concatenate([read_png_sheet(files[name], name) for name in train]),
        _read_json_labels(files[train_labels], train_labels),
        read_png_sheet(files[test], test),
        _read_json_labels(files[test_labels], test_labels),
    )


IDX = RawFormat(
    "IDX",
    (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ),
    _decode_idx,
    _idx_sizes,
)

_CIFAR10_MEMBERS = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
CIFAR10_BINARY = RawFormat(
    "binary CIFAR-10",
    _CIFAR10_MEMBERS,
    lambda files: _decode_cifar(files, _CIFAR10_MEMBERS, 1),
    lambda train, test, values: _cifar_sizes(train, test, values, 5, 1),
)

_CIFAR100_MEMBERS = ("train.bin", "test.bin")
CIFAR100_BINARY = RawFormat(
    "binary CIFAR-100",
    _CIFAR100_MEMBERS,
    lambda files: _decode_cifar(files, _CIFAR100_MEMBERS, 2),
    lambda train, test, values: _cifar_sizes(train, test, values, 1, 2),
)

CIFAR10_SHEETS = RawFormat(
    "PNG sheets",
    (
        *(f"data_batch_{k}.png" for k in range(1, 6)),
        "test_batch.png",
        # Spelt so in the package.
        "train_lables.json",
        "test_lables.json",
    ),
    _decode_sheets,
    _sheet_sizes,
)


_BESIDE = 64 << 20  # bytes of other files that an archive may hold
_GZIP = b"\x1f\x8b"
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


def directory_has(directory: Path, raw_format: RawFormat) -> bool:
    """Whether every file of the format is in `directory`, plain or gzipped."""
    return all(_find(directory, name) is not None for name in raw_format.members)


def read_directory(
    directory: Path, raw_format: RawFormat, sizes: Mapping[str, int]
) -> dict[str, bytes]:
    """Read every file of the format from `directory`.

    Parameters
    ----------
    directory : Path
    raw_format : RawFormat
    sizes : Mapping[str, int]
        Largest size of each file, unpacked.

    Raises
    ------
    DataCorrupted
        A file is missing, damaged or too long.
    NotEnoughMemory
        Files of these sizes do not fit into memory.
    """
    checks.unpacked_fits(sum(sizes.values()), directory)
    files = {}
    for name in raw_format.members:
        path = _find(directory, name)
        if path is None:
            raise DataCorrupted(f"{directory} has no {name}.")
        with path.open("rb") as stream:
            unpack = _gunzip if path.suffix == ".gz" else _read
            files[name] = unpack(stream, sizes[name], str(path))
    return files


def read_archive(
    archive: Path, raw_format: RawFormat, sizes: Mapping[str, int]
) -> dict[str, bytes]:
    """Read every file of the format from a tar archive, in one pass, extracting nothing.

    Members are found by their base name, so the archive's directories do not matter, and no path
    in it can point outside.  Parameters and errors are those of `read_directory`.
    """
    limit = sum(sizes.values())
    checks.unpacked_fits(limit, archive)
    wanted = set(raw_format.members)
    files: dict[str, bytes] = {}
    try:
        with archive.open("rb") as stream:
            plain = _LimitedReader(_unpacked(stream), limit + _BESIDE, str(archive))
            with tarfile.open(fileobj=cast(IO[bytes], plain), mode="r:") as archived:
                for member in archived:
                    base = PurePosixPath(member.name).name
                    name = base.removesuffix(".gz")
                    if not member.isfile() or name not in wanted or name in files:
                        continue
                    stored = archived.extractfile(member)
                    if stored is None:
                        raise DataCorrupted(f"{archive} holds an unreadable {member.name}.")
                    origin, size = f"{member.name} in {archive}", sizes[name]
                    if base == name:
                        files[name] = _read(stored, size, origin)
                    else:  # packing adds less than a hundredth to what cannot be packed
                        packed = _read(stored, size + size // 100 + 1024, origin)
                        files[name] = _gunzip(io.BytesIO(packed), size, origin)
    except _DAMAGE as error:
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        raise DataCorrupted(f"{archive} is not a complete tar archive ({reason}).") from error
    if missing := sorted(wanted - files.keys()):
        raise DataCorrupted(f"{archive} has no {', '.join(missing)}.")
    return files


def _find(directory: Path, name: str) -> Path | None:
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def _read(stream: IO[bytes], size: int, origin: str) -> bytes:
    content = stream.read(size + 1)
    if len(content) > size:
        raise _too_long(origin, size)
    return content


def _gunzip(stream: IO[bytes], size: int, origin: str) -> bytes:
    stream.seek(-min(4, stream.seek(0, os.SEEK_END)), os.SEEK_END)
    # The last four bytes state the size of what they follow, modulo 2³².
    if int.from_bytes(stream.read(4), "little") > size:
        raise _too_long(origin, size)
    stream.seek(0)
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
            return _read(cast(IO[bytes], unpacked), size, origin)
    except _DAMAGE as error:
        raise DataCorrupted(f"{origin} is not a complete gzip file ({error}).") from error


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    packed = stream.read(len(_GZIP)) == _GZIP
    stream.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=stream, mode="rb")) if packed else stream


class _LimitedReader:
    """What `tarfile` needs of a stream; going beyond `limit` bytes is an error at once.

    An archive says how long its members are, and also its own headers: neither is read, or passed
    over, on its word.
    """

    def __init__(self, stream: IO[bytes], limit: int, origin: str) -> None:
        self._stream, self._limit, self._origin = stream, limit, origin

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int) -> int:
        self._require(offset)
        return self._stream.seek(offset)

    def read(self, size: int) -> bytes:
        self._require(self.tell() + size)
        return self._stream.read(size)

    def _require(self, end: int) -> None:
        if end > self._limit:
            raise _too_long(self._origin, self._limit)


def _too_long(origin: str, size: int) -> DataCorrupted:
    return DataCorrupted(f"{origin} is too long: it should hold at most {size:,} bytes.")

"""The bytes of named files in a directory or a tar archive, gzipped or not.

A few kilobytes can unpack to anything, so every file comes with the largest size that it can have
(`ImageSet.sizes`), and no more than that is ever unpacked or held.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, cast

from notsodeep import checks
from notsodeep.data.raw_formats import RawFormat
from notsodeep.errors import DataCorrupted

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

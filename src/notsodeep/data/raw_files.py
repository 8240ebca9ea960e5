"""The bytes of named files in a directory or a tar archive, gzipped or not."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from notsodeep.data.raw_formats import RawFormat
from notsodeep.errors import DataCorrupted

_LARGEST_MEMBER = 1 << 30  # a forged archive must not fill the memory


def directory_has(directory: Path, raw_format: RawFormat) -> bool:
    """Whether every file of the format is in `directory`, plain or gzipped."""
    return all(_find(directory, name) is not None for name in raw_format.members)


def read_directory(directory: Path, raw_format: RawFormat) -> dict[str, bytes]:
    """Read every file of the format from `directory`."""
    files = {}
    for name in raw_format.members:
        path = _find(directory, name)
        if path is None:
            raise DataCorrupted(f"{directory} has no {name}.")
        files[name] = _gunzip(path) if path.suffix == ".gz" else path.read_bytes()
    return files


def read_archive(archive: Path, raw_format: RawFormat) -> dict[str, bytes]:
    """Read every file of the format from a tar archive, in one pass, extracting nothing.

    Members are found by their base name, so the archive's directories do not matter, and no path
    in it can point outside.
    """
    wanted = set(raw_format.members)
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as archived:
            for member in archived:
                base = PurePosixPath(member.name).name
                plain = base.removesuffix(".gz")
                if not member.isfile() or plain not in wanted or plain in files:
                    continue
                stream = archived.extractfile(member)
                if stream is None or member.size > _LARGEST_MEMBER:
                    raise DataCorrupted(f"{archive} holds an unreadable {member.name}.")
                content = stream.read()
                files[plain] = gzip.decompress(content) if base != plain else content
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
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


def _gunzip(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataCorrupted(f"{path} is not a complete gzip file ({error}).") from error

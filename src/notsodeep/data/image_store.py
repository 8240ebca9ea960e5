"""Image sets on disk: where they lie, reading them, keeping them, listing them.

A set that was fetched is kept as four ``.npy`` files and a manifest in its own directory.  Raw
files that the user has anyway (torchvision's layout, Debian's package, unpacked archives) are read
where they are.  Whatever is read is compared with the catalogue's SHA-256 before it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from notsodeep import checks
from notsodeep.data import digits
from notsodeep.data.catalogue import IMAGE_SETS, ImageSet
from notsodeep.data.image_files import RawFormat, directory_has, read_archive, read_directory
from notsodeep.data.raw_data import ARRAY_NAMES, ByteArray, ImageArrays
from notsodeep.data.synthetic import SYNTHETIC_SETS
from notsodeep.errors import DataCorrupted, DataNotFound
from notsodeep.files import Manifest, make_directory, sha256_of_bytes, write_array
from notsodeep.files.atomic_files import named_write_failures
from notsodeep.files.manifests import FILE_NAME

VARIABLE = "NOTSODEEP_DATA"


def data_directory(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory; it need not exist.

    The first of: `explicit`, the environment variable ``NOTSODEEP_DATA``, and the platform's place
    for a user's application data (``~/.local/share/notsodeep`` on Linux).

    Raises
    ------
    DataNotFound
        Nothing is chosen, and there is no home directory.

    Examples
    --------
    >>> data_directory("somewhere/else").name
    'else'
    """
    if explicit is not None:
        return with_home(explicit)
    if chosen := os.environ.get(VARIABLE):
        return with_home(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or with_home("~/AppData/Local"))
    elif sys.platform == "darwin":
        base = with_home("~/Library/Application Support")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or with_home("~/.local/share"))
    return base / "notsodeep"


def with_home(path: str | os.PathLike[str]) -> Path:
    """Replace a leading ``~`` or ``~user`` by the home directory.

    Raises
    ------
    DataNotFound
        There is no such user, or the user has no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataNotFound(
            f"There is no home directory to find {os.fspath(path)} in. Give a full path, or set "
            f"the environment variable {VARIABLE} to a directory for data sets."
        ) from error


@dataclass(frozen=True)
class Location:
    """A place where a set was found.

    Attributes
    ----------
    kind : {"store", "directory", "archive"}
        Our own arrays, raw files in a directory, or an archive of raw files.
    path : Path
        The directory or the archive.
    """

    kind: Literal["store", "directory", "archive"]
    path: Path

    def __str__(self) -> str:
        return str(self.path)


def locate(image_set: ImageSet, data_dir: Path) -> Location | None:
    """Find a set without reading it: our own copy first, then raw files; None if absent."""
    own = data_dir / image_set.name
    if (own / FILE_NAME).is_file():
        return Location("store", own)
    for name in image_set.directories:
        if directory_has(data_dir / name, image_set.raw_format):
            return Location("directory", data_dir / name)
    for name in image_set.archives:
        if (data_dir / name).is_file():
            return Location("archive", data_dir / name)
    return None


def find_and_read(image_set: ImageSet, data_dir: Path) -> tuple[ImageArrays, Location]:
    """Locate, read and verify a set.

    Raises
    ------
    DataNotFound
        It is not there; the message says how to get it.
    DataCorrupted
        A file is missing, truncated or changed; the message says which, and how to repair it.
    """
    location = locate(image_set, data_dir)
    if location is None:
        raise not_found(image_set, data_dir)
    try:
        return read(image_set, location), location
    except DataCorrupted as error:
        remedy = f"Fetch a fresh copy with: notsodeep data get {image_set.name}"
        raise DataCorrupted(f"{error} {remedy}") from error


def read(image_set: ImageSet, location: Location) -> ImageArrays:
    """Read and verify a set at a known place; raises `DataCorrupted`."""
    if location.kind == "store":
        return _read_store(image_set, location.path)
    raw_format = image_set.raw_format
    read_files = read_directory if location.kind == "directory" else read_archive
    files = read_files(location.path, raw_format, image_set.sizes(raw_format))
    return decode(image_set, raw_format, files, str(location))


def decode(
    image_set: ImageSet, raw_format: RawFormat, files: Mapping[str, bytes], origin: str
) -> ImageArrays:
    """Turn raw files into verified arrays; `origin` names their source in messages."""
    for name, expected in image_set.member_sha256.items():
        if name in files and (got := sha256_of_bytes(files[name])) != expected:
            raise _mismatch(f"{name} of {image_set.name} from {origin}", got, expected)
    arrays = raw_format.decode(files)
    _check_shapes(image_set, arrays, origin)
    _check_digests(image_set, arrays.sha256, image_set.array_sha256, origin)
    return arrays


def keep(image_set: ImageSet, arrays: ImageArrays, data_dir: Path, source: str) -> Location:
    """Write verified arrays and, last, the manifest that makes them count.

    The caller holds the set's lock.
    """
    directory = make_directory(data_dir / image_set.name)
    with named_write_failures(directory / FILE_NAME):
        (directory / FILE_NAME).unlink(missing_ok=True)
    for name, array in arrays.items():
        write_array(directory / f"{name}.npy", array)
    facts = {"name": image_set.name, "source": source, "array_sha256": dict(arrays.sha256)}
    names = [f"{name}.npy" for name in ARRAY_NAMES]
    Manifest.of_files(directory, names, "image set", facts).write(directory)
    return Location("store", directory)


def not_found(image_set: ImageSet, data_dir: Path) -> DataNotFound:
    """Word the error for a set that is not there: where it was looked for, how to get it."""
    megabytes = image_set.download_size / 1e6
    message = (
        f"{image_set.name} is not on this machine (looked in {data_dir}). Get it with: notsodeep "
        f"data get {image_set.name} (about {megabytes:.0f} MB). {by_hand(image_set, data_dir)}"
    )
    present = [name for name in image_set.pickled if (data_dir / name).exists()]
    if present:
        message += (
            f" {present[0]} is there, but it holds pickles, which can run code when they are "
            "read; only the binary version is used."
        )
    return DataNotFound(message)


def by_hand(image_set: ImageSet, data_dir: Path) -> str:
    """Say which files, put where, make the set available."""
    if image_set.archives:
        return f"Or put {image_set.archives[0]} into {data_dir}."
    names = ", ".join(f"{name}.gz" for name in image_set.raw_format.members)
    return f"Or put {names} into {data_dir / image_set.directories[0]}."


def source_of(location: Location) -> str:
    """Say where the arrays at a location came from originally."""
    if location.kind == "store" and (manifest := Manifest.read(location.path)) is not None:
        return str(manifest.facts.get("source", "unknown"))
    return str(location.path)


def _read_store(image_set: ImageSet, directory: Path) -> ImageArrays:
    manifest = Manifest.read(directory)
    if manifest is None:
        raise DataCorrupted(f"{directory} has no {FILE_NAME}.")
    arrays = ImageArrays(*(_load(directory / f"{name}.npy") for name in ARRAY_NAMES))
    _check_shapes(image_set, arrays, str(directory))
    recorded = manifest.facts.get("array_sha256", {})
    expected = image_set.array_sha256 or {name: str(recorded.get(name)) for name in ARRAY_NAMES}
    _check_digests(image_set, arrays.sha256, expected, str(directory))
    return arrays


def _load(path: Path) -> ByteArray:
    try:
        # Mapped, not read: the bytes are converted to floats once and need no copy before that.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataCorrupted(f"{path} cannot be read ({error}).") from error
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        raise DataCorrupted(f"{path} does not hold unsigned bytes.")
    return array


def _check_shapes(image_set: ImageSet, arrays: ImageArrays, origin: str) -> None:
    n, m = image_set.num_train, image_set.num_test
    shapes = ((n, *image_set.image_shape), (n,), (m, *image_set.image_shape), (m,))
    for (name, array), shape in zip(arrays.items(), shapes, strict=True):
        if array.shape != shape:
            raise DataCorrupted(
                f"{name} of {image_set.name} from {origin} has shape {array.shape}; "
                f"expected {shape}."
            )


def _check_digests(
    image_set: ImageSet, got: Mapping[str, str], expected: Mapping[str, str], origin: str
) -> None:
    for name, digest in expected.items():
        if got[name] != digest:
            raise _mismatch(f"{name} of {image_set.name} from {origin}", got[name], digest)


def _mismatch(what: str, got: str, expected: str) -> DataCorrupted:
    return DataCorrupted(f"{what} has SHA-256 {got[:12]}…; expected {expected[:12]}….")


@dataclass(frozen=True)
class Listed:
    """One line of the list of data sets.

    Attributes
    ----------
    name : str
        Name in `load`.
    num_train, num_test, num_classes : int
        Sizes; for a drawn set, the defaults.
    shape : tuple of int
        Shape of one sample.
    present : bool
        Whether `load` would find it now.
    origin : str
        Where it comes from, or came from.
    on_disk : bool
        Whether it consists of files that can be verified.
    """

    name: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple[int, ...]
    present: bool
    origin: str
    on_disk: bool


def listing(data_dir: Path) -> tuple[Listed, ...]:
    """List every data set that `load` knows by name; nothing is read but manifests."""
    rows = [
        Listed(
            "digits",
            digits.NUM_TRAIN,
            digits.NUM_TEST,
            len(digits.CLASS_NAMES),
            digits.IMAGE_SHAPE,
            True,
            "scikit-learn",
            True,
        )
    ]
    for preset in SYNTHETIC_SETS.values():
        num_classes = 1 if preset.name == "sphere" else 2
        sizes = (preset.samples, preset.samples // 4, num_classes)
        rows.append(Listed(preset.name, *sizes, (preset.dimension,), True, "drawn", False))
    for entry in IMAGE_SETS.values():
        location = locate(entry, data_dir)
        if location is not None:
            try:
                origin = source_of(location)
            except DataCorrupted:
                origin = "unreadable manifest"
        else:
            origin = "official" if entry.mirror is None else f"official, {entry.mirror}"
        sizes = (entry.num_train, entry.num_test, len(entry.class_names))
        rows.append(
            Listed(entry.name, *sizes, entry.image_shape, location is not None, origin, True)
        )
    return tuple(rows)


def verify_set(name: str, data_dir: Path) -> str:
    """Read one set and compare it with its digests; return where it is.

    Raises
    ------
    DataNotFound, DataCorrupted
        It is not there, or not intact.
    UnknownName
        There is no such image set.
    """
    if name == "digits":
        digits.read_digits()
        return "scikit-learn"
    checks.known_name(name, ("digits", *IMAGE_SETS), "image set")
    _, location = find_and_read(IMAGE_SETS[name], data_dir)
    return str(location)

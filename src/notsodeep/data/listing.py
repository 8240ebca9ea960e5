"""Which data sets there are, and which are here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from notsodeep import checks
from notsodeep.data import digits, image_store
from notsodeep.data.catalogue import IMAGE_SETS
from notsodeep.data.presets import SYNTHETIC_SETS
from notsodeep.errors import DataCorrupted


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
        location = image_store.locate(entry, data_dir)
        if location is not None:
            try:
                origin = image_store.source_of(location)
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
    _, location = image_store.find_and_read(IMAGE_SETS[name], data_dir)
    return str(location)

"""Blocks of a symmetric matrix in a Zarr array, each with a mark that it is done.

Of the matrix only the blocks on and above the diagonal are stored, each as one chunk with a
CRC-32C checksum; a chunk that is not there reads as NaN.  A block is done when its mark is there:
a small file with the SHA-256 of the chunk, written after the chunk is safely on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks, extras
from notsodeep.errors import DataCorrupted
from notsodeep.files.atomic_files import (
    named_write_failures,
    remove_abandoned,
    synchronise_directory,
    write_json,
)
from notsodeep.files.manifests import sha256_of_file
from notsodeep.kernels import zarr_format
from notsodeep.kernels.plan import Tile

if TYPE_CHECKING:
    import zarr

Place = tuple[int, int]
"""Row and column of a block, counted in blocks; row ≤ column."""

MOST_BLOCKS = 1 << 22
"""Blocks of a matrix: as many files as a directory tree bears."""

_MARKS = "done"
_PARTIAL = re.compile(r"\d+\.[0-9a-f]{32}\.partial")  # a chunk that Zarr has not written to its end


@dataclass(frozen=True)
class StoredBlocks:
    """The blocks of an n × n matrix in a directory.

    Attributes
    ----------
    directory : Path
        Absolute, so that it means the same to every process.
    size : int
        n.
    side : int
        Rows and columns of a block; those at the end may have fewer.
    dtype : {"float32", "float64"}
    matrix : str
        Says which matrix it is; the mark of a block of another one does not count.
    """

    directory: Path
    size: int
    side: int
    dtype: str
    matrix: str

    @property
    def across(self) -> int:
        """Blocks in a row of the whole matrix."""
        return -(-self.size // self.side)

    def places(self) -> list[Place]:
        """Every block on and above the diagonal, row by row."""
        return [(i, j) for i in range(self.across) for j in range(i, self.across)]

    def tile(self, place: Place) -> Tile:
        """Return the rows and columns of the matrix that a block holds."""
        rows, columns = (slice(k * self.side, min((k + 1) * self.side, self.size)) for k in place)
        return Tile(rows, columns)

    def chunk(self, place: Place) -> Path:
        """Return the file of a block."""
        return self.directory / self.chunk_name(place)

    @staticmethod
    def chunk_name(place: Place) -> str:
        """Return the name of that file in the directory."""
        return f"c/{place[0]}/{place[1]}"

    def _mark(self, place: Place) -> Path:
        return self.directory / _MARKS / f"{place[0]}-{place[1]}.json"

    @property
    def _array_file(self) -> Path:
        return self.directory / zarr_format.FILE_NAME

    @property
    def _description(self) -> dict[str, Any]:
        return zarr_format.array_description(self.size, self.side, self.dtype)

    @property
    def _chunk_bytes(self) -> int:
        return zarr_format.chunk_bytes(self.side, self.dtype)

    def require_array(self) -> None:
        """Require that zarr.json is what it must be.

        Raises
        ------
        DataCorrupted
        """
        problem = zarr_format.description_problem(self.directory, self._description)
        if problem is not None:
            raise _damaged_block(self._array_file, problem)

    def prepare(self) -> None:
        """Write the description of the array, and remove what a killed writer left half done.

        Raises
        ------
        DataCorrupted
            A directory is a symbolic link: what is written there would go elsewhere.
        """
        extras.require("store_kernel", "zarr")
        self._reject_links()
        with named_write_failures(self.directory):
            self._remove_abandoned()
        # It is a function of what is known here, so one that was damaged is written again.
        if zarr_format.description_problem(self.directory, self._description) is not None:
            write_json(self._array_file, self._description)

    def remove(self) -> None:
        """Remove the files of all blocks and the description of the array, and nothing else.

        Raises
        ------
        DataCorrupted
            A directory is a symbolic link: what it leads to is not ours.
        """
        self._reject_links()
        with named_write_failures(self.directory):
            for place in self.places():
                self._mark(place).unlink(missing_ok=True)
                self.chunk(place).unlink(missing_ok=True)
            self._remove_abandoned()
            self._array_file.unlink(missing_ok=True)
        for directory in self._directories():
            with contextlib.suppress(OSError):  # it is not there, or holds something else
                directory.rmdir()

    def _directories(self) -> list[Path]:
        """Return where blocks and marks lie, the innermost first."""
        rows = [self.directory / "c" / str(row) for row in range(self.across)]
        return [*rows, self.directory / "c", self.directory / _MARKS]

    def _reject_links(self) -> None:
        for directory in self._directories():
            _no_link(directory)

    def _remove_abandoned(self) -> None:
        """Remove what killed writers left half done."""
        for path in self.directory.glob("c/*/*.partial"):
            if _PARTIAL.fullmatch(path.name):
                path.unlink(missing_ok=True)
        remove_abandoned(self.directory / _MARKS, r"\d+-\d+[.]json")

    def write(self, place: Place, block: NDArray[Any]) -> str:
        """Store a block, then its mark; return the SHA-256 of its file.

        Each replaces what is there at one stroke, so it does no harm if a worker that was given up
        for lost does the same once more.
        """
        tile, chunk = self.tile(place), self.chunk(place)
        with named_write_failures(chunk):
            array = zarr_format.open_array(self.directory, self._description, read_only=False)
            array[tile.rows, tile.columns] = block
            # Data before mark: after a power failure a mark must not vouch for a chunk that was
            # never written.
            with chunk.open("rb") as stream:
                os.fsync(stream.fileno())
            synchronise_directory(chunk.parent)
        digest = sha256_of_file(chunk)
        mark = {"sha256": digest, "bytes": chunk.stat().st_size, "matrix": self.matrix}
        write_json(self._mark(place), mark)
        return digest

    def read(self, place: Place) -> NDArray[Any]:
        """Return a block; its checksum is compared, and its SHA-256 when it is new to this object.

        Raises
        ------
        DataCorrupted
            The block is not there, or not what was written, or the array is described wrongly.
        NotEnoughMemory
            It does not fit into the memory that is free.
        """
        self.require_array()
        chunk, tile = self.chunk(place), self.tile(place)
        version = _version(chunk)
        if version is None or self._known.get(place) != version:
            checks.enough_memory(
                self._chunk_bytes, str(chunk), "Write the store again with a smaller side."
            )
            flaw = self._flaw(place, content=True)
            if flaw is not None:
                raise _damaged_block(chunk, flaw)
            self._known[place] = version
        try:
            return np.asarray(self._reader[tile.rows, tile.columns])
        except (OSError, ValueError) as error:
            raise _damaged_block(chunk, error) from error

    @cached_property
    def _reader(self) -> zarr.Array[Any]:
        return zarr_format.open_array(self.directory, self._description, read_only=True)

    @cached_property
    def _known(self) -> dict[Place, tuple[int, ...] | None]:
        """Files whose SHA-256 was found right: it costs as much as a product with ten vectors."""
        return {}

    def digest(self, place: Place) -> str | None:
        """Return the SHA-256 in the mark of a block; None if it has no mark that is right."""
        try:
            mark = zarr_format.stored_json(self._mark(place))
        except (OSError, ValueError):
            return None
        match mark:
            case {"sha256": str(digest), "bytes": self._chunk_bytes, "matrix": self.matrix}:
                return digest
        return None

    def problem(self, place: Place, *, content: bool = False) -> str | None:
        """Say what is wrong with a block; None if it is done.

        Parameters
        ----------
        content : bool
            Compare the SHA-256 of the file as well, which reads all of it.
        """
        flaw = self._flaw(place, content=content)
        return None if flaw is None else f"{self.chunk(place)}: {flaw}"

    def _flaw(self, place: Place, *, content: bool) -> str | None:
        chunk, digest = self.chunk(place), self.digest(place)
        if _behind_link(chunk):
            return "it lies behind a symbolic link"
        if not chunk.is_file():
            return "it is missing"
        if digest is None:
            return "it has no mark that it is done"
        if (size := chunk.stat().st_size) != self._chunk_bytes:
            return f"it has {size} bytes, expected {self._chunk_bytes}"
        try:
            if content and (got := sha256_of_file(chunk)) != digest:
                return f"it has SHA-256 {got[:12]}…, expected {digest[:12]}…"
        except OSError as error:
            return f"it cannot be read: {error}"
        return None

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of every block that is done, by the name of its file."""
        found = ((self.chunk_name(place), self.digest(place)) for place in self.places())
        return {name: digest for name, digest in found if digest is not None}


def block_count(size: int, side: int) -> int:
    """Return how many blocks of a matrix are stored."""
    across = -(-size // side)
    return across * (across + 1) // 2


def _behind_link(chunk: Path) -> bool:
    return any(path.is_symlink() for path in (chunk, chunk.parent, chunk.parent.parent))


def _version(chunk: Path) -> tuple[int, ...] | None:
    """Return what changes with a file, None if there is no such file in its place."""
    if _behind_link(chunk) or not chunk.exists():
        return None
    found = chunk.stat()
    # Inode and change time too: a rename or a restored mtime would escape the other two.
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _no_link(path: Path) -> None:
    """Require that a directory of a store lies in it."""
    if path.is_symlink():
        raise DataCorrupted(
            f"{path} is a symbolic link; a kernel store has none. Put what it leads to in its "
            "place, or remove it."
        )


def _damaged_block(path: Path, reason: object) -> DataCorrupted:
    """Say that a block cannot be read."""
    return DataCorrupted(
        f"{path} is damaged ({reason}). Run store_kernel again with verify=True (--verify): it "
        "computes what is damaged again."
    )

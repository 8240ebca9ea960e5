"""Blocks of a symmetric matrix in a Zarr array, each with a mark that it is done.

Of the matrix only the blocks on and above the diagonal are stored, each as one chunk with a
CRC-32C checksum; a chunk that is not there reads as NaN.  A block is done when its mark is there:
a small file with the SHA-256 of the chunk, written after the chunk is safely on disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.checks import saved_networks, storage
from notsodeep.errors import DataCorrupted
from notsodeep.execution.atomic_files import (
    named_write_failures,
    synchronise_directory,
    write_json,
)
from notsodeep.execution.digests import sha256_of_file
from notsodeep.kernels.evaluation import Tile

if TYPE_CHECKING:
    import zarr

Place = tuple[int, int]
"""Row and column of a block, counted in blocks; row ≤ column."""

_MARKS = "done"


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
        return self.directory / self._chunk_name(place)

    @staticmethod
    def _chunk_name(place: Place) -> str:
        return f"c/{place[0]}/{place[1]}"

    def _mark(self, place: Place) -> Path:
        return self.directory / _MARKS / f"{place[0]}-{place[1]}.json"

    def prepare(self) -> None:
        """Write the description of the array, and remove what a killed writer left half done."""
        saved_networks.installed("zarr", "cluster", "store_kernel")
        import zarr
        from zarr.codecs import Crc32cCodec

        with named_write_failures(self.directory):
            for leftover in self.directory.glob("c/*/*.partial"):
                leftover.unlink(missing_ok=True)
            if self.prepared:
                return
            # It is a function of what is known here, so one that was damaged is written again.
            (self.directory / "zarr.json").unlink(missing_ok=True)
            zarr.create_array(
                self.directory,
                shape=(self.size, self.size),
                chunks=(self.side, self.side),
                dtype=self.dtype,
                fill_value=np.nan,
                compressors=Crc32cCodec(),
                dimension_names=("sample", "sample"),
            )

    @property
    def prepared(self) -> bool:
        """Whether the description of the array is there and is right."""
        try:
            array = self._array("r")
        except DataCorrupted:
            return False
        found = (array.shape, array.chunks, array.dtype.name)
        return found == ((self.size,) * 2, (self.side,) * 2, self.dtype)

    def _array(self, mode: str) -> zarr.Array[Any]:
        saved_networks.installed("zarr", "cluster", "KernelStore")
        import zarr

        try:
            return zarr.open_array(self.directory, mode=mode)
        except (OSError, ValueError, KeyError) as error:
            raise storage.damaged_block(self.directory / "zarr.json", error) from error

    @cached_property
    def _reader(self) -> zarr.Array[Any]:
        return self._array("r")

    def write(self, place: Place, block: NDArray[Any]) -> str:
        """Store a block, then its mark; return the SHA-256 of its file.

        Each replaces what is there at one stroke, so it does no harm if a worker that was given up
        for lost does the same once more.
        """
        tile, chunk = self.tile(place), self.chunk(place)
        with named_write_failures(chunk):
            self._array("r+")[tile.rows, tile.columns] = block
            with chunk.open("rb") as stream:
                os.fsync(stream.fileno())
            synchronise_directory(chunk.parent)
        digest = sha256_of_file(chunk)
        mark = {"sha256": digest, "bytes": chunk.stat().st_size, "matrix": self.matrix}
        write_json(self._mark(place), mark)
        return digest

    def read(self, place: Place) -> NDArray[Any]:
        """Return a block; its checksum is compared.

        Raises
        ------
        DataCorrupted
            The block is not there, or not what was written.
        """
        chunk = self.chunk(place)
        if not chunk.is_file():
            raise storage.damaged_block(chunk, "it is missing")
        tile = self.tile(place)
        try:
            return np.asarray(self._reader[tile.rows, tile.columns])
        except ValueError as error:
            raise storage.damaged_block(chunk, error) from error

    def digest(self, place: Place) -> str | None:
        """Return the SHA-256 in the mark of a block; None if it has no readable mark."""
        mark = self._read_mark(place)
        return None if mark is None else mark[0]

    def problem(self, place: Place, *, content: bool = False) -> str | None:
        """Say what is wrong with a block; None if it is done.

        Parameters
        ----------
        content : bool
            Compare the SHA-256 of the file as well, which reads all of it.
        """
        mark = self._read_mark(place)
        if mark is None:
            return f"block {place} has no mark that it is done"
        chunk = self.chunk(place)
        if not chunk.is_file():
            return f"{chunk} is missing"
        if chunk.stat().st_size != mark[1]:
            return f"{chunk} has {chunk.stat().st_size} bytes, expected {mark[1]}"
        if content and (got := sha256_of_file(chunk)) != mark[0]:
            return f"{chunk} has SHA-256 {got[:12]}…, expected {mark[0][:12]}…"
        return None

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of every block that is done, by the name of its file."""
        found = ((self._chunk_name(place), self.digest(place)) for place in self.places())
        return {name: digest for name, digest in found if digest is not None}

    def _read_mark(self, place: Place) -> tuple[str, int] | None:
        try:
            mark = checks.strict_json(self._mark(place).read_bytes())
            if mark["matrix"] != self.matrix:
                return None
            return str(mark["sha256"]), int(mark["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

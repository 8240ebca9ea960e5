"""Tiles of a kernel that are kept: in memory, or in a temporary file on disk."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.files.atomic_files import make_directory, named_write_failures
from notsodeep.kernels.evaluation import Tile


def cached_bytes(tiles: Sequence[Tile], dtype: np.dtype[Any]) -> int:
    """Bytes that all the tiles take."""
    return sum(math.prod(tile.shape) for tile in tiles) * dtype.itemsize


class TileCache:
    """Room for every tile, filled one by one, from any thread.

    Parameters
    ----------
    tiles : sequence of Tile
    dtype : numpy.dtype
        What the tiles are rounded to.
    directory : Path, optional
        Keep the tiles in a temporary file there.  It has no name that lasts, and is gone with the
        cache, however the process ends.
    """

    def __init__(
        self, tiles: Sequence[Tile], dtype: np.dtype[Any], directory: Path | None = None
    ) -> None:
        self._dtype = dtype
        self._kept: dict[int, NDArray[Any]] = {}
        self._file: NDArray[Any] | None = None
        if directory is None:
            return
        self._shapes = [tile.shape for tile in tiles]
        self._starts = [0, *itertools.accumulate(math.prod(shape) for shape in self._shapes)]
        size = cached_bytes(tiles, dtype)
        make_directory(directory)
        with named_write_failures(directory), tempfile.TemporaryFile(dir=directory) as stream:
            # All of it now: a full disk is an error here, and a crash when a page is written.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                stream.truncate(size)
            self._file = np.memmap(stream, dtype=dtype, mode="r+", shape=(size // dtype.itemsize,))

    def get(self, index: int) -> NDArray[Any] | None:
        """Return a tile as it was kept, or None."""
        return self._kept.get(index)

    def put(self, index: int, block: NDArray[Any]) -> NDArray[Any]:
        """Keep a tile; return it as it is kept."""
        if self._file is None:
            kept = block.astype(self._dtype)
        else:
            place = slice(self._starts[index], self._starts[index + 1])
            kept = np.asarray(self._file[place]).reshape(self._shapes[index])
            kept[:] = block
        self._kept[index] = kept
        return kept

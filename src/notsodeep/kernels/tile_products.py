"""Products of a kernel with vectors, tile by tile: what every kernel operator has in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from notsodeep.kernels.evaluation import Tile
from notsodeep.kernels.mirrored_product import MOST_COLUMNS, mirrored_product
from notsodeep.threads import map_threads

Vectors = NDArray[Any]
Part = tuple[slice, Vectors]
"""Rows of a product, and what a tile adds to them."""


def tile_parts(
    tile: Tile, block: NDArray[Any], V: Vectors, *, symmetric: bool, transposed: bool
) -> list[Part]:
    """Return what a tile adds to A V, or to Aᵀ V.

    Parameters
    ----------
    tile : Tile
    block : ndarray of shape (rows, columns), float32 or float64
        The kernel there.
    V : ndarray of shape (n, k) or (m, k)
    symmetric : bool
        The tile stands for its mirror image as well, unless it lies on the diagonal.
    transposed : bool
        Makes no difference if `symmetric`.
    """
    mirrored = symmetric and tile.rows != tile.columns
    few = V.shape[1] <= MOST_COLUMNS and V.dtype == np.float64
    if block.dtype == np.float32 and mirrored and few:
        forward, backward = mirrored_product(block, V[tile.columns], V[tile.rows])
        return [(tile.rows, forward), (tile.columns, backward)]
    block = block.astype(np.float64, copy=False)
    parts = []
    if symmetric or not transposed:
        parts.append((tile.rows, block @ V[tile.columns]))
    if mirrored or (transposed and not symmetric):
        parts.append((tile.columns, block.T @ V[tile.rows]))
    return parts


def parts_in_batches(
    work: Callable[[int], list[Part]], count: int, threads: int, size: int
) -> Iterator[list[Part]]:
    """Yield ``work(0)``, …, ``work(count − 1)`` in order; at most `size` of them wait."""
    for start in range(0, count, size):
        yield from map_threads(work, range(start, min(start + size, count)), threads)


class TiledOperator(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """A kernel that is multiplied with vectors tile by tile.

    Subclasses say what each tile adds, in the order of the tiles.  That order is the order of
    summation, so that a product does not depend on where and when a tile was worked on.
    """

    _symmetric: bool

    @abstractmethod
    def _parts(self, V: Vectors, *, transposed: bool) -> Iterator[list[Part]]:
        """Yield what each tile adds to A V or Aᵀ V, tile after tile."""

    def _product(self, V: Vectors, *, transposed: bool) -> Vectors:
        """Return A V or Aᵀ V, shape (n, k) or (m, k), in one pass over the tiles."""
        forward = self._symmetric or not transposed
        kind = np.result_type(V.dtype, np.float64)
        # Contiguous once, instead of in every tile.
        V = np.ascontiguousarray(V, dtype=kind)
        result = np.zeros((self.shape[0 if forward else 1], V.shape[1]), dtype=kind)
        for parts in self._parts(V, transposed=transposed):
            for place, part in parts:
                result[place] += part
        return result

    def _matmat(self, V: Vectors) -> Vectors:
        return self._product(V, transposed=False)

    def _rmatmat(self, V: Vectors) -> Vectors:
        return self._product(V, transposed=True)

    def _matvec(self, v: Vectors) -> Vectors:
        return self._matmat(v.reshape(-1, 1))

    def _rmatvec(self, v: Vectors) -> Vectors:
        return self._rmatmat(v.reshape(-1, 1))

    def _adjoint(self) -> LinearOperator:
        return self if self._symmetric else super()._adjoint()

    def _transpose(self) -> LinearOperator:
        return self if self._symmetric else super()._transpose()

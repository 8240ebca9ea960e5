"""Products of a kernel with vectors, tile by tile: what every kernel operator has in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from notsodeep.kernels.plan import Tile
from notsodeep.threads import map_threads

Vectors = NDArray[Any]
Part = tuple[slice, Vectors]
"""Rows of a product, and what a tile adds to them."""

MOST_COLUMNS = 32
"""Beyond this many vectors the matrix products of a BLAS library are faster."""

_ROWS = 4  # rows at a time: their dot products and updates share every load


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
    # Bound by memory: one pass over the tile for both products, against two and a conversion.
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


@numba.njit(  # type: ignore[untyped-decorator]  # numba has no types
    cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy"
)
def _both_products(block: Any, right: Any, left: Any, forward: Any, backward: Any) -> None:
    """Forward = right blockᵀ and backward += left block; vectors are rows, lengths padded to 4."""
    rows, columns = block.shape
    #     right ᵀ  v ├───────────────┤ columns
    #               ┌───────────────┐
    #   left   l0…l3│ four rows of  │ → s0…s3: dot products with v
    #               │ the block     │
    #               └───────────────┘
    #                  ↓ w += Σ l_r · row_r
    buffer = np.zeros((_ROWS, columns))
    b0, b1, b2, b3 = buffer[0], buffer[1], buffer[2], buffer[3]
    for i in range(0, rows, _ROWS):
        for r in range(_ROWS):
            if i + r < rows:
                for j in range(columns):
                    buffer[r, j] = block[i + r, j]
            else:
                buffer[r, :] = 0.0
        for c in range(right.shape[0]):
            v, w = right[c], backward[c]
            l0, l1, l2, l3 = left[c, i], left[c, i + 1], left[c, i + 2], left[c, i + 3]
            s0 = s1 = s2 = s3 = 0.0
            for j in range(columns):
                s0 += b0[j] * v[j]
                s1 += b1[j] * v[j]
                s2 += b2[j] * v[j]
                s3 += b3[j] * v[j]
                w[j] += b0[j] * l0 + b1[j] * l1 + b2[j] * l2 + b3[j] * l3
            forward[c, i], forward[c, i + 1] = s0, s1
            forward[c, i + 2], forward[c, i + 3] = s2, s3


def mirrored_product(
    block: NDArray[np.float32], right: NDArray[np.float64], left: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return block @ right and block.T @ left, in double precision.

    The tile is read once, as it is: numbers become doubles in registers, so that what comes from
    memory is half as much.  Products in single precision are no faster with ten vectors, and
    residuals of a solve would stop at 5e-5 and more (4000 images, λ = 1e-2): the vectors would be
    rounded by 6e-8 of themselves, and the kernel's norm is thousands of times its ridge.

    Parameters
    ----------
    block : ndarray of shape (rows, columns)
    right : ndarray of shape (columns, k)
    left : ndarray of shape (rows, k)
    """
    rows, columns = block.shape
    k = right.shape[1]
    padded = -(-rows // _ROWS) * _ROWS
    rows_of_left = np.zeros((k, padded))
    rows_of_left[:, :rows] = left.T
    forward, backward = np.empty((k, padded)), np.zeros((k, columns))
    _both_products(block, np.ascontiguousarray(right.T), rows_of_left, forward, backward)
    return forward[:, :rows].T, backward.T

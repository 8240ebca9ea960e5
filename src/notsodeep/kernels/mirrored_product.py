"""A tile and its mirror image times vectors, in one pass over the tile."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 32
"""Beyond this many vectors the matrix products of a BLAS library are faster."""

_ROWS = 4  # rows at a time: their dot products and updates share every load


@numba.njit(  # type: ignore[untyped-decorator]  # numba has no types
    cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy"
)
def _both_products(block: Any, right: Any, left: Any, forward: Any, backward: Any) -> None:
    """Forward = right blockᵀ and backward += left block; vectors are rows, lengths padded to 4."""
    rows, columns = block.shape
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

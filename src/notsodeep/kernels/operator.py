"""A kernel as a linear operator: products with vectors, never the whole matrix.

The matrix is cut into tiles that stay in the processor's cache.  Each product computes every tile
again, uses it, and drops it; of a symmetric kernel only the tiles on and above the diagonal, each
for both of its places.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotEnoughMemory
from notsodeep.kernels.exact import kinds_of, make_plan
from notsodeep.kernels.plan import Tile
from notsodeep.models import Convention, KernelModel
from notsodeep.threads import map_threads

Cache = Literal["never", "float32", "float64"]
Vectors = NDArray[Any]

MAX_COLUMNS = 32
"""Beyond this many vectors the matrix products of a BLAS library are faster."""

_ROWS = 4  # rows at a time: their dot products and updates share every load
_BATCH_BYTES = 1 << 29  # of products that wait to be added up, at most
_BATCH = 2048  # tiles of which they are


class TiledOperator(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """A kernel that is multiplied with vectors tile by tile.

    The order of the tiles is the order of summation, so that a product does not depend on where and
    when a tile was worked on.
    """

    _symmetric: bool
    _tiles: Sequence[Tile]

    @abstractmethod
    def _block(self, index: int) -> NDArray[Any]:
        """Return the kernel on a tile."""

    def _product(self, V: Vectors, *, transposed: bool) -> Vectors:
        """Return A V or Aᵀ V, shape (n, k) or (m, k), in one pass over the tiles."""
        forward = self._symmetric or not transposed
        V = np.ascontiguousarray(V, dtype=np.result_type(V.dtype, np.float64))
        result = np.zeros((self.shape[0 if forward else 1], V.shape[1]), dtype=V.dtype)

        def work(index: int) -> list[tuple[slice, Vectors]]:
            tile = self._tiles[index]
            return tile_products(tile, self._block(index), V, self._symmetric, transposed)

        largest = max(sum(tile.shape) for tile in self._tiles)
        size = max(1, min(_BATCH, _BATCH_BYTES // max(1, largest * V[0].nbytes)))
        for start in range(0, len(self._tiles), size):
            for products in map_threads(work, range(start, min(start + size, len(self._tiles)))):
                for place, part in products:
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


class KernelOperator(TiledOperator):
    """The exact kernel of a model on data, as a `scipy.sparse.linalg.LinearOperator`.

    ``A @ v`` and ``A @ V`` recompute the kernel tile by tile, on all threads, in one pass for any
    number of columns; the n × n matrix never exists.  Results do not depend on the number of
    threads, to the last bit.

    Parameters
    ----------
    model : DeepEquilibrium, ExplicitNetwork, MonotoneEquilibrium or a convolutional model
    X : array_like of shape (n, p)
        Not copied if it is an array of float64, so do not change it afterwards.
    Y : array_like of shape (m, p), optional
        Without it the operator is symmetric, (n, n); with it, (n, m).
    kind : {"ck", "ntk"}
    convention : {"feature", "preactivation"}
        As for `kernel`.
    cache : {"never", "float32", "float64"}
        With "float32" or "float64" the first product keeps every tile, rounded to that type, in 4
        or 8 bytes for each pair (half of them if symmetric); later ones do without any computation
        of kernels.  The operator is one and the same matrix all the time.  Rounded to float32 it
        may have eigenvalues as low as about −1e-7 times its norm: use a ridge well above that.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(300, 20, rng=0)
    >>> A = nsd.KernelOperator(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), X, kind="ntk")
    >>> A
    <300x300 KernelOperator with dtype=float64>
    >>> v = np.ones(300)
    >>> np.allclose(A @ v, nsd.kernel(A.model, X, kind="ntk") @ v)
    True
    """

    def __init__(
        self,
        model: KernelModel,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        *,
        kind: str = "ck",
        convention: Convention = "feature",
        cache: Cache = "never",
    ) -> None:
        owner = "KernelOperator"
        checks.known_name(cache, get_args(Cache), f"cache of {owner}")
        kinds = kinds_of(kind)
        if len(kinds) > 1:
            raise checks.invalid("kind", owner, "be 'ck' or 'ntk'", repr(kind))
        self._plan = make_plan(model, X, Y, kinds, convention, owner)
        self.model, self.kind, self.convention = model, ("ck", "ntk")[kinds[0]], convention
        self._symmetric = Y is None
        self._tiles = self._plan.tiles()
        self._cache_type = None if cache == "never" else np.dtype(cache)
        self._kept: dict[int, NDArray[Any]] = {}
        if self._cache_type is not None:
            _require_room(self._tiles, self._cache_type)
        self._plan.report()
        super().__init__(np.float64, self._plan.shape)

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,), from its own formula; of a symmetric operator only."""
        checks.symmetric_operator(self._symmetric, self.shape, "KernelOperator")
        return self._plan.diagonal[0].copy()

    def _block(self, index: int) -> NDArray[Any]:
        if index in self._kept:
            return self._kept[index]
        block: NDArray[Any] = self._plan.tile(self._tiles[index])[0]
        if self._cache_type is None:
            return block
        self._kept[index] = np.array(block, dtype=self._cache_type, order="C")
        return self._kept[index]


def tile_products(
    tile: Tile, block: NDArray[Any], V: Vectors, symmetric: bool, transposed: bool
) -> list[tuple[slice, Vectors]]:
    """Return what a tile adds to A V, or to Aᵀ V: rows of the product, and their part.

    If `symmetric` the tile stands for its mirror image as well, unless it lies on the diagonal.
    """
    mirrored = symmetric and tile.rows != tile.columns
    few = V.shape[1] <= MAX_COLUMNS and V.dtype == np.float64
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


def _require_room(tiles: Sequence[Tile], dtype: np.dtype[Any]) -> None:
    """Reject a cache that is larger than the memory that is free now."""
    needed = sum(math.prod(tile.shape) for tile in tiles) * dtype.itemsize
    available = checks.available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The cache of KernelOperator needs {needed / 2**20:,.1f} MiB, and "
            f"{available / 2**20:,.1f} MiB are free. Use cache='never', or store_kernel."
        )


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

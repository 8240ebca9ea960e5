"""A kernel as a linear operator: products with vectors, never the whole matrix.

The matrix is cut into tiles that stay in the processor's cache.  Each product computes every tile
again, uses it, and drops it; of a symmetric kernel only the tiles on and above the diagonal, each
for both of its places.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.architectures import Convention, KernelName, Model
from notsodeep.execution.threads import map_threads, thread_count
from notsodeep.kernels.compiled import PADDING
from notsodeep.kernels.evaluation import SIDE, Explanation
from notsodeep.kernels.exact import checked_evaluation

FloatArray = NDArray[np.float64]
Vectors = NDArray[Any]
Cache = Literal["never", "float32", "float64"]

_PAIR = 16  # bytes of a pair that is being worked on: both kernels, as doubles
_LEAST = 2 * _PAIR * PADDING**2  # the compiled loops work on strips of PADDING columns
_BATCH = 256  # tiles whose products wait to be added up, at most


class KernelOperator(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """The exact kernel of a model on data, as a `scipy.sparse.linalg.LinearOperator`.

    ``A @ v`` and ``A @ V`` recompute the kernel tile by tile, on all threads, in one pass for any
    number of columns; the n × n matrix never exists.  What is kept is proportional to the number
    of samples.  Results do not depend on the number of threads, to the last bit: tiles are added
    up in a fixed order.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    X : array_like of shape (n, p)
        Not copied if it is an array of float64, so do not change it afterwards.
    Y : array_like of shape (m, p), optional
        Without it the operator is symmetric, (n, n); with it, (n, m).
    kernel : {"conjugate", "tangent"}
        See `conjugate_kernel` and `tangent_kernel`.
    convention : {"preactivation", "feature"}
        Concerns DEQs only.
    memory : int, default 1 GiB
        Bytes for the cache, the tiles in work and their products with the vectors; at least
        131,072.  More than a few megabytes per thread are of use to the cache only.  The samples,
        what is kept about each of them, and the vectors come on top.
    cache : {"never", "float32", "float64"}
        With "float32" or "float64" the first product keeps every tile, and later ones do without
        any computation of kernels.  This needs 4 or 8 bytes for each pair (half of them if
        symmetric) within `memory`.  "float64" changes nothing else; "float32" rounds every entry,
        by up to 6e-8 of it, in the first product already, so that the operator is one and the same
        matrix all the time.  A rounded kernel is symmetric but may have eigenvalues as low as
        about −6e-8 times its norm: use a ridge well above that.

    Attributes
    ----------
    shape : tuple of int
    dtype : float64
    model, kernel, convention
        As given.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(300, 20, rng=0)
    >>> A = nsd.KernelOperator(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), X, kernel="tangent")
    >>> A
    <300x300 KernelOperator with dtype=float64>
    >>> v = np.ones(300)
    >>> np.allclose(A @ v, nsd.tangent_kernel(A.model, X) @ v)
    True
    """

    def __init__(
        self,
        model: Model,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        *,
        kernel: KernelName = "conjugate",
        convention: Convention = "preactivation",
        memory: int = 1 << 30,
        cache: Cache = "never",
    ) -> None:
        owner = "KernelOperator"
        kernels = get_args(KernelName)
        checks.known_name(kernel, kernels, f"kernel of {owner}")
        checks.known_name(cache, get_args(Cache), f"cache of {owner}")
        self._memory = checks.memory_budget(memory, _LEAST, owner)
        tangent = kernel == "tangent"
        self._evaluation = checked_evaluation(model, X, Y, convention, owner, tangent=tangent)
        self.model, self.kernel, self.convention = model, kernel, convention
        self._symmetric = Y is None
        self._which = kernels.index(kernel)
        # A tile takes half of the memory at most; not less for more threads, so that their number
        # does not change the result.
        side = math.isqrt(self._memory // (2 * _PAIR)) // PADDING * PADDING
        self._tiles = self._evaluation.tiles(min(side, SIDE))
        self._kept: dict[int, NDArray[Any]] = {}
        self._keep_as = None if cache == "never" else np.dtype(cache)
        if self._keep_as is not None:
            kept = sum(math.prod(tile.shape) for tile in self._tiles) * self._keep_as.itemsize
            one_tile = 2 * _PAIR * math.prod(self._tiles[0].shape)
            checks.cache_fits(kept + one_tile, self._memory, owner)
            self._memory -= kept
        self._reported = False
        super().__init__(np.float64, self._evaluation.shape)

    @property
    def explanation(self) -> Explanation:
        """How the kernel is computed; complete after the first product, pairs counted in all."""
        return self._evaluation.explanation

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,), from its own formula; of a symmetric operator only."""
        checks.symmetric_operator(self._symmetric, self.shape, "KernelOperator")
        return self._evaluation.diagonal()[self._which].copy()

    def _block(self, index: int) -> FloatArray:
        """Compute a tile of the kernel, or take it from the cache."""
        if index not in self._kept:
            block: FloatArray = self._evaluation.tile(self._tiles[index])[self._which]
            if self._keep_as is None:
                return block
            self._kept[index] = block.astype(self._keep_as)
        return self._kept[index].astype(np.float64, copy=False)

    def _product(self, V: Vectors, *, transposed: bool) -> Vectors:
        """Return A V or Aᵀ V, shape (n, k) or (m, k), in one pass over the tiles."""
        forward = self._symmetric or not transposed
        kind = np.result_type(V.dtype, np.float64)
        # Contiguous once, instead of in every tile.
        V = np.ascontiguousarray(V, dtype=kind)
        result = np.zeros((self.shape[0 if forward else 1], V.shape[1]), dtype=kind)

        def work(index: int) -> list[tuple[slice, Vectors]]:
            tile, block = self._tiles[index], self._block(index)
            parts = []
            if forward:
                parts.append((tile.rows, block @ V[tile.columns]))
            if not forward or (self._symmetric and tile.rows != tile.columns):
                parts.append((tile.columns, block.T @ V[tile.rows]))
            return parts

        # Half of the memory is for tiles in work, half for products that wait for their turn.
        largest, half = self._tiles[0].shape, self._memory // 2
        threads = max(1, min(thread_count(), half // (_PAIR * math.prod(largest))))
        size = max(threads, min(_BATCH, half // max(1, sum(largest) * V[0].nbytes)))
        everything = range(len(self._tiles))
        for start in range(0, len(everything), size):
            for parts in map_threads(work, everything[start : start + size], threads):
                for place, part in parts:
                    result[place] += part
        if not self._reported:
            self._evaluation.report()
            self._reported = True
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

"""A kernel as a linear operator whose products are computed by an executor's workers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.cluster.executors import Executor, Handle
from notsodeep.kernels.block_source import BLOCK, BlockSource
from notsodeep.kernels.operator import Cache
from notsodeep.kernels.plan import Tile
from notsodeep.kernels.tiled_operator import Part, TiledOperator, Vectors, tile_parts
from notsodeep.models import Convention, KernelModel, KernelName


class DistributedKernelOperator(TiledOperator):
    """The exact kernel of a model on data, multiplied with vectors on workers.

    The samples go to the workers once; vectors go there and products come back, blocks never
    travel.  Products are added up in a fixed order, so that the result does not depend on the
    number of workers, nor on the loss of one.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    X : array_like of shape (n, p)
    Y : array_like of shape (m, p), optional
        Without it the operator is symmetric, (n, n); with it, (n, m).
    executor : Executor
        See `notsodeep.cluster.executors.open_executor`.  It must stay open.
    kernel : {"conjugate", "tangent"}
        See `conjugate_kernel` and `tangent_kernel`.
    convention : {"preactivation", "feature"}
        Concerns DEQs only.
    cache : {"never", "float32", "float64"}
        Otherwise than with "never" each worker keeps the blocks it has computed: 4 or 8 bytes for
        each pair (half of them if symmetric) in all.  As in `KernelOperator`, "float32" rounds
        every entry, by up to 6e-8 of it.
    side : int, default 1920
        Rows and columns of a block; the result depends on it by rounding.

    Attributes
    ----------
    shape : tuple of int
    dtype : float64
    model, kernel, convention
        As given.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.cluster import open_executor
    >>> X = nsd.data.sphere(100, 20, rng=0)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> with open_executor() as executor:  # open_executor("local") for worker processes
    ...     A = DistributedKernelOperator(deq, X, executor=executor)
    ...     np.allclose(A @ X, nsd.conjugate_kernel(deq, X) @ X)
    True
    """

    def __init__(
        self,
        model: KernelModel,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        *,
        executor: Executor,
        kernel: KernelName = "conjugate",
        convention: Convention = "preactivation",
        cache: Cache = "never",
        side: int = BLOCK,
    ) -> None:
        owner = "DistributedKernelOperator"
        checks.known_name(cache, get_args(Cache), f"cache of {owner}")
        checks.integer_at_least(side, 16, "side", owner)
        self._source = BlockSource.checked(model, X, Y, kernel, convention, owner)
        self.model, self.kernel, self.convention = model, kernel, convention
        self._symmetric = Y is None
        self._executor = executor
        self._tiles = self._source.plan.tiles(side)
        self._keep_as = None if cache == "never" else cache
        self._shared: Handle | None = None
        super().__init__(np.float64, self._source.plan.shape)

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,), from its own formula; of a symmetric operator only."""
        checks.symmetric_operator(self._symmetric, self.shape, "DistributedKernelOperator")
        return self._source.diagonal()

    def _blocks(self) -> Handle:
        """Return what a product needs besides the vectors: the samples, or the blocks."""
        if self._shared is None:
            self._shared = self._executor.share(self._source)
            if self._keep_as is not None:
                work = functools.partial(_block, dtype=self._keep_as)
                self._shared = self._executor.keep(work, self._tiles, self._shared)
        return self._shared

    def _parts(self, V: Vectors, *, transposed: bool) -> Iterator[list[Part]]:
        product = functools.partial(_block_parts, symmetric=self._symmetric, transposed=transposed)
        vectors = self._executor.share(V)
        return self._executor.map(product, self._tiles, self._blocks(), vectors)


def _block(tile: Tile, source: BlockSource, *, dtype: str) -> NDArray[Any]:
    return source.block(tile, dtype)


def _block_parts(
    tile: Tile, blocks: BlockSource | NDArray[Any], V: Vectors, *, symmetric: bool, transposed: bool
) -> list[Part]:
    """Multiply one block, computed here and now or kept from before."""
    block = blocks.block(tile) if isinstance(blocks, BlockSource) else blocks
    block, V = (np.require(array, requirements="A") for array in (block, V))  # see `Plan`
    return tile_parts(tile, block, V, symmetric=symmetric, transposed=transposed)

"""A kernel as a linear operator: products with vectors, never the whole matrix.

The matrix is cut into tiles that stay in the processor's cache.  Each product computes every tile
again, uses it, and drops it; of a symmetric kernel only the tiles on and above the diagonal, each
for both of its places.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotEnoughMemory
from notsodeep.files.atomic_files import make_directory, named_write_failures
from notsodeep.kernels.compiled import PADDING
from notsodeep.kernels.exact import checked_plan
from notsodeep.kernels.plan import SIDE, Explanation, Tile
from notsodeep.kernels.tiled_operator import (
    Part,
    TiledOperator,
    Vectors,
    parts_in_batches,
    tile_parts,
)
from notsodeep.models import Convention, KernelModel, KernelName, kernel_name
from notsodeep.threads import thread_count

Cache = Literal["never", "float32", "float64"]

_PAIR = 16  # bytes of a pair that is being worked on: both kernels, as doubles
_LEAST = 2 * _PAIR * PADDING**2  # the compiled loops work on strips of PADDING columns
_BATCH = 2048  # tiles whose products wait to be added up, at most


class KernelOperator(TiledOperator):
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
    kind : {"ck", "ntk"}
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
        symmetric) within `memory`.  "float64" changes nothing else; "float32" computes tiles as
        `tangent_kernel` with ``dtype=numpy.float32`` does, with errors of mostly below 5e-7 of
        √(K_ii K_jj), in the first product already, so that the operator is one and the same matrix
        all the time.  It is symmetric but may have eigenvalues as low as about −1e-7 times its
        norm: use a ridge well above that.
    cache_directory : path, optional
        Keep the cache in a temporary file there instead of in memory; it does not count in
        `memory`, and is gone with the operator.  A product then reads the whole file.
    dtype : float64 or float32
        In which entries are computed, see `conjugate_kernel`; a float32 cache has float32 entries.
        Vectors, sums and results are float64 in any case.

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
    >>> A = nsd.KernelOperator(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), X, kind="ntk")
    >>> A
    <300x300 KernelOperator with dtype=float64>
    >>> v = np.ones(300)
    >>> np.allclose(A @ v, nsd.tangent_kernel(A.model, X) @ v)
    True
    """

    def __init__(
        self,
        model: KernelModel,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        *,
        kind: KernelName = "ck",
        convention: Convention = "feature",
        memory: int = 1 << 30,
        cache: Cache = "never",
        cache_directory: str | PathLike[str] | None = None,
        dtype: Any = np.float64,
    ) -> None:
        owner = "KernelOperator"
        kind = kernel_name(kind, f"kernel of {owner}")
        checks.known_name(cache, get_args(Cache), f"cache of {owner}")
        self._memory = _memory_budget(memory, _LEAST, owner)
        computed = np.dtype(np.float32) if cache == "float32" else checks.kernel_dtype(dtype, owner)
        self._plan = checked_plan(model, X, Y, convention, owner, kind, dtype=computed)
        self.model, self.kind, self.convention = model, kind, convention
        self._symmetric = Y is None
        self._which = get_args(KernelName).index(kind)
        # A tile takes half of the memory at most; not less for more threads, so that their number
        # does not change the result.
        # Whole strips of the compiled loops: a partial one costs as much as a full one.
        side = math.isqrt(self._memory // (2 * _PAIR)) // PADDING * PADDING
        self._tiles = self._plan.tiles(min(side, SIDE))
        self._kept: TileCache | None = None
        if cache != "never":
            dtype, directory = np.dtype(cache), None
            if cache_directory is None:
                needed = cached_bytes(self._tiles, dtype)
                one_tile = 2 * _PAIR * math.prod(self._tiles[0].shape)
                _cache_fits(needed + one_tile, self._memory, owner)
                self._memory -= needed
            else:
                directory = Path(cache_directory)
            self._kept = TileCache(self._tiles, dtype, directory)
        self._reported = False
        super().__init__(np.float64, self._plan.shape)

    @property
    def explanation(self) -> Explanation:
        """How the kernel is computed; complete after the first product, pairs counted in all."""
        return self._plan.explanation

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,), from its own formula; of a symmetric operator only."""
        checks.symmetric_operator(self._symmetric, self.shape, "KernelOperator")
        return self._plan.diagonal()[self._which].copy()

    def _block(self, index: int) -> NDArray[Any]:
        """Compute a tile of the kernel, or take it from the cache as it is kept there."""
        kept = None if self._kept is None else self._kept.get(index)
        if kept is not None:
            return kept
        block: NDArray[Any] = self._plan.tile(self._tiles[index])[self._which]
        return block if self._kept is None else self._kept.put(index, block)

    def _parts(self, V: Vectors, *, transposed: bool) -> Iterator[list[Part]]:
        def work(index: int) -> list[Part]:
            tile, block = self._tiles[index], self._block(index)
            return tile_parts(tile, block, V, symmetric=self._symmetric, transposed=transposed)

        # Half of the memory is for tiles in work, half for products that wait for their turn.
        largest, half = self._tiles[0].shape, self._memory // 2
        threads = max(1, min(thread_count(), half // (_PAIR * math.prod(largest))))
        # A symmetric tile leaves two products, of its height and of its width.
        size = max(threads, min(_BATCH, half // max(1, sum(largest) * V[0].nbytes)))
        yield from parts_in_batches(work, len(self._tiles), threads, size)
        if not self._reported:
            self._plan.report()
            self._reported = True


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


def _memory_budget(value: object, least: int, owner: str) -> int:
    """Require a number of bytes of at least `least`."""
    number = checks.finite_number(value, "memory", owner)
    if number < least:
        requirement = f"be at least {least:,} bytes"
        raise checks.invalid("memory", owner, requirement, f"{number:g}", "One GiB is 2**30.")
    return int(number)


def _cache_fits(needed: int, memory: int, owner: str) -> None:
    """Reject a cache that is larger than its budget, or than the memory that is free now."""
    available = checks.available_memory()
    if needed > min(memory, available):
        raise NotEnoughMemory(
            f"The cache of {owner} needs {needed / 2**20:,.1f} MiB. It has memory = "
            f"{memory / 2**20:,.1f} MiB, and {available / 2**20:,.1f} MiB are free. "
            "Use cache='never', or cache='float32' and a larger memory."
        )

"""Kernels on disk, one Zarr array each, computed by threads or by the workers of a Dask cluster.

Blocks on and above the diagonal are chunks of the array; what lies below is their transpose and
reads as NaN in plain Zarr.  Zarr renames a finished chunk into place, so a chunk that is there is
whole, and compares its CRC-32C whenever it is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks, extras
from notsodeep._files import lock, sha256_of_array, write_array
from notsodeep.arrays import FloatArray
from notsodeep.errors import DataCorrupted, InvalidInput
from notsodeep.kernels.exact import kinds_of, make_plan
from notsodeep.kernels.operator import TiledOperator
from notsodeep.kernels.plan import SIDE, Tile
from notsodeep.models import (
    Convention,
    KernelModel,
    KernelName,
    kernel_name,
    model_from_dict,
)
from notsodeep.progress import progress_bar
from notsodeep.threads import map_threads, single_thread

if TYPE_CHECKING:
    import dask.array
    import distributed

BLOCK = 5 * SIDE  # rows of a chunk: whole tiles, 29 MB of doubles
_FORMAT = 1
_SAMPLES = "samples.npy"


def store_kernel(
    path: str | Path,
    model: KernelModel,
    X: ArrayLike,
    *,
    kind: str = "ck",
    convention: Convention = "feature",
    dtype: str = "float64",
    block: int = BLOCK,
    client: distributed.Client | None = None,
) -> KernelStore:
    """Compute the exact kernel of a model on data into a Zarr array, or what is missing of it.

    Every entry is computed in float64, to the bits that `nsd.kernel` has, and rounded to `dtype`.
    A call that was stopped, or lost a worker, is made again: finished chunks stay.

    Parameters
    ----------
    path : path
        Directory of the store.
    model : DeepEquilibrium, ExplicitNetwork, …
    X : array_like of shape (n, p)
    kind : {"ck", "ntk"}
    convention : {"feature", "preactivation"}
    dtype : {"float64", "float32"}
    block : int
        Rows and columns of a chunk.
    client : distributed.Client, optional
        Chunks are computed by its workers, which must reach `path`; by threads without one.

    Examples
    --------
    >>> import tempfile
    >>> import notsodeep as nsd
    >>> X, network = nsd.data.sphere(100, 20, rng=0), nsd.ExplicitNetwork(["relu"])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = store_kernel(f"{directory}/k.zarr", network, X)
    ...     print(store.shape, store.verify(), np.allclose(store.operator() @ X, store.read() @ X))
    (100, 100) {} True
    """
    extras.require("store_kernel", "zarr")
    path = Path(path).resolve()
    checks.known_name(dtype, ("float64", "float32"), "dtype")
    checks.integer_at_least(block, 16, "block", "store_kernel")
    name = kernel_name(kind, "kind")
    plan = make_plan(model, X, None, kinds_of(name), convention, "store_kernel")
    rows = np.asarray(X, dtype=np.float64)
    about = {
        "format": _FORMAT,
        "model": model.to_dict(),
        "kind": name,
        "convention": convention,
        "samples": sha256_of_array(rows),
    }
    with lock(path.with_name(f".{path.name}.lock")):
        array = _created(path, len(rows), dtype, block, about)
        for key, value in about.items():
            if array.attrs.get(key) != value:
                theirs = str(array.attrs.get(key))[:60]
                raise InvalidInput(
                    f"path must hold this kernel, got {path} with another {key} ({theirs}). "
                    "Choose another directory."
                )
        if not (path / _SAMPLES).exists():
            write_array(path / _SAMPLES, rows)
        for abandoned in path.glob("c/*/*.partial"):  # of writers that were killed
            abandoned.unlink(missing_ok=True)
        store = KernelStore(path)
        missing = store.missing()
        if client is None:
            results: Iterator[Any] = map(partial(_write, store, plan), missing)
        else:
            distributed: Any = importlib.import_module("distributed")
            futures = client.map(partial(_write_there, str(path)), missing, retries=3, pure=False)
            results = (future.result() for future in distributed.as_completed(futures))
        with progress_bar("blocks of the kernel") as advance:
            advance(0, len(missing))
            for done, _ in enumerate(results, start=1):
                advance(done, len(missing))
    return store


class KernelStore:
    """A symmetric kernel on disk, made by `store_kernel`; see there."""

    def __init__(self, path: str | Path) -> None:
        extras.require("KernelStore", "zarr")
        import zarr

        self.path = Path(path).resolve()
        try:
            array: Any = zarr.open_array(str(self.path), mode="r+")
            about: dict[str, Any] = dict(array.attrs)
            self.array = array
            self.model: KernelModel = model_from_dict(about["model"])
            self.kind: KernelName = about["kind"]
            self.convention: Convention = about["convention"]
        except Exception as error:  # of Zarr, or of a description that is not ours
            raise InvalidInput(f"path must be a kernel store, got {path} ({error}).") from error
        if about.get("format") != _FORMAT:
            raise InvalidInput(f"path must have format {_FORMAT}, got {about.get('format')}.")
        self.shape: tuple[int, int] = self.array.shape
        self.dtype = np.dtype(self.array.dtype)
        self.block = int(self.array.chunks[0])

    def __repr__(self) -> str:
        return f"<{self.shape[0]}x{self.shape[1]} KernelStore, {self.dtype} at {self.path}>"

    def missing(self) -> list[tuple[int, int]]:
        """Return the blocks (row, column) that are not there yet."""
        return [index for index in self._indices() if not self._chunk(index).exists()]

    def verify(self) -> dict[Path, str]:
        """Read every chunk; return what is wrong by file, {} if nothing.

        Remove a damaged chunk, and `store_kernel` computes it again.
        """
        wrong = {}
        for index in self._indices():
            try:
                self._read(index)
            except DataCorrupted as error:
                wrong[self._chunk(index)] = str(error)
        return wrong

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> NDArray[Any]:
        """Return a rectangle of the kernel."""
        (r0, r1, rs), (c0, c1, cs) = rows.indices(self.shape[0]), columns.indices(self.shape[1])
        if (rs, cs) != (1, 1):
            raise InvalidInput(f"rows and columns must have step 1, got {rs} and {cs}.")
        shape = max(0, r1 - r0), max(0, c1 - c0)
        size = shape[0] * shape[1] * self.dtype.itemsize
        checks.enough_memory(size, f"a {shape} kernel", "Read fewer rows or columns at a time.")
        result = np.empty(shape, self.dtype)
        for i in range(r0 // self.block, -(-r1 // self.block)) if result.size else ():
            for j in range(c0 // self.block, -(-c1 // self.block)):
                here = self._read((i, j)) if i <= j else self._read((j, i)).T
                y, x = i * self.block, j * self.block
                part = here[max(r0 - y, 0) : r1 - y, max(c0 - x, 0) : c1 - x]
                top, left = max(y - r0, 0), max(x - c0, 0)
                result[top : top + part.shape[0], left : left + part.shape[1]] = part
        return result

    def diagonal(self) -> NDArray[Any]:
        """Return the diagonal, shape (n,)."""
        count = -(-self.shape[0] // self.block)
        return np.concatenate([self._read((k, k)).diagonal() for k in range(count)])

    def operator(self) -> StoredOperator:
        """Return the kernel as a linear operator that reads each block once for a product."""
        if missing := self.missing():
            raise DataCorrupted(self._incomplete(missing[0]))
        return StoredOperator(self)

    def to_dask(self) -> dask.array.Array:
        """Return the kernel as a Dask array with the chunks of the store."""
        blocks: Any = importlib.import_module("dask.array")
        starts = range(0, self.shape[0], self.block)
        sizes = tuple(min(self.block, self.shape[0] - start) for start in starts)
        found: dask.array.Array = blocks.map_blocks(
            _read_block, str(self.path), chunks=(sizes, sizes), dtype=self.dtype
        )
        return found

    def _indices(self) -> list[tuple[int, int]]:
        count = -(-self.shape[0] // self.block)
        return [(i, j) for i in range(count) for j in range(i, count)]

    def _chunk(self, index: tuple[int, int]) -> Path:
        return self.path / "c" / str(index[0]) / str(index[1])

    def _tile(self, index: tuple[int, int]) -> Tile:
        starts = [k * self.block for k in index]
        return Tile(*(slice(s, min(s + self.block, self.shape[0])) for s in starts))

    def _read(self, index: tuple[int, int]) -> NDArray[Any]:
        chunk, tile = self._chunk(index), self._tile(index)
        if not chunk.exists():
            raise DataCorrupted(self._incomplete(index))
        try:
            return np.asarray(self.array[tile.rows, tile.columns])
        except (OSError, ValueError, RuntimeError) as error:
            raise DataCorrupted(
                f"{chunk} must be what was written ({error}). Remove it, and store_kernel computes "
                "it again."
            ) from error

    def _incomplete(self, index: tuple[int, int]) -> str:
        return (
            f"{self.path} must be complete: {self._chunk(index)} is missing. Call store_kernel "
            "again with the same model and data."
        )


class StoredOperator(TiledOperator):
    """A stored kernel as a `scipy.sparse.linalg.LinearOperator`, multiplied in float64."""

    def __init__(self, store: KernelStore) -> None:
        self.store, self._symmetric = store, True
        self.model, self.kind, self.convention = store.model, store.kind, store.convention
        self._indices = store._indices()
        self._tiles = [store._tile(index) for index in self._indices]
        super().__init__(np.float64, store.shape)

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,)."""
        return self.store.diagonal().astype(np.float64, copy=False)

    def _block(self, index: int) -> NDArray[Any]:
        return self.store._read(self._indices[index])


def _created(path: Path, n: int, dtype: str, block: int, about: dict[str, Any]) -> Any:
    """Open the array, or create it."""
    import zarr
    from zarr.codecs import Crc32cCodec

    if (path / "zarr.json").exists():
        array = KernelStore(path).array
        found, wanted = (array.shape[0], str(array.dtype)), (n, dtype)
        if found != wanted:
            raise InvalidInput(f"path must hold n, dtype = {wanted}, got {found} at {path}.")
        return array
    if path.exists() and any(path.iterdir()):
        raise InvalidInput(f"path must be a kernel store or an empty directory, got {path}.")
    side = min(block, n)
    return zarr.create_array(
        str(path),
        shape=(n, n),
        chunks=(side, side),
        dtype=dtype,
        fill_value=np.nan,
        compressors=[Crc32cCodec()],
        attributes=about,
    )


def _write(store: KernelStore, plan: Any, index: tuple[int, int]) -> None:
    """Compute and store one block, in tiles that threads share."""
    whole = store._tile(index)
    result = np.empty(whole.shape, store.dtype)
    on_diagonal = index[0] == index[1]

    def fill(tile: Tile) -> None:
        rows, columns = (
            slice(part.start - start, part.stop - start)
            for part, start in zip((tile.rows, tile.columns), starts, strict=True)
        )
        result[rows, columns] = plan.tile(tile)[0]
        if on_diagonal and rows != columns:
            result[columns, rows] = result[rows, columns].T

    starts = whole.rows.start, whole.columns.start
    sides = [
        [slice(k, min(k + SIDE, part.stop)) for k in range(part.start, part.stop, SIDE)]
        for part in (whole.rows, whole.columns)
    ]
    tiles = [
        Tile(r, c) for r in sides[0] for c in sides[1] if not on_diagonal or r.start <= c.start
    ]
    for _ in map_threads(fill, tiles):
        pass
    store.array[whole.rows, whole.columns] = result


def _write_there(path: str, index: tuple[int, int]) -> None:
    """Compute and store one block on a worker; the samples lie beside the chunks."""
    with single_thread():  # workers have a process for each core
        _write(*_source(path), index)


@lru_cache(maxsize=1)
def _source(path: str) -> tuple[KernelStore, Any]:
    store = KernelStore(path)
    rows = np.load(store.path / _SAMPLES)
    return store, make_plan(store.model, rows, None, kinds_of(store.kind), store.convention)


def _read_block(path: str, block_id: tuple[int, int] = (0, 0)) -> NDArray[Any]:
    """Return one block for Dask."""
    i, j = block_id
    store = KernelStore(path)
    return store._read((i, j)) if i <= j else store._read((j, i)).T

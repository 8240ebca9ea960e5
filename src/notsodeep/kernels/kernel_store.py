"""A kernel on disk, for reading: parts of it, products with it, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.architectures import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    Model,
)
from notsodeep.checks import storage
from notsodeep.execution import progress_bar
from notsodeep.execution.digests import sha256_of_bytes
from notsodeep.execution.threads import thread_count
from notsodeep.kernels.stored_blocks import Place, StoredBlocks
from notsodeep.kernels.tile_products import (
    Part,
    TiledOperator,
    Vectors,
    parts_in_batches,
    tile_parts,
)

FloatArray = NDArray[np.float64]

DESCRIPTION = "description.json"
KIND = "kernel store"
VERSION = 1
_WAITING = 1 << 28  # bytes of products that wait to be added up


class KernelStore:
    """A symmetric kernel on disk, made by `store_kernel`.

    Parameters
    ----------
    path : path
        The directory.

    Attributes
    ----------
    path : Path
    model : DeepEquilibrium or ExplicitNetwork
    kernel : {"conjugate", "tangent"}
    convention : {"preactivation", "feature"}
    shape : tuple of int
        (n, n).
    dtype : numpy.dtype
        float32 or float64.
    blocks : StoredBlocks
        The files.
    description : dict
        What the store is of, as it stands in description.json.

    Raises
    ------
    InvalidInput
        There is no kernel store at `path`.

    Examples
    --------
    >>> import tempfile
    >>> import notsodeep as nsd
    >>> from notsodeep.kernels import store_kernel
    >>> X = nsd.data.sphere(100, 20, rng=0)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = store_kernel(f"{place}/k.zarr", nsd.ExplicitNetwork(["relu"]), X)
    ...     store = KernelStore(f"{place}/k.zarr")
    ...     print(store.model, store.kernel, store.shape, store.verify())
    network(relu) conjugate (100, 100) {}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self.description = read_description(self.path)
        form = self.description["model"]
        is_equilibrium = form["kind"] == "deep_equilibrium"
        read_model = DeepEquilibrium.from_dict if is_equilibrium else ExplicitNetwork.from_dict
        self.model: Model = read_model(form)
        self.kernel: KernelName = self.description["kernel"]
        self.convention: Convention = self.description["convention"]
        n = int(self.description["samples"]["shape"][0])
        self.shape = (n, n)
        self.dtype = np.dtype(self.description["dtype"])
        facts = {key: value for key, value in self.description.items() if key != "versions"}
        matrix = sha256_of_bytes(json.dumps(facts, sort_keys=True).encode())
        side = self.description["side"]
        self.blocks = StoredBlocks(self.path, n, side, self.dtype.name, matrix)

    def __repr__(self) -> str:
        n, dtype = self.shape[0], self.dtype.name
        return f"<{n}x{n} KernelStore with dtype={dtype} at {self.path}>"

    def missing(self) -> list[Place]:
        """Return the blocks that are not done, or whose file is missing or of the wrong size."""
        return [place for place in self.blocks.places() if self.blocks.problem(place) is not None]

    def verify(self) -> dict[Place, str]:
        """Read every file and compare its SHA-256; return what is wrong, {} if nothing.

        ``store_kernel(…, verify=True)`` does this and computes the blocks concerned again.
        """
        places = self.blocks.places()
        found = {}
        with progress_bar("verifying blocks") as advance:
            for done, place in enumerate(places):
                advance(done, len(places))
                problem = self.blocks.problem(place, content=True)
                if problem is not None:
                    found[place] = problem
        return found

    @property
    def digest(self) -> str:
        """SHA-256 over the marks of all blocks in order: equal for equal kernels.

        Raises
        ------
        DataCorrupted
            The store is not complete.
        """
        self._require_complete()
        lines = "".join(f"{name} {digest}\n" for name, digest in self.blocks.digests().items())
        return sha256_of_bytes(lines.encode())

    def read(
        self, rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[np.floating[Any]]:
        """Return a rectangle of the kernel, shape (rows, columns).

        Raises
        ------
        DataCorrupted
            A block that is needed is missing or damaged.
        NotEnoughMemory
            The rectangle does not fit into the memory that is free.
        """
        rows = storage.bounds(rows, self.shape[0], "rows")
        columns = storage.bounds(columns, self.shape[1], "columns")
        shape = rows.stop - rows.start, columns.stop - columns.start
        checks.enough_memory(shape[0] * shape[1] * self.dtype.itemsize, f"a {shape} kernel")
        result = np.empty(shape, self.dtype)
        side = self.blocks.side
        for i in range(rows.start // side, -(-rows.stop // side)):
            for j in range(columns.start // side, -(-columns.stop // side)):
                block = self.blocks.read((i, j)) if i <= j else self.blocks.read((j, i)).T
                inner_rows, outer_rows = _overlap(rows, i * side, block.shape[0])
                inner_columns, outer_columns = _overlap(columns, j * side, block.shape[1])
                result[outer_rows, outer_columns] = block[inner_rows, inner_columns]
        return result

    def to_dense(self) -> NDArray[np.floating[Any]]:
        """Return the whole kernel, shape (n, n); refused if it does not fit into memory."""
        return self.read()

    def diagonal(self) -> NDArray[np.floating[Any]]:
        """Return the diagonal, shape (n,)."""
        places = ((k, k) for k in range(self.blocks.across))
        return np.concatenate([self.blocks.read(place).diagonal() for place in places])

    def operator(self) -> StoredKernelOperator:
        """Return the kernel as a linear operator that reads from disk."""
        return StoredKernelOperator(self)

    def _require_complete(self) -> None:
        storage.finished_store(self.missing(), len(self.blocks.places()), self.path)


class StoredKernelOperator(TiledOperator):
    """A stored kernel as a `scipy.sparse.linalg.LinearOperator`.

    ``A @ V`` reads each block once, in one pass for any number of columns; checksums are compared
    on the way.  Products are computed in float64, from entries as they were stored.

    Parameters
    ----------
    store : KernelStore
        Complete.

    Examples
    --------
    >>> import tempfile
    >>> import notsodeep as nsd
    >>> from notsodeep.kernels import store_kernel
    >>> X = nsd.data.sphere(100, 20, rng=0)
    >>> network = nsd.ExplicitNetwork(["relu"])
    >>> with tempfile.TemporaryDirectory() as place:
    ...     A = store_kernel(f"{place}/k.zarr", network, X).operator()
    ...     np.allclose(A @ X, nsd.conjugate_kernel(network, X) @ X)
    True
    """

    def __init__(self, store: KernelStore) -> None:
        store._require_complete()
        self.store = store
        self.model, self.kernel, self.convention = store.model, store.kernel, store.convention
        self._symmetric = True
        super().__init__(np.float64, store.shape)

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,)."""
        return self.store.diagonal().astype(np.float64, copy=False)

    def _parts(self, V: Vectors, *, transposed: bool) -> Iterator[list[Part]]:
        blocks = self.store.blocks
        places = blocks.places()

        def work(index: int) -> list[Part]:
            block = blocks.read(places[index])
            tile = blocks.tile(places[index])
            return tile_parts(tile, block, V, symmetric=True, transposed=transposed)

        threads = thread_count()
        size = max(threads, _WAITING // (2 * blocks.side * max(1, V[0].nbytes)))
        return parts_in_batches(work, len(places), threads, size)


def read_description(place: Path) -> dict[str, Any]:
    """Read what a store is of."""
    try:
        content: dict[str, Any] = checks.strict_json((place / DESCRIPTION).read_bytes())
        if content["kind"] != KIND or content["version"] != VERSION:
            raise ValueError(f"version {content['version']} of a {content['kind']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise storage.no_store(place, f"{DESCRIPTION}: {error}") from error
    return content


def _overlap(wanted: slice, start: int, length: int) -> tuple[slice, slice]:
    """Return where a block that begins at `start` meets a range: in the block, in the range."""
    first, last = max(wanted.start, start), min(wanted.stop, start + length)
    return slice(first - start, last - start), slice(first - wanted.start, last - wanted.start)

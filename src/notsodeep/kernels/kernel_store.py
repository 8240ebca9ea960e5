"""A kernel on disk, for reading: parts of it, products with it, and whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import DataCorrupted
from notsodeep.files import Manifest
from notsodeep.files.manifests import sha256_of_bytes
from notsodeep.kernels.store_description import (
    KIND,
    described_blocks,
    read_description,
    read_model,
)
from notsodeep.kernels.stored_blocks import Place
from notsodeep.kernels.tiled_operator import (
    Part,
    TiledOperator,
    Vectors,
    parts_in_batches,
    tile_parts,
)
from notsodeep.models import Convention, KernelName
from notsodeep.progress import progress_bar
from notsodeep.threads import thread_count

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
    DataCorrupted
        There is one, and what it says of itself makes no sense.

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
        self.model = read_model(self.description["model"], self.path)
        self.kernel: KernelName = self.description["kernel"]
        self.convention: Convention = self.description["convention"]
        self.blocks = described_blocks(self.path, self.description)
        self.shape = (self.blocks.size, self.blocks.size)
        self.dtype = np.dtype(self.blocks.dtype)

    def __repr__(self) -> str:
        n, dtype = self.shape[0], self.dtype.name
        return f"<{n}x{n} KernelStore with dtype={dtype} at {self.path}>"

    def missing(self) -> list[Place]:
        """Return the blocks that are not done, or whose file is missing or of the wrong size.

        Or whose mark is not the one that was there when the store was complete.
        """
        try:
            sealed = self.sealed()
        except DataCorrupted:  # which says nothing of the blocks
            sealed = None
        return [place for place in self.blocks.places() if self._problem(place, sealed) is not None]

    def verify(self) -> dict[Place, str]:
        """Read every file and compare its SHA-256; return what is wrong, {} if nothing.

        If the description of the array or the manifest are not those of this store, that is wrong
        with every block.  ``store_kernel(…, verify=True)`` does this and computes the blocks
        concerned again.
        """
        sealed, wrong_for_all = None, None
        try:
            self.blocks.require_array()
            sealed = self.sealed()
        except DataCorrupted as error:
            wrong_for_all = str(error)
        places = self.blocks.places()
        found = {}
        with progress_bar("verifying blocks") as advance:
            for done, place in enumerate(places):
                advance(done, len(places))
                problem = self._problem(place, sealed, content=True) or wrong_for_all
                if problem is not None:
                    found[place] = problem
        return found

    def sealed(self) -> Mapping[str, str] | None:
        """Return the SHA-256 of every block as the manifest has it; None if there is none yet.

        Raises
        ------
        DataCorrupted
            It is not a manifest of this store.
        """
        manifest = Manifest.read(self.path)
        if manifest is None:
            return None
        facts = {key: manifest.facts.get(key) for key in self.description}
        _own_manifest(manifest.kind == KIND and facts == self.description, self.path)
        return manifest.sha256

    def _problem(
        self, place: Place, sealed: Mapping[str, str] | None, *, content: bool = False
    ) -> str | None:
        """Say what is wrong with a block, also in the light of the manifest."""
        problem = self.blocks.problem(place, content=content)
        if problem is None and sealed is not None:
            name = self.blocks.chunk_name(place)
            if sealed.get(name) != self.blocks.digest(place):
                return f"{self.blocks.chunk(place)}: its mark and the manifest do not agree"
        return problem

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
        rows = _bounds(rows, self.shape[0], "rows")
        columns = _bounds(columns, self.shape[1], "columns")
        shape = rows.stop - rows.start, columns.stop - columns.start
        checks.enough_memory(
            shape[0] * shape[1] * self.dtype.itemsize,
            f"a {shape} kernel",
            "Read fewer rows or columns at a time.",
        )
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
        """Return the whole kernel, shape (n, n); rejected if it does not fit into memory."""
        return self.read()

    def diagonal(self) -> NDArray[np.floating[Any]]:
        """Return the diagonal, shape (n,)."""
        places = ((k, k) for k in range(self.blocks.across))
        return np.concatenate([self.blocks.read(place).diagonal() for place in places])

    def operator(self) -> StoredKernelOperator:
        """Return the kernel as a linear operator that reads from disk."""
        return StoredKernelOperator(self)

    def _require_complete(self) -> None:
        self.blocks.require_array()
        _finished_store(self.missing(), len(self.blocks.places()), self.path)


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


def _overlap(wanted: slice, start: int, length: int) -> tuple[slice, slice]:
    """Return where a block that begins at `start` meets a range: in the block, in the range."""
    first, last = max(wanted.start, start), min(wanted.stop, start + length)
    return slice(first - start, last - start), slice(first - wanted.start, last - wanted.start)


def _finished_store(missing: Sequence[tuple[int, int]], total: int, path: Path) -> None:
    """Reject a store that is not finished."""
    if missing:
        raise DataCorrupted(
            f"{path} is not complete: {len(missing)} of {total} blocks are missing, the first is "
            f"{missing[0]}. Run store_kernel on it again with the same model and data."
        )


def _own_manifest(own: bool, path: Path) -> None:
    """Require that the manifest in a store is of that store."""
    if not own:
        raise DataCorrupted(
            f"The manifest in {path} is that of something else. Run store_kernel again with the "
            "same model and data: it writes it again."
        )


def _bounds(part: slice, length: int, parameter: str) -> slice:
    """Require a slice of consecutive indices; return it with its ends."""
    start, stop, step = part.indices(length)
    if step != 1:
        raise checks.invalid(parameter, "KernelStore.read", "be a slice with step 1", part)
    return slice(start, max(start, stop))

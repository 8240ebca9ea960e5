"""Kernels to disk: computed block by block, and resumed after a stop."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from numpy.typing import ArrayLike

from notsodeep import checks, extras
from notsodeep.cluster.executors import Executor, InProcess
from notsodeep.errors import DataCorrupted, InvalidInput, LockTimeout, RunInUse, StoreMismatch
from notsodeep.files import Manifest, manifests
from notsodeep.files.atomic_files import exclusive_lock, make_directory, write_json
from notsodeep.files.manifests import sha256_of_array, versions
from notsodeep.kernels.block_source import BLOCK, BlockSource
from notsodeep.kernels.kernel_store import KernelStore
from notsodeep.kernels.store_description import (
    DESCRIPTION,
    KIND,
    VERSION,
    described_blocks,
    read_description,
)
from notsodeep.kernels.stored_blocks import MOST_BLOCKS, Place, StoredBlocks, block_count
from notsodeep.models import Convention, KernelModel, KernelName
from notsodeep.progress import progress_bar
from notsodeep.threads import thread_count


def store_kernel(
    path: str | Path,
    model: KernelModel,
    X: ArrayLike,
    *,
    kernel: KernelName = "conjugate",
    convention: Convention = "preactivation",
    dtype: Literal["float32", "float64"] | Any = "float64",
    side: int = BLOCK,
    executor: Executor | None = None,
    verify: bool = False,
    force: bool = False,
) -> KernelStore:
    """Compute the kernel of X with itself into a directory, or what is missing of it there.

    The n × n matrix is never held: blocks go to disk one by one, those on and above the diagonal,
    and each is marked when it is safely there.  A run that was killed is resumed by the same
    call and ends with the same bytes.  With an executor the blocks are computed and written by its
    workers, which must see `path` as well.

    Parameters
    ----------
    path : path
        A directory, by custom with the ending ``.zarr``; made if it does not exist.
    model : DeepEquilibrium or ExplicitNetwork
        It must have a JSON form.
    X : array_like of shape (n, p)
    kernel : {"conjugate", "tangent"}
        See `conjugate_kernel` and `tangent_kernel`.
    convention : {"preactivation", "feature"}
        Concerns DEQs only.
    dtype : float64 or float32
        Type of the stored entries; every pair is computed in float64.
    side : int, default 1920
        Rows and columns of a block, n if that is less.
    executor : Executor, optional
        Where blocks are computed; in this process, one block on each thread, by default.
    verify : bool
        Check the SHA-256 of every block that is there, and compute damaged ones again.
    force : bool
        Replace a store of another kernel, and start over.  Only the files of that store are
        removed; a directory that holds anything else instead of a store is rejected.

    Returns
    -------
    KernelStore
        Complete.

    Raises
    ------
    InvalidInput
        The directory holds something else.
    StoreMismatch
        The directory holds the kernel of another model, of other data, or in another form.
    RunInUse
        Another process writes there.
    MissingPackage
        The package zarr is not installed.
    NotSerialisable
        The model has an activation made from a Python function.

    Examples
    --------
    >>> import tempfile
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(100, 20, rng=0)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = store_kernel(f"{place}/k.zarr", deq, X, kernel="tangent", side=64)
    ...     store.shape, store.missing(), store.read(slice(0, 2)).shape
    ((100, 100), [], (2, 100))
    """
    owner = "store_kernel"
    extras.require(owner, "zarr")
    kind = checks.kernel_dtype(dtype, owner)
    checks.integer_at_least(side, 16, "side", owner)
    source = BlockSource.checked(model, X, None, kernel, convention, owner)
    samples = source.plan.X
    side = min(int(side), len(samples))
    _few_blocks(block_count(len(samples), side), MOST_BLOCKS, side)
    description = {
        "kind": KIND,
        "version": VERSION,
        "model": model.to_dict(),
        "kernel": kernel,
        "convention": convention,
        "samples": {"sha256": sha256_of_array(samples), "shape": list(samples.shape)},
        "dtype": kind.name,
        "side": side,
    }
    place = Path(path).resolve()
    if (place / DESCRIPTION).exists():
        read_description(place)  # rejects one that is not ours
    else:
        _empty_directory(place)
    make_directory(place)
    try:
        with exclusive_lock(place / ".lock", timeout=0.0):
            _describe(place, description, force=force)
            store = KernelStore(place)
            _complete(store, source, executor or InProcess(thread_count()), verify=verify)
    except LockTimeout as error:
        raise RunInUse(
            f"{place} is being written by another process. Wait for it to end, or choose another "
            "path."
        ) from error
    return store


def _describe(place: Path, description: dict[str, Any], *, force: bool) -> None:
    """Compare the description of the store with what is wanted, or write it."""
    path = place / DESCRIPTION
    if path.exists():
        stored = read_description(place)
        if not force:
            # Through JSON, so that tuples compare equal to what is read back.
            wanted = json.loads(json.dumps(description, allow_nan=False))
            _same_kernel(stored, wanted, place)
            return
        # The description last: while it is there, the rest is known for what it is.
        (place / manifests.FILE_NAME).unlink(missing_ok=True)
        described_blocks(place, stored).remove()
        path.unlink()
    write_json(path, {**description, "versions": versions()})


def _complete(store: KernelStore, source: BlockSource, executor: Executor, *, verify: bool) -> None:
    """Compute the blocks that are missing, and seal the store with a manifest."""
    store.blocks.prepare()
    try:
        sealed = store.sealed()
    except DataCorrupted:  # it is a function of the rest, so it is written again
        sealed = None
        (store.path / manifests.FILE_NAME).unlink()
    missing = list(store.verify()) if verify else store.missing()
    if sealed is not None and not missing:
        return
    (store.path / manifests.FILE_NAME).unlink(missing_ok=True)
    work = functools.partial(_store_block, blocks=store.blocks)
    shared = executor.share(source)
    total = len(store.blocks.places())
    with progress_bar("kernel blocks") as advance:
        # Until nothing is missing: somebody may have removed a block in the meantime.
        while missing:
            advance(total - len(missing), total)
            results = executor.completed(work, missing, shared)
            for done, _ in enumerate(results, start=total - len(missing) + 1):
                advance(done, total)
            missing = store.missing()
    facts = {**store.description, "finished_with": versions()}
    Manifest(KIND, store.blocks.digests(), facts).write(store.path)


def _store_block(place: Place, source: BlockSource, *, blocks: StoredBlocks) -> None:
    blocks.write(place, source.block(blocks.tile(place), blocks.dtype))


def _empty_directory(path: Path) -> None:
    """Reject a directory for a store that holds something else."""
    if not path.exists():
        return
    if not path.is_dir():
        raise checks.invalid("path", "store_kernel", "be a directory", f"the file {path}")
    foreign = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    if foreign:
        raise InvalidInput(
            f"{path} is not empty and holds no kernel store (it has {foreign[0]}). Choose another "
            "path."
        )


def _few_blocks(number: int, most: int, side: int) -> None:
    """Require blocks that are not too small for their matrix."""
    if number > most:
        requirement = f"make at most {most} blocks"
        raise checks.invalid("side", "store_kernel", requirement, f"{side}, which makes {number}")


def _same_kernel(stored: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Reject a store of another kernel; say what differs."""
    differing = [key for key in wanted if stored.get(key) != wanted[key]]
    if differing:
        said = "; ".join(
            f"{key} there {_brief(stored.get(key))}, here {_brief(wanted[key])}"
            for key in differing
        )
        raise StoreMismatch(
            f"{path} holds another kernel: {said}. Choose another path, or replace the store with "
            "force=True (--force).",
            tuple(differing),
        )


def _brief(value: Any) -> str:
    """Word a value of a description; of data, the shape and the beginning of the digest."""
    if isinstance(value, Mapping) and "sha256" in value:
        return f"of shape {value['shape']}, SHA-256 {value['sha256'][:12]}…"
    return str(value)

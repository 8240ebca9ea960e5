"""Checks of executors and of kernels on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from notsodeep.checks.wording import refusal
from notsodeep.errors import (
    ClusterUnreachable,
    DataCorrupted,
    InvalidInput,
    StoreMismatch,
    WorkersLost,
)


def own_handles(own: bool, owner: str) -> None:
    """Require that handles come from the executor they are given to."""
    if not own:
        requirement = "be handles made by its own share() or keep()"
        raise refusal("arguments", owner, requirement, "something else")


def cluster_place(value: object, is_client: bool) -> None:
    """Require "local", an address or a client."""
    if not is_client and not (isinstance(value, str) and value):
        remedy = "An address looks like tcp://10.0.0.1:8786."
        requirement = "be 'local', the address of a Dask scheduler, or a distributed.Client"
        raise refusal("where", "open_executor", requirement, repr(value), remedy)


def unreachable(address: str, reason: object) -> ClusterUnreachable:
    """Say that no scheduler answers."""
    return ClusterUnreachable(
        f"No Dask scheduler answers at {address} ({reason}). Start one there with "
        "`dask scheduler`, or use 'local'."
    )


def same_version(found: Iterable[str], here: str) -> None:
    """Require that every worker has the version of this package that is here."""
    other = sorted(set(found) - {here})
    if other:
        requirement = f"have notsodeep {here} on every worker, as here"
        remedy = "Install it in the environment that the workers run in."
        raise refusal("where", "open_executor", requirement, other[0], remedy)


def no_worker(seconds: float) -> WorkersLost:
    """Say that no worker came in time."""
    return WorkersLost(
        f"No worker could be reached for {seconds:g} s. Start workers (`dask worker ADDRESS`), or "
        "look into the logs of those that were there; if they take longer to come, choose a larger "
        "worker_timeout in open_executor."
    )


def scheduler_lost() -> WorkersLost:
    """Say that work cannot go on without its scheduler."""
    return WorkersLost(
        "The connection to the Dask scheduler is lost, and the workers with it. Connect again with "
        "open_executor when it runs again."
    )


def data_not_taken(reason: object) -> WorkersLost:
    """Say that no worker could be sent its data."""
    return WorkersLost(f"No worker takes data ({reason}). Look into the workers' logs.")


def deadly_work(reason: object) -> WorkersLost:
    """Say that a piece of work was given up because it kills the workers."""
    return WorkersLost(
        f"{reason} The work probably needs more memory than a worker has: use smaller blocks, or "
        "workers with more memory."
    )


def work_lost(left: int, total: int, times: int) -> WorkersLost:
    """Say that pieces of work do not come back."""
    return WorkersLost(
        f"{left} of {total} pieces of work were lost {times} times, with the workers that held "
        "their data. See the workers' logs."
    )


def empty_directory(path: Path) -> None:
    """Refuse to make a store in a directory that holds something else."""
    if not path.exists():
        return
    if not path.is_dir():
        raise refusal("path", "store_kernel", "be a directory", f"the file {path}")
    foreign = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    if foreign:
        raise InvalidInput(
            f"{path} is not empty and holds no kernel store (it has {foreign[0]}). Choose another "
            "path."
        )


def few_blocks(number: int, most: int, side: int) -> None:
    """Require blocks that are not too small for their matrix."""
    if number > most:
        requirement = f"make at most {most} blocks"
        raise refusal("side", "store_kernel", requirement, f"{side}, which makes {number}")


def no_link(path: Path) -> None:
    """Require that a directory of a store lies in it."""
    if path.is_symlink():
        raise DataCorrupted(
            f"{path} is a symbolic link; a kernel store has none. Put what it leads to in its "
            "place, or remove it."
        )


def same_kernel(stored: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Refuse a store of another kernel; say what differs."""
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


def finished_store(missing: Sequence[tuple[int, int]], total: int, path: Path) -> None:
    """Refuse to read from a store that is not finished."""
    if missing:
        raise DataCorrupted(
            f"{path} is not complete: {len(missing)} of {total} blocks are missing, the first is "
            f"{missing[0]}. Run store_kernel on it again with the same model and data."
        )


def damaged_block(path: Path, reason: object) -> DataCorrupted:
    """Say that a block cannot be read."""
    return DataCorrupted(
        f"{path} is damaged ({reason}). Run store_kernel again with verify=True (--verify): it "
        "computes what is damaged again."
    )


def damaged_description(path: Path, reason: object) -> DataCorrupted:
    """Say that what a store says of itself cannot be read."""
    return DataCorrupted(
        f"{path} is damaged ({reason}). Copy the store again, or make it again in another "
        "directory."
    )


def own_manifest(own: bool, path: Path) -> None:
    """Require that the manifest in a store is of that store."""
    if not own:
        raise DataCorrupted(
            f"The manifest in {path} is that of something else. Run store_kernel again with the "
            "same model and data: it writes it again."
        )


def no_store(path: Path, reason: object) -> InvalidInput:
    """Say that there is no kernel store."""
    return InvalidInput(
        f"{path} holds no kernel store ({reason}). Make one with store_kernel, in a directory of "
        "its own."
    )


def bounds(part: slice, length: int, parameter: str) -> slice:
    """Require a slice of consecutive indices; return it with its ends."""
    start, stop, step = part.indices(length)
    if step != 1:
        raise refusal(parameter, "KernelStore.read", "be a slice with step 1", part)
    return slice(start, max(start, stop))


def own_checkpoint(kind: str, expected: str, directory: Path, owner: str) -> None:
    """Require that a directory with a manifest holds a checkpoint of the right kind."""
    if kind != expected:
        got = f"{directory}: {kind}"
        raise refusal("checkpoint", owner, f"be a {expected}", got, "Choose another directory.")


def intact_checkpoint(problems: tuple[str, ...], directory: Path) -> None:
    """Require that every file of a checkpoint is what was written."""
    if problems:
        raise DataCorrupted(
            f"The checkpoint in {directory} is damaged: {'; '.join(problems)}. "
            "Remove its manifest.json and start again."
        )

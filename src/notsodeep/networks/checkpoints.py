"""Checkpoints: a training run's state on disk, complete or absent whatever kills the writer.

A checkpoint directory holds one ``state-….safetensors`` and a manifest with its SHA-256 and the
JSON part of the state.  A new state gets a new name; the manifest, replaced atomically, is the
switch from the old one to it, and only then the old one is removed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import safetensors.torch
from torch import Tensor

from notsodeep.checks import saved_networks
from notsodeep.errors import DataCorrupted
from notsodeep.execution import Manifest, atomic_write, exclusive_lock, sha256_of_bytes

_KIND = "training checkpoint"
_LOCK = "lock"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A stored state.

    Attributes
    ----------
    tensors : Mapping[str, Tensor]
        Weights and optimiser state, on the CPU.
    facts : Mapping[str, Any]
        Everything else, as plain JSON values.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write_checkpoint(directory: Path, label: str, checkpoint: Checkpoint) -> None:
    """Make `checkpoint` the state that `read_checkpoint` finds in `directory`.

    Parameters
    ----------
    directory : Path
        Created if need be.  The caller holds `checkpoint_lock` on it.
    label : str
        Part of the file's name; another one for every other state.
    checkpoint : Checkpoint

    Raises
    ------
    NotWritable
        The directory cannot be written or the disk is full; the older state is still there.
    """
    tensors = {k: v.detach().cpu().contiguous() for k, v in checkpoint.tensors.items()}
    content = safetensors.torch.save(tensors)
    name = f"state-{label}.safetensors"
    with atomic_write(directory / name) as stream:
        stream.write(content)
    Manifest(_KIND, {name: sha256_of_bytes(content)}, checkpoint.facts).write(directory)
    # Older states, and what a killed writer left behind.
    for path in (*directory.glob("state-*.safetensors"), *directory.glob(".*.tmp")):
        if path.name != name:
            path.unlink(missing_ok=True)


def read_checkpoint(directory: Path) -> Checkpoint | None:
    """Read the state in `directory`; None if there is none.

    Raises
    ------
    DataCorrupted
        The manifest or the tensors are not what was written.
    InvalidInput
        The directory holds something else.
    """
    manifest = Manifest.read(directory)
    if manifest is None:
        return None
    saved_networks.checkpoint_kind(manifest.kind, _KIND, directory)
    problems = manifest.problems(directory)
    if problems:
        raise DataCorrupted(
            f"The checkpoint in {directory} is damaged: {'; '.join(problems)}. "
            "Remove the directory and train again."
        )
    tensors: dict[str, Tensor] = {}
    for name in manifest.sha256:
        tensors |= safetensors.torch.load_file(directory / name)
    return Checkpoint(tensors, manifest.facts)


@contextlib.contextmanager
def checkpoint_lock(directory: Path) -> Iterator[None]:
    """Keep a second run out of `directory`; it gets `LockTimeout`, which names the first."""
    with exclusive_lock(directory / _LOCK, timeout=0.0):
        yield


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C, so that a step is not cut in half; a second Ctrl-C is not held back.

    Yields
    ------
    callable
        Whether Ctrl-C was pressed.  The caller brings its work to a good state and raises
        `KeyboardInterrupt`.
    """
    pressed = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or not callable(previous):  # no signals come here, or they are being ignored
        yield pressed.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            previous(number, frame)
        pressed.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)

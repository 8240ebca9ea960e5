"""Checkpoints: a training run's state on disk, complete or absent whatever kills the writer."""

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

from notsodeep.files.stored_states import read_state, state_lock, write_state

_KIND = "training checkpoint"
checkpoint_lock = state_lock


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


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Make `checkpoint` the state that `read_checkpoint` finds in `directory`.

    The caller holds `checkpoint_lock` on the directory, which is created if need be.

    Raises
    ------
    NotWritable
        The directory cannot be written or the disk is full; the older state is still there.
    """
    tensors = {k: v.detach().cpu().contiguous() for k, v in checkpoint.tensors.items()}
    write_state(directory, _KIND, safetensors.torch.save(tensors), checkpoint.facts)


def read_checkpoint(directory: Path) -> Checkpoint | None:
    """Read the state in `directory`; None if there is none.

    Raises
    ------
    DataCorrupted
        The manifest or the tensors are not what was written.
    InvalidInput
        The directory holds something else.
    """
    stored = read_state(directory, _KIND, "train")
    if stored is None:
        return None
    return Checkpoint(safetensors.torch.load_file(stored.path), stored.facts)


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

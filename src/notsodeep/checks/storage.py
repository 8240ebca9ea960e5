"""Checks of executors and of kernels on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from notsodeep.checks.wording import refusal
from notsodeep.errors import (
    StoreMismatch,
)


def own_handles(own: bool, owner: str) -> None:
    """Require that handles come from the executor they are given to."""
    if not own:
        requirement = "be handles made by its own share() or keep()"
        raise refusal("arguments", owner, requirement, "something else")


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


def bounds(part: slice, length: int, parameter: str) -> slice:
    """Require a slice of consecutive indices; return it with its ends."""
    start, stop, step = part.indices(length)
    if step != 1:
        raise refusal(parameter, "KernelStore.read", "be a slice with step 1", part)
    return slice(start, max(start, stop))

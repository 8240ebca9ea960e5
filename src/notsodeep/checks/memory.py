"""Checks of what fits into memory."""

from __future__ import annotations

import os
from pathlib import Path

from notsodeep.errors import InvalidInput, NotEnoughMemory


def enough_memory(needed: int, what: str) -> None:
    """Refuse an allocation that does not fit into the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"{what} needs {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB of memory are "
            "free. Use dtype=numpy.float32, out=numpy.memmap(…) for a result on disk, or "
            "KernelOperator, which never holds the whole kernel."
        )


def available_memory() -> int:
    """Bytes that can be allocated without swapping, as the operating system sees it."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 1 << 62  # unknown: let the allocation itself decide


def unpacked_fits(needed: int, path: Path) -> None:
    """Refuse to read a file whose content is larger than the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"{path} holds {needed / 2**30:.1f} GiB of data, and {available / 2**30:.1f} GiB of "
            "memory are free. Use a smaller part of it."
        )


def symmetric_operator(symmetric: bool, shape: tuple[int, int], owner: str) -> None:
    """Require a kernel of X with itself, for what makes sense of no other."""
    if not symmetric:
        raise InvalidInput(
            f"diagonal() of {owner} must be asked of a symmetric kernel. Got a cross kernel of "
            f"shape {shape}, made with Y. Leave Y out for the kernel of X with itself."
        )

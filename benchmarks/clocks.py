"""Seconds and memory of a call.

The standard library only: the scripts in `peers/` use it in environments that have nothing else.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Clock = Callable[[], float]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def once(function: Callable[[], Any], clock: Clock = time.perf_counter) -> float:
    """Seconds of one call."""
    start = clock()
    function()
    return clock() - start


def best_time(
    function: Callable[[], Any], repeats: int = 5, clock: Clock = time.perf_counter
) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    function()
    return min(once(function, clock) for _ in range(repeats))


def best_times(
    function: Callable[[], Any],
    beside: Callable[[], Any],
    repeats: int = 5,
    clock: Clock = time.perf_counter,
) -> tuple[float, float]:
    """Seconds of the fastest calls of two functions that take turns: a busy moment hits both."""
    function()
    beside()
    pairs = [(once(function, clock), once(beside, clock)) for _ in range(repeats)]
    seconds, other = (min(times) for times in zip(*pairs, strict=True))
    return seconds, other


def peak_growth(function: Callable[[], Any]) -> float | None:
    """Mebibytes by which resident memory grows at the worst moment of a call, the result included.

    Everything counts that the process holds, whichever library asked for it.  The kernel's
    high-water mark is set back just before, which only Linux can do; elsewhere the answer is None.
    """
    gc.collect()
    try:
        # Freed memory that the C library keeps would be used again and not seen to grow.
        ctypes.CDLL(None).malloc_trim(0)
        _RESET.write_text("5")
    except (OSError, AttributeError, TypeError):
        return None
    before = _resident("VmRSS")
    result = function()
    peak = _resident("VmHWM")
    del result
    return max(peak - before, 0) / 1024


def _resident(field: str) -> int:
    """One of the memory sizes that the kernel reports, in kibibytes."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

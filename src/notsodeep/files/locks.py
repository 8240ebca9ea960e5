"""A lock between processes: one of them works, the others wait and then find the work done.

The operating system holds the lock (flock, or byte locking on Windows) and drops it when the
process ends, however it ends: there are no stale locks to remove.  The file stays, unless the lock
is a passing one.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from notsodeep.errors import LockTimeout
from notsodeep.files.atomic_files import make_directory, named_write_failures


def _holder_file(path: Path) -> Path:
    # Windows forbids reading the locked byte range, so the holder signs a file beside it.
    return path.with_name(path.name + ".holder")


@contextlib.contextmanager
def exclusive_lock(
    path: Path,
    timeout: float = 3600.0,
    on_wait: Callable[[str], None] | None = None,
    *,
    passing: bool = False,
) -> Iterator[None]:
    """Hold the lock `path` during the block; at most one process or thread does at a time.

    Parameters
    ----------
    path : Path
        The lock file; it and its directory are created.
    timeout : float
        Seconds to wait for another holder.
    on_wait : callable, optional
        Called once with the other holder's name if there is one to wait for.
    passing : bool
        Remove the file at the end, where the platform can do so.  All holders must agree on it,
        and the name must be one that nobody else gives to a file.

    Raises
    ------
    LockTimeout
        Another process held the lock all the time; the message names it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with exclusive_lock(Path(place, "lock")):
    ...         try:
    ...             with exclusive_lock(Path(place, "lock"), timeout=0.0):
    ...                 pass
    ...         except LockTimeout:
    ...             print("held")
    held
    """
    from filelock import FileLock, Timeout  # where locks are taken: kernels do without

    make_directory(path.parent)
    holder = _holder_file(path)
    # No lock that merely is a file, not even where the system has no other: it would go stale.
    lock = FileLock(path, thread_local=False, fallback_to_soft=False, preserve_lock_file=True)
    try:
        with named_write_failures(path):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if on_wait is not None and timeout > 0:
                    on_wait(_read(holder))
                lock.acquire(timeout=timeout)
    except Timeout as error:
        raise LockTimeout(
            f"{path} is still held by {_read(holder)} after {timeout:g} s. "
            "Wait for it to end, then try again."
        ) from error
    try:
        with named_write_failures(holder):
            holder.unlink(missing_ok=True)  # it may be a link that a stranger put there
            holder.write_text(f"process {os.getpid()} on {platform.node()}")
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)
            if passing and os.name != "nt":
                path.unlink(missing_ok=True)  # those who wait find it gone, and start over
    finally:
        lock.release()


def _read(holder: Path) -> str:
    try:
        return holder.read_text() or "another process"
    except OSError:
        return "another process"

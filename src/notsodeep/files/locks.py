"""A lock between processes: one of them works, the others wait and then find the work done.

The operating system holds the lock (flock, or byte locking on Windows) and drops it when the
process ends, however it ends: there are no stale locks to remove.  The file stays, unless the lock
is a passing one.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from notsodeep.errors import LockTimeout
from notsodeep.files.atomic_files import make_directory, named_write_failures

_POLL_SECONDS = 0.05


def _try_lock(descriptor: int) -> bool:
    """Take the lock if it is free; say whether it was."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _holder_file(path: Path) -> Path:
    # Windows forbids reading the locked byte range, so the holder signs a file beside it.
    return path.with_name(path.name + ".holder")


def _open(path: Path) -> int:
    with named_write_failures(path):
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _still_there(descriptor: int, path: Path) -> bool:
    """Whether `path` is the open file; the holder of a passing lock removes it at the end."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


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
    make_directory(path.parent)
    descriptor = _open(path)
    holder = _holder_file(path)
    try:
        deadline = time.monotonic() + timeout
        announced = False
        while True:
            if _try_lock(descriptor):
                if not passing or _still_there(descriptor, path):
                    break
                previous, descriptor = descriptor, _open(path)
                os.close(previous)
                continue
            if time.monotonic() >= deadline:
                raise LockTimeout(
                    f"{path} is still held by {_read(holder)} after {timeout:g} s. "
                    "Wait for it to end, then try again."
                )
            if on_wait is not None and not announced:
                on_wait(_read(holder))
                announced = True
            time.sleep(_POLL_SECONDS)
        with named_write_failures(holder):
            holder.unlink(missing_ok=True)  # it may be a link that a stranger put there
            holder.write_text(f"process {os.getpid()} on {platform.node()}")
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)
            if passing and os.name != "nt":
                path.unlink(missing_ok=True)
            _unlock(descriptor)
    finally:
        os.close(descriptor)


def _read(holder: Path) -> str:
    try:
        return holder.read_text() or "another process"
    except OSError:
        return "another process"

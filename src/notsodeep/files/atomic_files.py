"""Files that last: written whole or not at all, by one writer at a time.

A reader never sees half a file, whatever kills the writer: the bytes go to a temporary file in
the same directory and take the final name by `os.replace`, which is atomic on one file system.

The operating system holds the lock (flock, or byte locking on Windows) and drops it when the
process ends, however it ends: there are no stale locks to remove.  The file stays, unless the lock
is a passing one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from notsodeep.errors import LockTimeout, NotWritable

_REASONS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process or file system allows",
    errno.ENOENT: "no directory can be made there",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "part of the path is a file, not a directory",
    errno.EEXIST: "a file of that name stands where a directory is needed",
    errno.EISDIR: "a directory of that name stands where a file is needed",
}


@contextlib.contextmanager
def named_write_failures(path: Path) -> Iterator[None]:
    """Turn the operating system's errors in writing `path` into `NotWritable`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        raise NotWritable(
            f"Cannot write {path}: {_REASONS[error.errno]}. Choose another directory, or make "
            "room or get permission there."
        ) from error


def make_directory(path: Path) -> Path:
    """Create a directory and its parents; an existing one is fine.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     make_directory(Path(place, "a", "b")).is_dir()
    True
    """
    with named_write_failures(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def synchronise_directory(path: Path) -> None:
    """Make a rename in `path` survive a power cut, where the platform can do so."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve_space(descriptor: int, size: int) -> None:
    """Take disk space for the first `size` bytes of a file now, where the platform can do so.

    A memory map writes when it likes; on a full disk that would kill the process.
    """
    if hasattr(os, "posix_fallocate") and size:
        os.posix_fallocate(descriptor, 0, size)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing so that it appears only when the block ends without an error.

    Parameters
    ----------
    path : Path
        The final name; its directory is created.  An existing file is replaced at the end.

    Yields
    ------
    BinaryIO
        A binary stream on a temporary file in the same directory.

    Raises
    ------
    NotWritable
        The directory or the file cannot be written, or the disk is full.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     target = Path(place, "deep", "numbers.txt")
    ...     with atomic_write(target) as stream:
    ...         _ = stream.write(b"1 2 3")
    ...         target.exists()
    ...     target.read_text()
    False
    '1 2 3'
    """
    with _replacement(path) as temporary, temporary.open("xb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def atomic_memmap(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Any]:
    """Map a new ``.npy`` file that appears only when the block ends without an error.

    Parameters
    ----------
    path : Path
        The final name; its directory is created.  An existing file is replaced at the end.
    dtype : numpy.dtype
    shape : tuple of int

    Yields
    ------
    numpy.memmap
        To be filled.  Room for all of it is taken on disk before.

    Raises
    ------
    NotWritable
        The directory or the file cannot be written, or there is not enough room.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with atomic_memmap(Path(place, "a.npy"), np.dtype(float), (2, 2)) as matrix:
    ...         matrix[:] = np.eye(2)
    ...     np.load(Path(place, "a.npy"))
    array([[1., 0.],
           [0., 1.]])
    """
    with _replacement(path) as temporary:
        matrix = np.lib.format.open_memmap(temporary, "w+", dtype, shape)
        with temporary.open("r+b") as stream:
            reserve_space(stream.fileno(), temporary.stat().st_size)
            yield matrix
            matrix.flush()
            os.fsync(stream.fileno())


@contextlib.contextmanager
def _replacement(path: Path) -> Iterator[Path]:
    """Yield a name beside `path`, of a file that takes its place when the block ends well."""
    make_directory(path.parent)
    # A name of its own: two writers never share a temporary file.  The umask decides on the
    # permissions.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    with named_write_failures(path):
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        synchronise_directory(path.parent)


def remove_abandoned(directory: Path, names: str) -> None:
    """Remove the temporary files that killed writers left in `directory`.

    They are known by their names, which nobody else gives to a file.  The caller holds a lock that
    every writer of these files holds: nothing is taken from one that is alive.

    Parameters
    ----------
    directory : Path
    names : str
        Regular expression of the names that were to be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in (".a.txt.7.0badcafe.tmp", ".a.txt.tmp", ".b.txt.7.0badcafe.tmp"):
    ...         Path(place, name).touch()
    ...     remove_abandoned(Path(place), "a[.]txt")
    ...     sorted(path.name for path in Path(place).iterdir())
    ['.a.txt.tmp', '.b.txt.7.0badcafe.tmp']
    """
    temporary = re.compile(rf"\.(?:{names})\.\d+\.[0-9a-f]{{8}}\.tmp")
    for file in directory.glob(".*.tmp"):
        if temporary.fullmatch(file.name):
            file.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, atomically; NaN and infinities are rejected.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_json(Path(place, "a.json"), {"tau": 0.9})
    ...     json.loads(Path(place, "a.json").read_text())
    {'tau': 0.9}
    """
    text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False)
    with atomic_write(path) as stream:
        stream.write(text.encode() + b"\n")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write one array in NumPy's ``.npy`` format, atomically, without objects.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_array(Path(place, "a.npy"), np.arange(3))
    ...     np.load(Path(place, "a.npy"))
    array([0, 1, 2])
    """
    with atomic_write(path) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


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

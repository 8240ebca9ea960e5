"""Downloads that resume after an interruption and are checked before they get their name.

Bytes go to ``NAME.part``; a cut connection is resumed with an HTTP range request, in this call or
in a later one.  Only a file with the expected SHA-256 is renamed to ``NAME``, so a partial or
altered download never looks complete.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from notsodeep import __version__
from notsodeep.errors import DataCorrupted, SourceUnavailable
from notsodeep.files import make_directory, sha256_of_file
from notsodeep.files.atomic_files import named_write_failures
from notsodeep.progress import Advance

_CHUNK = 1 << 18
_MOST_UNKNOWN = 1 << 28  # bytes of a file whose length is not known
# An unknown host stays unknown and a closed port closed; asking again only costs time.
_FINAL_ANSWERS = (socket.gaierror, ConnectionRefusedError)
_CONNECT_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


@dataclass(frozen=True)
class RemoteFile:
    """A published file.

    Attributes
    ----------
    name : str
        The name it is kept under.
    urls : tuple of str
        Addresses with the same content, tried in order.
    sha256 : str
        Its digest.
    size : int or None
        Its length in bytes; None if it is not known, and the digest alone says when it is whole.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str
    size: int | None


def download(
    file: RemoteFile,
    directory: Path,
    *,
    attempts: int = 5,
    timeout: float = 20.0,
    pause: float = 0.5,
    advance: Advance | None = None,
) -> Path:
    """Fetch one file into `directory`, or find it there.

    Parameters
    ----------
    file : RemoteFile
        What to fetch.
    directory : Path
        Where to; created.  The caller holds a lock on it: two writers of one ``.part`` would spoil
        each other's work (the digest would notice).
    attempts : int
        Connections to try per address that bring no new byte; one that does starts the count anew.
    timeout : float
        Seconds without an answer after which a connection is given up.
    pause : float
        Seconds before the second connection; doubled for each further one.
    advance : Advance, optional
        Told the bytes received so far and the size.

    Raises
    ------
    SourceUnavailable
        No address delivered the file; the ``.part`` file is kept for the next call.
    DataCorrupted
        What an address delivered is not the file; nothing is kept.
    """
    make_directory(directory)
    target = directory / file.name
    if target.is_file() and sha256_of_file(target) == file.sha256:
        return target
    part = part_of(file, directory)
    reasons = []
    for url in file.urls:
        try:
            _fetch(url, part, file, attempts, timeout, pause, advance)
        except SourceUnavailable as error:
            reasons.append(str(error))
            continue
        with named_write_failures(target):
            part.replace(target)
        return target
    raise SourceUnavailable("; ".join(reasons))


def part_of(file: RemoteFile, directory: Path) -> Path:
    """Return the place of a file that is not complete yet."""
    return directory / f"{file.name}.part"


def _fetch(
    url: str,
    part: Path,
    file: RemoteFile,
    attempts: int,
    timeout: float,
    pause: float,
    advance: Advance | None,
) -> None:
    """Complete `part` from one address; it has the expected digest on return."""
    began_with = _size(part)
    failures = 0
    started_over = False
    while not _is_whole(part, file):
        before = _size(part)
        try:
            announced = _receive(url, part, file.size, timeout, advance)
            reason = "the connection was cut"
            if file.size is None and _size(part) == announced:
                break
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not before:
                raise SourceUnavailable(f"{url}: HTTP status {error.code}") from error
            part.unlink()  # not shorter than the server's file: not a beginning of it
            if started_over:
                raise DataCorrupted(
                    f"{url} is {before} bytes long, and not the file expected. It was discarded."
                ) from error
            started_over = True
            continue
        except _CONNECT_ERRORS as error:
            cause = getattr(error, "reason", error)
            reason = str(cause) or type(cause).__name__
            if isinstance(cause, _FINAL_ANSWERS):
                raise SourceUnavailable(f"{url}: {reason}") from error
        if _size(part) > before:
            failures = 0
        elif not _is_whole(part, file):
            failures += 1
            if failures >= attempts:
                raise SourceUnavailable(f"{url}: {reason}")
            time.sleep(pause * 2 ** (failures - 1))
    got = sha256_of_file(part)
    if got == file.sha256 and file.size in (None, _size(part)):
        return
    part.unlink()
    if began_with:  # the old beginning may be of another version: once more, from the start
        _fetch(url, part, file, attempts, timeout, pause, advance)
        return
    raise DataCorrupted(
        f"{url} delivered a file with SHA-256 {got[:12]}…; expected {file.sha256[:12]}…. "
        "It was discarded."
    )


def _is_whole(part: Path, file: RemoteFile) -> bool:
    """Say whether there is nothing left to receive."""
    if file.size is None:
        return part.is_file() and sha256_of_file(part) == file.sha256
    return _size(part) >= file.size


def _receive(
    url: str, part: Path, size: int | None, timeout: float, advance: Advance | None
) -> int | None:
    """Append what one connection delivers to `part`; return the length that it announces."""
    offset = _size(part)
    headers = {"User-Agent": f"notsodeep/{__version__}", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT and response.headers.get(
            "Content-Range", ""
        ).startswith(f"bytes {offset}-")
        done = offset if resumed else 0
        with named_write_failures(part), part.open("ab" if resumed else "wb") as stream:
            most = _MOST_UNKNOWN if size is None else size
            while done <= most and (chunk := response.read(_CHUNK)):
                stream.write(chunk)
                done += len(chunk)
                if advance is not None:
                    advance(done, size)
            stream.flush()
            os.fsync(stream.fileno())
        length = response.headers.get("Content-Length")
        return None if length is None else int(length) + (offset if resumed else 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

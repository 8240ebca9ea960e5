"""A small image set in the official formats, and a local server that can misbehave."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from notsodeep.data.catalogue import ImageSet
from notsodeep.data.download import RemoteFile
from notsodeep.data.image_files import IDX
from notsodeep.data.raw_data import ImageArrays


def encode_idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


@dataclass
class TinySet:
    """A set of 20 + 8 random images of 40 × 40 in three classes, and its files."""

    arrays: ImageArrays
    files: dict[str, bytes]
    entry: ImageSet

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.entry.sizes(IDX)

    def gzipped(self) -> dict[str, bytes]:
        return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in self.files.items()}

    def served_by(self, base: str) -> ImageSet:
        """The catalogue entry, with `base` as the official source."""
        remote = tuple(
            RemoteFile(name, (f"{base}/{name}",), hashlib.sha256(data).hexdigest(), len(data))
            for name, data in self.gzipped().items()
        )
        return replace(self.entry, official=remote)

    def write_raw(self, directory: Path, *, compressed: bool = False) -> None:
        directory.mkdir(parents=True)
        for name, data in (self.gzipped() if compressed else self.files).items():
            (directory / name).write_bytes(data)

    def write_package(self, path: Path) -> Path:
        with tarfile.open(path, "w:gz") as archive:
            for name, data in self.files.items():
                member = tarfile.TarInfo(f"package/data/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return path


@pytest.fixture(scope="session")
def tiny() -> TinySet:
    rng = np.random.default_rng(11)
    arrays = ImageArrays(
        rng.integers(0, 256, (20, 40, 40), dtype=np.uint8),
        (np.arange(20) % 3).astype(np.uint8),
        rng.integers(0, 256, (8, 40, 40), dtype=np.uint8),
        (np.arange(8) % 3).astype(np.uint8),
    )
    files = {
        name: encode_idx(array)
        for name, (_, array) in zip(IDX.members, arrays.items(), strict=True)
    }
    entry = ImageSet(
        name="tiny",
        image_shape=(40, 40),
        num_train=20,
        num_test=8,
        class_names=("a", "b", "c"),
        raw_format=IDX,
        official=(),
        directories=("Tiny/raw", "tiny"),
        array_sha256=arrays.sha256,
    )
    return TinySet(arrays, files, entry)


@dataclass
class Server:
    """An HTTP server on this machine, with its faults and its log."""

    base: str
    files: dict[str, bytes]
    cut_after: list[int] = field(default_factory=list)
    """Bytes of the body after which each of the next responses is cut."""
    ranges: bool = True
    delay: float = 0.0
    status: int | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of every request."""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server("", {})

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.requests.append((self.path, asked))
            time.sleep(state.delay)
            content = state.files.get(self.path.lstrip("/"))
            if content is None or state.status is not None:
                self.send_error(state.status or 404)
                return
            start = 0
            if asked and state.ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            body = content[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.cut_after:
                self.wfile.write(body[: state.cut_after.pop(0)])
                self.close_connection = True
            else:
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        state.base = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield state
        httpd.shutdown()
        thread.join()

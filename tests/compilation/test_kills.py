"""Jobs that are killed, at any moment, end with the same numbers when they are run again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep._files import read_tensors
from notsodeep._runs import Run
from notsodeep.cli.main import app
from printed import complaints

COMPILE = [
    "compile",
    *("--samples", "200", "--test-samples", "60", "--family", "leaky_relu", "--no-refine"),
    *("--width", "48", "--seeds", "2"),
]
COMPILE_TRAINED = ["compile", "--zoo", "monotone-digits-64", "--layers", "2"]
MANY = 20


def start(command: list[str], out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "notsodeep", *command, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_when(process: subprocess.Popen[str], due: Callable[[], bool]) -> None:
    """Kill a process as soon as a condition holds, unless it has ended before."""
    while process.poll() is None and not due():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def finish(command: list[str], out: Path) -> dict[str, Any]:
    """Run a command to its end in this process; return the numbers it has stored."""
    with pytest.MonkeyPatch.context() as patch:  # no time for what is in the figures of the page
        patch.setattr("notsodeep.report.report.svg_text", lambda _: "<svg></svg>")
        result = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return numbers(out)


def numbers(out: Path) -> dict[str, Any]:
    """Return all stored pieces but what a clock gave."""
    found: dict[str, Any] = {}
    for path in sorted((out / "pieces").iterdir()):
        if path.suffix == ".safetensors":
            arrays, _ = read_tensors(path)
            found[path.name] = {name: array.tolist() for name, array in arrays.items()}
        elif path.suffix == ".json" and path.stem != "front":
            found[path.name] = json.loads(path.read_text())
    return found


def pieces_of(out: Path) -> int:
    return len(list((out / "pieces").glob("*.json")))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "compile"
    finish(COMPILE, out)
    return out


@pytest.mark.parametrize(
    "file",
    [
        "draw-0.json",
        *(
            pytest.param(f"{name}.json", marks=pytest.mark.slow)
            for name in ("match", "certificate", "transfer", "front")
        ),
    ],
)
def test_a_killed_compilation_goes_on(tmp_path: Path, compiled: Path, file: str) -> None:
    out = tmp_path / "run"
    process = start(COMPILE, out)
    kill_when(process, (out / "pieces" / file).exists)
    assert process.returncode == -signal.SIGKILL
    assert finish(COMPILE, out) == numbers(compiled)
    assert_same_network(out, compiled)


def assert_same_network(left: Path, right: Path) -> None:
    mine, theirs = (nsd.load(out / "network.safetensors").state_dict() for out in (left, right))
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(theirs[name]) for name in mine)


@pytest.mark.slow
@pytest.mark.parametrize("command", [COMPILE, COMPILE_TRAINED], ids=["compile", "trained"])
def test_any_moment_will_do(tmp_path: Path, command: list[str]) -> None:
    begin = time.monotonic()
    whole = start(command, tmp_path / "whole")
    whole.communicate()
    duration = time.monotonic() - begin
    assert whole.returncode == 0
    wanted = numbers(tmp_path / "whole")
    for moment in np.random.default_rng(0).uniform(size=MANY):
        out = tmp_path / f"killed-{moment}"
        deadline = time.monotonic() + duration * moment
        kill_when(start(command, out), lambda when=deadline: time.monotonic() >= when)
        assert finish(command, out) == wanted, f"killed after {moment:.3f} of the time"


def test_a_second_process_is_refused_politely(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Run(out, "held by a test", {}).opened():
        process = start(COMPILE, out)
        printed, complaint = process.communicate(timeout=120)
    assert process.returncode == 1
    assert printed == ""
    assert complaints(complaint).startswith("error: ")
    assert complaints(complaint).count("\n") == 1
    assert "in use by another process" in complaint
    assert pieces_of(out) == 0

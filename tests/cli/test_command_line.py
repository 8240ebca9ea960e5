"""The command line as a person meets it: real processes, exit codes, one-line errors."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import notsodeep as nsd
from notsodeep import __version__
from notsodeep.cli.main import app, main
from notsodeep.cli.options import counted
from notsodeep.compilation.record import Step
from notsodeep.errors import InvalidInput

LOG = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w")
COMMANDS = ("compile", "report", "diagnose", "kernel", "explore")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "notsodeep", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["kernel", "--activation", "rleu"], 2, "Did you mean 'relu'"),
        (["kernel", "--sigma-a2", "1.2"], 2, "0 ≤ sigma_a2 < 1"),
        (["kernel", "--sigma-a2", "abc"], 2, "--sigma-a2"),
        (["kernel", "--activation", "abs(x)"], 2, "undeclared kink"),
        (["kernel", "--activation", "__import__('os')"], 2, "Unknown function"),
        (["kernel", "--activation", "x + x**3", "--sigma-a2", "0.9"], 1, "was not found"),
        (["kernel", "--nonsense"], 2, "--nonsense"),
        (["kernle"], 2, "kernel"),
        (["kernel", "--kind", "ntkk"], 2, "Unknown kernel"),
        (["kernel", "--dtype", "float16"], 2, "Unknown dtype"),
        (["kernel", "--out", "k.txt"], 2, "must end with .npy or .zarr, got k.txt"),
        (["kernel", "--out", "k.zarr", "--force"], 2, "force must be left out"),
        (["kernel", "--pooling", "3"], 2, "--pooling"),
        (["kernel", "--cell", "c.toml", "--activation", "tanh"], 2, "--activation"),
        (["kernel", "--data", "nowhere.npz"], 1, "nowhere.npz"),
        (["compile", "--seeds", "1"], 2, "seeds"),
        (["compile", "--config", "nowhere.toml"], 2, "nowhere.toml"),
        (["report", "nowhere"], 2, "directory of a compile run"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["notsodeep", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert end.value.code == code
    assert printed.out == ""
    *log, error = printed.err.splitlines()
    assert all(LOG.match(line) for line in log)
    assert error.startswith("error: ")
    assert words in error


def test_an_error_of_a_real_process_is_one_line() -> None:
    result = run("kernel", "--activation", "rleu")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_traceback_on_request() -> None:
    assert "Traceback" in run("kernel", "--sigma-a2", "2", NOTSODEEP_TRACEBACK="1").stderr


def test_version_and_help() -> None:
    assert run("--version").stdout == f"notsodeep {__version__}\n"
    for command in ([], *([name] for name in COMMANDS)):
        result = in_process(*command, "--help")
        assert result.exit_code == 0
        assert "Example:" in result.stdout


def test_help_is_short_and_json_everywhere() -> None:
    """Only the explorer, a server, has nothing to print."""
    assert in_process("-h").stdout == in_process("--help").stdout
    places = [["data", each] for each in ("get", "list")]
    places += [[command.name] for command in app.registered_commands if command.name]
    for place in places:
        text = in_process(*place, "-h").stdout
        assert "--json" in text or place == ["explore"]
    listed = json.loads(in_process("data", "list", "--json").stdout)
    assert "digits" in [row["name"] for row in listed["sets"]]
    assert json.loads(in_process("data", "get", "digits", "--json").stdout) == {"digits": None}


@pytest.mark.parametrize(
    ("words", "expected"), [("ker", "kernel"), ("kernel --activation sof", "softplus")]
)
def test_shells_complete_commands_and_names(words: str, expected: str) -> None:
    code = "import sys; sys.argv = ['notsodeep']; from notsodeep.__main__ import main; main()"
    asked = {"COMP_WORDS": f"notsodeep {words}", "COMP_CWORD": str(len(words.split()))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **asked, "_NOTSODEEP_COMPLETE": "complete_bash"},
    )
    assert done.stdout.split() == [expected], done.stderr


@pytest.mark.parametrize("command", ["compile"])
def test_ctrl_c_says_how_to_resume(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place in ("notsodeep.compilation.compile.compile",):
        monkeypatch.setattr(place, stopped)
    out = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["notsodeep", *command.split(), "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    last = capsys.readouterr().err.splitlines()[-1]
    words = f"What is done is kept in {out}; the same command resumes there."
    assert last == f"error: interrupted. {words}"


def test_a_log_has_times_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 40.0, 80.0, 120.0, 121.0, 122.0])
    monkeypatch.setattr("notsodeep.cli.options.time.monotonic", lambda: next(clock))
    with counted() as progress:
        progress(Step("matching"))
        for k in range(6):
            progress(Step("training networks", k, 90))
        progress(Step("timing"))
    lines = capsys.readouterr().err.splitlines()
    assert all(LOG.match(line) for line in lines)
    assert [line[20:] for line in lines] == [
        "matching",
        "training networks: 0 of 90",
        "about 59 min left; after Ctrl-C the same command resumes",
        "training networks: 1 of 90; about 59 min left",
        "training networks: 2 of 90; about 59 min left",
        "training networks: 3 of 90; about 58 min left",
        "timing",  # the two before followed within ten seconds
    ]


def test_a_terminal_has_one_bar_with_the_time_left() -> None:
    code = """
from notsodeep.cli.options import counted
from notsodeep.compilation.record import Step
import time
with counted() as progress:
    progress(Step("matching"))
    for k in range(30):
        time.sleep(0.02)
        progress(Step("training networks", k, 30))
    progress(Step("timing"))
"""
    shown = on_a_terminal(code)
    assert "· matching" in shown
    assert "· timing" in shown
    assert "training networks" in shown
    assert re.search(r"\d+%.*0:00:0\d", shown)  # a share, and the time left
    assert shown.count("· ") == 2  # counted messages are no lines


def on_a_terminal(code: str) -> str:
    """Run code with a terminal for standard error; return what it shows."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert child.wait() == 0
    return shown.decode()


def test_no_command_shows_the_help() -> None:
    result = run()
    assert result.returncode == 2
    assert "Commands:" in result.stdout


def in_process(*arguments: str) -> Result:
    """Run a command in this process, where everything is imported already."""
    return CliRunner().invoke(app, arguments)


def example_of(command: str) -> list[str]:
    text = " ".join(in_process(command, "--help").stdout.split())
    found = re.search(r"Example: notsodeep (.*?) (?:Options|Arguments|Of a cell|For images):", text)
    assert found is not None
    return found[1].split()


@pytest.mark.parametrize("command", ["kernel"])
def test_the_example_in_the_help_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = in_process(*example_of(command))
    assert result.exit_code == 0, result.exception
    assert result.stdout


SMALL = ("--samples", "150", "--test-samples", "40", "--width", "32", "--seeds", "2")


@pytest.mark.usefixtures("undrawn")
def test_compile_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [*example_of("compile"), *SMALL, "--family", "leaky_relu", "--no-refine"]
    monkeypatch.chdir(tmp_path)
    result = in_process(*arguments)
    assert result.exit_code == 0, result.exception
    assert "Rule: replaceable if" in result.stdout
    assert "kernel gap" in result.stdout
    page = tmp_path / "runs" / "relu" / "report.html"
    assert page.exists()
    page.unlink()
    assert in_process(*example_of("report")).exit_code == 0
    assert page.exists()
    elsewhere = tmp_path / "page.html"
    printed = in_process("report", "runs/relu", "--out", "page.html", "--json")
    assert json.loads(printed.stdout)["report"] == "page.html"
    assert elsewhere.read_text() == page.read_text()
    refused = in_process("report", "runs/relu", "--out", "page.html")
    assert isinstance(refused.exception, InvalidInput)
    assert in_process("report", "runs/relu", "--out", "page.html", "--force").exit_code == 0
    # A second time it is there already, and says the same.
    summary = json.loads(in_process(*arguments, "--json").stdout)
    assert f"{summary['certificate']['matched']['relative_gap']:.2%}" in result.stdout
    changed = in_process(*arguments, "--width", "16")
    assert isinstance(changed.exception, InvalidInput)
    assert "force to replace" in str(changed.exception)


@pytest.mark.usefixtures("undrawn")
def test_a_configuration_file_fills_in_what_is_not_typed(tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text('activation = "tanh"\nsigma-a2 = 0.1\nfamily = "hard_tanh"\nwidth = 999\n')
    out = tmp_path / "run"
    arguments = ("--config", str(config), "--out", str(out), "--no-refine", *SMALL)
    assert in_process("compile", *arguments).exit_code == 0
    stored = json.loads((out / "settings.json").read_text())["settings"]
    assert stored["model"] == nsd.DeepEquilibrium("tanh", 0.1).to_dict()
    assert stored["width"] == 32  # typed
    config.write_text("widht = 3\n")
    result = in_process("compile", "--config", str(config))
    assert isinstance(result.exception, InvalidInput)
    assert "width" in str(result.exception)
    config.write_text('family = "leaky_relu"\nsigma-a2 = "much"\n')
    result = in_process("compile", "--config", str(config))
    assert result.exit_code == 2
    assert "--sigma-a2" in result.stderr


def test_the_command_line_and_python_have_the_same_defaults(tmp_path: Path) -> None:
    X = nsd.data.load("digits", samples=50, rng=0).X
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    arguments = ("kernel", "--activation", "tanh", "--samples", "50")
    out = tmp_path / "k.npy"
    assert in_process(*arguments, "--out", str(out)).exit_code == 0
    expected = nsd.kernel(deq, X, convention="feature")
    np.testing.assert_array_equal(np.load(out, allow_pickle=False), expected)
    assert in_process(*arguments, "--out", str(out), "--kind", "ntk", "--force").exit_code == 0
    expected = nsd.kernel(deq, X, kind="ntk", convention="feature")
    np.testing.assert_array_equal(np.load(out, allow_pickle=False), expected)
    store = tmp_path / "k.zarr"
    for _ in range(2):  # made, and resumed
        assert in_process(*arguments, "--out", str(store), "--kind", "ntk").exit_code == 0
    assert (nsd.kernels.KernelStore(store).read() == expected).all()
    assert isinstance(in_process(*arguments, "--out", str(store)).exception, InvalidInput)


def test_files_and_directories_are_replaced_on_request_alone(tmp_path: Path) -> None:
    out, directory = tmp_path / "k.npy", tmp_path / "d.npy"
    out.write_text("mine")
    directory.mkdir()
    refused = in_process("kernel", "--out", str(out))
    assert isinstance(refused.exception, InvalidInput)
    assert "--force" in str(refused.exception)
    refused = in_process("kernel", "--out", str(directory), "--force")
    assert "must be a file" in str(refused.exception)
    assert out.read_text() == "mine"

"""The command line as a person meets it: real processes, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from notsodeep import __version__
from notsodeep.cli.main import app, main
from notsodeep.errors import InvalidInput

COMMANDS = ("compile", "report", "match", "kernel", "spectrum", "reproduce", "moments")


def run(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "notsodeep", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **environment},
    )


def test_moments_table_fits_a_terminal() -> None:
    result = run("moments", "--activation", "relu", "--sigma-a2", "0.2")
    assert result.returncode == 0
    assert "0.9265661260" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_moments_as_json() -> None:
    result = run("moments", "--activation", "x / (1 + abs(x))", "--kink", "0", "--json")
    record = json.loads(result.stdout)
    assert record["model"]["activation"]["parameters"]["activation"]["name"] == "formula"
    assert record["centred_moments_at_tau_star"]["mean"] == 0.0
    assert record["conditions"]["contraction"]["holds"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["moments", "--activation", "rleu"], 2, "Did you mean 'relu'"),
        (["moments", "--sigma-a2", "1.2"], 2, "0 ≤ sigma_a2 < 1"),
        (["moments", "--sigma-a2", "abc"], 2, "--sigma-a2"),
        (["moments", "--tau0", "-1"], 2, "tau0"),
        (["moments", "--activation", "abs(x)"], 2, "undeclared kink"),
        (["moments", "--activation", "__import__('os')"], 2, "Unknown function"),
        (["moments", "--activation", "x + x**3", "--sigma-a2", "0.9"], 1, "was not found"),
        (["moments", "--nonsense"], 2, "--nonsense"),
        (["momets"], 2, "moments"),
        (["match", "--family", "lekay_relu"], 2, "Did you mean 'leaky_relu'"),
        (["match", "--tau0", "1", "--data", "digits"], 2, "tau0"),
        (["kernel", "--kernel", "ntk"], 2, "Unknown kernel"),
        (["spectrum", "--data", "nowhere.npz"], 1, "nowhere.npz"),
        (["compile", "--seeds", "1"], 2, "seeds"),
        (["compile", "--config", "nowhere.toml"], 2, "nowhere.toml"),
        (["report", "nowhere"], 2, "holds no compile run"),
        (["reproduce"], 2, "sphere-spectra"),
        (["reproduce", "sphere-spectre"], 2, "Did you mean 'sphere-spectra'"),
        (["reproduce", "sphere-spectra", "--profile", "big"], 2, "Unknown profile"),
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
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err
    assert "Traceback" not in printed.err


def test_an_error_of_a_real_process_is_one_line() -> None:
    result = run("moments", "--activation", "rleu")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_traceback_on_request() -> None:
    assert "Traceback" in run("moments", "--sigma-a2", "2", NOTSODEEP_TRACEBACK="1").stderr


def test_version_and_help() -> None:
    assert run("--version").stdout == f"notsodeep {__version__}\n"
    for command in ([], *([name] for name in COMMANDS)):
        result = in_process(*command, "--help")
        assert result.exit_code == 0
        assert "Example:" in result.stdout


def test_no_command_shows_the_help() -> None:
    result = run()
    assert result.returncode == 2
    assert "Commands:" in result.stdout


def in_process(*arguments: str) -> Result:
    """Run a command in this process, where everything is imported already."""
    return CliRunner().invoke(app, arguments)


def example_of(command: str) -> list[str]:
    text = " ".join(in_process(command, "--help").stdout.split())
    found = re.search(r"Example: notsodeep (.*?) (?:Options|Arguments):", text)
    assert found is not None
    return found[1].split()


@pytest.mark.parametrize("command", ["moments", "match", "kernel", "spectrum", "reproduce"])
def test_the_example_in_the_help_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = in_process(*example_of(command))
    assert result.exit_code == 0, result.exception
    assert result.stdout


SMALL = ("--samples", "150", "--test-samples", "40", "--width", "32", "--seeds", "2")


def test_compile_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [*example_of("compile"), *SMALL, "--family", "leaky_relu", "--no-refine"]
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Rule: replaceable if" in result.stdout
    assert "kernel gap" in result.stdout
    page = tmp_path / "runs" / "relu" / "report.html"
    assert page.exists()
    page.unlink()
    monkeypatch.chdir(tmp_path)
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
    assert f"{summary['relative_gap']:.2%}" in result.stdout
    changed = in_process(*arguments, "--width", "16")
    assert isinstance(changed.exception, InvalidInput)
    assert "--force" in str(changed.exception)


def test_a_configuration_file_fills_in_what_is_not_typed(tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text('activation = "tanh"\nsigma-a2 = 0.1\nfamily = "hard_tanh"\nwidth = 999\n')
    out = tmp_path / "run"
    arguments = ("--config", str(config), "--out", str(out), "--no-refine", *SMALL)
    assert in_process("compile", *arguments).exit_code == 0
    stored = json.loads((out / "settings.json").read_text())["settings"]
    assert stored["deq"]["activation"]["name"] == "tanh"
    assert stored["deq"]["sigma_a2"] == 0.1
    assert stored["width"] == 32  # typed
    config.write_text("widht = 3\n")
    result = in_process("compile", "--config", str(config))
    assert isinstance(result.exception, InvalidInput)
    assert "width" in str(result.exception)
    config.write_text('family = "leaky_relu"\nsigma-a2 = "much"\n')
    result = in_process("match", "--config", str(config))
    assert result.exit_code == 2
    assert "--sigma-a2" in result.stderr
    config.write_text('family = "leaky_relu"\nsigma-a2 = 0.3\n')
    typed = in_process("match", "--family", "leaky_relu", "--sigma-a2", "0.3")
    assert in_process("match", "--config", str(config)).stdout == typed.stdout


def test_kernel_file_is_the_kernel(tmp_path: Path) -> None:
    import numpy as np

    import notsodeep as nsd

    out = tmp_path / "k.npy"
    arguments = ("kernel", "--activation", "tanh", "--samples", "50", "--out", str(out))
    assert run(*arguments, "--kernel", "tangent").returncode == 0
    X = nsd.data.load("digits", samples=50, rng=0).X
    deq = nsd.DeepEquilibrium("tanh", 0.2).centred(float(np.sqrt(np.square(X).sum() / len(X))))
    expected = nsd.tangent_kernel(deq, X, convention="feature")
    np.testing.assert_allclose(np.load(out, allow_pickle=False), expected, rtol=1e-12)
    refused = run(*arguments)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert list(tmp_path.iterdir()) == [out]


def test_match_writes_its_record_and_replaces_none(tmp_path: Path) -> None:
    out = tmp_path / "match.json"
    printed = in_process("match", "--family", "leaky_relu", "--out", str(out), "--json")
    assert json.loads(out.read_text()) == json.loads(printed.stdout)
    before = out.read_bytes()
    refused = in_process("match", "--family", "cubic", "--out", str(out))
    assert isinstance(refused.exception, InvalidInput)
    assert "--force" in str(refused.exception)
    assert out.read_bytes() == before
    assert in_process("match", "--family", "cubic", "--out", str(out), "--force").exit_code == 0
    assert json.loads(out.read_text())["family"] == "cubic"


def test_match_without_a_solution_fails(tmp_path: Path) -> None:
    result = run("match", "--activation", "tanh", "--family", "quadratic")
    assert result.returncode == 1
    assert "no network" in result.stdout

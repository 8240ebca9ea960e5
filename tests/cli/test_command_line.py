"""The command line as a person meets it: real processes, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from notsodeep import __version__


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "notsodeep", *arguments],
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
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, words: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_traceback_on_request() -> None:
    assert "Traceback" in run("moments", "--sigma-a2", "2", NOTSODEEP_TRACEBACK="1").stderr


def test_version_and_help() -> None:
    assert run("--version").stdout == f"notsodeep {__version__}\n"
    for command in ([], ["moments"]):
        result = run(*command, "--help")
        assert result.returncode == 0
        assert "Example:" in result.stdout


def test_no_command_shows_the_help() -> None:
    result = run()
    assert result.returncode == 2
    assert "Commands:" in result.stdout


@pytest.mark.parametrize("command", ["moments"])
def test_the_example_in_the_help_works(command: str) -> None:
    text = " ".join(run(command, "--help").stdout.split())
    example = re.search(r"Example: notsodeep (.*?) Options:", text)
    assert example is not None
    assert run(*example[1].split()).returncode == 0

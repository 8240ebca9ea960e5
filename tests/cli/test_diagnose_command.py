"""`notsodeep diagnose`: networks from files and from the zoo."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli.main import app
from notsodeep.errors import NotSoDeepError
from notsodeep.networks.weights import save_cell


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["diagnose", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def bare(path: Path) -> Path:
    """Write a network without any word about it."""
    import safetensors.numpy

    arrays = nsd.zoo.load("tanh-digits-64").arrays()
    kept = {name: np.array(arrays[name]) for name in ("W", "U", "b", "C", "c")}
    safetensors.numpy.save_file(kept, path)
    return path


def test_a_network_of_the_zoo(tmp_path: Path) -> None:
    figure = tmp_path / "found.svg"
    text = run("--zoo", "tanh-digits-64", "--data", "digits", "--figure", str(figure))
    assert text.startswith("shallow")
    assert "The rule" in text
    assert figure.read_text().count("</svg>") == 1


def test_a_file_with_options_is_the_network_of_the_zoo(tmp_path: Path) -> None:
    known = json.loads(run("--zoo", "tanh-digits-64", "--json"))
    path = bare(tmp_path / "net.safetensors")
    options = ("--activation", "tanh", "--input-shift", "0.305", "--input-scale", "0.376")
    assert json.loads(run("--model", str(path), *options, "--json")) == known


def test_a_file_that_says_all(tmp_path: Path) -> None:
    save_cell(nsd.zoo.load("tanh-digits-64"), tmp_path / "net.safetensors")
    assert run("--model", str(tmp_path / "net.safetensors")).startswith("shallow")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "one of --model"),
        (["--zoo", "tanh-digits-64", "--model", "x"], "one of --model"),
        (["--zoo", "tanh-digits-64", "--activation", "relu"], "go with --model"),
        (["--zoo", "tanh"], "Unknown network"),
        (["--zoo", "tanh-mnist-100", "--data", "digits"], "784 numbers"),
        (["--model", "absent.safetensors"], "no file"),
        (["--model", "{bare}"], "activation"),
        (["--model", "{bare}", "--activation", "tanh"], "--input-shift and --input-scale"),
        (["--model", "{bare}", "--activation", "tanh", "--input-shift", "0"], "--input-scale"),
    ],
)
def test_requests_that_cannot_be_met(tmp_path: Path, options: list[str], words: str) -> None:
    path = str(bare(tmp_path / "net.safetensors"))
    arguments = ["diagnose", *(option.replace("{bare}", path) for option in options)]
    with pytest.raises(NotSoDeepError, match=words):
        CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)


@pytest.mark.usefixtures("undrawn")
def test_compile_takes_a_network_of_the_zoo(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["compile", "--zoo", "tanh-digits-64", "--layers", "2", "--out", str(out), "--json"]
    result = CliRunner().invoke(app, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert len(record["layers"]["heads"]) == 2
    assert Path(record["report"]).is_file()
    compiled = nsd.load(out)
    assert compiled.fidelity.agreement > 0.97
    assert compiled.fidelity.certified is not None
    again = tmp_path / "again.html"
    report = CliRunner().invoke(app, ["report", str(out), "--out", str(again)])
    assert report.exit_code == 0, report.output
    assert "</html>" in again.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--zoo", "tanh-digits-64", "--family", "cubic", "--seeds", "3"], "--family, --seeds"),
        (["--layers", "2"], "--layers must be left out"),
    ],
)
def test_compile_rejects_options_that_it_would_ignore(options: list[str], words: str) -> None:
    with pytest.raises(NotSoDeepError, match=words):
        CliRunner().invoke(
            app, ["compile", *options], catch_exceptions=False, standalone_mode=False
        )

"""`notsodeep predict`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli.main import app
from notsodeep.errors import InvalidInput

MIXTURE = """
means = [{dimension = 128, at = [0], value = [2.0]}, {dimension = 128, at = [8], value = [2.0]}]
covariances = [1.0, 1.2]
"""


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    path = tmp_path / "mixture.toml"
    path.write_text(MIXTURE)
    return path


def test_a_mixture(mixture: Path, tmp_path: Path) -> None:
    out = tmp_path / "risk.json"
    arguments = ["predict", str(mixture), "--samples", "128", "--ridge", "0.1", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    found = nsd.prediction.RiskCurve.from_dict(json.loads(result.output))
    assert found.to_dict() == json.loads(out.read_text())
    assert 0.8 < found.accuracy[0] < 0.9
    text = CliRunner().invoke(app, ["predict", str(mixture), "--width", "256"]).output
    assert "independent neurons" in text


def test_a_data_set() -> None:
    arguments = ["predict", "--data", "digits", "--samples", "400", "--ridge", "0.01"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "extrapolated" in result.output
    assert "too few mistakes for an error rate" in result.output  # 2 of 400
    assert "everages" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Got neither"),
        (["--data", "digits", "--width", "9"], "must come with a mixture"),
        (["absent.toml"], "readable file"),
    ],
)
def test_bad_requests(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["predict", *arguments])
    assert isinstance(result.exception, InvalidInput)
    assert words in str(result.exception)


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "mixture.toml"
    for text, words in (
        ("means = [[1.0]]", "has no"),
        ("mean = 1", "Unknown key"),
        ("means = [3]\ncovariances = 1.0", "must be lists"),
        ("means = [", "be a TOML file"),
    ):
        path.write_text(text)
        result = CliRunner().invoke(app, ["predict", str(path)])
        assert isinstance(result.exception, InvalidInput)
        assert words in str(result.exception)

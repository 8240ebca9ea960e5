"""Cells on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli.main import app, main
from notsodeep.cli.options import equilibrium
from notsodeep.errors import InvalidInput, UnknownName
from notsodeep.models import DeepEquilibrium, Dense

RING = DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6, 0.1), Dense("relu", 0.3)])
LAYERS = ["tanh weight=.5 inject=.6 bias=.1", "relu weight=.3"]
FILE = """
[[layer]]
activation = "tanh"
weight = 0.5
inject = 0.6
bias = 0.1

[[layer]]
activation = "relu"
weight = 0.3
"""


def test_layers_and_files_describe_the_same_cell(tmp_path: Path) -> None:
    path = tmp_path / "cell.toml"
    path.write_text(FILE)
    assert equilibrium("relu", 0.2, None, LAYERS) == RING
    assert equilibrium("relu", 0.2, None, None, path) == RING


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "be an activation and options"),
        ("weight=.5", "be an activation and options"),
        ("tanh .5", "be an activation and options"),
        ("tanh inject=.5", "weight .* be given"),
        ("tanh weight=much", "weight .* be a number"),
        ("tanh weight=-1 inject=1", "at least 0"),
        ("tanh weight=.1 normalise=affine", "trained gains"),
    ],
)
def test_bad_layers_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        equilibrium("relu", 0.2, None, [text])


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="option of a dense layer 'wieght'"):
        equilibrium("relu", 0.2, None, ["tanh wieght=.5"])
    path = tmp_path / "cell.toml"
    for content in ("layer = 3", "[other]\nx = 1", "not toml"):
        path.write_text(content)
        with pytest.raises(InvalidInput, match="cell must"):
            equilibrium("relu", 0.2, None, None, path)
    with pytest.raises(InvalidInput, match="left out"):
        equilibrium("relu", 0.2, None, LAYERS, path)


@pytest.fixture
def cell_file(tmp_path: Path) -> str:
    path = tmp_path / "cell.toml"
    path.write_text(FILE)
    return str(path)


def test_kernel_of_a_cell_is_written(tmp_path: Path, cell_file: str) -> None:
    X = nsd.data.load("digits", samples=30, rng=0).X
    expected = nsd.kernel(RING, X, convention="feature")
    described = ["--layer", LAYERS[0], "--layer", LAYERS[1]], ["--cell", cell_file]
    for number, cell in enumerate(described):
        out = tmp_path / f"kernel{number}.npy"
        arguments = ["kernel", "--data", "digits", "--samples", "30", "--out", str(out), "--json"]
        result = CliRunner().invoke(app, [*arguments, *cell])
        assert result.exit_code == 0, result.output
        assert DeepEquilibrium.from_dict(json.loads(result.stdout)["model"]) == RING
        np.testing.assert_array_equal(np.load(out), expected)


@pytest.mark.slow
def test_a_cell_is_compiled(tmp_path: Path, cell_file: str) -> None:
    out = tmp_path / "run"
    arguments = ["compile", "--cell", cell_file, "--data", "digits", "--out", str(out), "--json"]
    small = ["--samples", "150", "--test-samples", "40", "--width", "32", "--seeds", "2"]
    result = CliRunner().invoke(app, [*arguments, *small, "--no-refine"])
    assert result.exit_code == 0, result.output
    compiled = nsd.load(out)
    assert compiled.match.model == RING
    assert (
        json.loads(result.stdout)["certificate"]["matched"]["relative_gap"]
        == compiled.certificate.matched.relative_gap
    )
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["kernel", "--layer", "tanh weight=-1 inject=1"], 2, "at least 0. Got -1"),
        (["kernel", "--layer", "relu weight=.5"], 2, "give one of the layers inject > 0"),
        (["kernel", "--cell", "nowhere.toml"], 2, "cell must name a TOML file"),
        (["kernel", "--layer", "tanh weight=3.5 inject=.3"], 1, "and must stay below 1"),
        (["compile", "--layer", "relu weight=3 inject=1"], 1, "was not found"),
        (["compile", "--layer", "tanh weight=.1", "--sigma-a2", "0.3"], 2, "--sigma-a2"),
        (["kernel", "--layer", "tanh weight=.1 normalise=affine"], 2, "trained gains"),
        (["kernel", "--layer", "tanh weight=.1 inject=1", "--sigma-a2", ".5"], 2, "--sigma-a2"),
    ],
)
def test_bad_cells_end_commands_with_a_line_and_a_code(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--data", "digits", "--samples", "60"]
    out = ["--out", "out.npy"]
    monkeypatch.setattr("sys.argv", ["notsodeep", *arguments, *data, *out])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error")]
    assert words in line
    assert not (tmp_path / "out.npy").exists() or arguments[0] == "compile"

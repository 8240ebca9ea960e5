"""Cells on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli.main import app
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


def test_kernel_of_a_cell_is_written(tmp_path: Path) -> None:
    out = tmp_path / "kernel.npy"
    arguments = ["kernel", "--data", "digits", "--samples", "30", "--out", str(out), "--json"]
    result = CliRunner().invoke(app, [*arguments, "--layer", LAYERS[0], "--layer", LAYERS[1]])
    assert result.exit_code == 0, result.output
    assert DeepEquilibrium.from_dict(json.loads(result.stdout)["model"]) == RING
    X = nsd.data.load("digits", samples=30, rng=0).X
    expected = nsd.conjugate_kernel(RING, X, convention="feature")
    np.testing.assert_array_equal(np.load(out), expected)

"""`compile` end to end for convolutional DEQs: rows, evidence, storage, the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd
from brute_force import equilibrium
from notsodeep.compilation.rows import rows_for_model
from notsodeep.data import Dataset, load
from notsodeep.errors import InvalidInput

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

from typer.testing import CliRunner, Result  # noqa: E402

from notsodeep.cli.main import app  # noqa: E402

MODEL = equilibrium(weight=0.2, inject=0.8, bias=0.0, image_shape=(8, 8))
DIGITS = load("digits", samples=200, test_samples=100, rng=0)
SMALL = {"family": "leaky_relu", "width": 8, "seeds": 2, "tolerance": 1e-4}


RELU = "relu weight=.2 inject=.8 size=3"


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile digits by the command line."""
    place = tmp_path_factory.mktemp("compiled") / "run"
    done = command(
        "compile", "--convolution", RELU, "--data", "digits", "--samples", 200,
        "--test-samples", 100, "--family", "leaky_relu", "--width", 8, "--seeds", 2,
        "--tolerance", 1e-4, "--out", place,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return place


@pytest.mark.usefixtures("undrawn")
def test_compiled_digits(run: Path) -> None:
    compiled = nsd.load(run)
    assert compiled.settings.model == MODEL
    assert compiled.match.model == MODEL
    assert compiled.certificate.matched.relative_gap < 0.02
    assert compiled.certificate.unmatched.relative_gap > 0.05
    assert min(compiled.accuracy.mean.values()) > 0.8
    assert compiled.front.chosen_point.ratio > 1.0
    assert "convolutional leaky relu" in compiled.verdict.headline
    assert "limiting law" in compiled.report(run.parent / "report.html").read_text()
    # From raw pixels to classes, in a new process if need be.
    net = compiled.network
    raw = load("digits", samples=200, test_samples=100, preprocessing="none", rng=0)
    X = torch.as_tensor(net.preprocessing.apply(raw.X_test, "float32"))
    assert np.mean(net(X).argmax(dim=1).numpy() == raw.y_test) > 0.8


def test_the_scale_of_data_sets_becomes_that_of_pixels() -> None:
    rows = rows_for_model(MODEL, DIGITS, None, None, None, preprocessing="auto", seed=0)
    np.testing.assert_allclose(rows.X, 8.0 * DIGITS.X)
    assert rows.preprocessing.kind == "pixels"


def test_arrays_of_images() -> None:
    images = DIGITS.X.reshape(-1, 8, 8, 1)
    rows = rows_for_model(MODEL, images, DIGITS.y, None, None, preprocessing="auto", seed=0)
    assert isinstance(rows, Dataset)
    assert (rows.X**2).mean() == pytest.approx(1.0, rel=1e-12)
    plain = rows_for_model(MODEL, images, DIGITS.y, None, None, preprocessing="none", seed=0)
    assert plain.preprocessing.kind == "none"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": equilibrium(weight=0.2, inject=0.8, bias=0.0, image_shape=(4, 16))}, "images"),
        ({"refine": False}, "refine"),
        ({"family": "dual"}, "sphere"),
        ({"model": equilibrium(weight=0.2, image_shape=(8, 8))}, "one layer"),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    options = {"model": MODEL, **SMALL, **change}
    with pytest.raises(InvalidInput, match=message):
        nsd.compile(X=DIGITS, **options)


def test_kernel_command(tmp_path: Path) -> None:
    out = tmp_path / "kernel.npy"
    done = command(
        "kernel", "--convolution", "tanh weight=.2 inject=.8 size=5", "--image-shape", "8x8",
        "--pooling", 2, "--samples", 20, "--out", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    X = load("digits", samples=20, preprocessing="pixels", rng=0).X
    layer = nsd.Convolution("tanh", weight=0.2, inject=0.8, size=5)
    model = nsd.ConvolutionalEquilibrium([layer], (8, 8), 2)
    exact = nsd.kernel(model, X, convention="feature")
    np.testing.assert_allclose(np.load(out), exact, rtol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel", "--convolution", RELU, "--image-shape", "8 by 8"], "like 28x28"),
        (["kernel", "--convolution", RELU, "--image-shape", "4x16"], "must be that of digits"),
        (["kernel", "--convolution", "relu weight=.2 inject=.8 size=two"], "size"),
        (["compile", "--convolution", RELU, "--sigma-a2", ".3"], "--sigma-a2"),
        (["compile", "--pooling", "3"], "--convolution"),
    ],
)
def test_bad_commands(arguments: list[str], message: str) -> None:
    done = command(*arguments)
    assert done.exit_code != 0
    assert message in str(done.exception)


def test_hours_need_a_yes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("notsodeep.cli.model_options._HOURS", 1e-9)
    asked = ("--convolution", RELU, "--data", "digits", "--samples", 30, "--out")
    for name in ("kernel", "compile"):
        out = tmp_path / {"kernel": "k.npy"}.get(name, "run")
        assert "--yes" in str(command(name, *asked, out).exception)
        assert not out.exists()
    out = tmp_path / "kernel.npy"
    done = command("kernel", *asked, out, "--yes")
    assert done.exit_code == 0, done.output
    assert out.exists()

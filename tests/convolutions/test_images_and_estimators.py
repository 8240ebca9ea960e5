"""Images as rows: order of channels, scale of pixels, estimators, stores, bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd
from brute_force import equilibrium, waves
from notsodeep.data import Preprocessing, load
from notsodeep.errors import InvalidInput, NotEnoughMemory, TheoryDoubtful, UnknownName
from notsodeep.estimators import EquilibriumKernelClassifier
from notsodeep.kernels import KernelStore, store_kernel


def test_pixels_have_norm_one() -> None:
    data = load("digits", samples=200, preprocessing="pixels", rng=0)
    assert (data.X**2).mean() == pytest.approx(1.0, rel=1e-12)
    again = Preprocessing.from_dict(data.preprocessing.to_dict())
    assert again == data.preprocessing
    colour = Preprocessing.fit(np.random.default_rng(0).normal(size=(50, 48)), "pixels", pixels=16)
    pixels = colour.apply(np.random.default_rng(0).normal(size=(50, 48))).reshape(-1, 16, 3)
    assert (pixels**2).sum(axis=2).mean() == pytest.approx(1.0, rel=1e-12)


def test_small_pixels_are_warned_of() -> None:
    X = load("digits", samples=20, rng=0).X
    with pytest.warns(TheoryDoubtful, match="preprocessing='pixels'"):
        nsd.kernel(
            equilibrium("tanh", weight=0.2, image_shape=(8, 8)), X, convention="preactivation"
        )
    nsd.kernel(
        equilibrium("relu", image_shape=(8, 8)), X, convention="preactivation"
    )  # has no scale of its own


def test_a_long_run_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    model = equilibrium(image_shape=(28, 28), pooling="average")
    # Hours on two cores: a fast machine is to announce it too.
    X = np.random.default_rng(0).normal(size=(1600, 784))
    with caplog.at_level("WARNING", logger="notsodeep.kernels"):
        nsd.KernelOperator(model, X[:40], convention="preactivation")
        assert "will take about" not in caplog.text
        nsd.KernelOperator(model, X, convention="preactivation")
    assert "will take about" in caplog.text


def test_classifier_of_a_convolutional_model() -> None:
    data = load("digits", samples=300, test_samples=200, preprocessing="none", rng=0)
    model = equilibrium(weight=0.2, inject=0.8, bias=0.0, image_shape=(8, 8))
    classifier = EquilibriumKernelClassifier(model=model, convention="preactivation").fit(
        data.X, data.y
    )
    assert classifier.preprocessing_.kind == "pixels"
    assert classifier.score(data.X_test, data.y_test) > 0.9


def test_store(tmp_path: Path) -> None:
    model = equilibrium(image_shape=(4, 4, 1), pooling=2)
    X = waves(20, 4, 4, 1)
    store_kernel(tmp_path / "kernel", model, X, kind="ntk")
    stored = KernelStore(tmp_path / "kernel")
    assert stored.model == model
    K = nsd.kernel(model, X, kind="ntk", convention="feature")
    np.testing.assert_allclose(stored.read(), K, rtol=1e-12)


LAYER = nsd.Convolution("relu", weight=0.2, inject=0.8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nsd.Convolution("relu", weight=0.2, size=4), "odd"),
        (lambda: nsd.ConvolutionalEquilibrium([LAYER], (8, 8), padding="same"), "padding"),
        (lambda: nsd.Convolution("relu", weight=0.2, normalise="feature"), "normalise"),
        (lambda: nsd.ConvolutionalEquilibrium([LAYER], (8,)), "image_shape"),
        (
            lambda: nsd.kernel(
                nsd.ConvolutionalEquilibrium([LAYER], (8, 8, 3)),
                np.ones((2, 3, 8, 8)),
                convention="preactivation",
                kind="both",
            ),
            r"shape \(n, 8, 8, 3\)",
        ),
        (lambda: nsd.ConvolutionalEquilibrium([LAYER], (8, 0)), "image_shape"),
        (lambda: nsd.ConvolutionalEquilibrium([LAYER], (8, 8), pooling=9), "pooling"),
        (lambda: nsd.ConvolutionalEquilibrium([LAYER], (8, 8), pooling="max"), "pooling"),
        (lambda: equilibrium(image_shape=(4, 4), size=5, padding="zero"), "at most 4"),
        (lambda: equilibrium(image_shape=(4, 4), size=11), "at most 9"),
        (lambda: nsd.ConvolutionalEquilibrium([LAYER], (8, 8), stride=0), "stride"),
        (
            lambda: nsd.kernel(
                nsd.ConvolutionalEquilibrium([LAYER], (8, 9)),
                np.ones((2, 64)),
                convention="preactivation",
                kind="both",
            ),
            r"72 numbers.* 64\. Give the image_shape",
        ),
        (lambda: equilibrium(weight=0.0), "ConvolutionalNetwork"),
        (lambda: nsd.ConvolutionalEquilibrium([nsd.Dense("relu", 0.2, 0.8)], (8, 8)), "cell"),
        (lambda: nsd.ConvolutionalNetwork("relu", (8, 8)), "list"),
        (
            lambda: nsd.kernel(equilibrium(), np.ones((2, 31)), convention="preactivation"),
            "32 numbers",
        ),
        (
            lambda: nsd.kernel(equilibrium(), np.ones((2, 32)), convention="x"),
            "convention",
        ),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    with pytest.raises((InvalidInput, UnknownName), match=message):
        make()


def test_images_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notsodeep.checks.available_memory", lambda: 10**5)
    with pytest.raises(NotEnoughMemory, match=r"2000 images.*fewer images"):
        nsd.KernelOperator(equilibrium(), np.ones((2000, 32)), convention="preactivation")


def test_stored_forms() -> None:
    for model in (
        equilibrium(pooling=2, padding="zero"),
        nsd.ConvolutionalNetwork(["relu", "tanh"], (8, 8, 3), size=5, stride=2),
    ):
        assert type(model).from_dict(model.to_dict()) == model

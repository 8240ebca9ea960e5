"""Explicit convolutional networks that stand for convolutional DEQs."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from brute_force import equilibrium
from notsodeep.data import load
from notsodeep.errors import InvalidInput

DIGITS = load("digits", samples=240, preprocessing="pixels", rng=0)


def vanilla(activation: str = "relu", **options: object) -> nsd.ConvolutionalEquilibrium:
    return equilibrium(activation, weight=0.2, inject=0.8, bias=0.0, image_shape=(8, 8), **options)


def test_one_designed_activation_on_digits() -> None:
    found = nsd.match(vanilla(), DIGITS.X, family="leaky_relu")
    assert found.model == vanilla()
    assert found.refinement.after < found.refinement.before
    certificate = found.certify(DIGITS.X_test[:60], DIGITS.y_test[:60])
    assert certificate.matched.relative_gap < 0.02
    assert certificate.unmatched.relative_gap > 4.0 * certificate.matched.relative_gap
    assert certificate.matched.readout_gap < 0.05
    # The certificate is about the kernels of the two descriptions.
    exact = nsd.kernel(found.model, DIGITS.X_test[:60], convention="feature")
    reached = nsd.kernel(found.network, DIGITS.X_test[:60], convention="preactivation")
    gap = np.linalg.norm(exact - reached, 2) / np.linalg.norm(exact, 2)
    assert certificate.matched.relative_gap == pytest.approx(gap, rel=1e-9)
    assert type(found).from_dict(found.to_dict()).to_dict() == found.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("options", [{"padding": "zero"}, {"pooling": 3}, {"size": 5}])
def test_borders_windows_and_pooling(activation: str, options: dict[str, object]) -> None:
    found = nsd.match(vanilla(activation, **options), DIGITS.X)
    certificate = found.certify(DIGITS.X_test[:100])
    assert certificate.matched.relative_gap < 0.5 * certificate.unmatched.relative_gap


@pytest.mark.slow
def test_tangent_kernel() -> None:
    found = nsd.match(vanilla(), DIGITS.X, kind="ntk", family="leaky_relu")
    assert found.certify(DIGITS.X_test[:100]).matched.relative_gap < 0.03


def test_other_cells_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one layer"):
        nsd.match(equilibrium(image_shape=(8, 8)), DIGITS.X)
    with pytest.raises(InvalidInput, match="at least 30 rows"):
        nsd.match(vanilla(), DIGITS.X[:20])
    with pytest.raises(InvalidInput, match="sphere"):
        nsd.match(vanilla(), DIGITS.X, family="dual")
    with pytest.raises(InvalidInput, match="for a convolution"):
        nsd.match(vanilla(), tau0=1.0)


def test_conditions_are_those_of_the_dense_cell_and_of_the_scale() -> None:
    model = vanilla("tanh")
    dense = nsd.conditions(nsd.DeepEquilibrium("tanh", 0.2), tau0=0.3)
    verdicts = nsd.conditions(model, tau0=0.3)
    assert [v.value for v in verdicts][:-1] == [v.value for v in dense]
    assert verdicts["scale of the pixels"].holds
    small = load("digits", samples=50, rng=0)  # rows, not pixels, have norm one
    assert not nsd.conditions(model, X=small.X)["scale of the pixels"].holds
    assert nsd.conditions(vanilla("relu"), X=small.X)["scale of the pixels"].holds

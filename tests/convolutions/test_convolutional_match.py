"""Explicit convolutional networks that stand for convolutional DEQs."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from brute_force import equilibrium
from notsodeep.data import load
from notsodeep.errors import InvalidInput
from notsodeep.matching import match_convolution

DIGITS = load("digits", samples=240, preprocessing="pixels", rng=0)


def vanilla(activation: str = "relu", **options: object) -> nsd.ConvolutionalEquilibrium:
    return equilibrium(activation, weight=0.2, inject=0.8, bias=0.0, image_shape=(8, 8), **options)


def test_one_designed_activation_on_digits() -> None:
    match = match_convolution(vanilla(), DIGITS.X, family="leaky_relu", rows=40)
    assert match.matched.relative_gap < 0.02
    assert match.unmatched.relative_gap > 0.1
    assert match.refinement.after < match.refinement.before
    # What is on record is what the network does on other images.
    exact = nsd.conjugate_kernel(match.deq, DIGITS.X_test[:50], convention="feature")
    reached = nsd.conjugate_kernel(match.network, DIGITS.X_test[:50])
    gap = np.linalg.norm(exact - reached, 2) / np.linalg.norm(exact, 2)
    assert gap < 3.0 * match.matched.relative_gap
    assert type(match).from_dict(match.to_dict()).to_dict() == match.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("options", [{"padding": "zero"}, {"pooling": 3}, {"size": 5}])
def test_borders_windows_and_pooling(activation: str, options: dict[str, object]) -> None:
    match = match_convolution(vanilla(activation, **options), DIGITS.X, rows=40)
    assert match.matched.relative_gap < 0.5 * match.unmatched.relative_gap


def test_other_cells_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one layer"):
        match_convolution(equilibrium(image_shape=(8, 8)), DIGITS.X)
    with pytest.raises(InvalidInput, match="at least 30 rows"):
        match_convolution(vanilla(), DIGITS.X[:20])

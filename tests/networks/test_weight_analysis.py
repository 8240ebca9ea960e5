"""Descriptions of given weights, and the tests of what the theory assumes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput, TheoryDoubtful, UnknownName
from notsodeep.models.given_weights import analyse_weights

LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-np.sqrt(3), np.sqrt(3), shape),
    "signs": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "laplace": lambda rng, shape: rng.laplace(size=shape) / np.sqrt(2),
}


def weights(law: str = "gaussian", m: int = 200, p: int = 80, seed: int = 0) -> list[np.ndarray]:
    """σa² = 0.2, σb² = 0.8, for inputs in units of 1/3."""
    rng = np.random.default_rng(seed)
    draw = LAWS[law]
    return [np.sqrt(0.2 / m) * draw(rng, (m, m)), 3 * np.sqrt(0.8) * draw(rng, (m, p))]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("m", "p"), [(64, 64), (200, 80), (128, 500), (64, 1)])
def test_independent_entries_pass(law: str, m: int, p: int) -> None:
    for seed in range(3):
        A, B = weights(law, m, p, seed)
        analysis = analyse_weights(A, B, "tanh")
        assert not [v for v in analysis.verdicts if v.holds is False], str(analysis)
        assert analysis.model.sigma_a2 == pytest.approx(0.2, rel=0.1)
        assert analysis.model.sigma_a2 == pytest.approx(m * np.mean(A**2))
        expected = np.sqrt(np.mean(B**2) / analysis.model.sigma_b2)
        assert analysis.input_scale == pytest.approx(expected)
        assert "look like independent draws" in analysis.summary
    if p > 1:
        assert analysis.input_scale == pytest.approx(3.0, rel=0.1)


def test_the_description_is_an_ordinary_one() -> None:
    A, B = weights()
    deq = nsd.DeepEquilibrium.from_weights(A, B, activation="relu")
    assert deq == nsd.DeepEquilibrium("relu", 200 * np.mean(A**2))
    assert nsd.DeepEquilibrium.from_dict(deq.to_dict()) == deq
    assert nsd.conditions(deq)["existence of τ*"].holds


def structured(name: str) -> list[np.ndarray]:
    A, B = weights()
    rng = np.random.default_rng(9)
    size = np.sqrt(0.2 / 200)
    if name == "mean of A":
        A += 0.05 * size
    elif name == "mean of B":
        B += 0.2
    elif name == "tails of A":
        A *= rng.choice([0.1, 6.0], A.shape, p=[0.98, 0.02])
    elif name == "variances of A":
        A *= np.linspace(0.3, 1.4, 200)[:, None]
    elif name == "variances of B":
        B *= np.linspace(0.3, 1.4, 80)
    elif name == "singular values of A":
        A = np.sqrt(0.2) * np.linalg.qr(A)[0]
    elif name == "largest singular value of A":
        u, v = rng.normal(size=(2, 200)) / np.sqrt(200)
        A += 2.0 * np.outer(u, v)
    elif name == "spectral radius of A":
        u = rng.normal(size=200) / np.sqrt(200)
        A += 0.8 * np.outer(u, u)
    elif name == "contraction by these weights":
        A *= 1.5
    return [A, B]


FAILURES = [
    "mean of A",
    "mean of B",
    "tails of A",
    "variances of A",
    "variances of B",
    "singular values of A",
    "largest singular value of A",
    "spectral radius of A",
    "contraction by these weights",
]


@pytest.mark.parametrize("name", FAILURES)
def test_structure_is_found_and_named(name: str) -> None:
    A, B = structured(name)
    analysis = analyse_weights(A, B, "tanh")
    verdict = analysis.verdicts[name]
    assert verdict.holds is False
    assert verdict.value > verdict.bound or name == "contraction by these weights"
    assert not analysis.verdicts.hold
    assert name in str(analysis)
    if name == "contraction by these weights":
        assert "do not contract" in analysis.summary
        assert "look like independent draws" in analysis.summary
    else:
        assert f"What fails: {name}" in analysis.summary or f"; {name}" in analysis.summary
    with pytest.warns(TheoryDoubtful):
        assert nsd.DeepEquilibrium.from_weights(A, B, "tanh") == analysis.model


def test_no_recurrence() -> None:
    A, B = weights()
    analysis = analyse_weights(0 * A, B, "tanh")
    assert analysis.model.sigma_a2 == 0.0
    assert analysis.verdicts.hold


def test_weights_are_checked() -> None:
    A, B = weights()
    cases = [
        ((A[:100], B), r"recurrent of analyse_weights must have shape \(200, 200\)"),
        ((A, B[:, 0]), "injection .* matrix"),
        ((A, 0 * B), "injection .* zeros only"),
        ((3 * A, B), "σa².*Got 1.8"),
        ((A + np.nan, B), "recurrent .* finite"),
    ]
    for arguments, words in cases:
        with pytest.raises(InvalidInput, match=words):
            analyse_weights(*arguments, "tanh")
    with pytest.raises(UnknownName):
        analyse_weights(A, B, "thanh")

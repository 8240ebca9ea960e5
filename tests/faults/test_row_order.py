"""Rows sorted by class, or in any other order: the same answers, and about all of the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.compilation import random_deq
from notsodeep.compilation.record import RandomSettings
from notsodeep.data import draw_rows
from notsodeep.explorer.explorer_data import prepared
from notsodeep.explorer.state import ExplorerState
from notsodeep.explorer.take_away import code_of

RELU = nsd.DeepEquilibrium("relu", 0.2)


def two_kinds(each: int, p: int, seed: int = 0) -> tuple[FloatArray, IntArray]:
    """Return short rows about zero, and then long rows about something else."""
    rng = np.random.default_rng(seed)
    short = 0.15 * rng.normal(size=(each, p)) / np.sqrt(p)
    long = 1.5 * rng.normal(size=(each, p)) / np.sqrt(p) + 0.8 * np.eye(1, p)[0]
    return np.vstack([short, long]), np.repeat([0, 1], each)


def orders(n: int) -> dict[str, IntArray]:
    """Return orders of rows that come sorted by class, half of each."""
    by_class = np.arange(n)
    return {
        "backwards": by_class[::-1],
        "alternating": by_class.reshape(2, -1).T.reshape(-1),
        "shuffled": np.random.default_rng(1).permutation(n),
    }


@pytest.mark.parametrize(
    ("order", "each"),
    [
        ("backwards", 400),
        pytest.param("alternating", 100, marks=pytest.mark.slow),
        pytest.param("shuffled", 100, marks=pytest.mark.slow),
    ],
)
def test_a_refined_match_does_not_depend_on_the_order(order: str, each: int) -> None:
    X, _ = two_kinds(each, 20)
    options: dict[str, Any] = {"family": "leaky_relu", "refine": True}
    found = nsd.match(RELU, X, **options)
    again = nsd.match(RELU, X[orders(len(X))[order]], **options)
    assert again.parameters == pytest.approx(found.parameters, rel=1e-6)
    assert found.refinement is not None
    assert found.refinement.kept
    plain = nsd.match(RELU, X, family="leaky_relu", refine=False)
    assert found.certify(X).matched.gap < plain.certify(X).matched.gap / 3.0


def test_the_choice_of_a_family_does_not_depend_on_the_order() -> None:
    X, _ = two_kinds(200, 20)
    found, again = (nsd.match(RELU, rows) for rows in (X, X[::-1]))
    assert again.family == found.family
    scores, others = ([c.score for c in m.candidates] for m in (found, again))
    # Scaled has no network for a ReLU DEQ, and no score.
    assert others == pytest.approx(scores, rel=1e-6, nan_ok=True)


def test_the_seed_of_a_match_draws_its_rows() -> None:
    X, _ = two_kinds(100, 20)
    options: dict[str, Any] = {"X": X, "family": "leaky_relu", "refine": True}
    first, other = (nsd.match(RELU, **options, rng=seed) for seed in (0, 1))
    assert first.parameters == nsd.match(RELU, **options).parameters
    assert first.parameters != other.parameters
    assert first.parameters == pytest.approx(other.parameters, abs=0.05)
    with pytest.raises(nsd.errors.InvalidInput, match="rng of match"):
        nsd.match(RELU, **options, rng=-1)


def test_the_largest_cosine_is_looked_for_everywhere() -> None:
    """The dual activation states its error for the data; their near rows come last."""
    X = nsd.data.sphere(2400, 30, rng=0)
    X[1200:] = X[1200:1201] + 1e-3 * X[1200:]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    reason = nsd.match(RELU, X, family="dual").reason
    assert "|x·y| ≤ 1 as among 2000 rows of the data" in reason


@pytest.mark.parametrize("order", ["backwards", "alternating", "shuffled"])
def test_a_certificate_does_not_depend_on_the_order(order: str) -> None:
    y = np.repeat([0, 1], 40)
    X = np.random.default_rng(0).normal(size=(80, 12)) / 4.0
    X[:, 0] += 2 * y - 1
    m = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0, family="hard_tanh")
    chosen = orders(len(X))[order]
    by_class, other = m.certify(X, y), m.certify(X[chosen], y[chosen])
    assert by_class.accuracy is not None
    assert other.accuracy == by_class.accuracy
    assert by_class.accuracy["deq"] > 0.9
    assert other.matched.gap == pytest.approx(by_class.matched.gap, rel=1e-9)
    assert "on 80 rows" in str(other)


def test_a_compilation_is_about_all_test_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are drawn for the certificate, the times and the ridge, whatever their order."""
    monkeypatch.setattr(random_deq, "CERTIFIED", 60)
    X, y = two_kinds(60, 12)
    X_test, y_test = two_kinds(90, 12, seed=1)
    found = {}
    for name, chosen in {"sorted": np.arange(180), "shuffled": orders(180)["shuffled"]}.items():
        path = tmp_path / f"{name}.npz"
        np.savez(path, X=X, y=y, X_test=X_test[chosen], y_test=y_test[chosen])
        found[name] = nsd.compile(
            nsd.DeepEquilibrium("tanh", 0.4),
            nsd.data.load(path),
            family="hard_tanh",
            refine=False,
            width=8,
            seeds=2,
        )
    certificates = [compiled.certificate for compiled in found.values()]
    gaps = [certificate.matched.relative_gap for certificate in certificates]
    assert gaps == pytest.approx([gaps[0]] * 2, rel=1e-9)
    assert [len(certificate.difference) for certificate in certificates] == [60] * 2
    assert found["sorted"].accuracy == found["shuffled"].accuracy


def test_the_ridge_is_relative_to_features_of_all_rows(tmp_path: Path) -> None:
    """The first rows and the last have very different sizes."""
    X, y = two_kinds(300, 12)
    settings = RandomSettings(RELU, width=8)
    readouts = []
    for name, chosen in {"sorted": np.arange(600), **orders(600)}.items():
        path = tmp_path / f"{name}.npz"
        np.savez(path, X=X[chosen], y=y[chosen], X_test=X[:20], y_test=y[:20])
        data = nsd.data.load(path, preprocessing="none")
        networks = random_deq.NumpyNetworks(settings, {"deq": RELU}, data)
        readouts.append(networks.train("deq", 0).weights["readout"])
    for readout in readouts[1:]:
        np.testing.assert_allclose(readout, readouts[0], rtol=1e-3, atol=1e-4)


def test_the_explorer_draws_held_out_rows() -> None:
    state = ExplorerState(data="digits", samples=60)
    rows = prepared(state)
    assert len(set(rows.test_indices)) == 60
    assert rows.test_indices.max() > 200  # not the first of 360
    names: dict[str, FloatArray] = {}
    code = code_of(state)
    exec(code[: code.index("deq =")], names)
    np.testing.assert_array_equal(names["X_test"], rows.X_test)
    np.testing.assert_array_equal(names["y_test"], rows.y_test)


def test_drawn_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3))
    drawn = draw_rows(rows, 20, rng=0)
    assert len(set(drawn.tolist())) == 20
    for order in (np.arange(50)[::-1], np.random.default_rng(1).permutation(50)):
        np.testing.assert_array_equal(rows[order][draw_rows(rows[order], 20, rng=0)], rows[drawn])
    assert set(draw_rows(rows, 20, rng=1)) != set(drawn)
    assert sorted(draw_rows(rows, 80)) == list(range(50))
    # Every row is drawn as often as any other: 2000 draws, five standard errors.
    counts = np.bincount(
        np.concatenate([draw_rows(rows, 5, rng=seed) for seed in range(2000)]), minlength=50
    )
    assert np.abs(counts - 200).max() < 5 * np.sqrt(2000 * 0.1 * 0.9)

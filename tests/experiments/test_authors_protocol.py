"""The authors' protocol: its descent, its networks, and the table of changes."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.accuracy.authors_protocol import (
    CHANGES,
    CURVES,
    ROLES,
    _model,
    plain_descent,
    runs,
    table,
)
from experiments.figures import protocol_widths_figure
from experiments.runner import Record, cell_name
from notsodeep.models import ExplicitNetwork


def test_descent_follows_the_gradient() -> None:
    rng = np.random.default_rng(0)
    F = rng.standard_normal((12, 5)).astype(np.float32)
    y = rng.integers(0, 3, 12)
    T = np.eye(3)[y]
    settings = {"epochs": 1, "batch_size": 12, "rate": 0.5, "seed": 0}
    a, losses = plain_descent(F, y, 3, **settings)
    np.testing.assert_allclose(a, -0.5 * (1.0 / 3.0 - T).T @ F / 12, atol=1e-6)
    assert losses == pytest.approx([np.log(3.0)])
    # Small steps for long lead to where the gradient of the mean loss vanishes.
    F, T = F[:, :2], T
    a, losses = plain_descent(F, y, 3, **{**settings, "epochs": 3000})
    scores = np.exp(F @ a.T)
    shares = scores / scores.sum(axis=1, keepdims=True)
    assert np.abs((shares - T).T @ F / 12).max() < 1e-3
    assert losses[-1] < losses[0]


def test_descent_visits_every_row_of_uneven_batches() -> None:
    F = np.eye(7, dtype=np.float32)
    a, _ = plain_descent(
        F, np.zeros(7, dtype=np.int64), 2, epochs=1, batch_size=3, rate=1.0, seed=1
    )
    assert (a[0] > 0.0).all()
    assert (a[1] < 0.0).all()


def test_where_the_constant_is() -> None:
    x = np.array([-1.0, 0.2, 1.0])
    inside, outside, none = (
        _model(f"relu, 2 layers{rest}", "relu", 0.2)
        for rest in (", constant inside", "", ", no constant")
    )
    c = 1.0 / np.sqrt(2.0 * np.pi)
    assert isinstance(inside, ExplicitNetwork)
    np.testing.assert_allclose(inside.activations[0](x), np.maximum(x - c, 0.0), atol=1e-12)
    np.testing.assert_allclose(outside.activations[0](x), np.maximum(x, 0.0) - c, atol=1e-12)
    np.testing.assert_allclose(none.activations[0](x), np.maximum(x, 0.0))
    weights = _model("tanh, weights scaled", "tanh", 0.2)
    np.testing.assert_allclose(weights.activations[0](x), np.tanh(np.sqrt(0.2) * x))


def test_a_change_touches_what_it_names() -> None:
    base = runs("mnist", "relu", "as the authors", 64, 0)
    assert base["deq"]["solver"] == {
        "name": "anderson", "memory": 5, "max_steps": 25, "tolerance": 1e-2,
    }  # fmt: skip
    assert [base["deq"][k] for k in ("samples", "test_samples", "rate")] == [50_000, 8_000, 1.0]
    moved = runs("mnist", "relu", "constant outside the ReLU", 64, 0)
    assert [role for role in ROLES if moved[role] != base[role]] == ["plain"]
    assert runs("cifar10", "relu", "rate ten times as large", 64, 0)["deq"]["rate"] == 1.0
    ours = runs("mnist", "relu", "as here", 64, 0)["plain"]
    assert ours["readout"] == "ridge"
    assert "rate" not in ours


def test_rows_have_the_draws_with_all_three_networks() -> None:
    def record(change: str, role: str, draw: int, accuracy: float) -> Record:
        return {"cell": runs("mnist", "tanh", change, 64, draw)[role], "accuracy": accuracy}

    records = [record("as the authors", role, 0, 0.5) for role in ROLES]
    records += [record("as the authors", role, 1, 0.6) for role in ROLES[:2]]
    records.append(record("weights not scaled", "plain", 0, 0.7))
    rows = table(records)
    assert [row["change"] for row in rows] == ["as the authors", "weights not scaled"]
    assert rows[0]["accuracies"]["plain"] == [50.0]
    assert rows[1]["accuracies"] == {"deq": [50.0], "matched": [50.0], "plain": [70.0]}
    assert len({cell_name(r["cell"]) for r in records}) == len(records)
    assert set(CHANGES) == {"relu", "tanh"}


def test_curves_against_the_width() -> None:
    def accuracy(network: str, width: int) -> float:
        return 0.9 - 1.0 / width - (0.1 if "inside" in network else 0.0)

    cells = (
        cell
        for change in CURVES["relu"]
        for width in (64, 16, 32)
        for cell in runs("mnist", "relu", change, width, 0).values()
    )
    records = [{"cell": c, "accuracy": accuracy(c["network"], c["width"])} for c in cells]
    (panel,) = protocol_widths_figure(records).axes
    curves = {line.get_label(): line.get_xydata() for line in panel.get_lines()}
    assert list(curves) == ["DEQ", "matched", "plain", "constant outside the ReLU"]
    for points in curves.values():
        np.testing.assert_array_equal(points[:, 0], [16, 32, 64])
    np.testing.assert_allclose(curves["DEQ"][:, 1] - curves["plain"][:, 1], 10.0)
    np.testing.assert_allclose(curves["constant outside the ReLU"], curves["DEQ"])

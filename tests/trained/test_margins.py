"""Margins of given networks, and the slopes of their activations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from given_networks import drawn_cell
from notsodeep.activations import from_function, named
from notsodeep.activations.slopes import slope_range
from notsodeep.networks.cell import EquilibriumCell
from notsodeep.trained.margin import margin_of


@pytest.mark.parametrize(
    "name", ["relu", "tanh", "erf", "arctan", "softplus", "swish", "gelu", "sin"]
)
def test_slopes_lie_in_their_range(name: str) -> None:
    known = slope_range(named(name))
    slopes = named(name).derivative(np.linspace(-20.0, 20.0, 400_001))
    assert known.proven
    assert known.low - 1e-12 <= slopes.min()
    assert slopes.max() <= known.high + 1e-12
    assert slopes.max() > known.high - 1e-6  # nothing smaller would do
    assert known.monotone == (slopes.min() >= 0.0)


def test_sampled_slopes_prove_nothing() -> None:
    mine = from_function(np.tanh, name="mine", torch=torch.tanh)
    cell = EquilibriumCell.from_weights([[0.5]], [[1.0]], activation=mine)
    assert not margin_of(cell).unique
    assert "sampled" in margin_of(cell).reason


def test_a_scaling_is_found_where_the_identity_fails() -> None:
    for width, spread in ((30, 1.0), (60, 1.5)):
        cell = drawn_cell(
            np.random.default_rng(1), named("relu"), width=width, margin=0.2, spread=spread
        )
        margin = margin_of(cell)
        assert margin.kind == "scaled"
        W, roots = cell.arrays()["W"], np.sqrt(margin.scaling)
        S = margin.scaling[:, None] * (np.eye(width) - W)
        values = np.linalg.eigvalsh(0.5 * (S + S.T) / np.outer(roots, roots))
        assert values[0] == pytest.approx(margin.value, rel=1e-8)
        assert np.linalg.eigvalsh(0.5 * (2 * np.eye(width) - W - W.T))[0] < 0.0


@pytest.mark.parametrize(
    ("W", "word"), [([[1.5]], "eigenvalue 1.5"), ([[2.0, 0.0], [0.0, 0.1]], "W[0, 0] = 2")]
)
def test_why_no_scaling_can_work(W: list[list[float]], word: str) -> None:
    margin = margin_of(EquilibriumCell.from_weights(W, np.eye(len(W))))
    assert margin.kind == "none"
    assert not margin.unique
    assert word in margin.reason


@pytest.mark.parametrize("name", ["sin", "swish", "gelu"])
def test_negative_slopes_leave_contraction(name: str) -> None:
    small = EquilibriumCell.from_weights([[0.3]], [[1.0]], activation=name)
    large = EquilibriumCell.from_weights([[-3.0]], [[1.0]], activation=name)
    assert margin_of(small).kind == "contraction"
    assert margin_of(large).kind == "none"
    assert "contraction" in margin_of(large).reason

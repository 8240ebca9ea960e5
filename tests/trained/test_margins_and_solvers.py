"""Margins, resolvents and splittings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from given_networks import ACTIVATIONS, drawn_cell
from notsodeep.activations import Activation, from_function, named
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.trained import AffineCell, EquilibriumCell
from notsodeep.trained.equilibrium import GivenEquilibrium
from notsodeep.trained.margin import margin_of, slope_range
from notsodeep.trained.resolvent import Resolvent
from notsodeep.trained.splittings import METHODS, MethodChoice, MethodName, solve


@pytest.mark.parametrize(
    "name", ["relu", "tanh", "erf", "arctan", "softplus", "swish", "gelu", "sin"]
)
def test_slopes_lie_in_their_range(name: str) -> None:
    found = slope_range(named(name))
    slopes = named(name).derivative(np.linspace(-20.0, 20.0, 400_001))
    assert found.proven
    assert found.low - 1e-12 <= slopes.min()
    assert slopes.max() <= found.high + 1e-12
    assert slopes.max() > found.high - 1e-6  # nothing smaller would do
    assert found.monotone == (slopes.min() >= 0.0)


def test_sampled_slopes_prove_nothing() -> None:
    mine = from_function(np.tanh, name="mine", torch=torch.tanh)
    cell = EquilibriumCell.from_weights([[0.5]], [[1.0]], activation=mine)
    assert not margin_of(cell).unique
    assert "sampled" in margin_of(cell).reason


def test_a_scaling_is_found_where_the_identity_fails() -> None:
    rng = np.random.default_rng(1)
    cell = drawn_cell(rng, named("relu"), width=30, margin=0.2, spread=1.0)
    margin = margin_of(cell)
    assert margin.kind == "scaled"
    S = margin.scaling[:, None] * (np.eye(30) - cell.recurrent)
    values = np.linalg.eigvalsh(0.5 * (S + S.T) / np.sqrt(np.outer(margin.scaling, margin.scaling)))
    assert values[0] == pytest.approx(margin.value, rel=1e-8)
    assert np.linalg.eigvalsh(0.5 * (2 * np.eye(30) - cell.recurrent - cell.recurrent.T))[0] < 0.0


def test_the_search_for_a_scaling_ends_with_the_clock() -> None:
    cell = drawn_cell(np.random.default_rng(1), named("relu"), width=60, spread=1.5)
    whole, short = margin_of(cell), margin_of(cell, max_seconds=1e-9)
    assert whole.kind == "scaled"
    assert "clock" not in whole.reason
    assert "The search was ended by the clock." in short.reason
    assert short.value < whole.value


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
    z, choice = solve(small, [[0.4]])
    assert choice.method in ("plain", "anderson", "damped")
    np.testing.assert_allclose(z, small.step(z, small.drive([[0.4]])), atol=1e-9)
    with pytest.raises(InvalidInput, match="negative slopes"):
        solve(small, [[0.4]], method="peaceman_rachford")


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("step", [0.05, 1.0, 7.0])
def test_a_resolvent_solves_its_equation(activation: Activation, step: float) -> None:
    beta = slope_range(activation).high
    R = Resolvent(activation, step, beta)
    s = torch.linspace(-30.0, 30.0, 4001, dtype=torch.float64)
    t = R.preimage(s)
    phi = torch.tensor(activation(t.numpy()))
    back = (1.0 - step / beta) * phi + step * t
    np.testing.assert_allclose(back, s, atol=1e-12 * 30)
    if R.as_activation is not None:
        np.testing.assert_allclose(R.as_activation(s.numpy()), R(s), atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_stiff_networks_are_solved(activation: Activation) -> None:
    rng = np.random.default_rng(2)
    cell = drawn_cell(rng, activation, width=20, margin=5.0, size=5.0)
    assert margin_of(cell).norm > 10.0
    X = rng.normal(size=(16, 5))
    drive = cell.drive(X)
    found = {}
    for method in ("peaceman_rachford", "forward_backward"):
        z, choice = solve(cell, X, method=method, tolerance=1e-12)
        assert choice.step != margin_of(cell).beta
        residual = np.abs(z - cell.step(z, drive)).max()
        assert residual <= 1e-11
        found[method] = z
    np.testing.assert_allclose(*found.values(), atol=1e-10)
    if activation != ACTIVATIONS["sigmoid"]:  # whose own slope of 1/4 tames W
        with pytest.raises(NotConverged, match="rows have not reached"):
            solve(cell, X, method="plain", step=1.0, max_steps=200)


def test_the_activation_in_place_of_its_resolvent_finds_another_point() -> None:
    """The mistake that the resolvent is there to avoid is a mistake, and would be seen."""
    rng = np.random.default_rng(3)
    cell = drawn_cell(rng, named("tanh"), width=20, margin=5.0, size=5.0)
    drive = cell.drive(rng.normal(size=(8, 5)))
    G, step = np.eye(20) - cell.recurrent, 0.05
    z = np.zeros_like(drive)
    for _ in range(2000):
        z = np.tanh(z - step * (z @ G.T - drive))
    assert np.abs(z - cell.step(z, drive)).max() > 0.01


def test_all_methods_agree_on_a_contraction() -> None:
    rng = np.random.default_rng(4)
    W = rng.standard_normal((10, 10))
    W *= 0.6 / np.linalg.norm(W, 2)
    cell = EquilibriumCell.from_weights(W, rng.standard_normal((10, 3)), 0.1, "tanh")
    X = rng.normal(size=(12, 3))
    answers = [solve(cell, X, method=method, tolerance=1e-12)[0] for method in METHODS]
    for z in answers[1:]:
        np.testing.assert_allclose(z, answers[0], atol=1e-10)


def test_no_fixed_point_is_an_error() -> None:
    cell = EquilibriumCell.from_weights([[2.0]], [[1.0]], 1.0, "relu")  # z = 2z + 1 grows
    with pytest.raises(NotConverged, match="No method found the fixed points"):
        solve(cell, [[1.0]])


def contraction(rng: np.random.Generator, activation: Activation) -> AffineCell:
    W = rng.standard_normal((4, 4))
    W *= 0.6 / np.linalg.norm(W, 2)
    readout = (rng.standard_normal((3, 4)), None)
    return EquilibriumCell.from_weights(W, rng.standard_normal((4, 5)), 0.1, activation, readout)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["tanh", "slopes up to 1.4"])
def test_gradients_go_through_the_fixed_point(method: MethodName, name: str) -> None:
    rng = np.random.default_rng(5)
    split = method in ("peaceman_rachford", "forward_backward")
    if split:  # where plain iteration diverges
        cell = drawn_cell(rng, ACTIVATIONS[name], width=4, margin=4.0, size=2.0)
    else:
        cell = contraction(rng, ACTIVATIONS[name])
    step = (2.0 if method == "peaceman_rachford" else 0.5) / margin_of(cell).lipschitz
    deq = GivenEquilibrium(cell, MethodChoice(method, step, ""), tolerance=1e-11)
    x = torch.tensor(rng.normal(size=(1, 5)), requires_grad=True)
    z, _ = solve(cell, x.detach(), tolerance=1e-12)
    np.testing.assert_allclose(deq(x).detach(), cell.logits(z), atol=1e-8)
    assert torch.autograd.gradcheck(deq, (x,), atol=1e-6)
    gradient = torch.autograd.grad(deq(x).square().sum(), deq.recurrent)[0]
    with torch.no_grad():
        values = []
        for change in (1e-5, -2e-5):
            deq.recurrent[1, 3] += change
            values.append(float(deq(x).square().sum()))
    assert float(gradient[1, 3]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


def test_methods_differ_in_their_steps_and_not_in_their_gradients() -> None:
    cell = contraction(np.random.default_rng(6), named("tanh"))
    x = torch.tensor(np.random.default_rng(7).normal(size=(3, 5)), requires_grad=True)
    steps, gradients = {}, []
    for method in METHODS:
        choice = MethodChoice(method, 1.0 / margin_of(cell).lipschitz, "")
        deq = GivenEquilibrium(cell, choice, tolerance=1e-11)
        gradients.append(torch.autograd.grad(deq(x).square().sum(), x)[0])
        assert deq.last_record is not None
        steps[method] = deq.last_record.forward.steps
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], atol=1e-8, rtol=0.0)
    assert steps["anderson"] < steps["plain"] < steps["damped"]

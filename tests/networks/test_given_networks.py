"""Networks with given weights as modules: solved, differentiated, moved, stored."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from given_networks import ACTIVATIONS, Reference, drawn_cell
from notsodeep.activations import Activation, named, polynomial, scaled
from notsodeep.activations.slopes import slope_range
from notsodeep.errors import ConstantActivation, InvalidInput, NotConverged
from notsodeep.networks.affine import AffineDEQ, Resolvent, solve_rows
from notsodeep.networks.cell import EquilibriumCell, Method, MethodName

METHODS: tuple[MethodName, ...] = ("plain", "anderson", "peaceman_rachford")


def contraction(rng: np.random.Generator, activation: Activation, width: int = 4) -> AffineDEQ:
    W = rng.standard_normal((width, width))
    W *= 0.6 / np.linalg.norm(W, 2)
    readout = (rng.standard_normal((3, width)), None)
    return EquilibriumCell.from_weights(
        W, rng.standard_normal((width, 5)), 0.1, activation, readout
    )


def test_a_step_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    W, U, b = rng.normal(size=(4, 4)), rng.normal(size=(4, 3)), rng.normal(size=4)
    C, c = rng.normal(size=(2, 4)), rng.normal(size=2)
    cell = EquilibriumCell.from_weights(W, U, b, "tanh", (C, c), shift=0.1307, scale=0.3081)
    x, z = rng.normal(size=(5, 3)), rng.normal(size=(5, 4))
    expected = np.tanh(
        [W @ zi + U @ ((xi - 0.1307) / 0.3081) + b for xi, zi in zip(x, z, strict=True)]
    )
    with torch.no_grad():
        state = cell.step(torch.tensor(z), cell.drive(x))
        np.testing.assert_allclose(state, expected, atol=1e-14)
        np.testing.assert_allclose(
            cell.logits(torch.tensor(z)), [C @ zi + c for zi in z], atol=1e-13
        )


def test_tensors_with_gradients_are_copied() -> None:
    linear = nn.Linear(3, 3)
    cell = EquilibriumCell.from_weights(linear.weight, torch.eye(3), linear.bias, "relu")
    np.testing.assert_array_equal(cell.recurrent.detach(), linear.weight.detach().double())
    assert cell.recurrent.is_leaf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"W": np.ones((2, 3))}, r"shapes \(m, m\) and \(m, p\)"),
        ({"W": [[np.nan, 0.0], [0.0, 0.0]]}, "W .*must be finite"),
        ({"W": torch.eye(2) * 1j}, "W must be a dense array of real numbers, got torch.complex64"),
        ({"U": np.ones((3, 2))}, r"shapes \(m, m\) and \(m, p\)"),
        ({"b": np.ones(3)}, r"b must be one number, or have shape \(2,\)"),
        ({"readout": (np.ones((4, 3)), None)}, "C must have 2 columns"),
        ({"readout": np.ones((4, 2))}, r"readout must be a pair"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"activation": "rely"}, "Did you mean 'relu'"),
    ],
)
def test_weights_that_do_not_fit(arguments: dict[str, object], message: str) -> None:
    fitting = {"W": np.eye(2), "U": np.ones((2, 4)), "b": None, "activation": "relu"}
    with pytest.raises(InvalidInput, match=message):
        EquilibriumCell.from_weights(**{**fitting, **arguments})


def test_rows_that_do_not_fit() -> None:
    cell = EquilibriumCell.from_weights(np.eye(2) / 2, np.ones((2, 4)))
    with pytest.raises(InvalidInput, match="X must have 4 features"):
        cell.drive(np.ones((3, 5)))
    with pytest.raises(InvalidInput, match="the cell must have a read-out"):
        cell(torch.ones(3, 4))


@pytest.mark.parametrize("activation", [polynomial([2.0]), scaled(named("tanh"), 0.0)])
def test_a_constant_activation_is_rejected(activation: Activation) -> None:
    with pytest.raises(ConstantActivation):
        EquilibriumCell.from_weights([[0.5]], [[1.0]], activation=activation)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("step", [0.05, 1.0, 7.0])
def test_a_resolvent_solves_its_equation(activation: Activation, step: float) -> None:
    beta = slope_range(activation).high
    R = Resolvent(activation, step, beta)
    s = torch.linspace(-30.0, 30.0, 4001, dtype=torch.float64)
    t = R.preimage(s)
    np.testing.assert_allclose(R.image(t), s, atol=1e-12 * 30)
    np.testing.assert_allclose(activation(t.numpy()), R.state(s), atol=1e-12)
    np.testing.assert_allclose(R.activation(s.numpy()), R.state(s), atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_stiff_networks_are_solved(activation: Activation) -> None:
    rng = np.random.default_rng(2)
    cell = drawn_cell(rng, activation, width=20, margin=5.0, size=5.0)
    ref, X = Reference(cell), rng.normal(size=(16, 5))
    assert np.linalg.norm(ref.W, 2) > 10.0
    drive = cell.drive(X).detach()
    choice = cell.choose_method(drive, "peaceman_rachford")
    assert choice.step != cell.slopes.beta
    cell.method = choice
    z = cell.solve(drive, 1e-12).z.numpy()
    assert np.abs(z - ref.step(z, ref.drive(X))).max() <= 1e-11
    # With another step the iteration is another one, and the fixed point is not.
    cell.method = Method("peaceman_rachford", 0.4 * choice.step)
    np.testing.assert_allclose(z, cell.solve(drive, 1e-12).z, atol=1e-10)
    if activation != ACTIVATIONS["sigmoid"]:  # whose own slope of 1/4 tames W
        cell.method = Method("plain", cell.slopes.beta)
        with pytest.raises(NotConverged, match="rows have not reached"):
            cell.solve(drive, max_steps=200).require()


def test_the_activation_in_place_of_its_resolvent_finds_another_point() -> None:
    """The mistake that the resolvent is there to avoid is a mistake, and would be seen."""
    rng = np.random.default_rng(3)
    cell = drawn_cell(rng, named("tanh"), width=20, margin=5.0, size=5.0)
    ref = Reference(cell)
    drive = ref.drive(rng.normal(size=(8, 5)))
    G, step = np.eye(20) - ref.W, 0.05
    z = np.zeros_like(drive)
    for _ in range(2000):
        z = np.tanh(z - step * (z @ G.T - drive))
    assert np.abs(z - ref.step(z, drive)).max() > 0.01


def test_all_methods_agree_on_a_contraction_from_any_start() -> None:
    cell = contraction(np.random.default_rng(4), named("tanh"), 10)
    drive = cell.drive(np.random.default_rng(5).normal(size=(12, 5))).detach()
    start = torch.randn(12, 10, generator=torch.Generator().manual_seed(0)).double()
    states = []
    for name in METHODS:
        cell.method = Method(name, 1.0 if name == "plain" else 0.5)
        states += [cell.solve(drive, 1e-12).z, cell.solve(drive, 1e-12, start=start).z]
    for z in states[1:]:
        np.testing.assert_allclose(z, states[0], atol=1e-10)


def test_negative_slopes_have_no_splitting() -> None:
    cell = EquilibriumCell.from_weights([[0.3]], [[1.0]], activation="sin")
    drive = cell.drive([[0.4]]).detach()
    assert cell.choose_method(drive).name in ("plain", "anderson")
    with pytest.raises(InvalidInput, match="negative slopes"):
        cell.choose_method(drive, "peaceman_rachford")


def test_no_fixed_point_is_an_error() -> None:
    cell = EquilibriumCell.from_weights([[2.0]], [[1.0]], 1.0, "relu")  # z = 2z + 1 grows
    with pytest.raises(NotConverged, match="No method found the fixed points"):
        cell.solve(cell.drive([[1.0]]))


def test_rows_without_a_fixed_point_leave_the_others_alone() -> None:
    """z = relu(2z + x) grows where x > 0, and is zero elsewhere."""
    cell = EquilibriumCell.from_weights([[2.0]], [[1.0]], None, "relu")
    X = -np.ones((40, 1))
    X[7] = 1.0
    solved = cell.solve(cell.drive(X))
    assert solved.settled.sum() == 39
    assert not solved.settled[7]
    assert solved.steps < 1500  # and not `MAX_STEPS`
    with pytest.raises(NotConverged, match="1 of 40 rows"):
        solved.require()
    turning = EquilibriumCell.from_function(
        lambda z, x: torch.where(x > 0, x - z, 0.5 * z + x), (1,)
    )
    solved = turning.solve(turning.drive(X))
    assert solved.settled.sum() == 39
    assert solved.steps <= 300


def test_no_step_and_no_row_are_answers_of_their_own() -> None:
    cell = contraction(np.random.default_rng(4), named("tanh"))
    cell.method = Method("plain")
    drive = cell.drive(np.ones((2, 5)))
    assert not cell.solve(drive, max_steps=0).converged
    assert cell.solve(drive[:0]).converged


def test_small_rows_are_solved_as_large_ones_are() -> None:
    cell = contraction(np.random.default_rng(4), named("relu"))
    X = np.random.default_rng(5).normal(size=(12, 5))
    maps = cell.splitting(Method("plain"))
    with torch.no_grad():
        whole, tiny = (
            solve_rows(maps, (cell.drive(X) - cell.bias) * unit, 1e-12) for unit in (1.0, 1e-200)
        )
    assert tiny.steps == whole.steps
    np.testing.assert_allclose(tiny.z * 1e200, whole.z, rtol=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["tanh", "slopes up to 1.4"])
def test_gradients_go_through_the_fixed_point(method: MethodName, name: str) -> None:
    rng = np.random.default_rng(5)
    if method == "peaceman_rachford":  # where plain iteration diverges
        cell = drawn_cell(rng, ACTIVATIONS[name], width=4, margin=4.0, size=2.0)
    else:
        cell = contraction(rng, ACTIVATIONS[name])
    norm = np.linalg.norm(np.eye(4) / cell.slopes.beta - Reference(cell).W, 2)
    cell.method, cell.tolerance = Method(method, 2.0 / norm), 1e-11
    x = torch.tensor(rng.normal(size=(1, 5)), requires_grad=True)
    z = cell.solve(cell.drive(x.detach()), 1e-12).z
    torch.testing.assert_close(cell(x), cell.logits(z), atol=1e-8, rtol=0.0)
    assert torch.autograd.gradcheck(cell, (x,), atol=1e-6)
    assert torch.autograd.gradgradcheck(cell, (x,), atol=1e-5)
    gradient = torch.autograd.grad(cell(x).square().sum(), cell.recurrent)[0]
    with torch.no_grad():
        values = []
        for change in (1e-5, -2e-5):
            cell.recurrent[1, 3] += change
            values.append(float(cell(x).square().sum()))
    assert float(gradient[1, 3]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


def test_methods_differ_in_their_steps_and_not_in_their_gradients() -> None:
    cell = contraction(np.random.default_rng(6), named("tanh"))
    x = torch.tensor(np.random.default_rng(7).normal(size=(3, 5)), requires_grad=True)
    steps, gradients = {}, []
    cell.tolerance = 1e-11
    for name in METHODS:
        cell.method = Method(name, 0.5)
        gradients.append(torch.autograd.grad(cell(x).square().sum(), x)[0])
        steps[name] = cell.record.steps
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], atol=1e-8, rtol=0.0)
    assert steps["anderson"] < steps["plain"]


@pytest.mark.parametrize("form", ["weights", "monotone", "function"])
def test_modules_are_copied_moved_and_stored(form: str) -> None:
    rng = np.random.default_rng(8)
    readout = (rng.standard_normal((3, 6)), None)
    x = torch.tensor(rng.standard_normal((4, 5)))
    if form == "weights":
        cell = EquilibriumCell.from_weights(
            0.1 * rng.standard_normal((6, 6)), rng.standard_normal((6, 5)), 0.2, "tanh", readout
        )
    elif form == "monotone":
        A, B = rng.standard_normal((2, 6)), rng.standard_normal((6, 6))
        cell = EquilibriumCell.from_monotone(
            A, B, 0.5, rng.standard_normal((6, 5)), None, "relu", readout
        )
    else:
        cell = EquilibriumCell.from_function(Step(nn.Tanh(), inputs=5).double(), 6, readout)
    answer = cell(x).detach()
    torch.testing.assert_close(copy.deepcopy(cell)(x).detach(), answer)
    single = copy.deepcopy(cell).to(torch.float32)
    torch.testing.assert_close(single(x).detach().double(), answer, atol=1e-3, rtol=1e-3)
    assert single(x).dtype == torch.float32
    blank = copy.deepcopy(cell)
    with torch.no_grad():
        for parameter in blank.parameters():
            parameter.zero_()
    blank.load_state_dict(cell.state_dict())
    torch.testing.assert_close(blank(x).detach(), answer)
    cell(x).square().sum().backward()
    assert all(float(p.grad.abs().max()) > 0.0 for n, p in cell.named_parameters() if n != "scale")


def test_training_keeps_a_monotone_network_monotone() -> None:
    rng = np.random.default_rng(9)
    cell = EquilibriumCell.from_monotone(
        rng.standard_normal((3, 8)),
        rng.standard_normal((8, 8)),
        0.3,
        rng.standard_normal((8, 4)),
        None,
        "relu",
        (rng.standard_normal((2, 8)), None),
    )
    optimiser = torch.optim.SGD(cell.parameters(), lr=0.01)
    x, y = torch.tensor(rng.standard_normal((32, 4))), torch.zeros(32, dtype=torch.long)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(cell(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    W = cell.recurrent.detach()
    assert float(torch.linalg.eigvalsh(torch.eye(8) - (W + W.mT) / 2)[0]) > 0.3 - 1e-12


class Step(nn.Module):
    def __init__(self, phi: object, width: int = 6, inputs: int = 3, classes: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.state, self.input = nn.Linear(width, width), nn.Linear(inputs, width)
        with torch.no_grad():
            self.state.weight.mul_(0.5)
        self.phi = phi
        if classes:
            self.out = nn.Linear(width, classes)

    def forward(self, z, x):
        return self.phi(self.state(z) + self.input(x))


class Counting(nn.Module):
    """A module that keeps state."""

    calls = 0

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(z + x) / self.calls


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z, x: torch.cat([z, z]), "must return the shape of z"),
        (lambda z, x: z[:, :2], "must return the shape of z"),
        (lambda z, x: z - z.mean(dim=0), "must treat each sample by itself"),
        (lambda z, x: [z], "must return a tensor"),
        (lambda z, x: z + 1j, "of the dtype of z"),
        (lambda z, x: (0 * z).long(), "of the dtype of z"),
        (lambda z, x: z.mul_(0.5), "leave z as it is"),
        (lambda z, x: z @ x, "must take z of shape"),
        (Counting(), "must give the same answer twice"),
    ],
)
def test_functions_that_are_no_steps(function: object, message: str) -> None:
    cell = EquilibriumCell.from_function(function, (3,))
    with pytest.raises(InvalidInput, match=message):
        cell.drive(np.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize(
    ("readout", "message"),
    [
        (lambda z: z @ torch.ones(4, 2), "readout must take states"),
        (lambda z: z.sum(), "a row per state"),
        (lambda z: [z], "a row per state"),
        (lambda z: z > 0, "real numbers"),
    ],
)
def test_readouts_are_checked_before_any_work(readout: object, message: str) -> None:
    cell = EquilibriumCell.from_function(lambda z, x: 0.5 * z + x, 3, readout)
    with pytest.raises(InvalidInput, match=message):
        cell.drive(np.ones((4, 3)))


def test_a_function_and_its_readout_work_in_their_own_precision() -> None:
    linear, out = nn.Linear(3, 3), nn.Linear(3, 4)
    cell = EquilibriumCell.from_function(lambda z, x: torch.tanh(linear(z) + x), 3)
    assert cell.drive(np.ones((2, 3))).dtype == torch.float32
    images = EquilibriumCell.from_function(
        lambda z, x: 0.5 * z + x.mean(), (2, 4, 4), lambda z: out(z.float()[..., :3]).mean(dim=1)
    )
    drive = images.drive(np.ones((1, 5)))
    assert images.step(torch.ones(1, 32).double(), drive).shape == (1, 32)
    assert images.logits(torch.ones(1, 32).double()).shape == (1, 16)
    mixed = EquilibriumCell.from_function(lambda z, x: 0.5 * z + x, 3, out)  # f in float64
    drive = mixed.drive(np.ones((2, 3)))
    assert mixed.logits(mixed.solve(drive).z).dtype == torch.float32 or drive.dtype != torch.float32


def test_a_state_beyond_memory_is_refused() -> None:
    with pytest.raises(MemoryError):
        EquilibriumCell.from_function(lambda z, x: z, (10**12,))


def test_gradients_of_a_module_go_to_its_weights_and_inputs() -> None:
    step = Step(nn.Tanh()).double()
    cell = EquilibriumCell.from_function(step, 6, (np.ones((2, 6)), None))
    cell.tolerance = 1e-12
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cell, (x,), atol=1e-6)
    known = EquilibriumCell.from_module(step, readout=(np.ones((2, 6)), None))
    one, other = (
        torch.autograd.grad(module(x).square().sum(), weight)[0]
        for module, weight in ((cell, step.state.weight), (known, known.recurrent))
    )
    torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-8)

"""Torch modules whose parts are recognised, and those that are not what they look like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.trained import EquilibriumCell
from notsodeep.trained.equilibrium import GivenEquilibrium
from notsodeep.trained.margin import margin_of


class Step(nn.Module):
    def __init__(self, phi: object, width: int = 6, inputs: int = 3, classes: int = 0) -> None:
        super().__init__()
        self.state, self.input = nn.Linear(width, width), nn.Linear(inputs, width)
        self.phi = phi
        if classes:
            self.out = nn.Linear(width, classes)

    def forward(self, z, x):
        return self.phi(self.state(z) + self.input(x))


class Residual(Step):
    def forward(self, z, x):
        return z + super().forward(z, x)


class Monotone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A, self.S = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(5, 5))
        self.m_raw = nn.Parameter(torch.tensor(0.3))
        self.U, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))

    @property
    def m(self):
        return nn.functional.softplus(self.m_raw)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.classifier, self.phi = Monotone(), nn.Linear(5, 3), nn.ReLU()

    def forward(self, x):
        raise AssertionError("not called")


@pytest.mark.parametrize(
    ("phi", "name"),
    [
        (nn.ReLU(), "relu"),
        (torch.tanh, "tanh"),
        (nn.LeakyReLU(0.2), "leaky_relu(right=1, left=0.2)"),
        (nn.Hardtanh(), None),
        (nn.Sigmoid(), None),
        (nn.GELU(), "gelu"),
    ],
)
def test_two_linear_layers_and_an_activation(phi, name: str | None) -> None:
    module = Step(phi, classes=4).double()
    cell = EquilibriumCell.from_module(module)
    z, x = torch.randn(7, 6, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    expected = module(z, x).detach().numpy()
    assert np.allclose(cell.step(z.numpy(), cell.drive(x)), expected, atol=1e-12)
    assert np.allclose(cell.logits(z.numpy()), module.out(z).detach().numpy(), atol=1e-12)
    if name in ("relu", "tanh", "gelu"):
        assert str(cell.activation) == name


def test_the_monotone_form_inside_another_module() -> None:
    module = Whole()
    cell = EquilibriumCell.from_module(module, shift=0.5, scale=2.0)
    A, S = (p.detach().double() for p in (module.core.A, module.core.S))
    W = (1.0 - float(module.core.m.detach())) * torch.eye(5) - A.T @ A + S - S.T
    assert np.allclose(cell.recurrent, W.numpy(), atol=1e-6)
    assert cell.readout[0].shape == (3, 5)
    assert cell.scale.tolist() == [2.0] * 4


def test_our_own_network_keeps_its_outputs() -> None:
    deq = nsd.DeepEquilibrium("relu", sigma_a2=0.15)
    network = nsd.build(deq, 8, 40, 3, rng=0, dtype=torch.float64)
    X = torch.randn(5, 8, dtype=torch.float64)
    cell = EquilibriumCell.from_module(network)
    drive, z = cell.drive(X), np.zeros((5, 40))
    for _ in range(200):
        z = cell.step(z, drive)
    assert np.allclose(cell.logits(z), network(X).detach().numpy(), atol=1e-9)


def test_a_given_equilibrium_is_its_cell() -> None:
    cell = nsd.zoo.load("tanh-digits-64")
    again = EquilibriumCell.from_module(GivenEquilibrium(cell))
    assert np.array_equal(again.recurrent, cell.recurrent)
    assert np.array_equal(again.scale, cell.scale)


class Inline(Step):
    """The activation is no part, and f is mixed with z: a·z + c·f."""

    def __init__(self, phi: object, a: float, c: float, inputs: int = 3) -> None:
        super().__init__(None, inputs=inputs)
        self.mixed = lambda z, u: a * z + c * phi(u)

    def forward(self, z, x):
        return self.mixed(z, self.state(z) + self.input(x))


@pytest.mark.parametrize(
    ("phi", "a", "c", "gain"),
    [
        (torch.sin, 0.0, 1.0, 1.0),  # as in implicit representations of signals
        (torch.tanh, 0.7, 0.3, 1.0),  # damping
        (torch.relu, 0.4, 0.4, 0.4 / 0.6),  # γ(z + f)
        (torch.sigmoid, 0.0, 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("inputs", [3, 6])  # as many as units: which Linear is W is found out too
def test_forms_of_public_code_are_recognised_by_what_they_compute(
    phi, a: float, c: float, gain: float, inputs: int
) -> None:
    module = Inline(phi, a, c, inputs)
    cell = EquilibriumCell.from_module(module)
    assert np.allclose(cell.recurrent, module.state.weight.detach(), atol=1e-12)
    u = np.linspace(-3, 3, 50)
    assert np.allclose(cell.activation(u), gain * phi(torch.tensor(u)).numpy(), atol=1e-4)
    # The fixed points are the module's own.
    x = torch.randn(4, inputs, generator=torch.Generator().manual_seed(1))
    z = torch.zeros(4, 6)
    with torch.no_grad():
        for _ in range(300):
            z = module(z, x)
    drive = cell.drive(x)
    assert np.allclose(cell.step(z.double().numpy(), drive), z.numpy(), atol=1e-4)


class Injected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Linear(5, 5)

    def forward(self, z, u):
        return torch.sin(self.state(z) + u)


def test_inputs_that_are_added_as_they_are() -> None:
    cell = EquilibriumCell.from_module(Injected())
    assert str(cell.activation) == "sin"
    assert np.array_equal(cell.injection, np.eye(5))


class LinearMonotone(nn.Module):
    """A, B and U as layers, as the first public code of monotone networks has them."""

    def __init__(self) -> None:
        super().__init__()
        self.U, self.m, self.phi = nn.Linear(4, 5), 0.3, nn.ReLU()
        self.A, self.B = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)

    def forward(self, z, x):
        rest = z @ self.A.weight.T @ self.A.weight + z @ self.B.weight
        return self.phi(0.7 * z - rest + self.B(z) + self.U(x))


class NonEuclidean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A, self.U = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5, 4))
        self.D, self.m = nn.Parameter(torch.rand(5) + 0.5), 0.8

    def forward(self, z, x):
        W = self.A * self.D / self.D[:, None] - torch.diag(self.A.abs().sum(dim=1))
        return torch.tanh(0.8 * z + z @ W.T + x @ self.U.T)


@pytest.mark.parametrize("form", [LinearMonotone, NonEuclidean])
def test_parametrisations_with_a_margin(form: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = form().double()
    cell = EquilibriumCell.from_module(module)
    z, x = torch.randn(3, 5).double(), torch.randn(3, 4).double()
    expected = module(z, x).detach().numpy()
    assert np.allclose(cell.step(z.numpy(), cell.drive(x)), expected, atol=1e-12)
    assert margin_of(cell).unique  # Λ is found where the identity does not do


class Unknown(Whole):
    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Threshold(0.1, 20)


class Stateful(Step):
    calls = 0

    def forward(self, z, x):
        self.calls += 1
        return super().forward(z, x) * self.calls


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Residual(nn.Tanh()), "compute φ"),
        (Stateful(nn.Tanh()), "same answer twice"),
        (Step(lambda x: x**3), "compute φ"),
        (Unknown(), "have one activation"),
        (nn.Conv2d(3, 3, 3), "recognised"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()), "have one W"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(2, 4), nn.Tanh(), nn.LayerNorm(4)), "no weights"),
    ],
    ids=["residual", "state", "activation", "no activation", "convolution", "ambiguous", "norm"],
)
def test_modules_that_are_not_understood(module: nn.Module, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        EquilibriumCell.from_module(module)

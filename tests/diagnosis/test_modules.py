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
        (Step(lambda x: x**3), "have one activation"),
        (nn.Conv2d(3, 3, 3), "recognised"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()), "one square Linear"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(2, 4), nn.Tanh(), nn.LayerNorm(4)), "no weights"),
    ],
    ids=["residual", "state", "activation", "convolution", "ambiguous", "norm"],
)
def test_modules_that_are_not_understood(module: nn.Module, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        EquilibriumCell.from_module(module)

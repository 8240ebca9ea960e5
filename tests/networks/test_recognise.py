"""Torch modules that are recognised, and those that are not what they look like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell
from notsodeep.networks.function import FunctionDEQ


class Step(nn.Module):
    def __init__(self, phi: object, width: int = 6, inputs: int = 3, classes: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.state, self.input = nn.Linear(width, width), nn.Linear(inputs, width)
        self.phi = phi
        if classes:
            self.out = nn.Linear(width, classes)

    def forward(self, z, x):
        return self.phi(self.state(z) + self.input(x))


class Backwards(Step):
    def forward(self, x, z):
        return super().forward(z, x)


class Injected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.phi = nn.Linear(5, 5), nn.Tanh()

    def forward(self, z, u):
        return self.phi(self.state(z) + u)


@pytest.mark.parametrize(
    "phi",
    [
        nn.ReLU(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.SiLU(),
        nn.GELU(),
        nn.ELU(0.7),
        nn.LeakyReLU(0.2),
        nn.Hardtanh(),
        nn.Hardtanh(-2.0, 3.0),
        nn.Hardtanh(0.5, 2.0),
        nn.ReLU6(),
    ],
    ids=str,
)
@pytest.mark.parametrize("inputs", [3, 6])  # as many as units: forward tells which layer is W
def test_two_linear_layers_and_an_activation(phi: nn.Module, inputs: int) -> None:
    module = Step(phi, inputs=inputs, classes=4).double()
    cell = EquilibriumCell.from_module(module, shift=0.5, scale=2.0)
    assert isinstance(cell, AffineDEQ)
    for size in (1e-3, 1.0, 100.0):
        z, x = size * torch.randn(7, 6).double(), size * torch.randn(7, inputs).double()
        with torch.no_grad():
            step = cell.step(z, cell.drive(2.0 * x + 0.5))
            torch.testing.assert_close(step, module(z, x), atol=1e-12 * size, rtol=1e-12)
    # Of six inputs the third layer may read them: it is the read-out where that is certain.
    assert cell.has_readout == (inputs == 3)
    given = EquilibriumCell.from_module(module, readout=(np.ones((2, 6)), None))
    assert given.arrays()["C"].shape == (2, 6)


@pytest.mark.parametrize(
    "norm", [spectral_norm, weight_norm, nn.utils.spectral_norm, nn.utils.weight_norm]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_parametrised_weights_are_taken_as_they_are(norm) -> None:
    module = Step(nn.Tanh()).double()
    norm(module.state)
    module.eval()
    cell = EquilibriumCell.from_module(module)
    assert isinstance(cell, AffineDEQ)
    z, x = torch.randn(7, 6).double(), torch.randn(7, 3).double()
    torch.testing.assert_close(cell.step(z, cell.drive(x)), module(z, x))


def test_the_state_is_z_by_name_or_the_first_argument() -> None:
    module = Backwards(nn.Tanh(), inputs=6)
    cell = EquilibriumCell.from_module(module)
    assert torch.equal(cell.recurrent.float(), module.state.weight)
    plain = EquilibriumCell.from_module(Injected())
    assert torch.equal(plain.injection.detach(), torch.eye(5).double())


class Extra(Step):
    def __init__(self, phi: object, extra: nn.Module) -> None:
        super().__init__(phi)
        self.extra = extra

    def forward(self, z, x):
        return self.extra(super().forward(z, x))


class Inline(Step):
    """The activation is no part, and f is mixed with z."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__(None)
        self.share = share

    def forward(self, z, x):
        u = self.state(z) + self.input(x)
        return (1.0 - self.share) * z + self.share * torch.tanh(u)


class Hooked(nn.Tanh):
    def forward(self, x):
        return super().forward(x) + 1e-3


@pytest.mark.parametrize(
    "module",
    [
        Step(nn.Softplus(beta=5)),
        Step(nn.Softplus(threshold=1)),
        Step(nn.GELU(approximate="tanh")),
        Step(nn.Sequential(nn.Tanh(), nn.Tanh())),
        Step(nn.Threshold(0.1, 20)),
        Step(Hooked()),
        Extra(nn.Tanh(), nn.LayerNorm(6, elementwise_affine=False)),
        Extra(nn.Tanh(), nn.Dropout(0.5)).eval(),
        Inline(),
        Inline(0.7),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_is_not_certain_is_a_function(module: nn.Module) -> None:
    with pytest.raises(InvalidInput, match="module must be recognised by its parts"):
        EquilibriumCell.from_module(module)
    cell = EquilibriumCell.from_module(module, state_shape=6)
    assert isinstance(cell, FunctionDEQ)
    z, x = torch.randn(7, 6), torch.randn(7, 3)
    assert torch.equal(cell.step(z, cell.drive(x)), module(z, x))


def test_an_activation_that_is_named_has_to_be_the_modules() -> None:
    cell = EquilibriumCell.from_module(Inline(), activation="tanh")
    assert str(cell.activation) == "tanh"
    for module, name in ((Inline(), "relu"), (Inline(0.7), "tanh")):
        with pytest.raises(InvalidInput, match="forward that is not"):
            EquilibriumCell.from_module(module, activation=name)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.input, self.phi = nn.Linear(6, 6), nn.Linear(3, 6), nn.ReLU()

    def forward(self, x):
        raise AssertionError("not called")


class Stateful(Step):
    calls = 0

    def forward(self, z, x):
        self.calls += 1
        return super().forward(z, x) * self.calls


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Whole(), "which is no step"),
        (Stateful(nn.Tanh()), "same answer twice"),
        (nn.Conv2d(3, 3, 3), "which is no step"),
        (nsd.build(nsd.ExplicitNetwork(["relu"]), 3, 8, 2, rng=0), "module must"),
    ],
    ids=["whole", "state", "convolution", "explicit"],
)
def test_modules_that_are_not_understood(module: nn.Module, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        EquilibriumCell.from_module(module)


def test_a_cell_is_its_own_cell() -> None:
    cell = EquilibriumCell.from_weights([[0.5]], [[1.0]], activation="tanh")
    assert EquilibriumCell.from_module(cell) is cell
    with pytest.raises(InvalidInput, match="options must not be given"):
        EquilibriumCell.from_module(cell, shift=5.0)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (nsd.DeepEquilibrium("relu", sigma_a2=0.15), AffineDEQ),
        (nsd.DeepEquilibrium(cell=[nsd.Dense("tanh", 0.3, inject=0.6, bias=0.1)]), AffineDEQ),
        (nsd.MonotoneEquilibrium("relu", bias=0.1), AffineDEQ),
        (
            nsd.DeepEquilibrium(
                cell=[nsd.Dense("tanh", 0.2, inject=0.6), nsd.Dense("relu", 0.3, inject=0.3)]
            ),
            FunctionDEQ,
        ),
        (
            nsd.DeepEquilibrium(
                cell=[nsd.Dense("tanh", 0.2, inject=0.6, normalise="preactivation")]
            ),
            FunctionDEQ,
        ),
    ],
    ids=["vanilla", "bias", "monotone", "ring", "normalised"],
)
def test_built_networks_keep_their_outputs(model: object, kind: type) -> None:
    network = nsd.build(model, 8, 40, 3, rng=0, dtype=torch.float64)
    X = torch.randn(5, 8, dtype=torch.float64)
    cell = EquilibriumCell.from_module(network)
    assert isinstance(cell, kind)
    torch.testing.assert_close(cell(X), network(X), atol=1e-8, rtol=1e-8)

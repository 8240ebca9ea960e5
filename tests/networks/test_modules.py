"""The modules: their equations, their weights, and networks that a user brings."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from cases import CONTRACT, identifier
from notsodeep.activations import Activation
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import InvalidInput, NoTorchTwin
from notsodeep.networks import EquilibriumNetwork, ExplicitModule, build

DEQ = nsd.DeepEquilibrium("tanh", 0.2)
MODELS = [DEQ, nsd.ExplicitNetwork(["relu"]), nsd.ExplicitNetwork(["tanh", "swish"])]


def inputs(count: int = 6, features: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, features, dtype=torch.float64, generator=generator).to(dtype)


@pytest.mark.parametrize(
    "activation", [a for a in CONTRACT if np.isfinite(a.lipschitz)], ids=identifier
)
def test_features_solve_the_equation(activation: Activation) -> None:
    deq = nsd.DeepEquilibrium(activation, 0.1)
    module = build(deq, 5, 40, 2, rng=1, dtype=torch.float64).eval()
    assert isinstance(module, EquilibriumNetwork)
    X = inputs()
    z = module.features(X)
    A, B = module.recurrent, module.injection
    h = math.sqrt(0.1) * z @ A.mT + math.sqrt(0.9) * X @ B.mT
    expected = torch_twin(activation)(h) / math.sqrt(40)
    torch.testing.assert_close(z, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(module(X), z @ module.readout.mT)


def test_explicit_networks_are_their_layers() -> None:
    module = build(MODELS[2], 5, 40, 2, rng=1, dtype=torch.float64, bias=True)
    assert isinstance(module, ExplicitModule)
    X = inputs()
    x1 = torch.tanh(X @ module.weight_1.mT) / math.sqrt(40)
    x2 = torch.nn.functional.silu(x1 @ module.weight_2.mT) / math.sqrt(40)
    torch.testing.assert_close(module.features(X), x2)
    with torch.no_grad():
        module.readout_bias += torch.tensor([1.0, -2.0])
    torch.testing.assert_close(
        module(X), x2 @ module.readout.mT + torch.tensor([1.0, -2.0]).double()
    )


def test_no_recurrence_is_one_layer() -> None:
    deq = build(nsd.DeepEquilibrium("swish", 0.0), 5, 30, 2, rng=1, dtype=torch.float64)
    layer = build(nsd.ExplicitNetwork(["swish"]), 5, 30, 2, rng=2, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_1.copy_(deq.injection)
        layer.readout.copy_(deq.readout)
    torch.testing.assert_close(deq(inputs()), layer(inputs()))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_what_is_trained(model: nsd.DeepEquilibrium | nsd.ExplicitNetwork) -> None:
    everything = build(model, 5, 30, 2, rng=0)
    readout = build(model, 5, 30, 2, rng=0, trainable="readout")
    assert [name for name, _ in readout.named_parameters()] == ["readout"]
    assert set(dict(readout.named_buffers())) == set(readout.hidden_names)
    assert {n for n, _ in everything.named_parameters()} == {"readout", *everything.hidden_names}
    assert everything.state_dict().keys() == readout.state_dict().keys()
    X = inputs(dtype=torch.float32)
    assert torch.equal(everything(X), readout(X))
    readout(X).sum().backward()
    assert readout.readout.grad is not None


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_state_and_copies(model: nsd.DeepEquilibrium | nsd.ExplicitNetwork) -> None:
    module = build(model, 5, 30, 2, rng=0, bias=True)
    other = build(model, 5, 30, 2, rng=1, bias=True)
    X = inputs(dtype=torch.float32)
    assert not torch.equal(module(X), other(X))
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(X), other(X))
    module(X).sum().backward()
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.readout.zero_()
    assert not twin(X).any()
    assert module(X).any()
    assert str(model) in repr(module)
    assert (module.in_features, module.width, module.out_features) == (5, 30, 2)
    assert module.description == model


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_dtype_and_device_follow(model: nsd.DeepEquilibrium | nsd.ExplicitNetwork) -> None:
    single = build(model, 5, 30, 2, rng=0)
    double = build(model, 5, 30, 2, rng=0, dtype=torch.float64)
    X = inputs()
    assert single(X.float()).dtype == torch.float32
    error = (single(X.float()) - double(X)).abs().max()
    assert 0.0 < error < 1e-4
    widened = single.to(torch.float64)
    assert widened(X).dtype == torch.float64
    # Every weight is moved along with the module: nothing is left on the old device.
    everywhere = build(model, 5, 30, 2, rng=0).to("meta")
    assert {t.device.type for t in everywhere.state_dict().values()} == {"meta"}


def test_a_single_sample_and_extra_axes() -> None:
    for model in MODELS:
        module = build(model, 5, 30, 2, rng=0, dtype=torch.float64)
        X = inputs()
        torch.testing.assert_close(module(X[0]), module(X)[0], rtol=1e-10, atol=1e-12)
        folded = module(X.reshape(2, 3, 5))
        torch.testing.assert_close(folded.reshape(6, 2), module(X), rtol=1e-10, atol=1e-12)
        assert module(X[:0]).shape == (0, 2)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (torch.zeros(3, 4), "in_features = 5"),
        (torch.zeros(()), "in_features = 5"),
        (torch.zeros(3, 5, dtype=torch.float64), r"module's dtype.*X.to\(dtype\)"),
        (torch.zeros(3, 5, dtype=torch.int64), "module's dtype"),
        (np.zeros((3, 5), dtype=np.float32), "be a torch tensor"),
        ([[0.0] * 5], "be a torch tensor"),
    ],
)
def test_inputs_are_checked(X: object, words: str) -> None:
    for model in MODELS:
        with pytest.raises(InvalidInput, match=words):
            build(model, 5, 8, 2, rng=0)(X)


def test_activations_need_a_torch_twin() -> None:
    mine = nsd.activations.from_function(np.tanh, name="mine")
    for model in (nsd.DeepEquilibrium(mine, 0.1), nsd.ExplicitNetwork([mine])):
        with pytest.raises(NoTorchTwin, match="torch="):
            build(model, 5, 8, 2, rng=0)

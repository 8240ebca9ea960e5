"""Building: what the weights depend on, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import InvalidInput, UnknownName
from notsodeep.networks import EquilibriumNetwork, ExplicitModule, build
from notsodeep.networks.equilibrium_solvers import Anderson
from notsodeep.networks.gradient_choices import Phantom

DEQ, NETWORK = nsd.DeepEquilibrium("tanh", 0.2), nsd.ExplicitNetwork(["relu", "tanh"])
both = pytest.mark.parametrize("model", [DEQ, NETWORK], ids=str)


@both
def test_weights_depend_on_rng_alone(model: nsd.DeepEquilibrium | nsd.ExplicitNetwork) -> None:
    before = torch.get_rng_state()
    first = build(model, 5, 20, 3, rng=3).state_dict()
    torch.manual_seed(77)
    again = build(model, 5, 20, 3, rng=np.random.default_rng(3)).state_dict()
    other = build(model, 5, 20, 3, rng=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    torch.set_rng_state(before)
    build(model, 5, 20, 3, rng=3)
    assert torch.equal(torch.get_rng_state(), before)
    generator = np.random.default_rng(0)
    one, two = (build(model, 5, 20, 3, generator).state_dict() for _ in range(2))
    assert not torch.equal(one["readout"], two["readout"])


@both
def test_precision_and_training_do_not_change_the_weights(
    model: nsd.DeepEquilibrium | nsd.ExplicitNetwork,
) -> None:
    double = build(model, 5, 20, 3, rng=3, dtype=torch.float64).state_dict()
    single = build(model, 5, 20, 3, rng=3).state_dict()
    frozen = build(model, 5, 20, 3, rng=3, trainable="readout").state_dict()
    for name, weight in double.items():
        assert torch.equal(weight.float(), single[name])
        assert torch.equal(single[name], frozen[name])


@pytest.mark.parametrize(
    ("initialisation", "kurtosis"), [("gaussian", 3.0), ("uniform", 1.8), ("rademacher", 1.0)]
)
@both
def test_hidden_weights_have_unit_variance(
    model: nsd.DeepEquilibrium | nsd.ExplicitNetwork, initialisation: str, kurtosis: float
) -> None:
    module = build(model, 300, 300, 300, rng=0, initialisation=initialisation)
    for name in (*module.hidden_names, "readout"):
        weight = module.state_dict()[name].double()
        law = 3.0 if name == "readout" else kurtosis
        deviation = np.sqrt((law - 1) / weight.numel())
        assert abs(weight.mean()) < 5 / 300
        assert abs(weight.square().mean() - 1) <= 5 * deviation + 1e-6
        assert weight.pow(4).mean().item() == pytest.approx(law, rel=0.05)


@both
def test_read_outs(model: nsd.DeepEquilibrium | nsd.ExplicitNetwork) -> None:
    module = build(model, 5, 20, 3, rng=0, readout_start="zeros", bias=True)
    assert not module(torch.ones(2, 5)).any()
    gaussian = build(model, 5, 20, 3, rng=0)
    assert gaussian.readout_bias is None
    for name in module.hidden_names:
        assert torch.equal(module.state_dict()[name], gaussian.state_dict()[name])


def test_options_reach_the_module() -> None:
    deq = build(
        DEQ,
        5,
        20,
        3,
        rng=0,
        solver={"name": "anderson", "memory": 4},
        gradient=Phantom(3),
        on_failure="warn",
        device="cpu",
    )
    assert isinstance(deq, EquilibriumNetwork)
    assert deq.solver == Anderson(memory=4)
    assert deq.gradient == Phantom(3)
    assert deq.on_failure == "warn"
    network = build(NETWORK, 5, 20, 3, rng=0)
    assert isinstance(network, ExplicitModule)
    assert [tuple(network.state_dict()[n].shape) for n in network.hidden_names] == [
        (20, 5),
        (20, 20),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"in_features": 0}, "in_features"),
        ({"width": -1}, "width"),
        ({"width": 2.5}, "width"),
        ({"out_features": True}, "out_features"),
        ({"rng": None}, "rng of build"),
        ({"rng": -1}, "rng of build"),
        ({"dtype": torch.float16}, "float32 or torch.float64"),
        ({"dtype": "float32"}, "float32 or torch.float64"),
        ({"model": "tanh"}, "model of build must be a DeepEquilibrium, a Monotone"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], words: str) -> None:
    for model in (DEQ, NETWORK):
        arguments = {"model": model, "in_features": 5, "width": 8, "out_features": 2, "rng": 0}
        with pytest.raises(InvalidInput, match=words):
            build(**{**arguments, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trainable": "read_out"}, "'readout'"),
        ({"initialisation": "normal"}, "initialisation of build"),
        ({"readout_start": "zero"}, "'zeros'"),
        ({"solver": "newton"}, "Unknown solver"),
        ({"gradient": "exact"}, "Unknown gradient"),
        ({"on_failure": "stop"}, "on_failure"),
    ],
)
def test_unknown_names_are_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(UnknownName, match=words):
        build(DEQ, 5, 8, 2, rng=0, **change)
    with pytest.raises(TypeError, match="solvers"):
        build(DEQ, 5, 8, 2, rng=0, solvers="anderson")


@pytest.mark.parametrize("option", ["solver", "gradient", "on_failure"])
def test_an_explicit_network_has_nothing_to_solve(option: str) -> None:
    with pytest.raises(InvalidInput, match=f"{option} of build must be left out for an explicit"):
        build(NETWORK, 5, 8, 2, rng=0, **{option: "raise"})

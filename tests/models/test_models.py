"""Descriptions of networks, their centring and their conditions."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

import notsodeep as nsd
from cases import REFERENCE, identifier
from notsodeep.activations import Activation, Centred
from notsodeep.errors import InvalidInput, NotConverged, UnknownName

LIPSCHITZ = [a for a in REFERENCE if np.isfinite(a.lipschitz)]


@pytest.mark.parametrize("sigma_a2", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("activation", LIPSCHITZ, ids=identifier)
def test_centred_model_has_mean_zero_and_the_same_scale(
    activation: Activation, sigma_a2: float
) -> None:
    tau0 = 1.1
    deq = nsd.DeepEquilibrium(activation, sigma_a2)
    try:
        centred = deq.centred(tau0)
    except NotConverged:
        # Only where the variance map is too steep to have a fixed point.
        assert sigma_a2 * activation.lipschitz**2 >= 1.0
        return
    moments = centred.activation.moments(centred.tau_star)
    assert abs(moments.mean) <= 1e-13
    fixed = sigma_a2 * moments.square + (1 - sigma_a2) * tau0**2
    assert centred.tau_star**2 == pytest.approx(fixed, rel=1e-12)
    assert centred.is_centred_for(tau0)
    assert not centred.is_centred_for(1.2 * tau0) or sigma_a2 == 1.0
    # Centring twice changes nothing.
    assert centred.centred(tau0).activation.constant == pytest.approx(
        centred.activation.constant,
        abs=1e-14,
    )


def test_relu_tau_star_in_closed_form() -> None:
    # Var relu(τξ) = τ²(1/2 − 1/(2π)), so τ*² = σb² τ0²/(1 − σa²(1/2 − 1/2π)).
    for sigma_a2, tau0 in ((0.2, 1.0), (0.05, 2.5), (0.9, 0.1)):
        tau = nsd.DeepEquilibrium("relu", sigma_a2).centred(tau0).tau_star
        share = 0.5 - 0.5 / np.pi
        assert tau == pytest.approx(
            tau0 * np.sqrt((1 - sigma_a2) / (1 - sigma_a2 * share)), rel=1e-14
        )


def test_erf_tau_star_solves_its_closed_equation() -> None:
    tau = nsd.DeepEquilibrium("erf", 0.3).centred(1.0).tau_star
    variance = 2 / np.pi * np.arcsin(2 * tau**2 / (1 + 2 * tau**2))
    assert tau**2 == pytest.approx(0.3 * variance + 0.7, rel=1e-14)


def test_descriptions_are_values() -> None:
    a = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    b = nsd.DeepEquilibrium(nsd.activations.named("tanh"), 0.2)
    assert a == b
    assert hash(a) == hash(b)
    assert a != nsd.DeepEquilibrium("tanh", 0.3)
    with pytest.raises(AttributeError):
        a.sigma_a2 = 0.5
    assert a.sigma_a2 + a.sigma_b2 == 1.0


@pytest.mark.parametrize(
    "model",
    [
        nsd.DeepEquilibrium("relu", 0.2),
        nsd.DeepEquilibrium("relu", 0.2).centred(1.3),
        nsd.ExplicitNetwork(["relu", nsd.activations.leaky_relu(1.1, 0.7)]),
        nsd.ExplicitNetwork(["swish", "cos"]).centred(1.0),
    ],
    ids=str,
)
def test_json_round_trip(model: nsd.DeepEquilibrium | nsd.ExplicitNetwork) -> None:
    stored = json.loads(json.dumps(model.to_dict()))
    assert type(model).from_dict(stored) == model
    with pytest.raises(InvalidInput, match="must have the keys"):
        type(model).from_dict({**stored, "extra": 1})


def test_explicit_network_scales_and_centring() -> None:
    network = nsd.ExplicitNetwork(["relu", "swish"])
    assert network.depth == 2
    scales = network.scales(2.0)
    assert scales[1] == pytest.approx(2.0 / np.sqrt(2))
    centred = network.centred(2.0)
    tau = 2.0
    for activation in centred.activations:
        assert isinstance(activation, Centred)
        assert activation.scale == pytest.approx(tau, rel=1e-14)
        moments = activation.moments(tau)
        assert abs(moments.mean) < 1e-14
        tau = np.sqrt(moments.square)


@pytest.mark.parametrize(
    ("sigma_a2", "words"),
    [
        (-0.1, "0 ≤ sigma_a2 < 1"),
        (1.0, "0 ≤ sigma_a2 < 1"),
        (1.5, "Got 1.5"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("0.2", "real number"),
        (None, "real number"),
        (True, "real number"),
        (np.array([0.1, 0.2]), "single"),
    ],
)
def test_sigma_a2_is_checked(sigma_a2: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        nsd.DeepEquilibrium("relu", sigma_a2)


def test_numpy_numbers_are_numbers() -> None:
    assert nsd.DeepEquilibrium("relu", np.float32(0.25)).sigma_a2 == 0.25
    assert nsd.DeepEquilibrium("relu", np.array(0.25)).sigma_a2 == 0.25


def test_activation_is_checked() -> None:
    with pytest.raises(UnknownName, match="'tanh'"):
        nsd.DeepEquilibrium("thanh", 0.2)
    with pytest.raises(InvalidInput, match="from_function"):
        nsd.DeepEquilibrium(lambda x: x, 0.2)
    with pytest.raises(InvalidInput, match=r"ExplicitNetwork\(\['relu'\]\)"):
        nsd.ExplicitNetwork("relu")
    with pytest.raises(InvalidInput, match="at least one"):
        nsd.ExplicitNetwork([])


@pytest.mark.parametrize("tau0", [0.0, -1.0, float("nan"), "1"])
def test_tau0_is_checked(tau0: object) -> None:
    with pytest.raises(InvalidInput, match="tau0"):
        nsd.DeepEquilibrium("relu", 0.2).centred(tau0)


def test_tau_star_of_an_uncentred_model_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"deq.centred\(tau0\)"):
        _ = nsd.DeepEquilibrium("relu", 0.2).tau_star


def test_conditions_are_verdicts_with_numbers() -> None:
    good = nsd.conditions(nsd.DeepEquilibrium("tanh", 0.2).centred(1.0), tau0=1.0)
    assert good.hold
    assert good["contraction"].bound == pytest.approx(0.25)
    raw = nsd.conditions(nsd.DeepEquilibrium("relu", 0.2), tau0=1.0)
    assert not raw.hold
    assert raw["centring"].holds is False
    assert raw["centring"].value == pytest.approx(0.926566 / np.sqrt(2 * np.pi), abs=1e-6)
    assert raw["uniqueness of τ*"].holds is True
    steep = nsd.conditions(nsd.DeepEquilibrium("normalized_relu", 0.2))
    assert steep["contraction"].holds is False
    assert steep["contraction"].bound == pytest.approx(1 / 8)
    assert "fails" in str(steep)


def test_conditions_of_a_model_without_a_fixed_point() -> None:
    cubic = nsd.DeepEquilibrium(nsd.activations.polynomial([0, 1, 0, 1]), 0.5)
    with pytest.raises(NotConverged, match="τ\\*"):
        cubic.centred(1.0)
    verdicts = nsd.conditions(cubic)
    assert verdicts["existence of τ*"].holds is False
    assert verdicts["contraction"].holds is False
    json.dumps(verdicts.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_uniqueness_is_decided_for_waves(name: str) -> None:
    verdict = nsd.conditions(nsd.DeepEquilibrium(name, 0.2))["uniqueness of τ*"]
    # At most σa² E[2φ′² + 2φφ″] ≤ 0.4 for |φ|, |φ′|, |φ″| ≤ 1.
    assert verdict.holds is True
    assert 0.1 < verdict.value <= 0.4


def test_uniqueness_is_undecided_where_it_cannot_be_computed() -> None:
    wild = nsd.DeepEquilibrium(nsd.activations.from_formula("sin(20 * x) / 20 + x / 2"), 0.1)
    verdict = nsd.conditions(wild.centred(1.0))["uniqueness of τ*"]
    assert verdict.holds is None
    assert "undecided" in str(verdict)


@pytest.mark.parametrize("call", [nsd.kernel, nsd.match])
def test_given_weights_are_sent_to_compile(call: Callable[..., object]) -> None:
    cell = nsd.EquilibriumCell.from_weights(0.1 * np.eye(3), np.eye(3), None, "tanh")
    with pytest.raises(InvalidInput, match=r"weights are given is for compile\(cell, X\)"):
        call(cell, np.eye(3))

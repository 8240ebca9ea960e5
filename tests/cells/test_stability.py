"""Verdicts on cells, bad cells, and finite networks that settle where the kernels say."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import leaky_relu, with_skip
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import DeepEquilibrium, Dense, MonotoneEquilibrium, conditions
from notsodeep.networks.sampling import monte_carlo, random_network

X = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.9]])
RING = DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)])


def test_verdicts_on_a_ring() -> None:
    verdicts = conditions(RING)
    assert {v.name: v.holds for v in verdicts} == {
        "contraction": False,
        "existence of q": True,
        "uniqueness of q": True,
        "stable equilibrium": True,
        "centring": False,
    }
    assert verdicts["contraction"].value == pytest.approx(0.4)
    assert verdicts["contraction"].bound == pytest.approx(1 / 16)
    assert verdicts["existence of q"].value == pytest.approx(0.643777734026, abs=1e-11)
    centred = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6), Dense("relu", 0.8, 0.3)]).centred(1.0)
    assert conditions(centred)["centring"].holds


@pytest.mark.parametrize(("weight", "radius"), [(2.2, 0.933), (2.6, 1.0195)])
def test_the_threshold_has_its_numbers(weight: float, radius: float) -> None:
    verdict = conditions(DeepEquilibrium(cell=[Dense("tanh", weight, 0.3)]))
    assert verdict["stable equilibrium"].holds is (radius < 1.0)
    assert verdict["stable equilibrium"].value == pytest.approx(radius, abs=1e-3)


@pytest.mark.parametrize(("weight", "settles"), [(1.6, True), (3.5, False)])
def test_the_threshold_is_that_of_finite_networks(weight: float, settles: bool) -> None:
    model = DeepEquilibrium(cell=[Dense("tanh", weight, 0.3)])
    network, rows = random_network(model, 2, 600, np.random.default_rng(0)), np.eye(2)
    if settles:
        network.features(rows, 1e-3)
        nsd.kernel(model, rows, convention="preactivation")
        return
    with pytest.raises(NotConverged, match="relative residual"):
        network.features(rows, 1e-3)
    with pytest.raises(NotConverged, match="must stay below 1"):
        nsd.kernel(model, rows, convention="preactivation")


MODELS = {
    "ring": RING,
    "three": DeepEquilibrium(
        cell=[Dense("erf", 0.7, 0.5), Dense("relu", 0.9, 0.0, 0.2), Dense("tanh", 0.8, 0.4)]
    ),
    "bias": DeepEquilibrium(cell=[Dense("relu", 0.6, 0.9, 0.15)]),
    "above one": DeepEquilibrium(cell=[Dense("tanh", 1.3, 0.9, 0.15)]),
    "skip": DeepEquilibrium(cell=[Dense(with_skip("tanh", 0.5), 0.3, 0.9, 0.1)]),
    "normalised pre-activation": DeepEquilibrium(
        cell=[Dense("tanh", 0.6, 0.9, 0.1, "preactivation")]
    ),
    "normalised feature": DeepEquilibrium(cell=[Dense("relu", 0.3, 0.9, 0.1, "feature")]),
    "both": DeepEquilibrium(
        cell=[
            Dense("tanh", 0.5, 0.6, 0.1, "preactivation"),
            Dense("relu", 0.3, 0.3, 0.0, "feature"),
        ]
    ),
    "monotone relu": MonotoneEquilibrium("relu", 0.5, 0.5, 0.3, 1.0),
    "monotone leaky relu": MonotoneEquilibrium(leaky_relu(0.9, 0.2), 0.5, 0.5, 0.3, 1.0),
}


def agrees(model: DeepEquilibrium, width: int, draws: int) -> None:
    """Within five standard errors."""
    estimate = monte_carlo(model, X, width, draws, rng=3)
    for kind in ("ck", "ntk"):
        exact = nsd.kernel(model, X, kind=kind, convention="feature")
        mean, error = getattr(estimate, kind), getattr(estimate, f"{kind}_error")
        # A normalised diagonal does not fluctuate.
        assert (np.abs(mean - exact) <= 5 * error + 1e-5).all(), kind


CELLS = [name for name in MODELS if "monotone" not in name]


@pytest.mark.parametrize("name", ["ring", "both"])
def test_finite_networks_have_these_kernels(name: str) -> None:
    agrees(MODELS[name], 150, 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_wide_networks_have_these_kernels(name: str) -> None:
    agrees(MODELS[name], 1024, 40)


def test_verdicts_on_a_monotone_network() -> None:
    verdicts = nsd.conditions(MODELS["monotone relu"], tau0=1.0)
    assert {v.name: v.holds for v in verdicts} == {
        "monotone weights": True,
        "existence of q": True,
        "finite tangent kernel": True,
        "proof of the limit": None,
    }
    assert verdicts["existence of q"].value == pytest.approx(1.392355479118, abs=1e-11)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DeepEquilibrium(cell=[]), r"at least one layer. Got \[\]. Write cell=\[Dense"),
        (lambda: DeepEquilibrium(cell=Dense("relu", 0.2, 0.8)), "be a list of at least one layer"),
        (lambda: DeepEquilibrium(cell=["relu"]), "hold Dense layers"),
        (lambda: DeepEquilibrium(), "an activation and sigma_a2, or a cell"),
        (lambda: DeepEquilibrium("relu", cell=[Dense("relu", 0.2, 0.8)]), "or a cell"),
        (lambda: Dense("relu", -0.1), r"weight .* at least 0. Got -0.1. It is a variance"),
        (lambda: Dense("relu", 0.1, bias=-1.0), r"bias .* at least 0"),
        (lambda: Dense("relu", 0.1, inject=-1.0), r"inject .* at least 0"),
        (lambda: Dense("relu", float("nan")), "weight .* finite"),
        (lambda: Dense("relu", 0.1, normalise="affine"), "trained gains"),
        (lambda: DeepEquilibrium(cell=[Dense("relu", 0.5)]), "driven by .* inject = 0.*inject > 0"),
        (lambda: DeepEquilibrium(cell=[Dense("relu", 0.5, bias=0.1)]), "driven by the input"),
        (lambda: RING.centred(1.0), "bias = 0.1"),
        (lambda: with_skip("relu", 1.0), "alpha = 1, .* is 1. Use an alpha nearer to 0"),
        (lambda: with_skip("gelu", 0.95), "alpha. < 0.885815, .* constant is 1.07246"),
        (lambda: MonotoneEquilibrium("relu", 0.0), "monotonicity"),
        (lambda: MonotoneEquilibrium("tanh"), "be of the ReLU family"),
        (lambda: MonotoneEquilibrium("relu", skew=-0.2), "skew"),
    ],
)
def test_bad_cells_are_named(make: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_no_variance_and_several_variances_are_named() -> None:
    with pytest.raises(NotConverged, match=r"no finite variance.*smaller weights"):
        nsd.kernel(
            DeepEquilibrium(cell=[Dense("relu", 1.5, 1.0), Dense("relu", 3.0)]),
            X,
            convention="preactivation",
        )
    square = nsd.activations.polynomial((0.0, 0.0, 0.5))
    ring = DeepEquilibrium(cell=[Dense(square, 0.1, 0.3, 0.1), Dense("relu", 0.5, 0.1)])
    for rejecting in (
        lambda: nsd.kernel(ring, X, convention="preactivation"),
        lambda: nsd.equivalent(ring, np.vstack([X, -X, X]), convention="preactivation"),
        lambda: nsd.match(ring, np.vstack([X, -X, X])),
    ):
        with pytest.raises(NotConverged, match=r"several solutions .* near E z² = \d+.*smaller w"):
            rejecting()


def test_an_unstable_cell_is_named_everywhere() -> None:
    beyond = DeepEquilibrium(cell=[Dense("tanh", 3.5, 0.3)])
    words = r"has no stable equilibrium.* 1\.\d+.* and must stay below 1. Use smaller weights"
    for rejecting in (
        lambda: nsd.kernel(beyond, X, convention="preactivation"),
        lambda: nsd.equivalent(beyond, np.vstack([X, -X, X]), convention="preactivation"),
        lambda: nsd.match(beyond, np.vstack([X, -X, X])),
    ):
        with pytest.raises(NotConverged, match=words):
            rejecting()


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 0.95])
def test_the_vanilla_model_is_one_value_whatever_describes_it(weight: float) -> None:
    deq = DeepEquilibrium("tanh", weight)
    same = DeepEquilibrium(cell=[Dense("tanh", weight, inject=round(1 - weight, 10))])
    assert same == deq
    assert hash(same) == hash(deq)
    assert same.to_dict() == deq.to_dict()
    assert DeepEquilibrium.from_dict(deq.to_dict()) == deq
    assert deq.sigma_b2 == 1.0 - weight


@pytest.mark.parametrize("name", MODELS)
def test_descriptions_come_back(name: str) -> None:
    model = MODELS[name]
    assert type(model).from_dict(json.loads(json.dumps(model.to_dict()))) == model
    assert str(model)

"""Families meet the coefficients they promise, in every kernel and convention."""

from __future__ import annotations

import math

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.models import Convention, KernelName

KERNELS: tuple[KernelName, ...] = ("ck", "ntk")
CONVENTIONS: tuple[Convention, ...] = ("preactivation", "feature")
MET = {
    "leaky_relu": ("linear", "scale2"),
    "hard_tanh": ("linear", "scale2"),
    "scaled": ("linear", "scale2"),
    "piecewise_linear": ("linear", "covariance_overlap", "scale2"),
    "plain": ("constant", "scale2"),
}


@pytest.mark.parametrize("tau0", [1.0, 1.3])
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize(
    ("activation", "family"),
    [
        ("relu", "leaky_relu"),
        ("relu", "piecewise_linear"),
        ("swish", "leaky_relu"),
        ("tanh", "hard_tanh"),
        ("tanh", "piecewise_linear"),
        ("erf", "hard_tanh"),
        ("cos", "leaky_relu"),
        ("tanh", "scaled"),
        ("relu", "plain"),
        ("cos", "plain"),
        ("swish", "scaled"),
        ("hard_tanh", "scaled"),
        ("cos", "piecewise_linear"),
    ],
)
def test_promised_coefficients_are_met(
    activation: str, family: str, kind: KernelName, convention: Convention, tau0: float
) -> None:
    deq = nsd.DeepEquilibrium(activation, sigma_a2=0.2)
    m = nsd.match(deq, tau0=tau0, family=family, kind=kind, convention=convention)
    assert m.feasible, m.reason
    for name in MET[family]:
        assert getattr(m.achieved, name) == pytest.approx(getattr(m.target, name), abs=1e-10)
        assert abs(m.residuals[name]) <= 1e-10
    # Residuals are the differences of what is reported.
    for name, residual in m.residuals.items():
        assert residual == getattr(m.achieved, name) - getattr(m.target, name)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_odd_activations_are_met_in_all_four_by_a_hard_tanh(
    kind: KernelName, convention: Convention
) -> None:
    m = nsd.match(
        nsd.DeepEquilibrium("arctan", 0.15), tau0=1.0, family="hard_tanh",
        kind=kind, convention=convention,
    )  # fmt: skip
    assert max(abs(m.residuals[name]) for name in FOUR) <= 1e-10


FOUR = ("linear", "norm_fluctuation", "covariance_overlap", "scale2")


@pytest.mark.parametrize("activation", ["swish", "relu"])
def test_two_quadratic_layers_meet_the_four_or_come_near(activation: str) -> None:
    """The papers' poly-ENN, with its honest verdict."""
    m = nsd.match(nsd.DeepEquilibrium(activation, 0.2), tau0=1.0, family="quadratic")
    largest = max(abs(m.residuals[name]) for name in ("constant", *FOUR))
    assert m.network.depth == 2
    assert m.feasible == (largest <= 1e-9 * m.target.scale2)
    assert m.feasible or "cannot meet" in m.reason
    assert largest < 0.1 * m.target.scale2


@pytest.mark.paper
def test_reference_parameters() -> None:
    relu, tanh = (nsd.DeepEquilibrium(name, 0.2).centred(1.0) for name in ("relu", "tanh"))
    m = nsd.match(relu, tau0=1.0, family="leaky_relu", convention="preactivation")
    assert list(m.parameters.values()) == pytest.approx([1.1302, 0.7051, 0.0], abs=5e-5)
    m = nsd.match(relu, tau0=1.0, family="leaky_relu")
    assert list(m.parameters.values()) == pytest.approx([0.9341, -0.0165, 0.0], abs=5e-5)
    m = nsd.match(tanh, tau0=1.0, family="hard_tanh")
    assert m.parameters["clip"] == pytest.approx(1.1965, abs=5e-5)
    assert m.parameters["scale"] == pytest.approx(0.7643, abs=5e-5)


def test_leaky_relu_meets_norm_fluctuation_of_a_relu_deq_too() -> None:
    relu = nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    m = nsd.match(relu, tau0=1.0, family="leaky_relu")
    assert abs(m.residuals["norm_fluctuation"]) <= 1e-12
    # α4/α1 squared: 4 % in covariance_overlap.
    ratio = m.achieved.covariance_overlap / m.target.covariance_overlap
    assert ratio == pytest.approx(1.039, abs=1e-3)


def test_no_recurrence_is_the_one_layer_network_itself() -> None:
    m = nsd.match(nsd.DeepEquilibrium("relu", 0.0), tau0=1.0, family="leaky_relu")
    mean = 1.0 / math.sqrt(2.0 * math.pi)
    assert list(m.parameters.values()) == pytest.approx([1.0, 0.0, mean], abs=1e-12)


@pytest.mark.paper
def test_sphere_quadratic_meets_the_sphere_paper() -> None:
    deq = nsd.DeepEquilibrium("normalized_relu", 0.2)
    for kernel, mu, beta in (("ck", 0.03571, 0.89337), ("ntk", 0.16812, 1.00269)):
        m = nsd.match(deq, sphere=1200, family="quadratic", kind=kernel, convention="preactivation")
        six, two = (6.0, 2.0) if kernel == "ntk" else (2.0, 1.0)
        assert m.parameters["a2"] == pytest.approx(math.sqrt(mu / six), abs=2e-5)
        assert m.parameters["a1"] == pytest.approx(math.sqrt(beta / two), abs=1e-5)
        assert max(map(abs, m.residuals.values())) <= 1e-10
        assert m.model is deq  # not centred here


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_own_family_is_fitted(kind: KernelName, convention: Convention) -> None:
    def layers(x: np.ndarray, problem: object) -> list[nsd.activations.Activation]:
        return [nsd.activations.from_formula(f"{float(x[0])} * erf({float(x[1])} * x)")]

    m = nsd.match(
        nsd.DeepEquilibrium("tanh", 0.2),
        tau0=1.0,
        family=nsd.matching.Family("scaled_erf", ("a", "b"), layers, starts=[(1.0, 0.7)]),
        kind=kind,
        convention=convention,
    )
    assert m.family == "scaled_erf"
    assert m.feasible
    assert max(abs(m.residuals[name]) for name in FOUR) <= 1e-9


def test_an_error_of_the_own_family_is_shown() -> None:
    def broken(x: np.ndarray, problem: object) -> list[nsd.activations.Activation]:
        return [nsd.activations.from_formula(f"{x[0]} * nonsense(x)")]

    with pytest.raises(nsd.errors.FormulaError, match="nonsense"):
        nsd.match(
            nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0,
            family=nsd.matching.Family("broken", ("a",), broken, starts=[(1.0,)]),
        )  # fmt: skip


def test_scaled_without_recurrence_is_the_activation_itself() -> None:
    for name in ("tanh", "gelu", "relu"):
        m = nsd.match(nsd.DeepEquilibrium(name, 0.0), tau0=1.3, family="scaled")
        assert m.feasible
        assert list(m.parameters.values())[:2] == pytest.approx([1.0, 1.0], abs=1e-10)


@pytest.mark.parametrize(
    ("activation", "why"),
    [("relu", "which is homogeneous"), ("cos", "E φ′ is 0"), ("abs", "E φ′ is 0")],
)
def test_scaled_says_when_two_numbers_are_not_enough(activation: str, why: str) -> None:
    for convention in CONVENTIONS:
        deq = nsd.DeepEquilibrium(activation, 0.2)
        m = nsd.match(deq, tau0=1.0, family="scaled", convention=convention)
        assert m.fitted is None
        assert why in m.reason


def test_a_python_function_is_scaled_only_when_asked() -> None:
    own = nsd.activations.from_function(np.tanh, name="mine")
    deq = nsd.DeepEquilibrium(own, 0.2)
    assert "scaled" not in {c.family for c in nsd.match(deq, tau0=1.0).candidates}
    assert nsd.match(deq, tau0=1.0, family="scaled").parameters == pytest.approx(
        nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0, family="scaled").parameters, rel=1e-8
    )


def test_a_scaled_network_is_a_file_and_a_module() -> None:
    torch = pytest.importorskip("torch")
    m = nsd.match(nsd.DeepEquilibrium("swish", 0.2), tau0=1.0, family="scaled")
    assert nsd.ExplicitNetwork.from_dict(m.network.to_dict()) == m.network
    net = nsd.build(m.network, in_features=6, width=32, out_features=2, rng=0)
    assert net(torch.zeros(3, 6)).shape == (3, 2)

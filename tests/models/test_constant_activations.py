"""Activations that are zero, constant or of denormal size: one named error, at every door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep import activations, estimators
from notsodeep.activations import Activation
from notsodeep.activations.transformed import centred_by
from notsodeep.compilation.record import RandomSettings
from notsodeep.errors import ConstantActivation, InvalidInput
from public_calls import BASE

LABELS = np.arange(len(BASE)) % 2
SPHERE = nsd.data.sphere(12, 5, rng=0)
STATISTICS = nsd.data.MixtureStatistics.estimate(BASE, LABELS)

CONSTANTS: dict[str, Activation] = {
    "zero times x": activations.from_formula("0*x"),
    "one, by rounding": activations.from_formula("sin(x)**2 + cos(x)**2"),
    "5000, by rounding": activations.from_formula("5000*(sin(x)**2 + cos(x)**2)"),
    "slopes of zero": activations.leaky_relu(0.0, 0.0),
    "hard tanh of height zero": activations.hard_tanh(0.0, 1.0),
    "level": activations.piecewise_linear((-1.0, 1.0), (0.0, 0.0, 0.0), 3.0),
    "polynomial": activations.polynomial([2.0]),
    "zero polynomial": activations.polynomial([0.0, 0.0]),
    "Hermite": activations.hermite([3.0]),
    "function": activations.from_function(lambda x: np.full_like(x, 2.0), name="two"),
    "1e-200": activations.from_formula("1e-200*x"),
    "1e-100": activations.from_formula("1e-100*tanh(x)"),
    "1e-21": activations.leaky_relu(1e-21, 1e-21),
    "denormal": activations.leaky_relu(1e-320, 0.0),
    "beyond the data": activations.from_formula("relu(x - 100)", kinks=(100.0,)),
}
FAMILIES = ("auto", "leaky_relu", "hard_tanh", "piecewise_linear", "quadratic", "plain")


def centred_by_hand(activation: Activation) -> Activation:
    return centred_by(activation, STATISTICS.tau0, float(activation(0.0)))


DOORS: dict[str, Callable[[Activation], Any]] = {
    "centring": lambda a: nsd.DeepEquilibrium(a, 0.2).centred(1.0),
    "centring a network": lambda a: nsd.ExplicitNetwork([a]).centred(1.0),
    "centring a second layer": lambda a: nsd.ExplicitNetwork(["tanh", a]).centred(1.0),
    "conditions": lambda a: nsd.conditions(nsd.DeepEquilibrium(a, 0.2), X=BASE),
    "conditions without recurrence": lambda a: nsd.conditions(nsd.DeepEquilibrium(a, 0.0)),
    "equivalent": lambda a: nsd.equivalent(
        nsd.DeepEquilibrium(centred_by_hand(a), 0.2), BASE, convention="preactivation"
    ),
    "equivalent of a network": lambda a: nsd.equivalent(
        nsd.ExplicitNetwork([centred_by_hand(a)]), BASE, convention="preactivation"
    ),
    "match on data": lambda a: nsd.match(nsd.DeepEquilibrium(a, 0.2), BASE, refine=True),
    "match on the sphere": lambda a: nsd.match(nsd.DeepEquilibrium(a, 0.2), sphere=5),
    "dual": lambda a: nsd.match(nsd.DeepEquilibrium(a, 0.2), SPHERE, family="dual"),
    "compile": lambda a: RandomSettings(nsd.DeepEquilibrium(a, 0.2)),
    "compiled": lambda a: estimators.CompiledClassifier(a, width=8).fit(BASE, LABELS),
    "random features": lambda a: estimators.RandomEquilibriumFeatures(a, width=8).fit(BASE),
}

every_constant = pytest.mark.parametrize("activation", CONSTANTS.values(), ids=CONSTANTS)


@every_constant
def test_every_door(activation: Activation) -> None:
    for name, door in DOORS.items():
        with pytest.raises(ConstantActivation, match=r"is constant.*[Uu]se another activation"):
            pytest.fail(f"{name}: {door(activation)}")


@every_constant
@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("convention", ["feature", "preactivation"])
def test_every_family(activation: Activation, kind: Any, convention: Any) -> None:
    deq = nsd.DeepEquilibrium(activation, 0.2)
    for family in FAMILIES:
        with pytest.raises(ConstantActivation, match="activation of match is constant"):
            nsd.match(deq, tau0=1.0, family=family, kind=kind, convention=convention)


@pytest.mark.parametrize("constant", [0.0, 2.0])
def test_exact_kernels_are_what_they_are(constant: float) -> None:
    """Nothing comes back through a constant: G = σa² c² + σb² XXᵀ, and Φ = c²."""
    deq = nsd.DeepEquilibrium(activations.polynomial([constant]), 0.2)
    expected = 0.2 * constant**2 + 0.8 * BASE @ BASE.T
    pair = nsd.kernel(deq, BASE, convention="preactivation", kind="both")
    np.testing.assert_allclose(pair.ck, expected, atol=1e-14)
    np.testing.assert_allclose(pair.ntk, expected, atol=1e-14)
    features = nsd.kernel(deq, BASE, convention="feature")
    np.testing.assert_allclose(features, constant**2, atol=1e-14)


@pytest.mark.parametrize("activation", [activations.polynomial([2.0]), activations.hermite([3.0])])
def test_finite_networks_are_what_they_are(activation: Activation) -> None:
    module = nsd.build(nsd.DeepEquilibrium(activation, 0.2), 5, 8, 2, rng=0, dtype=torch.float64)
    kernels = nsd.empirical_kernels(module, BASE)
    square = float(activation(0.0)) ** 2
    np.testing.assert_allclose(kernels.ck, square, rtol=1e-12)
    np.testing.assert_allclose(kernels.ntk, square, rtol=1e-12)


@pytest.mark.parametrize(
    "activation",
    [
        activations.leaky_relu(1e-19, 0.0),
        activations.from_formula("1e7 + tanh(x)"),
        activations.from_formula("1e-6*tanh(x) - 3"),
    ],
    ids=str,
)
def test_small_is_not_constant(activation: Activation) -> None:
    deq = nsd.DeepEquilibrium(activation, 0.2).centred(1.0)
    assert nsd.conditions(deq, tau0=1.0)["contraction"].holds
    found = nsd.match(deq, tau0=1.0, family="leaky_relu")
    assert found.feasible
    assert found.model.activation.moments(found.model.tau_star).square > 0.0


@pytest.mark.parametrize("tau0", [1e-60, 1e-40, 1e40])
def test_the_scale_of_the_data_is_another_matter(tau0: float) -> None:
    for activation in ("relu", "tanh", "abs"):
        assert nsd.DeepEquilibrium(activation, 0.2).centred(tau0).tau_star > 0.0


@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("tau0", [1e20, 1e60])
def test_far_out_a_sigmoid_is_a_jump(tau0: float, kind: Any) -> None:
    for family in FAMILIES:
        found = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=tau0, family=family, kind=kind)
        if found.feasible:
            # In units of the kernel's diagonal: beside a jump the linear part is next to nothing.
            missed = [found.residuals["scale2"], tau0**2 * found.residuals["linear"]]
            assert np.abs(missed).max() <= 1e-6 * found.target.scale2
        else:
            assert any(word in found.reason for word in ("jump", "must be", "cannot", "odd"))


def test_activations_of_absurd_size() -> None:
    huge = activations.leaky_relu(1e100, 0.0)
    for call in (
        lambda: nsd.ExplicitNetwork([huge, "tanh"]).centred(1.0),
        lambda: nsd.conditions(nsd.DeepEquilibrium(huge, 0.0)),
        lambda: nsd.match(nsd.DeepEquilibrium(huge, 0.0), tau0=1.0),
    ):
        with pytest.raises(InvalidInput, match=r"standard deviation of at most 1e\+60"):
            call()
    with pytest.raises(InvalidInput, match=r"standard deviation of at most 1e\+60"):
        nsd.sphere_equivalent(
            nsd.ExplicitNetwork([huge, "tanh"]), SPHERE, convention="preactivation"
        )


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-61, 1e-40, 1e-31])
def test_networks_on_the_sphere(size: float) -> None:
    tiny = activations.leaky_relu(size, 0.0)
    for network in (nsd.ExplicitNetwork([tiny]), nsd.ExplicitNetwork([tiny, "tanh"])):
        with pytest.raises(InvalidInput, match="constant, or"):
            nsd.sphere_equivalent(network, SPHERE, convention="preactivation")


@pytest.mark.parametrize(
    "command",
    [
        ["compile", "--out", "run"],
    ],
    ids=" ".join,
)
def test_command_line(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from notsodeep.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["notsodeep", *command, "--activation", "0*x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "is constant" in errors[0]
    assert list(tmp_path.iterdir()) == []

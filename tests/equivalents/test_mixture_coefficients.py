"""The four numbers, as what they are: derivatives of the exact kernel of two samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.equivalents import coefficients
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import DeepEquilibrium, ExplicitNetwork

ACTIVATIONS = ("tanh", "arctan", "relu", "swish", "cos", "erf", "hard_tanh", "softplus", "elu")
both_kernels = pytest.mark.parametrize("kind", ["ck", "ntk"])
both_conventions = pytest.mark.parametrize("convention", ["preactivation", "feature"])


def exact(model, pairs: np.ndarray, kind: str, convention: str) -> np.ndarray:
    """The kernel of pairs of vectors, rows (‖x‖², ‖y‖², x·y)."""
    norm1, norm2, inner = pairs.T
    along = inner / np.sqrt(norm1)
    X = np.stack([np.sqrt(norm1), np.zeros(len(pairs))], axis=1)
    Y = np.stack([along, np.sqrt(norm2 - along**2)], axis=1)
    function = nsd.conjugate_kernel if kind == "ck" else nsd.tangent_kernel
    return np.diag(function(model, X, Y, convention=convention))


def derivatives(model, tau0: float, kind: str, convention: str) -> tuple[float, ...]:
    """∂K/∂t, ∂²K/∂χ₁∂χ₂ and ½∂²K/∂t² at t = χ₁ = χ₂ = 0, and the kernel of equal samples."""
    square, h = tau0**2, 0.02 * tau0**2
    inner = [(0.0, 0.0, t) for t in (0.0, h, -h, h / 2, -h / 2)]
    norms = [(a * k, b * k, 0.0) for k in (h, h / 2) for a in (1, -1) for b in (1, -1)]
    pairs = np.add([*inner, *norms], [square, square, 0.0])
    at = exact(model, pairs, kind, convention)

    def refined(coarse: float, fine: float) -> float:  # Richardson: from h² to h⁴
        return float(4.0 * fine - coarse) / 3.0

    first = refined((at[1] - at[2]) / (2 * h), (at[3] - at[4]) / h)
    second = refined((at[1] + at[2] - 2 * at[0]) / h**2, (at[3] + at[4] - 2 * at[0]) / (h / 2) ** 2)
    corners = np.array([1.0, -1.0, -1.0, 1.0])
    mixed = refined(corners @ at[5:9] / (4 * h**2), corners @ at[9:] / h**2)
    same = np.array([[tau0, 0.0]])
    function = nsd.conjugate_kernel if kind == "ck" else nsd.tangent_kernel
    diagonal = float(function(model, same, convention=convention)[0, 0])
    return first, mixed, 0.5 * second, diagonal


def assert_derivatives(model, tau0: float, kind: str, convention: str) -> None:
    found = coefficients(model, tau0, kind=kind, convention=convention)
    expected = derivatives(model, tau0, kind, convention)
    np.testing.assert_allclose(found.four, expected, rtol=2e-5, atol=2e-7)
    assert found.four[3] == pytest.approx(expected[3], rel=1e-10)
    assert found.diagonal == pytest.approx(found.scale2 - tau0**2 * found.linear, abs=1e-15)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@both_kernels
@both_conventions
def test_equilibrium(activation: str, kind: str, convention: str) -> None:
    deq = DeepEquilibrium(activation, 0.2).centred(1.2)
    assert_derivatives(deq, 1.2, kind, convention)


@pytest.mark.parametrize(
    "layers", [["relu"], ["tanh", "relu"], ["swish", "cos", "relu"], ["cos"], ["elu", "tanh"]]
)
@both_kernels
def test_explicit(layers: list[str], kind: str) -> None:
    network = ExplicitNetwork(layers).centred(1.2)
    assert_derivatives(network, 1.2, kind, "preactivation")


@pytest.mark.parametrize("activation", ["tanh", "relu", "swish", "cos"])
def test_formulas_of_the_paper(activation: str) -> None:
    s, tau0 = 0.2, 1.1
    deq = DeepEquilibrium(activation, s).centred(tau0)
    tau = deq.tau_star
    m = deq.activation.moments(tau)
    q = s * m.slope**2
    a1, a4 = (1 - s) / (1 - q), (1 - s) / (1 - s * m.square_curvature / 2)
    a2 = s * m.curvature**2 * a4**2 / (4 * (1 - q))
    a3 = s * m.curvature**2 * a1**2 / (2 * (1 - q))
    assert coefficients(deq, tau0, convention="preactivation").four == pytest.approx(
        (a1, a2, a3, tau**2), rel=1e-12
    )
    b1 = a1 / (1 - q)
    b3 = (a3 + b1 * s * m.curvature**2 * a1) / (1 - q)
    kappa2 = tau**2 / (1 - s * m.slope_square)
    tangent = coefficients(deq, tau0, kind="ntk", convention="preactivation")
    assert tangent.four == pytest.approx((b1, a2 / (1 - q), b3, kappa2), rel=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "relu", "swish", "cos"])
@both_kernels
def test_feature_and_preactivation_are_one_linear_map_apart(activation: str, kind: str) -> None:
    s, tau0 = 0.2, 1.1
    deq = DeepEquilibrium(activation, s).centred(tau0)
    full = coefficients(deq, tau0, kind=kind, convention="preactivation")
    part = coefficients(deq, tau0, kind=kind, convention="feature")
    assert part.linear == pytest.approx((full.linear - (1 - s)) / s, rel=1e-10, abs=1e-14)
    assert part.norm_fluctuation == pytest.approx(full.norm_fluctuation / s, rel=1e-12)
    assert part.covariance_overlap == pytest.approx(full.covariance_overlap / s, rel=1e-12)
    assert part.scale2 == pytest.approx((full.scale2 - (1 - s) * tau0**2) / s, rel=1e-10)
    assert part.diagonal == pytest.approx(full.diagonal / s, rel=1e-10)


@pytest.mark.parametrize("activation", ["tanh", "relu", "swish", "cos"])
@both_kernels
def test_without_recurrence_the_features_are_a_layer(activation: str, kind: str) -> None:
    tau0 = 1.1
    deq = DeepEquilibrium(activation, 0.0).centred(tau0)
    network = ExplicitNetwork([activation]).centred(tau0)
    feature = coefficients(deq, tau0, kind=kind, convention="feature")
    layer = coefficients(network, tau0, kind=kind, convention="preactivation")
    assert feature.four == pytest.approx(layer.four, rel=1e-12)
    whole = coefficients(deq, tau0, kind=kind, convention="preactivation")
    assert whole.four == pytest.approx((1.0, 0.0, 0.0, tau0**2), rel=1e-12)
    assert whole.diagonal == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "relu", "swish", "cos"])
def test_equilibrium_is_the_fixed_point_of_the_recursion(activation: str) -> None:
    """Layer by layer, σa² before every moment and the input injected in each step."""
    s, tau0 = 0.2, 1.1
    deq = DeepEquilibrium(activation, s).centred(tau0)
    phi = deq.activation
    a1, a2, a3, a4, tau2 = 1.0, 0.0, 0.0, 1.0, tau0**2
    b1, b2, b3, kappa2 = 1.0, 0.0, 0.0, tau0**2
    for _ in range(200):
        m = phi.moments(np.sqrt(tau2))
        gain, bend = s * m.slope**2, s * m.curvature**2
        new1 = gain * a1 + (1 - s)
        new2 = gain * a2 + bend * a4**2 / 4
        new3 = gain * a3 + bend * a1**2 / 2
        b1, b2, b3 = new1 + gain * b1, new2 + gain * b2, new3 + gain * b3 + bend * b1 * a1
        a1, a2, a3, a4 = new1, new2, new3, s * m.square_curvature / 2 * a4 + (1 - s)
        tau2 = s * m.square + (1 - s) * tau0**2
        kappa2 = tau2 + s * m.slope_square * kappa2
    assert coefficients(deq, tau0, convention="preactivation").four == pytest.approx(
        (a1, a2, a3, tau2), rel=1e-10
    )
    tangent = coefficients(deq, tau0, kind="ntk", convention="preactivation")
    assert tangent.four == pytest.approx((b1, b2, b3, kappa2), rel=1e-10)


def test_linear_networks_have_nothing_but_the_gram_matrix() -> None:
    deq = DeepEquilibrium("identity", 0.2).centred(1.0)
    for kernel, linear in (("ck", 1.0), ("ntk", 1.25)):
        found = coefficients(deq, 1.0, kind=kernel, convention="preactivation")
        assert found.four == pytest.approx((linear, 0.0, 0.0, linear), rel=1e-12)
        assert found.diagonal == pytest.approx(0.0, abs=1e-12)
        assert found.diagonal >= 0.0
    network = ExplicitNetwork(["identity"] * 3).centred(1.0)
    assert coefficients(
        network, 1.0, kind="ntk", convention="preactivation"
    ).linear == pytest.approx(4.0)


def test_identity_term_is_never_negative() -> None:
    for name in ACTIVATIONS:
        for sigma_a2 in (0.0, 0.05, 0.2):
            deq = DeepEquilibrium(name, sigma_a2).centred(0.9)
            for kernel in ("ck", "ntk"):
                for convention in ("preactivation", "feature"):
                    found = coefficients(deq, 0.9, kind=kernel, convention=convention)
                    assert found.diagonal >= 0.0


def test_json_and_text() -> None:
    found = coefficients(DeepEquilibrium("relu", 0.2).centred(1.0), 1.0, convention="preactivation")
    content = json.loads(json.dumps(found.to_dict()))
    names = ["linear", "norm_fluctuation", "covariance_overlap", "scale2", "tau0", "diagonal"]
    assert list(content) == names
    assert content["diagonal"] == found.diagonal
    assert "covariance_overlap" in str(found)


def test_uncentred_models_are_refused_with_a_remedy() -> None:
    relu = DeepEquilibrium("relu", 0.2)
    with pytest.raises(InvalidInput, match=r"must be centred.*Use deq\.centred\(1\.5\)"):
        coefficients(relu, 1.5, convention="preactivation")
    with pytest.raises(InvalidInput, match=r"mean of relu − .*deq\.centred\(1\.5\)"):
        coefficients(relu.centred(1.0), 1.5, convention="preactivation")
    network = ExplicitNetwork(["relu", "relu"])
    with pytest.raises(InvalidInput, match=r"network\.centred\(1\.5\)"):
        coefficients(network, 1.5, convention="preactivation")
    half = ExplicitNetwork([network.centred(1.5).activations[0], "relu"])
    with pytest.raises(InvalidInput, match="must be centred"):
        coefficients(half, 1.5, convention="preactivation")
    assert coefficients(relu.centred(1.5), 1.5, convention="preactivation").linear > 0.0
    # An odd function is centred at every scale.
    assert (
        coefficients(DeepEquilibrium("tanh", 0.2), 1.5, convention="preactivation").norm_fluctuation
        == 0.0
    )


def test_infinite_tangent_kernel_is_refused() -> None:
    # σa² E φ′² reaches 1 while τ* still exists: sin(3x) has E φ′² near 4.5.
    deq = DeepEquilibrium(nsd.activations.from_formula("sin(3 * x)"), 0.5).centred(1.0)
    assert coefficients(deq, 1.0, convention="preactivation").linear > 0.0
    with pytest.raises(NotConverged, match=r"tangent kernel of the .* is infinite"):
        coefficients(deq, 1.0, kind="ntk", convention="preactivation")

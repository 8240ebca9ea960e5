"""Expansions: derivatives of the exact kernel, the papers' closed forms, reference values."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep import activations
from notsodeep.equivalents import expansion
from notsodeep.equivalents.expansion import at_right_angles
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import DeepEquilibrium, Dense, ExplicitNetwork, MonotoneEquilibrium

CENTRED_RING = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6), Dense("relu", 0.8, 0.3)]).centred(1.0)
NORMALISED = DeepEquilibrium(
    cell=[
        Dense("relu", 0.3, 0.9, 0.1, "feature"),
        Dense("erf", 0.5, 0.2, 0.1),
        Dense("tanh", 0.4, 0.0, 0.1, "preactivation"),
    ]
)
RAW = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)])
WHITENED = DeepEquilibrium(
    cell=[Dense("tanh", 0.5, 0.6, 0.1, "preactivation"), Dense("relu", 0.8, 0.3)]
)
MODELS = {
    **{name: DeepEquilibrium(name, 0.2) for name in ("tanh", "swish", "cos", "erf", "relu", "abs")},
    "hard_tanh": DeepEquilibrium(activations.hard_tanh(0.8, 1.2), 0.2),
    "polynomial": DeepEquilibrium(activations.polynomial((0.3, 1.0, -0.2, 0.05)), 0.1),
    "elu": DeepEquilibrium("elu", 0.4),
    "centred swish": DeepEquilibrium("swish", 0.2).centred(1.0),
    "centred relu": DeepEquilibrium("relu", 0.4).centred(1.0),
    "no recurrence": DeepEquilibrium("swish", 0.0),
    "centred ring": CENTRED_RING,
    "raw ring": RAW,
    "normalised": NORMALISED,
    "whitened": WHITENED,
    "one normalised layer": DeepEquilibrium(cell=[Dense("relu", 0.3, 0.9, 0.1, "feature")]),
    "monotone": MonotoneEquilibrium(activations.leaky_relu(0.9, 0.2), 0.5, 0.5, 0.3, 1.0),
    "one layer": ExplicitNetwork(["swish"]),
    "two layers": ExplicitNetwork(["relu", "tanh"]),
    "three layers": ExplicitNetwork(["gelu", activations.hard_tanh(1.0, 0.9), "cos"]),
    "linear": ExplicitNetwork(["identity", "identity"]),
}
CHOICES = [(c, k) for c in ("preactivation", "feature") for k in ("ck", "ntk")]
both_kernels = pytest.mark.parametrize("kind", ["ck", "ntk"])


def pairs_of(chi: np.ndarray, omega: np.ndarray, s: np.ndarray, tau0: float) -> np.ndarray:
    """Rows x and y with norms τ0² + χ, τ0² + ω and inner product s, (pairs, 2, 2)."""
    one, two = np.sqrt(tau0**2 + chi), np.sqrt(tau0**2 + omega)
    along = s / one
    x = np.stack([one, np.zeros_like(one)], axis=1)
    return np.stack([x, np.stack([along, np.sqrt(two**2 - along**2)], axis=1)], axis=1)


@pytest.mark.parametrize(("convention", "kind"), CHOICES)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_expansion_of_the_exact_kernel(name: str, convention: str, kind: str) -> None:
    """Pairs off the base point by ε: what the seven numbers leave over falls like ε³."""
    model, tau0 = MODELS[name], 1.0
    if isinstance(model, MonotoneEquilibrium) and (convention, kind) == CHOICES[1]:
        return  # that kernel is not defined
    e = expansion(model, tau0, kind=kind, convention=convention)
    same = nsd.kernel(model, np.array([[tau0, 0.0]]), kind=kind, convention=convention)
    assert e.scale2 == pytest.approx(float(same[0, 0]), rel=1e-11)
    assert e.diagonal >= 0.0
    directions = np.random.default_rng(0).uniform(-1.0, 1.0, size=(3, 6))
    left = []
    for epsilon in (0.04, 0.02):
        chi, omega, s = epsilon * directions
        exact = [
            float(nsd.kernel(model, x[None], y[None], kind=kind, convention=convention)[0, 0])
            for x, y in pairs_of(chi, omega, s, tau0)
        ]
        predicted = (
            e.constant
            + e.linear * s
            + e.norm_shift * (chi + omega)
            + e.norm_curvature * (chi**2 + omega**2)
            + e.norm_fluctuation * chi * omega
            + e.covariance_overlap * s**2
            + e.rescaling * s * (chi + omega)
        )
        left.append(np.abs(exact - predicted).max())
    assert left[0] < 3e-4
    assert left[1] < 1e-10 or left[0] / left[1] > 6.0


REFERENCE = {
    ("preactivation", "ck"): (
        0.113380466626, 0.552344664300, -0.010696653620, 0.003681354830,
        0.003458220385, 0.015145022971, -0.070083567004, 0.701358826471,
    ),
    ("preactivation", "ntk"): (
        0.186699787026, 0.857810825601, -0.025736038178, 0.009660936508,
        0.009302947542, 0.075291174148, -0.168613030968, 1.274587242723,
    ),
    ("feature", "ck"): (
        0.141431609297, 0.152359921728, 0.030282686463, -0.007947387631,
        0.011443748372, 0.039254475053, -0.025035106193, 0.350679413236,
    ),
    ("feature", "ntk"): (
        0.192931273865, 0.412693145888, 0.021255877866, -0.003860603791,
        0.015430430125, 0.171174263726, -0.094086315931, 0.987973034597,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("convention", "kind"), CHOICES)
def test_reference_values_of_a_ring_with_biases(convention: str, kind: str) -> None:
    found = expansion(RAW, 1.0, kind=kind, convention=convention).to_dict()
    assert list(found.values())[:8] == pytest.approx(REFERENCE[convention, kind], abs=1e-11)


@pytest.mark.parametrize("activation", ["tanh", "relu", "swish", "cos"])
def test_formulas_of_the_paper(activation: str) -> None:
    """Mixture paper, arXiv 2402.02697, the identity term corrected."""
    s, tau0 = 0.2, 1.1
    deq = DeepEquilibrium(activation, s).centred(tau0)
    tau = deq.tau_star
    m = deq.activation.moments(tau)
    q = s * m.slope**2
    a1, a4 = (1 - s) / (1 - q), (1 - s) / (1 - s * m.square_curvature / 2)
    a2 = s * m.curvature**2 * a4**2 / (4 * (1 - q))
    a3 = s * m.curvature**2 * a1**2 / (2 * (1 - q))
    found = expansion(deq, tau0, convention="preactivation")
    assert found.four == pytest.approx((a1, a2, a3, tau**2), rel=1e-11, abs=1e-14)
    b1 = a1 / (1 - q)
    b3 = (a3 + b1 * s * m.curvature**2 * a1) / (1 - q)
    kappa2 = tau**2 / (1 - s * m.slope_square)
    tangent = expansion(deq, tau0, kind="ntk", convention="preactivation")
    assert tangent.four == pytest.approx((b1, a2 / (1 - q), b3, kappa2), rel=1e-11, abs=1e-14)
    for each in (found, tangent):
        assert abs(each.constant) + abs(each.norm_shift) + abs(each.norm_curvature) < 1e-12


@pytest.mark.parametrize("activation", ["tanh", "relu", "swish", "cos"])
@both_kernels
def test_feature_and_preactivation_are_one_linear_map_apart(activation: str, kind: str) -> None:
    s, tau0 = 0.2, 1.1
    deq = DeepEquilibrium(activation, s).centred(tau0)
    full = expansion(deq, tau0, kind=kind, convention="preactivation")
    part = expansion(deq, tau0, kind=kind, convention="feature")
    assert part.linear == pytest.approx((full.linear - (1 - s)) / s, rel=1e-10, abs=1e-14)
    assert part.norm_fluctuation == pytest.approx(full.norm_fluctuation / s, rel=1e-12, abs=1e-15)
    assert part.covariance_overlap == pytest.approx(full.covariance_overlap / s, rel=1e-12)
    assert part.diagonal == pytest.approx(full.diagonal / s, rel=1e-10)


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
    whole = expansion(deq, tau0, convention="preactivation")
    assert whole.four == pytest.approx((a1, a2, a3, tau2), rel=1e-10, abs=1e-14)
    tangent = expansion(deq, tau0, kind="ntk", convention="preactivation")
    assert tangent.four == pytest.approx((b1, b2, b3, kappa2), rel=1e-10, abs=1e-14)


@both_kernels
def test_without_recurrence_the_features_are_a_layer(kind: str) -> None:
    deq = DeepEquilibrium("swish", 0.0)
    feature = expansion(deq, 1.1, kind=kind)
    layer = expansion(ExplicitNetwork(["swish"]), 1.1, kind=kind)
    assert list(feature.to_dict().values()) == pytest.approx(list(layer.to_dict().values()))


def test_linear_networks_have_nothing_but_the_gram_matrix() -> None:
    deq = DeepEquilibrium("identity", 0.2)
    for kind, linear in (("ck", 1.0), ("ntk", 1.25)):
        found = expansion(deq, 1.0, kind=kind, convention="preactivation")
        assert found.four == pytest.approx((linear, 0.0, 0.0, linear), rel=1e-12)
        assert 0.0 <= found.diagonal < 1e-12
    assert expansion(MODELS["linear"], 1.0, kind="ntk").linear == pytest.approx(3.0)


@pytest.mark.paper
def test_reference_values_on_the_sphere() -> None:
    """Sphere paper, arXiv 2308.16425, to five digits, the sign of k′(0) corrected."""
    deq = DeepEquilibrium("normalized_relu", 0.2)
    for kind, expected in (
        ("ck", (0.07091, 0.89337, 0.05688, 0.03571)),
        ("ntk", (0.07919, 1.00269, 0.19185, 0.16812)),
    ):
        e = expansion(deq, 1.0, kind=kind, convention="preactivation")
        alpha, beta, mu = e.on_sphere(1200)
        assert (
            tuple(round(x, 5) for x in (e.constant, beta, 2.0 * e.covariance_overlap, mu))
            == expected
        )
        assert alpha == pytest.approx(e.constant + e.covariance_overlap / 1200, rel=1e-14)


@pytest.mark.parametrize("name", ["relu", "tanh", "swish", "cos", "elu", "softplus"])
def test_one_layer_on_the_sphere_in_closed_form(name: str) -> None:
    d, m, network = 70, activations.named(name).moments(1.0), ExplicitNetwork([name])
    conjugate = expansion(network, 1.0).on_sphere(d)
    assert conjugate.constant == pytest.approx(m.mean**2 + m.curvature**2 / (2 * d), rel=1e-12)
    assert conjugate.linear == pytest.approx(m.slope**2, rel=1e-12, abs=1e-15)
    assert conjugate.diagonal == pytest.approx(m.square - m.mean**2 - m.slope**2, rel=1e-10)
    tangent = expansion(network, 1.0, kind="ntk").on_sphere(d)
    assert tangent.constant == pytest.approx(m.mean**2 + 3 * m.curvature**2 / (2 * d), rel=1e-12)
    expected = m.square + m.slope_square - m.mean**2 - 2 * m.slope**2
    assert tangent.diagonal == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ["centred ring", "normalised", "raw ring", "cos", "two layers"])
def test_right_angles_are_those_of_the_exact_kernel(name: str) -> None:
    model, q, h = MODELS[name], np.array([0.6, 0.9, 1.0, 1.7]), 0.02
    first = np.column_stack([np.sqrt(q), np.zeros(4)])
    for convention, kind in CHOICES:
        value, slope = at_right_angles(model, q, kind, convention)
        exact = [
            nsd.kernel(
                model, first, np.sqrt(q)[:, None] * [cosine, np.sqrt(1.0 - cosine**2)],
                kind=kind, convention=convention,
            )
            for cosine in (-2.0 * h, -h, 0.0, h, 2.0 * h)
        ]  # fmt: skip
        np.testing.assert_allclose(value, exact[2], rtol=1e-13, atol=1e-15)
        difference = (exact[0] - 8.0 * exact[1] + 8.0 * exact[3] - exact[4]) / (12.0 * h)
        np.testing.assert_allclose(slope, difference / np.sqrt(np.outer(q, q)), rtol=1e-6)


def test_shape_is_what_a_bias_and_a_tuned_ridge_leave() -> None:
    network = ExplicitNetwork([activations.leaky_relu(1.0, 0.2)])
    shifted = ExplicitNetwork([activations.piecewise_linear((0.0,), (0.6, 3.0), 0.7)])
    shapes = [expansion(model, 1.0).shape for model in (network, shifted)]
    assert shapes[0] == pytest.approx(shapes[1])


def test_json_and_text() -> None:
    found = expansion(RAW, 1.0)
    content = json.loads(json.dumps(found.to_dict()))
    assert content["diagonal"] == found.diagonal
    assert type(found).from_dict(content) == found


def test_what_has_no_expansion_says_so() -> None:
    # σa² E φ′² reaches 1 while τ* still exists: sin(3x) has E φ′² near 4.5.
    steep = DeepEquilibrium(activations.from_formula("sin(3 * x)"), 0.5)
    with pytest.raises(NotConverged, match="no stable equilibrium"):
        expansion(steep, 1.0, kind="ntk")
    with pytest.raises(InvalidInput, match="DeepEquilibrium or an ExplicitNetwork"):
        expansion("relu", 1.0)
    nothing = ExplicitNetwork([activations.polynomial((0.0, 0.0)), "tanh"])
    with pytest.raises(InvalidInput, match="constant, or"):
        expansion(nothing, 1.0)

"""Equivalents on the unit sphere: reference values, derivatives of exact kernels, distances."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep import activations
from notsodeep.equivalents import sphere_coefficients
from notsodeep.equivalents.distances import operator_norm
from notsodeep.errors import InvalidInput, NotConverged, UnknownName
from notsodeep.models import DeepEquilibrium, ExplicitNetwork

REFERENCE = DeepEquilibrium("normalized_relu", 0.2)
MODELS = {
    **{name: DeepEquilibrium(name, 0.2) for name in ("tanh", "swish", "cos", "erf", "relu", "abs")},
    "hard_tanh": DeepEquilibrium(activations.hard_tanh(0.8, 1.2), 0.2),
    "polynomial": DeepEquilibrium(activations.polynomial((0.3, 1.0, -0.2, 0.05)), 0.1),
    "elu": DeepEquilibrium("elu", 0.2),
    "centred": DeepEquilibrium("swish", 0.2).centred(1.0),
    "no recurrence": DeepEquilibrium("swish", 0.0),
    "one layer": ExplicitNetwork(["swish"]),
    "two layers": ExplicitNetwork(["relu", "tanh"]),
    "three layers": ExplicitNetwork(["gelu", activations.hard_tanh(1.0, 0.9), "cos"]),
    "polynomial layer": ExplicitNetwork([activations.polynomial((0.2, 1.0, 0.3)), "erf"]),
    "linear": ExplicitNetwork(["identity", "identity"]),
}


def function_of_t(model, t: np.ndarray, kind: str, convention: str) -> np.ndarray:
    """The exact kernel of unit vectors with inner product t."""
    X = np.array([[1.0, 0.0]])
    Y = np.stack([t, np.sqrt(np.maximum(0.0, 1.0 - t**2))], axis=1)
    function = nsd.conjugate_kernel if kind == "ck" else nsd.tangent_kernel
    return np.asarray(function(model, X, Y, convention=convention)[0])


@pytest.mark.paper
def test_reference_values_to_five_digits() -> None:
    conjugate = sphere_coefficients(REFERENCE, 1200, convention="preactivation")
    tangent = sphere_coefficients(REFERENCE, 1200, kind="ntk", convention="preactivation")
    for found, expected in (
        (conjugate, (0.07091, 0.89337, 0.05688, 0.03571)),
        (tangent, (0.07919, 1.00269, 0.19185, 0.16812)),
    ):
        numbers = (found.value, found.linear, found.curvature, found.diagonal)
        assert tuple(round(x, 5) for x in numbers) == expected
        assert found.constant == pytest.approx(found.value + found.curvature / 2400, rel=1e-14)
        assert found.diagonal == pytest.approx(found.end - found.value - found.linear, rel=1e-12)
    assert conjugate.end == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("convention", ["preactivation", "feature"])
def test_coefficients_are_derivatives_of_the_exact_kernel(
    name: str, kind: str, convention: str
) -> None:
    model = MODELS[name]
    found = sphere_coefficients(model, 50, kind=kind, convention=convention)
    h = 0.02
    g = function_of_t(model, h * np.arange(-2.0, 3.0), kind, convention)
    first = (g[0] - 8.0 * g[1] + 8.0 * g[3] - g[4]) / (12.0 * h)
    second = (-g[0] + 16.0 * g[1] - 30.0 * g[2] + 16.0 * g[3] - g[4]) / (12.0 * h * h)
    end = nsd.kernel_pair(model, np.array([[1.0, 0.0]]), convention=convention)
    assert found.value == pytest.approx(g[2], rel=1e-11, abs=1e-13)
    assert found.linear == pytest.approx(first, rel=1e-5, abs=1e-7)
    assert found.curvature == pytest.approx(second, rel=1e-4, abs=1e-5)
    assert found.end == pytest.approx(float(getattr(end, kind)[0, 0]), rel=1e-11)
    assert found.diagonal >= 0.0


@pytest.mark.parametrize("name", ["relu", "tanh", "swish", "cos", "elu", "softplus"])
def test_one_layer_in_closed_form(name: str) -> None:
    d = 70
    sigma = activations.named(name)
    m = sigma.moments(1.0)
    network = ExplicitNetwork([name])
    conjugate = sphere_coefficients(network, d, convention="preactivation")
    assert conjugate.constant == pytest.approx(m.mean**2 + m.curvature**2 / (2 * d), rel=1e-12)
    assert conjugate.linear == pytest.approx(m.slope**2, rel=1e-12, abs=1e-15)
    expected = m.square - m.mean**2 - m.slope**2
    assert conjugate.diagonal == pytest.approx(expected, rel=1e-10)
    tangent = sphere_coefficients(network, d, kind="ntk", convention="preactivation")
    assert tangent.constant == pytest.approx(m.mean**2 + 3 * m.curvature**2 / (2 * d), rel=1e-12)
    assert tangent.linear == pytest.approx(2 * m.slope**2, rel=1e-12, abs=1e-15)
    expected = m.square + m.slope_square - m.mean**2 - 2 * m.slope**2
    assert tangent.diagonal == pytest.approx(expected, rel=1e-10)


def gaps(model, n: int, d: int, kind: str, **options: str) -> float:
    options = {"convention": "preactivation"} | options
    X = nsd.data.sphere(n, d, rng=0)
    function = nsd.conjugate_kernel if kind == "ck" else nsd.tangent_kernel
    eq = nsd.sphere_equivalent(model, X, kind=kind, **options)
    return operator_norm(
        function(model, X, **{"convention": "preactivation"} | options) - eq.to_dense()
    )


@pytest.mark.paper
@pytest.mark.parametrize(("kind", "bound"), [("ck", 0.0025), ("ntk", 0.008)])
def test_gap_of_the_reference(kind: str, bound: float) -> None:
    assert 0.5 * bound < gaps(REFERENCE, 1000, 1200, kind) <= bound


@pytest.mark.parametrize("name", ["tanh", "swish", "cos", "three layers"])
@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_gap_falls(name: str, kind: str) -> None:
    dimensions = (120, 240, 480)
    found = [gaps(MODELS[name], 5 * d // 6, d, kind) for d in dimensions]
    slope = np.polyfit(np.log(dimensions), np.log(found), 1)[0]
    assert -1.2 < slope < -0.35, found


def test_gap_of_features_falls() -> None:
    found = [gaps(REFERENCE, 5 * d // 6, d, "ntk", convention="feature") for d in (120, 480)]
    assert found[1] < 0.6 * found[0]


def test_curvature_is_needed_in_the_constant() -> None:
    # ½g″(0)t² has the mean ½g″(0)/d, which adds up; with the wrong sign of it nothing falls.
    X = nsd.data.sphere(500, 600, rng=0)
    eq = nsd.sphere_equivalent(REFERENCE, X, kind="ntk", convention="preactivation")
    exact = nsd.tangent_kernel(REFERENCE, X, convention="preactivation")
    without = eq.to_dense() - eq.coefficients.curvature / 1200
    assert operator_norm(exact - without) > 5.0 * operator_norm(exact - eq.to_dense())


def test_matrix_is_the_three_terms() -> None:
    X = nsd.data.sphere(30, 40, rng=0)
    eq = nsd.sphere_equivalent(REFERENCE, X, convention="preactivation")
    c = eq.coefficients
    expected = c.constant + c.linear * X @ X.T + c.diagonal * np.eye(30)
    np.testing.assert_allclose(eq.to_dense(), expected, atol=1e-14)
    assert eq.statistics is None
    assert eq.class_counts.tolist() == [30]
    content = json.loads(json.dumps(c.to_dict()))
    assert list(content) == ["constant", "linear", "diagonal", "value", "curvature", "end"]
    assert "curvature" in str(c)


def test_bad_input_is_refused() -> None:
    X = nsd.data.sphere(10, 12, rng=0)
    with pytest.raises(InvalidInput, match=r"rows of norm one. Got row \d+ with norm 2.*Divide"):
        nsd.sphere_equivalent(REFERENCE, 2.0 * X, convention="preactivation")
    for few in (X[:1], np.ones((4, 1))):
        with pytest.raises(InvalidInput, match="at least two rows and two columns"):
            nsd.sphere_equivalent(REFERENCE, few, convention="preactivation")
    with pytest.raises(
        InvalidInput, match="dimension of sphere_coefficients must be an integer of"
    ):
        sphere_coefficients(REFERENCE, 1, convention="preactivation")
    with pytest.raises(UnknownName, match="'conjugate'"):
        nsd.sphere_equivalent(REFERENCE, X, kind="conjugated", convention="preactivation")
    with pytest.raises(UnknownName, match="'feature'"):
        nsd.sphere_equivalent(REFERENCE, X, convention="features")
    with pytest.raises(InvalidInput, match="DeepEquilibrium or an ExplicitNetwork"):
        nsd.sphere_equivalent("relu", X, convention="preactivation")
    wild = DeepEquilibrium(activations.from_formula("sin(3 * x)"), 0.5)
    with pytest.raises(NotConverged, match=r"tangent kernel .* is infinite"):
        nsd.sphere_equivalent(wild, X, kind="ntk", convention="preactivation")
    nothing = ExplicitNetwork([activations.polynomial((0.0, 0.0)), "tanh"])
    with pytest.raises(InvalidInput, match="vanishes on the unit sphere"):
        nsd.sphere_equivalent(nothing, X, convention="preactivation")

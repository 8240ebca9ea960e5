"""Equivalents on the unit sphere: reference values, derivatives of exact kernels, distances."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep import activations
from notsodeep.equivalents.distances import operator_norm
from notsodeep.errors import InvalidInput, UnknownName
from notsodeep.models import DeepEquilibrium, ExplicitNetwork

REFERENCE = DeepEquilibrium("normalized_relu", 0.2)
MODELS = {
    **{name: DeepEquilibrium(name, 0.2) for name in ("tanh", "swish", "cos")},
    "three layers": ExplicitNetwork(["gelu", activations.hard_tanh(1.0, 0.9), "cos"]),
}


def gaps(model, n: int, d: int, kind: str, convention: str = "preactivation") -> float:
    options = {"convention": convention}
    X = nsd.data.sphere(n, d, rng=0)
    eq = nsd.sphere_equivalent(model, X, kind=kind, **options)
    return operator_norm(nsd.kernel(model, X, kind=kind, **options) - eq.to_dense())


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
    eq = nsd.sphere_equivalent(REFERENCE, X, kind="ntk")
    exact = nsd.kernel(REFERENCE, X, kind="ntk", convention="feature")
    without = eq.to_dense() - 2.0 * eq.expansion.covariance_overlap / 600
    assert operator_norm(exact - without) > 5.0 * operator_norm(exact - eq.to_dense())


def test_matrix_is_the_three_terms() -> None:
    X = nsd.data.sphere(30, 40, rng=0)
    eq = nsd.sphere_equivalent(REFERENCE, X)
    alpha, beta, mu = eq.expansion.on_sphere(40)
    expected = alpha + beta * X @ X.T + mu * np.eye(30)
    np.testing.assert_allclose(eq.to_dense(), expected, atol=1e-14)
    assert eq.statistics is None
    assert eq.class_counts.tolist() == [30]


def test_bad_input_is_refused() -> None:
    X = nsd.data.sphere(10, 12, rng=0)
    with pytest.raises(InvalidInput, match=r"rows of norm one. Got row \d+ with norm 2.*Divide"):
        nsd.sphere_equivalent(REFERENCE, 2.0 * X, convention="preactivation")
    for few in (X[:1], np.ones((4, 1))):
        with pytest.raises(InvalidInput, match="at least two rows and two columns"):
            nsd.sphere_equivalent(REFERENCE, few)
    with pytest.raises(UnknownName, match="Known: ck, ntk"):
        nsd.sphere_equivalent(REFERENCE, X, kind="conjugated", convention="preactivation")
    with pytest.raises(UnknownName, match="'feature'"):
        nsd.sphere_equivalent(REFERENCE, X, convention="features")
    with pytest.raises(InvalidInput, match="DeepEquilibrium or an ExplicitNetwork"):
        nsd.sphere_equivalent("relu", X)

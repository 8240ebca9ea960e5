"""f(G) = E[φ(u)φ(v)] and its derivatives, against differences, closed forms and quadrature."""

from __future__ import annotations

import numpy as np
import pytest

from cases import CONTRACT, identifier
from notsodeep import activations
from notsodeep.activations import Activation, pair_expectations
from notsodeep.equivalents.dual_derivatives import dual_derivatives
from notsodeep.errors import QuadratureError

COVARIANCES = (-0.5, -0.1, 0.0, 0.2, 0.6)


@pytest.mark.parametrize("activation", CONTRACT, ids=identifier)
@pytest.mark.parametrize("variance", [0.6, 1.7])
def test_derivatives_are_those_of_the_pair_expectation(
    activation: Activation, variance: float
) -> None:
    for rho in COVARIANCES:
        G = rho * variance
        f = dual_derivatives(activation, variance, G)
        h = 2e-3 * variance
        points = pair_expectations(activation, variance, variance, G + h * np.arange(-2, 3))
        scale = max(1.0, float(np.abs(points.derivative).max()))
        assert f.value == pytest.approx(float(points.value[2]), abs=1e-13)
        assert f.first == pytest.approx(float(points.derivative[2]), abs=1e-12 * scale)
        # Fourth-order differences of the first derivative.
        d = points.derivative
        second = (d[0] - 8.0 * d[1] + 8.0 * d[3] - d[4]) / (12.0 * h)
        third = (-d[0] + 16.0 * d[1] - 30.0 * d[2] + 16.0 * d[3] - d[4]) / (12.0 * h * h)
        assert f.second == pytest.approx(float(second), rel=1e-6, abs=1e-8 * scale / variance)
        assert f.third == pytest.approx(float(third), rel=1e-4, abs=1e-6 * scale / variance**2)


@pytest.mark.parametrize("G", [-0.7, 0.0, 0.3, 0.95])
def test_relu_in_closed_form(G: float) -> None:
    # f′ = (π − arccos G)/2π, f″ = 1/(2π√(1 − G²)), f‴ = G/(2π(1 − G²)^{3/2}).
    f = dual_derivatives(activations.named("relu"), 1.0, G)
    root = np.sqrt(1.0 - G * G)
    assert f.first == pytest.approx((np.pi - np.arccos(G)) / (2 * np.pi), rel=1e-13)
    assert f.second == pytest.approx(1.0 / (2 * np.pi * root), rel=1e-13)
    assert f.third == pytest.approx(G / (2 * np.pi * root**3), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("G", [-0.7, 0.0, 0.3, 0.95])
def test_erf_in_closed_form(G: float) -> None:
    # φ = erf at variance q: f = (2/π) arcsin(2G/(1 + 2q)).
    q = 1.3
    u = 2.0 / (1.0 + 2.0 * q)
    root = np.sqrt(1.0 - (u * G) ** 2)
    f = dual_derivatives(activations.named("erf"), q, G)
    assert f.value == pytest.approx(2 / np.pi * np.arcsin(u * G), rel=1e-12, abs=1e-15)
    assert f.first == pytest.approx(2 / np.pi * u / root, rel=1e-12)
    assert f.second == pytest.approx(2 / np.pi * u**3 * G / root**3, rel=1e-11, abs=1e-14)
    assert f.third == pytest.approx(2 / np.pi * u**3 * (1 + 2 * (u * G) ** 2) / root**5, rel=1e-11)


def test_polynomials_exactly() -> None:
    # φ = h₃ at scale 1: f = G³.
    f = dual_derivatives(activations.hermite((0.0, 0.0, 0.0, 1.0)), 1.0, 0.4)
    assert f == pytest.approx((0.064, 0.48, 2.4, 6.0), rel=1e-12)


def test_a_constant_changes_the_value_alone() -> None:
    swish = activations.named("swish")
    plain = dual_derivatives(swish, 0.8, 0.3)
    centred = dual_derivatives(activations.centre(swish, np.sqrt(0.8)), 0.8, 0.3)
    assert centred.value < plain.value - 0.01
    assert centred[1:] == pytest.approx(plain[1:], rel=1e-12)


def test_straight_lines_have_no_curvature() -> None:
    f = dual_derivatives(activations.named("identity"), 2.0, 0.5)
    assert f == pytest.approx((0.5, 1.0, 0.0, 0.0))


def test_nearly_parallel_pairs_of_a_kinked_function_are_refused() -> None:
    kinked = activations.from_formula("x / (1 + abs(x))", kinks=(0.0,))
    with pytest.raises(QuadratureError, match=r"more than 256 terms at correlation 0\.999"):
        dual_derivatives(kinked, 1.0, 0.999)

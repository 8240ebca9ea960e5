"""What holds for every activation, whatever it is made from."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import CONTRACT, REFERENCE, identifier
from notsodeep import activations
from notsodeep.activations import Activation, with_skip
from notsodeep.activations.custom import rough_points
from notsodeep.activations.pairs import quadrature_pairs, series_pairs
from notsodeep.numerics.quadrature import hermite_expansion

EVERY = [*CONTRACT, with_skip("tanh", -2.0)]
every = pytest.mark.parametrize("activation", EVERY, ids=identifier)


@every
def test_derivative_is_the_derivative(activation: Activation) -> None:
    x = np.linspace(-5.0, 5.0, 401) + 0.00123
    x = x[[min((abs(v - k) for k in activation.kinks), default=1.0) > 1e-3 for v in x]]
    step = 1e-4
    differences = (activation(x + step) - activation(x - step)) / (2 * step)
    np.testing.assert_allclose(activation.derivative(x), differences, atol=1e-6, rtol=1e-6)


@every
def test_value_keeps_shape_and_dtype(activation: Activation) -> None:
    for shape in ((), (3,), (2, 3)):
        result = activation(np.full(shape, 0.3))
        assert np.shape(result) == shape
        assert np.asarray(result).dtype == np.float64


@every
def test_facts_are_true(activation: Activation) -> None:
    x = np.linspace(0.01, 9.0, 997)
    if activation.parity == "odd":
        np.testing.assert_allclose(activation(-x), -activation(x), atol=1e-13)
    elif activation.parity == "even":
        np.testing.assert_allclose(activation(-x), activation(x), atol=1e-13)
    else:
        assert not np.allclose(np.abs(activation(-x)), np.abs(activation(x)))
    scaled = np.allclose(activation(3.0 * x), 3.0 * activation(x), rtol=1e-12)
    assert activation.homogeneous == (
        scaled and np.allclose(activation(-3 * x), 3 * activation(-x))
    )
    slopes = np.abs(activation.derivative(np.concatenate([-x, x])))
    if np.isfinite(activation.lipschitz):
        assert slopes.max() <= activation.lipschitz * (1 + 1e-12)
        beside = [k + s for k in activation.kinks for s in (-1e-7, 1e-7)]
        fine = np.concatenate([np.linspace(-9.0, 9.0, 20001) + 1e-7, beside, [-60.0, 60.0]])
        assert np.abs(activation.derivative(fine)).max() >= activation.lipschitz * (1 - 1e-5)
    else:
        assert slopes.max() > 10.0


@every
def test_smooth_between_the_declared_kinks(activation: Activation) -> None:
    assert rough_points(activation.value, activation.kinks) == []


@every
def test_json_round_trip(activation: Activation) -> None:
    stored = json.loads(json.dumps(activation.to_dict()))
    assert activations.from_dict(stored) == activation
    assert hash(activations.from_dict(stored)) == hash(activation)


@every
def test_weak_derivatives_agree_with_integration_by_parts(activation: Activation) -> None:
    tau = 0.7
    coefficients = activation.hermite_coefficients(tau, 3)[0]
    moments = activation.moments(tau)
    assert moments.mean == pytest.approx(coefficients[0], abs=1e-13)
    assert moments.slope == pytest.approx(coefficients[1] / tau, abs=1e-13)
    assert moments.curvature == pytest.approx(np.sqrt(2) * coefficients[2] / tau**2, abs=1e-12)


@every
def test_square_curvature_is_twice_the_slope_of_the_variance_map(activation: Activation) -> None:
    q, step = 0.8, 1e-5
    up, down = (activation.moments(np.sqrt(q + s)).square for s in (step, -step))
    half = 0.5 * activation.moments(np.sqrt(q)).square_curvature
    assert (up - down) / (2 * step) == pytest.approx(half, rel=1e-7, abs=1e-8)


@every
def test_vector_of_scales_equals_one_by_one(activation: Activation) -> None:
    scales = np.array([[0.05, 0.4], [1.0, 7.5]])
    together = activation.moments(scales)
    assert together.square.shape == (2, 2)
    for i, tau in np.ndenumerate(scales):
        alone = activation.moments(float(tau))
        for name in ("mean", "slope", "curvature", "square", "slope_square", "square_curvature"):
            expected = getattr(alone, name)
            assert getattr(together, name)[i] == pytest.approx(expected, rel=1e-12, abs=1e-14)


@every
def test_closed_coefficients_equal_quadrature(activation: Activation) -> None:
    scales = np.array([0.3, 1.0, 4.0])
    mine = activation.hermite_coefficients(scales, 40)
    plain = hermite_expansion(activation.value, scales, 40, activation.kinks)[0]
    size = np.sqrt(activation.moments(scales).square)[:, None]
    np.testing.assert_allclose(mine / size, plain / size, atol=1e-13)


@every
def test_parseval(activation: Activation) -> None:
    coefficients = activation.hermite_coefficients(1.0, 200)[0]
    square = activation.moments(1.0).square
    captured = (coefficients**2).sum()
    assert captured <= square * (1 + 1e-13)
    assert captured >= square * (1 - (2e-3 if activation.kinks else 1e-6))


@every
def test_derivative_kernel_is_the_slope_in_the_covariance(activation: Activation) -> None:
    var1, var2, step = 0.7, 1.9, 1e-4
    cov = np.sqrt(var1 * var2) * np.array([-0.9, -0.5, 0.0, 0.3, 0.8])
    pairs = [activations.pair_expectations(activation, var1, var2, cov + s) for s in (-step, step)]
    slope = (pairs[1].value - pairs[0].value) / (2 * step)
    derivative = activations.pair_expectations(activation, var1, var2, cov).derivative
    np.testing.assert_allclose(derivative, slope, rtol=2e-6, atol=2e-7)


@every
def test_routes_agree(activation: Activation) -> None:
    var1, var2 = 0.6, 2.5
    rho = np.array([-1.0, -0.97, -0.4, 0.0, 0.2, 0.7, 0.9, 0.999, 1.0])
    best = activations.pair_expectations(activation, var1, var2, rho * np.sqrt(var1 * var2))
    scales = np.full((2, rho.size), np.sqrt([[var1], [var2]]))
    quadrature = quadrature_pairs(activation, *scales, rho, 1.0 - np.abs(rho))
    np.testing.assert_allclose(best.value, quadrature.value, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(best.derivative, quadrature.derivative, rtol=1e-11, atol=1e-12)
    series, done = series_pairs(activation, *scales, rho)
    assert done[np.abs(rho) < 0.8].all()
    np.testing.assert_allclose(series.value[done], best.value[done], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(
        series.derivative[done], best.derivative[done], rtol=1e-11, atol=1e-12
    )


@every
def test_monte_carlo_agrees_within_five_standard_errors(activation: Activation) -> None:
    rng = np.random.default_rng(20240601)
    draws = 100_000
    var1, var2, rho = 0.8, 1.7, 0.6
    xi, eta = rng.standard_normal((2, draws))
    u, v = np.sqrt(var1) * xi, np.sqrt(var2) * (rho * xi + np.sqrt(1 - rho**2) * eta)
    pair = activations.pair_expectations(activation, var1, var2, rho * np.sqrt(var1 * var2))
    moments = activation.moments(np.sqrt(var1))
    phi, slope = activation(u), activation.derivative(u)
    for sample, expected in (
        (phi * activation(v), float(pair.value)),
        (slope * activation.derivative(v), float(pair.derivative)),
        (phi, moments.mean),
        (slope, moments.slope),
        (phi**2, moments.square),
        (slope**2, moments.slope_square),
        ((xi**2 - 1) * phi / var1, moments.curvature),
        ((xi**2 - 1) * phi**2 / var1, moments.square_curvature),
    ):
        error = sample.std() / np.sqrt(draws)
        assert abs(sample.mean() - expected) <= 5 * error + 1e-12


@given(
    index=st.integers(0, len(REFERENCE) - 1),
    log_scales=st.tuples(st.floats(-2, 1), st.floats(-2, 1)),
    rho=st.floats(-1, 1),
)
def test_cauchy_schwarz(index: int, log_scales: tuple[float, float], rho: float) -> None:
    activation = REFERENCE[index]
    s1, s2 = (10.0**e for e in log_scales)
    pair = activations.pair_expectations(activation, s1**2, s2**2, rho * s1 * s2)
    one, two = activation.moments(s1), activation.moments(s2)
    assert abs(pair.value) <= np.sqrt(one.square * two.square) * (1 + 1e-10) + 1e-14
    bound = np.sqrt(one.slope_square * two.slope_square)
    assert abs(pair.derivative) <= bound * (1 + 1e-10) + 1e-14


@every
def test_zero_variance_is_the_value_at_zero(activation: Activation) -> None:
    pair = activations.pair_expectations(activation, 0.0, 1.0, 0.0)
    at_zero = float(activation(0.0))
    assert pair.value == pytest.approx(at_zero * activation.moments(1.0).mean, abs=1e-13)


def test_pairs_broadcast() -> None:
    tanh = activations.named("tanh")
    pair = activations.pair_expectations(tanh, [[25.0], [36.0]], 25.0, [0.1, 25.0])
    assert pair.value.shape == pair.derivative.shape == (2, 2)


def test_large_scales_go_through_quadrature_and_are_right() -> None:
    # At scale 1000 tanh is a sign function to 1e-3; the series cannot reach it near |ρ| = 1.
    tanh = activations.named("tanh")
    pair = activations.pair_expectations(tanh, 1e6, 1e6, 0.9e6)
    assert pair.value == pytest.approx(2 / np.pi * np.arcsin(0.9), abs=2e-3)
    sharper = activations.pair_expectations(tanh, 1e8, 1e8, 0.9e8)
    assert sharper.value == pytest.approx(2 / np.pi * np.arcsin(0.9), abs=2e-4)


@pytest.mark.parametrize("name", ["relu", "hard_tanh", "abs"])
def test_long_series_are_exact_too(name: str) -> None:
    # The kernels use up to 384 terms: the quadrature must follow their oscillation.
    activation = activations.named(name)
    scales = np.array([0.05, 1.0, 20.0])
    plain = hermite_expansion(activation.value, scales, 384, activation.kinks)[0]
    size = np.sqrt(activation.moments(scales).square)[:, None]
    closed = activation.hermite_coefficients(scales, 384)
    np.testing.assert_allclose(closed / size, plain / size, atol=3e-14)

"""Tables over scales agree with what they stand for, or step aside."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep import activations
from notsodeep.numerics.chebyshev import at_many_scales, interpolant
from notsodeep.numerics.quadrature import hermite_expansion


@pytest.mark.parametrize(
    "activation",
    [
        activations.named("tanh"),
        activations.named("softplus"),
        activations.elu(1.5),
        activations.from_formula("tanh(x) + 0.2 * abs(x - 1)", kinks=(1.0,)),
        activations.from_formula("cos(2 * x) * exp(-x**2)"),
    ],
    ids=str,
)
def test_many_scales_equal_few(activation: activations.Activation) -> None:
    rng = np.random.default_rng(0)
    scales = np.exp(rng.uniform(np.log(0.03), np.log(30.0), 600))
    many = activation.hermite_coefficients(scales, 64)
    few = hermite_expansion(activation.value, scales[:40], 64, activation.kinks)[0]
    size = np.sqrt(activation.moments(scales[:40]).square)[:, None]
    np.testing.assert_allclose(many[:40] / size, few / size, atol=5e-13)


def test_zero_rows_do_not_spoil_the_table() -> None:
    scales = np.concatenate([[1e-30, 1e-12], np.linspace(0.5, 2.0, 300)])
    coefficients = activations.named("tanh").hermite_coefficients(scales, 8)
    np.testing.assert_allclose(coefficients[:2, 1], [1e-30, 1e-12], rtol=1e-12)
    assert np.isfinite(coefficients).all()


def test_a_function_that_is_not_smooth_in_the_scale_is_not_tabulated() -> None:
    def jagged(scales: np.ndarray) -> np.ndarray:
        return np.abs(np.sin(40.0 * scales))[:, None]

    scales = np.linspace(0.5, 2.0, 1000)
    np.testing.assert_array_equal(at_many_scales(jagged, scales), jagged(scales))


def test_smooth_functions_are_tabulated() -> None:
    calls = []

    def smooth(scales: np.ndarray) -> np.ndarray:
        calls.append(len(scales))
        return np.stack([np.sqrt(scales), 1.0 / (1.0 + scales)], axis=1)

    table = interpolant(smooth, 0.5, 2.0, 10_000)
    scales = np.linspace(0.5, 2.0, 10_000)
    np.testing.assert_allclose(table(scales), smooth(scales), rtol=1e-13)
    assert sum(calls[:-1]) < 200

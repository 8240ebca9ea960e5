"""Pair integrals of analytic functions by the trapezoidal rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from notsodeep.activations import named
from notsodeep.numerics import pair_quadrature as panels
from notsodeep.numerics.pair_quadrature import smooth_pair

PAIRS = [
    (126.0, 125.0, 1e-2),
    (120.0, 126.0, 0.4),
    (0.1, 0.1, 0.1),
    (30.0, 1.0, 0.3),
    (0.5, 126.0, 0.05),
    (1000.0, 1000.0, 4e-4),
    (2.0, 2.0, 1e-9),
]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("scale1", "scale2", "root"), PAIRS)
@pytest.mark.parametrize("name", ["tanh", "swish"])
def test_agrees_with_panels(
    name: str, scale1: float, scale2: float, root: float, sign: float
) -> None:
    activation = named(name)

    def function(x: np.ndarray) -> np.ndarray:
        return np.stack([activation.value(x), activation.derivative(x)])

    rho = sign * math.sqrt(1.0 - root**2)
    value = smooth_pair(function, scale1, scale2, rho, root)
    assert value is not None
    pair = panels._Pair(scale1, scale2, rho, root)
    expected = panels._PairIntegral(function, function, np.multiply, pair, (), name).value()
    size = np.sqrt(activation.moments([scale1]).square * activation.moments([scale2]).square)
    assert abs(value[0] - expected[0]) <= 2e-14 * size[0]
    assert value[1] == pytest.approx(expected[1], rel=1e-12, abs=1e-15)


def test_cosine_in_closed_form() -> None:
    """Also where one of the two is much wider, and steps of the other would alias with it."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        scale1, scale2 = 10.0 ** rng.uniform(-2.0, 1.5, 2)
        root = 10.0 ** rng.uniform(-7.0, -0.3)
        rho = math.sqrt(1.0 - root**2)
        value = smooth_pair(lambda x: np.cos(x)[None], scale1, scale2, rho, root)
        assert value is not None
        across = scale1 * scale2 * root**2 / (1.0 + rho)
        near = math.exp(-0.5 * (scale1 - scale2) ** 2 - across)
        far = math.exp(-0.5 * (scale1 + scale2) ** 2 + across)
        size = 0.5 * math.sqrt(
            (1.0 + math.exp(-2.0 * scale1**2)) * (1.0 + math.exp(-2.0 * scale2**2))
        )
        assert abs(value[0] - 0.5 * (near + far)) <= 1e-12 * size


@pytest.mark.parametrize(
    "function", [lambda x: np.maximum(x - 0.3, 0.0)[None], lambda x: np.sin(1e4 * x)[None]]
)
def test_a_kink_or_a_fast_function_is_left_to_panels(function: object) -> None:
    assert callable(function)
    assert smooth_pair(function, 1.0, 1.0, 0.8, 0.6) is None


def test_values_that_overflow_are_left_to_panels() -> None:
    assert smooth_pair(lambda x: np.exp(x**2)[None], 40.0, 40.0, 0.8, 0.6) is None

"""Digits where they are easily lost: near copies, opposites, proportional and faint samples."""

from __future__ import annotations

import logging

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import notsodeep as nsd
from notsodeep.activations import pair_expectations
from notsodeep.kernels.plan import Plan
from notsodeep.kernels.ring import ring_of

CELLS = {
    "hard tanh": [("hard_tanh", 0.4, 0.6, 0.0)],
    "tanh, relu": [("tanh", 0.5, 0.6, 0.1), ("relu", 0.8, 0.3, 0.05)],
    "relu": [("relu", 0.2, 0.8, 0.0)],
}


def models(name: str, p: int) -> tuple[nsd.DeepEquilibrium, nsd.ConvolutionalEquilibrium]:
    """The same cell for rows, and for images of one pixel."""
    layers = CELLS[name]
    return (
        nsd.DeepEquilibrium(cell=[nsd.Dense(*layer) for layer in layers]),
        nsd.ConvolutionalEquilibrium(
            [nsd.Convolution(*layer, size=1) for layer in layers], (1, 1, p)
        ),
    )


@pytest.mark.filterwarnings("ignore::notsodeep.errors.TheoryDoubtful")
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("images", [False, True], ids=["rows", "images"])
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["copies", "opposites"])
def test_the_tangent_kernel_of_near_copies_falls_with_their_distance(
    name: str, images: bool, sign: float
) -> None:
    """1 − NTK/diagonal is proportional to the distance for a kink, however small it is."""
    x, y = np.random.default_rng(0).normal(size=(2, 8)) / 8**0.5
    model = models(name, 8)[images]
    if sign < 0.0 and name != "hard tanh":
        pytest.skip("opposite rows of a φ that is not odd are no copies")
    losses = []
    for epsilon in (1e-6, 1e-7, 1e-8, 1e-9):
        K = nsd.kernel(model, np.stack([x, sign * (x + epsilon * y)]), kind="ntk")
        losses.append((1.0 - sign * K[0, 1] / np.sqrt(K[0, 0] * K[1, 1])) / epsilon)
    np.testing.assert_allclose(losses, losses[0], rtol=1e-4)


@pytest.mark.parametrize("sigma_a2", [1e-12, 1e-10, 1e-8, 1e-7, 1e-4])
def test_opposite_rows_of_an_even_activation(sigma_a2: float) -> None:
    """There the features agree where the inputs are opposite: ρ is not −1."""
    x = np.array([0.3, 0.4, 0.5, 0.2])
    square = float(x @ x)
    found = nsd.kernel(nsd.DeepEquilibrium("abs", sigma_a2), np.stack([x, -x]), kind="both")
    with mp.workdps(40):
        s = mp.mpf(sigma_a2)

        def value(rest: mp.mpf) -> mp.mpf:  # E|u||v| at ρ = rest − 1, unit variances
            rho = rest - 1
            return 2 / mp.pi * (mp.sqrt(1 - rho**2) + rho * mp.asin(rho))

        # q = s q + (1 − s)‖x‖², so that q = ‖x‖² and ρ = s·value − (1 − s).
        rest = s
        for _ in range(200):
            rest = s * value(rest) + s
        slope = 2 / mp.pi * mp.asin(rest - 1)
        conjugate = value(rest) * square
        tangent = conjugate + (rest - 1) * square * slope / (1 - s * slope)
        assert found.ck[0, 1] == pytest.approx(float(conjugate), rel=1e-14)
        assert found.ntk[0, 1] == pytest.approx(float(tangent), rel=1e-12)


def test_smooth_layers_carry_what_is_left_of_one() -> None:
    """Closed forms are given 1 − ρ of their own layer, not that of the inputs."""
    X = np.array([[1.0, 0.0], [1.0, 1e-4]])
    q = 1.0
    with mp.workdps(30):
        step = mp.mpf(1) / 5
        nodes = [k * step for k in range(-50, 51)]
        weights = [mp.exp(-t * t / 2) * step / mp.sqrt(2 * mp.pi) for t in nodes]
        rows = [[mp.mpf(float(v)) for v in row] for row in X]
        norms = [mp.sqrt(sum(v * v for v in row)) for row in rows]
        rho = sum(a * b for a, b in zip(*rows, strict=True)) / norms[0] / norms[1]
        root = mp.sqrt(1 - rho**2)
        covariance = mp.fsum(
            a * b * mp.tanh(norms[0] * x) * mp.tanh(norms[1] * (rho * x + root * y))
            for a, x in zip(weights, nodes, strict=True)
            for b, y in zip(weights, nodes, strict=True)
            if a * b > 1e-22
        )
        q = [
            mp.fsum(a * mp.tanh(n * x) ** 2 for a, x in zip(weights, nodes, strict=True))
            for n in norms
        ]
        expected = float(mp.exp(-(q[0] + q[1]) / 2) * mp.cosh(covariance))
    K = nsd.kernel(nsd.ExplicitNetwork(["tanh", "cos"]), X)
    assert K[0, 1] == pytest.approx(expected, rel=1e-14)


def test_proportional_images() -> None:
    """An image and three times the image: every pixel pair has ρ = 1, and so has the diagonal."""
    for weight in (0.2, 0.5, 0.78):
        layer = nsd.Convolution("abs", weight=weight, inject=0.3, size=1)
        model = nsd.ConvolutionalEquilibrium([layer], (2, 2, 1))
        X = np.abs(np.random.default_rng(0).normal(size=(2, 4)))
        X[1] = 3.0 * X[0]
        K = nsd.kernel(model, X, kind="ntk")
        assert K[0, 1] == pytest.approx(3.0 * K[0, 0], rel=2e-15)


@pytest.mark.parametrize("factor", [1e-3, 1e-9, 1e-16, 1e-20, 0.0])
def test_faint_images_keep_their_digits(factor: float) -> None:
    model = nsd.ConvolutionalEquilibrium([nsd.Convolution("relu", 0.3, 0.7)], (4, 4, 1))
    X = np.random.default_rng(0).normal(size=(2, 16))
    expected = factor * nsd.kernel(model, X)[0, 1]
    K = nsd.kernel(model, np.stack([X[0], factor * X[1]]))
    assert K[0, 1] == pytest.approx(expected, rel=1e-13, abs=1e-29)
    assert abs(K[0, 1]) <= np.sqrt(K[0, 0] * K[1, 1]) + 1e-29


def test_a_slow_kernel_of_few_images_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    """Pairs that are done one by one take seconds each: a hundred small images take hours."""
    layer = nsd.Convolution("elu", weight=0.065, inject=0.3, size=1)
    model = nsd.ConvolutionalEquilibrium([layer], (5, 5, 1), 2)
    X = 2.67 * np.random.default_rng(0).normal(size=(3000, 25))
    with caplog.at_level(logging.WARNING, logger="notsodeep.kernels"):
        nsd.KernelOperator(model, X)
    assert "will take about" in caplog.text


layers = st.lists(
    st.tuples(
        st.sampled_from(["relu", "tanh", "hard_tanh", "erf", "leaky_relu"]),
        st.floats(0.05, 0.8),
        st.floats(0.1, 1.0),
        st.sampled_from([0.0, 0.1]),
    ),
    min_size=1,
    max_size=3,
)


@given(layers, st.integers(0, 10**6), st.sampled_from([1e-1, 1e-4, 1e-8]))
@settings(max_examples=25, deadline=None)
def test_kernels_solve_their_equation(cell: list[tuple], seed: int, near: float) -> None:
    """The residual of G = w E[φφ] + u x·y + b around the ring is below 1e-12."""
    model = nsd.DeepEquilibrium(cell=[nsd.Dense(*layer) for layer in cell])
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(6, 4)) * 10.0 ** rng.uniform(-1.0, 0.5, size=(6, 1))
    X[1], X[2] = X[0] + near * X[3], -X[0] + near * X[4]
    plan = Plan(ring_of(model, "feature"), X, None, (0,))
    state = nsd.kernel(model, X)
    squares, value = plan.states.layers, state
    for layer, at in zip(model.cell, squares, strict=True):
        full = layer.weight * value + layer.inject * (X @ X.T) + layer.bias
        variance = at.spread**2
        bound = np.sqrt(np.outer(variance, variance))
        full = np.clip(full, -bound, bound)
        value = pair_expectations(layer.activation, variance[:, None], variance, full).value
    size = np.sqrt(np.outer(np.diag(state), np.diag(state)))
    off = ~np.eye(6, dtype=bool)
    assert (np.abs(value - state) / size)[off].max() < 1e-12

"""The parts of the layer-peeled solver: loss, derivatives, reduction, Newton's method."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp
from scipy.special import log_softmax, softmax

from notsodeep.collapse.certificate import log_loss, logit_loss
from notsodeep.collapse.sphere_newton import minimise_on_sphere
from notsodeep.collapse.symmetric_problem import SymmetricProblem


def directional(function, x: np.ndarray, v: np.ndarray, step: float = 1e-5):
    """Fourth-order central difference."""
    f = [np.asarray(function(x + s * step * v)) for s in (-2, -1, 1, 2)]
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)


def test_loss_is_the_mean_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    L, w = rng.normal(size=(5, 5)), rng.dirichlet(np.ones(5))
    value, gradient = logit_loss(L, w)
    f = -w @ np.diag(log_softmax(L, axis=1))
    assert value == pytest.approx(np.log(f), rel=1e-13)
    expected = (softmax(L, axis=1) - np.eye(5)) * w[:, None] / f
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0, 300.0, 5000.0])
def test_loss_keeps_its_digits_when_it_underflows(scale: float) -> None:
    L = scale * (np.eye(3) - 0.4) + np.arange(9).reshape(3, 3) / 7
    w = np.array([0.5, 0.3, 0.2])
    mp.dps = 40
    f = mp.mpf(0)
    for k in range(3):
        wrong = sum(mp.exp(mp.mpf(L[k, j]) - mp.mpf(L[k, k])) for j in range(3) if j != k)
        f += mp.mpf(w[k]) * mp.log1p(wrong)
    value, gradient = logit_loss(L, w)
    assert value == pytest.approx(float(mp.log(f)), rel=1e-13)
    assert np.isfinite(gradient).all()
    slope = mp.mpf(w[0]) * mp.exp(mp.mpf(L[0, 1]) - mp.mpf(L[0, 0])) / f
    slope /= 1 + sum(mp.exp(mp.mpf(L[0, j]) - mp.mpf(L[0, 0])) for j in (1, 2))
    assert gradient[0, 1] == pytest.approx(float(slope), rel=1e-11)


def test_wrong_logits_far_above_the_own_one() -> None:
    """Losses of 1e4, where exp would overflow."""
    L = -1e4 * np.eye(3)
    value, _ = logit_loss(L, np.full(3, 1 / 3))
    assert value == pytest.approx(np.log(1e4 + np.log(2)), rel=1e-12)


def test_second_derivative_of_the_loss() -> None:
    rng = np.random.default_rng(1)
    T, v, shares = rng.normal(size=(3, 4, 4))[0], rng.normal(size=(4, 4)), np.full(4, 0.25)

    def slopes(exponents: np.ndarray) -> np.ndarray:
        return log_loss(exponents, np.log(shares)).slopes

    bend = log_loss(T, np.log(shares)).change_of_slopes(v)
    np.testing.assert_allclose(bend, directional(slopes, T, v), rtol=1e-8, atol=1e-12)


def problem(scales: str = "sample") -> SymmetricProblem:
    sizes = np.array([3, 1, 2])
    shares = np.array([0.2, 0.3, 0.05])
    D = np.sqrt(6 * shares) if scales == "sample" else np.ones(3)
    return SymmetricProblem(sizes, shares, D, 1.3)


def test_reduced_loss_is_the_loss_of_the_full_logits() -> None:
    reduced = problem()
    y = np.random.default_rng(2).normal(size=3 + 18)
    group = np.repeat(np.arange(3), reduced.sizes)
    shares = np.array([0.2, 0.3, 0.05])[group]
    L = reduced.logit_matrix(y) / reduced.scales[group][:, None]
    assert reduced.model(y).value == pytest.approx(logit_loss(L, shares)[0], rel=1e-12)


def test_half_the_square_of_the_norm_bounds_the_nuclear_norm() -> None:
    reduced = problem()
    y = np.random.default_rng(3).normal(size=21)
    y[1] = 0.0  # a single class has no differences
    assert np.linalg.norm(reduced.logit_matrix(y), "nuc") <= 0.5 * y @ y
    start = reduced.start()
    assert 0.5 * start @ start == pytest.approx(6 * 1.3)
    assert np.linalg.norm(reduced.logit_matrix(start), "nuc") == pytest.approx(6 * 1.3)


@pytest.mark.parametrize("scales", ["class", "sample"])
def test_derivatives_in_the_factors(scales: str) -> None:
    reduced = problem(scales)
    rng = np.random.default_rng(4)
    y, v = rng.normal(size=(2, 21))
    here = reduced.model(y)
    value = directional(lambda x: reduced.model(x).value, y, v)
    assert here.gradient @ v == pytest.approx(float(value), rel=1e-8)
    bend = directional(lambda x: reduced.model(x).gradient, y, v)
    np.testing.assert_allclose(here.curvature(v), bend, rtol=1e-7, atol=1e-9)


class Quadratic:
    """½ yᵀ A y on the sphere: its minimum is the smallest eigenvector."""

    def __init__(self, A: np.ndarray, y: np.ndarray) -> None:
        self.A = A
        self.value = float(0.5 * y @ A @ y)
        self.gradient = A @ y

    def curvature(self, direction: np.ndarray) -> np.ndarray:
        return self.A @ direction


def test_newton_on_the_sphere_finds_the_smallest_eigenvector() -> None:
    rng = np.random.default_rng(6)
    Q = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    A = (Q * np.linspace(-3.0, 5.0, 30)) @ Q.T
    start = rng.normal(size=30)
    minimum = minimise_on_sphere(lambda y: Quadratic(A, y), start, rtol=1e-10)
    assert minimum.converged
    assert minimum.multiplier == pytest.approx(3.0, rel=1e-9)
    assert abs(minimum.point @ Q[:, 0]) == pytest.approx(np.linalg.norm(start), rel=1e-9)
    cut = minimise_on_sphere(lambda y: Quadratic(A, y), start, rtol=1e-10, max_steps=2)
    assert not cut.converged
    assert "after 2 steps" in cut.reason
    assert cut.residual > 1e-10


def test_newton_converges_quadratically() -> None:
    """Two more steps take the residual from 1e-3 to 1e-9."""
    reduced = problem()
    residuals = [
        minimise_on_sphere(reduced.model, reduced.start(), max_steps=n).residual for n in range(25)
    ]
    rough = next(n for n, r in enumerate(residuals) if r < 9e-4)
    assert residuals[rough + 2] < 1e-9

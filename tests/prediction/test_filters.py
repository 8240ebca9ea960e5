"""Filters as sums of resolvents are the functions they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep.errors import InvalidInput
from notsodeep.prediction import gradient_descent, gradient_flow, ridge

SPECTRUM = np.concatenate([[0.0, 1e-9], np.geomspace(1e-4, 1e4, 60)])


@pytest.mark.parametrize("time", [0.1, 1.0, 30.0])
def test_gradient_flow(time: float) -> None:
    flow = gradient_flow(time)
    assert np.abs(flow.residual(SPECTRUM) - np.exp(-time * SPECTRUM)).max() < 1e-13
    x = SPECTRUM[1:]
    assert np.abs(flow.response(x) + np.expm1(-time * x) / x).max() < 1e-12 * time
    assert (flow.poles.imag > 0.0).all()


def test_ridge() -> None:
    fit = ridge(0.3)
    assert fit.is_real
    np.testing.assert_allclose(fit.response(SPECTRUM), 1.0 / (SPECTRUM + 0.3), rtol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 16, 17, 60, 300, 2000])
def test_gradient_descent(momentum: float, steps: int) -> None:
    x = np.concatenate([[0.0], np.geomspace(1e-4, 1.98 * (1.0 + momentum), 100)])
    fit = gradient_descent(1.0, steps, momentum=momentum)
    alpha = before = np.zeros_like(x)
    for _ in range(steps):
        alpha, before = alpha + (1.0 - x * alpha) + momentum * (alpha - before), alpha
    assert np.abs(fit.residual(x) - (1.0 - x * alpha)).max() < 3e-9
    assert np.abs(fit.response(x) - alpha).max() < 3e-7 * steps


def test_many_small_steps_are_the_flow() -> None:
    x = np.geomspace(1e-3, 50.0, 40)
    gap = gradient_descent(1e-5, 100_000).residual(x) - gradient_flow(1.0).residual(x)
    assert np.abs(gap).max() < 1e-5


def test_too_many_oscillating_steps_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="at most 512 steps"):
        gradient_descent(0.1, 600, momentum=0.95)

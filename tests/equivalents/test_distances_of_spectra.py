"""Distances of spectra, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep.equivalents.distances import kolmogorov, kolmogorov_to_law, wasserstein


def test_two_spectra() -> None:
    left, right = np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.5, 1.0, 2.0, 3.0])
    assert kolmogorov(left, right) == pytest.approx(0.25)
    assert wasserstein(left, right) == pytest.approx(0.125)
    assert kolmogorov(left, left) == wasserstein(left, left) == 0.0
    assert kolmogorov(left, left + 10.0) == pytest.approx(1.0)
    assert wasserstein(left, left + 10.0) == pytest.approx(10.0)


def test_spectra_of_unequal_size() -> None:
    assert kolmogorov(np.array([0.0, 1.0]), np.array([0.0, 0.0, 1.0])) == pytest.approx(1 / 6)
    assert wasserstein(np.array([0.0, 1.0]), np.array([0.0, 0.0, 1.0])) == pytest.approx(1 / 6)


def uniform(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0.0, 1.0)


def by_grid(values: np.ndarray, start: float) -> float:
    x = np.linspace(max(start, -1.0), 2.0, 300_001)
    shares = np.searchsorted(np.sort(values), x, side="right") / len(values)
    return float(np.abs(shares - uniform(x)).max())


@pytest.mark.parametrize("start", [-np.inf, 0.0, 0.3, 0.95, 1.5])
def test_distance_to_a_law(start: float) -> None:
    rng = np.random.default_rng(0)
    for values in (rng.uniform(size=50), rng.uniform(size=50) ** 2, rng.uniform(0.4, 0.6, size=9)):
        expected = by_grid(values, start)
        assert kolmogorov_to_law(values, uniform, start) == pytest.approx(expected, abs=2e-5)


def test_a_quantile_sample_is_as_close_as_can_be() -> None:
    values = (np.arange(100) + 0.5) / 100
    assert kolmogorov_to_law(values, uniform) == pytest.approx(0.005)

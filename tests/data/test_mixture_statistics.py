"""Estimated statistics: unbiased, equal to brute force, small in memory."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import numpy as np
import pytest

from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.errors import InvalidInput


def u_statistic(X: np.ndarray) -> float:
    """Y1 − 2 Y2 + Y3 of Chen, Zhang and Zhong by summing over distinct indices."""
    G = X @ X.T
    n = len(X)
    y1 = np.mean([G[i, j] ** 2 for i, j in itertools.permutations(range(n), 2)])
    y2 = np.mean([G[i, j] * G[j, k] for i, j, k in itertools.permutations(range(n), 3)])
    y3 = np.mean([G[i, j] * G[k, m] for i, j, k, m in itertools.permutations(range(n), 4)])
    return float(y1 - 2.0 * y2 + y3)


@pytest.mark.parametrize("p", [3, 40], ids=["by features", "by samples"])
def test_every_entry_equals_brute_force(p: int) -> None:
    rng = np.random.default_rng(1)
    y = np.array([0] * 5 + [1] * 7 + [2] * 6)
    X = rng.standard_normal((18, p)) * rng.uniform(0.5, 2.0, p) + rng.standard_normal((3, p))[y]
    order = rng.permutation(18)
    X, y = X[order], y[order]
    stats = MixtureStatistics.estimate(X, y)

    covariances = np.stack([np.cov(X[y == a].T) * p for a in range(3)])
    shares = np.bincount(y) / 18
    traces = np.trace(covariances, axis1=1, axis2=2)
    for a, b in itertools.product(range(3), repeat=2):
        expected = (
            p * u_statistic(X[y == a]) if a == b else np.trace(covariances[a] @ covariances[b]) / p
        )
        assert stats.T[a, b] == pytest.approx(expected, rel=1e-10)
    assert stats.tau0 == pytest.approx(np.sqrt(shares @ traces / p))
    np.testing.assert_allclose(stats.t, (traces - shares @ traces) / np.sqrt(p), atol=1e-12)
    means = np.stack([X[y == a].mean(axis=0) for a in range(3)])
    np.testing.assert_allclose(stats.means, means * np.sqrt(p))
    squared = ((X - means[y]) ** 2).sum(axis=1)
    expected_psi = squared - np.array([squared[y == a].mean() for a in range(3)])[y]
    np.testing.assert_allclose(stats.psi, expected_psi, atol=1e-12)
    np.testing.assert_array_equal(stats.J, np.eye(3)[y])
    assert stats.provenance == "estimated"

    spectrum = stats.covariance_spectrum
    assert not spectrum.is_population
    assert "sample covariance" in spectrum.origin
    values = np.linalg.eigvalsh(np.einsum("a,aij->ij", shares, covariances))
    np.testing.assert_allclose(spectrum.eigenvalues[-3:], values[-3:])
    assert spectrum.mean() == pytest.approx(stats.tau0**2)
    assert spectrum.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("law", ["gaussian", "skewed"])
def test_estimates_are_unbiased_and_the_plug_in_is_not(law: str) -> None:
    """400 draws of 12 samples per class in dimension 30; bounds are 5 standard errors."""
    p, per_class, draws = 30, 12, 400
    rng = np.random.default_rng(2)
    scales = np.sqrt(rng.uniform(0.3, 2.0, (2, p)))
    means = rng.standard_normal((2, p))
    y = np.repeat([0, 1], per_class)
    T, t, plug_in = [], [], []
    for _ in range(draws):
        noise = rng.standard_normal((len(y), p))
        if law == "skewed":
            noise = (noise**2 - 1.0) / np.sqrt(2.0)
        X = (means[y] + scales[y] * noise) / np.sqrt(p)
        stats = MixtureStatistics.estimate(X, y)
        T.append(stats.T)
        t.append(stats.t)
        plug_in.append([np.sum((np.cov(X[y == a].T) * p) ** 2) / p for a in (0, 1)])
    C = scales**2
    exact = C @ C.T / p
    error = np.abs(np.mean(T, axis=0) - exact)
    assert (error < 5.0 * np.std(T, axis=0) / np.sqrt(draws)).all()
    exact_t = (C.sum(axis=1) - C.sum(axis=1).mean()) / np.sqrt(p)
    assert (np.abs(np.mean(t, axis=0) - exact_t) < 5.0 * np.std(t, axis=0) / np.sqrt(draws)).all()
    bias = np.mean(plug_in, axis=0) - np.diag(exact)
    assert (bias > 5.0 * np.std(plug_in, axis=0) / np.sqrt(draws)).all()
    if law == "gaussian":  # the bias that the docstring announces, to its leading order
        np.testing.assert_allclose(bias, C.mean(axis=1) ** 2 * p / per_class, rtol=0.25)


def test_it_approaches_the_exact_statistics() -> None:
    """Errors of T fall like 1/n, those of the mean norm like n^{-1/2}."""
    rng = np.random.default_rng(3)
    p = 60
    mixture = GaussianMixture(rng.standard_normal((2, p)), rng.uniform(0.5, 1.5, (2, p)))
    sizes = np.array([200, 800, 3200, 12800])
    errors = []
    for n in sizes:
        gaps = []
        for seed in range(10):
            X, y = mixture.sample(int(n), rng=seed)
            gaps.append(MixtureStatistics.estimate(X, y).T - mixture.statistics(X, y).T)
        errors.append(np.sqrt(np.mean(np.square(gaps))))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope < -0.4


def test_labels_can_be_any_integers_and_order_does_not_matter() -> None:
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((30, 4)), np.repeat([8, 6, -2], 10)
    stats = MixtureStatistics.estimate(X, y)
    np.testing.assert_array_equal(stats.classes, [-2, 6, 8])
    order = rng.permutation(30)
    again = MixtureStatistics.estimate(X[order], y[order])
    np.testing.assert_allclose(again.T, stats.T)
    np.testing.assert_allclose(again.psi, stats.psi[order])


def test_the_input_is_not_changed() -> None:
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((20, 3)), np.repeat([0, 1], 10)
    X.flags.writeable = False
    y.flags.writeable = False
    stats = MixtureStatistics.estimate(X, y)
    before = stats.covariance_spectrum.eigenvalues
    assert stats.covariance_spectrum.eigenvalues is before


@pytest.mark.parametrize(
    ("y", "num_classes", "message"),
    [
        ([0, 0, 0, 0, 1, 1, 1], None, "one label for each of the 8 rows"),
        ([0] * 7 + [1], None, "at least 4 samples in every class.*class 1 with 1"),
        ([0] * 5 + [1] * 3, None, "class 1 with 3"),
        ([0] * 4 + [2] * 4, 3, "class 1 empty"),
        ([0] * 4 + [3] * 4, 3, "labels from 0 to 2"),
        (["a"] * 8, None, "integer class labels"),
        ([[0] * 8], None, "vector of integer class labels"),
    ],
)
def test_labels_that_do_not_serve_are_refused(y, num_classes, message: str) -> None:
    X = np.random.default_rng(0).standard_normal((8, 3))
    with pytest.raises(InvalidInput, match=message):
        MixtureStatistics.estimate(X, y, num_classes=num_classes)


@pytest.mark.parametrize("value", [1.0, 0.1, 1e8 / 3.0])
def test_samples_that_equal_their_class_mean_have_no_scale(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"tau0 .* must be positive"):
        MixtureStatistics.estimate(value * np.repeat(np.eye(2), 5, axis=0), np.repeat([0, 1], 5))


def test_memory_stays_of_the_order_of_the_data() -> None:
    rng = np.random.default_rng(6)
    for n, p in ((6000, 300), (300, 6000)):
        X, y = rng.standard_normal((n, p)), np.arange(n) % 10
        tracemalloc.start()
        MixtureStatistics.estimate(X, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.5 * X.nbytes


@pytest.mark.slow
def test_the_size_of_mnist_takes_seconds() -> None:
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((50_000, 784)), np.arange(50_000) % 10
    tracemalloc.start()
    start = time.perf_counter()
    MixtureStatistics.estimate(X, y)
    elapsed = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed < 20.0
    assert peak < 1.5 * X.nbytes

"""Mixtures: the law they draw from, their statistics, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notsodeep.data import GaussianMixture, paper_mixture
from notsodeep.errors import InvalidInput

K, P = 3, 5


def wishart(rng: np.random.Generator, p: int = P, rank: int | None = None) -> np.ndarray:
    root = rng.standard_normal((p, rank or p))
    return root @ root.T


@pytest.fixture(params=["one scalar", "scalars", "diagonals", "full", "singular"])
def mixture(request: pytest.FixtureRequest) -> GaussianMixture:
    rng = np.random.default_rng(7)
    means = rng.standard_normal((K, P))
    covariances = {
        "one scalar": 1.3,
        "scalars": rng.uniform(0.5, 2.0, K),
        "diagonals": rng.uniform(0.0, 2.0, (K, P)),
        "full": np.stack([wishart(rng) for _ in range(K)]),
        "singular": np.stack([wishart(rng, rank=2) for _ in range(K)]),
    }[request.param]
    return GaussianMixture(means, covariances, [0.5, 0.3, 0.2])


def dense_covariances(mixture: GaussianMixture) -> np.ndarray:
    C = mixture.covariances
    if C.ndim == 1:
        return C[:, None, None] * np.eye(P)
    return np.stack([np.diag(c) for c in C]) if C.ndim == 2 else C


def test_samples_have_the_law_of_the_theory(mixture: GaussianMixture) -> None:
    n = 60_000
    X, y = mixture.sample(n, rng=3)
    for a, C in enumerate(dense_covariances(mixture)):
        rows = X[y == a] * np.sqrt(P)
        m = len(rows)
        bound = 5.0 * np.sqrt(np.diag(C) / m)
        assert (np.abs(rows.mean(axis=0) - mixture.means[a]) <= bound + 1e-12).all()
        error = np.abs(np.cov(rows.T) - C)
        variance = (np.outer(np.diag(C), np.diag(C)) + C**2) / m
        assert (error <= 5.0 * np.sqrt(variance) + 1e-12).all()


def test_statistics_are_those_of_the_dense_covariances(mixture: GaussianMixture) -> None:
    X, y = mixture.sample(40, rng=0)
    stats = mixture.statistics(X, y)
    C = dense_covariances(mixture)
    shares = np.bincount(y) / 40
    mean = np.einsum("a,aij->ij", shares, C)
    traces = np.trace(C, axis1=1, axis2=2)
    assert stats.provenance == "exact"
    assert stats.tau0 == pytest.approx(np.sqrt(np.trace(mean) / P), rel=1e-14)
    np.testing.assert_allclose(stats.t, (traces - np.trace(mean)) / np.sqrt(P), atol=1e-13)
    T = np.array([[np.trace(A @ B) / P for B in C] for A in C])
    np.testing.assert_allclose(stats.T, T, rtol=1e-13)
    np.testing.assert_array_equal(stats.J, np.eye(K)[y])
    centred = X - mixture.means[y] / np.sqrt(P)
    np.testing.assert_allclose(stats.psi, (centred**2).sum(axis=1) - traces[y] / P, atol=1e-13)
    np.testing.assert_array_equal(stats.means, mixture.means)
    np.testing.assert_array_equal(stats.counts, np.bincount(y))
    spectrum = stats.covariance_spectrum
    assert spectrum.is_population
    assert spectrum.mean() == pytest.approx(stats.tau0**2)
    repeated = np.repeat(spectrum.eigenvalues, np.rint(spectrum.weights * P).astype(int))
    np.testing.assert_allclose(repeated, np.linalg.eigvalsh(mean), atol=1e-12)


def test_a_scalar_spectrum_has_one_atom() -> None:
    mixture = paper_mixture(100)
    spectrum = mixture.statistics(*mixture.sample(10, rng=0)).covariance_spectrum
    np.testing.assert_allclose(spectrum.eigenvalues, [1.0 + 4.0 / 10.0])
    np.testing.assert_array_equal(spectrum.weights, [1.0])


@given(
    n=st.integers(20, 500),
    raw=st.lists(st.floats(0.2, 1.0), min_size=1, max_size=6),
)
def test_class_counts_are_nearest_and_sum_to_n(n: int, raw: list[float]) -> None:
    weights = np.array(raw) / np.sum(raw)
    mixture = GaussianMixture(np.zeros((len(raw), 2)), 1.0, weights)
    counts = mixture.class_counts(n)
    assert counts.sum() == n
    assert (np.abs(counts - n * mixture.weights) < 1.0 + 1e-6).all()
    np.testing.assert_array_equal(np.bincount(mixture.sample(n, rng=n)[1]), counts)


def test_a_seed_fixes_the_sample_and_blocks_can_be_kept(mixture: GaussianMixture) -> None:
    first, second = mixture.sample(30, rng=5), mixture.sample(30, rng=np.random.default_rng(5))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    assert not np.array_equal(first[0], mixture.sample(30, rng=6)[0])
    assert (np.diff(first[1]) < 0).any()
    assert (np.diff(mixture.sample(30, rng=5, shuffle=False)[1]) >= 0).all()


def test_json_round_trip_and_equality(mixture: GaussianMixture) -> None:
    again = GaussianMixture.from_dict(json.loads(json.dumps(mixture.to_dict())))
    assert again == mixture
    assert hash(again) == hash(mixture)
    assert mixture != GaussianMixture(mixture.means + 1.0, mixture.covariances, mixture.weights)
    assert mixture != "mixture"


def test_it_keeps_its_own_arrays() -> None:
    means = np.zeros((2, 3))
    mixture = GaussianMixture(means, 1.0)
    means[:] = 7.0
    assert (mixture.means == 0.0).all()
    with pytest.raises(ValueError, match="read-only"):
        mixture.means[0, 0] = 1.0


ZERO = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), 1.0), "means of GaussianMixture must be a matrix"),
        ((ZERO, [1.0, 2.0, 3.0]), r"covariances .* shape \(2,\), \(2, 3\) or \(2, 3, 3\)"),
        ((ZERO, [1.0, -1.0]), "not be negative.*-1.0"),
        ((ZERO, np.stack([np.eye(3), np.diag([1.0, 1.0, -0.1])])), "semi-definite.*class 1"),
        ((ZERO, np.stack([np.eye(3), np.triu(np.ones((3, 3)))])), "symmetric.*class 1"),
        ((ZERO, 0.0), "tau0 .* must be positive.*no scale"),
        ((ZERO, np.zeros((2, 3, 3))), "tau0 .* must be positive"),
        ((ZERO, 1.0, [0.5, 0.6]), "weights .* sum to 1"),
        ((ZERO, 1.0, [1.0, 0.0]), "weights .* be positive"),
        ((ZERO, 1.0, [1.0]), "weights .* one number for each of the 2"),
        ((ZERO, np.nan), "covariances .* be finite"),
    ],
)
def test_what_cannot_be_a_mixture_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        GaussianMixture(*arguments)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((3, 3)), [0, 1], "one label for each of the 3 rows"),
        (np.zeros((3, 3)), [0, 1, 2], "labels from 0 to 1.*a label 2"),
        (np.zeros((3, 3)), [0, 1, -1], "a label -1"),
        (np.zeros((3, 3)), [0, 0, 0], "at least 1 sample in every class.*class 1 empty"),
        (np.zeros((3, 3)), [0.0, 1.0, 0.0], "integer class labels.*float64"),
        (np.zeros((3, 4)), [0, 1, 0], "mixture's 3 features"),
    ],
)
def test_statistics_refuse_samples_that_do_not_fit(X, y, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        GaussianMixture(ZERO, 1.0).statistics(X, y)


def test_a_sample_too_small_for_its_classes_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"n = 2 is too small.*class 2 empty"):
        GaussianMixture(np.zeros((3, 2)), 1.0).sample(2, rng=0)


@pytest.mark.parametrize("rng", [None, -1, 1.5, True])
def test_randomness_must_be_asked_for(rng: object) -> None:
    with pytest.raises(InvalidInput, match=r"rng of GaussianMixture\.sample"):
        GaussianMixture(ZERO, 1.0).sample(4, rng=rng)


@pytest.mark.paper
def test_the_papers_mixture() -> None:
    mixture = paper_mixture(1000)
    assert (mixture.num_classes, mixture.dimension) == (2, 1000)
    assert mixture.means[0, 0] == mixture.means[1, 8] == 8.0
    assert np.count_nonzero(mixture.means) == 2
    np.testing.assert_allclose(mixture.covariances, [1.0, 1.0 + 8.0 / np.sqrt(1000.0)])
    X, y = mixture.sample(800, rng=0)
    # (1 + 1 + 8/√1000)/2 = 1.1265 = τ0², and t = ∓4 exactly
    stats = mixture.statistics(X, y)
    assert stats.tau0**2 == pytest.approx(1.1264911, abs=1e-7)
    np.testing.assert_allclose(stats.t, [-4.0, 4.0])


def test_the_papers_mixture_needs_room_for_its_means() -> None:
    with pytest.raises(InvalidInput, match="dimension of paper_mixture must exceed"):
        paper_mixture(8)

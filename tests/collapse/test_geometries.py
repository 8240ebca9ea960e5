"""Simplex ETF, and the ETF nearest to a set of vectors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from notsodeep.collapse import nearest_etf, simplex_etf
from notsodeep.collapse.geometry import simplex_coordinates, simplex_gram
from notsodeep.errors import InvalidInput


@pytest.mark.parametrize(("K", "d"), [(2, 1), (2, 5), (3, 2), (10, 9), (10, 64), (100, 128)])
def test_identities_of_the_etf(K: int, d: int) -> None:
    E = simplex_etf(K, d, rng=0)
    assert E.shape == (K, d)
    gram = E @ E.T
    np.testing.assert_allclose(np.diag(gram), 1.0, atol=1e-12)
    np.testing.assert_allclose(gram[~np.eye(K, dtype=bool)], -1.0 / (K - 1), atol=1e-12)
    np.testing.assert_allclose(E.sum(axis=0), 0.0, atol=1e-12)
    # a tight frame of its span: EᵀE is a multiple of a projection
    frame = E.T @ E * (K - 1) / K
    np.testing.assert_allclose(frame @ frame, frame, atol=1e-12)
    np.testing.assert_allclose(gram / np.linalg.norm(gram), simplex_gram(K), atol=1e-12)
    assert np.linalg.norm(simplex_gram(K)) == pytest.approx(1.0, abs=1e-14)


def test_position_is_the_seeds() -> None:
    np.testing.assert_array_equal(simplex_etf(4, 8, rng=1), simplex_etf(4, 8, rng=1))
    assert np.abs(simplex_etf(4, 8, rng=1) - simplex_etf(4, 8, rng=2)).max() > 0.1
    generator = np.random.default_rng(1)
    np.testing.assert_array_equal(simplex_etf(4, 8, generator), simplex_etf(4, 8, rng=1))


def test_position_is_uniform() -> None:
    """The first vertex has mean zero and covariance I/d: 2000 draws, five standard errors."""
    first = np.array([simplex_etf(3, 4, rng=seed)[0] for seed in range(2000)])
    assert np.abs(first.mean(axis=0)).max() < 5 * np.sqrt(0.25 / 2000)
    assert np.abs(first.T @ first / 2000 - np.eye(4) / 4).max() < 5 * 0.25 / np.sqrt(2000)


def test_nearest_etf_of_an_etf_is_itself() -> None:
    M = 2.5 * simplex_etf(6, 9, rng=0) + np.arange(9)
    nearest = nearest_etf(M)
    np.testing.assert_allclose(nearest.vertices, M, atol=1e-12)
    assert nearest.scale == pytest.approx(2.5)
    assert nearest.distance < 1e-13


def test_nearest_etf_is_the_best_of_a_direct_search() -> None:
    rng = np.random.default_rng(0)
    K, d = 3, 3
    M = simplex_etf(K, d, rng=1) + 0.4 * rng.normal(size=(K, d))
    M -= M.mean(axis=0)
    E = simplex_coordinates(K) @ np.eye(K - 1, d)

    def squared_distance(x: np.ndarray) -> float:
        """Over all matrices with orthonormal rows, by QR, and a scale."""
        Q, R = np.linalg.qr(x[1:].reshape(d, d))
        return float(np.sum((M - x[0] * E @ (Q * np.sign(np.diag(R))).T) ** 2))

    starts = [np.concatenate([[1.0], rng.normal(size=d * d)]) for _ in range(12)]
    best = min(minimize(squared_distance, start, method="BFGS").fun for start in starts)
    nearest = nearest_etf(M)
    assert nearest.distance == pytest.approx(np.sqrt(best) / np.linalg.norm(M), rel=1e-6)
    assert np.sum((nearest.vertices - M) ** 2) == pytest.approx(best, rel=1e-6)


def test_distance_is_invariant_and_positive_off_the_etf() -> None:
    rng = np.random.default_rng(2)
    M = rng.normal(size=(5, 7))
    Q = np.linalg.qr(rng.normal(size=(7, 7)))[0]
    distance = nearest_etf(M).distance
    assert 0.1 < distance < 1.0
    for other in (M @ Q, 3.0 * M, M + rng.normal(size=7), M[rng.permutation(5)]):
        assert nearest_etf(other).distance == pytest.approx(distance, rel=1e-12)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="num_features must be at least 9"):
        simplex_etf(10, 8, rng=0)
    with pytest.raises(InvalidInput, match="integer of at least 2"):
        simplex_etf(1, 8, rng=0)
    with pytest.raises(InvalidInput, match="non-negative integer seed"):
        simplex_etf(3, 8, rng=None)
    with pytest.raises(InvalidInput, match="rows that differ"):
        nearest_etf(np.ones((3, 4)))
    with pytest.raises(InvalidInput, match="num_features must be at least 4"):
        nearest_etf(np.eye(5)[:, :3])

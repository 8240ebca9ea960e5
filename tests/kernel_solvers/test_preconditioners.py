"""Preconditioners: what they are the inverse of, and how many steps they save."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.kernel_solvers import preconditioner, solve
from notsodeep.kernel_solvers.preconditioners import pivoted_factor
from problems import RIDGE, digits


def nystrom(rank: int, ridge: float = RIDGE, n: int = 700, **more: object):
    problem = digits(n)
    choice = {"kind": "ntk", "convention": "preactivation", **more}
    return preconditioner(problem.eq.model, problem.X, rank, ridge, **choice)


def combined(rank: int, ridge: float = RIDGE, n: int = 700, rng: int = 0):
    return nystrom(rank, ridge, n, equivalent=digits(n).eq, rng=rng)


def test_pivoted_factor_stays_below_the_matrix() -> None:
    K = digits(300).K
    rng = np.random.default_rng(0)
    errors = []
    for rank in (10, 60, 200):
        F, left = pivoted_factor(lambda pivots: K[:, pivots], np.diag(K), rank, rng)
        assert F.shape == (300, rank)
        assert np.linalg.eigvalsh(K - F @ F.T)[0] > -1e-10
        np.testing.assert_allclose(left, np.diag(K - F @ F.T), atol=1e-10)
        errors.append(left.sum())
    # No approximation of that rank misses less than the eigenvalues beyond it.
    best = [np.linalg.eigvalsh(K)[:-rank].sum() for rank in (10, 60, 200)]
    assert all(b <= e <= 4.0 * b for b, e in zip(best, errors, strict=True))


def test_pivoted_factor_of_a_matrix_of_low_rank() -> None:
    rng = np.random.default_rng(0)
    G = rng.normal(size=(80, 6))
    G[40:] = G[:40]  # equal samples
    K = G @ G.T
    F, left = pivoted_factor(lambda pivots: K[:, pivots], np.diag(K), 70, rng)
    assert left.max() < 1e-8
    assert F.shape[1] < 40
    np.testing.assert_allclose(F @ F.T, K, atol=1e-8)
    nothing, _ = pivoted_factor(lambda pivots: 0.0 * K[:, pivots], np.zeros(80), 5, rng)
    assert nothing.shape == (80, 0)


def test_full_rank_is_the_inverse() -> None:
    problem = digits(300)
    exact = np.linalg.inv(problem.K + RIDGE * np.eye(300))
    for near in (nystrom(300, n=300), combined(300, n=300)):
        np.testing.assert_allclose(near @ np.eye(300), exact, atol=1e-5 * np.abs(exact).max())
        assert solve(problem.K, problem.Y, RIDGE, preconditioner=near).steps <= 2


@pytest.mark.slow
@pytest.mark.parametrize("ridge", [1e-2, 1e-3])
def test_each_saves_steps_and_both_together_save_most(ridge: float) -> None:
    problem = digits(1000)
    steps = {
        name: solve(problem.K, problem.Y, ridge, preconditioner=near).steps
        for name, near in {
            "none": None,
            "equivalent": problem.eq.inverse(ridge),
            "nystrom": nystrom(60, ridge, 1000),
            "combined": combined(60, ridge, 1000),
        }.items()
    }
    assert steps["equivalent"] < 0.7 * steps["none"]
    assert steps["nystrom"] < 0.8 * steps["none"]
    assert steps["combined"] < min(steps["equivalent"], steps["nystrom"])


@pytest.mark.parametrize("convention", ["preactivation", "feature"])
def test_mixtures_with_low_rank_terms(convention: str) -> None:
    """ReLU: V C Vᵀ takes part, and the exact kernel of the convention must be the one in use."""
    mixture = nsd.data.paper_mixture(dimension=300)
    X, y = mixture.sample(400, rng=0)
    stats = mixture.statistics(X, y)
    deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, y, mixture, convention=convention)
    K = nsd.kernel(deq, X, convention=convention)
    B = np.random.default_rng(0).normal(size=(400, 3))
    plain = solve(K, B, 1e-3).steps
    both = preconditioner(deq, X, 50, 1e-3, equivalent=eq, convention=convention)
    for near in (eq.inverse(1e-3), both):
        assert solve(K, B, 1e-3, preconditioner=near).steps < 0.7 * plain


def test_draws_are_reproducible() -> None:
    v = np.ones(700)
    first, again = nystrom(50) @ v, nystrom(50) @ v
    assert np.array_equal(first, again)
    one, other = (combined(50, rng=seed) @ v for seed in (1, 2))
    assert not np.array_equal(one, other)


def test_bad_arguments_are_refused() -> None:
    problem = digits()
    model = problem.eq.model
    with pytest.raises(InvalidInput, match="equivalent must be an Equivalent of the 700 rows"):
        preconditioner(model, problem.X, 10, RIDGE, equivalent=problem.K)
    with pytest.raises(InvalidInput, match="rank of preconditioner must be an integer"):
        preconditioner(model, problem.X, 0, RIDGE)
    with pytest.raises(InvalidInput, match="ridge of preconditioner must be positive"):
        preconditioner(model, problem.X, 10, 0.0)
    with pytest.raises(InvalidInput, match="DeepEquilibrium or an ExplicitNetwork"):
        preconditioner("relu", problem.X, 10, RIDGE)
    with pytest.raises(InvalidInput, match="rng of preconditioner"):
        preconditioner(model, problem.X, 10, RIDGE, rng=-1)

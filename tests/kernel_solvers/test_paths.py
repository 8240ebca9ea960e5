"""Paths of ridges and stopping times, against one solve after the other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.sparse.linalg import aslinearoperator

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged, UnknownName
from notsodeep.kernel_solvers import ridge_path
from problems import digits, positive_matrix

RIDGES = np.array([1e-2, 0.1, 1.0])


def test_scores_are_those_of_the_definitions() -> None:
    K = positive_matrix(40)
    Y = np.random.default_rng(1).normal(size=(40, 3))
    path = ridge_path(K, Y, RIDGES)
    assert path.leave_one_out is not None
    for j, ridge in enumerate(RIDGES):
        inverse = np.linalg.inv(K + ridge * np.eye(40))
        np.testing.assert_allclose(path.coefficients(ridge), inverse @ Y, rtol=1e-9, atol=1e-12)
        left = Y - K @ inverse @ Y
        np.testing.assert_allclose(path.training_error[j], np.mean(left**2), rtol=1e-10)
        dimension = np.trace(K @ inverse)
        np.testing.assert_allclose(path.effective_dimension[j], dimension, rtol=1e-10)
        score = np.mean(left**2) / (1.0 - dimension / 40) ** 2
        np.testing.assert_allclose(path.generalised_cross_validation[j], score, rtol=1e-9)
        errors = np.empty_like(Y)
        for i in range(40):
            rest = np.delete(np.arange(40), i)
            alpha = np.linalg.solve(K[np.ix_(rest, rest)] + ridge * np.eye(39), Y[rest])
            errors[i] = Y[i] - K[i, rest] @ alpha
        np.testing.assert_allclose(path.leave_one_out[j], np.mean(errors**2), rtol=1e-8)
    assert path.best() == RIDGES[np.argmin(path.generalised_cross_validation)]
    assert path.best("leave_one_out") == RIDGES[np.argmin(path.leave_one_out)]
    assert path.residual.max() < 1e-13  # rounding errors


def test_one_column() -> None:
    path = ridge_path(positive_matrix(30), np.ones(30), [0.1])
    assert path.coefficients(0.1).shape == (30,)


def test_a_krylov_space_gives_the_same_path() -> None:
    problem = digits()
    dense = ridge_path(problem.K, problem.Y, RIDGES)
    krylov = ridge_path(problem.operator(cache="float64"), problem.Y, RIDGES, tolerance=1e-8)
    assert 0.0 < krylov.residual.max() <= 1e-8
    for ridge in RIDGES:
        expected = dense.coefficients(ridge)
        np.testing.assert_allclose(
            krylov.coefficients(ridge), expected, atol=1e-5 * np.abs(expected).max()
        )
        left = problem.Y - problem.K @ krylov.coefficients(ridge)
        left -= ridge * krylov.coefficients(ridge)
        assert np.linalg.norm(left) <= 2e-8 * np.linalg.norm(problem.Y)
    np.testing.assert_allclose(krylov.training_error, dense.training_error, rtol=1e-6)
    error = krylov.effective_dimension_error
    assert (error > 0.0).all()
    assert (np.abs(krylov.effective_dimension - dense.effective_dimension) < 5.0 * error).all()
    assert krylov.leave_one_out is None
    with pytest.raises(UnknownName, match="'leave_one_out'"):
        krylov.best("leave_one_out")


def test_a_space_that_is_too_small() -> None:
    operator = aslinearoperator(positive_matrix(300, 1e-6))
    with pytest.raises(NotConverged, match="1 of 2 ridges, 1e-06 to 1e-06") as info:
        ridge_path(operator, np.ones(300), [1e-6, 10.0], max_steps=20)
    assert info.value.record.residual[1] <= 1e-6
    path = ridge_path(operator, np.ones(300), [1e-6, 10.0], max_steps=20, raises=False)
    assert path.residual[0] > 1e-6


def test_a_complete_space_and_dependent_targets() -> None:
    K = np.diag([1.0, 1.0, 2.0, 3.0])
    Y = np.ones((4, 3))
    path = ridge_path(aslinearoperator(K), Y, [0.5])
    np.testing.assert_allclose(path.coefficients(0.5), Y / (np.diag(K) + 0.5)[:, None])


@pytest.mark.parametrize("wrap", [np.asarray, aslinearoperator], ids=["matrix", "operator"])
def test_gradient_flow(wrap) -> None:
    K = positive_matrix(80)
    Y = np.random.default_rng(1).normal(size=(80, 2))
    times = np.array([0.3, 10.0, 2000.0])
    path = ridge_path(wrap(K), Y, times=times, tolerance=1e-9)
    for j, time in enumerate(times):
        decay = expm(-time * K)
        expected = np.linalg.solve(K, Y - decay @ Y)
        np.testing.assert_allclose(
            path.coefficients(time), expected, atol=1e-6 * np.abs(expected).max()
        )
        np.testing.assert_allclose(path.training_error[j], np.mean((decay @ Y) ** 2), rtol=1e-4)
        slack = 5.0 * path.effective_dimension_error[j] + 1e-8
        assert abs(path.effective_dimension[j] - np.trace(np.eye(80) - decay)) <= slack
        if path.effective_dimension_error[j] == 0.0:
            score = np.mean((decay @ Y) ** 2) / (np.trace(decay) / 80) ** 2
            np.testing.assert_allclose(path.generalised_cross_validation[j], score, rtol=1e-6)
    assert path.best() in times


def test_flow_of_a_singular_kernel_and_very_late() -> None:
    path = ridge_path(np.diag([0.0, 2.0]), [1.0, 1.0], times=[5.0, 1e4])
    np.testing.assert_allclose(path.coefficients(5.0), [5.0, -np.expm1(-10.0) / 2.0])
    assert np.isfinite(path.generalised_cross_validation).all()


def test_flow_of_a_nearly_singular_kernel_to_rounding() -> None:
    path = ridge_path(np.diag([5e-9, 2.0]), [1.0, 1.0], times=[1.0])
    # t(1 − tw/2) differs from t by 2.5e-9 here.
    np.testing.assert_allclose(path.coefficients(1.0)[0], 1.0 - 2.5e-9, rtol=1e-15)


@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_effective_dimension_and_risk_from_the_law(kind) -> None:
    mixture = nsd.data.paper_mixture(dimension=900)
    X, y = mixture.sample(700, rng=0)
    stats = mixture.statistics(X, y)
    deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.1).centred(stats.tau0)
    law = nsd.limiting_spectrum(
        nsd.equivalent(deq, X, y, mixture, kind=kind, convention="preactivation")
    )
    K = nsd.KernelOperator(deq, X, kind=kind, convention="preactivation") @ np.eye(700)
    path = ridge_path(0.5 * (K + K.T), 2.0 * y - 1.0, [0.01, 0.1, 1.0])
    predicted = law.effective_dimension(path.values)
    np.testing.assert_allclose(predicted, path.effective_dimension, rtol=0.01)
    risk = path.training_error / (1.0 - predicted / 700.0) ** 2
    np.testing.assert_allclose(risk, path.generalised_cross_validation, rtol=0.15)


def test_bad_arguments_are_refused() -> None:
    K, y = positive_matrix(10), np.ones(10)
    for wrong in ([], [0.0], [-1.0, 1.0], [[1.0]]):
        with pytest.raises(InvalidInput, match="ridges must be positive"):
            ridge_path(K, y, wrong)
    with pytest.raises(InvalidInput, match="times must be positive"):
        ridge_path(K, y, times=[0.0])
    with pytest.raises(InvalidInput, match="Either ridges or times"):
        ridge_path(K, y)
    with pytest.raises(InvalidInput, match="Y must have shape"):
        ridge_path(K, y[:5], [1.0])
    with pytest.raises(InvalidInput, match="ridges must exceed"):
        ridge_path(K - np.eye(10), y, [0.1])

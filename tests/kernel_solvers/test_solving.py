"""Block conjugate gradients against dense algebra, and where they must say no."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernel_solvers import solve
from problems import RIDGE, digits, positive_matrix


def relative_residual(K: np.ndarray, ridge: float, x: np.ndarray, B: np.ndarray) -> np.ndarray:
    columns, solved = B.reshape(len(B), -1), x.reshape(len(B), -1)
    left = columns - K @ solved - ridge * solved
    return np.asarray(np.linalg.norm(left, axis=0) / np.linalg.norm(columns, axis=0))


@pytest.mark.parametrize("shape", [(150,), (150, 1), (150, 7)], ids=str)
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-11])
def test_solution_is_that_of_dense_algebra(shape: tuple[int, ...], tolerance: float) -> None:
    K = positive_matrix(150)
    B = np.random.default_rng(1).normal(size=shape)
    solution = solve(K, B, 0.1, tolerance=tolerance)
    assert solution.converged
    assert solution.x.shape == shape
    true = relative_residual(K, 0.1, solution.x, B)
    assert true.max() <= tolerance
    np.testing.assert_allclose(solution.residual, true, rtol=1e-3, atol=1e-14)
    expected = np.linalg.solve(K + 0.1 * np.eye(150), B)
    assert np.linalg.norm(solution.x - expected) <= 11 * tolerance * np.linalg.norm(expected)


def test_record_tells_the_history() -> None:
    B = np.random.default_rng(1).normal(size=(150, 3))
    solution = solve(positive_matrix(150), B, 0.1)
    assert solution.residuals.shape == (solution.steps + 1, 3)
    np.testing.assert_allclose(solution.residuals[0], 1.0)
    assert solution.worst.shape == (solution.steps + 1,)
    assert (solution.worst[:-1] > 1e-6).all()
    assert solution.worst[-1] <= 1e-6
    assert solution.reason == "converged"
    assert solution.seconds > 0.0
    assert str(solution).startswith("converged after")


def test_one_column_takes_the_steps_of_conjugate_gradients() -> None:
    """n distinct eigenvalues: at most n steps; three distinct ones: three."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(90, 90)))[0]
    K = (axes * np.repeat([1.0, 5.0, 30.0], 30)) @ axes.T
    K = 0.5 * (K + K.T)
    assert solve(K, axes.sum(axis=1), 0.0, tolerance=1e-10).steps == 3


def test_columns_help_each_other() -> None:
    K = positive_matrix(400, 1e-4)
    B = np.random.default_rng(1).normal(size=(400, 8))
    single = [solve(K, column, 1e-4).steps for column in B.T]
    assert solve(K, B, 1e-4).steps < 0.6 * min(single)


def test_dependent_columns() -> None:
    problem = digits()
    assert np.linalg.matrix_rank(problem.Y) == problem.Y.shape[1] - 1
    together = solve(problem.K, problem.Y, RIDGE)
    assert relative_residual(problem.K, RIDGE, together.x, problem.Y).max() <= 1e-6
    twice = np.concatenate([problem.Y[:, :3], problem.Y[:, :3]], axis=1)
    doubled = solve(problem.K, twice, RIDGE)
    assert abs(doubled.steps - solve(problem.K, problem.Y[:, :3], RIDGE).steps) <= 5
    np.testing.assert_allclose(doubled.x[:, :3], doubled.x[:, 3:], atol=1e-9)


def test_nearly_dependent_columns_of_every_size() -> None:
    K = positive_matrix(200)
    rng = np.random.default_rng(1)
    B = rng.normal(size=(200, 1)) + rng.normal(size=(200, 5)) * 10.0 ** np.arange(-12.0, -1.0, 2.2)
    B *= 10.0 ** np.array([-200.0, -5.0, 0.0, 7.0, 150.0])
    B = np.concatenate([B, np.zeros((200, 1))], axis=1)
    solution = solve(K, B, 0.01, tolerance=1e-10)
    sizes = np.abs(B[:, :5]).max(axis=0)
    left = relative_residual(K, 0.01, solution.x[:, :5] / sizes, B[:, :5] / sizes)
    assert left.max() <= 1e-10
    assert not solution.x[:, 5].any()


def test_columns_that_converge_early_do_not_harm_the_others() -> None:
    K = positive_matrix(200)
    values, axes = np.linalg.eigh(K)
    B = np.column_stack([axes[:, -1], axes[:, 0], np.random.default_rng(1).normal(size=200)])
    solution = solve(K, B, 1e-3, tolerance=1e-9)
    np.testing.assert_allclose(solution.x[:, 0], axes[:, -1] / (values[-1] + 1e-3), atol=1e-8)
    assert solution.residual.max() <= 1e-9


def test_no_right_hand_side_at_all() -> None:
    solution = solve(positive_matrix(20), np.zeros((20, 2)), 0.1)
    assert solution.steps == 0
    assert not solution.x.any()


@pytest.mark.parametrize("cache", ["never", "float32", "float64"])
def test_kernel_operators(cache: str) -> None:
    problem = digits()
    solution = solve(problem.operator(cache=cache), problem.Y, RIDGE)
    # Rounding to single precision changes the matrix by 6e-8 of its norm, about 2e-5 here.
    assert relative_residual(problem.K, RIDGE, solution.x, problem.Y).max() <= 2e-5


def test_a_start_near_the_solution_saves_steps() -> None:
    K = positive_matrix(200)
    B = np.random.default_rng(1).normal(size=(200, 2))
    cold = solve(K, B, 0.1)
    exact = np.linalg.solve(K + 0.1 * np.eye(200), B)
    assert solve(K, B, 0.1, start=exact).steps == 0
    near = solve(K, B, 0.11).x
    assert solve(K, B, 0.1, start=near).steps < cold.steps
    assert solve(K, B[:, 0], 0.1, start=exact[:, 0]).steps == 0


def test_too_few_steps() -> None:
    K, b = positive_matrix(100), np.ones(100)
    with pytest.raises(
        NotConverged, match=r"no convergence in 3 steps \(residual .* Allow"
    ) as info:
        solve(K, b, 1e-3, max_steps=3)
    record = info.value.record
    assert (record.steps, record.converged, record.residuals.shape) == (3, False, (4, 1))
    again = solve(K, b, 1e-3, max_steps=3, raises=False)
    assert np.array_equal(again.x, record.x)


def test_indefinite_systems_are_noticed() -> None:
    K = positive_matrix(100) - 0.5 * np.eye(100)
    with pytest.raises(NotConverged, match=r"not positive definite .* larger ridge"):
        solve(K, np.ones(100), 0.01)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_singular_system_without_a_solution(columns: int) -> None:
    found = solve(np.diag([1.0, 0.0, 3.0, 4.0]), np.ones((4, columns)), 0.0, raises=False)
    assert not found.converged
    assert "not positive definite" in found.reason
    assert found.steps < 10
    assert np.isfinite(found.x).all()


def test_inexact_products_are_noticed() -> None:
    """The recurrence believes in convergence; the residual of x does not."""
    K = positive_matrix(200)

    def rounded(V: np.ndarray) -> np.ndarray:
        return np.asarray((K @ V).astype(np.float16), dtype=np.float64)

    operator = LinearOperator((200, 200), matvec=rounded, matmat=rounded, dtype=np.float64)
    with pytest.raises(NotConverged, match="rounding errors") as info:
        solve(operator, np.ones(200), 0.01, tolerance=1e-9)
    assert 1e-9 < info.value.record.residual.max() < 1e-1


def test_a_bad_preconditioner_is_refused() -> None:
    K = positive_matrix(50)
    for wrong in (-np.eye(50), np.diag(np.linspace(-1.0, 1.0, 50))):
        with pytest.raises(InvalidInput, match="preconditioner must be positive definite"):
            solve(K, np.eye(50)[:, :30], 0.1, preconditioner=aslinearoperator(wrong))


def test_bad_arguments_are_refused() -> None:
    K, b = positive_matrix(20), np.ones(20)
    lopsided = K.copy()
    lopsided[0, 1] += 1.0
    for operator, message in (
        (K[:10], "be square"),
        (lopsided, "be symmetric"),
        (np.full((20, 20), np.nan), "be finite"),
        ([[1.0]], "be an array or a scipy LinearOperator"),
        (aslinearoperator(K * 1j), "be real"),
    ):
        with pytest.raises(
            InvalidInput,
            match=f"operator must {message}|operator of a kernel solver must {message}",
        ):
            solve(operator, b, 0.1)
    for wrong in (b[:10], np.ones((20, 2, 2)), np.ones((20, 0)), np.full(20, np.inf), 3.0):
        with pytest.raises(InvalidInput, match=r"B must|B of a kernel solver must"):
            solve(K, wrong, 0.1)
    options: list[tuple[dict[str, object], str]] = [
        ({"ridge": -1.0}, "ridge of solve must be at least 0"),
        ({"tolerance": 0.0}, "tolerance of solve must be positive"),
        ({"max_steps": 0}, "max_steps of solve must be an integer of at least 1"),
        ({"preconditioner": np.eye(19)}, r"preconditioner must .* \(20, 20\)"),
        ({"preconditioner": "nystrom"}, r"preconditioner must .* got .nystrom"),
        ({"start": np.ones(19)}, "start must have shape"),
        ({"start": np.ones((20, 2))}, "start must have the shape of B"),
    ]
    for option, message in options:
        with pytest.raises(InvalidInput, match=message):
            solve(K, b, **{"ridge": 0.1, **option})

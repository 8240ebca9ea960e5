"""Matrices a·XXᵀ + VCVᵀ + γI in structured form, against their dense form."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, cg

from notsodeep import checks
from notsodeep.equivalents.structured_matrix import StructuredMatrix
from notsodeep.errors import InvalidInput, NotEnoughMemory

CORES = {
    "definite": [[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 0.7]],
    "indefinite": [[1.0, 0.4, 0.0], [0.4, -0.6, 0.2], [0.0, 0.2, -0.1]],
    "negative": [[-0.3, 0.0, 0.0], [0.0, -0.2, 0.1], [0.0, 0.1, -0.4]],
    "singular": [[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 0.0]],
    "zero": np.zeros((3, 3)),
}
SHAPES = {"tall": (60, 7), "wide": (25, 80), "boundary": (20, 17), "one-over": (20, 18)}

every_case = pytest.mark.parametrize(
    ("shape", "linear", "core"),
    [
        pytest.param(shape, linear, core, id=f"{shape}-{linear:g}-{core}")
        for shape in SHAPES
        for linear in (0.0, 1.7)
        for core in CORES
    ],
)


def make(shape: str, linear: float, core: str, shift: float = 0.3) -> StructuredMatrix:
    n, p = SHAPES[shape]
    rng = np.random.default_rng(0)
    X, V = rng.normal(size=(n, p)), rng.normal(size=(n, 3))
    return StructuredMatrix(X, linear, V, CORES[core], shift)


def dense(M: StructuredMatrix) -> np.ndarray:
    """The definition, written out."""
    low_rank = M.factors @ M.core @ M.factors.T
    return np.asarray(M.linear * M.X @ M.X.T + low_rank + M.shift * np.eye(len(M.X)))


def close(result: object, expected: object) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@every_case
def test_is_the_dense_matrix(shape: str, linear: float, core: str) -> None:
    M = make(shape, linear, core)
    A = dense(M)
    close(M.to_dense(), A)
    assert np.array_equal(M.to_dense(), M.to_dense().T)
    close(M.diagonal(), np.diag(A))
    close(M.trace(), np.trace(A))
    close(M.rows(slice(3, 11)), A[3:11])
    close(M.rows(slice(None, None, 4)), A[::4])


@every_case
def test_products(shape: str, linear: float, core: str) -> None:
    M = make(shape, linear, core)
    A = dense(M)
    rng = np.random.default_rng(1)
    for v in (rng.normal(size=len(A)), rng.normal(size=(len(A), 1)), rng.normal(size=(len(A), 4))):
        close(M @ v, A @ v)
        close(M.T @ v, A @ v)
        close(M.H @ v, A @ v)
        assert (M @ v).shape == v.shape
    z = rng.normal(size=len(A)) + 1j * rng.normal(size=len(A))
    close(M @ z, A @ z)


@every_case
def test_eigenvalues_and_norms(shape: str, linear: float, core: str) -> None:
    M = make(shape, linear, core, shift=-0.2)
    A = dense(M)
    expected = np.linalg.eigvalsh(A)
    close(M.eigvalsh(), expected)
    close(M.operator_norm(), np.abs(expected).max())
    close(M.frobenius_norm(), np.linalg.norm(A))


@every_case
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_solve_and_logdet(shape: str, linear: float, core: str, ridge: float) -> None:
    M = make(shape, linear, core, shift=70.0)  # large enough for every core to be definite
    A = dense(M) + ridge * np.eye(len(M.X))
    assert np.linalg.eigvalsh(A)[0] > 0.0
    rng = np.random.default_rng(1)
    for b in (rng.normal(size=len(A)), rng.normal(size=(len(A), 3))):
        close(M.solve(b, ridge=ridge), np.linalg.solve(A, b))
        close(M.inverse(ridge) @ b, np.linalg.solve(A, b))
    assert M.logdet(ridge=ridge) == pytest.approx(np.linalg.slogdet(A)[1], rel=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_solve_near_the_end_of_what_is_definite(shape: str) -> None:
    M = make(shape, 0.8, "indefinite", shift=0.0)
    A = dense(M)
    ridge = -np.linalg.eigvalsh(A)[0] + 0.05
    b = np.ones(len(A))
    expected = np.linalg.solve(A + ridge * np.eye(len(A)), b)
    np.testing.assert_allclose(M.solve(b, ridge=ridge), expected, rtol=1e-9)
    with pytest.raises(InvalidInput, match=r"StructuredMatrix\.solve must.*ridge"):
        M.solve(b, ridge=ridge - 0.1)


def test_inverse_is_an_operator_that_preconditions() -> None:
    M = make("tall", 1.7, "definite", shift=1e-2)
    inverse = M.inverse(1e-3)
    assert isinstance(inverse, LinearOperator)
    b = np.random.default_rng(1).normal(size=60)
    close(inverse.T @ b, inverse @ b)
    close(inverse.H @ b, inverse @ b)
    steps: list[int] = []
    _, info = cg(
        M + 1e-3 * LinearOperator((60, 60), matvec=lambda v: v), b, M=inverse, rtol=1e-10,
        callback=lambda _: steps.append(1),
    )  # fmt: skip
    assert info == 0
    assert len(steps) <= 3


def test_factors_of_no_columns() -> None:
    X = np.random.default_rng(0).normal(size=(12, 4))
    M = StructuredMatrix(X, 2.0, np.empty((12, 0)), np.empty((0, 0)), 0.5)
    close(M.eigvalsh(), np.linalg.eigvalsh(2.0 * X @ X.T + 0.5 * np.eye(12)))
    only_shift = StructuredMatrix(X, 0.0, np.empty((12, 0)), np.empty((0, 0)), 0.5)
    close(only_shift @ np.ones(12), 0.5 * np.ones(12))
    close(only_shift.solve(np.ones(12)), 2.0 * np.ones(12))
    assert only_shift.logdet() == pytest.approx(12 * math.log(0.5))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("linear", [0.0, 0.9, 1.7])
def test_differences_stay_structured(shape: str, linear: float) -> None:
    left = make(shape, 1.7, "definite")
    right = StructuredMatrix(left.X, linear, 2.0 * left.factors[:, :2], np.eye(2), 0.9)
    A = dense(left) - dense(right)
    difference = left.minus(right)
    close(difference.to_dense(), A)
    close(difference.eigvalsh(), np.linalg.eigvalsh(A))
    close(difference.frobenius_norm(), np.linalg.norm(A))


def test_small_differences_keep_their_digits() -> None:
    # Factors that occur twice make F singular: eigenvalues must not lose half their digits there.
    left = make("tall", 1.7, "indefinite")
    assert left.minus(left).operator_norm() < 1e-13
    assert left.minus(left).frobenius_norm() < 1e-13
    near = StructuredMatrix(left.X, left.linear, left.factors, 1.0000001 * left.core, left.shift)
    expected = np.linalg.norm(left.to_dense() - near.to_dense())
    assert left.minus(near).frobenius_norm() == pytest.approx(expected, rel=1e-6)


def test_memory_is_of_the_order_of_the_samples() -> None:
    n, p = 3000, 60
    rng = np.random.default_rng(0)
    M = StructuredMatrix(rng.normal(size=(n, p)), 1.0, np.ones((n, 1)), [[1.0]], 0.1)
    tracemalloc.start()
    try:
        _ = M.solve(np.ones(n)), M.logdet(), M.eigvalsh(), M.diagonal(), M @ np.ones(n)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * n * p * 2
    assert peak < 8 * n * n / 20


def test_large_dense_forms_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    M = make("tall", 1.7, "definite")
    monkeypatch.setattr(checks, "available_memory", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match="dense form of a 60 × 60 matrix"):
        M.to_dense()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear": -1.0}, "linear of StructuredMatrix must not be negative. Got -1.0"),
        ({"linear": np.nan}, "linear of StructuredMatrix must be finite"),
        ({"shift": np.inf}, "shift of StructuredMatrix must be finite"),
        ({"factors": np.ones((3, 1))}, r"factors .* a row for each of the 4 rows of X"),
        ({"factors": np.ones(4)}, r"factors .* shape \(4,\)"),
        ({"core": np.eye(2)}, r"core .* must have shape \(1, 1\). Got shape \(2, 2\)"),
        ({"X": np.full((4, 2), np.nan)}, "X of StructuredMatrix must be finite"),
    ],
)
def test_bad_parts_are_refused(changes: dict[str, object], message: str) -> None:
    parts = {"X": np.ones((4, 2)), "linear": 1.0, "factors": np.ones((4, 1)), "core": [[1.0]]}
    with pytest.raises(InvalidInput, match=message):
        StructuredMatrix(**{"shift": 0.1, **parts, **changes})


def test_bad_right_hand_sides_are_refused() -> None:
    M = make("tall", 1.7, "definite")
    for wrong in (np.ones(59), np.ones((60, 2, 2)), 3.0):
        with pytest.raises(InvalidInput, match=r"B of solve must have shape \(60,\) or \(60, k\)"):
            M.solve(wrong)
    with pytest.raises(InvalidInput, match=r"B of StructuredMatrix\.solve must be finite"):
        M.solve(np.full(60, np.nan))
    with pytest.raises(InvalidInput, match=r"ridge .* must exceed -0\.3.*1e-6 times its trace"):
        M.solve(np.ones(60), ridge=-0.3)
    other = StructuredMatrix(M.X + 1.0, 1.0, M.factors, M.core, 0.0)
    with pytest.raises(InvalidInput, match="needs the same X"):
        M.minus(other)

"""Symmetric matrices a·XXᵀ + VCVᵀ + γI, kept in that form."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput

_NEGLIGIBLE = 1e-15  # eigenvalues of C below this share of the largest are rounding
_BLOCK = 1024


class StructuredMatrix(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """The n × n matrix M = a·XXᵀ + V C Vᵀ + γI, a ≥ 0, V of few columns, C symmetric.

    With F = [√a X, V R], where C = R D Rᵀ and D = diag(±1), it is M = F D Fᵀ + γI.  Everything
    goes through the k × k matrix FᵀF, k = p + rank C, when k < n, and through M itself otherwise:
    the smaller side.  Memory is of the order of X.

    Parameters
    ----------
    X : array_like of shape (n, p)
        Not copied if it is an array of float64, so do not change it afterwards.
    linear : float
        a.
    factors : array_like of shape (n, r)
        V.
    core : array_like of shape (r, r)
        C; may be indefinite or singular.
    shift : float
        γ.

    Examples
    --------
    >>> M = StructuredMatrix(np.eye(3), 2.0, np.ones((3, 1)), [[1.0]], 0.5)
    >>> M @ np.array([1.0, 0.0, 0.0])
    array([3.5, 1. , 1. ])
    >>> M.eigvalsh()
    array([2.5, 2.5, 5.5])
    """

    def __init__(
        self,
        X: ArrayLike,
        linear: float,
        factors: ArrayLike,
        core: ArrayLike,
        shift: float,
    ) -> None:
        owner = type(self).__name__
        self.X = checks.samples(X, "X", owner)
        n = len(self.X)
        self.linear = checks.finite_number(linear, "linear", owner)
        if self.linear < 0.0:
            raise checks.invalid("linear", owner, "not be negative", self.linear)
        self.factors = checks.real_array(factors, "factors", owner)
        if self.factors.ndim != 2 or len(self.factors) != n:
            requirement = f"have shape (n, r), with a row for each of the {n} rows of X"
            raise checks.invalid("factors", owner, requirement, f"shape {self.factors.shape}")
        rank = self.factors.shape[1]
        self.core = checks.matrix_of_shape(core, (rank, rank), "core", owner)
        self.core = 0.5 * (self.core + self.core.T)
        self.shift = checks.finite_number(shift, "shift", owner)
        super().__init__(np.float64, (n, n))

    @functools.cached_property
    def _low_rank(self) -> tuple[FloatArray, FloatArray]:
        """V R, and the signs D, of V C Vᵀ = (VR) D (VR)ᵀ."""
        values, vectors = np.linalg.eigh(self.core)
        kept = np.abs(values) > _NEGLIGIBLE * np.abs(values).max(initial=0.0)
        root = vectors[:, kept] * np.sqrt(np.abs(values[kept]))
        return self.factors @ root, np.sign(values[kept])

    @functools.cached_property
    def signs(self) -> FloatArray:
        """The diagonal of D, shape (k,)."""
        width = self.X.shape[1] if self.linear > 0.0 else 0
        return np.concatenate([np.ones(width), self._low_rank[1]])

    @property
    def small_side(self) -> bool:
        """Whether k < n, so that work is done on k × k matrices."""
        return len(self.signs) < len(self.X)

    def _root_times(self, W: NDArray[Any]) -> NDArray[Any]:
        """F W."""
        low_rank = self._low_rank[0]
        result: NDArray[Any] = low_rank @ W[len(W) - low_rank.shape[1] :]
        if self.linear > 0.0:
            result += math.sqrt(self.linear) * (self.X @ W[: self.X.shape[1]])
        return result

    def _root_transposed_times(self, V: NDArray[Any]) -> NDArray[Any]:
        """Fᵀ V."""
        below: NDArray[Any] = self._low_rank[0].T @ V
        if not self.linear > 0.0:
            return below
        return np.concatenate([math.sqrt(self.linear) * (self.X.T @ V), below])

    @functools.cached_property
    def _inner(self) -> FloatArray:
        """FᵀF, shape (k, k)."""
        low_rank = self._low_rank[0]
        corner = low_rank.T @ low_rank
        if not self.linear > 0.0:
            return np.asarray(corner)
        side = math.sqrt(self.linear) * (self.X.T @ low_rank)
        # O(n k²), the largest cost of every solve on the small side; kept for further ridges.
        return np.block([[self.linear * (self.X.T @ self.X), side], [side.T, corner]])

    def _matmat(self, V: NDArray[Any]) -> NDArray[Any]:
        low_rank, signs = self._low_rank
        result = self.shift * V + low_rank @ (signs[:, None] * (low_rank.T @ V))
        if self.linear > 0.0:
            # Right to left: O(np) a column, where XXᵀ first would be O(n²p).
            result += self.linear * (self.X @ (self.X.T @ V))
        return np.asarray(result)

    def _matvec(self, v: NDArray[Any]) -> NDArray[Any]:
        return self._matmat(v.reshape(-1, 1))

    def _adjoint(self) -> LinearOperator:
        return self

    def _transpose(self) -> LinearOperator:
        return self

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,)."""
        low_rank, signs = self._low_rank
        squares = np.einsum("ij,ij->i", self.X, self.X)
        return np.asarray(self.linear * squares + low_rank**2 @ signs + self.shift)

    def rows(self, rows: slice) -> FloatArray:
        """Return some rows as an array, shape (len(rows), n)."""
        low_rank, signs = self._low_rank
        block = (low_rank[rows] * signs) @ low_rank.T
        if self.linear > 0.0:
            gram = self.X[rows] @ self.X.T
            gram *= self.linear
            block += gram
        index = np.arange(self.shape[0])[rows]
        block[np.arange(len(index)), index] += self.shift
        return np.asarray(block)

    def to_dense(self) -> FloatArray:
        """Return the matrix itself, shape (n, n), exactly symmetric."""
        n = self.shape[0]
        checks.enough_memory(
            2 * 8 * n * n,
            f"The dense form of a {n} × {n} matrix",
            "Use the operator as it is: products, solve() and eigenvalues need no dense form.",
        )
        dense = self.rows(slice(None))
        # Products of blocks are symmetric only to rounding, and eigh reads one triangle.
        dense += dense.T
        dense *= 0.5
        return dense

    def trace(self) -> float:
        """Return the trace."""
        return float(self.diagonal().sum())

    def eigvalsh(self) -> FloatArray:
        """Return all n eigenvalues, ascending.

        On the small side those of FᵀF, and γ as often as is left.  With an indefinite core those of
        R D Rᵀ, F = QR: roots of FᵀF would lose half the digits where F lacks rank.
        """
        n = self.shape[0]
        if not self.small_side:
            return np.asarray(np.linalg.eigvalsh(self.to_dense()))
        if (self.signs > 0.0).all():
            values = np.linalg.eigvalsh(self._inner)
        else:
            parts = [self._low_rank[0]]
            if self.linear > 0.0:
                parts.insert(0, math.sqrt(self.linear) * self.X)
            (triangle,) = linalg.qr(np.concatenate(parts, axis=1), mode="r", overwrite_a=True)
            triangle = triangle[: len(self.signs)]
            # F D Fᵀ = Q (R D Rᵀ) Qᵀ: the other n − k eigenvalues are zero.
            values = np.linalg.eigvalsh((triangle * self.signs) @ triangle.T)
        return np.sort(np.concatenate([values, np.zeros(n - len(values))])) + self.shift

    def frobenius_norm(self) -> float:
        """Return √(Σ M_ij²)."""
        return float(np.linalg.norm(self.eigvalsh()))

    def operator_norm(self) -> float:
        """Return the largest |eigenvalue|."""
        values = self.eigvalsh()
        return float(max(abs(values[0]), abs(values[-1])))

    def minus(self, other: StructuredMatrix) -> StructuredMatrix:
        """Return self − other in structured form; both stand on the same X.

        What is left of the linear part must not be negative: swap the two if it is.
        """
        if self.X is not other.X and not np.array_equal(self.X, other.X):
            raise InvalidInput(
                "The difference of two structured matrices needs the same X in both. "
                "Compare their dense forms instead."
            )
        return StructuredMatrix(
            self.X,
            self.linear - other.linear,
            np.concatenate([self.factors, other.factors], axis=1),
            linalg.block_diag(self.core, -other.core),
            self.shift - other.shift,
        )

    def inverse(self, ridge: float = 0.0) -> StructuredInverse:
        """Return (M + λI)⁻¹ as an operator; the factorisation is done once, here."""
        return StructuredInverse(self, ridge)

    def solve(self, B: ArrayLike, ridge: float = 0.0) -> FloatArray:
        """Return (M + λI)⁻¹ B, B of shape (n,) or (n, k)."""
        right = checks.real_array(B, "B", type(self).__name__ + ".solve")
        if right.ndim not in (1, 2) or len(right) != self.shape[0]:
            requirement = f"have shape ({self.shape[0]},) or ({self.shape[0]}, k)"
            raise checks.invalid("B", "solve", requirement, f"shape {right.shape}")
        return np.asarray(self.inverse(ridge) @ right)

    def logdet(self, ridge: float = 0.0) -> float:
        """Return log det(M + λI)."""
        return self.inverse(ridge).minus_logdet


class StructuredInverse(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """(M + λI)⁻¹ of a structured matrix M that is positive definite with the ridge λ.

    On the small side by Woodbury's identity, with s = γ + λ > 0:
    (F D Fᵀ + sI)⁻¹ = (I − F (sD + FᵀF)⁻¹ Fᵀ)/s and
    det(F D Fᵀ + sI) = s^(n−k) det(D) det(sD + FᵀF).

    Attributes
    ----------
    minus_logdet : float
        −log det of this inverse, that is log det(M + λI).
    """

    def __init__(self, matrix: StructuredMatrix, ridge: float) -> None:
        owner = f"{type(matrix).__name__}.solve"
        self._matrix = matrix
        self._level = matrix.shift + checks.finite_number(ridge, "ridge", owner)
        n = matrix.shape[0]
        if matrix.small_side and not self._level > 0.0:
            raise checks.invalid(
                "ridge",
                owner,
                f"exceed {-matrix.shift:.6g}, so that the matrix plus ridge is positive definite",
                ridge,
                "A kernel without an identity term is singular when it has more rows than X has "
                "columns; 1e-6 times its trace over n is a usual ridge.",
            )
        if matrix.small_side:
            self.minus_logdet = self._factorise_small(owner)
        else:
            dense = matrix.to_dense()
            dense[np.diag_indices(n)] += self._level - matrix.shift
            self._cholesky = _cholesky(dense, owner)
            self.minus_logdet = 2.0 * float(np.log(np.diag(self._cholesky)).sum())
        super().__init__(np.float64, (n, n))

    def _factorise_small(self, owner: str) -> float:
        matrix, level = self._matrix, self._level
        n, k = len(matrix.X), len(matrix.signs)
        inner = matrix._inner + np.diag(level * matrix.signs)
        negative = int((matrix.signs < 0.0).sum())
        if not negative:
            self._cholesky = _cholesky(inner, owner)
            logdet = 2.0 * float(np.log(np.diag(self._cholesky)).sum())
            return (n - k) * math.log(level) + logdet
        # An indefinite core: M + λI is positive definite iff sD + FᵀF has as many negative
        # eigenvalues as D.
        values, self._axes = np.linalg.eigh(inner)
        if int((values < 0.0).sum()) != negative or not np.abs(values).min() > 0.0:
            raise _indefinite(owner)
        self._values = values
        # det D = ±1 has the sign of Π values, so that moduli are enough.
        return (n - k) * math.log(level) + float(np.log(np.abs(values)).sum())

    def _matmat(self, V: NDArray[Any]) -> NDArray[Any]:
        matrix = self._matrix
        if not matrix.small_side:
            return np.asarray(linalg.cho_solve((self._cholesky, True), V))
        projected = matrix._root_transposed_times(V)
        if (matrix.signs > 0.0).all():
            inner = linalg.cho_solve((self._cholesky, True), projected)
        else:
            inner = self._axes @ ((self._axes.T @ projected) / self._values[:, None])
        # Cancels where V lies in the range of F: the error is about eps·‖M‖/s relative to the
        # result, which is the condition number, as for any solve.
        return np.asarray((V - matrix._root_times(inner)) / self._level)

    def _matvec(self, v: NDArray[Any]) -> NDArray[Any]:
        return self._matmat(v.reshape(-1, 1))

    def _adjoint(self) -> LinearOperator:
        return self

    def _transpose(self) -> LinearOperator:
        return self


def _cholesky(matrix: FloatArray, owner: str) -> FloatArray:
    try:
        return np.asarray(linalg.cholesky(matrix, lower=True, check_finite=False))
    except linalg.LinAlgError:
        raise _indefinite(owner) from None


def _indefinite(owner: str) -> InvalidInput:
    return InvalidInput(
        f"ridge of {owner} must make the matrix positive definite, and it does not. "
        "Use a larger ridge; eigvalsh()[0] says how large."
    )


def row_blocks(n: int) -> list[slice]:
    """Cut n rows into blocks of about a thousand."""
    return [slice(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK)]

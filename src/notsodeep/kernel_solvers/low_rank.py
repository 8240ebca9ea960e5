"""Low-rank parts of kernels from few of their columns, and inverses of low rank plus ridge."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.sparse.linalg import LinearOperator

from notsodeep.checks import FloatArray
from notsodeep.threads import map_threads, single_blas_thread

Columns = Callable[[NDArray[np.int64]], FloatArray]

_ROUNDS = 8  # the pivots of a round are drawn together
_ROWS = 2048  # of the factors, for one thread
_NEGLIGIBLE = 1e-10  # eigenvalues below this share of a round's largest are rounding


class LowRankInverse(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """(F Fᵀ + λI)⁻¹, F = [F₁ F₂ …] of few columns, by Woodbury's identity.

    (F Fᵀ + λI)⁻¹ = (I − F (FᵀF + λI)⁻¹ Fᵀ)/λ; the factorisation is done once, here.

    Parameters
    ----------
    factors : sequence of ndarray of shape (n, k_i)
        Not copied.
    ridge : float
        λ > 0.
    """

    def __init__(self, factors: Sequence[FloatArray], ridge: float) -> None:
        self._factors = [factor for factor in factors if factor.shape[1]]
        self._ridge = ridge
        widths = [factor.shape[1] for factor in self._factors]
        self._ends = np.cumsum(widths)[:-1]
        n = len(factors[0])
        if self._factors:
            inner = np.block([[F.T @ G for G in self._factors] for F in self._factors])
            inner[np.diag_indices(len(inner))] += ridge
            self._cholesky = linalg.cholesky(inner, lower=True, overwrite_a=True)
        self.rank = sum(widths)
        super().__init__(np.float64, (n, n))

    def _matmat(self, V: FloatArray) -> FloatArray:
        if not self._factors:
            return np.asarray(V / self._ridge)
        # Both passes over the factors are bound by memory: rows are shared among threads.
        chunks = [slice(start, start + _ROWS) for start in range(0, len(V), _ROWS)]

        def projection(rows: slice) -> FloatArray:
            return np.concatenate([F[rows].T @ V[rows] for F in self._factors])

        projected = sum(map_threads(projection, chunks), np.zeros((self.rank, V.shape[1])))
        with single_blas_thread():
            inner = linalg.cho_solve((self._cholesky, True), projected, overwrite_b=True)
        parts = np.split(inner, self._ends)
        result = np.empty(V.shape)

        def remainder(rows: slice) -> None:
            lifted = sum(F[rows] @ part for F, part in zip(self._factors, parts, strict=True))
            result[rows] = (V[rows] - lifted) / self._ridge

        for _ in map_threads(remainder, chunks):
            pass
        return result

    def _matvec(self, v: FloatArray) -> FloatArray:
        return self._matmat(v.reshape(-1, 1))

    def _adjoint(self) -> LinearOperator:
        return self

    def _transpose(self) -> LinearOperator:
        return self


def pivoted_factor(
    columns: Columns, diagonal: FloatArray, rank: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return F of at most `rank` columns with F Fᵀ ≈ R, and the diagonal of R − F Fᵀ ≥ 0.

    Randomly pivoted Cholesky, a few rounds of many pivots each: pivots are drawn with
    probabilities proportional to the diagonal of what is left, R − F Fᵀ, so that they go where the
    approximation is bad (Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", 2023).  It is
    the Nyström approximation from the pivots' columns.

    Parameters
    ----------
    columns : callable
        ``columns(pivots)`` returns R[:, pivots], shape (n, len(pivots)).
    diagonal : ndarray of shape (n,)
        Of R, which is positive semidefinite.
    rank : int
    rng : numpy.random.Generator
    """
    left = np.maximum(diagonal, 0.0)
    n, done = len(left), 0
    rank = min(rank, n)
    F = np.empty((n, rank))
    smallest = 1e-14 * float(left.max(initial=0.0))
    size = -(-rank // _ROUNDS)
    while done < rank:
        possible = int((left > smallest).sum())
        if not possible:
            break  # R has a lower rank, and is known
        weights = np.where(left > smallest, left, 0.0)
        count = min(size, rank - done, possible)
        pivots = rng.choice(n, count, replace=False, p=weights / weights.sum())
        new = columns(pivots) - F[:, :done] @ F[pivots, :done].T
        core = new[pivots]
        values, axes = np.linalg.eigh(0.5 * (core + core.T))
        kept = values > _NEGLIGIBLE * values[-1]
        width = int(kept.sum())
        np.matmul(new, axes[:, kept] / np.sqrt(values[kept]), out=F[:, done : done + width])
        fresh = F[:, done : done + width]
        left = np.maximum(left - np.einsum("ij,ij->i", fresh, fresh), 0.0)
        left[pivots] = 0.0
        done += width
    return F[:, :done], left

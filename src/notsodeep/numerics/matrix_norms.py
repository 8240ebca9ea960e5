"""Norms of symmetric matrices and operators, and of their differences."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, aslinearoperator, eigsh

from notsodeep.checks import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.numerics.structured_matrix import StructuredMatrix, row_blocks

_DENSE = 200  # rows up to which all eigenvalues are the quicker way to the largest


def operator_norm(matrix: FloatArray | LinearOperator, *, tolerance: float = 1e-9) -> float:
    """Return the largest |eigenvalue| of a symmetric matrix or operator, by Lanczos.

    The start vector is fixed, so that the answer is the same every time.

    Raises
    ------
    NotConverged
        Lanczos did not reach the relative tolerance.
    """
    n = matrix.shape[0]
    if isinstance(matrix, StructuredMatrix) and matrix.small_side:
        return matrix.operator_norm()
    if n <= _DENSE:
        dense = matrix if isinstance(matrix, np.ndarray) else matrix @ np.eye(n)
        return float(np.abs(np.linalg.eigvalsh(0.5 * (dense + dense.T))).max())
    start = np.random.default_rng(0).standard_normal(n)
    image = matrix @ start
    if not np.any(image):
        return 0.0
    try:
        values = eigsh(
            aslinearoperator(matrix), k=1, which="LM", v0=start, tol=tolerance, ncv=min(n, 40),
            return_eigenvectors=False, maxiter=1000,
        )  # fmt: skip
    except ArpackNoConvergence as failure:
        raise NotConverged(
            f"The operator norm of a {n} × {n} matrix was not found to a relative {tolerance:g}. "
            "Its largest eigenvalues lie too close together: allow a larger tolerance."
        ) from failure
    return float(abs(values[0]))


def difference_norms(
    left: FloatArray | LinearOperator, right: FloatArray | LinearOperator
) -> tuple[float, float | None]:
    """Return the operator and the Frobenius norm of left − right, both symmetric.

    Products with vectors give the operator norm, blocks of rows the Frobenius norm; two structured
    matrices on the same X stay structured.  An operator that has no rows to offer
    (`KernelOperator`) leaves the Frobenius norm None.
    """
    if isinstance(left, StructuredMatrix) and isinstance(right, StructuredMatrix):
        if left.linear < right.linear:
            left, right = right, left
        values = left.minus(right).eigvalsh()
        return float(np.abs(values).max()), float(np.linalg.norm(values))
    both = aslinearoperator(left) - aslinearoperator(right)
    operator = operator_norm(both)
    if not all(isinstance(m, np.ndarray | StructuredMatrix) for m in (left, right)):
        return operator, None
    squares = sum(
        float(np.square(_rows(left, block) - _rows(right, block)).sum())
        for block in row_blocks(left.shape[0])
    )
    return operator, float(np.sqrt(squares))


def _rows(matrix: Any, block: slice) -> Any:
    return matrix.rows(block) if isinstance(matrix, StructuredMatrix) else matrix[block]

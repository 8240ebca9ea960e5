"""Distances of kernel matrices and of their spectra."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, aslinearoperator, eigsh
from scipy.stats import ks_2samp, wasserstein_distance

from notsodeep.arrays import FloatArray
from notsodeep.equivalents.structured_matrix import StructuredMatrix, row_blocks
from notsodeep.errors import NotConverged
from notsodeep.records import Plotted
from notsodeep.threads import map_threads, single_blas_thread

_IN_CACHE = 2000  # rows of a matrix of which a product takes a millisecond
_SCALED_ERROR = 1e-6  # of the gap after scaling, relative to the norm
_MOST_TANGENTS = 40
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
    # ARPACK fails on a start vector that the matrix maps to zero.  For a random one that means the
    # matrix is zero.
    if not np.any(image):
        return 0.0
    try:
        with one_library_at_a_time(n):
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


def one_library_at_a_time(n: int) -> AbstractContextManager[object]:
    """Use one thread for linear algebra with small matrices.

    ARPACK is SciPy's and the products are NumPy's: each library has threads of its own, which spin
    for a while after every call, at the expense of the other's.
    """
    return single_blas_thread() if n <= _IN_CACHE else contextlib.nullcontext()


def centred_norm(K: FloatArray) -> float:
    """‖HKH‖: the norm of the kernel without its constant part.

    Examples
    --------
    >>> centred_norm(np.ones((3, 3)))
    0.0
    """
    return operator_norm(without_constant(K))


def without_constant(K: FloatArray) -> FloatArray:
    """HKH, H = I − 11ᵀ/n: inner products of features about their mean."""
    rows = K.mean(axis=0)
    centred: FloatArray = K - rows
    centred -= rows[:, None] - rows.mean()
    return centred


def difference_norms(
    left: FloatArray | LinearOperator, right: FloatArray | LinearOperator
) -> tuple[float, float | None]:
    """Return the operator and the Frobenius norm of left − right, both symmetric.

    Products with vectors give the operator norm, blocks of rows the Frobenius norm; two structured
    matrices on the same X stay structured.  An operator that has no rows to offer
    (`KernelOperator`) leaves the Frobenius norm None.
    """
    if isinstance(left, StructuredMatrix) and isinstance(right, StructuredMatrix):
        # `minus` wants a ≥ 0 to be left, and norms do not care about the sign.
        if left.linear < right.linear:
            left, right = right, left
        values = left.minus(right).eigvalsh()
        return float(np.abs(values).max()), float(np.linalg.norm(values))
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        difference = left - right
        return operator_norm(difference), float(np.linalg.norm(difference))
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


def kolmogorov(left: FloatArray, right: FloatArray) -> float:
    """Return sup |F − F′| of two empirical distributions of eigenvalues."""
    return float(ks_2samp(left, right, method="asymp").statistic)


def kolmogorov_to_law(
    values: FloatArray, cdf: Callable[[FloatArray], FloatArray], start: float = -np.inf
) -> float:
    """Return sup |F_n − F| over x ≥ start, of eigenvalues and a law without point mass there."""
    ordered = np.sort(values)
    n = len(ordered)
    below = int(np.searchsorted(ordered, start))
    law = cdf(np.maximum(ordered[below:], start))
    # F_n jumps by 1/n at every eigenvalue, so that the largest gap is just after or just before
    # one.
    after = np.arange(below + 1, n + 1) / n - law
    at_start = abs(below / n - float(cdf(np.array(start)))) if np.isfinite(start) else 0.0
    return max(at_start, *(float(np.abs(gap).max(initial=0.0)) for gap in (after, after - 1.0 / n)))


def wasserstein(left: FloatArray, right: FloatArray) -> float:
    """Return ∫ |F − F′| dx, the mean distance by which eigenvalues have to move."""
    return float(wasserstein_distance(left, right))


@dataclass(frozen=True, eq=False, repr=False)
class KernelDistance(Plotted):
    """Distances of a kernel matrix from a reference."""

    _drawing = "kernel_distance"

    gap: float  # ‖K − K′‖ in operator norm
    norm: float  # ‖K‖ of the reference
    relative_gap: float  # gap/‖K‖
    scaled_gap: float  # min_c ‖K − cK′‖/‖K‖: a tuned ridge undoes a change of scale
    centred_gap: float  # ‖H(K − K′)H‖/‖HKH‖, H = I − 11ᵀ/n: a bias removes the constant part
    readout_gap: float  # min_c ‖H(K − cK′)H‖/‖HKH‖: what a tuned read-out with a bias sees
    frobenius: float  # ‖K − K′‖_F/‖K‖_F
    spectra: float  # Wasserstein distance of the eigenvalues
    alignment: float  # ⟨K, K′⟩/(‖K‖_F‖K′‖_F); 1 for proportional kernels
    eigenvector_overlap: float  # |⟨v, v′⟩| of the top eigenvectors
    eigenvalues: FloatArray = field(repr=False)  # ascending
    other_eigenvalues: FloatArray = field(repr=False)


class _Top(NamedTuple):
    """The largest eigenvalue of a kernel, which is its norm, and the eigenvector."""

    value: float
    vector: FloatArray


class Reference:
    """A kernel with which others are compared: its norm and its top eigenvector are known."""

    def __init__(self, matrix: FloatArray) -> None:
        self.matrix = matrix
        self.top = _top(matrix)
        self.norm = max(self.top.value, 1e-300)

    def gaps(self, other: FloatArray) -> tuple[float, float]:
        """Return ‖K − K′‖ and min_c ‖K − cK′‖ in operator norm.

        The norm is convex in c, with slope ∓vᵀK′v for the eigenvector v of the largest
        |eigenvalue|.  Two tangents, one falling and one rising, meet below the minimum: that is
        where to look next, and what it may still gain.  The minimum in Frobenius norm is mostly
        near; it is the first point tried.
        """
        gap = operator_norm(self.matrix - other)
        norm, vector = self.top
        apart = np.empty_like(self.matrix)
        # Lines (c, value, slope) below the norm: its tangent at 0, and c‖K′‖ − ‖K‖.
        falling = (0.0, norm, -float(vector @ (other @ vector)))
        rising = (0.0, -norm, _top(other).value)
        # Negative c are left out: for positive semidefinite K′ they only make K − cK′ larger.
        best, at, place = gap, 1.0, max(frobenius_scale(self.matrix, other), 0.0)
        for _ in range(_MOST_TANGENTS):
            np.subtract(self.matrix, np.multiply(other, place, out=apart), out=apart)
            value, vector = _largest(apart, vector)
            if abs(value) < best:
                best, at = abs(value), place
            slope = -math.copysign(1.0, value) * float(vector @ (other @ vector))
            tangent = (place, abs(value), slope)
            falling, rising = (tangent, rising) if slope < 0.0 else (falling, tangent)
            heights = [line[1] - line[2] * line[0] for line in (falling, rising)]
            steepness = rising[2] - falling[2]
            if not steepness > 0.0:
                break
            place = (heights[0] - heights[1]) / steepness
            if best - (heights[0] + falling[2] * place) <= _SCALED_ERROR * norm:
                break
        np.subtract(self.matrix, np.multiply(other, at, out=apart), out=apart)
        return gap, min(gap, operator_norm(apart))


def frobenius_scale(reference: FloatArray, other: FloatArray) -> float:
    """Return the c that minimises ‖K − cK′‖_F."""
    return float(np.vdot(reference, other)) / max(float(np.vdot(other, other)), 1e-300)


def kernel_distance(reference: FloatArray, other: FloatArray) -> KernelDistance:
    """Compare two symmetric kernel matrices of shape (n, n)."""
    return kernel_distances(reference, [other])[0]


def kernel_distances(reference: FloatArray, others: Sequence[FloatArray]) -> list[KernelDistance]:
    """Compare kernel matrices with one that they have in common.

    A decomposition of a small matrix gains little from a second thread; several side by side do.
    """
    matrices = [reference, *others]
    centre = Reference(without_constant(reference))
    work: list[Callable[[], Any]] = [partial(np.linalg.eigvalsh, matrix) for matrix in matrices]
    plain = Reference(reference)
    for other in others:
        work += [partial(plain.gaps, other), partial(centre.gaps, without_constant(other))]
    side_by_side = map_threads if len(reference) <= _IN_CACHE else map
    results = list(side_by_side(lambda each: each(), work))
    own, *spectra = (np.asarray(values, dtype=np.float64) for values in results[: len(matrices)])
    size, records = float(np.linalg.norm(reference)), []
    for k, (other, values) in enumerate(zip(others, spectra, strict=True)):
        (gap, scaled), (centred, readout) = results[len(matrices) + 2 * k :][:2]
        other_size = float(np.linalg.norm(other))
        records.append(
            KernelDistance(
                gap=gap,
                norm=plain.norm,
                relative_gap=gap / plain.norm,
                scaled_gap=scaled / plain.norm,
                centred_gap=centred / centre.norm,
                readout_gap=readout / centre.norm,
                frobenius=float(np.linalg.norm(reference - other)) / size,
                spectra=wasserstein(own, values),
                alignment=float(np.vdot(reference, other)) / (size * other_size),
                eigenvector_overlap=abs(float(plain.top.vector @ _top(other).vector)),
                eigenvalues=own,
                other_eigenvalues=values,
            )
        )
    return records


def _largest(matrix: FloatArray, start: FloatArray) -> tuple[float, FloatArray]:
    """Eigenvalue of the largest size, to 1e-6, and its vector."""
    if len(matrix) > _DENSE:
        # The vector of a matrix nearby, and something of every other direction.
        noise = np.random.default_rng(0).standard_normal(len(matrix))
        begin = start + 0.1 * noise / np.linalg.norm(noise)
        with contextlib.suppress(ArpackNoConvergence), one_library_at_a_time(len(matrix)):
            values, vectors = eigsh(matrix, k=1, which="LM", v0=begin, tol=1e-6, maxiter=1000)
            return float(values[0]), vectors[:, 0]
    values, vectors = np.linalg.eigh(matrix)
    index = int(np.abs(values).argmax())
    return float(values[index]), vectors[:, index]


def _top(kind: FloatArray) -> _Top:
    n = len(kind)
    if n < 50:
        values, vectors = np.linalg.eigh(kind)
        return _Top(float(values[-1]), np.asarray(vectors[:, -1]))
    start = np.random.default_rng(0).standard_normal(n)
    with one_library_at_a_time(n):
        (value,), vectors = eigsh(kind, k=1, which="LA", v0=start)
    return _Top(float(value), np.asarray(vectors[:, 0]))

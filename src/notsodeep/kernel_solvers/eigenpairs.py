"""Leading eigenpairs of a symmetric operator."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.kernel_solvers import requirements
from notsodeep.records import Plotted

_EXTRA = 4  # vectors of a block beyond the eigenpairs wanted
_BLOCKS = 12  # blocks of the basis before it is cut down to the leading Ritz vectors
_STEPS = 300


@dataclass(frozen=True, eq=False, repr=False)
class Eigenpairs(Plotted):
    """Leading eigenpairs.

    Attributes
    ----------
    values : ndarray of shape (count,)
        Descending.
    vectors : ndarray of shape (n, count)
        Orthonormal.
    residuals : ndarray of shape (count,)
        ‖K v − θ v‖; an eigenvalue of K lies within this of θ.
    converged : bool
    steps : int
        Products of the operator with a block of vectors.
    seconds : float
    reason : str

    Examples
    --------
    >>> pairs = top_eigenpairs(np.diag(np.arange(1.0, 51.0)), 2)
    >>> pairs.vectors.shape, bool(pairs.residuals.max() < 1e-6), pairs.reason
    ((50, 2), True, 'converged')
    """

    _drawing = "eigenpairs"

    values: FloatArray
    vectors: FloatArray
    residuals: FloatArray
    converged: bool
    steps: int
    seconds: float
    reason: str


def top_eigenpairs(
    operator: LinearOperator | FloatArray,
    count: int,
    *,
    tolerance: float = 1e-8,
    max_steps: int = _STEPS,
    rng: int | np.random.Generator = 0,
    raises: bool = True,
) -> Eigenpairs:
    """Find the largest eigenvalues of a symmetric operator and their eigenvectors.

    Block Lanczos with restarts: the basis grows by the residuals of the leading Ritz vectors, is
    kept orthonormal throughout, and is cut down to the leading Ritz vectors when it is long.  In
    blocks, because a product of a kernel with many vectors costs little more than with one.

    Parameters
    ----------
    operator : LinearOperator or ndarray of shape (n, n)
        Symmetric.
    count : int
        Eigenpairs wanted.
    tolerance : float
        Every ‖K v − θ v‖ must be below this times the largest |θ|.
    max_steps : int
        Most products of the operator with a block.
    rng : int or numpy.random.Generator
        Draws the vectors to start from.
    raises : bool, default True
        Raise `NotConverged` on failure; otherwise return the record with ``converged=False``.

    Examples
    --------
    >>> K = np.diag(np.arange(1.0, 101.0))
    >>> pairs = top_eigenpairs(K, 3)
    >>> pairs.values.round(6), pairs.converged
    (array([100.,  99.,  98.]), True)
    """
    owner = "top_eigenpairs"
    began = time.perf_counter()
    matrix = requirements.symmetric_matrix(operator, owner)
    n = matrix.shape[0]
    count = checks.positive_integer(count, "count", owner)
    requirements.at_most(count, n, "count", owner, "the size of the operator")
    rtol = checks.positive_number(tolerance, "tolerance", owner)
    most = checks.positive_integer(max_steps, "max_steps", owner)
    generator = checks.random_generator(rng, owner)
    # Convergence is ruled by the gap to the first eigenvalue outside the block, not by the next
    # one.
    width = min(n, count + _EXTRA)
    fresh = np.linalg.qr(generator.standard_normal((n, width)))[0]
    basis, images = np.empty((n, 0)), np.empty((n, 0))
    reason = f"no convergence in {most} steps"
    steps = 0
    while steps < most:
        steps += 1
        basis = np.concatenate([basis, fresh], axis=1)
        images = np.concatenate([images, matrix @ fresh], axis=1)
        inner = basis.T @ images
        values, axes = np.linalg.eigh(0.5 * (inner + inner.T))
        leading = axes[:, ::-1][:, :width]
        theta = values[::-1][:width]
        vectors, moved = basis @ leading, images @ leading
        errors = moved - vectors * theta
        residuals = np.linalg.norm(errors, axis=0)
        allowed = rtol * np.abs(values).max()
        # A basis of the whole space holds the eigenvectors themselves.
        if basis.shape[1] >= n or (residuals[:count] <= allowed).all():
            reason = "converged"
            break
        if basis.shape[1] + width > _BLOCKS * width:
            # Twice the block: the second half keeps what has been learnt about the neighbours.
            # `images` is transformed along, so that a restart costs no product with the operator.
            kept = axes[:, ::-1][:, : 2 * width]
            basis, images = basis @ kept, images @ kept
        fresh = _fresh_directions(errors[:, residuals > allowed], basis)
        if not fresh.shape[1]:
            reason = "rounding errors of the operator's products stop the convergence"
            break
    pairs = Eigenpairs(
        theta[:count], vectors[:, :count], residuals[:count], reason == "converged", steps,
        time.perf_counter() - began, reason,
    )  # fmt: skip
    if raises and not pairs.converged:
        raise NotConverged(
            f"The {count} largest eigenpairs were not found to a relative {rtol:g}: {reason} "
            f"(residual {pairs.residuals.max():.3g} of {np.abs(values).max():.3g}). Ask for one "
            "pair more or fewer, so that the last is not one of a cluster, or allow a larger "
            "tolerance.",
            pairs,
        )
    return pairs


def _fresh_directions(errors: FloatArray, basis: FloatArray) -> FloatArray:
    """Make the residuals orthonormal to the basis and to each other; drop what is rounding."""
    room = basis.shape[0] - basis.shape[1]
    fresh = errors / np.linalg.norm(errors, axis=0)
    for _ in range(2):  # the second time removes what rounding left
        fresh = fresh - basis @ (basis.T @ fresh)
        left, sizes, _ = np.linalg.svd(fresh, full_matrices=False)
        # Columns had length one: what is left of them below 1e-10 is rounding of the projection.
        fresh = left[:, sizes > 1e-10][:, :room]
    return np.asarray(fresh)

"""The weights α = (K + λI)⁻¹ Y of a kernel fit: by dense algebra, or by iteration."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from notsodeep import checks
from notsodeep.checks import FloatArray
from notsodeep.checks import solvers as solver_checks
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory
from notsodeep.kernel_solvers.preconditioners import nystrom_preconditioner
from notsodeep.kernel_solvers.ridge_paths import Score, ridge_path
from notsodeep.kernel_solvers.solving import solve
from notsodeep.kernels import KernelOperator
from notsodeep.models import Model

RULES: dict[str, Score] = {"gcv": "generalised_cross_validation", "loo": "leave_one_out"}
"""What a ridge is chosen by, in the words of `notsodeep.kernel_solvers.ridge_path`."""

# Columns of the preconditioner, unless their number is given.
_LEAST_RANK, _SAMPLES_PER_RANK = 200, 20
_CORRECTIONS, _COARSE = 8, 1e-3  # rounds, and the relative residual of each
_CACHES: tuple[Literal["float64", "float32"], ...] = ("float64", "float32")


@dataclass(frozen=True, eq=False)
class DualWeights:
    """A kernel fit.

    Attributes
    ----------
    coefficients : ndarray of shape (n, k)
        α.
    ridge : float
        λ.
    ridges, scores : ndarray of shape (61,), or None
        What a rule tried, and what it thought of it.
    left_out : ndarray of shape (n, k), or None
        The prediction for every sample by the fit to all others.
    steps : int or None
        Of the iteration.
    """

    coefficients: FloatArray
    ridge: float
    ridges: FloatArray | None = None
    scores: FloatArray | None = None
    left_out: FloatArray | None = None
    steps: int | None = None


def dense_bytes(samples: int, *, spectral: bool) -> int:
    """Return the memory of a dense fit: the kernel and its factor, or its eigenvectors and more."""
    return (4 if spectral else 2) * 8 * samples**2


def dense_weights(
    K: FloatArray, Y: FloatArray, ridge: float | str, *, leave_out: bool, owner: str
) -> DualWeights:
    """Factorise K + λI; K is changed.  A rule, and `leave_out`, take its eigenvectors.

    Raises
    ------
    NotConverged
        Rounding errors decide the solution: λ is too small for this kernel and these targets.  A
        rule chooses among the ridges where they do not.
    """
    if isinstance(ridge, float) and not leave_out:
        return DualWeights(_cholesky_solution(K, Y, ridge, owner), ridge)
    ridges = scores = left_out = None
    if isinstance(ridge, str):
        path = ridge_path(K, Y, _candidates(K), raises=False)
        ridges, scores = path.ridges, np.asarray(getattr(path, RULES[ridge]))
        ridge = path.best(RULES[ridge])
    else:
        path = ridge_path(K, Y, [ridge])
    if leave_out:
        left_out = Y - path.leave_one_out_residuals(ridge)
    return DualWeights(path.coefficients(ridge), ridge, ridges, scores, left_out)


def iterated_weights(
    model: Model,
    X: FloatArray,
    Y: FloatArray,
    ridge: float,
    *,
    tolerance: float,
    rank: int | None,
    memory: int,
    choice: dict[str, Any],
) -> DualWeights:
    """Solve by conjugate gradients with a Nyström preconditioner; `choice` names the kernel.

    A kernel kept in float32 is another matrix, by 6e-8 of its entries.  Its solution is corrected
    with the residual of the exact kernel, computed anew, until that is below the tolerance.

    Raises
    ------
    NotConverged
        An iteration, or the corrections, did not meet the tolerance.
    """
    rank = rank or max(_LEAST_RANK, len(X) // _SAMPLES_PER_RANK)
    near = nystrom_preconditioner(model, X, min(rank, len(X)), ridge, **choice)
    kept, rounded = _kept_kernel(model, X, memory, choice)
    solution = solve(kept, Y, ridge, preconditioner=near, tolerance=tolerance)
    weights, steps = solution.x, solution.steps
    if not rounded:
        return DualWeights(weights, ridge, steps=steps)
    exact = KernelOperator(model, X, memory=memory, **choice)
    sizes = np.linalg.norm(Y, axis=0)
    for _ in range(_CORRECTIONS):
        residual = Y - (exact @ weights + ridge * weights)
        if (np.linalg.norm(residual, axis=0) <= tolerance * sizes).all():
            return DualWeights(weights, ridge, steps=steps)
        solution = solve(kept, residual, ridge, preconditioner=near, tolerance=_COARSE)
        weights, steps = weights + solution.x, steps + solution.steps
    raise _corrections_failed(ridge, _CORRECTIONS, memory)


def _candidates(K: FloatArray) -> FloatArray:
    """Return 61 ridges of equal ratio, from 1e-7 of the mean of the diagonal to its sum."""
    total = float(np.trace(K))
    # A kernel of zeros has no scale, and the same fit for every ridge.
    return np.geomspace(1e-7 * total / len(K), total, 61) if total > 0.0 else np.ones(1)


def _cholesky_solution(K: FloatArray, Y: FloatArray, ridge: float, owner: str) -> FloatArray:
    K[np.diag_indices_from(K)] += ridge
    try:
        factor = cho_factor(K, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        raise _ridge_too_small(ridge, owner) from None
    weights = np.asarray(cho_solve(factor, Y, check_finite=False))
    solver_checks.resolved(K, weights, Y, ridge, owner, ", and ridge='gcv' finds one")
    return weights


def _kept_kernel(
    model: Model, X: FloatArray, memory: int, choice: dict[str, Any]
) -> tuple[KernelOperator, bool]:
    """Return an operator that keeps its tiles in the best precision that fits, and if it rounds."""
    for cache in _CACHES:
        with contextlib.suppress(NotEnoughMemory):
            operator = KernelOperator(model, X, memory=memory, cache=cache, **choice)
            return operator, cache == "float32"
    return KernelOperator(model, X, memory=memory, **choice), False


def _ridge_too_small(ridge: float, owner: str) -> InvalidInput:
    """Word the error for a kernel that has no inverse in double precision, ridge included."""
    remedy = "The kernel is singular to double precision: use a larger ridge, or ridge='gcv'."
    return checks.refusal("ridge", owner, "make the kernel positive definite", f"{ridge:g}", remedy)


def _corrections_failed(ridge: float, rounds: int, memory: int) -> NotConverged:
    """Word the error for a float32 kernel whose solution cannot be corrected."""
    return NotConverged(
        f"The solution with a kernel kept in float32 did not become that of the exact kernel in "
        f"{rounds} corrections: ridge = {ridge:g} is too small for it. Use a larger ridge, or a "
        f"larger memory than {memory / 2**30:.3g} GiB, so that float64 fits."
    )

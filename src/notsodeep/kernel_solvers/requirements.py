"""What the functions of this package require of linear systems and their solutions."""

from __future__ import annotations

import numpy as np
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged


def symmetric_matrix(operator: object, owner: str) -> LinearOperator:
    """Require a square matrix or operator; of a matrix also that it is symmetric and finite."""
    if isinstance(operator, np.ndarray):
        matrix = checks.real_array(operator, "operator", owner)
        _square(matrix.shape, owner)
        size = float(np.abs(matrix).max(initial=0.0))
        gap = float(np.abs(matrix - matrix.T).max(initial=0.0))
        if gap > 1e-8 * size:
            got = f"|K − Kᵀ| up to {gap:.3g} in a matrix with entries up to {size:.3g}"
            raise checks.invalid("operator", owner, "be symmetric", got)
        return aslinearoperator(matrix)
    if not isinstance(operator, LinearOperator):
        remedy = "KernelOperator, a dense kernel matrix and scipy LinearOperators all will do."
        requirement = "be an array or a scipy LinearOperator"
        raise checks.invalid("operator", owner, requirement, type(operator).__name__, remedy)
    _square(operator.shape, owner)
    if np.dtype(operator.dtype).kind not in "fiu":
        raise checks.invalid("operator", owner, "be real", f"dtype {operator.dtype}")
    return operator


def _square(shape: tuple[int, ...], owner: str) -> None:
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        remedy = "For the kernel of training samples leave Y out."
        raise checks.invalid("operator", owner, "be square", f"shape {shape}", remedy)


def preconditioner(given: object, n: int, owner: str) -> LinearOperator | None:
    """Require None, or an operator that stands for the inverse of an n × n matrix."""
    if given is None:
        return None
    if not isinstance(given, LinearOperator | np.ndarray) or given.shape != (n, n):
        requirement = f"be an operator of shape ({n}, {n}), or None"
        got = f"shape {given.shape}" if hasattr(given, "shape") else type(given).__name__
        raise checks.invalid("preconditioner", owner, requirement, got)
    return aslinearoperator(given)


def right_hand_sides(B: object, n: int, parameter: str, owner: str) -> FloatArray:
    """Require finite numbers of shape (n,) or (n, k), k ≥ 1."""
    array = checks.real_array(B, parameter, owner)
    if array.ndim not in (1, 2) or len(array) != n or 0 in array.shape:
        requirement = f"have shape ({n},) or ({n}, k)"
        raise checks.invalid(parameter, owner, requirement, f"shape {array.shape}")
    return array


def regression_targets(Y: object, n: int, owner: str) -> FloatArray:
    """Require right-hand sides whose squares, the errors of a fit, neither vanish nor overflow."""
    array = right_hand_sides(Y, n, "Y", owner)
    checks.powers_finite(array, "Y", owner)
    checks.powers_nonzero(array, "Y", owner)
    return array


def ridges(values: object, owner: str, parameter: str = "ridges") -> FloatArray:
    """Require a non-empty sequence of positive numbers."""
    array = np.atleast_1d(checks.real_array(values, parameter, owner))
    if array.ndim != 1 or not array.size or not (array > 0.0).all():
        remedy = "numpy.logspace(-4, 1, 30) is a usual choice for kernels of unit diagonal."
        got = f"shape {array.shape}" if array.ndim != 1 or not array.size else float(array.min())
        raise checks.invalid(parameter, owner, "be positive numbers, at least one", got, remedy)
    return array


def ridges_solved(
    ridges: FloatArray,
    residuals: FloatArray,
    tolerance: float,
    rounding: bool,
    norm: float,
    record: object,
) -> None:
    """Require residuals within the tolerance; `rounding` tells what keeps the worst of them up."""
    missed = ~(residuals <= tolerance)
    if not missed.any():
        return
    cause = "in the steps allowed"
    remedy = "Allow more steps, leave the small ridges out, or use solve() with a preconditioner."
    if rounding:
        cause = "because of rounding errors"
        enough = checks.sufficient_ridge(norm, tolerance)
        remedy = f"Leave the small ridges out: from {enough:.1g} on they are sure to be solved."
    raise NotConverged(
        f"{missed.sum()} of {len(ridges)} ridges, up to {ridges[missed].max():.3g}, were not "
        f"solved to a relative {tolerance:g} {cause} (residual {residuals.max():.3g}). {remedy}",
        record,
    )


def at_most(number: int, most: int, parameter: str, owner: str, why: str) -> None:
    """Require number ≤ most."""
    if number > most:
        raise checks.invalid(parameter, owner, f"be at most {most}, {why}", number)

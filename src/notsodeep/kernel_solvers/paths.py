"""Regularised fits with a kernel for many ridges, or many stopping times, at the price of one.

With K = U diag(w) Uᵀ a fit to Y with filter s (the share of each eigendirection that is left out)
is K α = U (1 − s(w)) UᵀY: ridge s = λ/(w + λ), gradient flow until time t s = exp(−tw).  On a
Krylov space of K and Y the same formula holds with its Ritz values and vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.structured_matrix import row_blocks
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernel_solvers.lanczos import (
    SpectralDensity,
    krylov_spaces,
    next_check,
    spectral_density,
)
from notsodeep.kernel_solvers.solve import right_hand_sides, symmetric_matrix
from notsodeep.records import NOT_STORED, Plotted

Score = Literal["generalised_cross_validation", "leave_one_out"]

MAX_LAPACK_ROWS = 32_766
"""Rows beyond which eigenvectors overflow LAPACK's 32-bit integers: the workspace of dsyevd, 1 + 6n
+ 2n² numbers, passes 2³¹."""


@dataclass(frozen=True, eq=False)
class SpectralBasis:
    """Eigenvalues, eigenvectors and the targets in terms of them."""

    values: FloatArray  # (m,)
    vectors: FloatArray  # (n, m)
    targets: FloatArray  # (m, k): UᵀY; Y lies in the span of U
    # (s, m): K U = U diag(values) + Q·tail with orthonormal Q orthogonal to U; s = 0 if all n
    # eigenvectors are there.
    tail: FloatArray
    density: SpectralDensity | None  # for traces, if not all eigenvalues are there

    def trace(self, function: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
        """Return tr f(K) and its standard error."""
        if self.density is None:
            return float(function(self.values).sum()), 0.0
        value, error = self.density.average(function)
        return self.density.size * value, self.density.size * error

    def combine(self, weights: FloatArray) -> FloatArray:
        """U diag(weights) UᵀY, shape (n, k)."""
        return np.asarray(self.vectors @ (weights[:, None] * self.targets))

    def squared(self, weights: FloatArray) -> float:
        """‖U diag(weights) UᵀY‖², of all columns together."""
        return float(np.square(weights[:, None] * self.targets).sum())

    def outside(self, weights: FloatArray) -> float:
        """‖Q·tail·diag(weights) UᵀY‖, what K does beyond the space; the worst column over ‖y‖."""
        return self._worst_share(self.tail @ (weights[:, None] * self.targets))

    def residual(self, weights: FloatArray) -> float:
        """Return the relative residual of α = U diag(weights) UᵀY, with 2.2e-16·‖K‖·‖α‖."""
        unit = float(np.finfo(np.float64).eps) * float(np.abs(self.values).max())
        rounding = unit * self._worst_share(weights[:, None] * self.targets)
        return self.outside(weights) + rounding

    def _worst_share(self, columns: FloatArray) -> float:
        """Return the largest ‖column‖/‖y‖, of the columns y that are not zero."""
        sizes = np.linalg.norm(self.targets, axis=0)
        shares = np.linalg.norm(columns, axis=0) / np.where(sizes > 0.0, sizes, 1.0)
        return float(shares.max())

    def diagonal(self, weights: FloatArray) -> FloatArray:
        """Return the diagonal of U diag(w) Uᵀ for each column w of the weights (m, j): (n, j)."""
        n = len(self.vectors)
        result = np.empty((n, weights.shape[1]))
        for rows in row_blocks(n):
            result[rows] = np.square(self.vectors[rows]) @ weights
        return result


@dataclass(frozen=True, eq=False, repr=False)
class RidgePath(Plotted):
    """Fits Kα for many ridges or times; squared errors are means over all entries of Y."""

    _drawing = "ridge_path"

    axis: Literal["ridge", "time"]
    values: FloatArray  # (m,): λ or t, as given
    training_error: FloatArray  # (m,): mean of (Y − Kα)²
    effective_dimension: FloatArray  # (m,): tr (1 − s(K)), for a ridge tr K(K + λI)⁻¹
    effective_dimension_error: FloatArray  # (m,): its standard error; 0 for a matrix
    generalised_cross_validation: FloatArray  # (m,): training_error/(1 − effective_dimension/n)²
    # (m,): mean squared error of each sample's prediction from all the others, in closed form:
    # α_i/[(K + λI)⁻¹]_ii.  None for a flow, and for an operator, whose inverse has no known
    # diagonal.
    leave_one_out: FloatArray | None
    residual: FloatArray  # (m,): of α, the worst column's, rounding errors of K included
    tolerance: float  # above which residual an α is not called a solution
    _shape: tuple[int, ...]
    _spectral_basis: SpectralBasis | None = field(default=None, repr=False, metadata=NOT_STORED)

    @property
    def _basis(self) -> SpectralBasis:
        if self._spectral_basis is None:
            raise InvalidInput(
                "The JSON form of a RidgePath holds its curves, not the eigenvectors that its "
                "coefficients are made of. Compute it again with ridge_path."
            )
        return self._spectral_basis

    def best(self, score: Score = "generalised_cross_validation") -> float:
        """Return the value with the lowest score, of those solved to the tolerance."""
        known = ["generalised_cross_validation"]
        known += ["leave_one_out"] if self.leave_one_out is not None else []
        checks.known_name(score, known, "score")
        solved = self.residual <= self.tolerance
        if not solved.any():
            self._require(self.values)
        return float(self.values[solved][np.argmin(getattr(self, score)[solved])])

    def coefficients(self, value: float, *, raises: bool = True) -> FloatArray:
        """Return α, shaped as Y, for any ridge or time; `NotConverged` above the tolerance."""
        level = checks.positive_number(value, self.axis, "coefficients")
        if raises:
            self._require(np.array([level]))
        weights = _response(self.axis, self._basis.values, level)
        return self._basis.combine(weights).reshape(self._shape)

    def _require(self, values: FloatArray) -> None:
        """Raise `NotConverged` unless α for these ridges or times, shape (m,), are solutions."""
        basis = self._basis
        weights = [_response(self.axis, basis.values, value) for value in values]
        residuals = np.array([basis.residual(row) for row in weights])
        missed = ~(residuals <= self.tolerance)
        if not missed.any():
            return
        cause = "in the steps allowed"
        remedy = "Allow more steps, or leave the small ridges and late times out."
        if max(basis.outside(row) for row in weights) <= self.tolerance:
            cause = "because of rounding errors"
            remedy = "Stop earlier."
            if self.axis == "ridge":
                norm = float(np.abs(basis.values).max())
                enough = checks.sufficient_ridge(norm, self.tolerance)
                remedy = f"Leave small ridges out: from {enough:.1g} on they are sure to be solved."
        raise NotConverged(
            f"{missed.sum()} of {len(values)} {self.axis}s, {values[missed].min():.3g} to "
            f"{values[missed].max():.3g}, were not solved to a relative {self.tolerance:g} {cause} "
            f"(residual {residuals.max():.3g}). {remedy}",
            self,
        )


def ridge_path(
    K: FloatArray | LinearOperator,
    Y: ArrayLike,
    ridges: ArrayLike | None = None,
    *,
    times: ArrayLike | None = None,
    tolerance: float = 1e-6,
    max_steps: int = 200,
    probes: int = 10,
    rng: int | np.random.Generator = 0,
    raises: bool = True,
) -> RidgePath:
    """Solve (K + λI) α = Y for many λ, or follow gradient flow to many times, and score each.

    A matrix is decomposed once.  An operator is multiplied with blocks of as many vectors as Y has
    until one Krylov space holds the solutions for every λ; traces are estimated with random probes.
    The smallest λ decides how large the space must be, and it cannot be preconditioned: for single
    small λ at large n use `solve`.  The flow is dα/dt = Y − Kα, so that Kα(t) = (I − exp(−tK)) Y:
    the training of an infinitely wide network (tangent kernel) by small steps of gradient descent,
    t = number of steps × learning rate.

    Parameters
    ----------
    K : ndarray or LinearOperator of shape (n, n)
        Symmetric, positive semidefinite.
    Y : array_like of shape (n,) or (n, k)
        Targets; centre them if the fit is to have a mean.
    ridges, times : array_like of shape (m,)
        One of them: λ > 0, added to the diagonal of K as it is, or t > 0.
    tolerance : float
        Relative residual.  Rounding errors of a matrix leave one of 2.2e-16·‖K‖·‖α‖/‖Y‖.
    max_steps, probes, rng
        Concern operators only: most block products, random vectors for traces.
    raises : bool, default True
        Raise `NotConverged` if the residual of some λ stays above the tolerance.

    Examples
    --------
    >>> K, y = np.diag([4.0, 1.0, 0.1]), np.array([2.0, 1.0, 0.0])
    >>> path = ridge_path(K, y, [0.1, 1.0, 10.0])
    >>> path.training_error.round(4), path.effective_dimension.round(4)
    (array([0.0035, 0.1367, 0.9558]), array([2.3847, 1.3909, 0.3865]))
    >>> path.coefficients(1.0), path.best("leave_one_out")
    (array([0.4, 0.5, 0. ]), 0.1)
    >>> ridge_path(np.diag([1.0, 2.0]), [1.0, 1.0], times=[0.5, 50.0]).coefficients(50.0)
    array([1. , 0.5])
    """
    matrix = symmetric_matrix(K)
    given = right_hand_sides(Y, matrix.shape[0], "Y")
    checks.powers_finite(given, "Y", "ridge_path")
    checks.powers_nonzero(given, "Y", "ridge_path")
    if (ridges is None) == (times is None):
        raise InvalidInput("Either ridges or times must be given, and not both.")
    axis: Literal["ridge", "time"] = "ridge" if times is None else "time"
    levels = np.atleast_1d(checks.real_array(ridges if times is None else times, f"{axis}s", ""))
    if levels.ndim != 1 or not levels.size or not (levels > 0.0).all():
        raise InvalidInput(
            f"{axis}s must be positive numbers, at least one, got {levels.tolist()}."
        )
    rtol = checks.positive_number(tolerance, "tolerance", "ridge_path")
    columns = given.reshape(len(given), -1)
    if isinstance(K, np.ndarray):
        basis = dense_basis(np.asarray(K, dtype=np.float64), columns)
    else:
        steps = checks.positive_integer(max_steps, "max_steps", "ridge_path")
        density = spectral_density(matrix, probes=probes, rng=rng)
        basis = _krylov_basis(matrix, columns, axis, levels, rtol, steps, density)
    least = float(basis.values.min())
    if axis == "ridge" and not least + levels.min() > 0.0:
        raise InvalidInput(
            f"ridges must exceed {-least:.3g}, so that K + λI is positive definite, got "
            f"{levels.min():.3g}."
        )
    path = _scored(basis, axis, levels, rtol, given.shape)
    if raises:
        path._require(levels)
    return path


def _scored(
    basis: SpectralBasis,
    axis: Literal["ridge", "time"],
    levels: FloatArray,
    tolerance: float,
    shape: tuple[int, ...],
) -> RidgePath:
    values, n, entries = basis.values, shape[0], int(np.prod(shape))
    nodes = values if basis.density is None else basis.density.nodes
    lowest = float(min(values.min(), nodes.min()))
    rows, loo = [], []
    for level in levels:
        weights = _response(axis, values, level)

        def left_out(w: FloatArray, level: float = level, shift: float = 0.0) -> FloatArray:
            if axis == "ridge":
                return np.asarray(level / (w + level))
            # Cut off at 100: eigenvalues that are rounding errors below zero grow without bound.
            return np.exp(np.minimum(-level * (w - shift), 100.0))

        dimension, error = basis.trace(lambda w, s=left_out: 1.0 - s(w))  # type: ignore[misc]
        # The score does not feel a factor common to all of the filter, and this one keeps late
        # times from underflow.
        share = basis.trace(lambda w, s=left_out: s(w, shift=lowest))[0] / n  # type: ignore[misc]
        gcv = basis.squared(left_out(values, shift=lowest)) / entries / share**2
        training = basis.squared(left_out(values)) / entries
        rows.append((training, dimension, error, gcv, basis.residual(weights)))
        if axis == "ridge" and basis.density is None:
            inverse = basis.diagonal(weights[:, None])
            loo.append(np.square(basis.combine(weights) / inverse).mean())
    training, dimension, error, gcv, residual = np.array(rows).T
    return RidgePath(
        axis, levels, training, dimension, error, gcv, np.array(loo) if loo else None, residual,
        tolerance, shape, basis,
    )  # fmt: skip


def _response(axis: str, values: FloatArray, level: float) -> FloatArray:
    """Return what multiplies the targets at the eigenvalues w: 1/(w + λ), or (1 − exp(−tw))/w."""
    if axis == "ridge":
        return np.asarray(1.0 / (values + level))
    exponent = np.minimum(-level * values, 100.0)
    # The next term of the limit's series, tw/2, is below rounding; expm1 is exact for all others.
    small = np.abs(exponent) < 1e-16
    return np.where(small, level, -np.expm1(exponent) / np.where(small, 1.0, values))


def dense_basis(K: FloatArray, Y: FloatArray) -> SpectralBasis:
    """All eigenvectors of a matrix."""
    n = len(K)
    if n > MAX_LAPACK_ROWS:
        raise InvalidInput(
            f"K must have at most {MAX_LAPACK_ROWS} rows, the most that LAPACK's eigenvectors "
            f"allow, got {n}. Pass a KernelOperator."
        )
    checks.enough_memory(
        3 * 8 * n * n,
        f"The eigendecomposition of a {n} × {n} kernel",
        "Pass a KernelOperator, which is never held as a whole.",
    )
    values, vectors = np.linalg.eigh(K)
    return SpectralBasis(values, vectors, vectors.T @ Y, np.empty((0, n)), None)


def _krylov_basis(
    matrix: LinearOperator,
    Y: FloatArray,
    axis: str,
    levels: FloatArray,
    tolerance: float,
    max_steps: int,
    density: SpectralDensity,
) -> SpectralBasis:
    """Grow a Krylov space of Y until it holds all solutions, or `max_steps` are done."""
    check = 4
    for step, space in enumerate(krylov_spaces(matrix, Y, max_steps), 1):
        if not space.complete and step not in (check, max_steps):
            continue
        check = next_check(step)
        values, axes, tail = space.ritz()
        targets = axes[: len(space.start)].T @ space.start
        basis = SpectralBasis(values, np.empty((len(Y), 0)), targets, tail, density)
        if all(basis.outside(_response(axis, values, level)) <= tolerance for level in levels):
            break
    return SpectralBasis(values, space.basis @ axes, targets, tail, density)

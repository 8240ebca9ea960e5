"""Solving (K + λI) x = B by preconditioned block conjugate gradients.

One block method for all right-hand sides, not one recurrence for each: a product of a kernel with
ten vectors costs little more than with one, and a search in all their directions at once needs
fewer of them (digits with ten targets: two thirds of the steps).  The block is kept well
conditioned as in Dubrulle, "Retooling the method of block conjugate gradients" (ETNA 12, 2001):
the residuals are R = Q C with QᵀM⁻¹Q = I, so that right-hand sides which depend on one another, or
converge one before the other, make C singular and leave the recurrence alone.  Directions that are
lost to rounding leave the block.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted
from notsodeep.threads import single_blas_thread

Product = Callable[[FloatArray], FloatArray]

RANK_TOL = 1e-13
"""Share of the largest eigenvalue of RᵀM⁻¹R below which a direction of R is rounding: these are
squares of lengths, and a direction is dropped below 3e-7 of the longest."""

STAGNATION = 0.5
"""A cycle that leaves more than this of the true residual was in vain."""

MAX_GROWTH = 1e10
"""Conjugate gradients lower the energy norm of the error in every step, so that residuals grow by
at most the root of the condition number, 7e7 in double precision: beyond, K + λI is singular."""


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Plotted):
    """Outcome of a solve of (K + λI) x = B."""

    _drawing = "solution"

    x: FloatArray  # as B
    converged: bool
    steps: int  # products of the operator with a block of vectors that the iteration took
    residual: FloatArray  # (k,): ‖B − (K + λI) x‖/‖B‖ of every column, computed from x itself
    residuals: FloatArray  # (steps + 1, k): after every step, as the iteration carried it along
    seconds: float
    reason: str  # why the iteration ended

    @property
    def worst(self) -> FloatArray:
        """Largest relative residual of any column after every step, shape (steps + 1,)."""
        return np.asarray(self.residuals.max(axis=1))

    def __str__(self) -> str:
        return (
            f"{self.reason} after {self.steps} steps and {self.seconds:.3g} s, relative residual "
            f"{self.residual.max():.2e} of {self.residuals.shape[1]} right-hand sides"
        )


def solve(
    operator: LinearOperator | FloatArray,
    B: ArrayLike,
    ridge: float,
    *,
    preconditioner: LinearOperator | None = None,
    tolerance: float = 1e-6,
    max_steps: int = 1000,
    start: ArrayLike | None = None,
    progress: bool = True,
    raises: bool = True,
) -> Solution:
    """Solve (K + λI) x = B by preconditioned block conjugate gradients.

    The iteration ends when ‖b − (K + λI) x‖ ≤ tolerance·‖b‖ for every column b of B.  That is
    checked with x itself; if rounding has led the recurrence astray, it begins again from there.

    Parameters
    ----------
    operator : LinearOperator or ndarray of shape (n, n)
        K, symmetric and positive semidefinite: `KernelOperator`, a matrix, anything that
        multiplies.  It is only ever multiplied with blocks of as many vectors as B has.
    B : array_like of shape (n,) or (n, k)
    ridge : float
        λ ≥ 0, added to the diagonal of K as it is: not multiplied by n.
    preconditioner : LinearOperator, optional
        Approximate inverse of K + λI, positive definite: `preconditioner`, or ``eq.inverse(ridge)``
        of an equivalent, with the same λ.
    tolerance : float
    max_steps : int
        Most products with the operator.
    start : array_like of the shape of B, optional
        Where to start, for instance the solution for a neighbouring λ; zero by default.
    progress : bool
        Show a progress bar on a terminal.
    raises : bool, default True
        Raise `NotConverged` on failure; otherwise return the record with ``converged=False``.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(200, 300, rng=0)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> K = nsd.kernel(deq, X, kind="ntk")
    >>> near = nsd.sphere_equivalent(deq, X, kind="ntk").inverse(0.01)
    >>> solve(K, X[:, :3], 0.01).steps, solve(K, X[:, :3], 0.01, preconditioner=near).steps
    (24, 3)
    """
    began = time.perf_counter()
    matrix = symmetric_matrix(operator)
    n = matrix.shape[0]
    given = right_hand_sides(B, n, "B")
    level = checks.at_least_zero(ridge, "ridge", "solve")
    rtol = checks.positive_number(tolerance, "tolerance", "solve")
    most = checks.positive_integer(max_steps, "max_steps", "solve")
    if preconditioner is not None:
        if getattr(preconditioner, "shape", None) != (n, n):
            raise InvalidInput(
                f"preconditioner must be an operator of shape ({n}, {n}), got {preconditioner!r}."
            )
        preconditioner = aslinearoperator(preconditioner)
    columns = given.reshape(n, -1)
    first = np.zeros_like(columns)
    if start is not None:
        first = right_hand_sides(start, n, "start").reshape(n, -1)
        if first.shape != columns.shape:
            raise InvalidInput(
                f"start must have the shape of B, {columns.shape}, got {first.shape}."
            )
    # By way of the largest entry: squares of very small or large ones leave the range.
    largest = np.abs(columns).max(axis=0)
    largest[largest == 0.0] = 1.0
    norms = largest * _norms(columns / largest)
    norms = np.where(norms > 0.0, norms, 1.0)
    run = _Run(matrix, level, preconditioner, columns / norms)
    with contextlib.ExitStack() as stack:
        if not isinstance(operator, np.ndarray):
            # Idle threads of a BLAS library spin, and would slow down those that make the tiles.
            stack.enter_context(single_blas_thread())
        report = stack.enter_context(progress_bar("solving: digits gained", enabled=progress))
        reason, remedy = run.iterate(first / norms, rtol, most, report)
    solution = Solution(
        x=(run.x * norms).reshape(given.shape),
        converged=reason == "converged",
        steps=len(run.history) - 1,
        residual=run.true_residual,
        residuals=np.array(run.history),
        seconds=time.perf_counter() - began,
        reason=reason,
    )
    if raises and not solution.converged:
        raise NotConverged(
            f"(K + {level:g} I) x = B was not solved to a relative {rtol:g}: {reason} (residual"
            f" {solution.residual.max():.3g} after {solution.steps} steps). {remedy}",
            solution,
        )
    return solution


class _NotPositive(ArithmeticError):
    """dᵀA d ≤ 0 for a direction d: A is not positive definite."""


class _Run:
    """Cycles of conjugate gradients for A x = B, A = K + λI, columns of B of norm one."""

    def __init__(
        self, K: LinearOperator, ridge: float, P: LinearOperator | None, B: FloatArray
    ) -> None:
        self._K, self._ridge, self._P, self._B = K, ridge, P, B

    def iterate(
        self, x: FloatArray, tolerance: float, max_steps: int, report: Callable[[int, int], None]
    ) -> tuple[str, str]:
        """Iterate to the end; return the reason, and what would help."""
        self.x, R = x, self._residuals(x)
        self.true_residual = _norms(R)
        self.history = [self.true_residual]
        previous = np.inf
        digits = max(1e-9, -np.log10(tolerance))
        while True:
            try:
                for worst in self._cycle(R, tolerance, max_steps):
                    gained = -np.log10(max(worst, tolerance)) / digits
                    report(int(100 * np.clip(gained, 0.0, 1.0)), 100)
            except _NotPositive:
                self.true_residual = _norms(self._residuals(self.x))
                return "K + λI is not positive definite", (
                    "Use a larger ridge: a cached float32 kernel has eigenvalues as low as −6e-8 "
                    "times its norm."
                )
            # The recurrence's residual may keep falling when that of x no longer does.
            R = self._residuals(self.x)
            self.true_residual = _norms(R)
            worst = float(self.true_residual.max())
            if worst <= tolerance:
                return "converged", ""
            if len(self.history) > max_steps:
                return f"no convergence in {max_steps} steps", (
                    "Allow more steps, use a preconditioner of higher rank, or a larger ridge."
                )
            if worst > STAGNATION * previous:
                return "rounding errors of the products with K stop the convergence", (
                    "Use cache='float64' or a larger tolerance."
                )
            previous, self.history[-1] = worst, self.true_residual

    def _cycle(self, R: FloatArray, tolerance: float, max_steps: int) -> Iterator[float]:
        """Conjugate gradients from x with residuals R; yield the worst residual of the recurrence.

        With D the directions and α = (DᵀAD)⁻¹: x ← x + DαC, Q′F = Q − ADα, C ← FC, D ← PQ′ + DFᵀ.
        """
        Q, D, C = self._orthonormal(R)
        worst = float(_norms(Q @ C).max())
        while worst > tolerance and len(self.history) <= max_steps:
            image = self._multiply(D)
            energy = D.T @ image
            values, axes = np.linalg.eigh(0.5 * (energy + energy.T))
            if not values[0] > 0.0:
                raise _NotPositive
            inverse = (axes / values) @ axes.T
            x = self.x + D @ (inverse @ C)
            Q, Z, F = self._orthonormal(Q - image @ inverse)
            C, D = F @ C, Z + D @ F.T
            self.x = x
            self.history.append(_norms(Q @ C))
            worst = float(self.history[-1].max())
            if not worst <= MAX_GROWTH * max(1.0, float(self.history[0].max())):
                raise _NotPositive
            yield worst

    def _orthonormal(self, R: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return Q, P Q and F with R = Q F and QᵀPQ = I, P the preconditioner.

        By eigenvalues of RᵀPR, twice: the first time leaves an error of their condition number.
        """
        Z = R.copy() if self._P is None else np.asarray(self._P @ R)
        factor = np.eye(R.shape[1])
        for _ in range(2):
            inner = R.T @ Z
            values, axes = np.linalg.eigh(0.5 * (inner + inner.T))
            largest = float(values.max(initial=0.0))
            if not np.any(R):  # all right-hand sides are solved: an empty block
                values = np.zeros_like(values)
            # Inverses by Woodbury's identity have errors of eps‖K‖/λ, which may be 1e-8 and more.
            elif not largest > 0.0 or values.min() < -1e-6 * largest:
                raise InvalidInput(
                    f"preconditioner must be positive definite, got rᵀPr between {values.min():.3g}"
                    f" and {largest:.3g}. Make it with the ridge of the system."
                )
            mask = values > RANK_TOL * largest
            root, across = np.sqrt(values[mask]), axes[:, mask]
            R, Z = R @ (across / root), Z @ (across / root)
            factor = (root[:, None] * across.T) @ factor
        return R, Z, factor

    def _multiply(self, V: FloatArray) -> FloatArray:
        return np.asarray(self._K @ V + self._ridge * V)

    def _residuals(self, x: FloatArray) -> FloatArray:
        return self._B - self._multiply(x) if np.any(x) else self._B


def symmetric_matrix(operator: object) -> LinearOperator:
    """Require a square matrix or operator; of a matrix also that it is symmetric and finite."""
    if isinstance(operator, np.ndarray):
        matrix = checks.real_array(operator, "operator", "a kernel solver")
        _require_square(matrix.shape)
        size = float(np.abs(matrix).max(initial=0.0))
        gap = float(np.abs(matrix - matrix.T).max(initial=0.0))
        if gap > 1e-8 * size:
            raise InvalidInput(
                f"operator must be symmetric, got |K − Kᵀ| of {gap:.3g} beside |K| of {size:.3g}."
            )
        return aslinearoperator(matrix)
    if not isinstance(operator, LinearOperator):
        raise InvalidInput(
            f"operator must be an array or a scipy LinearOperator, got {type(operator).__name__}."
        )
    _require_square(operator.shape)
    if np.dtype(operator.dtype).kind not in "fiu":
        raise InvalidInput(f"operator must be real, got dtype {operator.dtype}.")
    return operator


def _require_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise InvalidInput(f"operator must be square, got shape {shape}.")


def right_hand_sides(B: object, n: int, parameter: str) -> FloatArray:
    """Require finite numbers of shape (n,) or (n, k), k ≥ 1."""
    array = checks.real_array(B, parameter, "a kernel solver")
    if array.ndim not in (1, 2) or len(array) != n or 0 in array.shape:
        raise InvalidInput(
            f"{parameter} must have shape ({n},) or ({n}, k), got shape {array.shape}."
        )
    return array


def _norms(columns: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.norm(columns, axis=0))

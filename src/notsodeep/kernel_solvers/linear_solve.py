"""Solving (K + λI) x = B for several right-hand sides, with a record as the answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.files.stored_states import state_lock
from notsodeep.kernel_solvers import requirements
from notsodeep.kernel_solvers.block_cg import NotPositive, advance, begin
from notsodeep.kernel_solvers.checkpoints import Problem, Progress, SolveCheckpoints
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted
from notsodeep.threads import single_blas_thread

_STAGNATION = 0.5  # a cycle that leaves more than this of the true residual was in vain
_CONVERGED = "converged"
# Conjugate gradients lower the energy norm of the error in every step, so that residuals grow by at
# most the root of the condition number, 7e7 in double precision: beyond, K + λI is singular.
_GROWTH = 1e10


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Plotted):
    """Outcome of a solve of (K + λI) x = B.

    Attributes
    ----------
    x : ndarray of shape (n,) or (n, k)
        As B.
    converged : bool
    steps : int
        Products of the operator with a block of vectors that the iteration took.
    residual : ndarray of shape (k,)
        ‖B − (K + λI) x‖/‖B‖ of every column, computed from x itself.
    residuals : ndarray of shape (steps + 1, k)
        The same after every step, as the iteration carried it along; `worst` is its maximum.
    seconds : float
        Time of the solve, without what an earlier run did before this one resumed.
    reason : str
        Why the iteration ended.

    Examples
    --------
    >>> solution = solve(np.diag([1.0, 2.0, 3.0]), np.ones(3), ridge=1.0)
    >>> solution.x.round(6), solution.converged, solution.steps
    (array([0.5     , 0.333333, 0.25    ]), True, 3)
    >>> bool(solution.residual.max() < 1e-6), len(solution.worst)
    (True, 4)
    """

    _drawing = "solution"

    x: FloatArray
    converged: bool
    steps: int
    residual: FloatArray
    residuals: FloatArray
    seconds: float
    reason: str

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
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
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
        Approximate inverse of K + λI, positive definite: `equivalent_preconditioner`,
        `nystrom_preconditioner` or `combined_preconditioner`, made with the same λ.
    tolerance : float
    max_steps : int
        Most products with the operator, those of an earlier run that is resumed included.
    start : array_like of the shape of B, optional
        Where to start, for instance the solution for a neighbouring λ; zero by default.  Not used
        if a checkpoint is there.
    checkpoint : path, optional
        A directory that keeps the state of the iteration, every `checkpoint_seconds`, at the end
        and on Ctrl-C.  If it holds the state of the same problem, the solve resumes from it and
        takes the very steps that an uninterrupted one would have taken.
    checkpoint_seconds : float
    progress : bool
        Show a progress bar on a terminal.
    raises : bool, default True
        Raise `NotConverged` on failure; otherwise return the record with ``converged=False``.

    Raises
    ------
    NotConverged
        The tolerance was not met, or K + λI is not positive definite; its `record` holds what was
        reached.
    InvalidInput
        An argument cannot be used, or the checkpoint belongs to another problem.
    DataCorrupted
        The checkpoint is damaged.
    LockTimeout
        Another process works in the checkpoint's directory.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.kernel_solvers import equivalent_preconditioner
    >>> X = nsd.data.sphere(200, 300, rng=0)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> K = nsd.KernelOperator(deq, X, kind="ntk")
    >>> near = equivalent_preconditioner(nsd.sphere_equivalent(deq, X, kind="ntk"), 0.01)
    >>> solve(K, X[:, :3], 0.01).steps, solve(K, X[:, :3], 0.01, preconditioner=near).steps
    (37, 2)
    """
    owner = "solve"
    began = time.perf_counter()
    matrix = requirements.symmetric_matrix(operator, owner)
    n = matrix.shape[0]
    given = requirements.right_hand_sides(B, n, "B", owner)
    level = checks.at_least_zero(ridge, "ridge", owner)
    near = requirements.preconditioner(preconditioner, n, owner)
    rtol = checks.positive_number(tolerance, "tolerance", owner)
    most = checks.positive_integer(max_steps, "max_steps", owner)
    seconds = checks.at_least_zero(checkpoint_seconds, "checkpoint_seconds", owner)
    columns = given.reshape(n, -1)
    first = np.zeros_like(columns)
    if start is not None:
        first = requirements.right_hand_sides(start, n, "start", owner).reshape(n, -1)
        _same_shape(first.shape, columns.shape, "start", "B", owner)
    system = _System(matrix, level, near, columns)
    with contextlib.ExitStack() as stack:
        if not isinstance(operator, np.ndarray):
            # Idle threads of a BLAS library spin, and would slow down those that make the tiles.
            stack.enter_context(single_blas_thread())
        store = None
        if checkpoint is not None:
            directory = Path(checkpoint)
            stack.enter_context(state_lock(directory))
            problem = Problem.of(matrix, columns, level, near)
            store = SolveCheckpoints(directory, problem, seconds)
        run = _Run(system, rtol, most, store)
        report = stack.enter_context(progress_bar("solving: digits gained", enabled=progress))
        for worst in run.steps(first):
            report(*_share_done(worst, rtol))
    reached = run.progress
    solution = Solution(
        x=(reached.state.x * system.norms).reshape(given.shape),
        converged=run.reason == _CONVERGED,
        steps=reached.steps,
        residual=run.true_residual,
        residuals=reached.history,
        seconds=time.perf_counter() - began,
        reason=run.reason,
    )
    if raises and not solution.converged:
        raise NotConverged(
            f"(K + {level:g} I) x = B was not solved to a relative {rtol:g}: {run.reason} (residual"
            f" {solution.residual.max():.3g} after {solution.steps} steps). {run.remedy}",
            solution,
        )
    return solution


def _share_done(worst: float, tolerance: float) -> tuple[int, int]:
    """Digits gained, out of those wanted, in hundredths."""
    wanted = max(1e-9, -np.log10(tolerance))
    gained = -np.log10(max(worst, tolerance))
    return int(100 * np.clip(gained / wanted, 0.0, 1.0)), 100


class _System:
    """K + λI and its preconditioner, and right-hand sides of norm one."""

    def __init__(
        self,
        matrix: LinearOperator,
        ridge: float,
        preconditioner: LinearOperator | None,
        columns: FloatArray,
    ) -> None:
        self._matrix, self._ridge, self._preconditioner = matrix, ridge, preconditioner
        # By way of the largest entry: squares of very small or large ones leave the range.
        largest = np.abs(columns).max(axis=0)
        largest[largest == 0.0] = 1.0
        norms = largest * _norms(columns / largest)
        self.norms = np.where(norms > 0.0, norms, 1.0)
        self.B = columns / self.norms

    def multiply(self, V: FloatArray) -> FloatArray:
        """(K + λI) V."""
        return np.asarray(self._matrix @ V + self._ridge * V)

    def precondition(self, V: FloatArray) -> FloatArray:
        """P V."""
        return V.copy() if self._preconditioner is None else np.asarray(self._preconditioner @ V)

    def residuals(self, x: FloatArray) -> FloatArray:
        """B − (K + λI) x."""
        return self.B - self.multiply(x) if np.any(x) else self.B


class _Run:
    """The iteration: cycles of conjugate gradients, each begun with the residual of x itself."""

    def __init__(
        self, system: _System, tolerance: float, max_steps: int, store: SolveCheckpoints | None
    ) -> None:
        self._system, self._tolerance, self._max_steps = system, tolerance, max_steps
        self._store = store
        self.true_residual = np.full(system.B.shape[1], np.inf)
        self.reason, self.remedy = "", ""

    def steps(self, first: FloatArray) -> Iterator[float]:
        """Iterate to the end; yield the worst residual after every step."""
        system = self._system
        self.progress = self._begin(first)
        try:
            while not self.reason:
                # `_worst` is the recurrence's residual, which may keep falling when that of x no
                # longer does.
                while self._worst > self._tolerance and self.progress.steps < self._max_steps:
                    state = advance(self.progress.state, system.multiply, system.precondition)
                    history = np.vstack([self.progress.history, state.residual_norms()])
                    # One assignment: Ctrl-C comes before it or after it.
                    self.progress = Progress(state, history)
                    self._write(now=False)
                    if not self._worst <= _GROWTH * max(1.0, float(history[0].max())):
                        raise NotPositive
                    yield self._worst
                self._judge()
        except NotPositive:
            self.true_residual = _norms(system.residuals(self.progress.state.x))
            self.reason = "K + λI is not positive definite"
            self.remedy = (
                "Use a larger ridge: a cached float32 kernel has eigenvalues as low as −6e-8 times "
                "its norm."
            )
        finally:
            # On Ctrl-C as well, and when the caller has had enough.
            self._write(now=True)

    @property
    def _worst(self) -> float:
        return float(self.progress.history[-1].max())

    def _begin(self, first: FloatArray) -> Progress:
        stored = None if self._store is None else self._store.read()
        if stored is not None:
            return stored
        x = first / self._system.norms
        state = begin(x, self._system.residuals(x), self._system.precondition)
        return Progress(state, state.residual_norms()[None])

    def _write(self, *, now: bool) -> None:
        if self._store is not None:
            self._store.write(self.progress, now=now)

    def _judge(self) -> None:
        """Compute the true residual; end, or begin another cycle."""
        x = self.progress.state.x
        residuals = self._system.residuals(x)
        before, self.true_residual = self.true_residual.max(), _norms(residuals)
        worst = self.true_residual.max()
        if worst <= self._tolerance:
            self.reason = _CONVERGED
        elif self.progress.steps >= self._max_steps:
            self.reason = f"no convergence in {self._max_steps} steps"
            self.remedy = (
                "Allow more steps, use a preconditioner of higher rank, or a larger ridge."
            )
        # The first cycle has nothing to be compared with: `before` is infinite.
        elif worst > _STAGNATION * before:
            self.reason = "rounding errors of the products with K stop the convergence"
            self.remedy = "Use cache='float64' or a larger tolerance."
        else:
            state = begin(x, residuals, self._system.precondition)
            history = np.vstack([self.progress.history[:-1], self.true_residual])
            self.progress = Progress(state, history)


def _norms(columns: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.norm(columns, axis=0))


def _same_shape(
    shape: tuple[int, ...], wanted: tuple[int, ...], parameter: str, other: str, owner: str
) -> None:
    """Require two arguments of one shape."""
    if shape != wanted:
        raise checks.invalid(
            parameter, owner, f"have the shape of {other}, {wanted}", f"shape {shape}"
        )

"""What kernel ridge regression and classification share: a model, its samples, dual weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.checks import FloatArray
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory
from notsodeep.estimators.kernel_matrices import (
    checked_model,
    given_model,
    kernel_matrix,
    root_mean_square_norm,
)
from notsodeep.estimators.theory_scaler import preprocessed_rows
from notsodeep.kernel_solvers.preconditioners import nystrom_preconditioner
from notsodeep.kernel_solvers.ridge_paths import Score, ridge_path
from notsodeep.kernel_solvers.solving import solve
from notsodeep.kernels import KernelOperator
from notsodeep.models import (
    Convention,
    ConvolutionalModel,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelModel,
    KernelName,
    kernel_name,
)

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
    model: KernelModel,
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
    checks.resolved(K, weights, Y, ridge, owner, ", and ridge='loo' finds one")
    return weights


def _kept_kernel(
    model: KernelModel, X: FloatArray, memory: int, choice: dict[str, Any]
) -> tuple[KernelOperator, bool]:
    """Return an operator that keeps its tiles in the best precision that fits, and if it rounds."""
    for cache in _CACHES:
        with contextlib.suppress(NotEnoughMemory):
            operator = KernelOperator(model, X, memory=memory, cache=cache, **choice)
            return operator, cache == "float32"
    return KernelOperator(model, X, memory=memory, **choice), False


def _ridge_too_small(ridge: float, owner: str) -> InvalidInput:
    """Word the error for a kernel that has no inverse in double precision, ridge included."""
    remedy = "The kernel is singular to double precision: use a larger ridge, or ridge='loo'."
    return checks.refusal("ridge", owner, "make the kernel positive definite", f"{ridge:g}", remedy)


def _corrections_failed(ridge: float, rounds: int, memory: int) -> NotConverged:
    """Word the error for a float32 kernel whose solution cannot be corrected."""
    return NotConverged(
        f"The solution with a kernel kept in float32 did not become that of the exact kernel in "
        f"{rounds} corrections: ridge = {ridge:g} is too small for it. Use a larger ridge, or a "
        f"larger memory than {memory / 2**30:.3g} GiB, so that float64 fits."
    )


SolverName = Literal["auto", "dense", "cg"]

DENSE_UP_TO = 10_000
"""Samples up to which solver="auto" is dense, if that takes at most half of the free memory."""


class EquilibriumKernelModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the kernel estimators: fits α = (K + λI)⁻¹ Y and evaluates K(x, X) α."""

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        kernel: KernelName = "tangent",
        convention: Convention = "preactivation",
        centred: bool = False,
        ridge: float | str = "loo",
        preprocessing: PreprocessingKind = "theory",
        solver: SolverName = "auto",
        tolerance: float = 1e-8,
        rank: int | None = None,
        memory: int = 4 << 30,
        model: KernelModel | None = None,
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.kernel = kernel
        self.convention = convention
        self.centred = centred
        self.ridge = ridge
        self.preprocessing = preprocessing
        self.solver = solver
        self.tolerance = tolerance
        self.rank = rank
        self.memory = memory
        self.model = model

    def _fit_dual(
        self, rows: FloatArray, targets: FloatArray, *, leave_out: bool = False
    ) -> DualWeights:
        """Fit to validated rows (n, p) and targets (n, k), and set the fitted attributes."""
        owner = type(self).__name__
        centred = checks.flag(self.centred, "centred", owner)
        kind: str = self.preprocessing
        pixels = None
        model: KernelModel
        if self.model is None:
            model = checked_model(
                self.activation, self.sigma_a2, self.kernel, self.convention, owner
            )
        else:
            model = given_model(self.model, self.kernel, self.convention, centred, owner)
        if isinstance(model, ConvolutionalModel):
            pixels = model.image_shape[0] * model.image_shape[1]
            kind = "pixels" if kind == "theory" else kind
        ridge = _ridge_or_rule(self.ridge, RULES, owner)
        tolerance = checks.positive_number(self.tolerance, "tolerance", owner)
        if self.rank is not None:
            checks.positive_integer(self.rank, "rank", owner)
        spectral = leave_out or isinstance(ridge, str)
        self.solver_ = self._chosen_solver(len(rows), spectral=spectral)
        if self.solver_ == "cg":
            ridge = _given_ridge(ridge, leave_out, len(rows), owner)
        self.preprocessing_ = Preprocessing.fit(rows, kind, pixels=pixels)
        self.X_fit_ = self.preprocessing_.apply(rows)
        self.model_ = model
        if centred and isinstance(model, DeepEquilibrium | ExplicitNetwork):
            self.model_ = model.centred(root_mean_square_norm(self.X_fit_))
        if self.solver_ == "dense":
            K = kernel_matrix(self.model_, self.X_fit_, **self._choice())
            weights = dense_weights(K, targets, ridge, leave_out=leave_out, owner=owner)
        else:
            weights = iterated_weights(
                self.model_,
                self.X_fit_,
                targets,
                float(ridge),
                tolerance=tolerance,
                rank=self.rank,
                memory=self.memory,
                choice=self._choice(),
            )
        self.dual_coef_ = weights.coefficients
        self.ridge_ = weights.ridge
        self.ridges_, self.ridge_scores_ = weights.ridges, weights.scores
        self.n_iter_ = weights.steps
        return weights

    def _chosen_solver(self, samples: int, *, spectral: bool) -> str:
        owner = type(self).__name__
        name = checks.known_name(self.solver, get_args(SolverName), f"solver of {owner}")
        needed = dense_bytes(samples, spectral=spectral)
        if name == "auto":
            fits = needed <= checks.available_memory() // 2
            return "dense" if samples <= DENSE_UP_TO and fits else "cg"
        if name == "dense":
            _dense_solver(needed, samples, owner)
        return name

    def _outputs(self, X: ArrayLike) -> FloatArray:
        """Return K(X, X_fit_) α for new rows, (m, k); the cross kernel never exists as a whole."""
        check_is_fitted(self)
        rows = preprocessed_rows(self, X)
        return np.asarray(
            KernelOperator(self.model_, rows, self.X_fit_, **self._choice()) @ self.dual_coef_
        )

    def _choice(self) -> dict[str, Any]:
        return {"kernel": kernel_name(self.kernel, "kernel"), "convention": self.convention}


def _ridge_or_rule(value: object, rules: Iterable[str], owner: str) -> float | str:
    """Require a positive number, or the name of a rule that finds one."""
    if isinstance(value, str):
        return checks.known_name(value, rules, f"rule for the ridge of {owner}")
    return checks.positive_number(value, "ridge", owner, "Or let ridge='loo' find it.")


def _given_ridge(ridge: float | str, calibrated: bool, samples: int, owner: str) -> float:
    """Refuse what takes all eigenvectors of the kernel where an iteration has none of them."""
    if isinstance(ridge, str):
        requirement = f"be a number for the solver cg, which {samples:,} samples are left to"
        remedy = (
            f"{ridge!r} needs all eigenvectors of the kernel: let it choose on some thousand of "
            "the samples, and take the ridge_ it found; or set solver='dense'."
        )
        raise checks.refusal("ridge", owner, requirement, repr(ridge), remedy)
    if calibrated:
        requirement = f"be False for the solver cg, which {samples:,} samples are left to"
        remedy = "Wrap the classifier in sklearn.calibration.CalibratedClassifierCV instead."
        raise checks.refusal("calibrated", owner, requirement, True, remedy)
    return ridge


def _dense_solver(needed: int, samples: int, owner: str) -> None:
    """Refuse a dense solve that does not fit into the memory that is free now."""
    available = checks.available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The dense solver of {owner} needs {needed / 2**30:.1f} GiB for {samples:,} samples, "
            f"and {available / 2**30:.1f} GiB of memory are free. Use solver='cg' with a given "
            "ridge, or fewer samples."
        )

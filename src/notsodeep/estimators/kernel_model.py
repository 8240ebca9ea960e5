"""What kernel ridge regression and classification share: a model, its samples, dual weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import draw_rows
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory
from notsodeep.estimators.kernel_matrices import (
    checked_model,
    given_model,
    kernel_matrix,
    root_mean_square_norm,
)
from notsodeep.estimators.theory_scaler import preprocessed_rows
from notsodeep.kernel_solvers.linear_solve import solve
from notsodeep.kernel_solvers.preconditioners import nystrom_preconditioner
from notsodeep.kernel_solvers.ridge_paths import Score, ridge_path
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
    intercept : ndarray of shape (k,), or 0
    """

    coefficients: FloatArray
    ridge: float
    ridges: FloatArray | None = None
    scores: FloatArray | None = None
    left_out: FloatArray | None = None
    steps: int | None = None
    intercept: FloatArray | float = 0.0


def dense_bytes(samples: int, *, spectral: bool) -> int:
    """Return the memory of a dense fit: the kernel and its factor, or its eigenvectors and more."""
    return (4 if spectral else 2) * 8 * samples**2


@dataclass(frozen=True, eq=False)
class Weighting:
    """How samples count, and whether there is an intercept c: Σ w_i (f_i + c − y_i)² + λ‖f‖².

    With D = diag(√w) the dual weights are α = D β, and β solves (D K D + λI) β = D (Y − 1c).  An
    intercept is not penalised: with u = √w the residual is orthogonal to u, so that with
    P = I − uuᵀ/uᵀu it is (P D K D P + λI) β = P D Y; for equal weights that is the kernel centred
    in rows and columns.

    Attributes
    ----------
    roots : ndarray of shape (n,) or None
        √w; None for ones.
    intercept : bool
    """

    roots: FloatArray | None
    intercept: bool

    def kernel(self, K: FloatArray) -> FloatArray:
        """Turn K into P D K D P, in place, with a large eigenvalue for u."""
        if self.roots is not None:
            K *= self.roots[:, None]
            K *= self.roots
        if self.intercept:
            unit = self._unit(len(K))
            image = K @ unit
            image -= 0.5 * (unit @ image) * unit
            K -= image[:, None] * unit
            K -= unit[:, None] * image
            # No target has a part along u, so that any eigenvalue there gives the same β.  A large
            # one keeps u, which is not penalised, out of leave-one-out: it costs no shrinkage.
            K += np.trace(K) * unit[:, None] * unit
        return K

    def targets(self, Y: FloatArray) -> FloatArray:
        """Return P D Y."""
        scaled = Y if self.roots is None else self.roots[:, None] * Y
        if self.intercept:
            unit = self._unit(len(Y))
            scaled = scaled - unit[:, None] * (unit @ scaled)
        return scaled

    def dual(self, beta: FloatArray) -> FloatArray:
        """Return α = D β."""
        return beta if self.roots is None else self.roots[:, None] * beta

    def unweighted(self, residuals: FloatArray) -> FloatArray:
        """Return residuals of the samples from those of the scaled problem."""
        return residuals if self.roots is None else residuals / self.roots[:, None]

    def level(self, residuals: FloatArray) -> FloatArray:
        """Return the intercept, shape (k,), from what the rest leaves of the targets, (n, k)."""
        if not self.intercept:
            return np.zeros(residuals.shape[1])
        weights = None if self.roots is None else self.roots**2
        return np.asarray(np.average(residuals, axis=0, weights=weights))

    def rows(self, chosen: IntArray) -> Weighting:
        """Return the weighting of some of the samples."""
        return replace(self, roots=None if self.roots is None else self.roots[chosen])

    def _unit(self, n: int) -> FloatArray:
        roots = np.ones(n) if self.roots is None else self.roots
        return np.asarray(roots / np.linalg.norm(roots))


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
    return checks.invalid("ridge", owner, "make the kernel positive definite", f"{ridge:g}", remedy)


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

RULED = 2_000
"""Samples that a rule for the ridge looks at: eigenvectors of more take minutes."""


class EquilibriumKernelModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the kernel estimators: fits α = (K + λI)⁻¹ Y and evaluates K(x, X) α."""

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        kind: KernelName = "ntk",
        convention: Convention = "feature",
        centred: bool = False,
        ridge: float | str = "loo",
        preprocessing: PreprocessingKind = "theory",
        solver: SolverName = "auto",
        tolerance: float = 1e-8,
        rank: int | None = None,
        memory: int = 4 << 30,
        model: KernelModel | None = None,
        fit_intercept: bool = False,
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.kind = kind
        self.convention = convention
        self.centred = centred
        self.ridge = ridge
        self.preprocessing = preprocessing
        self.solver = solver
        self.tolerance = tolerance
        self.rank = rank
        self.memory = memory
        self.model = model
        self.fit_intercept = fit_intercept

    def _fit_dual(
        self,
        rows: FloatArray,
        targets: FloatArray,
        weights: FloatArray | None = None,
        *,
        leave_out: bool = False,
    ) -> DualWeights:
        """Fit to validated rows (n, p), targets (n, k) and positive weights (n,).

        Sets the fitted attributes.
        """
        owner = type(self).__name__
        intercept = checks.flag(self.fit_intercept, "fit_intercept", owner)
        weighting = Weighting(None if weights is None else np.sqrt(weights), intercept)
        centred = checks.flag(self.centred, "centred", owner)
        kind: str = self.preprocessing
        pixels = None
        model: KernelModel
        if self.model is None:
            model = checked_model(self.activation, self.sigma_a2, self.kind, self.convention, owner)
        else:
            model = given_model(self.model, self.kind, self.convention, centred, owner)
        if isinstance(model, ConvolutionalModel):
            pixels = model.image_shape[0] * model.image_shape[1]
            kind = "pixels" if kind == "theory" else kind
        ridge = _ridge_or_rule(self.ridge, RULES, owner)
        tolerance = checks.positive_number(self.tolerance, "tolerance", owner)
        if self.rank is not None:
            checks.positive_integer(self.rank, "rank", owner)
        spectral = leave_out or (isinstance(ridge, str) and len(rows) <= RULED)
        self.solver_ = self._chosen_solver(len(rows), spectral=spectral)
        if self.solver_ == "cg":
            _dense_only(leave_out, weights, len(rows), owner)
        self.preprocessing_ = Preprocessing.fit(rows, kind, pixels=pixels, weights=weights)
        self.X_fit_ = self.preprocessing_.apply(rows)
        self.model_ = model
        if centred and isinstance(model, DeepEquilibrium | ExplicitNetwork):
            self.model_ = model.centred(root_mean_square_norm(self.X_fit_, weights))
        tried: dict[str, Any] = {}
        if isinstance(ridge, str) and (len(rows) > RULED or self.solver_ == "cg"):
            chosen = draw_rows(self.X_fit_, RULED)
            some = self._dense(chosen, targets, weighting, ridge, leave_out=False)
            ridge = some.ridge
            tried = {"ridges": some.ridges, "scores": some.scores}
        if self.solver_ == "dense":
            found = self._dense(
                np.arange(len(rows)), targets, weighting, ridge, leave_out=leave_out
            )
        else:
            found = self._iterated(targets, float(ridge), tolerance, intercept)
        found = replace(found, **tried)
        self.dual_coef_, self.intercept_ = found.coefficients, found.intercept
        self.ridge_ = found.ridge
        self.ridges_, self.ridge_scores_ = found.ridges, found.scores
        self.n_iter_ = found.steps
        return found

    def _dense(
        self,
        chosen: IntArray,
        targets: FloatArray,
        weighting: Weighting,
        ridge: float | str,
        *,
        leave_out: bool,
    ) -> DualWeights:
        """Fit to some of the samples by their kernel matrix."""
        owner, Y, weighting = type(self).__name__, targets[chosen], weighting.rows(chosen)
        K = weighting.kernel(kernel_matrix(self.model_, self.X_fit_[chosen], **self._choice()))
        right = weighting.targets(Y)
        found = dense_weights(K, right, ridge, leave_out=leave_out, owner=owner)
        alpha, level = weighting.dual(found.coefficients), np.zeros(Y.shape[1])
        if weighting.intercept:
            rows = self.X_fit_[chosen]
            level = weighting.level(Y - KernelOperator(self.model_, rows, **self._choice()) @ alpha)
        left_out = found.left_out
        if left_out is not None:
            left_out = Y - weighting.unweighted(right - left_out)
        return replace(found, coefficients=alpha, intercept=level, left_out=left_out)

    def _iterated(
        self, targets: FloatArray, ridge: float, tolerance: float, intercept: bool
    ) -> DualWeights:
        """Fit to all samples by conjugate gradients.

        (K + λI) α + 1c = Y and 1ᵀα = 0: from the solutions for Y and for 1.
        """
        ones = np.ones((len(targets), 1))
        right = np.hstack([targets, ones]) if intercept else targets
        found = iterated_weights(
            self.model_,
            self.X_fit_,
            right,
            ridge,
            tolerance=tolerance,
            rank=self.rank,
            memory=self.memory,
            choice=self._choice(),
        )
        alpha, level = found.coefficients, np.zeros(targets.shape[1])
        if intercept:
            alpha, shift = alpha[:, :-1], alpha[:, -1:]
            level = alpha.sum(axis=0) / shift.sum()
            alpha = alpha - shift * level
        return replace(found, coefficients=alpha, intercept=level)

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
        operator = KernelOperator(self.model_, rows, self.X_fit_, **self._choice())
        return np.asarray(operator @ self.dual_coef_ + self.intercept_)

    def _choice(self) -> dict[str, Any]:
        return {"kind": kernel_name(self.kind, "kernel"), "convention": self.convention}


def _ridge_or_rule(value: object, rules: Iterable[str], owner: str) -> float | str:
    """Require a positive number, or the name of a rule that finds one."""
    if isinstance(value, str):
        return checks.known_name(value, rules, f"rule for the ridge of {owner}")
    return checks.positive_number(value, "ridge", owner, "Or let ridge='loo' find it.")


def _dense_only(calibrated: bool, weights: FloatArray | None, samples: int, owner: str) -> None:
    """Reject what takes the kernel matrix where an iteration never holds it."""
    if calibrated:
        requirement = f"be False for the solver cg, which {samples:,} samples are left to"
        remedy = "Wrap the classifier in sklearn.calibration.CalibratedClassifierCV instead."
        raise checks.invalid("calibrated", owner, requirement, True, remedy)
    if weights is not None:
        requirement = f"be None for the solver cg, which {samples:,} samples are left to"
        remedy = "So must class_weight. Set solver='dense', or repeat rows instead."
        raise checks.invalid("sample_weight", owner, requirement, "weights", remedy)


def positive_weights(
    estimator: Any, sample_weight: Any, rows: FloatArray, *others: NDArray[Any]
) -> tuple[FloatArray | None, tuple[NDArray[Any], ...]]:
    """Check weights as scikit-learn does, and leave out samples that do not count.

    Returns the weights, None if there are none, and rows and others of the samples that are left.
    """
    if sample_weight is None:
        return None, (rows, *others)
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    count = weights > 0.0
    if not count.any():
        owner = type(estimator).__name__
        raise checks.invalid("sample_weight", owner, "have an entry above zero", "zeros")
    return weights[count], tuple(array[count] for array in (rows, *others))


def _dense_solver(needed: int, samples: int, owner: str) -> None:
    """Reject a dense solve that does not fit into the memory that is free now."""
    available = checks.available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The dense solver of {owner} needs {needed / 2**30:.1f} GiB for {samples:,} samples, "
            f"and {available / 2**30:.1f} GiB of memory are free. Use solver='cg' with a given "
            "ridge, or fewer samples."
        )

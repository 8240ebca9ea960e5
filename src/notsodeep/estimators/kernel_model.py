"""What kernel ridge regression and classification share: a model, its samples, dual weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.checks import FloatArray
from notsodeep.checks import estimators as estimator_checks
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.errors import NotEnoughMemory
from notsodeep.estimators.dual_weights import (
    RULES,
    DualWeights,
    dense_bytes,
    dense_weights,
    iterated_weights,
)
from notsodeep.estimators.kernel_matrices import (
    checked_model,
    kernel_matrix,
    root_mean_square_norm,
)
from notsodeep.estimators.theory_scaler import preprocessed_rows
from notsodeep.kernels import KernelOperator
from notsodeep.models import Convention, KernelName

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
        ridge: float | str = "gcv",
        preprocessing: PreprocessingKind = "theory",
        solver: SolverName = "auto",
        tolerance: float = 1e-8,
        rank: int | None = None,
        memory: int = 4 << 30,
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

    def _fit_dual(
        self, rows: FloatArray, targets: FloatArray, *, leave_out: bool = False
    ) -> DualWeights:
        """Fit to validated rows (n, p) and targets (n, k), and set the fitted attributes."""
        owner = type(self).__name__
        model = checked_model(self.activation, self.sigma_a2, self.kernel, self.convention, owner)
        centred = estimator_checks.flag(self.centred, "centred", owner)
        ridge = _ridge_or_rule(self.ridge, RULES, owner)
        tolerance = checks.positive_number(self.tolerance, "tolerance", owner)
        if self.rank is not None:
            checks.positive_integer(self.rank, "rank", owner)
        spectral = leave_out or isinstance(ridge, str)
        self.solver_ = self._chosen_solver(len(rows), spectral=spectral)
        if self.solver_ == "cg":
            ridge = _given_ridge(ridge, leave_out, len(rows), owner)
        self.preprocessing_ = Preprocessing.fit(rows, self.preprocessing)
        self.X_fit_ = self.preprocessing_.apply(rows)
        self.model_ = model.centred(root_mean_square_norm(self.X_fit_)) if centred else model
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
        return {"kernel": self.kernel, "convention": self.convention}


def _ridge_or_rule(value: object, rules: Iterable[str], owner: str) -> float | str:
    """Require a positive number, or the name of a rule that finds one."""
    if isinstance(value, str):
        return checks.known_name(value, rules, f"rule for the ridge of {owner}")
    return checks.positive_number(value, "ridge", owner, "Or let ridge='gcv' find it.")


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

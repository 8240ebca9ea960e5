"""Ridge regression and classification with the exact kernel of a DEQ."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import draw_rows
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.errors import InvalidInput, NotEnoughMemory
from notsodeep.estimators.scaler import preprocessed_rows, validated_training_data
from notsodeep.kernel_solvers import preconditioner, ridge_path, solve
from notsodeep.kernels import KernelOperator
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import (
    Convention,
    ConvolutionalModel,
    DeepEquilibrium,
    KernelModel,
    KernelName,
    kernel_name,
)

DENSE_ROWS = 10_000
"""Samples up to which solver="auto" is dense, if that takes at most half of the free memory."""

RIDGE_SEARCH_ROWS = 2_000
"""Samples that ridge="loo" looks at: eigenvectors of more take minutes."""

MIN_RANK, SAMPLES_PER_RANK = 200, 20
"""Columns of the preconditioner of "cg"."""

CG_TOL = 1e-8


class _KernelRidgeBase(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Fits f(x) = K(x, X) α + c, which minimises Σ (f(x_i) − y_i)² + λ‖f − c‖²."""

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        model: KernelModel | None = None,
        kind: KernelName = "ntk",
        convention: Convention = "feature",
        ridge: float | Literal["loo"] = "loo",
        preprocessing: PreprocessingKind = "theory",
        solver: Literal["auto", "dense", "cg"] = "auto",
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.model = model
        self.kind = kind
        self.convention = convention
        self.ridge = ridge
        self.preprocessing = preprocessing
        self.solver = solver

    def _fit_dual(self, rows: FloatArray, targets: FloatArray) -> None:
        """Fit to validated rows (n, p) and targets (n, k)."""
        model: KernelModel = self.model or DeepEquilibrium(self.activation, self.sigma_a2)
        checks.known_name(self.solver, ("auto", "dense", "cg"), "solver")
        choice: Any = {"kind": kernel_name(self.kind, "kind"), "convention": self.convention}
        self.model_, self._choice = model, choice
        preprocessing, pixels = self.preprocessing, None
        if isinstance(model, ConvolutionalModel):
            pixels = model.image_shape[0] * model.image_shape[1]
            preprocessing = "pixels" if preprocessing == "theory" else preprocessing
        self.preprocessing_ = Preprocessing.fit(rows, preprocessing, pixels=pixels)
        self.X_fit_ = X = self.preprocessing_.apply(rows)
        self.ridges_: FloatArray | None = None
        self.ridge_scores_: FloatArray | None = None
        if isinstance(self.ridge, str):
            checks.known_name(self.ridge, ("loo",), "rule for the ridge")
            self.ridge_ = self._left_out_ridge(targets)
        else:
            self.ridge_ = checks.positive_number(self.ridge, "ridge", "the estimator")
        needed, available = 3 * 8 * len(X) ** 2, checks.available_memory()
        fits = len(X) <= DENSE_ROWS and needed <= available // 2
        self.solver_ = ("dense" if fits else "cg") if self.solver == "auto" else self.solver
        if self.solver_ == "dense" and needed > available:
            raise NotEnoughMemory(
                f"solver='dense' needs {needed / 2**30:.1f} GiB for {len(X):,} samples, and "
                f"{available / 2**30:.1f} GiB of memory are free. Use solver='cg'."
            )
        # The intercept is not penalised: (K + λI) α + 1c = Y and 1ᵀα = 0, from the solutions for Y
        # and for 1.  Without its mean Y keeps its digits.
        mean = targets.mean(axis=0)
        right = np.hstack([targets - mean, np.ones((len(X), 1))])
        solution = self._factorised(right) if self.solver_ == "dense" else self._iterated(right)
        alpha, shift = solution[:, :-1], solution[:, -1:]
        level = alpha.sum(axis=0) / shift.sum()
        self.dual_coef_, self.intercept_ = alpha - shift * level, mean + level

    def _factorised(self, right: FloatArray) -> FloatArray:
        """Solve by a factorisation, and require that rounding errors do not decide the solution."""
        self.n_iter_: int | None = None
        K = np.asarray(exact_kernel(self.model_, self.X_fit_, **self._choice), dtype=np.float64)
        K[np.diag_indices_from(K)] += self.ridge_
        try:
            factor = cho_factor(K, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise InvalidInput(
                f"ridge must make the kernel positive definite, got {self.ridge_:g}. Use a larger "
                "one, or 'loo'."
            ) from None
        solution = np.asarray(cho_solve(factor, right, check_finite=False))
        remedy = ", and ridge='loo' finds one"
        checks.resolved(K, solution, right, self.ridge_, type(self).__name__, remedy)
        return solution

    def _iterated(self, right: FloatArray) -> FloatArray:
        """Solve by conjugate gradients with a Nyström preconditioner, K kept if it fits."""
        X, rank = self.X_fit_, max(MIN_RANK, len(right) // SAMPLES_PER_RANK)
        near = preconditioner(self.model_, X, min(rank, len(X)), self.ridge_, **self._choice)
        budget = max(1 << 30, checks.available_memory() // 2)
        cache: Any = "float64" if 5 * len(X) ** 2 <= budget else "never"
        K = KernelOperator(self.model_, X, cache=cache, **self._choice)
        solution = solve(K, right, self.ridge_, preconditioner=near, tolerance=CG_TOL)
        self.n_iter_ = solution.steps
        return solution.x

    def _left_out_ridge(self, targets: FloatArray) -> float:
        """Return the best of 61 ridges by leave-one-out, 1e-7 of the mean diagonal to the trace.

        The intercept is fitted anew for every sample that is left out.
        """
        chosen = draw_rows(self.X_fit_, RIDGE_SEARCH_ROWS)
        K = np.asarray(exact_kernel(self.model_, self.X_fit_[chosen], **self._choice))
        trace = float(np.trace(K))
        # A kernel of zeros has no scale, and the same fit for every ridge.
        ridges = np.geomspace(1e-7 * trace / len(K), trace, 61) if trace > 0.0 else np.ones(1)
        # A constant of infinite variance is an intercept; one of the kernel's trace is large enough
        # once the kernel is centred, and the targets have no part along it.
        mean = K.mean(axis=0)
        K = K - mean - mean[:, None] + mean.mean() + trace / len(K)
        Y = targets[chosen] - targets[chosen].mean(axis=0)
        if not np.any(Y):
            return float(ridges[-1])
        path = ridge_path(0.5 * (K + K.T), Y, ridges, raises=False)
        self.ridges_, self.ridge_scores_ = path.values, path.leave_one_out
        return path.best("leave_one_out")

    def _outputs(self, X: ArrayLike) -> FloatArray:
        """Return K(X, X_fit_) α + c for new rows, (m, k); the kernel never exists as a whole."""
        check_is_fitted(self)
        rows = preprocessed_rows(self, X)
        operator = KernelOperator(self.model_, rows, self.X_fit_, **self._choice)
        return np.asarray(operator @ self.dual_coef_ + self.intercept_)


class EquilibriumKernelRidge(MultiOutputMixin, RegressorMixin, _KernelRidgeBase):  # type: ignore[misc]
    """Kernel ridge regression with the exact conjugate or tangent kernel of a DEQ.

    f(x) = K(x, X) α + c: what an infinitely wide DEQ learns by ridge regression of its read-out
    (conjugate kernel) or of all its weights, linearised where training starts (tangent kernel).
    The intercept c is not penalised.  For targets and features whose mean is zero the numbers are
    those of ``sklearn.kernel_ridge.KernelRidge(alpha=λ, kernel="precomputed")``.

    Parameters
    ----------
    activation : str or Activation, default "relu"
        φ; a name (see `notsodeep.activations.names`) or an activation.
    sigma_a2 : float, default 0.2
        σa² in [0, 1), the share of variance that comes back through the recurrent weights.
    model : DeepEquilibrium, ExplicitNetwork or convolutional model, optional
        Instead of activation and sigma_a2.  Rows of a convolutional model are images, flattened in
        the order (height, width, channels), and preprocessing="theory" means "pixels".
    kind : {"ntk", "ck"}
    convention : {"feature", "preactivation"}
    ridge : float or "loo"
        λ; "loo" takes the best of 61 by leave-one-out in closed form.  Beyond 2000 samples it looks
        at 2000 of them, drawn at random.
    preprocessing : {"theory", "pixels", "unit_norm", "none"}
        See `TheoryScaler`.
    solver : {"auto", "dense", "cg"}
        A Cholesky factorisation, or conjugate gradients that never hold the kernel as a whole;
        "auto" is dense up to 10,000 samples.

    Attributes
    ----------
    dual_coef_, intercept_ : ndarray
        α and c, shaped as y.
    X_fit_, preprocessing_, model_
        The training rows after preprocessing, the preprocessing and the model.
    ridge_, ridges_, ridge_scores_
        λ; with "loo" also what was tried, and its mean squared errors.
    solver_, n_iter_
        The solver, and the iterations of cg.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from notsodeep.estimators import EquilibriumKernelRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> EquilibriumKernelRidge("tanh").fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.4
    True
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows X, shape (n, p), and targets y, shape (n,) or (n, n_targets)."""
        rows, targets = validated_training_data(
            self, X, y, self.preprocessing, y_numeric=True, multi_output=True
        )
        self._fit_dual(rows, np.asarray(targets, dtype=np.float64).reshape(len(rows), -1))
        if targets.ndim == 1:
            self.dual_coef_, self.intercept_ = self.dual_coef_[:, 0], float(self.intercept_[0])
        return self

    def predict(self, X: ArrayLike) -> FloatArray:
        """Predict targets for rows X, shape (m, p); shape (m,) or (m, n_targets)."""
        return self._outputs(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags


class EquilibriumKernelClassifier(ClassifierMixin, _KernelRidgeBase):  # type: ignore[misc]
    """One-vs-rest ridge classifier with the exact conjugate or tangent kernel of a DEQ.

    Targets are 1 for a sample's own class and −1 for the others; the largest output of
    `EquilibriumKernelRidge` is the prediction.  For probabilities wrap it in
    ``sklearn.calibration.CalibratedClassifierCV``.

    Parameters
    ----------
    activation, sigma_a2, model, kind, convention, ridge, preprocessing, solver
        As for `EquilibriumKernelRidge`, and so are the attributes; `classes_` are the labels.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from notsodeep.estimators import EquilibriumKernelClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> classifier = EquilibriumKernelClassifier("relu", sigma_a2=0.2).fit(X[:800], y[:800])
    >>> classifier.score(X[800:], y[800:]) > 0.94
    True
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows X, shape (n, p), and labels y, shape (n,), numbers or names."""
        rows, given = validated_training_data(self, X, y, self.preprocessing)
        labels = encode_classes(self, given)
        signs = np.where(labels[:, None] == np.arange(len(self.classes_)), 1.0, -1.0)
        # One column, of the second class, for two classes.
        self._fit_dual(rows, signs[:, 1:] if len(self.classes_) == 2 else signs)
        return self

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Return the outputs, shape (m, n_classes), or (m,) for two classes."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels, shape (m,)."""
        outputs = self._outputs(X)
        best = outputs[:, 0] > 0.0 if outputs.shape[1] == 1 else outputs.argmax(axis=1)
        return np.asarray(self.classes_[best.astype(np.intp)])


def encode_classes(estimator: Any, y: NDArray[Any]) -> IntArray:
    """Set `classes_` and return the labels as 0 … K − 1, shape (n,)."""
    try:
        check_classification_targets(y)
        estimator.classes_, labels = np.unique(y, return_inverse=True)
    except TypeError as error:  # None or NA beside names, which have no order with them
        raise InvalidInput(
            f"y must hold labels of one kind, none of them missing, got {error}."
        ) from error
    if len(estimator.classes_) < 2:  # scikit-learn's checks look for the words "1 class"
        raise InvalidInput("y must have samples of at least two classes, got 1 class.")
    return np.asarray(labels, dtype=np.int64)

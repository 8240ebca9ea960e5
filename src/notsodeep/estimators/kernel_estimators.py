"""Ridge regression and classification with the exact kernel of a DEQ."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data.preprocessing import PreprocessingKind
from notsodeep.errors import InvalidInput
from notsodeep.estimators.kernel_model import (
    EquilibriumKernelModel,
    SolverName,
    positive_weights,
)
from notsodeep.estimators.theory_scaler import validated_training_data
from notsodeep.models import Convention, KernelModel, KernelName


class EquilibriumKernelRidge(MultiOutputMixin, RegressorMixin, EquilibriumKernelModel):  # type: ignore[misc]
    """Kernel ridge regression with the exact conjugate or tangent kernel of a DEQ.

    f(x) = K(x, X) (K(X, X) + λI)⁻¹ Y: what an infinitely wide DEQ learns by ridge regression of
    its read-out (conjugate kernel) or of all its weights, linearised where training starts
    (tangent kernel).  The numbers are those of `sklearn.kernel_ridge.KernelRidge(alpha=λ,
    kernel="precomputed")`.

    Parameters
    ----------
    activation : str or Activation, default "relu"
        φ; a name (see `notsodeep.activations.names`) or an activation.
    sigma_a2 : float, default 0.2
        σa² in [0, 1), the share of variance that comes back through the recurrent weights.
    kind : {"ntk", "ck"}
    convention : {"preactivation", "feature"}
        See `notsodeep.tangent_kernel`.
    centred : bool, default False
        Replace φ by φ − E φ(τ*ξ), with τ* for the root mean squared norm of the training rows: the
        model that the random-matrix theory and `notsodeep.match` are about.
    ridge : float, "gcv" or "loo", default "loo"
        λ, or the rule that chooses it: generalised cross-validation or leave-one-out, both in
        closed form from one eigendecomposition, for 61 values at once (see
        `notsodeep.kernel_solvers.ridge_path`).  Beyond 2000 samples it looks at 2000 of them, drawn
        by their values: λ, the variance of noise over that of the model, does not depend on their
        number.
    preprocessing : {"theory", "unit_norm", "none"}
        Fixed on the training data and applied to whatever is predicted; see `TheoryScaler`.
    solver : {"auto", "dense", "cg"}
        "dense" factorises the kernel matrix.  "cg" iterates with preconditioned conjugate
        gradients and never holds it in float64; it takes no weights.  "auto" is dense up to 10,000
        samples if that takes at most half of the free memory, and otherwise cg.
    tolerance : float, default 1e-8
        cg: relative residual at which it stops.
    rank : int, optional
        cg: columns of the kernel that its Nyström preconditioner is made of; one for every twenty
        samples, and at least 200, if left out.  More of them mean fewer iterations and 8·n·rank
        bytes of memory.
    memory : int, default 4 GiB
        cg: bytes that the upper triangle of the kernel may take.  It is kept in float64 if that
        fits, else in float32 if that fits (the solution is then corrected to that of the exact
        kernel), and else computed again in every iteration.
    model : DeepEquilibrium, ExplicitNetwork or convolutional model, optional
        Instead of activation and sigma_a2.  Rows of a convolutional model are images, flattened in
        the order (height, width, channels), and preprocessing="theory" means "pixels".
    fit_intercept : bool, default False
        Fit a constant too, which is not penalised: for targets that are far from zero on average.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n,) or (n, n_targets)
        α.
    intercept_ : float or ndarray of shape (n_targets,)
        0 without one.
    X_fit_ : ndarray of shape (n, p)
        The training rows after preprocessing.
    model_ : DeepEquilibrium
    preprocessing_ : Preprocessing
    ridge_ : float
        λ.
    ridges_, ridge_scores_ : ndarray of shape (61,) or None
        Where `ridge` was a rule: what was tried, and its score, a mean squared error.
    solver_ : {"dense", "cg"}
    n_iter_ : int or None
        Iterations of cg.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from notsodeep.estimators import EquilibriumKernelRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> fitted = EquilibriumKernelRidge("tanh", fit_intercept=True).fit(X[:300], y[:300])
    >>> fitted.score(X[300:], y[300:]) > 0.4
    True
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows X, shape (n, p), and targets y, shape (n,) or (n, n_targets).

        A sample of weight 2 counts as two samples; weights have shape (n,).
        """
        rows, targets = validated_training_data(
            self, X, y, self.preprocessing, y_numeric=True, multi_output=True
        )
        weights, (rows, targets) = positive_weights(self, sample_weight, rows, targets)
        columns = np.asarray(targets, dtype=np.float64).reshape(len(rows), -1)
        self._fit_dual(rows, columns, weights)
        if targets.ndim == 1:
            self.dual_coef_ = self.dual_coef_[:, 0]
            self.intercept_ = np.ravel(self.intercept_)[0]
        return self

    def predict(self, X: ArrayLike) -> FloatArray:
        """Predict targets for rows X, shape (m, p); shape (m,) or (m, n_targets)."""
        return self._outputs(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags


_LOGARITHMS = (-7.0, 7.0)  # of the slope; scores are of order one


def fit_slope(scores: FloatArray, labels: IntArray, weights: FloatArray | None = None) -> float:
    """Find β that makes softmax(β·scores) most likely, for scores on samples not fitted to.

    Temperature scaling (Guo, Pleiss, Sun and Weinberger, ICML 2017): the order of the classes, and
    so the prediction, stays.  The likelihood is concave in β.

    Parameters
    ----------
    scores : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
        In 0 … K − 1.
    weights : ndarray of shape (n,), optional
    """
    rows = np.arange(len(labels))

    def loss(logarithm: float) -> float:
        likelihoods = log_softmax(np.exp(logarithm) * scores, axis=1)[rows, labels]
        return -float(np.average(likelihoods, weights=weights))

    return float(np.exp(minimize_scalar(loss, bounds=_LOGARITHMS, method="bounded").x))


def probabilities(scores: FloatArray, slope: float) -> FloatArray:
    """Return softmax(β·scores), shape (n, K)."""
    return np.asarray(softmax(slope * scores, axis=1))


def _is_calibrated(estimator: Any) -> bool:
    return bool(estimator.calibrated)


class EquilibriumKernelClassifier(ClassifierMixin, EquilibriumKernelModel):  # type: ignore[misc]
    """One-vs-rest ridge classifier with the exact conjugate or tangent kernel of a DEQ.

    Targets are 1 for a sample's own class and −1 for the others; the largest output of
    K(x, X) (K(X, X) + λI)⁻¹ Y is the prediction.

    Parameters
    ----------
    activation, sigma_a2, kernel, convention, centred, ridge, preprocessing
        As for `EquilibriumKernelRidge`.
    calibrated : bool, default False
        Offer `predict_proba`: softmax(β·scores), β fitted to the scores that every training sample
        gets when it is left out (in closed form).
    solver, tolerance, rank, memory, model, fit_intercept
        As for `EquilibriumKernelRidge`; cg is for uncalibrated classifiers without weights.
    class_weight : dict, "balanced" or None
        Weights of the classes, by their names; "balanced" gives all classes the same sum.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    dual_coef_ : ndarray of shape (n, n_classes), or (n, 1) for two classes
        α.
    slope_ : float
        β, if calibrated.
    X_fit_, intercept_, model_, preprocessing_, ridge_, ridges_, ridge_scores_, solver_, n_iter_
        As for `EquilibriumKernelRidge`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from notsodeep.estimators import EquilibriumKernelClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> classifier = EquilibriumKernelClassifier("relu", sigma_a2=0.2).fit(X[:800], y[:800])
    >>> classifier.score(X[800:], y[800:]) > 0.94
    True
    """

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        kind: KernelName = "ntk",
        convention: Convention = "feature",
        centred: bool = False,
        ridge: float | str = "loo",
        preprocessing: PreprocessingKind = "theory",
        calibrated: bool = False,
        solver: SolverName = "auto",
        tolerance: float = 1e-8,
        rank: int | None = None,
        memory: int = 4 << 30,
        model: KernelModel | None = None,
        fit_intercept: bool = False,
        class_weight: dict[Any, float] | str | None = None,
    ) -> None:
        super().__init__(
            activation=activation,
            sigma_a2=sigma_a2,
            kind=kind,
            convention=convention,
            centred=centred,
            ridge=ridge,
            preprocessing=preprocessing,
            solver=solver,
            tolerance=tolerance,
            rank=rank,
            memory=memory,
            model=model,
            fit_intercept=fit_intercept,
        )
        self.calibrated = calibrated
        self.class_weight = class_weight

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows X, shape (n, p), and labels y, shape (n,), numbers or names.

        A sample of weight 2 counts as two samples; weights have shape (n,).
        """
        owner = type(self).__name__
        calibrated = checks.flag(self.calibrated, "calibrated", owner)
        rows, given = validated_training_data(self, X, y, self.preprocessing)
        weights, (rows, given) = positive_weights(self, sample_weight, rows, given)
        labels = encode_classes(self, given)
        weights = with_class_weights(self.class_weight, given, weights)
        signs = _signs(labels, len(self.classes_))
        found = self._fit_dual(rows, signs, weights, leave_out=calibrated)
        if found.left_out is not None:
            self.slope_ = fit_slope(_per_class(found.left_out), labels, weights)
        return self

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Return the outputs, shape (m, n_classes), or (m,) for two classes."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels, shape (m,)."""
        best = _per_class(self._outputs(X)).argmax(axis=1)
        return np.asarray(self.classes_[best])

    @available_if(_is_calibrated)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Predict the probability of every class, shape (m, n_classes); with calibrated=True."""
        return probabilities(_per_class(self._outputs(X)), self.slope_)


def encode_classes(estimator: Any, y: NDArray[Any]) -> IntArray:
    """Set `classes_` and return the labels as 0 … K − 1, shape (n,)."""
    try:
        check_classification_targets(y)
        estimator.classes_, labels = np.unique(y, return_inverse=True)
    except TypeError as error:  # None or NA beside names, which have no order with them
        raise _labels_without_order(error, type(estimator).__name__) from error
    _several_classes(len(estimator.classes_), type(estimator).__name__)
    return np.asarray(labels, dtype=np.int64)


def with_class_weights(
    class_weight: Any, y: NDArray[Any], weights: FloatArray | None
) -> FloatArray | None:
    """Multiply weights of samples, if any, by those of their classes."""
    if class_weight is None:
        return weights
    found = compute_sample_weight(class_weight, y)
    return np.asarray(found if weights is None else found * weights)


def _signs(labels: IntArray, num_classes: int) -> FloatArray:
    """Return ±1 targets, shape (n, K); one column, of the second class, for two classes."""
    signs = np.where(labels[:, None] == np.arange(num_classes), 1.0, -1.0)
    return signs[:, 1:] if num_classes == 2 else signs


def _per_class(outputs: FloatArray) -> FloatArray:
    """Give each of two classes its column, so that all numbers of classes are alike."""
    return np.hstack([-outputs, outputs]) if outputs.shape[1] == 1 else outputs


def _several_classes(count: int, owner: str) -> None:
    """Require two different labels; scikit-learn's checks look for the words "1 class"."""
    if count < 2:
        raise checks.invalid("y", owner, "have samples of at least two classes", f"{count} class")


def _labels_without_order(reason: object, owner: str) -> InvalidInput:
    """Word the error for labels that cannot be sorted."""
    requirement = "hold labels of one kind, none of them missing"
    return checks.invalid("y", owner, requirement, f"labels that cannot be compared ({reason})")

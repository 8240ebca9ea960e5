"""Test and training error of a network, predicted from the statistics of its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data import GaussianMixture
from notsodeep.equivalents import Expansion
from notsodeep.errors import InvalidInput
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, DeepEquilibrium, KernelName, Model, kernel_name
from notsodeep.prediction.classes import Classes
from notsodeep.prediction.scores import (
    Scores,
    Task,
    class_accuracies,
    default_targets,
    flow_scores,
    ridge_scores,
)
from notsodeep.prediction.tables import KernelTables, limit_tables, resolved_tables
from notsodeep.prediction.width import mixing, width_scores
from notsodeep.records import NOT_STORED, Plotted

Axis = Literal["ridge", "time"]
Goal = Literal["test_mse", "accuracy"]

GRID_POINTS, GRID_DECADES = 25, 4.0
"""The default grid: decades either side of the kernel's size."""

RANGE = 1e12
"""Of the kernel's size over a ridge, or of a time times the size, either way."""

MAX_RATIO = 1e4
"""Samples per dimension, or dimensions per sample, that the equations were tried with."""

CENTRED_TOL = 1e-6
"""Terms in the norm alone, relative to the kernel, of the expansion of a centred model."""

STRONG_MEANS = 0.5
"""‖μ‖²/(τ0²p) · n/p beyond which predictions were off by more than the sampling error."""


class Best(NamedTuple):
    """The best ridge or time of a curve."""

    value: float
    score: float
    inside: bool  # False at an end of the grid: a better value may lie beyond


@dataclass(frozen=True, eq=False, repr=False)
class RiskCurve(Plotted):
    """Errors and scores over ridges or training times; squared errors are sums over outputs."""

    _drawing = "risk_curve"

    axis: Axis
    values: FloatArray  # (R,): ridges λ or times t
    test_mse: FloatArray  # (R,)
    train_mse: FloatArray  # (R,)
    accuracy: FloatArray  # (R,): share of new scores that are nearest to the right target
    train_accuracy: FloatArray | None  # (R,); None for a finite width
    class_mse: FloatArray  # (R, K): of new samples of each class
    class_accuracy: FloatArray  # (R, K)
    means: FloatArray  # (R, K, k): mean score of a new sample of each class
    covariances: FloatArray  # (R, K, k, k): of such scores, over samples and training sets
    width: int | None
    effective_width: FloatArray | None  # (R,): independent neurons that the width counts for
    targets: FloatArray  # (K, k)
    counts: FloatArray  # (K,)
    dimension: int  # p
    notes: tuple[str, ...]  # why the numbers may be off; empty where simulations agreed
    model: str
    _evaluate: Callable[[FloatArray], RiskCurve] | None = dataclasses.field(
        default=None, repr=False, metadata=NOT_STORED
    )

    @property
    def samples(self) -> int:
        """Training samples n."""
        return int(self.counts.sum())

    def best(self, goal: Goal = "test_mse") -> Best:
        """Return the best ridge or time: that of the grid, refined between its neighbours.

        A curve that was read from a file is not refined.
        """
        checks.known_name(goal, ("test_mse", "accuracy"), "goal")
        sign = -1.0 if goal == "accuracy" else 1.0
        scores = sign * getattr(self, goal)
        i = int(scores.argmin())
        value, score = float(self.values[i]), float(scores[i])
        inside = 0 < i < len(scores) - 1
        evaluate = self._evaluate
        if evaluate is not None and inside and (np.diff(self.values) > 0.0).all():
            # In the logarithm, and between neighbours: a curve may have several minima.
            refined = minimize_scalar(
                lambda x: float(sign * getattr(evaluate(np.exp([x])), goal)[0]),
                bounds=np.log(self.values[[i - 1, i + 1]]),
                method="bounded",
                options={"xatol": 1e-4},
            )
            if refined.fun < score:
                value, score = float(np.exp(refined.x)), float(refined.fun)
        return Best(value, sign * score, inside)


@dataclass(frozen=True, eq=False, repr=False)
class BestSigma(Plotted):
    """The best σa² of a DEQ, over ridges."""

    _drawing = "best_sigma"

    value: float  # σa²
    ridge: float  # the best ridge there
    score: float
    goal: Goal
    sigma_a2: FloatArray  # (S,): what was tried
    ridges: FloatArray  # (R,)
    scores: FloatArray  # (S, R)


def predict_risk(
    model: Model | Expansion,
    mixture: GaussianMixture,
    counts: ArrayLike,
    *,
    ridge: ArrayLike | None = None,
    time: ArrayLike | None = None,
    width: int | None = None,
    kind: KernelName = "ck",
    convention: Convention = "feature",
    targets: ArrayLike | None = None,
    noise: float = 0.0,
    test_weights: ArrayLike | None = None,
) -> RiskCurve:
    """Predict errors and accuracies of a network on a Gaussian mixture, before training.

    The network is its kernel: ridge regression of a trained read-out (conjugate kernel) or of all
    weights (tangent kernel), α = (K + λ)⁻¹Y; or gradient flow dα/dt = Y − Kα until a time.  Scores
    of a new sample of a class are Gaussian, and their means and covariances follow from a few
    numbers per class: see the page "Before training" of the documentation.

    Parameters
    ----------
    model : DeepEquilibrium, ExplicitNetwork or any other with a kernel of norms and inner products
        Or the `Expansion` of a centred one, whose limit of large p is then predicted: its error is
        of order p^{-1/2}.
    mixture : GaussianMixture
        x ~ N(μ_a/√p, C_a/p).  Covariances that do not commute are taken by their diagonals in the
        basis of their mean.
    counts : array_like of shape (K,)
        Training samples n_a of each class.
    ridge, time : float or array_like, optional
        One of them: λ, or the time t at which training stops; 25 ridges by default.
    width : int, optional
        Width of the one layer whose read-out is trained, by default infinite.  With a ridge, the
        conjugate kernel and the convention "feature".
    kind : {"ck", "ntk"}
    convention : {"feature", "preactivation"}
        Concerns DEQs only.
    targets : array_like of shape (K,) or (K, k), optional
        By default (−1, 1) for two classes and one-hot − 1/K for more.
    noise : float
        Standard deviation of Gaussian noise on training targets.
    test_weights : array_like of shape (K,), optional
        Class shares of new samples, by default those of the training samples.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 400)), [0.9, 1.1])
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(1.0)
    >>> best = nsd.predict_risk(deq, mixture, (400, 400)).best()
    >>> round(best.value, 2), round(best.score, 3), best.inside
    (0.03, 0.519, True)
    >>> early = nsd.predict_risk(deq, mixture, (200, 200), time=[0.3, 3.0])
    >>> early.accuracy.round(3), early.train_accuracy.round(3)
    (array([0.735, 0.754]), array([0.975, 0.999]))
    >>> nsd.predict_risk(deq, mixture, (200, 200), ridge=0.1, width=1000).accuracy.round(3)
    array([0.692])
    """
    kind = kernel_name(kind, "kind")
    checks.known_name(convention, ("feature", "preactivation"), "convention")
    task = make_task(model, mixture, counts, kind, convention, targets, noise, test_weights)
    if ridge is not None and time is not None:
        raise InvalidInput("ridge and time must not both be given.")
    axis: Axis = "ridge" if time is None else "time"
    if width is not None:
        checks.positive_integer(width, "width", "predict_risk")
        if (axis, kind, convention) != ("ridge", "ck", "feature"):
            raise InvalidInput(
                "width must come with a ridge, the conjugate kernel and the convention 'feature', "
                f"got {axis}, {kind}, {convention}."
            )
    values = regularisation(task, ridge if time is None else time, axis)
    return risk_of(task, model, axis, values, width)


def best_sigma_a2(
    activation: str | Activation,
    mixture: GaussianMixture,
    counts: ArrayLike,
    *,
    sigma_a2: ArrayLike = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    ridge: ArrayLike | None = None,
    goal: Goal = "test_mse",
    **options: Any,
) -> BestSigma:
    """Find σa² and the ridge with the lowest predicted error.

    Every DEQ is centred for the scale of the data.  Other options are those of `predict_risk`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 256)), [0.85, 1.15])
    >>> best = nsd.prediction.best_sigma_a2(
    ...     "relu", mixture, counts=(256, 256), sigma_a2=[0.0, 0.4, 0.8], ridge=[0.01, 0.1, 1.0]
    ... )
    >>> best.value, best.ridge, best.scores.shape
    (0.8, 0.01, (3, 3))
    """
    checks.known_name(goal, ("test_mse", "accuracy"), "goal")
    shares = np.atleast_1d(checks.real_array(sigma_a2, "sigma_a2", "best_sigma_a2"))
    classes = Classes.of(mixture)
    sizes = _class_counts(counts, classes)
    tau0 = classes.scale(sizes / sizes.sum())
    curves: list[RiskCurve] = []
    for share in shares:  # one grid for all, so that they can be compared
        ridge = curves[0].values if curves else ridge
        deq = DeepEquilibrium(activation, float(share)).centred(tau0)
        curves.append(predict_risk(deq, mixture, counts, ridge=ridge, **options))
    scores = np.stack([getattr(curve, goal) for curve in curves])
    signed = -scores if goal == "accuracy" else scores
    i, j = np.unravel_index(int(signed.argmin()), scores.shape)
    ridges = curves[0].values
    return BestSigma(
        float(shares[i]), float(ridges[j]), float(scores[i, j]), goal, shares, ridges, scores
    )


def make_task(
    model: Model | Expansion,
    mixture: GaussianMixture,
    counts: ArrayLike,
    kind: str = "ck",
    convention: str = "feature",
    targets: ArrayLike | None = None,
    noise: float = 0.0,
    test_weights: ArrayLike | None = None,
) -> Task:
    """Check everything a user may have got wrong, and compute the tables of the kernel."""
    classes = Classes.of(mixture)
    sizes = _class_counts(counts, classes)
    shares = sizes / sizes.sum()
    level = checks.finite_number(noise, "noise", "predict_risk")
    if level < 0.0:
        raise InvalidInput(f"noise must not be negative, got {level:g}.")
    weights = shares if test_weights is None else _probabilities(test_weights, classes.count)
    outputs = _class_targets(targets, classes.count)
    tables = _tables(model, classes, shares, kind, convention)
    return Task(classes, sizes, outputs, level, weights, tables)


def regularisation(task: Task, values: ArrayLike | None, axis: Axis) -> FloatArray:
    """Return ridges or times within the range that the equations are solved for, or the grid."""
    size = task.kernel_size if axis == "ridge" else 1.0 / task.kernel_size
    if values is None:
        return size * np.logspace(-GRID_DECADES, GRID_DECADES, GRID_POINTS)
    array = np.atleast_1d(checks.real_array(values, axis, "predict_risk"))
    if array.ndim != 1 or not array.size or not (array > 0.0).all():
        raise InvalidInput(f"{axis} must be a positive number or a list of them, got {values}.")
    if array.min() < size / RANGE or array.max() > size * RANGE:
        raise InvalidInput(
            f"{axis} must lie within a factor of {RANGE:g} of {size:.3g}, the unit of the kernel, "
            f"got {array.min():.3g} to {array.max():.3g}."
        )
    return array


def risk_of(
    task: Task, model: object, axis: Axis, values: FloatArray, width: int | None = None
) -> RiskCurve:
    """Predict, everything being checked."""
    effective = None
    if width is not None:
        q = mixing(model, task.classes.scale(task.shares))
        scores, effective = width_scores(task.ensemble, task, values, width, q)
    else:
        scores = ridge_scores(task, values) if axis == "ridge" else flow_scores(task, values)
    errors, accuracies = class_errors(task, scores)
    return RiskCurve(
        axis=axis,
        values=values,
        test_mse=errors @ task.test_weights,
        train_mse=scores.train_mse,
        accuracy=accuracies @ task.test_weights,
        train_accuracy=scores.train_accuracy,
        class_mse=errors,
        class_accuracy=accuracies,
        means=scores.means,
        covariances=scores.covariances,
        width=width,
        effective_width=effective,
        targets=task.targets,
        counts=task.counts,
        dimension=task.classes.dimension,
        notes=_notes(task),
        model=str(model),
        _evaluate=lambda x: risk_of(task, model, axis, x, width),
    )


def class_errors(task: Task, scores: Scores) -> tuple[FloatArray, FloatArray]:
    """Return mean squared errors and accuracies of new samples of each class, shape (R, K)."""
    bias = np.square(task.targets - scores.means).sum(axis=-1)
    errors = bias + np.trace(scores.covariances, axis1=-2, axis2=-1)
    return errors, class_accuracies(scores.means, scores.covariances, task.targets, task.targets)


def _notes(task: Task) -> tuple[str, ...]:
    classes, p = task.classes, task.classes.dimension
    notes = []
    if not classes.shared_basis:
        notes.append("The covariances do not commute: by their diagonals in the basis of the mean.")
    if task.tables.mean_norm == 0.0:
        notes.append(f"The limit of large p: errors of order p^(-1/2), {p**-0.5:.1%} here.")
        return tuple(notes)
    strength = float(np.diag(classes.mean_products).max() / p / classes.scale(task.shares) ** 2)
    ratio = float(task.counts.sum()) / p
    if strength * ratio > STRONG_MEANS:
        notes.append(
            f"Means of squared norm {strength:.2g}·tr C at n/p = {ratio:.2g}: what is nonlinear "
            "along them is taken to first order in the noise. In simulations of such data test "
            "errors at tiny ridges were up to 18 % lower than measured."
        )
    return tuple(notes)


def _tables(
    model: Model | Expansion, classes: Classes, shares: FloatArray, kind: str, convention: str
) -> KernelTables:
    if isinstance(model, Expansion):
        uncentred = max(map(abs, (model.constant, model.norm_shift, model.norm_curvature)))
        if uncentred > CENTRED_TOL * model.scale2:
            raise InvalidInput(
                f"model must be the expansion of a centred model, got terms of {uncentred:.3g} in "
                "the norm alone. Give the model itself, or that of model.centred(tau0)."
            )
        return limit_tables(classes, shares, model.four)
    if not isinstance(model, Model):
        raise InvalidInput(
            "model must have a kernel of norms and inner products alone, got "
            f"{type(model).__name__}. Use prediction.pilot_curve on images."
        )
    choice: Any = {"kind": kind, "convention": convention}
    return resolved_tables(lambda X, Y: np.asarray(exact_kernel(model, X, Y, **choice)), classes)


def _class_counts(counts: ArrayLike, classes: Classes) -> FloatArray:
    array = checks.real_array(counts, "counts", "predict_risk")
    if array.shape != (classes.count,):
        raise InvalidInput(
            f"counts must hold one number for each of the {classes.count} classes, got shape "
            f"{array.shape}."
        )
    if (array < 1.0).any() or (array != np.rint(array)).any():
        raise InvalidInput(f"counts must be integers of at least 1, got {array.tolist()}.")
    ratio = float(array.sum()) / classes.dimension
    if not 1.0 / MAX_RATIO <= ratio <= MAX_RATIO:
        raise InvalidInput(
            f"counts must make n/p lie between {1.0 / MAX_RATIO:g} and {MAX_RATIO:g}, got "
            f"{ratio:.3g}."
        )
    return array


def _class_targets(targets: ArrayLike | None, K: int) -> FloatArray:
    if targets is None:
        return default_targets(K)
    array = checks.real_array(targets, "targets", "predict_risk")
    if array.ndim not in (1, 2) or len(array) != K or 0 in array.shape:
        raise InvalidInput(f"targets must hold a row for each of {K} classes, got {array.shape}.")
    array = array.reshape(K, -1)
    if (array == array[0]).all():
        raise InvalidInput(f"targets must differ between classes, got {array[0].tolist()} for all.")
    return array


def _probabilities(weights: ArrayLike, K: int) -> FloatArray:
    array = checks.real_array(weights, "test_weights", "predict_risk")
    if array.shape != (K,) or (array < 0.0).any() or abs(array.sum() - 1.0) > 1e-8:
        raise InvalidInput(f"test_weights must be {K} shares that sum to 1, got {array.tolist()}.")
    return array

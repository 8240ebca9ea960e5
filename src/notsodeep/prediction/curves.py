"""Predictions over the number of samples, and over the width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import GaussianMixture
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, KernelName, Model
from notsodeep.prediction.problem import Problem, usual_targets
from notsodeep.prediction.risk import risk_of
from notsodeep.prediction.scores import point_errors
from notsodeep.prediction.task import Regularisation, TableName, Task
from notsodeep.prediction.width import RowKernel, recurrence, row_width_scores, width_scores
from notsodeep.records import Plotted


@dataclass(frozen=True, eq=False, repr=False)
class LearningCurve(Plotted):
    """Errors over the number of training samples, for ridges.

    Attributes
    ----------
    samples : ndarray of shape (N,)
        n.
    dimension : int
        p.
    ridges : ndarray of shape (R,)
    test_mse, train_mse, accuracy : ndarray of shape (N, R)
    model : str
    """

    _drawing = "learning_curve"

    samples: FloatArray
    dimension: int
    ridges: FloatArray
    test_mse: FloatArray
    train_mse: FloatArray
    accuracy: FloatArray
    model: str


@dataclass(frozen=True, eq=False, repr=False)
class WidthCurve(Plotted):
    """Errors of trained read-outs over the width, for several models.

    Attributes
    ----------
    widths : ndarray of shape (W,)
    test_mse, accuracy : dict of ndarray of shape (W,)
        By model.
    effective_width : dict of ndarray of shape (W,)
        Independent neurons that the width counts for.
    limit_mse, limit_accuracy : dict of float
        At infinite width.
    ridge : float
    """

    _drawing = "width_curve"

    widths: FloatArray
    test_mse: dict[str, FloatArray]
    accuracy: dict[str, FloatArray]
    effective_width: dict[str, FloatArray]
    limit_mse: dict[str, float]
    limit_accuracy: dict[str, float]
    ridge: float


def learning_curve(
    model: Model,
    mixture: GaussianMixture,
    samples: ArrayLike,
    *,
    ridge: ArrayLike,
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    noise: float = 0.0,
    tables: TableName = "resolved",
) -> LearningCurve:
    """Predict errors over the number of training samples; double descent included.

    Parameters
    ----------
    samples : array_like of shape (N,)
        n; class sizes are those of ``mixture.class_counts(n)``.
    model, mixture, ridge, kernel, convention, noise, tables
        As for `predict_risk`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 256)), [0.85, 1.15])
    >>> deq = nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    >>> curve = nsd.prediction.learning_curve(deq, mixture, [64, 256, 1024], ridge=1e-3)
    >>> curve.accuracy[:, 0].round(3)
    array([0.695, 0.833, 0.92 ])
    """
    owner = "learning_curve"
    sizes = np.atleast_1d(checks.real_array(samples, "samples", owner))
    problems = [
        Problem.checked(mixture, mixture.class_counts(int(n)), noise=noise, owner=owner)
        for n in sizes
    ]
    task = Task.of(problems[0], model, kernel=kernel, convention=convention, tables=tables)
    stop = Regularisation("ridge", task.values(ridge, "ridge"))
    rows = [risk_of(task.with_problem(problem), stop) for problem in problems]
    return LearningCurve(
        sizes,
        mixture.dimension,
        stop.values,
        np.stack([r.test_mse for r in rows]),
        np.stack([r.train_mse for r in rows]),
        np.stack([r.accuracy for r in rows]),
        str(model),
    )


def width_curve(
    models: Mapping[str, Model],
    mixture: GaussianMixture,
    counts: ArrayLike,
    widths: ArrayLike,
    *,
    ridge: float,
    noise: float = 0.0,
    tables: TableName = "resolved",
) -> WidthCurve:
    """Predict read-outs of finite width, of a DEQ and the network matched to it for instance.

    Parameters
    ----------
    models : mapping
        DEQs and networks of one hidden layer, by name.
    widths : array_like of shape (W,)
    mixture, counts, ridge, noise, tables
        As for `predict_risk`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> first = np.where(np.arange(256) < 128, 1.9, 0.1)
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 256)), [first, 2.0 - first])
    >>> deq = nsd.DeepEquilibrium("relu", 0.8).centred(1.0)
    >>> network = nsd.match(deq, tau0=1.0, convention="feature").network
    >>> models = {"DEQ": deq, "matched": network}
    >>> curve = nsd.prediction.width_curve(models, mixture, (256, 256), [2048], ridge=0.01)
    >>> {name: right.round(3) for name, right in curve.accuracy.items()}
    {'DEQ': array([0.75]), 'matched': array([0.771])}
    """
    owner = "width_curve"
    sizes = _whole_widths(widths, owner)
    level = checks.positive_number(ridge, "ridge", owner)
    mse, right, effective = {}, {}, {}
    limit_mse, limit_right = {}, {}
    problem = Problem.checked(mixture, counts, noise=noise, owner=owner)
    for name, model in models.items():
        task = Task.of(problem, model, kernel="conjugate", convention="feature", tables=tables)
        stop = Regularisation("ridge", task.values(level, "ridge"))
        q = recurrence(model, problem.classes.scale(problem.shares), owner)
        finite = width_scores(task.ensemble, problem, np.full(len(sizes), level), sizes, q)
        mse[name] = finite.scores.class_errors(problem) @ problem.test_weights
        right[name] = finite.scores.accuracies(problem) @ problem.test_weights
        effective[name] = finite.effective_width
        limit = risk_of(task, stop)
        limit_mse[name], limit_right[name] = float(limit.test_mse[0]), float(limit.accuracy[0])
    return WidthCurve(sizes.astype(float), mse, right, effective, limit_mse, limit_right, level)


def width_curve_on_rows(
    models: Mapping[str, Model],
    X: ArrayLike,
    y: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike,
    widths: ArrayLike,
    *,
    ridge: float,
    rng: int | np.random.Generator = 0,
) -> WidthCurve:
    """Predict read-outs of finite width on given rows, which need be no mixture.

    From exact kernels: what is random is the network, not the data.  Its neurons are those of the
    law of `width_curve`.

    Parameters
    ----------
    models : mapping
        DEQs and networks of one hidden layer, by name.
    X, y : array_like of shape (n, p) and (n,)
        Training rows and labels 0 … K − 1; n × n kernels are decomposed.
    X_test, y_test : array_like of shape (N, p) and (N,)
    widths : array_like of shape (W,)
    ridge : float
        λ, of features whose inner products tend to the kernel.
    rng : int or Generator
        Eight scores of each new row are drawn for the accuracies.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> data = nsd.data.load("digits", samples=300, rng=0)
    >>> models = {"DEQ": nsd.DeepEquilibrium("relu", 0.8).centred(1.0)}
    >>> curve = nsd.prediction.width_curve_on_rows(
    ...     models, data.X, data.y, data.X_test, data.y_test, [100, 400], ridge=0.01
    ... )
    >>> bool(curve.accuracy["DEQ"][0] < curve.accuracy["DEQ"][1] < curve.limit_accuracy["DEQ"])
    True
    """
    owner = "width_curve_on_rows"
    rows, new = checks.samples(X, "X", owner), checks.samples(X_test, "X_test", owner)
    labels = checks.class_labels(y, len(rows), owner)
    truth = checks.class_labels(y_test, len(new), owner, int(labels.max()) + 1)
    sizes = _whole_widths(widths, owner)
    level = checks.positive_number(ridge, "ridge", owner)
    targets, generator = usual_targets(int(labels.max()) + 1), checks.random_generator(rng, owner)
    tau0 = float(np.sqrt(np.square(rows).sum(axis=1).mean()))
    mse, right, effective = {}, {}, {}
    limit_mse, limit_right = {}, {}
    for name, model in models.items():
        q = recurrence(model, tau0, owner)
        K = exact_kernel(model, np.concatenate([rows, new]), kind="conjugate", convention="feature")
        known = RowKernel.of(np.asarray(K), targets[labels])
        found = []
        for m in sizes:
            mean, spread, neurons = row_width_scores(known, level, int(m), q)
            found.append((*point_errors(mean, spread, targets, truth, generator), neurons))
        mse[name], right[name], effective[name] = np.array(found).T
        mean = known.limit(level)
        still = np.zeros((*mean.shape, mean.shape[1]))
        limit_mse[name], limit_right[name] = point_errors(mean, still, targets, truth, generator)
    return WidthCurve(sizes.astype(float), mse, right, effective, limit_mse, limit_right, level)


def _whole_widths(widths: ArrayLike, owner: str) -> IntArray:
    given = np.atleast_1d(checks.real_array(widths, "widths", owner))
    if given.ndim != 1 or not given.size or (given < 1.0).any() or (given % 1.0).any():
        raise checks.invalid("widths", owner, "be whole numbers of at least 1", given.tolist())
    return given.astype(int)

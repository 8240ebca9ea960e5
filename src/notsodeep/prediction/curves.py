"""Predictions over the number of samples, and over the width."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import GaussianMixture
from notsodeep.errors import InvalidInput
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, KernelName, Model, kernel_name
from notsodeep.prediction.risk import class_errors, make_task, regularisation, risk_of
from notsodeep.prediction.scores import default_targets
from notsodeep.prediction.width import RowKernel, mixing, width_scores
from notsodeep.records import Plotted

SCORE_DRAWS = 8
"""Drawn scores of each given row, for accuracies."""

Rows = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]


@dataclass(frozen=True, eq=False, repr=False)
class LearningCurve(Plotted):
    """Errors over the number of training samples, for ridges."""

    _drawing = "learning_curve"

    samples: FloatArray  # (N,)
    dimension: int  # p
    ridges: FloatArray  # (R,)
    test_mse: FloatArray  # (N, R)
    train_mse: FloatArray  # (N, R)
    accuracy: FloatArray  # (N, R)
    model: str


@dataclass(frozen=True, eq=False, repr=False)
class WidthCurve(Plotted):
    """Errors of trained read-outs over the width, by model."""

    _drawing = "width_curve"

    widths: FloatArray  # (W,)
    test_mse: dict[str, FloatArray]  # (W,)
    accuracy: dict[str, FloatArray]  # (W,)
    effective_width: dict[str, FloatArray]  # (W,): independent neurons that the width counts for
    limit_mse: dict[str, float]  # at infinite width
    limit_accuracy: dict[str, float]
    ridge: float


def learning_curve(
    model: Model,
    mixture: GaussianMixture,
    samples: ArrayLike,
    *,
    ridge: ArrayLike | None = None,
    kind: KernelName = "ck",
    convention: Convention = "feature",
    noise: float = 0.0,
) -> LearningCurve:
    """Predict errors over the number of training samples; double descent included.

    Parameters
    ----------
    samples : array_like of shape (N,)
        n; class sizes are those of ``mixture.class_counts(n)``.
    model, mixture, ridge, kind, convention, noise
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
    if not isinstance(mixture, GaussianMixture):
        raise InvalidInput(f"mixture must be a GaussianMixture, got {type(mixture).__name__}.")
    sizes = _whole_numbers(samples, "samples")
    counts = [mixture.class_counts(int(n)) for n in sizes]
    kind = kernel_name(kind, "kind")
    first = make_task(model, mixture, counts[0], kind, convention, noise=noise)
    ridges = regularisation(first, ridge, "ridge")
    tasks = [  # the tables of a kernel do not depend on the number of samples
        dataclasses.replace(first, counts=c.astype(float), test_weights=c / c.sum()) for c in counts
    ]
    rows = [risk_of(task, model, "ridge", ridges) for task in tasks]
    test, train, right = (
        np.stack([getattr(row, name) for row in rows])
        for name in ("test_mse", "train_mse", "accuracy")
    )
    return LearningCurve(
        sizes.astype(float), mixture.dimension, ridges, test, train, right, str(model)
    )


def width_curve(
    models: Mapping[str, Model],
    data: GaussianMixture | Rows,
    widths: ArrayLike,
    *,
    ridge: float,
    counts: ArrayLike | None = None,
    noise: float = 0.0,
    rng: int | np.random.Generator = 0,
) -> WidthCurve:
    """Predict read-outs of finite width, of a DEQ and the network matched to it for instance.

    Parameters
    ----------
    models : mapping
        Vanilla DEQs and networks of one hidden layer, by name.
    data : GaussianMixture, or (X, y, X_test, y_test)
        Rows need be no mixture: their n × n kernel is decomposed, and what is random is the
        network, not the data.
    widths : array_like of shape (W,)
    ridge : float
        λ, of features whose inner products tend to the kernel.
    counts, noise
        As for `predict_risk`, of a mixture.
    rng : int or Generator
        Eight scores of each new row are drawn for the accuracies on rows.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> first = np.where(np.arange(256) < 128, 1.9, 0.1)
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 256)), [first, 2.0 - first])
    >>> models = {"DEQ": nsd.DeepEquilibrium("relu", 0.8).centred(1.0)}
    >>> curve = nsd.prediction.width_curve(models, mixture, [2048], ridge=0.01, counts=(256, 256))
    >>> curve.accuracy["DEQ"].round(3), round(curve.limit_accuracy["DEQ"], 2)
    (array([0.75]), 0.86)
    """
    if not models:
        raise InvalidInput("models must hold at least one model, got none.")
    sizes = _whole_numbers(widths, "widths")
    level = checks.positive_number(ridge, "ridge", "width_curve")
    columns: dict[str, dict[str, Any]] = {
        field.name: {} for field in dataclasses.fields(WidthCurve)[1:-1]
    }
    for name, model in models.items():
        if isinstance(data, GaussianMixture):
            if counts is None:
                raise InvalidInput("counts must be given with a mixture, got None.")
            values = _on_mixture(model, data, counts, sizes, level, noise)
        else:
            values = _on_rows(model, data, sizes, level, rng)
        for column, value in zip(columns.values(), values, strict=True):
            column[name] = value
    return WidthCurve(widths=sizes.astype(float), ridge=level, **columns)


def _on_mixture(
    model: Model,
    mixture: GaussianMixture,
    counts: ArrayLike,
    widths: IntArray,
    ridge: float,
    noise: float,
) -> tuple[Any, ...]:
    task = make_task(model, mixture, counts, noise=noise)
    ridges = np.full(len(widths), ridge)
    q = mixing(model, task.classes.scale(task.shares))
    scores, neurons = width_scores(task.ensemble, task, ridges, widths, q)
    errors, right = (part @ task.test_weights for part in class_errors(task, scores))
    limit = risk_of(task, model, "ridge", ridges[:1])
    return errors, right, neurons, float(limit.test_mse[0]), float(limit.accuracy[0])


def _on_rows(
    model: Model, data: Rows, widths: IntArray, ridge: float, rng: int | np.random.Generator
) -> tuple[Any, ...]:
    rows, new = checks.samples(data[0], "X"), checks.samples(data[2], "X_test")
    labels = checks.class_labels(data[1], len(rows), "width_curve")
    if labels.min() == labels.max():
        raise InvalidInput("y must hold at least two classes, got one.")
    truth = checks.class_labels(data[3], len(new), "width_curve", int(labels.max()) + 1)
    targets = default_targets(int(labels.max()) + 1)
    generator = checks.random_generator(rng, "width_curve")
    q = mixing(model, float(np.sqrt(np.square(rows).sum(axis=1).mean())))
    K = np.asarray(exact_kernel(model, np.concatenate([rows, new]), convention="feature"))
    known, diagonal = RowKernel.of(K, targets[labels]), np.diag(K)[len(rows) :]
    table = []
    for m in widths:
        mean, spread, neurons = known.width_scores(diagonal, ridge, int(m), q)
        table.append((*_point_errors(mean, spread, targets, truth, generator), neurons))
    mean = known.limit(ridge)
    fixed = np.zeros((*mean.shape, mean.shape[1]))
    limit = _point_errors(mean, fixed, targets, truth, generator)
    return *np.array(table).T, *limit


def _point_errors(
    means: FloatArray,
    covariances: FloatArray,
    targets: FloatArray,
    truth: IntArray,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return squared error and accuracy over points with Gaussian scores (N, k) and (N, k, k)."""
    values, vectors = np.linalg.eigh(covariances)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    drawn = rng.standard_normal((SCORE_DRAWS, *means.shape))
    scores = means + np.einsum("nkl,dnl->dnk", roots, drawn)
    nearest = np.square(scores[:, :, None] - targets).sum(axis=-1).argmin(axis=-1)
    bias = np.square(means - targets[truth]).sum(axis=1)
    mse = (bias + np.trace(covariances, axis1=1, axis2=2)).mean()
    return float(mse), float((nearest == truth).mean())


def _whole_numbers(values: ArrayLike, name: str) -> IntArray:
    array = np.atleast_1d(checks.real_array(values, name, "the curve"))
    if array.ndim != 1 or not array.size or (array < 1.0).any() or (array % 1.0).any():
        raise InvalidInput(f"{name} must be whole numbers of at least 1, got {array.tolist()}.")
    return array.astype(int)

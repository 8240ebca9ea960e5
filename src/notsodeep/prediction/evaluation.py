"""Scores of a fit: class means and covariances, for ridges and for any filter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.prediction.filters import Filter
from notsodeep.prediction.noise import Array
from notsodeep.prediction.problem import Problem
from notsodeep.prediction.resolvent import Ensemble
from notsodeep.prediction.scores import class_accuracies

_CHUNK = 3_000_000  # numbers in an array over poles, directions and pairs of classes


@dataclass(frozen=True, eq=False)
class Scores:
    """Gaussian scores of each class, for R fits.

    Attributes
    ----------
    means : ndarray of shape (R, K, k)
    covariances : ndarray of shape (R, K, k, k)
    kept : ndarray of shape (R, K)
        Share of its own target that a training sample leaves in its residual: λ q_a for a ridge.
    train_parts : ndarray of shape (R, K, k)
        What the others add to a training score: it is (1 − kept)·(own target) + N(train_parts, …).
    train_spreads : ndarray of shape (R, K, k, k)
        Covariance of that part.
    """

    means: FloatArray
    covariances: FloatArray
    kept: FloatArray
    train_parts: FloatArray
    train_spreads: FloatArray

    def class_errors(self, problem: Problem) -> FloatArray:
        """Return the mean squared error of new samples in each class, shape (R, K)."""
        bias = np.square(problem.targets - self.means).sum(axis=-1)
        return np.asarray(bias + np.trace(self.covariances, axis1=-2, axis2=-1))

    def train_scores(self, problem: Problem) -> tuple[FloatArray, FloatArray]:
        """Return means and covariances of the scores of training samples."""
        fitted = 1.0 - self.kept[..., None]
        means = fitted * problem.given + self.train_parts
        noise = problem.noise_covariance
        return means, self.train_spreads + np.square(fitted)[..., None] * noise

    def train_errors(self, problem: Problem) -> FloatArray:
        """Return the training error, against the targets that were given; shape (R,)."""
        bias = np.square(self.kept[..., None] * problem.given - self.train_parts).sum(axis=-1)
        noise = np.trace(problem.noise_covariance, axis1=-2, axis2=-1)
        spread = np.trace(self.train_spreads, axis1=-2, axis2=-1) + np.square(self.kept) * noise
        return np.asarray((bias + spread) @ problem.shares)

    def accuracies(self, problem: Problem) -> FloatArray:
        """Return the accuracy for new samples of each class, shape (R, K)."""
        return class_accuracies(self.means, self.covariances, problem.targets, problem.targets)

    def train_accuracies(self, problem: Problem) -> FloatArray:
        """Return the share of training samples that are put where their label says; shape (R,)."""
        fitted = 1.0 - self.kept[..., None]
        spreads = self.train_spreads
        if problem.noise:
            extra = problem.noise**2 * np.eye(problem.outputs)
            spreads = spreads + np.square(fitted)[..., None] * extra
        result = np.zeros(len(self.means))
        for b, target in enumerate(problem.targets):
            a = np.flatnonzero(problem.flips[:, b])  # classes that this label is given to
            means = fitted[:, a] * target + self.train_parts[:, a]
            wanted = np.repeat(target[None], len(a), axis=0)
            right = class_accuracies(means, spreads[:, a], problem.targets, wanted)
            result += right @ (problem.shares * problem.flips[:, b])[a]
        return result


def ridge_scores(ensemble: Ensemble, problem: Problem, ridges: FloatArray) -> Scores:
    """Return the scores of ridge regression for every λ at once."""
    resolvent = ensemble.resolvent(-ridges)
    fit = resolvent.fitted(problem.given)
    covariance = fit.covariance(problem.noise_covariance)
    means = problem.given - fit.residual
    kept = ridges[:, None] * resolvent.q
    return Scores(
        means,
        covariance,
        kept,
        kept[..., None] * means,
        np.square(kept)[..., None, None] * covariance,
    )


def filter_scores(ensemble: Ensemble, problem: Problem, filters: Sequence[Filter]) -> Scores:
    """Return the scores of any linear methods, a few at a time.

    Scores are linear in the filter: means are sums over poles, covariances over pairs of poles.
    """
    parts = []
    numbers = ensemble.classes.values.size * ensemble.classes.count
    for batch in _batches(filters, max(1, _CHUNK // max(numbers, 1))):
        poles = np.stack([f.poles for f in batch])
        resolvent = ensemble.resolvent(poles)
        fit = resolvent.fitted(problem.given)
        noise = problem.noise_covariance
        # Quadratic in the number of poles, in time and in memory: hence the batches.
        same, crossed = fit.covariances(fit, noise), fit.covariances(fit.conjugate(), noise)
        weights = np.stack([f.weights for f in batch])
        residual = np.stack([f.residual_weights for f in batch])[..., None] * resolvent.q
        scores = problem.given - fit.residual  # of every pole, (R, P, K, k)
        parts.append(
            Scores(
                np.einsum("rp,rpak->rak", weights, scores).real,
                _real_forms(np.repeat(weights[..., None], scores.shape[-2], -1), same, crossed),
                residual.sum(axis=1).real,
                np.einsum("rpa,rpak->rak", residual, scores).real,
                _real_forms(residual, same, crossed),
            )
        )
    names = [field.name for field in dataclasses.fields(Scores)]
    return Scores(**{name: np.concatenate([getattr(s, name) for s in parts]) for name in names})


def _real_forms(weights: Array, same: Array, crossed: Array) -> FloatArray:
    """Cov of Re Σ w_i s_i, as Re u·Re v = Re(uv + uv̄)/2.

    Weights are of shape (R, P, K), forms of shape (R, P, P, K, k, k).
    """
    forms = np.einsum("rpa,rqa,rpqakl->rakl", weights, weights, same, optimize=True)
    forms = forms + np.einsum(
        "rpa,rqa,rpqakl->rakl", weights, weights.conj(), crossed, optimize=True
    )
    return np.asarray(0.5 * forms.real)


def _batches(filters: Sequence[Filter], poles: int) -> list[list[Filter]]:
    """Put filters with equally many poles together, in order, up to a number of poles."""
    batches: list[list[Filter]] = []
    for filter_ in filters:
        size = len(filter_.poles)
        last = batches[-1] if batches else []
        if last and len(last[0].poles) == size and (len(last) + 1) * size <= poles:
            last.append(filter_)
        else:
            batches.append([filter_])
    return batches

"""What the collapse measures need to know of features and classifier: a few small matrices.

The same record comes from features or from their Gram matrix, so that every measure of the
features also applies to a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse.class_statistics import ClassStatistics

Weights = Literal["class", "sample"]

ROUNDING = 32.0 * float(np.finfo(np.float64).eps)
"""Relative rounding error of sums such as means: a few units in the last place."""


@dataclass(frozen=True, eq=False)
class ClassGeometry:
    """Class means about a centre, and the variability around them.

    Attributes
    ----------
    counts : ndarray of shape (K,)
    weights : ndarray of shape (K,)
        π_k of S_W = Σ π_k Σ_k and S_B = Σ π_k m_k m_kᵀ, with Σ_k the covariance of class k
        (divided by n_k) and m_k = μ_k − centre.
    variances : ndarray of shape (K,)
        v_k = tr Σ_k.
    gram : ndarray of shape (K, K)
        m_j·m_k.
    squared_distances : ndarray of shape (K, K)
        ‖μ_j − μ_k‖².
    inverse_traces : ndarray of shape (K,), or None
        tr(Σ_k S_B⁺); None if only traces of the scatter were kept.
    rank : int
        Numerical rank of S_B.
    cutoff : float
        Singular values of the centred, weighted means below `cutoff` times the largest count as
        zero, in the rank and in the pseudo-inverse.
    rounding, variance_rounding : float
        Lengths of means, and variances, below these are rounding errors.
    """

    counts: IntArray
    weights: FloatArray
    variances: FloatArray
    gram: FloatArray
    squared_distances: FloatArray
    inverse_traces: FloatArray | None
    rank: int
    cutoff: float
    rounding: float
    variance_rounding: float

    @property
    def norms(self) -> FloatArray:
        """‖m_k‖, shape (K,)."""
        return np.sqrt(np.maximum(np.diag(self.gram), 0.0))


def class_weights(counts: IntArray, weights: Weights) -> FloatArray:
    """Give each class the same weight, or each sample; the sum is one."""
    if weights == "class":
        return np.full(len(counts), 1.0 / len(counts))
    return np.asarray(counts / counts.sum())


def centred_means(statistics: ClassStatistics, centring: Weights) -> FloatArray:
    """Return m_k = μ_k − Σ_j c_j μ_j, shape (K, d)."""
    centre = class_weights(statistics.counts, centring) @ statistics.means
    return np.asarray(statistics.means - centre)


def geometry_of_features(
    statistics: ClassStatistics, centring: Weights, weighting: Weights, cutoff: float
) -> ClassGeometry:
    """Reduce streamed statistics; every class must have a sample."""
    M = centred_means(statistics, centring)
    weights = class_weights(statistics.counts, weighting)
    _, singular, directions = np.linalg.svd(np.sqrt(weights)[:, None] * M, full_matrices=False)
    rounding = ROUNDING * float(np.linalg.norm(statistics.means, axis=1).max())
    rank, cutoff = numerical_rank(singular, len(weights), cutoff, rounding)
    inverse_traces = None
    if statistics.kind == "full":
        along = statistics.variances_along(directions[:rank])
        inverse_traces = along @ singular[:rank] ** -2.0
    means = statistics.means
    return ClassGeometry(
        statistics.counts,
        weights,
        statistics.variances,
        M @ M.T,
        np.array([np.square(means - mean).sum(axis=1) for mean in means]),
        inverse_traces,
        rank,
        cutoff,
        rounding,
        rounding**2,
    )


def cosine_matrix(gram: FloatArray, rounding: float) -> FloatArray:
    """Return the cosines of vectors with this Gram matrix; NaN for vectors that are zero."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    norms = np.where(norms > rounding, norms, np.nan)
    cosines = gram / np.outer(norms, norms)
    np.fill_diagonal(cosines, np.where(np.isnan(norms), np.nan, 1.0))
    return np.asarray(np.clip(cosines, -1.0, 1.0))


def numerical_rank(
    singular: FloatArray, num_classes: int, cutoff: float, rounding: float
) -> tuple[int, float]:
    """Rank of S_B, at most K − 1, from the singular values; and the relative cut-off in force.

    That is the larger of the one asked for and the one that rounding dictates.
    """
    largest = float(singular[0])
    if largest <= rounding:
        return 0, cutoff
    cutoff = max(cutoff, rounding / largest)
    return min(int((singular > cutoff * largest).sum()), num_classes - 1), cutoff


def majority_and_minority(counts: FloatArray | IntArray) -> dict[str, IntArray]:
    """Split the classes by size, ``{"majority": …, "minority": …}``; empty if all are equal.

    A class is in the minority if it has fewer samples than the average class.  With two sizes these
    are the smaller classes, whatever their number.

    Examples
    --------
    >>> majority_and_minority(np.array([50, 50, 50, 5]))
    {'majority': array([0, 1, 2]), 'minority': array([3])}
    """
    if counts.min() == counts.max():
        return {}
    small = counts < counts.mean()
    return {"majority": np.flatnonzero(~small), "minority": np.flatnonzero(small)}


@dataclass(frozen=True, eq=False)
class ClassifierView:
    """Classifier and centred class means, a row for each class.

    Attributes
    ----------
    W, M : ndarray of shape (K, d)
    margins : ndarray of shape (K,)
        Own logit of every class mean minus the largest other one, rounding error subtracted.
    """

    W: FloatArray
    M: FloatArray
    margins: FloatArray

    @classmethod
    def of(
        cls, W: FloatArray, b: FloatArray, means: FloatArray, centred: FloatArray
    ) -> ClassifierView:
        """Evaluate the classifier W h + b at the class means."""
        logits = means @ W.T + b
        own = np.diag(logits).copy()
        np.fill_diagonal(logits, -math.inf)
        size = np.linalg.norm(means, axis=1).max() * np.linalg.norm(W, axis=1).max()
        return cls(W, centred, own - logits.max(axis=1) - ROUNDING * (size + np.abs(b).max()))

    @property
    def norms(self) -> FloatArray:
        """‖w_k‖, shape (K,)."""
        return np.asarray(np.linalg.norm(self.W, axis=1))

    @property
    def rounding(self) -> float:
        """Rows shorter than this are zero up to rounding."""
        return ROUNDING * float(self.norms.max())

    @property
    def cosines(self) -> FloatArray:
        """Cosines between the rows of W, shape (K, K)."""
        return cosine_matrix(self.W @ self.W.T, self.rounding)

"""The measures NC1 to NC4; the first three are pure functions of a few small matrices.

Each is 0 at collapse and may be taken over a subset of the classes; over all of them it is the
usual definition.  Vectors stay centred at the centre of *all* classes, and are compared with the
part of the simplex that belongs to the subset.  Sources: Papyan, Han and Donoho (PNAS 2020);
Galanti, György and Hutter (2021) for CDNV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse.geometries import ClassGeometry, simplex_gram
from notsodeep.records import Record


class Measured(NamedTuple):
    """A value, or None or infinity with the reason."""

    value: float | None
    reason: str = ""


ONE_CLASS = Measured(None, "needs two classes; the group has one")


def variability(geometry: ClassGeometry, classes: IntArray) -> Measured:
    """NC1: tr(S_W S_B⁺)/K.  S_W of the subset, S_B and K of all classes.

    So that NC1 of all classes is the weighted mean of its values on the parts of a partition.
    """
    if geometry.inverse_traces is None:
        return Measured(None, "only the traces of the scatter were kept (scatter='trace')")
    if geometry.rank == 0:
        return Measured(math.inf, "all class means coincide")
    weights = geometry.weights[classes]
    mean = float(weights @ geometry.inverse_traces[classes] / weights.sum())
    return Measured(mean / len(geometry.weights))


def trace_ratio(geometry: ClassGeometry, classes: IntArray) -> Measured:
    """NC1, second form: tr S_W/tr S_B, both of the subset."""
    weights = geometry.weights[classes]
    between = float(weights @ np.square(geometry.norms[classes]))
    if between <= geometry.rounding**2 * weights.sum():
        return Measured(math.inf, "the class means coincide with their centre")
    return Measured(float(weights @ geometry.variances[classes]) / between)


def normalised_variances(geometry: ClassGeometry) -> FloatArray:
    """CDNV of every pair: (v_j + v_k)/(2‖μ_j − μ_k‖²), shape (K, K), zero on the diagonal.

    Infinite where two means coincide, be the variances zero or not: the classes are not apart.
    """
    sums = np.add.outer(geometry.variances, geometry.variances)
    apart = geometry.squared_distances > geometry.rounding**2
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.where(apart, 0.5 * sums / geometry.squared_distances, np.inf)
    np.fill_diagonal(result, 0.0)
    return np.asarray(result)


def mean_normalised_variance(pairs: FloatArray, classes: IntArray) -> Measured:
    """NC1, third form: the mean CDNV over the pairs within the subset."""
    if len(classes) < 2:
        return ONE_CLASS
    values = _off_diagonal(pairs, classes)
    if np.isinf(values).any():
        a, b = np.argwhere(np.isinf(pairs[np.ix_(classes, classes)]))[0]
        return Measured(math.inf, f"the means of classes {classes[a]} and {classes[b]} coincide")
    return Measured(float(values.mean()))


def simplex_deviation(products: FloatArray, classes: IntArray, smallest: float) -> Measured:
    """NC2 of M Mᵀ or W Wᵀ, and NC3 of W Mᵀ: ‖G/‖G‖ − T/‖T‖‖_F, both restricted to the subset.

    `smallest` is the norm below which G is zero up to rounding.
    """
    if len(classes) < 2:
        return ONE_CLASS
    block = products[np.ix_(classes, classes)]
    size = float(np.linalg.norm(block))
    if size <= smallest:
        return Measured(None, "the vectors are zero up to rounding")
    target = simplex_gram(len(products))[np.ix_(classes, classes)]
    return Measured(float(np.linalg.norm(block / size - target / np.linalg.norm(target))))


def self_duality(W: FloatArray, M: FloatArray, classes: IntArray, rounding: float) -> Measured:
    """NC3, second form: ‖W/‖W‖ − M/‖M‖‖_F over the rows of the subset."""
    weights, means = W[classes], M[classes]
    size_w, size_m = float(np.linalg.norm(weights)), float(np.linalg.norm(means))
    if size_w == 0.0 or size_m <= rounding:
        return Measured(None, "classifier or class means are zero up to rounding")
    return Measured(float(np.linalg.norm(weights / size_w - means / size_m)))


def equal_norms(norms: FloatArray, classes: IntArray) -> Measured:
    """Coefficient of variation of the norms: standard deviation over mean."""
    if len(classes) < 2:
        return ONE_CLASS
    mean = float(norms[classes].mean())
    if mean == 0.0:
        return Measured(None, "the vectors are zero")
    return Measured(float(norms[classes].std()) / mean)


def angles(cosines: FloatArray, classes: IntArray) -> tuple[Measured, Measured, Measured]:
    """Mean cosine, its standard deviation (equiangularity), and the mean of |cos + 1/(K−1)|.

    Over the pairs within the subset; the last compares with the angle of the whole simplex.
    """
    if len(classes) < 2:
        return ONE_CLASS, ONE_CLASS, ONE_CLASS
    lost = classes[np.isnan(np.diag(cosines)[classes])]
    if lost.size:
        failed = Measured(None, f"the vector of class {lost[0]} is zero up to rounding")
        return failed, failed, failed
    values = _off_diagonal(cosines, classes)
    deviation = np.abs(values + 1.0 / (len(cosines) - 1.0)).mean()
    return Measured(float(values.mean())), Measured(float(values.std())), Measured(float(deviation))


def _off_diagonal(matrix: FloatArray, classes: IntArray) -> FloatArray:
    block = matrix[np.ix_(classes, classes)]
    return np.asarray(block[~np.eye(len(classes), dtype=bool)])


@dataclass(frozen=True, eq=False, repr=False)
class NearestMeanMismatch(Record):
    """Samples on which classifier and nearest class mean disagree.  Those of batches add up.

    Attributes
    ----------
    disagreements, totals : ndarray of shape (K + 1,)
        Numbers of samples by true class; the last entry is for samples without a label.
    ties : int
        Samples whose largest logit, or nearest mean, is not unique; the lower class was taken.
        After minority collapse these decide the accuracy of the minority.

    Examples
    --------
    >>> from notsodeep.collapse import CollapseMetrics
    >>> h, y, W = [[1.0, 0.0], [0.0, 1.0]], [0, 1], [[0.0, 1.0], [1.0, 0.0]]
    >>> metrics = CollapseMetrics(num_classes=2)
    >>> metrics.update(h, y)
    >>> metrics.mismatch(h, W, labels=y).share  # this classifier has the classes exchanged
    1.0
    """

    disagreements: IntArray
    totals: IntArray
    ties: int

    @property
    def share(self) -> float:
        """NC4, the share of samples on which they disagree."""
        return float(self.disagreements.sum() / self.totals.sum())

    def share_of(self, classes: IntArray) -> float | None:
        """NC4 over the samples of some classes; None if samples came without labels."""
        total = self.totals[classes].sum()
        if self.totals[-1] > 0 or total == 0:
            return None
        return float(self.disagreements[classes].sum() / total)

    def __add__(self, other: NearestMeanMismatch) -> NearestMeanMismatch:
        return NearestMeanMismatch(
            self.disagreements + other.disagreements,
            self.totals + other.totals,
            self.ties + other.ties,
        )


def nearest_mean_mismatch(
    features: FloatArray,
    means: FloatArray,
    W: FloatArray,
    b: FloatArray,
    labels: IntArray | None = None,
) -> NearestMeanMismatch:
    """Count the rows h of `features` with arg max_k (w_k·h + b_k) ≠ arg min_k ‖h − μ_k‖."""
    K = len(means)
    logits = features @ W.T + b
    centre = means.mean(axis=0)  # takes a common offset out of the squares
    centred = means - centre
    closeness = (features - centre) @ centred.T - 0.5 * np.square(centred).sum(axis=1)
    differ = logits.argmax(axis=1) != closeness.argmax(axis=1)
    if labels is None:
        labels = np.full(len(features), K)
    return NearestMeanMismatch(
        np.bincount(labels[differ], minlength=K + 1),
        np.bincount(labels, minlength=K + 1),
        int((_tied(logits) | _tied(closeness)).sum()),
    )


def _tied(scores: FloatArray) -> NDArray[np.bool_]:
    best = scores.max(axis=1, keepdims=True)
    return np.asarray((scores == best).sum(axis=1) > 1)

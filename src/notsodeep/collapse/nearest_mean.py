"""NC4: whether the classifier decides for the class whose mean is nearest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep.checks import FloatArray, IntArray
from notsodeep.records import Record


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

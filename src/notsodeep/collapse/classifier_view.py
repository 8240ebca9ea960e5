"""A classifier beside the class means it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from notsodeep.checks import FloatArray
from notsodeep.collapse.class_geometry import ROUNDING
from notsodeep.collapse.measures import cosine_matrix


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

"""Probabilities from scores, by one number."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from notsodeep.checks import FloatArray, IntArray

_LOGARITHMS = (-7.0, 7.0)  # of the slope; scores are of order one


def fit_slope(scores: FloatArray, labels: IntArray) -> float:
    """Find β that makes softmax(β·scores) most likely, for scores on samples not fitted to.

    Temperature scaling (Guo, Pleiss, Sun and Weinberger, ICML 2017): the order of the classes, and
    so the prediction, stays.  The likelihood is concave in β.

    Parameters
    ----------
    scores : ndarray of shape (n, K)
    labels : ndarray of shape (n,)
        In 0 … K − 1.
    """
    rows = np.arange(len(labels))

    def loss(logarithm: float) -> float:
        return -float(log_softmax(np.exp(logarithm) * scores, axis=1)[rows, labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=_LOGARITHMS, method="bounded").x))


def probabilities(scores: FloatArray, slope: float) -> FloatArray:
    """Return softmax(β·scores), shape (n, K)."""
    return np.asarray(softmax(slope * scores, axis=1))

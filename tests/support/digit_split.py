"""Handwritten digits, in random order, in two parts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits


class Split(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def split_digits() -> Split:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    return Split(X[:400], y[:400], X[400:700], y[400:700])

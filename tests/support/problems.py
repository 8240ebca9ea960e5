"""Systems that the tests of the solvers share."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

import notsodeep as nsd
from notsodeep.data import MixtureStatistics

RIDGE = 0.01


@dataclass(frozen=True, eq=False)
class Digits:
    """The tangent kernel of a centred tanh DEQ on handwritten digits, and one-hot targets."""

    X: np.ndarray
    Y: np.ndarray
    K: np.ndarray
    eq: nsd.equivalents.Equivalent

    def operator(self, **options: object) -> nsd.KernelOperator:
        return nsd.KernelOperator(
            self.eq.model, self.X, kind="ntk", convention="preactivation", **options
        )


@functools.cache
def digits(n: int = 700) -> Digits:
    data = nsd.data.load("digits", samples=n, rng=0)
    X, y = np.asarray(data.X), np.asarray(data.y)
    statistics = MixtureStatistics.estimate(X, y)
    deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2).centred(statistics.tau0)
    Y = (y[:, None] == np.unique(y)).astype(float)
    eq = nsd.equivalent(deq, X, y, kind="ntk", convention="preactivation")
    # The columns of Y add up to zero: they depend on one another.
    return Digits(
        X, Y - Y.mean(axis=0), nsd.kernel(deq, X, convention="preactivation", kind="ntk"), eq
    )


def positive_matrix(n: int, least: float = 1e-3, seed: int = 0) -> np.ndarray:
    """A matrix with eigenvalues from `least` to 1, evenly spread in the logarithm."""
    axes = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]
    matrix = (axes * np.geomspace(least, 1.0, n)) @ axes.T
    return np.asarray(0.5 * (matrix + matrix.T))

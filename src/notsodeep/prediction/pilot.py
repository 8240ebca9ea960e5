"""Real data: what a pilot sample says about larger ones, and whether to trust it.

Images are no Gaussian mixture, and generalised cross-validation, which takes all leverages for
equal, is too low on them.  Leave-one-out errors of nested subsets of one kernel matrix need no new
kernel values, are right, and nearly follow a power of the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import InvalidInput
from notsodeep.prediction.scores import default_targets
from notsodeep.records import Plotted

MIN_MISTAKES = 10
"""Mistakes that a pilot must make at a size for its error rate to be extrapolated from there."""

LEVERAGE_SPREAD_TOL = 0.1
"""Relative spread of leverages up to which generalised cross-validation can be trusted."""


@dataclass(frozen=True, eq=False, repr=False)
class PilotCurve(Plotted):
    """Leave-one-out errors of a pilot over its size."""

    _drawing = "pilot_curve"

    samples: FloatArray  # (S,): sizes of the nested subsets, ascending; the last is the pilot
    ridges: FloatArray  # (R,)
    mse: FloatArray  # (S, R): squared error, summed over outputs
    error: FloatArray  # (S, R): share of samples put into a wrong class
    cross_validation: FloatArray  # (S, R): generalised cross-validation, for comparison
    leverage_spread: FloatArray  # (R,): deviation over mean of diag (K + λ)⁻¹, of the pilot
    # (R, S, S), of the logarithms of the errors at two sizes, for other samples: every sample is
    # left out once at each size, and counts as independent of the others.
    mse_covariance: FloatArray
    error_covariance: FloatArray

    def extrapolated(self, samples: float) -> tuple[FloatArray, FloatArray]:
        """Return squared error and error rate at another n, by c·n^{−β} through the last two sizes.

        The error rate is NaN where the pilot made fewer than `MIN_MISTAKES` mistakes at one of the
        two sizes: it says nothing then.
        """
        weights = self._weights(samples)
        known = (self.error[-2:] * self.samples[-1] > MIN_MISTAKES - 0.5).all(axis=0)
        error = np.where(known, self.error, np.nan)
        return np.exp(weights @ np.log(self.mse)), np.exp(weights @ np.log(error))

    def standard_errors(self, samples: float) -> tuple[FloatArray, FloatArray]:
        """Return standard errors of what `extrapolated` returns, for other pilots of this size.

        They say nothing about how well a power law fits.
        """
        weights = self._weights(samples)
        mse, error = self.extrapolated(samples)
        scatter = [
            np.sqrt(np.einsum("s,rst,t->r", weights, covariance, weights))
            for covariance in (self.mse_covariance, self.error_covariance)
        ]
        return mse * scatter[0], error * scatter[1]

    def _weights(self, samples: float) -> FloatArray:
        """Return what multiplies the logarithms of the errors at the sizes, shape (S,)."""
        n = checks.positive_number(samples, "samples", "PilotCurve")
        if len(self.samples) < 2:
            raise InvalidInput("sizes must be at least 2 for a pilot to be extrapolated, got 1.")
        ahead = np.log(n / self.samples[-1]) / np.log(self.samples[-1] / self.samples[-2])
        weights = np.zeros(len(self.samples))
        weights[-2:] = -ahead, 1.0 + ahead
        return weights

    def best(self) -> float:
        """Return the ridge with the lowest leave-one-out error of the whole pilot."""
        return float(self.ridges[self.mse[-1].argmin()])

    @property
    def verdict(self) -> str:
        """Whether Gaussian scores and cross-validation can be trusted."""
        spread = self.leverage_spread.max()
        if spread <= LEVERAGE_SPREAD_TOL:
            return "Leverages are even: generalised cross-validation can be trusted."
        gap = self.cross_validation[-1] / self.mse[-1] - 1.0
        worst = int(np.abs(gap).argmax())
        return (
            f"Leverages spread by up to {spread:.0%} of their mean (trust Gaussian scores and "
            f"generalised cross-validation below {LEVERAGE_SPREAD_TOL:.0%}): at ridge "
            f"{self.ridges[worst]:.3g} cross-validation is {gap[worst]:+.0%} off leave-one-out. "
            "Choose ridges by leave-one-out."
        )


def pilot_curve(
    K: FloatArray,
    y: ArrayLike,
    ridges: ArrayLike,
    *,
    sizes: int = 4,
    rng: int | np.random.Generator = 0,
) -> PilotCurve:
    """Compute leave-one-out errors on nested halves of a pilot.

    Parameters
    ----------
    K : ndarray of shape (N, N)
        Kernel of the pilot.
    y : array_like of shape (N,)
        Integer labels; targets are one-hot − 1/K, or ∓1 for two classes.
    ridges : array_like of shape (R,)
    sizes : int
        Subsets: N, N/2, N/4, …; the smaller ones are averaged over as many disjoint parts.
    rng : int or Generator
        For the order in which samples are taken.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(2.0 * np.eye(2, 100), 1.0)
    >>> X, y = mixture.sample(400, rng=0)
    >>> K = nsd.kernel(nsd.DeepEquilibrium("relu", 0.2), X)
    >>> curve = pilot_curve(K, y, [1.0])
    >>> curve.samples, bool(curve.mse[0, 0] > curve.mse[-1, 0])
    (array([ 50., 100., 200., 400.]), True)
    """
    matrix = checks.real_array(K, "K", "pilot_curve")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InvalidInput(f"K must be a square matrix, got shape {matrix.shape}.")
    labels = checks.class_labels(y, len(matrix), "pilot_curve")
    classes, labels = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InvalidInput("y must hold at least two classes, got one.")
    count = checks.positive_integer(sizes, "sizes", "pilot_curve")
    if len(matrix) >> (count - 1) < 4 * len(classes):
        raise InvalidInput(
            f"sizes must leave four samples of each class in a part of 1/{2 ** (count - 1)}, got "
            f"{count} for {len(matrix)} samples."
        )
    levels = np.atleast_1d(checks.real_array(ridges, "ridges", "pilot_curve"))
    if levels.ndim != 1 or not (levels > 0.0).all():
        raise InvalidInput(f"ridges must be positive, got {levels.tolist()}.")
    # Every stride through this order has the classes in proportion.
    shuffled = checks.random_generator(rng, "pilot_curve").permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    targets, N = default_targets(len(classes)), len(matrix)
    squares, wrong = (np.empty((count, N, len(levels))) for _ in range(2))
    gcv, samples, spread = [], [], np.zeros(len(levels))
    for i, parts in enumerate(2 ** np.arange(count - 1, -1, -1)):
        validated = []
        for part in (order[start::parts] for start in range(parts)):
            squares[i, part], wrong[i, part], estimate, spread = _left_out(
                matrix[np.ix_(part, part)], labels[part], targets, levels
            )
            validated.append(estimate)
        samples.append(len(order[::parts]))
        gcv.append(np.mean(validated, axis=0))
    return PilotCurve(
        np.array(samples, float),
        levels,
        squares.mean(axis=1),
        wrong.mean(axis=1),
        np.array(gcv),
        spread,
        _covariance(squares),
        _covariance(wrong),
    )


def _left_out(
    K: FloatArray, labels: IntArray, targets: FloatArray, ridges: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Squares and mistakes of left-out samples, (n, R); GCV and spread of leverages, (R,)."""
    Y = targets[labels]
    values, vectors = np.linalg.eigh(K)
    inverse = 1.0 / (np.maximum(values, 0.0) + ridges[:, None])  # (R, n)
    alpha = vectors @ (inverse[:, :, None] * (vectors.T @ Y))  # (R, n, k)
    diagonal = inverse @ np.square(vectors).T  # of (K + λ)⁻¹, (R, n)
    residual = alpha / diagonal[:, :, None]
    nearest = np.square((Y - residual)[:, :, None] - targets).sum(axis=3).argmin(axis=2)
    gcv = np.square(alpha).sum(axis=2).mean(axis=1) / diagonal.mean(axis=1) ** 2
    spread = diagonal.std(axis=1) / diagonal.mean(axis=1)
    return np.square(residual).sum(axis=2).T, (nearest != labels).T, gcv, spread


def _covariance(errors: FloatArray) -> FloatArray:
    """Covariances of the logarithms of mean errors, from errors (S, N, R) of N samples."""
    N = errors.shape[1]
    mean = errors.mean(axis=1, keepdims=True)
    relative = (errors - mean) / np.maximum(mean, 1e-300)
    return np.asarray(np.einsum("snr,tnr->rst", relative, relative) / N**2)

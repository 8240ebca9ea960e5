"""Distances between sets of eigenvalues, and between them and a law."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import wasserstein_distance as empirical_wasserstein

from notsodeep.checks import FloatArray


def kolmogorov(left: FloatArray, right: FloatArray) -> float:
    """Return sup |F − F′| of two empirical distributions of eigenvalues."""
    points = np.concatenate([left, right])
    shares = [
        np.searchsorted(np.sort(values), points, side="right") / len(values)
        for values in (left, right)
    ]
    return float(np.abs(shares[0] - shares[1]).max())


def kolmogorov_to_law(
    values: FloatArray, cdf: Callable[[FloatArray], FloatArray], start: float = -np.inf
) -> float:
    """Return sup |F_n − F| over x ≥ start, of eigenvalues and a law without point mass there."""
    ordered = np.sort(values)
    n = len(ordered)
    below = int(np.searchsorted(ordered, start))
    law = cdf(np.maximum(ordered[below:], start))
    after = np.arange(below + 1, n + 1) / n - law
    at_start = abs(below / n - float(cdf(np.array(start)))) if np.isfinite(start) else 0.0
    return max(at_start, *(float(np.abs(gap).max(initial=0.0)) for gap in (after, after - 1.0 / n)))


def wasserstein(left: FloatArray, right: FloatArray) -> float:
    """Return ∫ |F − F′| dx, the mean distance by which eigenvalues have to move."""
    return float(empirical_wasserstein(left, right))

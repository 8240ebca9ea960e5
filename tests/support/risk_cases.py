"""Mixtures and coefficients that several tests use."""

from __future__ import annotations

import math

import numpy as np

from notsodeep.data import GaussianMixture
from notsodeep.equivalents import Expansion

# (a, α2, α3, scale2) of the ReLU DEQ with σa² = 0.2 at τ0 = 1: CK feature and NTK preactivation.
CONJUGATE = (0.2105263157894737, 0.03595749037977337, 0.0691904979570539, 0.2926239295076236)
TANGENT = (0.886426592797784, 0.00756999797468913, 0.043699261867613, 0.9539164287794719)


def limit(four: tuple[float, ...]) -> Expansion:
    """Return a kernel that is known by its coefficients."""
    linear, fluctuation, overlap, scale2 = four
    return Expansion(0.0, linear, 0.0, 0.0, fluctuation, overlap, 0.0, scale2, tau0=1.0)


def mixture(name: str, p: int) -> GaussianMixture:
    """Return a mixture that is hard for one reason: means, traces, covariances, several classes."""
    means = np.zeros((2, p))
    if name == "weak":
        means[0, 0] = means[1, 8] = 2.0
        return GaussianMixture(means, [1.0, 1.0 + 2.0 / math.sqrt(p)])
    if name == "trace":
        return GaussianMixture(means, [1.0 - 2.5 / math.sqrt(p), 1.0 + 2.5 / math.sqrt(p)])
    if name == "halves":
        first = np.where(np.arange(p) < p // 2, 1.9, 0.1)
        return GaussianMixture(means, [first, 2.0 - first])
    assert name == "three"
    return GaussianMixture(
        3.0 * np.eye(3, p), [1.0 - 2.0 / math.sqrt(p), 1.0, 1.0 + 2.0 / math.sqrt(p)]
    )

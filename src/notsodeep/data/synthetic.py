"""The synthetic data of the papers: the unit sphere, and Gaussian mixtures."""

from __future__ import annotations

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data.gaussian_mixture import GaussianMixture


def sphere(n: int, dimension: int, rng: int | np.random.Generator) -> FloatArray:
    """Draw points uniformly from the unit sphere S^{d−1} in R^d.

    Parameters
    ----------
    n : int
        Number of points.
    dimension : int
        The dimension d of the space around the sphere.
    rng : int or Generator
        Seed, or a generator.

    Returns
    -------
    ndarray of shape (n, d)
        Rows of norm one.

    Examples
    --------
    >>> X = sphere(3, 5, rng=0)
    >>> X.shape, np.linalg.norm(X, axis=1)
    ((3, 5), array([1., 1., 1.]))
    """
    shape = (
        checks.positive_integer(n, "n", "sphere"),
        checks.positive_integer(dimension, "dimension", "sphere"),
    )
    points = checks.random_generator(rng, "sphere").standard_normal(shape)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points


def paper_mixture(dimension: int = 1000, num_classes: int = 2) -> GaussianMixture:
    """Return the mixture of the mixture paper's synthetic experiments (arXiv 2402.02697).

    μ_a = 8 e_{8(a−1)+1} and C_a = (1 + 8(a−1)/√p) I for a = 1 … K, equal weights; the paper has
    K = 2.

    Parameters
    ----------
    dimension : int
        p, large enough to hold the K means: p > 8(K − 1).
    num_classes : int
        K.

    Examples
    --------
    >>> mixture = paper_mixture(dimension=400)
    >>> X, y = mixture.sample(300, rng=0)
    >>> X.shape, mixture.statistics(X, y).t.round(6)
    ((300, 400), array([-4.,  4.]))
    """
    p = checks.positive_integer(dimension, "dimension", "paper_mixture")
    K = checks.positive_integer(num_classes, "num_classes", "paper_mixture")
    if p <= 8 * (K - 1):
        requirement = f"exceed 8(num_classes − 1) = {8 * (K - 1)}, where the last mean lies"
        raise checks.invalid("dimension", "paper_mixture", requirement, p)
    a = np.arange(K)
    means = np.zeros((K, p))
    means[a, 8 * a] = 8.0
    return GaussianMixture(means, 1.0 + 8.0 * a / np.sqrt(p))

"""Uniform points on the unit sphere (the sphere paper's data, arXiv 2308.16425)."""

from __future__ import annotations

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray


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

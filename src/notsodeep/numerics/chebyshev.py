"""Chebyshev series from values at Chebyshev points: the one place where functions are fitted."""

from __future__ import annotations

import numpy as np
from scipy.fft import dct

from notsodeep.arrays import FloatArray


def chebyshev_points(size: int) -> FloatArray:
    """Return the zeros of the Chebyshev polynomial T_size, descending in (−1, 1)."""
    return np.asarray(np.cos(np.pi * (np.arange(size) + 0.5) / size))


def chebyshev_series(values: FloatArray) -> FloatArray:
    """Return c with Σ_k c_k T_k(x) equal to the given values at `chebyshev_points`.

    Parameters
    ----------
    values : ndarray of shape (size, …)

    Returns
    -------
    ndarray of shape (size, …)
        For `numpy.polynomial.chebyshev`.

    Examples
    --------
    >>> chebyshev_series(2.0 * chebyshev_points(4) ** 2 - 1.0).round(12) + 0.0  # T_2
    array([0., 0., 1., 0.])
    """
    series = dct(values, type=2, axis=0) / len(values)
    series[0] *= 0.5
    return np.asarray(series)

"""Averages over the limiting spectrum: what it predicts about ridge regression."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from notsodeep.checks import FloatArray, solvers
from notsodeep.equivalents import LimitingSpectrum

_NODES = 400


def limiting_trace(
    law: LimitingSpectrum, function: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Return the sum of f over all n eigenvalues, as the law predicts it.

    (n − spikes)·∫ f dμ + Σ f(spike); the bulk by Gauss–Chebyshev quadrature, which suits edges
    that rise or fall like a square root.

    Parameters
    ----------
    law : LimitingSpectrum
    function : callable
        From eigenvalues of shape (m,) to values of shape (…, m).
    """
    angles = (np.arange(_NODES) + 0.5) * np.pi / _NODES
    place, mass = law.point_mass
    inside = mass * np.asarray(function(np.array([place])))[..., 0]
    for low, high in law.support:
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        points = middle + half * np.cos(angles)
        weights = law.density(points) * half * np.sin(angles) * np.pi / _NODES
        inside = inside + np.asarray(function(points)) @ weights
    spikes = np.array([spike.value for spike in law.spikes])
    beyond = np.asarray(function(spikes)).sum(axis=-1)
    return np.asarray((law.size - len(spikes)) * inside + beyond)


def predicted_effective_dimension(law: LimitingSpectrum, ridges: ArrayLike) -> FloatArray:
    """Return tr K(K + λI)⁻¹ for every λ, as the limiting spectrum predicts it.

    No kernel is evaluated.  `RidgePath.effective_dimension` is the same of the kernel itself.

    Parameters
    ----------
    law : LimitingSpectrum
        From `limiting_spectrum`.
    ridges : array_like of shape (m,)
        λ > 0.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(100, 400, rng=0)
    >>> eq = nsd.sphere_equivalent(nsd.ExplicitNetwork(["relu"]), X)
    >>> predicted_effective_dimension(nsd.limiting_spectrum(eq), [0.01, 1.0]).round(1)
    array([96.8, 25.5])
    """
    levels = solvers.ridges(ridges, "predicted_effective_dimension")
    return limiting_trace(law, lambda x: x / (x + levels[:, None]))

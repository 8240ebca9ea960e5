"""What the limiting spectrum predicts about ridge regression."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from notsodeep.checks import FloatArray, solvers
from notsodeep.equivalents import LimitingSpectrum


def predicted_effective_dimension(law: LimitingSpectrum, ridges: ArrayLike) -> FloatArray:
    """Return tr K(K + λI)⁻¹ for every λ, as the limiting spectrum predicts it.

    No kernel is evaluated.  `RidgePath.effective_dimension` is the same of the kernel itself.
    Nothing is integrated either: with the bulk at a·t + γ and s = (γ + λ)/a, the average over it
    follows from the equation at z = −s, where ∫ t/(t + s) dμ(t) = Σ_a (n_a/n) δ_a/(1 + δ_a).

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
    linear = np.zeros(levels.shape)
    if law.bulk is not None:
        equation = law.bulk.equation
        delta = equation.solve(-(law.shift + levels) / law.scale).real
        linear = (delta / (1.0 + delta)) @ (equation.ratios / equation.ratios.sum())
    bulk = (law.shift + levels * linear) / (law.shift + levels)
    spikes = np.array([spike.value for spike in law.spikes])
    beyond = (spikes / (spikes + levels[:, None])).sum(axis=1)
    return np.asarray((law.size - len(spikes)) * bulk + beyond)

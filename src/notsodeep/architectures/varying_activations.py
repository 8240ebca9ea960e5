"""Whether an activation varies: one that is constant leaves nothing of the data."""

from __future__ import annotations

import functools

import numpy as np

from notsodeep.activations import Activation, Centred
from notsodeep.checks import functions

_SMALLEST = 1e-60  # standard deviation whose fourth power is a number, as for data
_LOST = 1e-10  # share of E φ² below which the variance is looked for in the values themselves
_ROUNDING = 1e-13  # standard deviation, relative to the mean, that is rounding


def require_varying(activation: Activation, scale: float, owner: str) -> None:
    """Require that φ(τξ), ξ ~ N(0, 1), varies: by more than rounding errors, and above 1e-60.

    Centring, matching and the random-matrix equivalents divide by its variance.

    Raises
    ------
    ConstantActivation
        It does not.
    """
    base = activation.base if isinstance(activation, Centred) else activation
    deviation = standard_deviation(base, scale)
    if not deviation >= _SMALLEST:
        raise functions.constant_activation(str(base), scale, deviation, owner)


@functools.lru_cache(maxsize=256)
def standard_deviation(activation: Activation, scale: float) -> float:
    """Return the standard deviation of φ(τξ); 0 if it is within rounding errors of the mean."""
    moments = activation.moments(scale)
    variance, square = float(moments.variance), float(moments.square)
    if variance <= _LOST * square:
        xi = np.linspace(-8.0, 8.0, 1601)
        weights = np.exp(-0.5 * xi**2)
        weights /= weights.sum()
        values = activation(scale * xi)
        variance = float(weights @ (values - weights @ values) ** 2)
        if variance <= _ROUNDING**2 * square:
            return 0.0
    return float(np.sqrt(variance))

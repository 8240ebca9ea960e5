"""Whether an activation varies: one that is constant leaves nothing of the data."""

from __future__ import annotations

import functools

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation, Centred
from notsodeep.errors import ConstantActivation

_SMALLEST = 1e-20  # standard deviation, at scales of one and more; least squares need room below
_TINIEST, _LARGEST = 1e-62, 1e60  # at any scale, as for data
_LOST = 1e-10  # share of E φ² below which the variance is looked for in the values themselves
_ROUNDING = 1e-13  # standard deviation, relative to the mean, that is rounding


def require_varying(activation: Activation, scale: float, owner: str) -> None:
    """Require that φ(τξ), ξ ~ N(0, 1), varies: by more than rounding errors, and than 1e-20·τ.

    Centring, matching and the random-matrix equivalents divide by its variance.

    Raises
    ------
    ConstantActivation
        It does not.
    InvalidInput
        It varies by more than 1e60.

    Examples
    --------
    >>> from notsodeep.activations import leaky_relu
    >>> require_varying(leaky_relu(1.0, 0.0), 1.0, "this example")
    >>> require_varying(leaky_relu(0.0, 0.0), 1.0, "this example")
    Traceback (most recent call last):
    ...
    notsodeep.errors.ConstantActivation: The activation of this example is constant, or as good ...
    """
    base = activation.base if isinstance(activation, Centred) else activation
    deviation = standard_deviation(base, scale)
    least = max(_SMALLEST * min(scale, 1.0), _TINIEST)
    if not deviation >= least:
        raise _constant_activation(str(base), scale, deviation, least, owner)
    if deviation > _LARGEST:
        requirement = f"have a standard deviation of at most {_LARGEST:g} at τ = {scale:.6g}"
        got = f"{deviation:.3g} for φ = {base}"
        raise checks.invalid("activation", owner, requirement, got, "Its powers overflow.")


@functools.lru_cache(maxsize=256)
def standard_deviation(activation: Activation, scale: float) -> float:
    """Return the standard deviation of φ(τξ); 0 if it is within rounding errors of the mean."""
    xi = np.linspace(-8.0, 8.0, 1601)
    weights = np.exp(-0.5 * xi**2)
    weights /= weights.sum()
    values = activation(scale * xi)
    seen = float(np.sqrt(weights @ (values - weights @ values) ** 2))
    if 0.0 < float(np.abs(values).max()) < _TINIEST:
        return seen  # no quadrature resolves denormal numbers
    moments = activation.moments(scale)
    variance, square = float(moments.variance), float(moments.square)
    if variance > _LOST * square:
        return float(np.sqrt(variance))
    return seen if seen > _ROUNDING * float(np.sqrt(square)) else 0.0


def _constant_activation(
    activation: str, scale: float, deviation: float, least: float, owner: str
) -> ConstantActivation:
    """Word the error for an activation φ that does not vary at a scale τ."""
    return ConstantActivation(
        f"The activation of {owner} is constant, or as good as: the standard deviation of φ(τξ) "
        f"must be at least {least:.1g} at τ = {scale:.6g}, the scale of its inputs. Got "
        f"{deviation:.3g} for φ = {activation}. Nothing of the data would be left: use another "
        "activation, or one of usual size."
    )

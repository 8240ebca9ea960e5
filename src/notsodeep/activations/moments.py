"""Gaussian moments of an activation at one scale or many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotIntegrable
from notsodeep.numerics.quadrature import resolved_samples

if TYPE_CHECKING:
    from notsodeep.activations.activation import Activation


@dataclass(frozen=True)
class Moments:
    """Moments of φ at scale τ, ξ ~ N(0, 1); derivatives are weak (Gaussian integration by parts).

    Attributes
    ----------
    scale : float or ndarray
        τ.  The other attributes have its shape.
    mean : float or ndarray
        E φ(τξ).
    slope : float or ndarray
        E φ′(τξ) = E[ξ φ(τξ)]/τ.
    curvature : float or ndarray
        E φ″(τξ) = E[(ξ² − 1) φ(τξ)]/τ²; for ReLU 1/(τ√(2π)), not zero.
    square : float or ndarray
        E φ²(τξ).
    slope_square : float or ndarray
        E φ′(τξ)².
    square_curvature : float or ndarray
        E (φ²)″(τξ); half of it is the slope of q ↦ E φ²(√q ξ).

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> moments = named("relu").moments([0.5, 1.0])
    >>> moments.square, moments.variance.round(6)
    (array([0.125, 0.5  ]), array([0.085211, 0.340845]))
    """

    scale: Any
    mean: Any
    slope: Any
    curvature: Any
    square: Any
    slope_square: Any
    square_curvature: Any

    @property
    def variance(self) -> Any:
        """Var φ(τξ)."""
        return self.square - self.mean**2


class Changes(NamedTuple):
    """Derivatives of an activation's Hermite coefficients and moments in P parameters.

    Attributes
    ----------
    series : ndarray of shape (P, n, terms)
        Of a_k(τ), at n scales.
    square, slope_square : ndarray of shape (P, n)
        Of E φ²(τξ) and E φ′²(τξ).
    """

    series: FloatArray
    square: FloatArray
    slope_square: FloatArray


def gaussian_moments(activation: Activation, scale: ArrayLike) -> Moments:
    """Compute the six moments, in closed form or by quadrature split at the kinks.

    By quadrature, second derivatives are reduced to first ones, E φ″ = E[ξ φ′]/τ, which loses the
    fewest digits at small scales.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> moments = named("relu").moments(2.0)
    >>> round(moments.mean, 6), round(moments.slope, 6), round(moments.square, 6)
    (0.797885, 0.5, 2.0)
    """
    tau = checks.scales(scale, "scale", f"the moments of {activation}")
    if tau.size == 1:
        out = np.array(_at_one_scale(activation, float(tau.reshape(()))))
        if tau.ndim == 0:
            return Moments(float(tau), *out.tolist())
    else:
        out = _six(activation, tau.reshape(-1))
    return Moments(tau, *out.reshape(6, *tau.shape))


@lru_cache(maxsize=1024)
def _at_one_scale(activation: Activation, scale: float) -> tuple[float, ...]:
    """Keep them: a model's equations are solved again for every question about it."""
    return tuple(_six(activation, np.array([scale]))[:, 0].tolist())


def _six(activation: Activation, scales: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        out = activation.closed_form_moments(scales)
    if out is None:
        out = np.full((6, scales.size), np.nan)
    missing = np.isnan(out).any(axis=0)
    if missing.any():
        out[:, missing] = _by_quadrature(activation, scales[missing])
    require_finite(out.T, scales, activation)
    if activation.parity == "odd":
        out[[0, 2]] = 0.0
    elif activation.parity == "even":
        out[1] = 0.0
    return out


def require_finite(rows: FloatArray, scales: FloatArray, activation: Activation) -> None:
    """Reject moments or coefficients (a row for each scale) that overflowed."""
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise NotIntegrable(
            f"The Gaussian moments of {activation} overflow at scale τ = "
            f"{float(scales[bad.argmax()]):.6g}. Scale the data down."
        )


def _by_quadrature(activation: Activation, scales: FloatArray) -> FloatArray:
    """Return the six moments as rows, in the order of `Moments`."""
    out = np.empty((6, scales.size))

    def value_and_slope(x: FloatArray) -> FloatArray:
        return np.stack([activation.value(x), activation.derivative(x)])

    splits = activation.quadrature_splits(float(scales.max()))
    for part in resolved_samples(value_and_slope, scales, splits, name=str(activation)):
        value, slope = part.values
        weights = part.rule.weights
        odd_weights = weights * part.rule.nodes / scales[part.index, None]
        out[:, part.index] = [
            (weights * value).sum(axis=-1),
            (weights * slope).sum(axis=-1),
            (odd_weights * slope).sum(axis=-1),
            (weights * value**2).sum(axis=-1),
            (weights * slope**2).sum(axis=-1),
            2.0 * (odd_weights * value * slope).sum(axis=-1),
        ]
    return out

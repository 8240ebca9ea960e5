"""Derivatives of E[φ(u)φ(v)] in the covariance of a Gaussian pair."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from notsodeep.activations import Activation, PiecewiseLinear, pair_expectations
from notsodeep.errors import QuadratureError

_TERMS = (32, 64, 128, 256)
_TOLERANCE = 1e-12


class DualDerivatives(NamedTuple):
    """f and its first three derivatives at one covariance."""

    value: float
    first: float
    second: float
    third: float


def dual_derivatives(activation: Activation, variance: float, covariance: float) -> DualDerivatives:
    """Compute f(G) = E[φ(u)φ(v)], f′, f″, f‴ for u, v of one variance q and covariance G, |G| < q.

    By Price's theorem f⁽ᵏ⁾ = E[φ⁽ᵏ⁾(u)φ⁽ᵏ⁾(v)] with weak derivatives.  For a piecewise-linear φ, φ″
    is a sum of point masses, and f″ a sum of values of the Gaussian density of (u, v); otherwise
    the derivatives are those of Mehler's series Σ a_k(√q)² (G/q)ᵏ, as long as its terms vanish.

    Raises
    ------
    QuadratureError
        256 terms of the series are not enough: |G| is too close to q for a kinked activation.
    """
    pair = pair_expectations(activation, variance, variance, covariance)
    value, first = float(pair.value), float(pair.derivative)
    inner = activation.uncentred  # a constant changes f alone
    if isinstance(inner, PiecewiseLinear):
        return DualDerivatives(value, first, *_of_kinks(inner, variance, covariance))
    return DualDerivatives(value, first, *_of_series(inner, variance, covariance))


def _of_kinks(activation: PiecewiseLinear, q: float, G: float) -> tuple[float, float]:
    """f″ = Σ_ij j_i j_j p(k_i, k_j) for knots k with jumps j of the slope; f‴ = ∂f″/∂G."""
    if not activation.knots:
        return 0.0, 0.0
    jumps = np.diff(activation.slopes)
    k = np.asarray(activation.knots)
    x, y = k[:, None], k[None, :]
    determinant = q * q - G * G
    form = q * (x * x + y * y) - 2.0 * G * x * y
    density = np.exp(-0.5 * form / determinant) / (2.0 * np.pi * np.sqrt(determinant))
    # d log p/dG = G/det + xy/det − G·form/det².
    slope = (G + x * y) / determinant - G * form / determinant**2
    weights = np.outer(jumps, jumps)
    return float((weights * density).sum()), float((weights * density * slope).sum())


def _of_series(activation: Activation, q: float, G: float) -> tuple[float, float]:
    rho = G / q
    for terms in _TERMS:
        squares = activation.hermite_coefficients(np.array([np.sqrt(q)]), terms)[0] ** 2
        k = np.arange(terms)
        powers = rho ** np.maximum(k - 3, 0)
        third = squares * k * (k - 1) * (k - 2) * powers
        second = squares * k * (k - 1) * np.where(k > 2, powers * rho, 1.0)
        scale = max(float(squares.sum()), float(np.abs(third).sum()))
        if np.abs(third[-8:]).max() * terms <= _TOLERANCE * scale:
            return float(second.sum()) / q**2, float(third.sum()) / q**3
    raise QuadratureError(
        f"The second derivative of the dual function of {activation} needs more than "
        f"{_TERMS[-1]} terms at correlation {rho:.4g}. A smaller sigma_a2 lowers the correlation."
    )

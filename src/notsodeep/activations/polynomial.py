"""Polynomial activations, in powers of x or in Hermite polynomials."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation, Parity, frozen_parameters
from notsodeep.arrays import FloatArray
from notsodeep.errors import QuadratureError
from notsodeep.numerics.hermite import hermite_polynomials, iterate_hermite

MAX_DEGREE = 350
"""Beyond degree 366 the weights of the Gauss–Hermite rule underflow, and integrals would be 0."""


@functools.lru_cache(maxsize=64)
def _gauss_hermite(size: int) -> tuple[FloatArray, FloatArray]:
    """Nodes of the Gauss–Hermite rule, and weight·h_k at them, shape (size, size)."""
    if size > MAX_DEGREE + 1:
        raise QuadratureError(
            f"Gaussian integrals of a polynomial of degree {size - 1} cannot be computed in double "
            f"precision. Use a degree of at most {MAX_DEGREE}."
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(size)
    weights = weights / math.sqrt(2.0 * math.pi)
    return nodes, (weights * hermite_polynomials(nodes, size)).T


@dataclass(frozen=True, repr=False)
class AbstractPolynomial(Activation):
    """A polynomial.  Its Mehler series is finite, so pair expectations are exact."""

    coefficients: tuple[float, ...]

    @property
    def degree(self) -> int:
        """Largest k with a nonzero coefficient (0 for a constant)."""
        return max((k for k, c in enumerate(self.coefficients) if c != 0.0), default=0)

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        """Exact coefficients by a Gauss–Hermite rule that integrates degree 2·degree + 1."""
        kept = min(terms, self.degree + 1)
        nodes, table = _gauss_hermite(self.degree + 1)
        coefficients = np.zeros((len(scales), terms))
        # degree + 1 nodes are exact up to degree 2·degree + 1, and φ·h_k has 2·degree at most.
        coefficients[:, :kept] = self.value(scales[:, None] * nodes) @ table[:, :kept]
        return coefficients

    def closed_form_moments(self, scales: FloatArray) -> FloatArray:
        """Compute the six moments from the finite Hermite series."""
        return moments_of_series(self._hermite_coefficients(scales, self.degree + 3), scales)

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Σ_k a_k(√q₁) a_k(√q₂) ρ^k, finite; the derivative kernel term by term."""
        terms = self.degree + 1
        products = (
            self._hermite_coefficients(scale1, terms) * self._hermite_coefficients(scale2, terms)
        ).T
        value = np.polynomial.polynomial.polyval(rho, products, tensor=False)
        slopes = products[1:] * np.arange(1, terms)[:, None] if terms > 1 else products * 0.0
        derivative = np.polynomial.polynomial.polyval(rho, slopes, tensor=False)
        return np.asarray(value, dtype=np.float64), derivative / (scale1 * scale2)


def moments_of_series(coefficients: FloatArray, scales: FloatArray) -> FloatArray:
    """Compute the six moments of Σ_k c_k h_k(x/τ) at scale τ, in the order of `Moments`.

    Rows of `coefficients` belong to scales; at least three are given, the last two of them zero
    for a finite series.  E φ′² = Σ k c_k²/τ², and with
    (ξ² − 1)h_k = √((k+1)(k+2)) h_{k+2} + 2k h_k + √(k(k−1)) h_{k−2} the last moment is
    E (φ²)″ = Σ (2k c_k² + 2√((k+1)(k+2)) c_k c_{k+2})/τ².
    """
    k = np.arange(coefficients.shape[1])
    squares = coefficients**2
    steps = np.sqrt((k[:-2] + 1.0) * (k[:-2] + 2.0))
    products = coefficients[:, :-2] * coefficients[:, 2:]
    return np.stack(
        [
            coefficients[:, 0],
            coefficients[:, 1] / scales,
            math.sqrt(2.0) * coefficients[:, 2] / scales**2,
            squares.sum(axis=1),
            squares @ k / scales**2,
            2.0 * (squares @ k + products @ steps) / scales**2,
        ]
    )


@dataclass(frozen=True, repr=False)
class Polynomial(AbstractPolynomial):
    """Σ_k c_k x^k.

    Examples
    --------
    >>> cubic = polynomial([0.0, 1.0, 0.0, -0.1])
    >>> cubic.degree, cubic.parity, cubic.lipschitz
    (3, 'odd', inf)
    """

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x) by Horner's rule."""
        return np.asarray(np.polynomial.polynomial.polyval(x, self.coefficients), dtype=np.float64)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x)."""
        slopes = np.polynomial.polynomial.polyder(self.coefficients)
        return np.asarray(np.polynomial.polynomial.polyval(x, slopes), dtype=np.float64)


@dataclass(frozen=True, repr=False)
class HermiteSeries(AbstractPolynomial):
    """Σ_k c_k h_k(x/scale), h_k orthonormal for N(0, 1).

    Examples
    --------
    >>> series = hermite([0.0, 0.6, 0.8])
    >>> series.hermite_coefficients(1.0, 4)[0, 1:].round(12), round(series.moments(1.0).square, 12)
    (array([0.6, 0.8, 0. ]), 1.0)
    """

    scale: float

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x) by the three-term recurrence."""
        terms = iterate_hermite(np.asarray(x) / self.scale, len(self.coefficients))
        total = np.zeros_like(x, dtype=np.float64)
        for coefficient, polynomial in zip(self.coefficients, terms, strict=True):
            total += coefficient * polynomial
        return total

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x), with h_k′ = √k h_{k−1}."""
        terms = iterate_hermite(np.asarray(x) / self.scale, len(self.coefficients) - 1)
        total = np.zeros_like(x, dtype=np.float64)
        for k, polynomial in enumerate(terms, start=1):
            total += self.coefficients[k] * math.sqrt(k) / self.scale * polynomial
        return total


def polynomial(coefficients: Sequence[float]) -> Polynomial:
    """c_0 + c_1 x + c_2 x² + …, coefficients in increasing order of degree.

    Examples
    --------
    >>> polynomial([1.0, 0.0, 2.0])([0.0, 3.0])
    array([ 1., 19.])
    """
    c = _coefficients(coefficients, "polynomial")
    return Polynomial(**_facts("polynomial", c, {"coefficients": c}), coefficients=c)


def hermite(coefficients: Sequence[float], scale: float = 1.0) -> HermiteSeries:
    """c_0 + c_1 h_1(x/scale) + …, h_k the Hermite polynomials with E[h_j(ξ)h_k(ξ)] = δ_jk.

    Examples
    --------
    >>> hermite([0.0, 0.0, 1.0])([0.0, 1.0]).round(6)  # h_2(x) = (x² − 1)/√2
    array([-0.707107,  0.      ])
    """
    c = _coefficients(coefficients, "hermite")
    s = checks.positive_number(scale, "scale", "hermite")
    facts = _facts("hermite", c, {"coefficients": c, "scale": s}, slope_unit=1.0 / s)
    return HermiteSeries(**facts, coefficients=c, scale=s)


def _coefficients(values: Sequence[float], owner: str) -> tuple[float, ...]:
    coefficients = checks.real_array(values, "coefficients", owner)
    if coefficients.ndim != 1 or coefficients.size == 0:
        requirement = "be a non-empty list of numbers"
        raise checks.invalid("coefficients", owner, requirement, f"shape {coefficients.shape}")
    return tuple(float(c) for c in coefficients)


def _facts(
    name: str, coefficients: tuple[float, ...], parameters: dict[str, Any], slope_unit: float = 1.0
) -> dict[str, Any]:
    used = [k for k, c in enumerate(coefficients) if c != 0.0]
    parity: Parity | None = None
    if all(k % 2 for k in used):
        parity = "odd"
    elif not any(k % 2 for k in used):
        parity = "even"
    linear = max(used, default=0) <= 1
    slope = coefficients[1] * slope_unit if linear and len(coefficients) > 1 else 0.0
    return {
        "name": name,
        "parameters": frozen_parameters(parameters),
        "kinks": (),
        "parity": parity,
        "lipschitz": abs(slope) if linear else math.inf,
        "homogeneous": linear and coefficients[0] == 0.0,
        "detected": False,
    }

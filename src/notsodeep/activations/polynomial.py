"""Polynomial activations, in powers of x or in Hermite polynomials."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation, Parity
from notsodeep.arrays import FloatArray
from notsodeep.errors import QuadratureError
from notsodeep.numerics.quadrature import hermite_polynomials, iterate_hermite

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
class Polynomial(Activation):
    """Σ_k c_k x^k, or Σ_k c_k h_k(x/scale) if there is a scale, h_k orthonormal for N(0, 1).

    Powers are exact near 0, Hermite polynomials stable at high degree.  The Mehler series is
    finite, so that pair expectations are exact.
    """

    coefficients: tuple[float, ...]
    scale: float | None

    @property
    def degree(self) -> int:
        """Largest k with a nonzero coefficient (0 for a constant)."""
        return max((k for k, c in enumerate(self.coefficients) if c != 0.0), default=0)

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x) by Horner's rule or the three-term recurrence."""
        return self._sum(self.coefficients, x)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x); h_k′ = √k h_{k−1}."""
        k = np.arange(1, len(self.coefficients))
        factors = k if self.scale is None else np.sqrt(k) / self.scale
        return self._sum(tuple(factors * self.coefficients[1:]) or (0.0,), x)

    def _sum(self, coefficients: tuple[float, ...], x: FloatArray) -> FloatArray:
        if self.scale is None:
            return np.asarray(np.polynomial.polynomial.polyval(x, coefficients), dtype=np.float64)
        total = np.zeros_like(x, dtype=np.float64)
        terms = iterate_hermite(np.asarray(x) / self.scale, len(coefficients))
        for coefficient, term in zip(coefficients, terms, strict=True):
            total += coefficient * term
        return total

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


def polynomial(coefficients: Sequence[float]) -> Polynomial:
    """c_0 + c_1 x + c_2 x² + …, coefficients in increasing order of degree.

    Examples
    --------
    >>> polynomial([1.0, 0.0, 2.0])([0.0, 3.0])
    array([ 1., 19.])
    """
    return _polynomial("polynomial", coefficients, None)


def hermite(coefficients: Sequence[float], scale: float = 1.0) -> Polynomial:
    """c_0 + c_1 h_1(x/scale) + …, h_k the Hermite polynomials with E[h_j(ξ)h_k(ξ)] = δ_jk.

    Examples
    --------
    >>> hermite([0.0, 0.0, 1.0])([0.0, 1.0]).round(6)  # h_2(x) = (x² − 1)/√2
    array([-0.707107,  0.      ])
    """
    return _polynomial("hermite", coefficients, checks.positive_number(scale, "scale", "hermite"))


def _polynomial(name: str, values: Sequence[float], scale: float | None) -> Polynomial:
    array = checks.real_array(values, "coefficients", name)
    if array.ndim != 1 or array.size == 0:
        requirement = "be a non-empty list of numbers"
        raise checks.invalid("coefficients", name, requirement, f"shape {array.shape}")
    c = tuple(map(float, array))
    used = [k for k, coefficient in enumerate(c) if coefficient != 0.0]
    parity: Parity | None = None
    if all(k % 2 for k in used):
        parity = "odd"
    elif not any(k % 2 for k in used):
        parity = "even"
    linear = max(used, default=0) <= 1
    slope = abs(c[1]) / (scale or 1.0) if linear and len(c) > 1 else 0.0
    return Polynomial(
        name=name,
        parameters=(("coefficients", c), *((("scale", scale),) if scale is not None else ())),
        parity=parity,
        lipschitz=slope if linear else math.inf,
        homogeneous=linear and c[0] == 0.0,
        coefficients=c,
        scale=scale,
    )

"""Closed forms of E[φ(u)φ(v)] and E[φ′(u)φ′(v)] for a centred Gaussian pair (u, v).

Arguments are the standard deviations of u and v, their correlation ρ, and rest = 1 − |ρ|, as
arrays of one shape.  `rest` is given apart because it is what matters near ρ = ±1, and a caller may
know it to more digits than 1 − |ρ| has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import erf, erfc, ndtr, owens_t

from notsodeep.arrays import FloatArray
from notsodeep.numerics.quadrature import gaussian_density

Pairs = tuple[FloatArray, FloatArray]

_TINY = 1e-300  # stands in for √(1 − ρ²) = 0, so that 0/0 is 0 and 1/0 is huge


def root_of(rest: FloatArray) -> FloatArray:
    """√(1 − ρ²) from rest = 1 − |ρ|."""
    return np.sqrt(rest * (2.0 - rest))


def hinge_at_zero(
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    rest: FloatArray,
    right: float,
    left: float,
) -> Pairs:
    """Pairs for φ(x) = right·x for x > 0, left·x for x < 0: the arc-cosine kernels.

    With δ the angle of −ρ, J(ρ) = E[ξ₊η₊] = (sin δ − δ cos δ)/2π and P(ρ) = P(ξ, η > 0) = δ/2π:
    E[φφ] = √(q₁q₂)·((right² + left²) J(ρ) − 2·right·left·J(−ρ)) and
    E[φ′φ′] = (right² + left²) P(ρ) + 2·right·left·P(−ρ).
    Source: Cho and Saul, Kernel methods for deep learning (2009).
    """
    size, root = scale1 * scale2, root_of(rest)
    toward = np.arctan2(root, -rho)
    away = np.arctan2(root, rho)
    both, cross = right**2 + left**2, 2.0 * right * left
    value = size * (both * sine_minus_chord(toward) - cross * sine_minus_chord(away))
    slope = both * toward + cross * away
    return value / (2.0 * math.pi), slope / (2.0 * math.pi)


def sine_minus_chord(angle: FloatArray) -> FloatArray:
    """Evaluate sin δ − δ cos δ without cancellation at small δ (by its series there)."""
    small = np.where(angle < 0.5, angle, 0.0)
    square = small**2
    # Below ½ the first omitted term is 4e-24 of the first; above, sin δ − δ cos δ loses one digit.
    series = np.zeros_like(small)
    for k in range(9, 0, -1):
        # sin δ − δ cos δ = Σ_{k≥1} (−1)^{k+1} · 2k/(2k+1)! · δ^{2k+1}
        series = series * square + (-1) ** (k + 1) * 2 * k / math.factorial(2 * k + 1)
    series *= small * square
    return np.where(angle < 0.5, series, np.sin(angle) - angle * np.cos(angle))


class HingeForm(NamedTuple):
    """φ(x) = intercept + slope·x + Σ_j Δ_j·(distance of x beyond k_j, seen from 0).

    The hinge at k ≥ 0 is (x − k)₊, that at k < 0 is (k − x)₊: all of them vanish near 0.

    Attributes
    ----------
    intercept, slope : float
    hinges : tuple of (float, float)
        (k_j, Δ_j), where Δ_j is the change of slope at k_j from left to right.
    """

    intercept: float
    slope: float
    hinges: tuple[tuple[float, float], ...]


def piecewise_linear(
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    rest: FloatArray,
    form: HingeForm,
) -> Pairs:
    """Pairs for a piecewise-linear φ.

    Each pair of hinges needs the bivariate normal probability (Owen's T function) and density;
    derived from E[(ξ−h)₊(η−k)₊] = (ρ + hk) L − k A − h B + (1 − ρ²) ϕ₂(h, k), where
    L = P(ξ > h, η > k), A = ϕ(h) P(η > k | ξ = h), B = ϕ(k) P(ξ > h | η = k).  A hinge that opens
    to the left is one that opens to the right in −ξ.
    """
    intercept, slope, hinges = form
    size = scale1 * scale2
    value = intercept**2 + slope**2 * rho * size
    derivative = np.full_like(value, slope**2)
    sides = [1.0 if knot >= 0.0 else -1.0 for knot, _ in hinges]
    for (knot, change), side in zip(hinges, sides, strict=True):
        for scale in (scale1, scale2):
            h = abs(knot) / scale
            beyond = ndtr(-h)
            value = value + change * (
                intercept * scale * (gaussian_density(h) - h * beyond)
                + side * slope * rho * size * beyond
            )
            derivative = derivative + side * change * slope * beyond
    for (knot1, change1), side1 in zip(hinges, sides, strict=True):
        for (knot2, change2), side2 in zip(hinges, sides, strict=True):
            h, k, side = abs(knot1) / scale1, abs(knot2) / scale2, side1 * side2
            product, orthant = _hinge_pair(h, k, side * rho, rest)
            value = value + change1 * change2 * size * product
            derivative = derivative + side * change1 * change2 * orthant
    return value, derivative


def segment_moments(
    knots: Sequence[float], scales: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """E[ξ^j 1(segment)], j = 0, 1, 2, of the segments between knots of x = τξ; each (segments, n).

    ∫ξϕ = −ϕ and ∫ξ²ϕ = Φ − ξϕ.  Also returned: the sizes of what is subtracted in the first and in
    the other two, by which one knows how many digits are left.
    """
    # Beyond 40 standard deviations a density is zero, and infinity times that is not a number.
    inner = np.clip(np.array(knots)[:, None] / scales, -40.0, 40.0)
    edge = np.full((1, len(scales)), 40.0)
    ends = np.concatenate([-edge, inner, edge])
    density = gaussian_density(ends)
    low, high = ends[:-1], ends[1:]
    # From the side of 0 on which the segment lies: nearer to 0 than 1 by erf, beyond by erfc.
    near, far = np.where(low >= 0.0, low, -high), np.where(low >= 0.0, high, -low)
    tail = near > 1.0
    root = math.sqrt(0.5)
    one = np.where(tail, erfc(root * near), erf(root * far))
    two = np.where(tail, erfc(root * far), erf(root * near))
    share = 0.5 * (one - two)
    moved = ends * density
    sizes = 0.5 * (np.abs(one) + np.abs(two))
    others = sizes + density[:-1] + density[1:] + np.abs(moved[:-1]) + np.abs(moved[1:])
    return share, -np.diff(density, axis=0), share - np.diff(moved, axis=0), sizes, others


def _hinge_pair(h: FloatArray, k: FloatArray, rho: FloatArray, rest: FloatArray) -> Pairs:
    """E[(ξ−h)₊(η−k)₊] and P(ξ > h, η > k) for correlation ρ, rest = 1 − |ρ|."""
    root = np.maximum(root_of(rest), _TINY)
    # k − ρh and h − ρk, arranged so that nothing cancels near ρ = ±1.
    sign = np.where(rho < 0.0, -1.0, 1.0)
    with np.errstate(over="ignore"):
        k_given_h = ((k - sign * h) + sign * h * rest) / root
        h_given_k = ((h - sign * k) + sign * k * rest) / root
        # ½(h² − 2ρhk + k²)/(1 − ρ²), as a square and a term without 1/(1 − ρ²).
        exponent = 0.5 * ((h - sign * k) / root) ** 2 + sign * h * k / (1.0 + np.abs(rho))
    orthant = _orthant(h, k, k_given_h, h_given_k, rho, root)
    edges = k * gaussian_density(h) * ndtr(-k_given_h) + h * gaussian_density(k) * ndtr(-h_given_k)
    corner = root * np.exp(-exponent) / (2.0 * math.pi)
    return (rho + h * k) * orthant - edges + corner, orthant


def _orthant(
    h: FloatArray,
    k: FloatArray,
    k_given_h: FloatArray,
    h_given_k: FloatArray,
    rho: FloatArray,
    root: FloatArray,
) -> FloatArray:
    """P(ξ > h, η > k) by Owen's T: ½[Φ(−h) + Φ(−k)] − T(h, a_h) − T(k, a_k) − ½[h, k apart]."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slope_h, slope_k = k_given_h / h, h_given_k / k
    # h = 0 is taken as the limit from below, where the slope is ∓∞ (and likewise for k); at
    # h = k = 0 the two terms together are the arc of the correlation.
    slope_h = np.where(h == 0.0, np.copysign(np.inf, -k), slope_h)
    slope_k = np.where(k == 0.0, np.copysign(np.inf, -h), slope_k)
    apart = (h * k < 0.0) | ((h * k == 0.0) & (h + k > 0.0))
    general = (
        0.5 * (ndtr(-h) + ndtr(-k))
        - owens_t(h, slope_h)
        - owens_t(k, slope_k)
        - np.where(apart, 0.5, 0.0)
    )
    corner = 0.25 + np.arctan2(rho, root) / (2.0 * math.pi)
    probability: FloatArray = np.where((h == 0.0) & (k == 0.0), corner, general)
    return np.clip(probability, 0.0, 1.0)


def erf_pairs(scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray) -> Pairs:
    """Pairs for φ = erf: (2/π) arcsin(2c/√((1+2q₁)(1+2q₂))), c the covariance.

    Source: Williams, Computing with infinite networks (1997).  The denominator of the derivative,
    (1+2q₁)(1+2q₂) − 4c², is written as 1 + 2q₁ + 2q₂ + 4q₁q₂(1 − ρ²).
    """
    size = scale1 * scale2
    square = 1.0 + 2.0 * scale1**2 + 2.0 * scale2**2 + 4.0 * (size * root_of(rest)) ** 2
    bottom = np.sqrt(square)
    return (2.0 / math.pi) * np.arctan2(2.0 * rho * size, bottom), (4.0 / math.pi) / bottom


def sin_pairs(scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray) -> Pairs:
    """Pairs for φ = sin: exp(−(q₁+q₂)/2) sinh c, and with cosh for the derivative."""
    covariance = np.abs(rho) * scale1 * scale2
    # exp(c − (q₁+q₂)/2), with the exponent written as a sum of negative terms
    grown = 0.5 * np.exp(-0.5 * (scale1 - scale2) ** 2 - rest * scale1 * scale2)
    value = -np.sign(rho) * grown * np.expm1(-2.0 * covariance)
    return value, grown * (1.0 + np.exp(-2.0 * covariance))


def cos_pairs(scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray) -> Pairs:
    """Pairs for φ = cos: those of sin with value and derivative exchanged."""
    value, derivative = sin_pairs(scale1, scale2, rho, rest)
    return derivative, value

"""Continuous piecewise-linear activations: the ReLU family, abs, hard tanh, and any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from notsodeep import checks
from notsodeep.activations import closed_forms
from notsodeep.activations.activation import Activation, Parity, frozen_parameters
from notsodeep.activations.moments import Changes
from notsodeep.arrays import FloatArray
from notsodeep.numerics.hermite import hermite_polynomials


class LineChanges(NamedTuple):
    """Derivatives of what makes a piecewise-linear function in P parameters.

    Attributes
    ----------
    knots, slopes : ndarray of shape (knots, P), (knots + 1, P)
        A knot at 0 stays there.
    value_at_zero : ndarray of shape (P,)
    """

    knots: FloatArray
    slopes: FloatArray
    value_at_zero: FloatArray


CANCELLATION = 16.0
"""Sums of moments may cancel by this factor, which leaves 14 digits."""
_MANY = 100_000  # coefficients that take longer one by one than from a table over scales


@dataclass(frozen=True, repr=False)
class PiecewiseLinear(Activation):
    """A continuous function, linear between its knots.

    Attributes
    ----------
    knots : tuple of float
        Increasing.
    slopes : tuple of float
        One more than knots, from left to right.
    value_at_zero : float

    Examples
    --------
    >>> ramp = piecewise_linear((-1.0, 1.0), (0.0, 0.5, 0.0), value_at_zero=0.5)
    >>> ramp([-2.0, 0.0, 2.0]), ramp.kinks, ramp.lipschitz
    (array([0. , 0.5, 1. ]), (-1.0, 1.0), 0.5)
    """

    knots: tuple[float, ...]
    slopes: tuple[float, ...]
    value_at_zero: float

    @cached_property
    def _anchors(self) -> tuple[FloatArray, FloatArray]:
        """For each segment the point nearest to 0, and φ there.

        Measured from there φ keeps its digits near 0, where all of its value may be slope·x.
        """
        ends = np.array([-math.inf, *self.knots, math.inf])
        points = np.clip(0.0, ends[:-1], ends[1:])
        return points, np.array([self.value_at_zero + self._integral(p) for p in points])

    def _integral(self, end: float) -> float:
        """∫₀^end φ′."""
        low, high = min(0.0, end), max(0.0, end)
        inside = [k for k in self.knots if low < k < high]
        points = [low, *inside, high]
        total = sum(self._slope_right_of(a) * (b - a) for a, b in pairwise(points))
        return total if end >= 0.0 else -total

    def _slope_right_of(self, x: float) -> float:
        return self.slopes[sum(k <= x for k in self.knots)]

    @cached_property
    def hinge_form(self) -> closed_forms.HingeForm:
        """φ as the line through its segment at 0, plus hinges that open away from 0.

        A hinge opened towards 0 would have to cancel against the others there.
        """
        at_zero = self.slopes[sum(k < 0.0 for k in self.knots)]
        changes = (b - a for a, b in pairwise(self.slopes))
        return closed_forms.HingeForm(
            self.value_at_zero, at_zero, tuple(zip(self.knots, changes, strict=True))
        )

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x), in the precision of x."""
        if self.homogeneous:  # relu and leaky relu, in which networks spend much of their time
            left, right = self.slopes[0], self.slopes[-1]
            if left == 0.0:
                return np.asarray(right * np.maximum(x, 0.0))
            return np.asarray((np.maximum if right >= left else np.minimum)(left * x, right * x))
        lines = zip(*(values.tolist() for values in self._anchors), self.slopes, strict=True)
        # Where another segment holds, a line may be anything.
        with np.errstate(over="ignore", invalid="ignore"):
            first, *others = (height + slope * (x - point) for point, height, slope in lines)
            for knot, line in zip(self.knots, others, strict=True):
                first = np.where(x > knot, line, first)
        return np.asarray(first)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x); at a knot, the slope on its left."""
        result: FloatArray = np.array(self.slopes)[np.searchsorted(self.knots, x)]
        return result

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Arc-cosine forms for a single knot at 0, bivariate normal probabilities otherwise."""
        if self.homogeneous:
            return closed_forms.hinge_at_zero(
                scale1, scale2, rho, rest, self.slopes[-1], self.slopes[0]
            )
        return closed_forms.piecewise_linear(scale1, scale2, rho, rest, self.hinge_form)

    def closed_form_moments(self, scales: FloatArray, constant: float = 0.0) -> FloatArray:
        """Compute the moments of φ − constant from those of ξ on every segment.

        On a segment φ(τξ) − constant = A + Bξ, so that E φ² = Σ A²m₀ + 2ABm₁ + B²m₂ with
        m_j = E[ξ^j 1(segment)].  NaN where what cancels in these sums is not small beside them,
        as for a segment of all the mass that is short or far out: quadrature then keeps the digits.
        """
        shares, first, second, size0, size2 = closed_forms.segment_moments(self.knots, scales)
        points, heights = (column[:, None] for column in self._anchors)
        slopes = np.array(self.slopes)[:, None]
        A, B = heights - slopes * points - constant, slopes * scales
        square = (A**2 * shares + 2.0 * A * B * first + B**2 * second).sum(axis=0)
        slope_square = (slopes**2 * shares).sum(axis=0)
        largest = np.abs(heights) + np.abs(slopes * points) + abs(constant)
        lost = (largest**2 * size0 + 2.0 * largest * np.abs(B) * size2 + B**2 * size2).sum(axis=0)
        inexact = lost > CANCELLATION * square
        inexact |= (slopes**2 * size0).sum(axis=0) > CANCELLATION * slope_square
        kappa = np.clip(np.array(self.knots)[:, None] / scales, -40.0, 40.0)
        density = np.exp(-0.5 * kappa**2) / math.sqrt(2.0 * math.pi)
        moments = np.stack(
            [
                (A * shares + B * first).sum(axis=0),
                (slopes * shares).sum(axis=0),
                (np.diff(slopes, axis=0) * density).sum(axis=0) / scales,
                square,
                slope_square,
                2.0 * (slopes * (A * first + B * second)).sum(axis=0) / scales,
            ]
        )
        moments[:, inexact] = np.nan
        return moments

    def changes(self, by: LineChanges, scales: FloatArray, terms: int) -> Changes:
        """Differentiate coefficients and moments in P parameters that move knots, slopes and φ(0).

        φ is c_i + s_i x on segment i, and its derivative in a parameter ċ_i + ṡ_i x, which jumps by
        J_k = −Δ_k κ̇_k at a knot, where its slope changes by D_k.  The coefficients of such a
        function are Σ_k J_k ϕ(κ)h_{n−1}(κ)/√n + D_k τϕ(κ)h_{n−2}(κ)/√(n(n−1)), κ = k/τ, n ≥ 2.
        Since φ is continuous, moving knots do not enter the derivative of E φ² otherwise.
        """
        shares, first, second, _, _ = closed_forms.segment_moments(self.knots, scales)
        slopes, steps = np.array(self.slopes), np.diff(self.slopes)
        bends = np.diff(by.slopes, axis=0)
        jumps = -steps[:, None] * by.knots
        heights = np.empty_like(by.slopes)
        middle = sum(k < 0.0 for k in self.knots)
        heights[middle] = by.value_at_zero
        for k in range(middle, len(self.knots)):
            heights[k + 1] = heights[k] + jumps[k] - bends[k] * self.knots[k]
        for k in range(middle - 1, -1, -1):
            heights[k] = heights[k + 1] - jumps[k] + bends[k] * self.knots[k]
        points, levels = self._anchors
        A, B = (levels - slopes * points)[:, None], slopes[:, None] * scales
        dA, dB = heights.T[:, :, None], by.slopes.T[:, :, None] * scales  # (P, segments, n)
        series = np.zeros((heights.shape[1], len(scales), max(terms, 2)))
        series[:, :, 0] = (dA * shares + dB * first).sum(axis=1)
        series[:, :, 1] = (dA * first + dB * second).sum(axis=1)
        square = 2.0 * ((A * dA) * shares + (A * dB + B * dA) * first + (B * dB) * second)
        slope_square = 2.0 * (slopes[:, None] * by.slopes).T @ shares
        order = np.arange(2, terms)
        for k, knot in enumerate(self.knots):
            kappa = np.clip(knot / scales, -37.0, 37.0)
            density = np.exp(-0.5 * kappa**2) / math.sqrt(2.0 * math.pi)
            fallen = (slopes[k] ** 2 - slopes[k + 1] ** 2) * density / scales
            slope_square += np.outer(by.knots[k], fallen)
            polynomials = density[:, None] * hermite_polynomials(kappa, terms - 1).T
            hinge = scales[:, None] * polynomials[:, :-1] / np.sqrt(order * (order - 1))
            step = polynomials[:, 1:] / np.sqrt(order)
            for p in range(len(series)):
                if bends[k, p] != 0.0 or jumps[k, p] != 0.0:
                    series[p, :, 2:] += bends[k, p] * hinge + jumps[k, p] * step
        return Changes(series[:, :, :terms], square.sum(axis=1), slope_square)

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        """Exact coefficients; of many samples they are interpolated."""
        if self.homogeneous or len(scales) * terms < _MANY:
            return self._exact_coefficients(scales, terms)
        return super()._hermite_coefficients(scales, terms)

    def coefficients_and_squares(
        self, scales: FloatArray, terms: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return a_k(τ) and E φ²(τξ) at few scales, without quadrature."""
        return self._exact_coefficients(scales, terms), np.asarray(self.moments(scales).square)

    def _exact_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        """Exact coefficients.

        For a hinge (x − k)₊ at scale τ, with κ = k/τ:
        a_0 = τ(ϕ(κ) − κ Φ(−κ)), a_1 = τ Φ(−κ), a_n = τ ϕ(κ) h_{n−2}(κ)/√(n(n−1)).
        Those of (k − x)₊ are those of (x + k)₊, mirrored: times (−1)^n.
        """
        intercept, slope, hinges = self.hinge_form
        coefficients = np.zeros((max(terms, 2), len(scales)))
        coefficients[0] = intercept
        coefficients[1] = slope * scales
        order = np.arange(2, terms)
        # Knots at ±k differ in the signs of odd coefficients only, and share the polynomials.
        pairs: dict[float, tuple[float, float]] = {}
        for knot, change in hinges:
            even, odd = pairs.get(abs(knot), (0.0, 0.0))
            pairs[abs(knot)] = even + change, odd + (change if knot >= 0.0 else -change)
        for knot, (even, odd) in pairs.items():
            kappa = knot / scales
            density = np.exp(-0.5 * kappa**2) / math.sqrt(2.0 * math.pi)
            beyond = ndtr(-kappa)
            coefficients[0] += even * scales * (density - kappa * beyond)
            coefficients[1] += odd * scales * beyond
            if terms > 2:
                # Far out, ϕ(κ) is 0 and h_n(κ) overflows: the product is 0.
                # exp(−37²/2) = 5e-298 is about the last density that is a normal number.
                near = np.where(kappa < 37.0, kappa, 0.0) if knot > 0.0 else np.zeros(1)
                factors = np.where(order % 2, odd, even) / np.sqrt(order * (order - 1))
                higher = hermite_polynomials(near, terms - 2) * factors[:, None]
                coefficients[2:] += scales * density * higher
        return coefficients[:terms].T


def make(
    name: str,
    parameters: Mapping[str, Any],
    knots: tuple[float, ...],
    slopes: tuple[float, ...],
    value_at_zero: float = 0.0,
) -> PiecewiseLinear:
    """Build a `PiecewiseLinear` with its facts worked out."""
    return PiecewiseLinear(
        name=name,
        parameters=frozen_parameters(parameters),
        kinks=tuple(k for k, (a, b) in zip(knots, pairwise(slopes), strict=True) if a != b),
        parity=_parity(knots, slopes, value_at_zero),
        lipschitz=max(abs(s) for s in slopes),
        homogeneous=set(knots) <= {0.0} and value_at_zero == 0.0,
        detected=False,
        knots=knots,
        slopes=slopes,
        value_at_zero=value_at_zero,
    )


def _parity(
    knots: tuple[float, ...], slopes: tuple[float, ...], value_at_zero: float
) -> Parity | None:
    if knots != tuple(-k for k in reversed(knots)):
        return None
    mirrored = tuple(reversed(slopes))
    if slopes == mirrored and value_at_zero == 0.0:
        return "odd"
    return "even" if slopes == tuple(-s for s in mirrored) else None


def relu() -> PiecewiseLinear:
    """max(x, 0)."""
    return make("relu", {}, (0.0,), (0.0, 1.0))


def normalized_relu() -> PiecewiseLinear:
    """√2·max(x, 0): E φ²(ξ) = 1."""
    return make("normalized_relu", {}, (0.0,), (0.0, math.sqrt(2.0)))


def leaky_relu(positive_slope: float = 1.0, negative_slope: float = 0.01) -> PiecewiseLinear:
    """positive_slope·x for x > 0, negative_slope·x for x < 0: max(ax, bx) if a ≥ b.

    Examples
    --------
    >>> leaky_relu(1.1, 0.7)([-1.0, 1.0])
    array([-0.7,  1.1])
    """
    a = checks.finite_number(positive_slope, "positive_slope", "leaky_relu")
    b = checks.finite_number(negative_slope, "negative_slope", "leaky_relu")
    parameters = {"positive_slope": a, "negative_slope": b}
    return make("leaky_relu", parameters, (0.0,), (b, a))


def hard_tanh(scale: float = 1.0, clip: float = 1.0) -> PiecewiseLinear:
    """scale·min(max(x, −clip), clip).

    Examples
    --------
    >>> hard_tanh(scale=0.5, clip=2.0)([-3.0, 1.0, 3.0])
    array([-1. ,  0.5,  1. ])
    """
    a = checks.finite_number(scale, "scale", "hard_tanh")
    c = checks.positive_number(clip, "clip", "hard_tanh")
    return make("hard_tanh", {"scale": a, "clip": c}, (-c, c), (0.0, a, 0.0))


def absolute() -> PiecewiseLinear:
    """|x|."""
    return make("abs", {}, (0.0,), (-1.0, 1.0))


def identity() -> PiecewiseLinear:
    """X."""
    return make("identity", {}, (), (1.0,))


def piecewise_linear(
    knots: Sequence[float], slopes: Sequence[float], value_at_zero: float = 0.0
) -> PiecewiseLinear:
    """Build the continuous function with the given slopes between the given knots.

    Parameters
    ----------
    knots : sequence of float
        Strictly increasing.
    slopes : sequence of float
        One more than knots, from left to right.
    value_at_zero : float, default 0
        φ(0).

    Examples
    --------
    >>> piecewise_linear((0.0, 1.0), (0.1, 1.0, 0.0))([-1.0, 0.5, 3.0])
    array([-0.1,  0.5,  1. ])
    """
    owner = "piecewise_linear"
    places = checks.increasing_points(knots, "knots", owner)
    if places != tuple(knots):
        raise checks.invalid("knots", owner, "be strictly increasing", tuple(knots))
    steepness = tuple(checks.finite_number(s, "each of the slopes", owner) for s in slopes)
    if len(steepness) != len(places) + 1:
        requirement = f"have one entry more than knots ({len(places) + 1})"
        raise checks.invalid("slopes", owner, requirement, f"{len(steepness)} entries")
    level = checks.finite_number(value_at_zero, "value_at_zero", owner)
    parameters = {"knots": places, "slopes": steepness, "value_at_zero": level}
    return make("piecewise_linear", parameters, places, steepness, level)

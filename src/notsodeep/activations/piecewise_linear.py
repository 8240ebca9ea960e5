"""Continuous piecewise-linear activations: the ReLU family, abs, hard tanh, and any other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import ndtr

from notsodeep import checks
from notsodeep.activations import closed_forms
from notsodeep.activations.activation import Activation, Parity
from notsodeep.arrays import FloatArray
from notsodeep.numerics.quadrature import gaussian_density, hermite_polynomials

CANCELLATION = 16.0
"""Sums of moments may cancel by this factor, which leaves 14 digits."""
_MANY = 100_000  # coefficients that take longer one by one than from a table over scales


@dataclass(frozen=True, repr=False)
class PiecewiseLinear(Activation):
    """A continuous function, linear between its knots.

    Examples
    --------
    >>> ramp = piecewise_linear((-1.0, 1.0), (0.0, 0.5, 0.0), value_at_zero=0.5)
    >>> ramp([-2.0, 0.0, 2.0]), ramp.kinks, ramp.lipschitz
    (array([0. , 0.5, 1. ]), (-1.0, 1.0), 0.5)
    """

    knots: tuple[float, ...]  # increasing
    slopes: tuple[float, ...]  # one more than knots, from left to right
    value_at_zero: float

    @property
    def hinge(self) -> tuple[float, float] | None:
        """Slopes left and right of zero, of the ReLU family."""
        return (self.slopes[0], self.slopes[-1]) if self.homogeneous else None

    @cached_property
    def anchors(self) -> tuple[FloatArray, FloatArray]:
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
        lines = zip(*(values.tolist() for values in self.anchors), self.slopes, strict=True)
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
        points, heights = (column[:, None] for column in self.anchors)
        slopes = np.array(self.slopes)[:, None]
        A, B = heights - slopes * points - constant, slopes * scales
        square = (A**2 * shares + 2.0 * A * B * first + B**2 * second).sum(axis=0)
        slope_square = (slopes**2 * shares).sum(axis=0)
        largest = np.abs(heights) + np.abs(slopes * points) + abs(constant)
        lost = (largest**2 * size0 + 2.0 * largest * np.abs(B) * size2 + B**2 * size2).sum(axis=0)
        inexact = lost > CANCELLATION * square
        inexact |= (slopes**2 * size0).sum(axis=0) > CANCELLATION * slope_square
        kappa = np.clip(np.array(self.knots)[:, None] / scales, -40.0, 40.0)
        density = gaussian_density(kappa)
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
            density = gaussian_density(kappa)
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
    parameters: dict[str, Any],
    knots: tuple[float, ...],
    slopes: tuple[float, ...],
    value_at_zero: float = 0.0,
) -> PiecewiseLinear:
    """Build a `PiecewiseLinear` with its facts worked out."""
    parity: Parity | None = None
    if knots == tuple(-k for k in reversed(knots)):
        if slopes == slopes[::-1] and value_at_zero == 0.0:
            parity = "odd"
        elif slopes == tuple(-s for s in reversed(slopes)):
            parity = "even"
    return PiecewiseLinear(
        name=name,
        parameters=tuple(parameters.items()),
        kinks=tuple(k for k, (a, b) in zip(knots, pairwise(slopes), strict=True) if a != b),
        parity=parity,
        lipschitz=max(abs(s) for s in slopes),
        homogeneous=set(knots) <= {0.0} and value_at_zero == 0.0,
        knots=knots,
        slopes=slopes,
        value_at_zero=value_at_zero,
    )


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
    """Return x."""
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
    points = checks.increasing_points(knots, "knots", owner)
    if points != tuple(knots):
        raise checks.invalid("knots", owner, "be strictly increasing", tuple(knots))
    values = tuple(checks.finite_number(s, "each of the slopes", owner) for s in slopes)
    if len(values) != len(points) + 1:
        requirement = f"have one entry more than knots ({len(points) + 1})"
        raise checks.invalid("slopes", owner, requirement, f"{len(values)} entries")
    level = checks.finite_number(value_at_zero, "value_at_zero", owner)
    parameters = {"knots": points, "slopes": values, "value_at_zero": level}
    return make("piecewise_linear", parameters, points, values, level)

"""What each sample brings to every pair, prepared for the compiled loops.

A sample enters a kernel through the scale of its pre-activations, √q, alone.  `equilibrium_scales`
solves for it, `sample_columns` works out the moments of φ there, and a `Layer` adds the series that
the loops evaluate.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation, Centred, PiecewiseLinear
from notsodeep.activations.activation import LEAST_SQUARE
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.activations.polynomial import Polynomial
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotConverged, NotIntegrable
from notsodeep.kernels import compiled
from notsodeep.models import DeepEquilibrium
from notsodeep.numerics.chebyshev import ScaleFunction, at_many_scales, kept_table
from notsodeep.numerics.fixed_point import solve_fixed_point

TERMS = (48, 384)
"""Lengths of the series that are tried in turn; the longer one serves |ρ| up to about 0.92."""

SERIES_BOUND = 1e-14
"""Bound on what a series leaves out, relative to √(E φ²(u) E φ²(v)), and likewise for φ′."""

_ORDINARY = 1e-8  # scales below this share of the largest are treated one by one
_MARGIN = 1e-8  # rounding errors are multiplied by 1/(1 − gain): eight digits are left
_FEW = 8  # different norms up to which nothing is tabulated
_ASKED = 96  # samples whose series tell how many terms all of them need


def equilibrium_scales(deq: DeepEquilibrium, squared_norms: FloatArray) -> FloatArray:
    """Solve q = σa² E φ²(√q ξ) + σb² ‖x‖² for every sample; return √q, shape (n,).

    Raises
    ------
    NotConverged
        There is no solution for some norm; the message names the largest one tried.
    """
    sigma_a2, activation = deq.sigma_a2, deq.activation
    drive = deq.sigma_b2 * squared_norms
    if activation.homogeneous:
        gain = sigma_a2 * float(activation.moments(1.0).square)
        if gain >= 1.0 - _MARGIN:
            raise NotConverged(
                f"The {activation} DEQ with sigma_a2 = {sigma_a2:.12g} has no finite variance, or "
                f"one that rounding errors decide: σa² E φ²(ξ) = {gain:.12g} must be below 1 by "
                f"{_MARGIN:.0e}. Use a smaller sigma_a2."
            )
        return np.maximum(np.sqrt(drive / (1.0 - gain)), LEAST_SCALE)
    different, place = np.unique(drive, return_inverse=True)
    if different.size == 1:
        return np.full(len(drive), _single_scale(deq, float(different[0])))
    if different.size <= _FEW:
        return _solve_scales(deq, different)[place]
    # Tiny or zero rows apart, the scales are between those of the smallest and the largest norm.
    # Squares: these are proportional to ‖x‖².
    ordinary = different >= _ORDINARY**2 * different[-1]
    low, high = _ends(deq, different[ordinary])
    # Wider than the ends, which come from another solve.  The iteration starts below, at the drive;
    # there the lower end of the table stands in, which is no more than a worse first step.
    columns = MomentColumns(activation)
    table = kept_table(columns, 0.999 * low, 1.001 * high, int(ordinary.sum()))
    scales = np.empty_like(different)
    scales[ordinary] = _solve_scales(
        deq,
        different[ordinary],
        lambda tau: activation.from_log_growth(table(tau)[:, 1], tau),
    )
    if not ordinary.all():
        scales[~ordinary] = _solve_scales(deq, different[~ordinary])
    return scales[place]


def _ends(deq: DeepEquilibrium, drive: FloatArray) -> tuple[float, float]:
    """Return scales between which all are: those of powers of two beyond the ends, if they exist.

    These are kept, and serve other samples of the same data.
    """
    low, high = 2.0 ** math.floor(math.log2(drive[0])), 2.0 ** math.ceil(math.log2(drive[-1]))
    try:
        return _single_scale(deq, low), _single_scale(deq, high)
    except NotConverged:
        return _single_scale(deq, float(drive[0])), _single_scale(deq, float(drive[-1]))


def _squares(activation: Activation, scales: FloatArray) -> FloatArray:
    try:
        return np.asarray(activation.moments(scales).square)
    except NotIntegrable:  # the iterates have run away
        return np.full_like(scales, np.inf)


def _solve_scales(
    deq: DeepEquilibrium, drive: FloatArray, squares: ScaleFunction | None = None
) -> FloatArray:
    """Solve q = σa² E φ²(√q ξ) + drive; `squares` may stand in for τ ↦ E φ²(τξ)."""
    evaluate = squares or partial(_squares, deq.activation)
    solution = solve_fixed_point(
        lambda q: deq.sigma_a2 * evaluate(np.sqrt(np.maximum(q, LEAST_SCALE**2))) + drive,
        drive,
        name=f"the variance q of the {deq}",
        remedy="A smaller sigma_a2 makes it contract.",
    )
    return np.maximum(np.sqrt(solution.value), LEAST_SCALE)


@lru_cache(maxsize=64)
def _single_scale(deq: DeepEquilibrium, drive: float) -> float:
    return float(_solve_scales(deq, np.array([drive]))[0])


@dataclass(frozen=True)
class SampleColumns:
    """What an activation is at the scale of each of n samples.

    Attributes
    ----------
    scales, mean, square, slope_square : ndarray of shape (n,)
        τ, E φ(τξ), E φ²(τξ), E φ′(τξ)².
    """

    scales: FloatArray
    mean: FloatArray
    square: FloatArray
    slope_square: FloatArray

    def take(self, rows: slice | NDArray[Any]) -> SampleColumns:
        """Return the columns of some of the samples."""
        columns = (self.scales, self.mean, self.square, self.slope_square)
        return SampleColumns(*(column[rows] for column in columns))


@dataclass(frozen=True)
class MomentColumns:
    """At scales (n,): E φ/√(E φ²), `log_growth` and log E φ′², as a table of an activation."""

    activation: Activation

    def __call__(self, tau: FloatArray) -> FloatArray:
        """Compute the columns; shape (n, 3)."""
        phi = self.activation
        moments = phi.moments(tau)
        root = np.sqrt(np.maximum(moments.square, LEAST_SQUARE))
        growth = phi.log_growth(moments.square, tau)
        steepness = np.log(np.maximum(moments.slope_square, LEAST_SQUARE))
        # Quantities of order one, or logarithms: a table has an absolute error.
        return np.column_stack([moments.mean / root, growth, steepness])


def sample_columns(activation: Activation, scales: FloatArray) -> SampleColumns:
    """Work out the moments of φ at every sample's scale."""
    columns = MomentColumns(activation)
    relative_mean, growth, steepness = at_many_scales(columns, scales, keep=True).T
    square = activation.from_log_growth(growth, scales)
    return SampleColumns(scales, relative_mean * np.sqrt(square), square, np.exp(steepness))


@dataclass(frozen=True)
class Series:
    """Hermite coefficients of the samples on both sides, and the terms needed at each |ρ|.

    Attributes
    ----------
    left, right : ndarray of shape (n, terms), (m, terms)
    table : ndarray of shape (compiled.BINS + 1,)
        Terms that suffice for |ρ| ≤ bin/BINS, or −1.
    """

    left: FloatArray
    right: FloatArray
    table: IntArray


class Layer:
    """An activation with what it is at every sample's scale.

    Attributes
    ----------
    everything, rows, columns : SampleColumns
        Of all samples, and of those on either side; the sides are the same if symmetric.
    degree : int or None
        Of a polynomial, whose series is finite.
    kind : int
        `compiled.SERIES` or `compiled.HINGE`.
    both, cross, constant : float
        Parameters of the hinge: right² + left², 2·right·left, and what centring subtracts.
    mean1, mean2 : ndarray
        E φ of rows and columns before centring.
    """

    def __init__(
        self, activation: Activation, scales1: FloatArray, scales2: FloatArray | None
    ) -> None:
        self.activation = activation
        everything = scales1 if scales2 is None else np.concatenate([scales1, scales2])
        self.everything = sample_columns(activation, everything)
        self._split = len(scales1)
        self._series: dict[int, Series] = {}
        self.symmetric = scales2 is None
        self.rows = self.everything.take(slice(None, self._split))
        beyond = slice(self._split, None)
        self.columns = self.rows if self.symmetric else self.everything.take(beyond)
        base = activation.base if isinstance(activation, Centred) else activation
        self.degree = base.degree if isinstance(base, Polynomial) else None
        self.constant = activation.constant if isinstance(activation, Centred) else 0.0
        self.kind, self.both, self.cross = compiled.SERIES, 0.0, 0.0
        # The means that the hinge loop takes off are those of the uncentred activation.
        self.mean1 = self.rows.mean + self.constant
        self.mean2 = self.columns.mean + self.constant
        self._preparing = threading.Lock()
        if isinstance(base, PiecewiseLinear) and base.homogeneous and base.kinks:
            right, left = base.slopes[-1], base.slopes[0]
            self.kind = compiled.HINGE
            self.both, self.cross = right**2 + left**2, 2.0 * right * left

    @property
    def lengths(self) -> tuple[int, ...]:
        """Series lengths worth trying, the last one being final."""
        if self.kind == compiled.HINGE:
            return (1,)
        if self.degree is None:
            return TERMS
        step = compiled.TERMS_STEP
        return (max(step * -(-(self.degree + 1) // step), 2 * step),)

    def series(self, terms: int) -> Series:
        """Return the coefficients and the table of terms; trivial for the hinge."""
        with self._preparing:
            if terms not in self._series:
                self._series[terms] = self._make_series(terms)
        return self._series[terms]

    @property
    def prepared(self) -> tuple[int, ...]:
        """Lengths of the series that were made."""
        return tuple(self._series)

    def _make_series(self, terms: int) -> Series:
        if self.kind == compiled.HINGE:
            none = np.zeros((len(self.everything.scales), 1))
            table = np.zeros(compiled.BINS + 1, dtype=np.int64)
            return Series(none[: self._split], none[-len(self.columns.scales) :], table)
        coefficients = np.ascontiguousarray(
            self.activation.hermite_coefficients(self.everything.scales, terms)
        )
        if self.degree is None:
            table = terms_table(coefficients, self.everything)
        else:
            table = np.full(compiled.BINS + 1, terms, dtype=np.int64)
        left = coefficients[: self._split]
        right = left if self.symmetric else coefficients[self._split :]
        return Series(left, right, table)


def terms_table(coefficients: FloatArray, columns: SampleColumns) -> IntArray:
    """Terms of Mehler's series that suffice for |ρ| ≤ bin/BINS, or −1 where all do not.

    By Parseval, what K terms leave of E[φφ] is at most |ρ|^K √(r_i r_j), r = E φ² − Σ_{k<K} a_k²;
    and of E[φ′φ′] at most |ρ|^{K−1} √(r′_i r′_j), r′ = E φ′² − Σ_{k<K} k a_k²/τ².  These change
    slowly with the scale: of many samples some are asked, from the smallest scale to the largest.
    """
    terms = coefficients.shape[1]
    count = len(columns.scales)
    if count > _ASKED:
        order = np.argsort(columns.scales)
        chosen = order[np.linspace(0, count - 1, _ASKED).astype(np.int64)]
        coefficients, columns = coefficients[chosen], columns.take(chosen)
    squares = coefficients**2
    slopes = squares * np.arange(terms) / columns.scales[:, None] ** 2
    left_over = np.ones((2, terms + 1))
    for row, energy, total in (
        (0, squares, columns.square),
        (1, slopes, columns.slope_square),
    ):
        share = np.cumsum(energy, axis=1) / np.maximum(total, 1e-300)[:, None]
        # What rounding leaves of a vanishing remainder is not a remainder.
        left_over[row, 1:] = np.maximum(1.0 - share, 1e-15).max(axis=0)
    powers = _powers_of_bins(terms)
    bound = np.maximum(powers[:, 1:] * left_over[0], powers[:, :-1] * left_over[1])
    orders = np.arange(terms + 1)
    # docs/theory/gaussian-calculus.md, "How many terms".
    enough = (bound <= SERIES_BOUND) & (orders > 0) & (orders % compiled.TERMS_STEP == 0)
    table = np.where(enough.any(axis=1), enough.argmax(axis=1), -1)
    return np.asarray(table, dtype=np.int64)


@lru_cache(maxsize=8)
def _powers_of_bins(terms: int) -> FloatArray:
    """(bin/BINS)^k for k = −1, …, terms, where 0 stands for −1; shape (BINS + 1, terms + 2)."""
    rho = (np.arange(compiled.BINS + 1) / compiled.BINS)[:, None]
    return np.asarray(rho ** np.maximum(np.arange(-1, terms + 1), 0))

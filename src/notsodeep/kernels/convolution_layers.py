"""An activation at every pixel of the images: its moments and Hermite coefficients.

Images have very many pixels, each with a scale √q of its own, so that functions of the scale are
tabulated once and read off for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.activations import Activation, Centred, PiecewiseLinear
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.activations.polynomial import Polynomial
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotIntegrable
from notsodeep.kernels import convolution_compiled as compiled
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series
from notsodeep.threads import map_threads

ScaleFunction = Callable[[FloatArray], FloatArray]

SERIES_BOUND = 1e-14
"""Bound on what a series leaves out, relative to √(E φ²(u) E φ²(v)), and likewise for φ′."""

SINGLE_BOUND = 5e-8
"""The same in float32."""

_LENGTHS = (24, 48, 96, 192, 384, 768)  # of the series; the first that does at ρ = 1, or the last
_ROUGH = 1e-8  # the same for the first steps of Newton's method, which are not that near
_SINGLE_ROUGH = 1e-5
# Remainders of long series that are better than twice the memory, or than single pairs, hours long.
_TOLERATED = {384: 1e-9, 768: 1e-8}
_LEVELS = 8  # classes of scales that have tables of terms of their own
_SHORT = 48  # terms to begin with
_FLOOR = 1e-8  # scales below this share of an image's largest count as that: no entry sees it
_BEND = 0.05  # tables over scales are even in log(τ + this·min(1, largest scale))
_NODES = (24, 48, 96, 192)
_RESOLVED = 1e-14
_IMAGES = 8  # whose coefficients a thread evaluates at a time, in memory that it uses again
_FEW_FUNCTIONS = 8  # of the scale, up to which a matrix of polynomials would be too large for them


class ScaleTable:
    """Functions of the scale τ of one activation, for very many scales.

    Tabulated at Chebyshev points of log(τ + bend): near zero the moments are smooth functions of τ
    itself, and blank pixels have scales of any size.
    """

    def __init__(self, activation: Activation, low: float, high: float) -> None:
        self.activation = activation
        self._bend = _BEND * min(1.0, high)
        ends = np.log(np.array([low, high * (1.0 + 1e-12)]) + self._bend)
        self._middle, self._half = float(ends.mean()), 0.5 * float(ends[1] - ends[0])
        self.high = high

    def stand_in(self, function: ScaleFunction) -> ScaleFunction:
        """Return a cheap stand-in for `function`, which maps scales (n,) to values (n, columns).

        It takes scales of any shape and agrees with `function` to 1e-14 of the largest value.
        """
        series = self._fit(function) if self._half > 0.0 else None

        def evaluate(scales: FloatArray) -> FloatArray:
            flat = scales.ravel()
            if series is None:
                different, place = np.unique(flat, return_inverse=True)
                values = function(different)[place]
            else:
                x = np.clip((np.log(flat + self._bend) - self._middle) / self._half, -1.0, 1.0)
                if series.shape[1] > _FEW_FUNCTIONS:
                    values = chebvander(x, len(series) - 1) @ series
                else:
                    values = np.stack([compiled.clenshaw(each, x) for each in series.T.copy()], 1)
            return np.asarray(values).reshape(*scales.shape, -1)

        return evaluate

    def nodes(self, size: int) -> FloatArray:
        """Return scales at Chebyshev points."""
        points = np.exp(self._middle + self._half * chebyshev_points(size)) - self._bend
        return np.clip(points, LEAST_SCALE, self.high)

    def _fit(self, function: ScaleFunction) -> FloatArray | None:
        for size in _NODES:
            values = function(self.nodes(size))
            series = chebyshev_series(values)
            if np.abs(series[-(size // 6) :]).max() <= _RESOLVED * max(1.0, np.abs(values).max()):
                return series
        return None


class PixelLayer:
    """An activation with what it is at every pixel of the images.

    Attributes
    ----------
    dtype : type
        In which pairs are worked on, to be set before anything is asked about them; what single
        pixels have is in float64.
    kind, both, cross
        As in `kernels.samples.Layer`; centring plays no role for distances.
    scales, square, slope_square : ndarray of shape (n, P)
        √q, E φ² and E φ′² at each pixel.
    """

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        self.dtype: type[Any] = np.float64
        base = activation.base if isinstance(activation, Centred) else activation
        self.kind, self.both, self.cross = compiled.SERIES, 0.0, 0.0
        if isinstance(base, PiecewiseLinear) and base.homogeneous and base.kinks:
            right, left = base.slopes[-1], base.slopes[0]
            self.kind = compiled.HINGE
            self.both, self.cross = right**2 + left**2, 2.0 * right * left
        self.degree = base.degree if isinstance(base, Polynomial) else None
        self._tolerated = 0.0
        self._preparing = threading.RLock()
        self._tables: dict[int, IntArray] = {}
        self._relative: dict[int, ScaleFunction] = {}
        self._kept: dict[int, NDArray[Any]] = {}
        self._range: tuple[float, float] | None = None

    def squares(self, variances: FloatArray) -> FloatArray:
        """E φ²(√q ξ) for variances q of any shape."""
        if self.activation.homogeneous:
            return np.asarray(float(self.activation.moments(1.0).square) * variances)
        scales = np.sqrt(np.maximum(variances, LEAST_SCALE**2))
        growth = self._growths(float(scales.min()), float(scales.max()))
        return np.asarray(growth(scales)[..., 0] * self._unit(scales))

    def settle(self, variances: FloatArray) -> None:
        """Take over the variances that solve the equations, shape (n, P)."""
        scales = np.maximum(np.sqrt(variances), LEAST_SCALE)
        if self.activation.homogeneous:
            moments = self.activation.moments(1.0)
            self.scales, self.square = scales, float(moments.square) * scales**2
            self.slope_square = np.full_like(scales, float(moments.slope_square))
            return
        # What is far below the rest of its image is not seen in it.
        scales = np.maximum(scales, _FLOOR * scales.max(axis=1, keepdims=True))
        self.scales = scales
        self._at = ScaleTable(self.activation, float(scales.min()), float(scales.max()))
        if self.kind == compiled.SERIES and self.degree is None and self._is_odd():
            self.kind = compiled.ODD
        columns = self._at.stand_in(self._both_moments)(scales)
        self.square = columns[..., 0] * self._unit(scales)
        self.slope_square = columns[..., 1]

    def _is_odd(self) -> bool:
        """Whether all even coefficients are zero, to the last digit of the largest."""
        coefficients = np.abs(self.activation.hermite_coefficients(self._at.nodes(24), _SHORT))
        return bool((coefficients[:, ::2].max(axis=1) <= 1e-16 * coefficients.max(axis=1)).all())

    def _growths(self, low: float, high: float) -> ScaleFunction:
        """Return a stand-in for E φ²; while the equations are solved the range hardly changes."""
        if self._range is None or low < self._range[0] or high > self._range[1]:
            self._range = 0.5 * low, 1.5 * high
            self._growth_table = ScaleTable(self.activation, *self._range).stand_in(self._growth)
        return self._growth_table

    def _unit(self, scales: FloatArray) -> FloatArray:
        return np.asarray((abs(float(self.activation(0.0))) + scales) ** 2)

    def _growth(self, scales: FloatArray) -> FloatArray:
        try:
            squares = np.asarray(self.activation.moments(scales).square)
        except NotIntegrable:  # the iterates have run away
            squares = np.full_like(scales, np.inf)
        return (squares / self._unit(scales))[:, None]

    def _both_moments(self, scales: FloatArray) -> FloatArray:
        moments = self.activation.moments(scales)
        return np.column_stack([moments.square / self._unit(scales), moments.slope_square])

    @property
    def bound(self) -> float:
        """Bound on what the series leave out."""
        usual = SINGLE_BOUND if self.dtype is np.float32 else SERIES_BOUND
        return max(usual, self._tolerated)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the series to try, up to one for ρ = 1 if any length is."""
        if self.kind == compiled.HINGE:
            return (1,)
        if self.degree is not None:
            step = compiled.TERMS_STEP
            return (max(step * -(-(self.degree + 1) // step), 2 * step),)
        for terms in _LENGTHS:
            if self._terms_table(terms)[0, -1, compiled.BINS] > 0:
                break
        return (*(each for each in _LENGTHS if _SHORT <= each < terms), terms)

    def stored(self, attempt: int) -> int:
        """Coefficients that a pixel has in an attempt: the even ones of odd functions are zero."""
        return self.terms(attempt) // (2 if self.kind == compiled.ODD else 1)

    def terms(self, attempt: int) -> int:
        """Length of the series in an attempt; the last one is for all attempts after it."""
        return self.lengths[min(attempt, len(self.lengths) - 1)]

    def table(self, attempt: int) -> IntArray:
        """Terms needed by scales of each level at each |ρ|, shape (2, levels, BINS + 2).

        For the result, and for the first steps towards it.
        """
        terms = self.terms(attempt)
        with self._preparing:
            if terms not in self._tables:
                self._tables[terms] = self._terms_table(terms)
        return self._tables[terms]

    def _terms_table(self, terms: int) -> IntArray:
        """By Parseval, as `samples.terms_table`; the worst over the scales of a level and below."""
        table = np.full((2, _LEVELS, compiled.BINS + 2), terms, dtype=np.int64)
        if self.degree is not None or self.kind == compiled.HINGE:
            return table
        scales = np.sort(np.append(self._at.nodes(_NODES[1]), self.levels))
        coefficients = self.activation.hermite_coefficients(scales, terms)
        moments = self.activation.moments(scales)
        order, powers = np.arange(terms), np.arange(terms + 1)
        left_over = np.ones((2, len(scales), terms + 1))
        for row, (energy, total) in enumerate(
            (
                (coefficients**2, moments.square),
                (coefficients**2 * order / scales[:, None] ** 2, moments.slope_square),
            )
        ):
            share = np.cumsum(energy, axis=1) / np.maximum(total, 1e-300)[:, None]
            left_over[row, :, 1:] = np.maximum(1.0 - share, 1e-15)
        rho = (np.arange(compiled.BINS + 1) / compiled.BINS)[:, None]
        decay = rho**powers
        slower = np.column_stack([decay[:, :1], decay[:, :-1]])  # a slope has one factor ρ less
        single = self.dtype is np.float32
        bounds = (SINGLE_BOUND, _SINGLE_ROUGH) if single else (SERIES_BOUND, _ROUGH)
        for level, top in enumerate(self.levels):
            value, slope = left_over[:, scales <= top].max(axis=1)
            bound = np.maximum(decay * value, slower * slope)
            for row, accepted in enumerate(bounds):
                enough = (bound <= accepted) & (powers > 0) & (powers % compiled.TERMS_STEP == 0)
                needed = np.where(enough.any(axis=1), enough.argmax(axis=1), terms if row else -1)
                if terms in _TOLERATED and row == 0:
                    # All terms there are, at steep scales and near ρ = 1, if they do well enough.
                    rest = bound[:, terms]
                    tolerated = (needed < 0) & (rest <= _TOLERATED[terms])
                    largest = float(rest[tolerated].max(initial=0.0))
                    self._tolerated = max(self._tolerated, largest)
                    needed[tolerated] = terms
                table[row, level, : compiled.BINS + 1] = needed
        if self.kind == compiled.ODD:
            step = compiled.TERMS_STEP
            table = np.where(table > 0, step * -(-table // (2 * step)), table)
        return table

    @cached_property
    def levels(self) -> FloatArray:
        """Upper ends of the classes of scales."""
        return np.asarray(self.scales.max() * np.arange(1, _LEVELS + 1) / _LEVELS)

    def has_room(self, attempt: int) -> bool:
        """Whether the coefficients of all images fit into an eighth of the free memory."""
        size = np.dtype(self.dtype).itemsize * self.scales.size * self.stored(attempt)
        return size <= checks.available_memory() // 8

    def coefficients(self, rows: slice, attempt: int) -> NDArray[Any]:
        """Hermite coefficients of some images, shape (rows, P, terms); kept if there is room."""
        if self.kind == compiled.HINGE:
            return np.zeros((*self.scales[rows].shape, 1), self.dtype)
        terms = self.terms(attempt)
        with self._preparing:
            if terms not in self._relative:
                self._relative[terms] = self._stand_in(terms)
            if terms not in self._kept and self.has_room(attempt):
                self._kept[terms] = self._evaluated_all(attempt)
        if terms in self._kept:
            return self._kept[terms][rows]
        scales = self.scales[rows]
        values = np.empty((*scales.shape, self.stored(attempt)), self.dtype)
        self._evaluate(scales, terms, values)
        return values

    def _evaluated_all(self, attempt: int) -> NDArray[Any]:
        """Coefficients of all images, on all threads."""
        values = np.empty((*self.scales.shape, self.stored(attempt)), self.dtype)
        parts = [slice(start, start + _IMAGES) for start in range(0, len(values), _IMAGES)]

        def fill(part: slice) -> None:
            self._evaluate(self.scales[part], self.terms(attempt), values[part])

        list(map_threads(fill, parts))
        return values

    def _evaluate(self, scales: FloatArray, terms: int, out: NDArray[Any]) -> None:
        """Put Hermite coefficients at scales (rows, P) into `out`, a few images at a time."""
        for start in range(0, len(scales), _IMAGES):
            part = scales[start : start + _IMAGES]
            values = self._relative[terms](part)
            np.multiply(
                values, np.sqrt(self._unit(part))[..., None], out=out[start : start + _IMAGES],
                casting="same_kind",
            )  # fmt: skip

    def _stand_in(self, terms: int) -> ScaleFunction:
        def relative(tau: FloatArray) -> FloatArray:
            values = self.activation.hermite_coefficients(tau, terms)
            if self.kind == compiled.ODD:
                values = values[:, 1::2]
            return np.asarray(values / np.sqrt(self._unit(tau))[:, None])

        return self._at.stand_in(relative)

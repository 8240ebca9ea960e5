"""Kernels of convolutional models on images, tile by tile.

A pair of images has as many unknowns as pixels.  For the read-out "flatten" only equal positions
(s, s) matter.  Pooled read-outs need positions (s, s + d) as well, and the convolution mixes only
those of one offset d: each offset is a problem of its own, of the same form.  With circular padding
it is that of the second image moved by d; with zeros beyond the border, that of the two parts of
the images that overlap.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation, Centred, PiecewiseLinear
from notsodeep.activations.gaussian_pairs import LEAST_SCALE, standardised_pairs
from notsodeep.activations.polynomial import AbstractPolynomial
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotConverged, NotIntegrable, TheoryDoubtful
from notsodeep.kernels import convolution_compiled as compiled
from notsodeep.kernels.plan import Explanation, Tile
from notsodeep.kernels.samples import SampleColumns
from notsodeep.kernels.single_pairs import feature_rest
from notsodeep.models import Convention
from notsodeep.models.convolutional import LEAST_PIXEL, ConvolutionalModel
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series
from notsodeep.threads import map_threads, thread_count

ScaleFunction = Callable[[FloatArray], FloatArray]
logger = logging.getLogger("notsodeep.kernels")

SIDE = 64
"""Side of a square tile: 4096 pairs of images, which take some tenths of a second."""

SERIES_BOUND = 1e-14
"""Bound on what a series leaves out, relative to √(E φ²(u) E φ²(v)), and likewise for φ′."""

_LENGTHS = (24, 48, 96, 192, 384)  # of the series; the first that does at ρ = 1, or the last
_ROUGH = 1e-8  # the same for the first steps of Newton's method, which are not that near
_TOLERATED = 1e-9  # remainder of the longest series that is better than single pairs, hours long
_LEVELS = 8  # classes of scales that have tables of terms of their own
_SHORT = 48  # terms to begin with
_COEFFICIENTS = 1 << 27  # bytes of Hermite coefficients that a tile may hold
_FLOOR = 1e-8  # scales below this share of an image's largest count as that: no entry sees it
_BEND = 0.05  # tables over scales are even in log(τ + this·min(1, largest scale))
_NODES = (24, 48, 96, 192)
_RESOLVED = 1e-14
_SWEEPS = 20_000
_STEPS = 60  # of Newton's method
_CAREFUL = 64  # pairs done one by one at a time
_WORTH_A_PROBE = 10**9  # pairs of pixels: a minute or more
_LONG = 600.0  # seconds from which a run is announced


def window_mean(values: FloatArray, size: int, padding: str) -> FloatArray:
    """Average the last two axes over size × size windows: M of docs/convolutions.md.

    Beyond the border are the opposite side or zeros, which count in the mean.
    """
    for axis in (-2, -1):
        length = values.shape[axis]
        total = values.copy()
        moved = np.moveaxis(values, axis, -1)
        result = np.moveaxis(total, axis, -1)
        for step in range(1, size // 2 + 1):
            if padding == "circular":
                result += np.roll(moved, step, -1) + np.roll(moved, -step, -1)
            elif step < length:
                result[..., step:] += moved[..., :-step]
                result[..., :-step] += moved[..., step:]
        values = total / size
    return values


@dataclass(frozen=True)
class Offset:
    """Positions (s, s + d) of one offset d, on the rectangle where both are.

    Attributes
    ----------
    height, width : int
    index1, index2 : ndarray of shape (height·width,)
        s and s + d as pixels of the images.
    shares : ndarray of shape (height·width,)
        Weights of the positions in the read-out.
    """

    height: int
    width: int
    index1: IntArray
    index2: IntArray
    shares: FloatArray

    @property
    def is_zero(self) -> bool:
        """Whether the positions are equal."""
        return bool((self.index1 == self.index2).all())


def offsets(model: ConvolutionalModel) -> list[Offset]:
    """List the offsets that the read-out of a model sees, the zero offset first."""
    height, width = model.grid
    pixels = np.arange(height * width).reshape(height, width)
    circular = model.padding == "circular"
    if model.pooling == "flatten":
        window = (1, 1)
    elif model.pooling == "average":
        window = (height, width)
    else:
        window = (int(model.pooling), int(model.pooling))
    found: dict[tuple[int, int], FloatArray] = {}
    for down in range(1 - window[0], window[0]):
        for right in range(1 - window[1], window[1]):
            step = (down, right)
            if circular:
                # Every window holds as many such positions; an offset and its complement are one.
                count = (window[0] - abs(down)) * (window[1] - abs(right))
                step = (down % height, right % width)
                share = np.full((height, width), count / (window[0] * window[1]) ** 2 / pixels.size)
            else:
                share = _window_counts(height, window[0], down)[:, None] * _window_counts(
                    width, window[1], right
                )
            found[step] = found[step] + share if step in found else share
    result = []
    for (down, right), share in sorted(found.items(), key=lambda item: item[0] != (0, 0)):
        if circular:
            one, two = pixels, np.roll(pixels, (-down, -right), (0, 1))
        else:
            rows, columns = _overlap(height, down), _overlap(width, right)
            one, two = pixels[rows[0], columns[0]], pixels[rows[1], columns[1]]
        result.append(Offset(*one.shape, one.ravel(), two.ravel(), share.ravel()))
    return result


def _overlap(length: int, step: int) -> tuple[slice, slice]:
    """Places s and s + step that are both inside."""
    low, high = max(0, -step), length - max(0, step)
    return slice(low, high), slice(low + step, high + step)


def _window_counts(length: int, window: int, step: int) -> FloatArray:
    """Share of each s in the mean over windows inside of (1/window²) Σ over (s, s + step)."""
    places = np.arange(length)[_overlap(length, step)[0]]
    low, high = np.minimum(places, places + step), np.maximum(places, places + step)
    windows = length - window + 1
    count = np.minimum(low, windows - 1) - np.maximum(high - window + 1, 0) + 1
    return np.asarray(np.maximum(count, 0) / (windows * window**2))


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
                x = (np.log(flat + self._bend) - self._middle) / self._half
                values = compiled.clenshaw(series, np.clip(x, -1.0, 1.0))
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
    kind, both, cross
        As in `kernels.samples.Layer`; centring plays no role for distances.
    scales, square, slope_square : ndarray of shape (n, P)
        √q, E φ² and E φ′² at each pixel.
    """

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        base = activation.base if isinstance(activation, Centred) else activation
        self.kind, self.both, self.cross = compiled.SERIES, 0.0, 0.0
        if isinstance(base, PiecewiseLinear) and base.homogeneous and base.kinks:
            right, left = base.slopes[-1], base.slopes[0]
            self.kind = compiled.HINGE
            self.both, self.cross = right**2 + left**2, 2.0 * right * left
        self.degree = base.degree if isinstance(base, AbstractPolynomial) else None
        self.bound = SERIES_BOUND
        self._preparing = threading.RLock()
        self._tables: dict[int, IntArray] = {}
        self._relative: dict[int, ScaleFunction] = {}
        self._kept: dict[int, FloatArray] = {}
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
        for level, top in enumerate(self.levels):
            value, slope = left_over[:, scales <= top].max(axis=1)
            bound = np.maximum(rho**powers * value, rho ** np.maximum(powers - 1, 0) * slope)
            for row, accepted in enumerate((SERIES_BOUND, _ROUGH)):
                enough = (bound <= accepted) & (powers > 0) & (powers % compiled.TERMS_STEP == 0)
                needed = np.where(enough.any(axis=1), enough.argmax(axis=1), terms if row else -1)
                if terms == _LENGTHS[-1] and row == 0:
                    # All terms there are, at steep scales and near ρ = 1, if they do well enough.
                    rest = bound[:, terms]
                    tolerated = (needed < 0) & (rest <= _TOLERATED)
                    self.bound = max(self.bound, float(rest[tolerated].max(initial=0.0)))
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
        return 8 * self.scales.size * self.stored(attempt) <= checks.available_memory() // 8

    def coefficients(self, rows: slice, attempt: int) -> FloatArray:
        """Hermite coefficients of some images, shape (rows, P, terms); kept if there is room."""
        if self.kind == compiled.HINGE:
            return np.zeros((*self.scales[rows].shape, 1))
        terms = self.terms(attempt)
        with self._preparing:
            if terms not in self._relative:
                self._relative[terms] = self._stand_in(terms)
            if terms not in self._kept and self.has_room(attempt):
                self._kept[terms] = self._evaluated_all(attempt)
        if terms in self._kept:
            return self._kept[terms][rows]
        return self._evaluated(self.scales[rows], terms)

    def _evaluated_all(self, attempt: int) -> FloatArray:
        """Coefficients of all images, on all threads."""
        values = np.empty((*self.scales.shape, self.stored(attempt)))
        parts = [slice(start, start + SIDE) for start in range(0, len(values), SIDE)]

        def fill(part: slice) -> None:
            values[part] = self._evaluated(self.scales[part], self.terms(attempt))

        list(map_threads(fill, parts))
        return values

    def _evaluated(self, scales: FloatArray, terms: int) -> FloatArray:
        values = self._relative[terms](scales)
        values *= np.sqrt(self._unit(scales))[..., None]
        return values

    def _stand_in(self, terms: int) -> ScaleFunction:
        def relative(tau: FloatArray) -> FloatArray:
            values = self.activation.hermite_coefficients(tau, terms)
            if self.kind == compiled.ODD:
                values = values[:, 1::2]
            return np.asarray(values / np.sqrt(self._unit(tau))[:, None])

        return self._at.stand_in(relative)


class ConvolutionPlan:
    """A convolutional model between images X and Y (or X and itself), ready to deliver tiles.

    The same interface as `kernels.plan.Plan`.

    Parameters
    ----------
    model : ConvolutionalModel
    X, Y : ndarray of shape (n, features), (m, features)
        Without Y the kernel is symmetric.
    convention : {"preactivation", "feature"}
        Concerns equilibrium models only: explicit networks have features.
    """

    def __init__(
        self,
        model: ConvolutionalModel,
        X: FloatArray,
        Y: FloatArray | None,
        convention: Convention,
    ) -> None:
        self.model, self.X, self.Y, self.convention = model, X, Y, convention
        self._split = len(X)
        images = model.images(X if Y is None else np.concatenate([X, Y]))
        self._feature = convention == "feature" or not self._closed
        self._offsets = offsets(model)
        self._pixels, self._spread = _injected(model, images)
        self._layers = [PixelLayer(layer.activation) for layer in model.cell]
        self._solve_variances()
        self._require_stable()
        self._counting = threading.Lock()
        series = any(layer.kind != compiled.HINGE for layer in self._layers)
        height, width = model.grid
        reason = f"{height} × {width} pixels, {len(self._offsets)} offsets"
        self.explanation = Explanation("series" if series else "hinge", reason)

    @classmethod
    def checked(
        cls,
        model: ConvolutionalModel,
        X: ArrayLike,
        Y: ArrayLike | None,
        convention: Convention,
        owner: str,
    ) -> ConvolutionPlan:
        """Check everything a user may have got wrong, then make the plan."""
        checks.known_name(convention, get_args(Convention), f"convention of {owner}")
        left, right = (
            None if rows is None else model.rows(rows, name, owner)
            for rows, name in ((X, "X"), (Y, "Y"))
        )
        assert left is not None
        checks.kernel_resolved(left, right, owner)
        plan = cls(model, left, right, convention)
        plan._warn_of_small_pixels()
        if plan.work > _WORTH_A_PROBE:
            seconds = plan.estimated_seconds()
            if seconds > _LONG:
                logger.warning(
                    "The kernels of the %s on %d × %d images will take about %s.",
                    model, *plan.shape, duration(seconds),
                )  # fmt: skip
        return plan

    def _warn_of_small_pixels(self) -> None:
        """Warn where pixels are so small that an activation is as good as linear."""
        square = self.model.pixel_scale(self.X) ** 2
        linear = all(layer.activation.homogeneous for layer in self.model.cell)
        if 0.0 < square < LEAST_PIXEL and not linear:
            warnings.warn(
                f"The pixels of X have a mean squared norm of {square:.3g}: the {self.model} is as "
                "good as linear there. Scale the images with preprocessing='pixels'.",
                TheoryDoubtful,
                stacklevel=5,
            )

    @property
    def _closed(self) -> bool:
        """Whether the first layer reads the last."""
        return self.model.cell[0].weight > 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the kernel."""
        return self._split, self._split if self.Y is None else len(self.Y)

    @property
    def work(self) -> int:
        """Pairs of pixels, which is what the time is proportional to."""
        n, m = self.shape
        pixels = sum(len(offset.index1) for offset in self._offsets)
        return n * m * pixels // (2 if self.Y is None else 1)

    def estimated_seconds(self) -> float:
        """Estimate the time of the whole kernel from some pairs, on the threads there are."""
        n, m = self.shape
        rows, columns = slice(0, min(n, 4)), slice(0, min(m, SIDE))
        block = _Block(self, rows, columns)
        first = np.zeros(rows.stop, dtype=np.int64)
        block.solve(self._offsets[0], first)  # compiled code is loaded
        start = time.thread_time()  # of this thread alone: the machine may have other work
        block.solve(self._offsets[0], first)
        seconds = time.thread_time() - start
        pixels = rows.stop * columns.stop * len(self._offsets[0].index1)
        return seconds / pixels * self.work / thread_count()

    # --- every image by itself --------------------------------------------------------------------

    def _mean(self, values: FloatArray, layer: int) -> FloatArray:
        """M of a layer on arrays of shape (n, P)."""
        height, width = self.model.grid
        size, padding = self.model.cell[layer].size, self.model.padding
        grid = values.reshape(-1, height, width)
        return window_mean(grid, size, padding).reshape(values.shape)

    def _solve_variances(self) -> None:
        """Solve q_l = w_l M v_{l−1} + u_l M|x|² + b_l, v_l = E φ_l²(√q_l ξ), at every pixel."""
        cell = self.model.cell
        norms = np.einsum("anpc,anpc->anp", self._pixels, self._pixels)
        drives = []
        for index, layer in enumerate(cell):
            norm = self._mean(norms[0], index) if self._spread else norms[index]
            drives.append(layer.inject * norm + layer.bias)

        def turn(state: FloatArray) -> list[FloatArray]:
            variances = []
            for index, layer in enumerate(cell):
                recurrent = layer.weight * self._mean(state, index) if layer.weight > 0.0 else 0.0
                variances.append(drives[index] + recurrent)
                state = self._layers[index].squares(variances[-1])
            return [*variances, state]

        state = np.zeros_like(drives[0])
        previous = np.inf
        for _ in range(_SWEEPS):
            image = turn(state)[-1]
            largest = float(image.max(initial=0.0))
            if not largest < 1e200:
                break
            # Relative to each image: a dark one has digits of its own.
            scale = np.maximum(image.max(axis=1, keepdims=True), 1e-300)
            step = float((np.abs(image - state) / scale).max())
            state = image
            if step <= 1e-16 or not self._closed or (step <= 1e-14 and step >= 0.5 * previous):
                for pixels, variance in zip(self._layers, turn(state), strict=False):
                    pixels.settle(variance)
                return
            previous = step
        raise NotConverged(
            f"The variances of the {self.model} were not found: they grow without bound, or "
            "converge too slowly. Smaller weights make them contract."
        )

    def _turn(self, values: FloatArray, chosen: slice | IntArray = slice(None)) -> FloatArray:
        """Carry values of the first layer once around the ring: w M χ … w M χ values."""
        cell = self.model.cell
        for index, layer in enumerate(self._layers):
            onto = (index + 1) % len(cell)
            slopes = layer.slope_square[chosen]
            values = cell[onto].weight * self._mean(slopes * values, onto)
        return values

    def _require_stable(self) -> None:
        """Reject images at which the spectral radius of w M E φ′² is one or more.

        There the equilibrium repels, and the kernel is that of no network.  The largest quotient
        bounds the radius of a non-negative operator from above, the smallest from below.
        """
        if not self._closed:
            return
        values = np.ones_like(self._layers[0].scales)
        for _ in range(500):
            image = self._turn(values)
            quotient = image / values
            if quotient.max() < 1.0:
                return
            if quotient.min(axis=1).max() >= 1.0:
                break
            values = np.maximum(image / image.max(axis=1, keepdims=True), 1e-12)
        radius = float(quotient.max())
        raise NotConverged(
            f"The {self.model} has no stable equilibrium for some of the images, and so no kernel: "
            f"the spectral radius of weight·M·E φ′² reaches {radius:.4g} and must stay below 1. "
            "Use smaller weights."
        )

    def diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of every row of X with itself."""
        return self._diagonal

    @cached_property
    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        """The zero offset, where correlations are one, by its own formula; the others as pairs."""
        own = slice(0, self._split)
        values, tangents = self._own_pixels(own)
        shares = self._offsets[0].shares
        first = values @ shares, tangents @ shares
        if len(self._offsets) == 1:
            return first
        both = np.stack(first)
        for i in range(self._split):
            block = _Block(self, slice(i, i + 1), slice(i, i + 1))
            for offset in self._offsets[1:]:
                both[:, i] += block.solve(offset, np.zeros(1, dtype=np.int64))[:, 0, 0]
        return both[0], both[1]

    def _own_pixels(self, chosen: slice) -> tuple[FloatArray, FloatArray]:
        """Both kernels of images with themselves, at equal positions; shape (rows, P) each."""
        cell, layers = self.model.cell, self._layers
        variances = [layer.scales[chosen] ** 2 for layer in layers]
        start = tangent = variances[0]
        for _ in range(_SWEEPS):
            chain = start
            for index in range(1, len(cell)):
                slopes = layers[index - 1].slope_square[chosen]
                mean = self._mean(slopes * chain, index)
                chain = variances[index] + cell[index].weight * mean
            if not self._closed:
                break
            slopes = layers[-1].slope_square[chosen]
            image = variances[0] + cell[0].weight * self._mean(slopes * chain, 0)
            step = np.abs(image - start).max()
            start = image
            if step <= 1e-16 * np.abs(image).max():
                break
        tangent = chain
        last = layers[-1]
        if not self._feature:
            return variances[-1], tangent
        value = last.square[chosen]
        return value, value + last.slope_square[chosen] * tangent

    # --- pairs of images --------------------------------------------------------------------------

    def tiles(self, side: int | None = None) -> list[Tile]:
        """Cut the kernel into tiles; of a symmetric one, only what is on and above the diagonal."""
        n, m = self.shape
        for layer in self._layers:
            if layer.has_room(self._first_attempt):  # kept from now on, when all threads are free
                layer.coefficients(slice(0, 0), self._first_attempt)
        side = min(side or SIDE, SIDE)
        rows, columns = (
            [slice(start, min(start + side, length)) for start in range(0, length, side)]
            for length in (n, m)
        )
        if self.Y is None:
            return [Tile(r, c) for i, r in enumerate(rows) for c in rows[i:]]
        return [Tile(r, c) for r in rows for c in columns]

    def tile(self, tile: Tile) -> FloatArray:
        """CK and NTK of a tile, shape (2, rows, columns); symmetric if on the diagonal."""
        both = np.empty((2, *tile.shape))
        upper = self.Y is None and tile.rows == tile.columns
        side = self._block_side
        for top in range(tile.rows.start, tile.rows.stop, side):
            rows = slice(top, min(top + side, tile.rows.stop))
            for start in range(top if upper else tile.columns.start, tile.columns.stop, side):
                columns = slice(start, min(start + side, tile.columns.stop))
                block = self._block(rows, columns)
                place = (_within(rows, tile.rows), _within(columns, tile.columns))
                both[:, place[0], place[1]] = block
                if upper and rows != columns:
                    both[:, place[1], place[0]] = block.transpose(0, 2, 1)
        return both

    @property
    def _block_side(self) -> int:
        """Images on each side of a block, so that Hermite coefficients fit into their budget."""
        terms = sum(layer.stored(self._first_attempt) for layer in self._layers)
        pixels = self.model.grid[0] * self.model.grid[1]
        most = _COEFFICIENTS // (16 * pixels * terms)
        return max(compiled.LANES, min(SIDE, most // compiled.LANES * compiled.LANES))

    @cached_property
    def _first_attempt(self) -> int:
        """Which length of the series to begin with.

        The longest costs no more than others where it is not needed, but memory; without that, by
        some pairs and not by what came before.
        """
        last = self.attempts - 1
        if all(layer.has_room(last) for layer in self._layers):
            return last
        n, m = self.shape
        rows, columns = slice(0, min(n, 4)), slice(max(0, m - 64), m)
        first = np.zeros(rows.stop, dtype=np.int64)
        for attempt in range(last):
            if not _Block(self, rows, columns, attempt).attempt(self._offsets[0], first)[1].any():
                return attempt
        return last

    def _block(self, rows: slice, columns: slice) -> FloatArray:
        """Both kernels of some rows with some columns, all offsets."""
        symmetric = self.Y is None and rows == columns
        prepared = _Block(self, rows, columns)
        count = rows.stop - rows.start
        own = np.arange(count) if symmetric else np.zeros(count, dtype=np.int64)
        # Where ρ = 1 series are long, and the formula of the diagonal is better.
        both = prepared.solve(self._offsets[0], own + 1 if symmetric else own)
        if symmetric:
            shares = self._offsets[0].shares
            diagonal = (kernel @ shares for kernel in self._own_pixels(rows))
            for kernel, values in zip(both, diagonal, strict=True):
                kernel[own, own] = values
        for offset in self._offsets[1:]:
            both += prepared.solve(offset, own)
        if symmetric:
            lower = np.tril_indices(count, -1)
            for kernel in both:
                kernel[lower] = kernel.T[lower]
        return both

    @property
    def attempts(self) -> int:
        """How many lengths of series there are to try."""
        return max(len(layer.lengths) for layer in self._layers)

    def count_careful(self, pairs: int) -> None:
        """Count pairs that were done one by one."""
        with self._counting:
            self.explanation.careful_pairs += pairs

    def beyond(self, offset: Offset, images: slice) -> FloatArray:
        """Return what these images have where an image moved by the offset has nothing.

        q of either image counts all of its own neighbours, the covariance those that both have.
        So V has a part w M v + u M|x|² from the pixels outside the overlap; shape (2, L, n, pixels)
        for the images as first and as second of a pair.  Empty if the padding is circular.
        """
        if self.model.padding == "circular" or offset.is_zero:
            return np.empty((2, 0, 0, 0))
        cell, layers = self.model.cell, self._layers
        found = np.empty((2, len(cell), images.stop - images.start, len(offset.index1)))
        pixels = self._pixels[0, images]
        norms = np.einsum("npc,npc->np", pixels, pixels)
        for side, inside in enumerate((offset.index1, offset.index2)):
            outside = np.ones(norms.shape[1])
            outside[inside] = 0.0
            for index, layer in enumerate(cell):
                mass = layer.weight * layers[index - 1].square[images]
                # Patches that are read with a stride have zeros beyond the border already.
                if self._spread:
                    mass = mass + layer.inject * norms
                found[side, index] = self._mean(mass * outside, index)[:, inside]
        return found

    def report(self) -> None:
        """Log how the kernel was computed."""
        if self.explanation.route == "series":
            lengths = {length for layer in self._layers for length in layer.lengths}
            self.explanation.terms = tuple(sorted(lengths))
            self.explanation.bound = max(layer.bound for layer in self._layers)
        logger.info("%s kernel, %d × %d: %s", self.model, *self.shape, self.explanation)


def duration(seconds: float) -> str:
    """Say a number of seconds in words."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} seconds"


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)


def _injected(model: ConvolutionalModel, images: FloatArray) -> tuple[FloatArray, bool]:
    """Return what the layers read of the images, and whether M is still to be applied to it.

    Without a stride that is the pixels themselves, shape (1, n, P, C); with one, the patches
    p_s/k of every layer, shape (L, n, P, largest k²·C), padded with zeros.
    """
    n, height, width, channels = images.shape
    if model.stride == 1:
        return images.reshape(1, n, height * width, channels), True
    mode = "wrap" if model.padding == "circular" else "constant"
    sizes = [layer.size for layer in model.cell]
    rows, columns = model.grid
    patches = np.zeros((len(sizes), n, rows * columns, max(sizes) ** 2 * channels))
    for index, size in enumerate(sizes):
        reach = size // 2
        around = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode=mode)  # type: ignore[call-overload]
        windows = np.lib.stride_tricks.sliding_window_view(around, (size, size), axis=(1, 2))
        chosen = windows[:, :: model.stride, :: model.stride].reshape(n, rows * columns, -1)
        patches[index, :, :, : chosen.shape[2]] = chosen / size
    return patches, False


class _Block:
    """Some rows with some columns, laid out for the compiled loops."""

    def __init__(
        self,
        plan: ConvolutionPlan,
        rows: slice,
        columns: slice,
        attempt: int | None = None,
    ) -> None:
        self.plan, self._place = plan, (rows, columns)
        self._attempt = plan._first_attempt if attempt is None else attempt
        shift = 0 if plan.Y is None else plan._split
        self.rows = rows
        self.columns = slice(columns.start + shift, columns.stop + shift)
        self.shape = rows.stop - rows.start, columns.stop - columns.start
        layers = plan._layers
        self._x1 = np.ascontiguousarray(plan._pixels[:, rows])
        self._x2 = _columns_last(plan._pixels[:, self.columns], 0.0)
        self._scales1 = np.stack([layer.scales[rows] for layer in layers])
        self._squares1 = np.stack([layer.square[rows] for layer in layers])
        scales2 = np.stack([layer.scales[self.columns] for layer in layers])
        self._scales2 = _columns_last(scales2, 1.0)
        squares2 = np.stack([layer.square[self.columns] for layer in layers])
        self._squares2 = _columns_last(squares2, 1.0)
        left, right = (
            [layer.coefficients(chosen, self._attempt) for layer in layers]
            for chosen in (self.rows, self.columns)
        )
        self._left = left[0] if len(left) == 1 else np.concatenate(left, axis=-1)
        self._right = _strips(right[0] if len(right) == 1 else np.concatenate(right, axis=-1))
        self._starts = np.cumsum([0, *(part.shape[-1] for part in left[:-1])])
        self._tables = np.stack([layer.table(self._attempt) for layer in layers])
        self._levels1, self._levels2 = self._make_levels(scales2)

    def _make_levels(self, scales2: FloatArray) -> tuple[IntArray, IntArray]:
        """Class of the scale of every pixel, and the highest one in every strip of columns."""
        count = self._scales2.shape[-1] // compiled.LANES
        levels1 = np.zeros(self._scales1.shape, dtype=np.int64)
        levels2 = np.zeros((*self._scales2.shape[:-1], count), dtype=np.int64)
        for index, layer in enumerate(self.plan._layers):
            if layer.kind != compiled.HINGE:
                top = len(layer.levels) - 1
                levels1[index] = np.minimum(
                    np.searchsorted(layer.levels, self._scales1[index]), top
                )
                own = np.minimum(np.searchsorted(layer.levels, scales2[index]), top)
                padded = _columns_last(own[None].astype(np.float64), 0.0)[0]
                strips = padded.reshape(len(padded), count, compiled.LANES)
                levels2[index] = strips.max(axis=2).astype(np.int64)
        return levels1, levels2

    def solve(self, offset: Offset, first: IntArray) -> FloatArray:
        """Both kernels, shape (2, rows, columns), as far as one offset contributes to them."""
        both, marked = self.attempt(offset, first)
        if marked.any() and self._attempt + 1 < self.plan.attempts:
            longer = _Block(self.plan, *self._place, self._attempt + 1)
            again = longer.solve(offset, np.where(marked > 0, first, self.shape[1]))
            return np.where(np.isnan(both), again, both)
        if marked.any():
            self._finish(offset, first, both)
        return both

    def attempt(self, offset: Offset, first: IntArray) -> tuple[FloatArray, IntArray]:
        """Both kernels by series of one length, and how many pairs of each row were marked."""
        plan, cell = self.plan, self.plan.model.cell
        width = self._scales2.shape[-1]
        both = np.zeros((2, self.shape[0], width))
        extra1 = plan.beyond(offset, self.rows)[0]
        extra2 = _columns_last(plan.beyond(offset, self.columns)[1], 0.0)
        marked = np.zeros(self.shape[0], dtype=np.int64)
        compiled.solve_pairs(
            both[0], both[1], first, offset.height, offset.width, plan.model.padding == "circular",
            offset.index1, offset.index2, offset.shares,
            np.array([layer.weight for layer in cell]),
            np.array([layer.inject for layer in cell]),
            np.array([layer.size for layer in cell]),
            np.array([layer.kind for layer in plan._layers]),
            np.array([layer.both for layer in plan._layers]),
            np.array([layer.cross for layer in plan._layers]),
            self._x1, self._x2, plan._spread, extra1, extra2, self._scales1, self._scales2,
            self._squares1, self._squares2, self._left, self._right, self._starts, self._tables,
            self._levels1, self._levels2, plan._feature, marked,
        )  # fmt: skip
        return both[:, :, : self.shape[1]], marked

    def _finish(self, offset: Offset, first: IntArray, both: FloatArray) -> None:
        """Do the pairs that the compiled loops have marked, by closed forms or quadrature."""
        wanted = np.arange(self.shape[1]) >= first[:, None]
        rows, columns = np.nonzero(np.isnan(both[0]) & wanted)
        for start in range(0, len(rows), _CAREFUL):
            here = rows[start : start + _CAREFUL], columns[start : start + _CAREFUL]
            both[:, here[0], here[1]] = careful_pairs(
                self.plan, offset, here[0] + self.rows.start, here[1] + self.columns.start
            )
        self.plan.count_careful(len(rows))


def _columns_last(values: FloatArray, padding: float) -> FloatArray:
    """Move images, the second axis, to the end, and fill up the last strip."""
    moved = np.moveaxis(values, 1, -1)
    lanes = compiled.LANES
    wide = np.full((*moved.shape[:-1], lanes * -(-moved.shape[-1] // lanes)), padding)
    wide[..., : moved.shape[-1]] = moved
    return wide


def _strips(values: FloatArray) -> FloatArray:
    """Put images (n, P, K) into strips, (strips, P, K, lanes), on the boundaries of cache lines."""
    lanes = compiled.LANES
    shape = (-(-len(values) // lanes), *values.shape[1:], lanes)
    space = np.empty(int(np.prod(shape)) + lanes)
    start = -(space.ctypes.data // space.itemsize) % lanes
    result = space[start : start + space.size - lanes].reshape(shape)
    compiled.fill_strips(result, values)
    return result


def careful_pairs(
    plan: ConvolutionPlan, offset: Offset, rows: IntArray, columns: IntArray
) -> FloatArray:
    """Both kernels of single pairs of images, without compiled loops; shape (2, pairs).

    The same equations as in `convolution_compiled`, with expectations by `standardised_pairs` and
    `feature_rest`: for activations whose series converges too slowly.
    """
    model, layers = plan.model, plan._layers
    cell, last = model.cell, len(model.cell) - 1
    one = [_columns_at(layer, rows, offset.index1) for layer in layers]
    two = [_columns_at(layer, columns, offset.index2) for layer in layers]

    def mean(values: FloatArray, layer: int) -> FloatArray:
        grid = values.reshape(-1, offset.height, offset.width)
        return window_mean(grid, cell[layer].size, model.padding).reshape(values.shape)

    def evaluate(V: FloatArray, index: int) -> tuple[FloatArray, FloatArray]:
        a, b = one[index], two[index]
        activation = layers[index].activation
        far = (V.ravel() - (a.scales - b.scales) ** 2) / (2.0 * a.scales * b.scales)
        far = np.clip(far, 0.0, 2.0)
        rho, rest = 1.0 - far, np.minimum(far, 2.0 - far)
        pairs = standardised_pairs(activation, a.scales, b.scales, rho, rest)
        root1, root2 = np.sqrt(a.square), np.sqrt(b.square)
        distance = a.square + b.square - 2.0 * pairs.value
        near = (rest < 1e-6) & (rho > 0.0)
        if activation.kinks and near.any():
            deficit = feature_rest(
                activation, a.take(near), b.take(near), rho[near], rest[near], pairs.value[near]
            )
            apart = (root1 - root2)[near] ** 2
            distance[near] = apart + 2.0 * (root1 * root2)[near] * deficit
        return distance.reshape(V.shape), pairs.derivative.reshape(V.shape)

    def around(given: list[FloatArray], slopes: list[FloatArray]) -> list[FloatArray]:
        """Solve x_l = given_l + w_l M(D_{l−1} ∘ x_{l−1}) by plain sweeps."""
        solution = given
        for _ in range(_SWEEPS):
            before = solution[0]
            solution = [
                given[0] + cell[0].weight * mean(slopes[-1] * solution[-1], 0),
                *solution[1:],
            ]
            for index in range(1, len(cell)):
                read = slopes[index - 1] * solution[index - 1]
                solution[index] = given[index] + cell[index].weight * mean(read, index)
            if np.abs(solution[0] - before).max() <= 1e-16 * np.abs(given[0]).max():
                break
        return solution

    apart = []
    for read in plan._pixels:
        difference = read[rows[:, None], offset.index1] - read[columns[:, None], offset.index2]
        apart.append(np.einsum("npc,npc->np", difference, difference))
    sources = [
        layer.inject * (mean(apart[0], index) if plan._spread else apart[index])
        for index, layer in enumerate(cell)
    ]
    everything = slice(0, len(layers[0].scales))
    first, second = plan.beyond(offset, everything)
    if first.size:
        sources = [
            source + first[index, rows] + second[index, columns]
            for index, source in enumerate(sources)
        ]
    total = [
        (a.scales**2 + b.scales**2).reshape(sources[0].shape) for a, b in zip(one, two, strict=True)
    ]
    V: list[FloatArray] = [total[0] if plan._closed else sources[0], *sources[1:]]
    scale = np.maximum(np.max([part.max() for part in total]), 1e-300)
    for _ in range(_STEPS):
        distances: list[FloatArray] = []
        slopes: list[FloatArray] = []
        for index in range(len(cell)):
            if index:
                V[index] = sources[index] + cell[index].weight * mean(distances[-1], index)
            distance, slope = evaluate(V[index], index)
            distances.append(distance)
            slopes.append(slope)
        if not plan._closed:
            break
        gap = sources[0] + cell[0].weight * mean(distances[-1], 0) - V[0]
        if np.abs(gap).max() <= compiled.RESIDUAL * scale:
            break
        nothing = np.zeros_like(gap)
        V[0] = V[0] + around([gap, *[nothing] * last], slopes)[0]
    else:
        raise NotConverged(
            f"Pairs of images of the {model} did not converge: the residual is "
            f"{np.abs(gap).max() / scale:.3g} of the largest variance. Use smaller weights."
        )
    full = [0.5 * (both - distance) for both, distance in zip(total, V, strict=True)]
    tangent = around(full, slopes)[-1]
    if not plan._feature:
        return np.stack([full[-1] @ offset.shares, tangent @ offset.shares])
    squares = (one[last].square + two[last].square).reshape(tangent.shape)
    value = 0.5 * (squares - distances[-1])
    return np.stack([value @ offset.shares, (value + slopes[-1] * tangent) @ offset.shares])


def _columns_at(layer: PixelLayer, images: IntArray, pixels: IntArray) -> SampleColumns:
    """Moments of an activation at some pixels of some images, flat."""
    place = images[:, None], pixels
    scales, square, slope_square = (
        values[place].ravel() for values in (layer.scales, layer.square, layer.slope_square)
    )
    # The mean matters for centred activations that are nearly equal, and is cheap for few pairs.
    different, where = np.unique(scales, return_inverse=True)
    mean = np.asarray(layer.activation.moments(different).mean)[where]
    return SampleColumns(scales, mean, square, slope_square)

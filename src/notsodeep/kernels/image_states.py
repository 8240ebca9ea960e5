"""What each image brings to every pair: variances at all pixels, moments and series there.

Images have very many pixels, each with a scale √q of its own, so that functions of the scale are
tabulated once and read off for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.activations.polynomial import Polynomial
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotIntegrable
from notsodeep.kernels import image_loops as loops
from notsodeep.kernels.careful import PairLayer, SampleMoments
from notsodeep.kernels.offsets import Offset, window_mean
from notsodeep.kernels.ring import Ring, hinge_of
from notsodeep.models import ConvolutionalModel
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series
from notsodeep.threads import map_threads

ScaleFunction = Callable[[FloatArray], FloatArray]

SERIES_BOUND = 1e-14
"""Bound on what a series leaves out, relative to √(E φ²(u) E φ²(v)), and likewise for φ′."""

MAX_SWEEPS = 20_000
"""Most sweeps of an iteration that contracts at every image that is accepted."""

_LENGTHS = (24, 48, 96, 192, 384, 768)  # of the series; the first that does at ρ = 1, or the last
_ROUGH = 1e-8  # the same bound for the first steps of Newton's method, which are not that near
# Remainders of long series that are better than twice the memory, or than single pairs, hours long.
_TOLERATED = {384: 1e-9, 768: 1e-8}
_LEVELS = 8  # classes of scales that have tables of terms of their own
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

    def __init__(self, low: float, high: float) -> None:
        self._bend = _BEND * min(1.0, high)
        ends = np.log(np.array([low, high * (1.0 + 1e-12)]) + self._bend)
        self._middle, self._half = float(ends.mean()), 0.5 * float(ends[1] - ends[0])
        self.high = high

    def interpolant(self, function: ScaleFunction) -> ScaleFunction:
        """Return a cheap form of `function`, which maps scales (n,) to values (n, columns).

        It takes scales of any shape and agrees with `function` to 1e-14 of the largest value.
        """
        series = self._fit(function) if self._half > 0.0 else None

        def evaluate(scales: FloatArray) -> FloatArray:
            flat = scales.ravel()
            if series is None or flat.size <= _NODES[-1]:
                different, position = np.unique(flat, return_inverse=True)
                values = function(different)[position]
            else:
                x = np.clip((np.log(flat + self._bend) - self._middle) / self._half, -1.0, 1.0)
                if series.shape[1] > _FEW_FUNCTIONS:
                    values = chebvander(x, len(series) - 1) @ series
                else:
                    values = np.stack([loops.clenshaw(each, x) for each in series.T.copy()], 1)
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
    hinge : Hinge or None
    odd, near, rough : bool
        As in `image_loops.Layers`.
    scales, square, slope_square : ndarray of shape (n, P)
        √q, E φ² and E φ′² at each pixel.
    terms : int
        Length of the series.
    """

    def __init__(self, activation: Activation, ring: Ring) -> None:
        self.activation, self.hinge = activation, hinge_of(activation)
        base = activation.uncentred
        self._degree = base.degree if isinstance(base, Polynomial) else None
        kinked = any(layer.activation.kinks for layer in ring.layers)
        self.near = kinked and self.hinge is None and not activation.kinks
        self.odd, self.rough, self.terms = False, False, 1
        self._preparing = threading.RLock()
        self._relative: ScaleFunction | None = None
        self._kept: FloatArray | None = None
        self._range: tuple[float, float] | None = None

    def squares(self, variances: FloatArray) -> FloatArray:
        """E φ²(√q ξ) for variances q of any shape."""
        if self.activation.homogeneous:
            return np.asarray(float(np.asarray(self.activation.moments(1.0).square)) * variances)
        scales = np.sqrt(np.maximum(variances, LEAST_SCALE**2))
        low, high = float(scales.min()), float(scales.max())
        # While the equations are solved the range hardly changes.
        if self._range is None or low < self._range[0] or high > self._range[1]:
            self._range = 0.5 * low, 1.5 * high
            self._growths = ScaleTable(*self._range).interpolant(self._growth)
        return np.asarray(self._growths(scales)[..., 0] * self._unit(scales))

    def settle(self, variances: FloatArray) -> None:
        """Take over the variances that solve the equations, shape (n, P)."""
        scales = np.maximum(np.sqrt(variances), LEAST_SCALE)
        if self.activation.homogeneous:
            moments = self.activation.moments(1.0)
            self.scales, self.square = scales, float(np.asarray(moments.square)) * scales**2
            self.slope_square = np.full_like(scales, float(np.asarray(moments.slope_square)))
            if self.hinge is not None:
                return
        else:
            # What is far below the rest of its image is not seen in it.
            scales = np.maximum(scales, _FLOOR * scales.max(axis=1, keepdims=True))
        self.scales = scales
        self._at = ScaleTable(float(scales.min()), float(scales.max()))
        columns = self._at.interpolant(self._both_moments)(scales)
        self.square = columns[..., 0] * self._unit(scales)
        self.slope_square = columns[..., 1]
        if self.hinge is None:
            self._choose_series()

    def _choose_series(self) -> None:
        """Take the first length that does at ρ = 1, if any does."""
        if self._degree is not None:
            step = loops.TERMS_STEP
            self.terms = max(step * -(-(self._degree + 1) // step), 2 * step)
            self.table = np.full((2, _LEVELS, loops.BINS + 2), self.terms, dtype=np.int64)
            return
        coefficients = np.abs(self.activation.hermite_coefficients(self._at.nodes(24), 48))
        even = coefficients[:, ::2].max(axis=1)
        self.odd = bool((even <= 1e-16 * coefficients.max(axis=1)).all())
        for self.terms in _LENGTHS:
            self.table = self._terms_table(self.terms)
            if self.table[0, -1, loops.BINS] > 0:
                break

    def _unit(self, scales: FloatArray) -> FloatArray:
        return np.asarray((abs(float(self.activation(0.0))) + scales) ** 2)

    def _growth(self, scales: FloatArray) -> FloatArray:
        try:
            squares = np.asarray(self.activation.moments(scales).square)
        except NotIntegrable:  # the iterates have diverged
            squares = np.full_like(scales, np.inf)
        return (squares / self._unit(scales))[:, None]

    def _both_moments(self, scales: FloatArray) -> FloatArray:
        moments = self.activation.moments(scales)
        return np.column_stack([moments.square / self._unit(scales), moments.slope_square])

    @property
    def stored(self) -> int:
        """Coefficients that a pixel has: the even ones of odd functions are zero."""
        return self.terms // (2 if self.odd else 1)

    @property
    def levels(self) -> FloatArray:
        """Upper ends of the classes of scales."""
        return np.asarray(self.scales.max() * np.arange(1, _LEVELS + 1) / _LEVELS)

    def _terms_table(self, terms: int) -> IntArray:
        """Terms needed by scales of each level at each |ρ|, shape (2, levels, BINS + 2).

        For the result, and for the first steps towards it.  By Parseval, as `states.terms_table`;
        the worst over the scales of a level and below.
        """
        table = np.full((2, _LEVELS, loops.BINS + 2), terms, dtype=np.int64)
        scales = np.sort(np.append(self._at.nodes(_NODES[1]), self.levels))
        coefficients = self.activation.hermite_coefficients(scales, terms)
        moments = self.activation.moments(scales)
        slopes = coefficients**2 * np.arange(terms) / scales[:, None] ** 2
        powers = np.arange(terms + 1)
        left_over = np.ones((2, len(scales), terms + 1))
        for row, (energy, total) in enumerate(
            ((coefficients**2, moments.square), (slopes, moments.slope_square))
        ):
            share = np.cumsum(energy, axis=1) / np.maximum(total, 1e-300)[:, None]
            left_over[row, :, 1:] = np.maximum(1.0 - share, 1e-15)
        decay = (np.arange(loops.BINS + 1) / loops.BINS)[:, None] ** powers
        slower = np.column_stack([decay[:, :1], decay[:, :-1]])  # a slope has one factor ρ less
        self.rough = False
        for level, top in enumerate(self.levels):
            value, slope = left_over[:, scales <= top].max(axis=1)
            bound = np.maximum(decay * value, slower * slope)
            for row, accepted in enumerate((SERIES_BOUND, _ROUGH)):
                enough = (bound <= accepted) & (powers > 0) & (powers % loops.TERMS_STEP == 0)
                needed = np.where(enough.any(axis=1), enough.argmax(axis=1), terms if row else -1)
                if terms in _TOLERATED and row == 0:
                    # All terms there are, at steep scales and near ρ = 1, if they do well enough.
                    tolerated = (needed < 0) & (bound[:, terms] <= _TOLERATED[terms])
                    self.rough |= bool(tolerated.any())
                    needed[tolerated] = terms
                table[row, level, : loops.BINS + 1] = needed
        if self.odd:
            step = loops.TERMS_STEP
            table = np.where(table > 0, step * -(-table // (2 * step)), table)
        return table

    def coefficients(self, rows: slice) -> FloatArray:
        """Hermite coefficients of some images, shape (rows, P, terms).

        Those of all images are kept if they fit into an eighth of the free memory.
        """
        if self.hinge is not None:
            return np.zeros((*self.scales[rows].shape, 1))
        with self._preparing:
            if self._relative is None:
                self._relative = self._at.interpolant(self._relative_coefficients)
                if 8 * self.scales.size * self.stored <= checks.available_memory() // 8:
                    self._kept = self._evaluate(self.scales)
        return self._evaluate(self.scales[rows]) if self._kept is None else self._kept[rows]

    def _relative_coefficients(self, tau: FloatArray) -> FloatArray:
        values = self.activation.hermite_coefficients(tau, self.terms)
        values = values[:, 1::2] if self.odd else values
        return np.asarray(values / np.sqrt(self._unit(tau))[:, None])

    def _evaluate(self, scales: FloatArray) -> FloatArray:
        """Hermite coefficients at scales (rows, P), a few images at a time on all threads."""
        values = np.empty((*scales.shape, self.stored))

        def fill(start: int) -> None:
            part = scales[start : start + _IMAGES]
            assert self._relative is not None
            units = np.sqrt(self._unit(part))[..., None]
            np.multiply(self._relative(part), units, out=values[start : start + _IMAGES])

        list(map_threads(fill, range(0, len(scales), _IMAGES)))
        return values


class ImageStates:
    """A ring of convolutions at n images.

    Attributes
    ----------
    pixels, spread
        As in `_injected`.
    layers : list of PixelLayer
    units : ndarray of shape (n,)
        The loops are given every image in units of its own, in which faint and proportional images
        keep their digits; ones, if biases or centring compare sizes.

    Raises
    ------
    NotConverged
        If the variances grow without bound, or an equilibrium repels.
    """

    def __init__(self, ring: Ring, model: ConvolutionalModel, rows: FloatArray) -> None:
        self.ring, self.model = ring, model
        self.pixels, self.spread = _injected(model, model.images(rows))
        self.layers = [PixelLayer(layer.activation, ring) for layer in ring.layers]
        self._solve_variances()
        self._require_stable()
        free = all(layer.bias == 0.0 for layer in ring.layers)
        free = free and all(not x.hinge or x.hinge.constant == 0.0 for x in self.layers)
        largest = np.max([layer.scales.max(axis=1) for layer in self.layers], axis=0)
        self.units = largest if free else np.ones_like(largest)

    def mean(self, values: FloatArray, index: int, shape: tuple[int, int]) -> FloatArray:
        """M of a layer on arrays (n, P) over pixels of that shape."""
        size, padding = self.model.cell[index].size, self.model.padding
        return window_mean(values.reshape(-1, *shape), size, padding).reshape(values.shape)

    def _mean(self, values: FloatArray, index: int) -> FloatArray:
        return self.mean(values, index, self.model.grid)

    def _solve_variances(self) -> None:
        """Solve q_l = w_l M v_{l−1} + u_l M|x|² + b_l, v_l = E φ_l²(√q_l ξ), at every pixel."""
        ring = self.ring
        norms = np.einsum("anpc,anpc->anp", self.pixels, self.pixels)
        drives = []
        for index, layer in enumerate(ring.layers):
            norm = self._mean(norms[0], index) if self.spread else norms[index]
            drives.append(layer.inject * norm + layer.bias)

        def turn(state: FloatArray) -> list[FloatArray]:
            variances = []
            for index, layer in enumerate(ring.layers):
                recurrent = layer.weight * self._mean(state, index) if layer.weight > 0.0 else 0.0
                variances.append(drives[index] + recurrent)
                state = self.layers[index].squares(variances[-1])
            return [*variances, state]

        state = np.zeros_like(drives[0])
        previous = np.inf
        for _ in range(MAX_SWEEPS):
            image = turn(state)[-1]
            if not float(image.max(initial=0.0)) < 1e200:  # diverged
                break
            # Relative to each image: a dark one has digits of its own.
            scale = np.maximum(image.max(axis=1, keepdims=True), 1e-300)
            step = float((np.abs(image - state) / scale).max())
            state = image
            # Done, or as near as rounding lets the iteration come: it has stopped contracting.
            if step <= 1e-16 or not ring.closed or (step <= 1e-14 and step >= 0.5 * previous):
                for pixels, variance in zip(self.layers, turn(state), strict=False):
                    pixels.settle(variance)
                return
            previous = step
        raise ring.unsolved("The variances", float(step))

    def _require_stable(self) -> None:
        """Reject images at which the spectral radius of w M E φ′² is one or more.

        The largest quotient bounds the radius of a non-negative operator from above, the smallest
        from below.
        """
        if not self.ring.closed:
            return
        values = np.ones_like(self.layers[0].scales)
        for _ in range(500):
            image = values
            for index, layer in enumerate(self.layers):
                onto = (index + 1) % len(self.layers)
                weight = self.ring.layers[onto].weight
                image = weight * self._mean(layer.slope_square * image, onto)
            quotient = image / values
            if quotient.max() < 1.0:
                return
            if quotient.min(axis=1).max() >= 1.0:
                break
            # The power method.  Zeros would have no quotient; with this floor both bounds hold.
            values = np.maximum(image / image.max(axis=1, keepdims=True), 1e-12)
        raise self.ring.unstable(float(quotient.max()), "for some of the images")

    def own_pixels(self, chosen: slice) -> tuple[FloatArray, FloatArray]:
        """Both kernels of images with themselves, at equal positions; shape (rows, P) each."""
        ring, layers = self.ring, self.layers
        variances = [layer.scales[chosen] ** 2 for layer in layers]
        slopes = [layer.slope_square[chosen] for layer in layers]
        start = variances[0]
        for _ in range(MAX_SWEEPS):
            tangent = start
            for index in range(1, len(layers)):
                read = self._mean(slopes[index - 1] * tangent, index)
                tangent = variances[index] + ring.layers[index].weight * read
            if not ring.closed:
                break
            read = self._mean(slopes[-1] * tangent, 0)
            before, start = start, variances[0] + ring.layers[0].weight * read
            if np.abs(start - before).max() <= 1e-16 * np.abs(start).max():
                break
        if not ring.feature:
            return variances[-1], tangent
        value = layers[-1].square[chosen]
        return value, value + slopes[-1] * tangent

    def beyond(self, offset: Offset, images: slice) -> FloatArray:
        """Return what these images have where an image moved by the offset has nothing.

        q of either image counts all of its own neighbours, the covariance those that both have.
        So V has a part w M v + u M|x|² from the pixels outside the overlap; shape (2, L, n, pixels)
        for the images as first and as second of a pair.  Empty if the padding is circular.
        """
        if self.model.padding == "circular" or offset.is_zero:
            return np.empty((2, 0, 0, 0))
        found = np.empty((2, len(self.layers), images.stop - images.start, len(offset.index1)))
        pixels = self.pixels[0, images]
        norms = np.einsum("npc,npc->np", pixels, pixels)
        for side, inside in enumerate((offset.index1, offset.index2)):
            outside = np.ones(norms.shape[1])
            outside[inside] = 0.0
            for index, layer in enumerate(self.ring.layers):
                mass = layer.weight * self.layers[index - 1].square[images]
                # Patches that are read with a stride have zeros beyond the border already.
                if self.spread:
                    mass = mass + layer.inject * norms
                found[side, index] = self._mean(mass * outside, index)[:, inside]
        return found

    def pair_layers(self, offset: Offset, rows: IntArray, columns: IntArray) -> list[PairLayer]:
        """Lay single pairs of images out for `careful.solve_pairs`."""
        found = []
        for index, (layer, at) in enumerate(zip(self.ring.layers, self.layers, strict=True)):
            spread1 = at.scales[rows[:, None], offset.index1]
            spread2 = at.scales[columns[:, None], offset.index2]
            share = self.model.cell[index].size ** -2
            minus = layer.bias * (1.0 / spread1 - 1.0 / spread2) ** 2
            plus = layer.bias * (1.0 / spread1 + 1.0 / spread2) ** 2
            spreads = spread1, spread2
            if not self.spread:
                positions = (rows, offset.index1), (columns, offset.index2)
                apart = self._input_distances(index, positions, spreads)
                minus, plus = minus + layer.inject * apart[0], plus + layer.inject * apart[1]
            root = np.sqrt(self.layers[index - 1].square)
            for shift in _neighbours(self.model, index):
                # −1, for a neighbour beyond the border, reads a column of zeros.
                one, two = shift[offset.index1], shift[offset.index2]
                first, second = (np.pad(root[k], ((0, 0), (0, 1))) for k in (rows, columns))
                weight = layer.weight * share
                state = weight * (first[:, one] / spread1 - second[:, two] / spread2) ** 2
                minus, plus = minus + state, plus + state
                if self.spread:
                    apart = self._input_distances(0, ((rows, one), (columns, two)), spreads)
                    minus = minus + layer.inject * share * apart[0]
                    plus = plus + layer.inject * share * apart[1]
            half = 0.5 * spread1 * spread2
            moments = (
                _moments_at(at, rows[:, None], offset.index1),
                _moments_at(at, columns[:, None], offset.index2),
            )
            fields = spread1, spread2, *moments, half * minus, half * plus
            found.append(PairLayer(layer.activation, layer.weight, None, *fields))
        return found

    def _input_distances(
        self,
        index: int,
        positions: tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]],
        spreads: tuple[FloatArray, FloatArray],
    ) -> FloatArray:
        """‖x/σ₁ ∓ y/σ₂‖² for (images, pixels) on either side; −1 is a pixel of zeros."""
        x, y = (
            np.pad(self.pixels[index, images], ((0, 0), (0, 1), (0, 0)))[:, pixels]
            / spread[..., None]
            for (images, pixels), spread in zip(positions, spreads, strict=True)
        )
        return np.stack([np.square(x - y).sum(axis=-1), np.square(x + y).sum(axis=-1)])


def _moments_at(layer: PixelLayer, images: IntArray, pixels: IntArray) -> SampleMoments:
    """Moments of an activation at some pixels of some images."""
    scales = layer.scales[images, pixels]
    # The mean matters for centred activations that are nearly equal, and is cheap for few pairs.
    different, where = np.unique(scales, return_inverse=True)
    mean = np.asarray(layer.activation.moments(different).mean)[where].reshape(scales.shape)
    return SampleMoments(
        scales, mean, layer.square[images, pixels], layer.slope_square[images, pixels]
    )


def _neighbours(model: ConvolutionalModel, index: int) -> list[IntArray]:
    """For each place in a window: the pixel there around every pixel, −1 beyond the border."""
    height, width = model.grid
    reach = model.cell[index].size // 2
    down, right = np.mgrid[:height, :width]
    found = []
    for step_down in range(-reach, reach + 1):
        for step_right in range(-reach, reach + 1):
            y, x = down + step_down, right + step_right
            place = (y % height) * width + x % width
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            if model.padding != "circular":
                place = np.where(inside, place, -1)
            found.append(place.ravel())
    return found


def state_size(model: ConvolutionalModel) -> int:
    """Count the numbers that are held of an image while its variances are solved for."""
    pixels, channels = model.grid[0] * model.grid[1], model.image_shape[2]
    read = channels  # what `_injected` returns
    if model.stride > 1:
        read *= len(model.cell) * max(layer.size for layer in model.cell) ** 2
    # Three moments and two iterates for every layer, four means in passing.
    return pixels * (read + 5 * len(model.cell) + 4)


def _injected(model: ConvolutionalModel, images: FloatArray) -> tuple[FloatArray, bool]:
    """Return what the layers read of the images, and whether M is still to be applied to it.

    Without a stride that is the pixels themselves, shape (1, n, P, C); with one, the patches
    p_s/k of every layer, shape (L, n, P, largest k²·C), padded with zeros.
    """
    n, height, width, channels = images.shape
    if model.stride == 1:
        return images.reshape(1, n, height * width, channels), True
    mode: Any = "wrap" if model.padding == "circular" else "constant"
    sizes = [layer.size for layer in model.cell]
    rows, columns = model.grid
    patches = np.zeros((len(sizes), n, rows * columns, max(sizes) ** 2 * channels))
    for index, size in enumerate(sizes):
        reach = size // 2
        around = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode=mode)
        windows = np.lib.stride_tricks.sliding_window_view(around, (size, size), axis=(1, 2))
        chosen = windows[:, :: model.stride, :: model.stride].reshape(n, rows * columns, -1)
        patches[index, :, :, : chosen.shape[2]] = chosen / size
    return patches, False


def in_strips(values: NDArray[Any]) -> NDArray[Any]:
    """Put images (n, P, K) into strips, (strips, P, K, lanes)."""
    lanes = loops.LANES
    result = np.empty((-(-len(values) // lanes), *values.shape[1:], lanes))
    loops.fill_strips(result, values)
    return result

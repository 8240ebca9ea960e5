"""Every image by itself: variances at all pixels, stability, and its kernels with itself."""

from __future__ import annotations

import math
import threading
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotConverged
from notsodeep.kernels import convolution_compiled as compiled
from notsodeep.kernels.convolution_layers import PixelLayer
from notsodeep.kernels.convolution_offsets import Offset, window_mean
from notsodeep.models.images import ConvolutionalModel

SWEEPS = 20_000
"""Most sweeps of an iteration that contracts at every image that is accepted."""

_STRIPS_KEPT = 2  # layouts of columns: that of the tiles in hand, and the next one
_MODERATE = 1e12  # pixels, and their inverses, with whose squares float32 can work
_FAR_FROM_CRITICAL = 0.9  # contractions up to which it keeps its digits


class ImageStates:
    """What a convolutional model makes of single images.

    Parameters
    ----------
    model : ConvolutionalModel
    rows : ndarray of shape (n, features)
    feature : bool
        Whether kernels are those of φ(h), or of h.
    dtype : type
        In which pairs of images are to be worked on.

    Attributes
    ----------
    dtype : type
        The same, but float64 if float32 has no room for the squares of some image's pixels, or if
        the equilibria are nearly critical, where errors grow.
    closed : bool
        Whether the first layer reads the last.
    pixels, spread
        As in `_injected`.
    layers : list of PixelLayer

    Raises
    ------
    NotConverged
        If the variances grow without bound, or an equilibrium repels.
    """

    def __init__(
        self,
        model: ConvolutionalModel,
        rows: FloatArray,
        feature: bool,
        dtype: type[Any] = np.float64,
    ) -> None:
        self.model, self.feature = model, feature
        self.closed = model.cell[0].weight > 0.0
        self.pixels, self.spread = _injected(model, model.images(rows))
        self.layers = [PixelLayer(layer.activation) for layer in model.cell]
        self._strips: dict[tuple[int, int, int], NDArray[Any]] = {}
        self._laying_out = threading.Lock()
        self._solve_variances()
        self._require_stable()
        self.dtype: type[Any] = dtype if self._suits_float32() else np.float64
        for layer in self.layers:
            layer.dtype = self.dtype
        self._rows, self._double = rows, None if self.dtype is np.float32 else self

    def _suits_float32(self) -> bool:
        largest = np.abs(self.pixels).max(axis=(0, 2, 3))
        moderate = (largest > 1.0 / _MODERATE) & (largest < _MODERATE)
        blank = largest == 0.0
        return bool((blank | moderate).all()) and self.contraction <= _FAR_FROM_CRITICAL

    def in_double(self) -> ImageStates:
        """Return the same for pairs that are worked on in float64."""
        with self._laying_out:
            if self._double is None:
                self._double = ImageStates(self.model, self._rows, self.feature)
            return self._double

    @property
    def attempts(self) -> int:
        """How many lengths of series there are to try."""
        return max(len(layer.lengths) for layer in self.layers)

    @cached_property
    def contraction(self) -> float:
        """Bound on what a turn around the ring makes of a change of covariances: Π w max E φ′²."""
        steepest = [float(layer.slope_square.max()) for layer in self.layers]
        return math.prod(layer.weight for layer in self.model.cell) * math.prod(steepest)

    def coefficients(self, rows: slice, attempt: int) -> NDArray[Any]:
        """Hermite coefficients of some images, those of all layers in a row: (rows, P, K)."""
        parts = [layer.coefficients(rows, attempt) for layer in self.layers]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def strips(self, columns: slice, attempt: int) -> NDArray[Any]:
        """Lay the same out in strips, (strips, P, K, lanes); the last ones are kept.

        Tiles with the same columns follow one another.
        """
        wanted = columns.start, columns.stop, attempt
        with self._laying_out:
            if wanted not in self._strips:
                while len(self._strips) >= _STRIPS_KEPT:
                    del self._strips[next(iter(self._strips))]
                self._strips[wanted] = _in_strips(self.coefficients(columns, attempt))
            return self._strips[wanted]

    def _mean(self, values: FloatArray, layer: int) -> FloatArray:
        """M of a layer on arrays of shape (n, P)."""
        height, width = self.model.grid
        size, padding = self.model.cell[layer].size, self.model.padding
        grid = values.reshape(-1, height, width)
        return window_mean(grid, size, padding).reshape(values.shape)

    def _solve_variances(self) -> None:
        """Solve q_l = w_l M v_{l−1} + u_l M|x|² + b_l, v_l = E φ_l²(√q_l ξ), at every pixel."""
        cell = self.model.cell
        norms = np.einsum("anpc,anpc->anp", self.pixels, self.pixels)
        drives = []
        for index, layer in enumerate(cell):
            norm = self._mean(norms[0], index) if self.spread else norms[index]
            drives.append(layer.inject * norm + layer.bias)

        def turn(state: FloatArray) -> list[FloatArray]:
            variances = []
            for index, layer in enumerate(cell):
                recurrent = layer.weight * self._mean(state, index) if layer.weight > 0.0 else 0.0
                variances.append(drives[index] + recurrent)
                state = self.layers[index].squares(variances[-1])
            return [*variances, state]

        state = np.zeros_like(drives[0])
        previous = np.inf
        for _ in range(SWEEPS):
            image = turn(state)[-1]
            largest = float(image.max(initial=0.0))
            if not largest < 1e200:  # they run away; beyond, squares are no numbers any more
                break
            # Relative to each image: a dark one has digits of its own.
            scale = np.maximum(image.max(axis=1, keepdims=True), 1e-300)
            step = float((np.abs(image - state) / scale).max())
            state = image
            # Done, or as near as rounding lets the iteration come: it has stopped contracting.
            if step <= 1e-16 or not self.closed or (step <= 1e-14 and step >= 0.5 * previous):
                for pixels, variance in zip(self.layers, turn(state), strict=False):
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
        for index, layer in enumerate(self.layers):
            onto = (index + 1) % len(cell)
            slopes = layer.slope_square[chosen]
            values = cell[onto].weight * self._mean(slopes * values, onto)
        return values

    def _require_stable(self) -> None:
        """Reject images at which the spectral radius of w M E φ′² is one or more.

        There the equilibrium repels, and the kernel is that of no network.  The largest quotient
        bounds the radius of a non-negative operator from above, the smallest from below.
        """
        if not self.closed:
            return
        values = np.ones_like(self.layers[0].scales)
        for _ in range(500):
            image = self._turn(values)
            quotient = image / values
            if quotient.max() < 1.0:
                return
            if quotient.min(axis=1).max() >= 1.0:
                break
            # The power method.  Zeros would have no quotient; with this floor both bounds hold.
            values = np.maximum(image / image.max(axis=1, keepdims=True), 1e-12)
        radius = float(quotient.max())
        raise NotConverged(
            f"The {self.model} has no stable equilibrium for some of the images, and so no kernel: "
            f"the spectral radius of weight·M·E φ′² reaches {radius:.4g} and must stay below 1. "
            "Use smaller weights."
        )

    def own_pixels(self, chosen: slice) -> tuple[FloatArray, FloatArray]:
        """Both kernels of images with themselves, at equal positions; shape (rows, P) each."""
        cell, layers = self.model.cell, self.layers
        variances = [layer.scales[chosen] ** 2 for layer in layers]
        start = tangent = variances[0]
        for _ in range(SWEEPS):
            chain = start
            for index in range(1, len(cell)):
                slopes = layers[index - 1].slope_square[chosen]
                mean = self._mean(slopes * chain, index)
                chain = variances[index] + cell[index].weight * mean
            if not self.closed:
                break
            slopes = layers[-1].slope_square[chosen]
            image = variances[0] + cell[0].weight * self._mean(slopes * chain, 0)
            step = np.abs(image - start).max()
            start = image
            if step <= 1e-16 * np.abs(image).max():
                break
        tangent = chain
        last = layers[-1]
        if not self.feature:
            return variances[-1], tangent
        value = last.square[chosen]
        return value, value + last.slope_square[chosen] * tangent

    def beyond(self, offset: Offset, images: slice) -> FloatArray:
        """Return what these images have where an image moved by the offset has nothing.

        q of either image counts all of its own neighbours, the covariance those that both have.
        So V has a part w M v + u M|x|² from the pixels outside the overlap; shape (2, L, n, pixels)
        for the images as first and as second of a pair.  Empty if the padding is circular.
        """
        if self.model.padding == "circular" or offset.is_zero:
            return np.empty((2, 0, 0, 0))
        cell, layers = self.model.cell, self.layers
        found = np.empty((2, len(cell), images.stop - images.start, len(offset.index1)))
        pixels = self.pixels[0, images]
        norms = np.einsum("npc,npc->np", pixels, pixels)
        for side, inside in enumerate((offset.index1, offset.index2)):
            outside = np.ones(norms.shape[1])
            outside[inside] = 0.0
            for index, layer in enumerate(cell):
                mass = layer.weight * layers[index - 1].square[images]
                # Patches that are read with a stride have zeros beyond the border already.
                if self.spread:
                    mass = mass + layer.inject * norms
                found[side, index] = self._mean(mass * outside, index)[:, inside]
        return found


def state_size(model: ConvolutionalModel) -> int:
    """Count the numbers that an image has while its variances are solved for."""
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


def _in_strips(values: NDArray[Any]) -> NDArray[Any]:
    """Put images (n, P, K) into strips, (strips, P, K, lanes), on the boundaries of cache lines."""
    lanes = compiled.LANES
    shape = (-(-len(values) // lanes), *values.shape[1:], lanes)
    space = np.empty(int(np.prod(shape)) + lanes, values.dtype)
    start = -(space.ctypes.data // space.itemsize) % lanes
    result = space[start : start + space.size - lanes].reshape(shape)
    compiled.fill_strips(result, values)
    return result

"""Pairs of images: blocks laid out for the compiled loops, and what these leave over."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations.pairs import standardised_pairs
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotConverged
from notsodeep.kernels import convolution_compiled as compiled
from notsodeep.kernels.convolution_images import SWEEPS, ImageStates
from notsodeep.kernels.convolution_layers import PixelLayer
from notsodeep.kernels.convolution_offsets import Offset, window_mean
from notsodeep.kernels.samples import SampleColumns
from notsodeep.kernels.single_pairs import feature_rest

_STEPS = 60  # of Newton's method
_TOGETHER = 64  # pairs that `careful_pairs` does at a time


class PairBlock:
    """Some images with some others, laid out for the compiled loops.

    Parameters
    ----------
    states : ImageStates
    rows, columns : slice
        The images.
    attempt : int
        Which length of the series to begin with.

    Attributes
    ----------
    careful : int
        Pairs that the compiled loops had to leave to `careful_pairs` so far.
    """

    def __init__(self, states: ImageStates, rows: slice, columns: slice, attempt: int) -> None:
        self.states, self.rows, self.columns = states, rows, columns
        self.careful = 0
        self._attempt = attempt
        self.shape = rows.stop - rows.start, columns.stop - columns.start
        layers, kind = states.layers, states.dtype
        # Pixels and scales stay in float64: differences of them are taken.
        self._x1 = np.ascontiguousarray(states.pixels[:, rows])
        self._x2 = _columns_last(states.pixels[:, columns])
        self._scales1 = np.stack([layer.scales[rows] for layer in layers])
        self._squares1 = np.stack([layer.square[rows] for layer in layers]).astype(kind)
        scales2 = np.stack([layer.scales[columns] for layer in layers])
        self._scales2 = _columns_last(scales2)
        squares2 = np.stack([layer.square[columns] for layer in layers])
        self._squares2 = _columns_last(squares2).astype(kind)
        self._left = states.coefficients(rows, attempt)
        self._right = states.strips(columns, attempt)
        self._starts = np.cumsum([0, *(layer.stored(attempt) for layer in layers[:-1])])
        self._tables = np.stack([layer.table(attempt) for layer in layers])
        self._levels1, self._levels2 = self._make_levels(scales2)

    def _make_levels(self, scales2: FloatArray) -> tuple[IntArray, IntArray]:
        """Class of the scale of every pixel, and the highest one in every strip of columns."""
        count = self._scales2.shape[-1] // compiled.LANES
        levels1 = np.zeros(self._scales1.shape, dtype=np.int64)
        levels2 = np.zeros((*self._scales2.shape[:-1], count), dtype=np.int64)
        for index, layer in enumerate(self.states.layers):
            if layer.kind != compiled.HINGE:
                top = len(layer.levels) - 1
                levels1[index] = np.minimum(
                    np.searchsorted(layer.levels, self._scales1[index]), top
                )
                own = np.minimum(np.searchsorted(layer.levels, scales2[index]), top)
                padded = _columns_last(own[None])[0]
                levels2[index] = padded.reshape(len(padded), count, compiled.LANES).max(axis=2)
        return levels1, levels2

    def solve(self, offset: Offset, first: IntArray) -> FloatArray:
        """Both kernels, shape (2, rows, columns), as far as one offset contributes to them."""
        both, marked = self.attempt(offset, first)
        if not marked.any():
            return both
        if self._attempt + 1 < self.states.attempts:
            better = PairBlock(self.states, self.rows, self.columns, self._attempt + 1)
        elif self.states.dtype is np.float32:
            better = PairBlock(self.states.in_double(), self.rows, self.columns, 0)
        else:
            self._finish(offset, first, both)
            return both
        again = better.solve(offset, np.where(marked > 0, first, self.shape[1]))
        self.careful += better.careful
        return np.where(np.isnan(both), again, both)

    def attempt(self, offset: Offset, first: IntArray) -> tuple[FloatArray, IntArray]:
        """Both kernels by series of one length, and how many pairs of each row were marked."""
        states, cell = self.states, self.states.model.cell
        width = self._scales2.shape[-1]
        both = np.zeros((2, self.shape[0], width))
        extra1 = states.beyond(offset, self.rows)[0].astype(states.dtype)
        extra2 = _columns_last(states.beyond(offset, self.columns)[1]).astype(states.dtype)
        marked = np.zeros(self.shape[0], dtype=np.int64)
        compiled.solve_pairs(
            both[0], both[1], first, offset.height, offset.width,
            states.model.padding == "circular", offset.index1, offset.index2, offset.shares,
            np.array([layer.weight for layer in cell]),
            np.array([layer.inject for layer in cell]),
            np.array([layer.size for layer in cell]),
            np.array([layer.kind for layer in states.layers]),
            np.array([layer.both for layer in states.layers]),
            np.array([layer.cross for layer in states.layers]),
            self._x1, self._x2, states.spread, extra1, extra2, self._scales1, self._scales2,
            self._squares1, self._squares2, self._left, self._right, self._starts, self._tables,
            self._levels1, self._levels2, states.contraction, states.feature, marked,
        )  # fmt: skip
        return both[:, :, : self.shape[1]], marked

    def _finish(self, offset: Offset, first: IntArray, both: FloatArray) -> None:
        """Do the pairs that the compiled loops have marked, by closed forms or quadrature."""
        wanted = np.arange(self.shape[1]) >= first[:, None]
        rows, columns = np.nonzero(np.isnan(both[0]) & wanted)
        for start in range(0, len(rows), _TOGETHER):
            here = rows[start : start + _TOGETHER], columns[start : start + _TOGETHER]
            both[:, here[0], here[1]] = careful_pairs(
                self.states, offset, here[0] + self.rows.start, here[1] + self.columns.start
            )
        self.careful += len(rows)


def _columns_last(values: NDArray[Any]) -> NDArray[Any]:
    """Move images, the second axis, to the end, and fill up the last strip with the last image."""
    count = values.shape[1]
    strips = -(-count // compiled.LANES)
    filled = np.minimum(np.arange(strips * compiled.LANES), count - 1)
    return np.ascontiguousarray(np.moveaxis(values[:, filled], 1, -1))


def careful_pairs(
    states: ImageStates, offset: Offset, rows: IntArray, columns: IntArray
) -> FloatArray:
    """Both kernels of single pairs of images, without compiled loops; shape (2, pairs).

    The same equations as in `convolution_compiled`, with expectations by `standardised_pairs` and
    `feature_rest`: for activations whose series converges too slowly.
    """
    model, layers = states.model, states.layers
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
        for _ in range(SWEEPS):
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
    for read in states.pixels:
        difference = read[rows[:, None], offset.index1] - read[columns[:, None], offset.index2]
        apart.append(np.einsum("npc,npc->np", difference, difference))
    sources = [
        layer.inject * (mean(apart[0], index) if states.spread else apart[index])
        for index, layer in enumerate(cell)
    ]
    everything = slice(0, len(layers[0].scales))
    first, second = states.beyond(offset, everything)
    if first.size:
        sources = [
            source + first[index, rows] + second[index, columns]
            for index, source in enumerate(sources)
        ]
    total = [
        (a.scales**2 + b.scales**2).reshape(sources[0].shape) for a, b in zip(one, two, strict=True)
    ]
    V: list[FloatArray] = [total[0] if states.closed else sources[0], *sources[1:]]
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
        if not states.closed:
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
    if not states.feature:
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

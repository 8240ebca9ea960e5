"""Kernels of convolutional models on images, tile by tile.

A pair of images has as many unknowns as pixels, for each offset that the read-out sees: see
`offsets`.  `image_states` has what a single image contributes.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.kernels import image_loops as loops
from notsodeep.kernels.careful import solve_pairs
from notsodeep.kernels.image_states import ImageStates, in_strips
from notsodeep.kernels.offsets import Offset, offsets
from notsodeep.kernels.plan import Tile, parts
from notsodeep.kernels.ring import Ring
from notsodeep.kernels.table import Kinds
from notsodeep.models import ConvolutionalModel
from notsodeep.threads import thread_count

logger = logging.getLogger("notsodeep.kernels")

SIDE = 64
"""Side of a square tile: 4096 pairs of images, which take some tenths of a second."""

_COEFFICIENTS = 1 << 27, 1 << 29  # bytes for the Hermite coefficients of a block, at least, at most
_WORTH_A_PROBE = 10**9  # pairs of pixels: a minute or more
_LONG = 600.0  # seconds from which a run is announced
_TOGETHER = 32  # single pairs of images that are done at a time
_LAYOUTS_KEPT = 2  # of columns: that of the tiles in hand, and the next one


class ImagePlan:
    """A convolutional ring between images X and Y (or X and itself), ready to deliver tiles.

    The same interface as `plan.Plan`.

    Parameters
    ----------
    ring : Ring
    model : ConvolutionalModel
    X, Y : ndarray of shape (n, features), (m, features)
        Without Y the kernel is symmetric.
    kinds : tuple of int
    """

    def __init__(
        self,
        ring: Ring,
        model: ConvolutionalModel,
        X: FloatArray,
        Y: FloatArray | None,
        kinds: Kinds,
    ) -> None:
        self.ring, self.model, self.X, self.Y, self.kinds = ring, model, X, Y, kinds
        self.offsets = offsets(model)
        self.states = ImageStates(ring, model, X if Y is None else np.concatenate([X, Y]))
        self._shift = 0 if Y is None else len(X)
        self._layouts: dict[tuple[int, int], loops.Side] = {}
        self._laying_out = threading.Lock()
        layers = self.states.layers
        self.route = "hinge" if all(layer.hinge for layer in layers) else "series"
        none = np.ones((2, 8, loops.BINS + 2), dtype=np.int64)
        both = [layer.hinge or (0.0, 0.0) for layer in layers]
        self._layers = loops.Layers(
            np.array([layer.weight for layer in ring.layers]),
            np.array([layer.inject for layer in ring.layers]),
            np.array([layer.size for layer in model.cell]),
            np.array([loops.SERIES if x.hinge is None else loops.HINGE for x in layers]),
            np.array([pair[0] for pair in both]),
            np.array([pair[1] for pair in both]),
            np.array([layer.odd for layer in layers]),
            np.array([layer.near for layer in layers]),
            np.array([layer.rough for layer in layers]),
            self.states.spread,
            np.cumsum([0, *(layer.stored for layer in layers[:-1])]),
            np.stack([none if layer.hinge else layer.table for layer in layers]),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the kernel."""
        return len(self.X), len(self.X if self.Y is None else self.Y)

    @property
    def work(self) -> float:
        """Time that the whole kernel takes, in pairs of pixels."""
        pixels = sum(len(offset.index1) for offset in self.offsets)
        return self.shape[0] * self.shape[1] * pixels / (2.0 if self.Y is None else 1.0)

    def announce(self) -> None:
        """Say how long a run will take, if it is long, by a probe of the route of its pairs."""
        layers = self.states.layers
        rough = any(x.rough or (x.hinge is None and x.activation.kinks) for x in layers)
        if self.work > _WORTH_A_PROBE or (rough and self.shape[0] * self.shape[1] > 4):
            seconds = self.estimated_seconds()
            if seconds > _LONG:
                logger.warning(
                    "The kernels of the %s on %d × %d images will take about %s.",
                    self.ring.name, *self.shape, duration(seconds),
                )  # fmt: skip

    def estimated_seconds(self) -> float:
        """Estimate the time of the whole kernel from some pairs, on the threads there are."""
        m = self.shape[1]
        rows, columns = slice(0, 1), slice(max(0, m - loops.LANES), m)
        first = np.zeros(1, dtype=np.int64)
        offset = self.offsets[0]
        self._compiled(offset, rows, columns, first)  # compiled code is loaded
        start = time.thread_time()  # of this thread alone: the machine may have other work
        both, marked = self._compiled(offset, rows, columns, first)
        seconds = time.thread_time() - start
        if marked:
            left = np.flatnonzero(np.isnan(both[0, 0]))
            start = time.thread_time()
            self._careful(offset, np.zeros(1, dtype=np.int64), left[-1:] + columns.start)
            seconds += (time.thread_time() - start) * len(left)
        pixels = both[0].size * len(offset.index1)
        return float(seconds / pixels * self.work / thread_count())

    @cached_property
    def diagonal(self) -> tuple[FloatArray, ...]:
        """The kernels of every row of X with itself.

        The zero offset, where correlations are one, has its own formula; the others are pairs.
        """
        shares = self.offsets[0].shares
        own = self.states.own_pixels(slice(0, len(self.X)))
        both = np.stack([values @ shares for values in own])
        for offset in self.offsets[1:]:
            for i in range(len(self.X)):
                here = slice(i, i + 1)
                shift = self._shift  # X with itself, even where the columns are those of Y
                both[:, i] += self._solve(offset, here, slice(i - shift, i + 1 - shift))[:, 0, 0]
        return tuple(both[kind] for kind in self.kinds)

    def tiles(self, side: int | None = None) -> list[Tile]:
        """Cut the kernel into tiles; of a symmetric one, only what is on and above the diagonal.

        Column after column, because coefficients of columns are laid out once for all rows.
        """
        n, m = self.shape
        for layer in self.states.layers:
            layer.coefficients(slice(0, 0))  # kept from now on, when all threads are free
        side = min(side or SIDE, SIDE)
        rows, columns = parts(n, side), parts(m, side)
        if self.Y is None:
            return [Tile(r, c) for i, c in enumerate(rows) for r in rows[: i + 1]]
        return [Tile(r, c) for c in columns for r in rows]

    def tile(self, tile: Tile) -> NDArray[np.float64]:
        """Compute the kernels of a tile, shape (kinds, rows, columns)."""
        both = np.empty((2, *tile.shape))
        upper = self.Y is None and tile.rows == tile.columns
        top, left = tile.rows.start, tile.columns.start
        for columns in _within(tile.columns, self._block_side):
            for rows in _within(tile.rows, self._block_side):
                if upper and rows.start > columns.start:
                    continue
                block = self._block(rows, columns)
                one = slice(rows.start - top, rows.stop - top)
                two = slice(columns.start - left, columns.stop - left)
                both[:, one, two] = block
                if upper:
                    both[:, two, one] = block.transpose(0, 2, 1)
        return both[list(self.kinds)]

    @cached_property
    def _block_side(self) -> int:
        """Images on each side of a block, so that Hermite coefficients fit into their budget."""
        terms = sum(layer.stored for layer in self.states.layers)
        pixels = self.model.grid[0] * self.model.grid[1]
        share = checks.available_memory() // (16 * thread_count())
        budget = min(max(share, _COEFFICIENTS[0]), _COEFFICIENTS[1])
        most = budget // (16 * pixels * terms)
        return max(loops.LANES, min(SIDE, most // loops.LANES * loops.LANES))

    def _block(self, rows: slice, columns: slice) -> FloatArray:
        """Both kernels of some rows with some columns, all offsets."""
        symmetric = self.Y is None and rows == columns
        count = rows.stop - rows.start
        both = np.zeros((2, count, columns.stop - columns.start))
        own = np.arange(count) if symmetric else np.zeros(count, dtype=np.int64)
        for number, offset in enumerate(self.offsets):
            both += self._solve(offset, rows, columns, own + (symmetric and number == 0))
        if symmetric:
            values, tangents = self.states.own_pixels(rows)
            shares = self.offsets[0].shares
            for kernel, diagonal in zip(both, (values @ shares, tangents @ shares), strict=True):
                kernel[own, own] += diagonal
                lower = np.tril_indices(count, -1)
                kernel[lower] = kernel.T[lower]
        return both

    def _solve(
        self, offset: Offset, rows: slice, columns: slice, first: IntArray | None = None
    ) -> FloatArray:
        """Both kernels, shape (2, rows, columns), as far as one offset contributes to them.

        Row r is wanted from column first[r] on; elsewhere is zero.
        """
        count = rows.stop - rows.start
        first = np.zeros(count, dtype=np.int64) if first is None else first
        both, marked = self._compiled(offset, rows, columns, first)
        wanted = np.arange(both.shape[2]) >= first[:, None]
        if marked:
            here = np.nonzero(np.isnan(both[0]) & wanted)
            both[:, here[0], here[1]] = self._careful(
                offset, here[0] + rows.start, here[1] + columns.start
            )
        return np.where(wanted, both, 0.0)

    def _careful(self, offset: Offset, rows: IntArray, columns: IntArray) -> FloatArray:
        """Both kernels of single pairs of images without compiled loops, shape (2, pairs)."""
        values = np.empty((2, len(rows)))
        shape = offset.height, offset.width
        for here in parts(len(rows), _TOGETHER):
            layers = self.states.pair_layers(offset, rows[here], columns[here] + self._shift)
            found = solve_pairs(
                self.ring, layers, lambda v, index: self.states.mean(v, index, shape)
            )
            values[:, here] = [kernel @ offset.shares for kernel in found]
        logger.debug("%s kernel: %d pairs one by one", self.ring.name, len(rows))
        return values

    def _compiled(
        self, offset: Offset, rows: slice, columns: slice, first: IntArray
    ) -> tuple[FloatArray, bool]:
        """Both kernels by the compiled loops, and whether pairs are left, as NaN."""
        states = self.states
        columns = slice(columns.start + self._shift, columns.stop + self._shift)
        extra1, extra2 = states.beyond(offset, rows)[0], states.beyond(offset, columns)[1]
        if extra1.size:
            extra1 = extra1 / np.square(states.units[rows])[:, None]
            extra2 = extra2 / np.square(states.units[columns])[:, None]
        grid = loops.Grid(
            offset.height, offset.width, self.model.padding == "circular",
            offset.index1, offset.index2, offset.shares,
        )  # fmt: skip
        left, right = self._rows(rows), self._columns(columns)
        right = right._replace(extra=_last(extra2))
        count, width = len(first), right.scales.shape[-1]
        both, marked = np.zeros((2, count, width)), np.zeros(count, dtype=np.int64)
        loops.solve_images(
            both[0], both[1], marked, first, grid, self._layers, left._replace(extra=extra1),
            right, self.ring.feature, 1 in self.kinds,
        )  # fmt: skip
        size = np.outer(states.units[rows], states.units[columns])
        return both[:, :, : size.shape[1]] * size, bool(marked.any())

    def _side(self, images: slice) -> loops.Side:
        """Lay out some images, in units of their own."""
        states, unit = self.states, self.states.units[images]
        layers = states.layers
        levels = np.zeros((len(layers), *layers[0].scales[images].shape), dtype=np.int64)
        for index, layer in enumerate(layers):
            if layer.hinge is None:
                found = np.searchsorted(layer.levels, layer.scales[images])
                levels[index] = np.minimum(found, len(layer.levels) - 1)
        coefficients = np.concatenate([layer.coefficients(images) for layer in layers], axis=-1)
        return loops.Side(
            states.pixels[:, images] / unit[:, None, None],
            np.stack([layer.scales[images] for layer in layers]) / unit[:, None],
            np.stack([layer.square[images] for layer in layers]) / np.square(unit)[:, None],
            coefficients / unit[:, None, None],
            levels,
            np.empty((0, 0, 0)),
        )

    def _rows(self, images: slice) -> loops.Side:
        side = self._side(images)
        return side._replace(pixels=np.ascontiguousarray(side.pixels))

    def _columns(self, images: slice) -> loops.Side:
        """Lay images out with the images last, in whole strips; the last layouts are kept.

        Tiles with the same columns follow one another.
        """
        key = images.start, images.stop
        with self._laying_out:
            if key not in self._layouts:
                while len(self._layouts) >= _LAYOUTS_KEPT:
                    del self._layouts[next(iter(self._layouts))]
                side = self._side(images)
                levels = _last(side.levels)
                strips = levels.reshape(*levels.shape[:-1], -1, loops.LANES).max(axis=-1)
                self._layouts[key] = loops.Side(
                    _last(side.pixels), _last(side.scales), _last(side.squares),
                    in_strips(side.coefficients), np.ascontiguousarray(strips), side.extra,
                )  # fmt: skip
            return self._layouts[key]

    def report(self) -> None:
        """Log how the kernel was computed."""
        logger.info("%s kernel, %d × %d: %s route", self.ring.name, *self.shape, self.route)


def _within(whole: slice, size: int) -> list[slice]:
    """Cut a slice into slices of at most that size."""
    cuts = parts(whole.stop - whole.start, size)
    return [slice(cut.start + whole.start, cut.stop + whole.start) for cut in cuts]


def _last(values: NDArray[Any]) -> NDArray[Any]:
    """Move images, the second axis, to the end, and fill up the last strip with the last image."""
    count = values.shape[1]
    if count == 0:
        return values
    filled = np.minimum(np.arange(-(-count // loops.LANES) * loops.LANES), count - 1)
    return np.ascontiguousarray(np.moveaxis(values[:, filled], 1, -1))


def duration(seconds: float) -> str:
    """Say a number of seconds in words."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} seconds"

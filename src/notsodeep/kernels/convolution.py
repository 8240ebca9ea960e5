"""Kernels of convolutional models on images, tile by tile.

A pair of images has as many unknowns as pixels, for each offset that the read-out sees: see
`convolution_offsets`.  `convolution_images` has what a single image contributes,
`convolution_pairs` lays pairs out for the loops of `convolution_compiled`.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import TheoryDoubtful
from notsodeep.kernels import convolution_compiled as compiled
from notsodeep.kernels.convolution_images import ImageStates, state_size
from notsodeep.kernels.convolution_offsets import offsets
from notsodeep.kernels.convolution_pairs import PairBlock
from notsodeep.kernels.plan import Explanation, Tile
from notsodeep.models import Convention
from notsodeep.models.images import MIN_PIXEL, ConvolutionalModel
from notsodeep.threads import thread_count

logger = logging.getLogger("notsodeep.kernels")

SIDE = 64
"""Side of a square tile: 4096 pairs of images, which take some tenths of a second."""

_COEFFICIENTS = 1 << 27, 1 << 29  # bytes for the Hermite coefficients of a block, at least, at most
_WORTH_A_PROBE = 10**9  # pairs of pixels: a minute or more
_LONG = 600.0  # seconds from which a run is announced


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
    dtype : type
        In which pairs of images are worked on, float32 or float64; tiles are float64.
    """

    def __init__(
        self,
        model: ConvolutionalModel,
        X: FloatArray,
        Y: FloatArray | None,
        convention: Convention,
        dtype: type[Any] = np.float64,
    ) -> None:
        self.model, self.X, self.Y, self.convention = model, X, Y, convention
        self._split = len(X)
        self.offsets = offsets(model)
        feature = convention == "feature" or model.cell[0].weight == 0.0
        rows = X if Y is None else np.concatenate([X, Y])
        self.states = ImageStates(model, rows, feature, dtype)
        self._counting = threading.Lock()
        series = any(layer.kind != compiled.HINGE for layer in self.states.layers)
        height, width = model.grid
        reason = f"{height} × {width} pixels, {len(self.offsets)} offsets"
        self.explanation = Explanation("series" if series else "hinge", reason)

    @classmethod
    def checked(
        cls,
        model: ConvolutionalModel,
        X: ArrayLike,
        Y: ArrayLike | None,
        convention: Convention,
        owner: str,
        dtype: type[Any] = np.float64,
    ) -> ConvolutionPlan:
        """Check everything a user may have got wrong, then make the plan."""
        checks.known_name(convention, get_args(Convention), f"convention of {owner}")
        left, right = (
            None if rows is None else model.rows(rows, name, owner)
            for rows, name in ((X, "X"), (Y, "Y"))
        )
        assert left is not None
        checks.kernel_resolved(left, right, owner)
        count = len(left) + (0 if right is None else len(right))
        checks.enough_memory(
            8 * count * state_size(model),
            f"What {owner} of {count} images holds at their pixels",
            "Use fewer images, or a stride for fewer pixels.",
        )
        plan = cls(model, left, right, convention, dtype)
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
        if 0.0 < square < MIN_PIXEL and not linear:
            warnings.warn(
                f"The pixels of X have a mean squared norm of {square:.3g}: the {self.model} is as "
                "good as linear there. Scale the images with preprocessing='pixels'.",
                TheoryDoubtful,
                stacklevel=5,
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the kernel."""
        return self._split, self._split if self.Y is None else len(self.Y)

    @property
    def work(self) -> int:
        """Pairs of pixels, which is what the time is proportional to."""
        n, m = self.shape
        pixels = sum(len(offset.index1) for offset in self.offsets)
        return n * m * pixels // (2 if self.Y is None else 1)

    def estimated_seconds(self) -> float:
        """Estimate the time of the whole kernel from some pairs, on the threads there are."""
        n, m = self.shape
        rows, columns = slice(0, min(n, 4)), slice(0, min(m, SIDE))
        block = self._pairs(rows, columns, self._first_attempt)
        first = np.zeros(rows.stop, dtype=np.int64)
        block.solve(self.offsets[0], first)  # compiled code is loaded
        start = time.thread_time()  # of this thread alone: the machine may have other work
        block.solve(self.offsets[0], first)
        seconds = time.thread_time() - start
        pixels = rows.stop * columns.stop * len(self.offsets[0].index1)
        return seconds / pixels * self.work / thread_count()

    def diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of every row of X with itself."""
        return self._diagonal

    @cached_property
    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        """The zero offset, where correlations are one, by its own formula; the others as pairs."""
        own = slice(0, self._split)
        values, tangents = self.states.own_pixels(own)
        shares = self.offsets[0].shares
        first = values @ shares, tangents @ shares
        if len(self.offsets) == 1:
            return first
        both = np.stack(first)
        for i in range(self._split):
            block = self._pairs(slice(i, i + 1), slice(i, i + 1), self._first_attempt)
            for offset in self.offsets[1:]:
                both[:, i] += block.solve(offset, np.zeros(1, dtype=np.int64))[:, 0, 0]
            self._count_careful(block)
        return both[0], both[1]

    def tiles(self, side: int | None = None) -> list[Tile]:
        """Cut the kernel into tiles; of a symmetric one, only what is on and above the diagonal.

        Column after column, because coefficients of columns are laid out once for all rows.
        """
        n, m = self.shape
        for layer in self.states.layers:
            if layer.has_room(self._first_attempt):  # kept from now on, when all threads are free
                layer.coefficients(slice(0, 0), self._first_attempt)
        side = min(side or SIDE, SIDE)
        rows, columns = (
            [slice(start, min(start + side, length)) for start in range(0, length, side)]
            for length in (n, m)
        )
        if self.Y is None:
            return [Tile(r, c) for i, c in enumerate(rows) for r in rows[: i + 1]]
        return [Tile(r, c) for c in columns for r in rows]

    def tile(self, tile: Tile) -> FloatArray:
        """CK and NTK of a tile, shape (2, rows, columns); symmetric if on the diagonal."""
        both = np.empty((2, *tile.shape))
        upper = self.Y is None and tile.rows == tile.columns
        side = self._block_side
        for start in range(tile.columns.start, tile.columns.stop, side):
            columns = slice(start, min(start + side, tile.columns.stop))
            for top in range(tile.rows.start, start + 1 if upper else tile.rows.stop, side):
                rows = slice(top, min(top + side, tile.rows.stop))
                block = self._block(rows, columns)
                place = (_within(rows, tile.rows), _within(columns, tile.columns))
                both[:, place[0], place[1]] = block
                if upper and rows != columns:
                    both[:, place[1], place[0]] = block.transpose(0, 2, 1)
        return both

    @cached_property
    def _block_side(self) -> int:
        """Images on each side of a block, so that Hermite coefficients fit into their budget.

        Those of its columns are laid out anew for every other block: small ones cost time.
        """
        terms = sum(layer.stored(self._first_attempt) for layer in self.states.layers)
        pixels = self.model.grid[0] * self.model.grid[1]
        share = checks.available_memory() // (16 * thread_count())
        budget = min(max(share, _COEFFICIENTS[0]), _COEFFICIENTS[1])
        most = budget // (2 * np.dtype(self.states.dtype).itemsize * pixels * terms)
        return max(compiled.LANES, min(SIDE, most // compiled.LANES * compiled.LANES))

    @cached_property
    def _first_attempt(self) -> int:
        """Which length of the series to begin with.

        The longest costs no more than others where it is not needed, but memory; without that, by
        some pairs and not by what came before.
        """
        last = self.states.attempts - 1
        if all(layer.has_room(last) for layer in self.states.layers):
            return last
        n, m = self.shape
        rows, columns = slice(0, min(n, 4)), slice(max(0, m - 64), m)
        first = np.zeros(rows.stop, dtype=np.int64)
        for attempt in range(last):
            _, marked = self._pairs(rows, columns, attempt).attempt(self.offsets[0], first)
            if not marked.any():
                return attempt
        return last

    def _block(self, rows: slice, columns: slice) -> FloatArray:
        """Both kernels of some rows with some columns, all offsets."""
        symmetric = self.Y is None and rows == columns
        prepared = self._pairs(rows, columns, self._first_attempt)
        count = rows.stop - rows.start
        own = np.arange(count) if symmetric else np.zeros(count, dtype=np.int64)
        # Where ρ = 1 series are long, and the formula of the diagonal is better.
        both = prepared.solve(self.offsets[0], own + 1 if symmetric else own)
        if symmetric:
            shares = self.offsets[0].shares
            diagonal = (kernel @ shares for kernel in self.states.own_pixels(rows))
            for kernel, values in zip(both, diagonal, strict=True):
                kernel[own, own] = values
        for offset in self.offsets[1:]:
            both += prepared.solve(offset, own)
        self._count_careful(prepared)
        if symmetric:
            lower = np.tril_indices(count, -1)
            for kernel in both:
                kernel[lower] = kernel.T[lower]
        return both

    def _pairs(self, rows: slice, columns: slice, attempt: int) -> PairBlock:
        """Lay out some rows of X with some of Y, which the states have after X, or of X."""
        shift = 0 if self.Y is None else self._split
        columns = slice(columns.start + shift, columns.stop + shift)
        return PairBlock(self.states, rows, columns, attempt)

    def _count_careful(self, block: PairBlock) -> None:
        with self._counting:  # several threads have blocks of one plan
            self.explanation.careful_pairs += block.careful

    def report(self) -> None:
        """Log how the kernel was computed."""
        if self.explanation.route == "series":
            lengths = {length for layer in self.states.layers for length in layer.lengths}
            self.explanation.terms = tuple(sorted(lengths))
            self.explanation.bound = max(layer.bound for layer in self.states.layers)
        logger.info("%s kernel, %d × %d: %s", self.model, *self.shape, self.explanation)


def duration(seconds: float) -> str:
    """Say a number of seconds in words."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} seconds"


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)

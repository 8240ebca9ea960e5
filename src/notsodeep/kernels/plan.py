"""Kernels of a ring on data, tile by tile."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.kernels import loops
from notsodeep.kernels.ring import Ring
from notsodeep.kernels.states import InputPairs, RingStates
from notsodeep.kernels.table import (
    REACHES,
    Block,
    Kernels,
    Kinds,
    Table,
    angle_series,
    fitted_table,
)
from notsodeep.threads import map_threads, single_blas_thread

logger = logging.getLogger("notsodeep.kernels")

SIDE = 384
"""Side of a square tile: about a megabyte of doubles for each kernel, which stays in cache."""

_PROBE = 128  # samples on each side of the block that tells how large the cosines are
_BEYOND = 0.003  # share of pairs that may be beyond the reach of a table: they cost 100 times more
_CLOSED_BEYOND = 0.015  # the same where pairs have closed forms, which are cheaper
_FEW_BEYOND = 1e-4  # the same for a short reach: one such pair has all samples prepared
_WORTH_A_TABLE = 250_000  # pairs that take as long, one by one, as fitting a table
_WORTH_ANGLES = 100  # pairs of a tile beyond the reach for which a series in the angle is fitted
_SPREAD = 16.0  # norms further from the median, by this factor, are left out of a table
_STRAY = 0.005  # share of such samples above which there is no table
_GRID = 8  # ranges of norms end at powers of 2^(1/8), so that similar data share a table
_TOGETHER = 4_000  # single pairs worked on at a time
_FEW = 250  # unresolved pairs of a tile that wait for those of other tiles: a call costs as much


@dataclass(frozen=True)
class Tile:
    """A rectangle of a kernel: some rows with some columns."""

    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


def parts(length: int, size: int) -> list[slice]:
    """Cut a range into slices of at most that size."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


Pairs = tuple[IntArray, IntArray]
"""Rows and columns of single pairs."""


class Plan:
    """A ring between samples X and Y (or X and itself), ready to deliver tiles.

    Parameters
    ----------
    ring : Ring
    X : ndarray of shape (n, p)
    Y : ndarray of shape (m, p) or None
        None makes the kernel symmetric.
    kinds : tuple of int
        Which kernels are wanted: 0 is the conjugate, 1 the tangent kernel.

    Attributes
    ----------
    route : {"table", "univariate", "hinge", "series"}
        Polynomials in the cosine and the norms, in the cosine alone, or every pair by itself: in
        closed form or by series.
    """

    def __init__(self, ring: Ring, X: FloatArray, Y: FloatArray | None, kinds: Kinds) -> None:
        self.ring, self.kinds = ring, kinds
        # What arrives on a worker may begin at an odd address, where matrix products round
        # differently; aligned arrays are not copied.
        self.X = np.require(X, requirements="A")
        self.Y = None if Y is None else np.require(Y, requirements="A")
        self._columns = self.X if self.Y is None else self.Y
        self._room = threading.local()
        # A product on all threads leaves them spinning for milliseconds, beside the tiles to come:
        # of a kernel of 2000 rows that was a third of the time.
        large = self.shape[0] * self.shape[1] >= _WORTH_A_TABLE
        with single_blas_thread() if large else contextlib.nullcontext():
            rows = (self.X,) if self.Y is None else (self.X, self.Y)
            squares = np.concatenate([np.einsum("ij,ij->i", Z, Z) for Z in rows])
            middle = 0.5 * float(squares.min() + squares.max())
            # Rows that were divided by their norm: ‖x‖² is a sum of p products, right to some
            # 1e-15.  Then the norms are made equal.
            self._one_norm = middle > 0.0 and float(np.ptp(squares)) <= 1e-13 * middle
            if self._one_norm:
                squares = np.full_like(squares, middle)
            self._norms = np.sqrt(squares)
            self._shift = 0 if self.Y is None else len(self.X)
            self.states = RingStates(ring, squares)
            self._table, self._angles, self.route = self._choose()
            if self._table is not None:
                one = self._table.samples(self._norms[: len(self.X)])
                two = one if self.Y is None else self._table.samples(self._norms[len(self.X) :])
                self._samples = one, two

    def _choose(self) -> tuple[Table | None, float | None, str]:
        """Decide on the route; the only place where that is done.

        Returns the table, and the norm at which a series in the angle serves pairs beyond it.
        """
        low, high = self._norm_range()
        if high > 0.0 and (self._one_norm or self.ring.homogeneous):
            norm = low if self._one_norm else 1.0
            # Functions of the cosine alone: a fit costs milliseconds, and so pays for any number of
            # pairs, however many of them are beyond its reach.
            for reach in self._reaches(1.0):
                about = self.ring, norm, norm, not self._one_norm, reach
                if (table := fitted_table(*about)) is not None:
                    return table, norm, "univariate"
        # With norms as two more variables the fit costs as much as 250,000 pairs.
        elif high > 0.0 and self.shape[0] * self.shape[1] >= _WORTH_A_TABLE:
            for reach in self._reaches(0.1):
                table = fitted_table(self.ring, low, high, False, reach)
                if table is not None:
                    return table, None, "table"
        return None, None, self.states.method

    def _norm_range(self) -> tuple[float, float]:
        """Return the range of norms for a table; zeros if it would leave out too many samples."""
        norms = self._norms
        middle = float(np.median(norms))
        inside = (norms >= middle / _SPREAD) & (norms <= middle * _SPREAD)
        if middle == 0.0 or not np.isfinite(middle) or inside.mean() < 1.0 - _STRAY:
            return (1.0, 1.0) if self.ring.homogeneous and norms.any() else (0.0, 0.0)
        low, high = float(norms[inside].min()), float(norms[inside].max())
        if self._one_norm:
            return low, high
        # `fitted_table` is cached by its arguments: rounded ranges make another sample of the same
        # data, or the training and the test rows, find the table that is there.
        ends = math.floor(_GRID * math.log2(low)), math.ceil(_GRID * math.log2(high))
        return 2.0 ** (ends[0] / _GRID), 2.0 ** (ends[1] / _GRID)

    def _reaches(self, most: float) -> list[float]:
        """Return reaches of a table to try; none if the longest leaves more than a share `most`.

        The first is the shortest that leaves few pairs.  Decided by some rows from everywhere, and
        not by what a tile before wanted: results must not depend on the order of the work.
        """
        n, m = self.shape
        # Of a symmetric kernel no sample is on both sides.
        step1, step2 = max(n // _PROBE, 2), max(m // _PROBE, 2)
        rows, columns = slice(0, n, step1), slice(min(1, m - 1), m, step2)
        size = self._norms[:n][rows, None] * self._norms[self._shift :][columns]
        cosine = np.abs(self.X[rows] @ self._columns[columns].T) / np.where(size > 0.0, size, 1.0)
        beyond = {reach: float((cosine > reach).mean()) for reach in REACHES}
        few = _CLOSED_BEYOND if self.ring.closed_form else _BEYOND
        enough = [r for r in REACHES if beyond[r] <= (_FEW_BEYOND if r < 0.5 else few)]
        longest = REACHES[-1]
        if not enough and beyond[longest] > most:
            return []
        # Where functions change too fast for that, a shorter reach is of use to some pairs.
        return [(enough or [longest])[0], 0.5, 0.25]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the kernel."""
        return len(self.X), len(self._columns)

    @property
    def work(self) -> float:
        """Time that the whole kernel takes, in pairs of samples."""
        return float(self.shape[0]) * self.shape[1]

    @cached_property
    def diagonal(self) -> tuple[FloatArray, ...]:
        """The kernels of every row of X with itself."""
        return tuple(self.states.diagonal[kind][: len(self.X)] for kind in self.kinds)

    def tiles(self, side: int | None = None) -> list[Tile]:
        """Cut the kernel into tiles; of a symmetric one, only what is on and above the diagonal."""
        n, m = self.shape
        side = side or SIDE
        if self.Y is None:
            #     c0   c1   c2
            #   ┌────┬────┬────┐
            # r0│ ◥  │ ██ │ ██ │  Only these are computed.  A tile off the diagonal also stands for
            # r1│    │ ◥  │ ██ │  its mirror image; of one on the diagonal the upper half is done.
            # r2│    │    │ ◥  │
            #   └────┴────┴────┘
            cuts = parts(n, side)
            return [Tile(r, c) for i, r in enumerate(cuts) for c in cuts[i:]]
        # Few rows or few columns make long tiles, of the same size.
        rows, columns = parts(n, side**2 // min(m, side)), parts(m, side**2 // min(n, side))
        return [Tile(r, c) for r in rows for c in columns]

    def tile(self, tile: Tile) -> NDArray[Any]:
        """Compute the kernels of a tile, shape (kinds, rows, columns)."""
        kernels = np.empty((len(self.kinds), *tile.shape))
        unresolved = self._fill(tile, Block(tuple(kernels), 0, 0))
        if unresolved is not None:
            rows, columns = unresolved
            values = self._one_by_one(rows, columns)
            kernels[:, rows - tile.rows.start, columns - tile.columns.start] = values
        if self.Y is None and tile.rows == tile.columns:
            for kernel in kernels:
                loops.mirror(kernel, 0, 0, *tile.shape)
        return kernels

    def fill(self, kernels: Kernels) -> None:
        """Put everything into whole kernels, contiguous arrays of float64, on all threads."""

        def work(tile: Tile) -> Pairs | None:
            rows, columns = tile.rows.start, tile.columns.start
            unresolved = self._fill(tile, Block(kernels, rows, columns))
            if self.Y is None:
                for kernel in kernels:
                    loops.mirror(kernel, rows, columns, *tile.shape)
            return unresolved

        pairs = [found for found in map_threads(work, self.tiles()) if found is not None]
        if not pairs:
            return
        # Few at a time cost more than all together.
        rows, columns = (np.concatenate(field) for field in zip(*pairs, strict=True))
        cuts = parts(len(rows), _TOGETHER)
        done = map_threads(lambda cut: self._one_by_one(rows[cut], columns[cut]), cuts)
        for cut, values in zip(cuts, done, strict=True):
            for kernel, entries in zip(kernels, values, strict=True):
                kernel[rows[cut], columns[cut]] = entries
                if self.Y is None:
                    kernel[columns[cut], rows[cut]] = entries

    def _fill(self, tile: Tile, block: Block) -> Pairs | None:
        """Put the kernels of a tile into a block; on the diagonal, only the upper half.

        Returns the pairs that are still to be done one by one.
        """
        inner = self._products(tile)
        height, width = tile.shape
        corner = slice(block.top, block.top + height), slice(block.side, block.side + width)
        on_diagonal = self.Y is None and tile.rows == tile.columns
        own = np.arange(height)
        first = own + 1 if on_diagonal else np.zeros_like(own)
        unresolved, where = None, None
        if self._table is None:
            where = np.nonzero(np.arange(width) >= first[:, None])
        # The loop marks what is beyond the table by NaN and counts it.
        elif self._table.run(
            inner, block, first, self._samples, tile.rows, tile.columns, self.kinds
        ):
            where = loops.marked_places(block.kernels[0], block.top, block.side, first, width)
        views = [kernel[corner] for kernel in block.kernels]
        if where is not None:
            rows, columns = where[0] + tile.rows.start, where[1] + tile.columns.start
            values, left = self._solve(rows, columns, inner[where])
            pairs = rows[left], columns[left]
            if len(left) > _FEW:
                values[:, left] = self._one_by_one(*pairs)
            elif len(left):
                unresolved = pairs
            for view, entries in zip(views, values, strict=True):
                view[where] = entries
        if on_diagonal:
            for view, entries in zip(views, self.diagonal, strict=True):
                view[own, own] = entries[tile.rows]
        return unresolved

    def _products(self, tile: Tile) -> FloatArray:
        """X·Y of a tile, in memory that every thread uses again and that stays in its cache."""
        size = tile.shape[0] * tile.shape[1]
        room = getattr(self._room, "room", None)
        if room is None or room.size < size:
            room = self._room.room = np.empty(size)
        inner = room[:size].reshape(tile.shape)
        np.matmul(self.X[tile.rows], self._columns[tile.columns].T, out=inner)
        return np.asarray(inner)

    def _solve(
        self, rows: IntArray, columns: IntArray, inner: FloatArray
    ) -> tuple[FloatArray, IntArray]:
        """Compute the kernels of pairs, (kinds, pairs), and which of them no loop does."""
        others = columns + self._shift
        if self._table is None:
            *both, left = self.states.loop(rows, others, inner)
            return np.stack([both[kind] for kind in self.kinds]), left
        todo = np.arange(len(rows))
        values = np.empty((2, len(rows)))
        series = None
        if self._angles is not None and len(rows) >= _WORTH_ANGLES:
            series = angle_series(self.ring, self._angles)
        if series is not None:
            size = self._norms[rows] * self._norms[others]
            cosine = inner / np.where(size > 0.0, size, 1.0)
            # Nearer to ±1 the cosine from x·y has lost the digits of √(1 − |c|): those pairs need
            # the inputs themselves.
            far = (size > 0.0) & (np.abs(cosine) < 1.0 - loops.NEAR_ONE)
            # A homogeneous model was fitted at norm 1: its kernels scale with ‖x‖‖y‖.
            factor = np.ones_like(size) if self._one_norm else size
            found = np.empty((int(far.sum()), 2))
            loops.angle_kernels(cosine[far], factor[far], series, found)
            values[:, far] = found.T
            todo = np.flatnonzero(~far)
        left = np.empty(0, dtype=np.int64)
        if todo.size:
            # Pairs outside the table have large correlations, or a sample that is an exception.
            *both, left = self.states.loop(rows[todo], others[todo], inner[todo], longest=True)
            values[:, todo] = both
        return values[list(self.kinds)], todo[left]

    def _one_by_one(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Compute the kernels of pairs that no loop does, shape (kinds, pairs).

        Equal inputs take the diagonal's value.
        """
        values = np.empty((len(self.kinds), len(rows)))
        for here in parts(len(rows), _TOGETHER):
            row, column = rows[here], columns[here]
            X, Y = self.X[row], self._columns[column]
            # Copies of a row: 1 − |ρ| is exactly zero, and the diagonal has its own formula.
            same = (X == Y).all(axis=1)
            part = values[:, here]
            part[:, same] = [entries[row[same]] for entries in self.diagonal]
            if not same.all():
                inputs = InputPairs.of(X[~same], Y[~same])
                both = self.states.careful(row[~same], column[~same] + self._shift, inputs)
                part[:, ~same] = both[list(self.kinds)]
        logger.debug("%s kernel: %d pairs one by one", self.ring.name, len(rows))
        return values

    def report(self) -> None:
        """Log how the kernel was computed."""
        logger.info("%s kernel, %d × %d: %s route", self.ring.name, *self.shape, self.route)

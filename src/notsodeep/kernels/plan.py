"""Kernels of a model on data, tile by tile."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation, Centred
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import TheoryDoubtful
from notsodeep.kernels import compiled
from notsodeep.kernels.routes import PairMap, RouteName
from notsodeep.kernels.samples import SERIES_BOUND, sample_columns
from notsodeep.kernels.single_pairs import InputPairs
from notsodeep.kernels.table import (
    ALL_TRAINED,
    REACHES,
    SINGLE_BOUND,
    TABLE_BOUND,
    OuterPieces,
    Results,
    Table,
    fitted_table,
    outer_pieces,
    pair_map,
)
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, KernelName, Model
from notsodeep.numerics.pair_quadrature import TOLERANCE
from notsodeep.records import Record
from notsodeep.threads import map_threads, single_blas_thread

logger = logging.getLogger("notsodeep.kernels")

SIDE = 384
"""Side of a square tile: about a megabyte of doubles for each kernel, which stays in cache."""

_PROBE = 128  # samples on each side of the block that tells how large the cosines are
_BEYOND = 0.003  # share of pairs that may be beyond the reach of a table: they cost 100 times more
_CLOSED_BEYOND = 0.015  # the same where pairs have closed forms, which are cheaper
_FEW_BEYOND = 1e-4  # the same for a short reach: one such pair has all samples prepared
_WORTH_A_TABLE = 250_000  # pairs that take as long, one by one, as fitting a table
_WORTH_PIECES = 100  # pairs of a tile beyond the reach for which outer pieces are fitted
_SPREAD = 16.0  # norms further from the median, by this factor, are left out of a table
_STRAY = 0.005  # share of such samples above which there is no table
_GRID = 8  # ranges of norms end at powers of 2^(1/8), so that similar data share a table
_CAREFUL = 4_000  # single pairs worked on at a time
_FEW_HARD = 250  # of a tile, so few that they wait for those of other tiles: a call costs as much
_MODERATE = 1e15  # norms, and their inverses, whose squares float32 has room for
_TERMS = (32, 64, 160)  # lengths of the series of one layer for pairs that are done together
_GATHERING = 20  # products of single pairs take so many times longer than those of a whole tile


@dataclass(repr=False)
class Explanation(Record):
    """How a kernel was computed.

    Attributes
    ----------
    route : {"table", "univariate", "hinge", "series"}
        Polynomials in the cosine and the norms, in the cosine alone, or every pair by itself: in
        closed form or by series.
    reason : str
    terms : tuple of int
        Lengths of the series that were prepared (series route).
    bound : float
        Bound on what series leave out and on the error of a table, relative to the size of the
        kernel; 0 for closed forms.
    unstable, radius : int and float
        Samples without a stable equilibrium, and the largest Π_l w_l E φ_l′²: with
        ``unstable="mark"`` alone, where no network has the kernel of those samples.
    careful_pairs : int
        Pairs done one by one: nearly equal or opposite inputs, slow series, hard equations.  Their
        expectations are closed forms, or have an estimated error of at most
        `notsodeep.numerics.pair_quadrature.TOLERANCE`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(40, 30)) / 30**0.5
    >>> explanation = nsd.kernel_pair(nsd.ExplicitNetwork(["tanh"]), X).explanation
    >>> explanation.route, explanation.bound <= 1e-14, explanation.careful_pairs
    ('series', True, 0)
    """

    route: RouteName
    reason: str
    terms: tuple[int, ...] = ()
    bound: float = 0.0
    careful_pairs: int = 0
    unstable: int = 0
    radius: float = 0.0

    def __str__(self) -> str:
        text = f"{self.route} route ({self.reason})"
        if self.terms:
            text += f", up to {max(self.terms)} terms, remainder below {self.bound:.0e}"
        text += f", {self.careful_pairs} pairs one by one"
        if self.terms and self.careful_pairs:
            text += f" (estimated error below {TOLERANCE:.0e})"
        if self.unstable:
            text += f"; {self.unstable} samples without a stable equilibrium ({self.radius:.4g})"
        return text


@dataclass(frozen=True)
class Tile:
    """A rectangle of a kernel: some rows with some columns."""

    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


def _parts(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


HardPairs = tuple[IntArray, IntArray, FloatArray]
"""Rows, columns, and estimates of the conjugate kernel, of pairs that no loop does."""


@dataclass
class Plan:
    """A model between samples X and Y (or X and itself), ready to deliver tiles.

    Attributes
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    X : ndarray of shape (n, p)
    Y : ndarray of shape (m, p) or None
        None makes the kernel symmetric.
    convention : {"preactivation", "feature"}
    train : tuple of float
        Factors of weights, inputs, biases and read-out in the tangent kernel.
    unstable : bool
        Whether samples without a stable equilibrium are marked instead of rejected.
    dtype : type
        Of the tiles.  With float32 products and polynomials are in float32, where there is a
        table; everything else is in float64, and rounded.
    """

    model: Model
    X: FloatArray
    Y: FloatArray | None
    convention: Convention
    train: tuple[float, ...] = ALL_TRAINED
    unstable: bool = False
    dtype: type[Any] = np.float64
    explanation: Explanation = field(init=False)

    def __post_init__(self) -> None:
        # What arrives on a worker may begin at an odd address, where matrix products round
        # differently; aligned arrays are not copied.
        self.X = np.require(self.X, requirements="A")
        self.Y = None if self.Y is None else np.require(self.Y, requirements="A")
        self._columns = self.X if self.Y is None else self.Y
        # A product on all threads leaves them spinning for milliseconds, beside the tiles to come:
        # of a kernel of 2000 rows that was a third of the time.
        large = self.shape[0] * self.shape[1] >= _WORTH_A_TABLE
        with single_blas_thread() if large else contextlib.nullcontext():
            self._prepare()

    def _prepare(self) -> None:
        self._squares1 = np.einsum("ij,ij->i", self.X, self.X)
        self._squares2 = self._squares1 if self.Y is None else np.einsum("ij,ij->i", self.Y, self.Y)
        self._one_norm = self._merge_equal_norms()
        self._norms1, self._norms2 = np.sqrt(self._squares1), np.sqrt(self._squares2)
        self._counting, self._making = threading.Lock(), threading.Lock()
        self._room = threading.local()
        self._made: PairMap | None = None
        self._outer: OuterPieces | None = None
        self._table, self.explanation = self._choose()
        self._factors: tuple[NDArray[Any], NDArray[Any]] = (self.X, self._columns)
        if self._table is not None and self._table.dtype is not np.float64:
            one = self.X.astype(self._table.dtype)
            self._factors = one, one if self.Y is None else self.Y.astype(self._table.dtype)
        if self._table is not None:
            self._samples1 = self._samples2 = self._table.samples(self._norms1)
            if self.Y is not None:
                self._samples2 = self._table.samples(self._norms2)
        # Without a table, and for samples beyond it, this finds out now whether there is a kernel.
        covered = self._table is not None and bool(
            self._table.covers(self._norms1).all() and self._table.covers(self._norms2).all()
        )
        self._diagonal_from_table = covered
        if not covered:
            self._pairs()

    def _pairs(self) -> PairMap:
        """Return what the slower loops know about every sample, made when first asked for."""
        with self._making:
            if self._made is None:
                second = None if self.Y is None else self._squares2
                which = self.convention, self.train
                self._made = pair_map(
                    self.model, self._squares1, second, *which, unstable=self.unstable
                )
            return self._made

    def _merge_equal_norms(self) -> bool:
        """If the norms differ by rounding only, make them equal, and say so."""
        everything = np.concatenate([self._squares1, self._squares2])
        middle = 0.5 * float(everything.min() + everything.max())
        # Rows that were divided by their norm: ‖x‖² is a sum of p products, right to some 1e-15.
        if middle == 0.0 or np.ptp(everything) > 1e-13 * middle:
            return False
        self._squares1 = np.full_like(self._squares1, middle)
        self._squares2 = np.full_like(self._squares2, middle)
        return True

    def _choose(self) -> tuple[Table | None, Explanation]:
        """Decide on the route; the only place where that is done."""
        about = self.model, self.convention, self.train
        low, high = self._norm_range()
        # Products of rows must keep clear of float32's largest and least numbers.
        moderate = low > 1.0 / _MODERATE and high < _MODERATE
        if self._homogeneous and high > 0.0:
            norms = np.concatenate([self._norms1, self._norms2])
            moderate = norms[norms > 0.0].min() > 1.0 / _MODERATE and norms.max() < _MODERATE
        kind: Any = self.dtype if moderate else np.float64
        bound = TABLE_BOUND if kind is np.float64 else SINGLE_BOUND
        if self.unstable and (radius := self._pairs().radius).max() >= 1.0:
            found = Explanation("series", "no stable equilibrium: pair by pair")
            found.unstable, found.radius = int((radius >= 1.0).sum()), float(radius.max())
            return None, found
        if high > 0.0 and (self._one_norm or self._homogeneous):
            reason = "inputs of one norm" if self._one_norm else "positively homogeneous activation"
            norm = low if self._one_norm else 1.0
            # Functions of the cosine alone: a fit costs milliseconds, and so pays for any number of
            # pairs, however many of them are beyond its reach.
            for reach in self._reaches(1.0):
                table = fitted_table(*about, norm, norm, not self._one_norm, reach, kind)
                if table is not None:
                    self._outer = outer_pieces(*about, norm, reach)
                    exact = kind is np.float64
                    return table, Explanation("univariate", reason, bound=0.0 if exact else bound)
        # With norms as two more variables the fit costs as much as 250,000 pairs.
        elif high > 0.0 and self.shape[0] * self.shape[1] >= _WORTH_A_TABLE:
            for reach in self._reaches(0.1):
                table = fitted_table(*about, low, high, False, reach, kind)
                if table is not None:
                    reason = "polynomials in the cosine and the norms"
                    return table, Explanation("table", reason, bound=bound)
        if self._pairs().kind == "hinge":
            return None, Explanation("hinge", "ReLU family in closed form")
        return None, Explanation("series", "Hermite coefficients of the activation")

    def _norm_range(self) -> tuple[float, float]:
        """Return the range of norms for a table; zeros if it would leave out too many samples."""
        norms = np.concatenate([self._norms1, self._norms2])
        middle = float(np.median(norms))
        inside = (norms >= middle / _SPREAD) & (norms <= middle * _SPREAD)
        if middle == 0.0 or not np.isfinite(middle) or inside.mean() < 1.0 - _STRAY:
            return (1.0, 1.0) if self._homogeneous and norms.any() else (0.0, 0.0)
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
        size = self._norms1[rows, None] * self._norms2[columns]
        cosine = np.abs(self.X[rows] @ self._columns[columns].T) / np.where(size > 0.0, size, 1.0)
        beyond = {reach: float((cosine > reach).mean()) for reach in REACHES}
        # In float32 powers cost half, and pairs beyond the reach a product in float64 more.
        closed = self._closed_form and self.dtype is np.float64
        few = _CLOSED_BEYOND if closed else _BEYOND
        enough = [r for r in REACHES if beyond[r] <= (_FEW_BEYOND if r < 0.5 else few)]
        longest = REACHES[-1]
        if not enough and beyond[longest] > most:
            return []
        # Where functions change too fast for that, a shorter reach is of use to some pairs.
        return [(enough or [longest])[0], 0.5, 0.25]

    @property
    def _closed_form(self) -> bool:
        """Whether every activation is a hinge at zero, centred or not."""
        model = self.model
        if isinstance(model, ExplicitNetwork):
            found: list[Activation] = list(model.activations)
        elif isinstance(model, DeepEquilibrium):
            found = [layer.activation for layer in model.cell]
        else:
            found = [model.activation]
        return all((x.base if isinstance(x, Centred) else x).homogeneous for x in found)

    @property
    def _homogeneous(self) -> bool:
        if isinstance(self.model, ExplicitNetwork):
            return all(activation.homogeneous for activation in self.model.activations)
        if isinstance(self.model, DeepEquilibrium):
            return all(
                layer.activation.homogeneous and layer.bias == 0.0 and layer.normalise is None
                for layer in self.model.cell
            )
        return self.model.activation.homogeneous and self.model.bias == 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the kernel."""
        return len(self.X), len(self._columns)

    @cached_property
    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        if self._diagonal_from_table and self._table is not None:
            return self._table.diagonal(self._norms1)
        return self._pairs().diagonal()

    def diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of every row of X with itself."""
        return self._diagonal

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
            parts = _parts(n, side)
            return [Tile(r, c) for i, r in enumerate(parts) for c in parts[i:]]
        # Few rows or few columns make long tiles, of the same size.
        rows, columns = _parts(n, side**2 // min(m, side)), _parts(m, side**2 // min(n, side))
        return [Tile(r, c) for r in rows for c in columns]

    def tile(self, tile: Tile) -> NDArray[Any]:
        """CK and NTK of a tile, shape (2, rows, columns); symmetric if on the diagonal."""
        both = np.empty((2, *tile.shape), self.dtype)
        self._fill(tile, Results(both[0], both[1], 0, 0))
        if self._on_diagonal(tile):
            for kernel in both:
                compiled.mirror(kernel, 0, 0, *tile.shape)
        return both

    def fill(
        self,
        tile: Tile,
        conjugate: NDArray[Any],
        tangent: NDArray[Any],
        left: list[HardPairs],
    ) -> None:
        """Put a tile, and its mirror image if symmetric, into two whole kernels.

        These are contiguous, of the plan's type.  Pairs that are done one by one are added to
        `left`, for `fill_left`: few at a time, they cost more than all together.
        """
        rows, columns = tile.rows.start, tile.columns.start
        # Samples without a stable equilibrium are marked tile by tile: nothing may come after.
        later = None if self.explanation.unstable else left
        self._fill(tile, Results(conjugate, tangent, rows, columns), later)
        if self.Y is None:
            for kernel in (conjugate, tangent):
                compiled.mirror(kernel, rows, columns, *tile.shape)

    def fill_left(
        self, left: list[HardPairs], conjugate: NDArray[Any], tangent: NDArray[Any]
    ) -> None:
        """Put the pairs that `fill` has left into the two kernels, on all threads."""
        left.sort(key=lambda pairs: (pairs[0][0], pairs[1][0]))  # threads ended in any order
        fields = [np.concatenate(field) for field in zip(*left, strict=True)]
        count = len(fields[0]) if left else 0
        parts = [[field[k : k + _CAREFUL] for field in fields] for k in range(0, count, _CAREFUL)]
        for (rows, columns, _), values in zip(
            parts, map_threads(lambda part: self._one_by_one(*part), parts), strict=True
        ):
            for kernel, entries in zip((conjugate, tangent), values, strict=True):
                kernel[rows, columns] = entries
                if self.Y is None:
                    kernel[columns, rows] = entries

    def _on_diagonal(self, tile: Tile) -> bool:
        return self.Y is None and tile.rows == tile.columns

    def _fill(self, tile: Tile, results: Results, left: list[HardPairs] | None = None) -> None:
        """Put both kernels of a tile into their places; on the diagonal, only the upper half.

        Pairs to be done one by one are added to `left`, if there is such a list.
        """
        inner = self._products(tile)
        height, width = tile.shape
        place = (
            slice(results.top, results.top + height),
            slice(results.side, results.side + width),
        )
        own = np.arange(height)
        first = own + 1 if self._on_diagonal(tile) else np.zeros_like(own)
        conjugate, tangent = pair = results.conjugate[place], results.tangent[place]
        if self._table is None:
            where = np.nonzero(np.arange(width) >= first[:, None])
            self._fill_list(tile, inner[where], where, *pair, left)
        else:
            # The loop marks what is beyond the table by NaN and counts it.
            beyond = self._table.run(
                inner, results, first, self._samples1, tile.rows, self._samples2, tile.columns
            )
            if beyond:
                where = compiled.marked_places(
                    results.conjugate, results.top, results.side, first, width
                )
                products = self._exact_products(tile, inner, where)
                self._fill_list(tile, products, where, *pair, left)
        if self._on_diagonal(tile):
            for kernel, values in zip((conjugate, tangent), self.diagonal(), strict=True):
                kernel[own, own] = values[tile.rows]
        if self.explanation.unstable:  # the series behind the tangent kernel diverges
            radius = self._pairs().radius
            others = radius if self.Y is None else radius[len(self.X) :]
            tangent[np.outer(radius[tile.rows], others[tile.columns]) >= 1.0] = np.nan

    def _products(self, tile: Tile) -> NDArray[Any]:
        """X·Y of a tile, in memory that every thread uses again and that stays in its cache."""
        one, two = self._factors
        size = tile.shape[0] * tile.shape[1]
        room = getattr(self._room, "room", None)
        if room is None or room.size < size:
            room = self._room.room = np.empty(size, one.dtype)
        inner = room[:size].reshape(tile.shape)
        np.matmul(one[tile.rows], two[tile.columns].T, out=inner)
        return np.asarray(inner)

    def _exact_products(
        self, tile: Tile, inner: NDArray[Any], where: tuple[NDArray[np.integer[Any]], ...]
    ) -> FloatArray:
        """X·Y of some pairs of a tile, in float64: near ±1 the cosine must have all its digits."""
        if inner.dtype == np.float64:
            return np.asarray(inner[where])
        one, two = self.X[tile.rows], self._columns[tile.columns]
        if len(where[0]) * _GATHERING > inner.size:
            return np.asarray((one @ two.T)[where])
        parts = [slice(start, start + _CAREFUL) for start in range(0, len(where[0]), _CAREFUL)]
        products = [np.einsum("ij,ij->i", one[where[0][k]], two[where[1][k]]) for k in parts]
        return np.concatenate(products)

    def _fill_list(
        self,
        tile: Tile,
        products: FloatArray,
        where: tuple[NDArray[np.integer[Any]], ...],
        conjugate: NDArray[Any],
        tangent: NDArray[Any],
        left: list[HardPairs] | None,
    ) -> None:
        """Fill some places of a tile, pair by pair."""
        rows, columns = where[0] + tile.rows.start, where[1] + tile.columns.start
        if self._table is None:
            one, two, hard = self._pairs().loop(rows, columns, products)
            values = np.stack([one, two])
        else:
            values, hard = self._beyond_table(rows, columns, products)
        pairs = rows[hard], columns[hard], values[0, hard]
        if left is None or len(hard) > _FEW_HARD:
            values[:, hard] = self._one_by_one(*pairs)
        elif len(hard):
            left.append(pairs)
        conjugate[where], tangent[where] = values

    def _beyond_table(
        self, rows: IntArray, columns: IntArray, products: FloatArray
    ) -> tuple[FloatArray, IntArray]:
        """Both kernels of some pairs, shape (2, pairs), and which of them no loop does."""
        todo = np.arange(len(rows))
        values = np.empty((2, len(rows)))
        if self._outer is not None and len(rows) >= _WORTH_PIECES:
            size = self._norms1[rows] * self._norms2[columns]
            cosine = products / np.where(size > 0.0, size, 1.0)
            # Nearer to ±1 the cosine from x·y has lost the digits of √(1 − |c|): those pairs need
            # the inputs themselves.
            far = (size > 0.0) & (np.abs(cosine) < 1.0 - compiled.NEAR_ONE)
            # A homogeneous model was fitted at norm 1: its kernels scale with ‖x‖‖y‖.
            factor = size if self._homogeneous and not self._one_norm else np.ones_like(size)
            found = self._outer.run(cosine[far], factor[far])
            if found is not None:
                values[:, far] = found
                todo = np.flatnonzero(~far)
        if not todo.size:
            return values, todo
        # What is beyond a table has large correlations, or a sample that is an exception.
        values[0, todo], values[1, todo], hard = self._pairs().loop(
            rows[todo], columns[todo], products[todo], longest=True
        )
        return values, todo[hard]

    def _one_by_one(self, rows: IntArray, columns: IntArray, near: FloatArray) -> FloatArray:
        """Both kernels of pairs that no loop does, from estimates of the first; shape (2, pairs).

        Equal inputs take the diagonal's value.
        """
        values = np.empty((2, len(rows)))
        for start in range(0, len(rows), _CAREFUL):
            here = slice(start, start + _CAREFUL)
            row, column = rows[here], columns[here]
            X, Y = self.X[row], self._columns[column]
            # Copies of a row: 1 − |ρ| is exactly zero, and the diagonal has its own formula.
            same = (X == Y).all(axis=1)
            part = values[:, here]
            part[:, same] = [diagonal[row[same]] for diagonal in self.diagonal()]
            if not same.all():
                other = ~same
                inputs = InputPairs.of(X[other], Y[other])
                part[:, other] = self._pairs().careful(
                    row[other], column[other], inputs, near[here][other]
                )
        with self._counting:
            self.explanation.careful_pairs += len(rows)
        return values

    def report(self) -> None:
        """Log how the kernel was computed."""
        if self.explanation.route == "series":
            lengths = {length for layer in self._pairs().layers for length in layer.prepared}
            self.explanation.terms = tuple(sorted(lengths))
            self.explanation.bound = SERIES_BOUND
        if self.explanation.unstable:
            warnings.warn(
                f"The {self.model} has no stable equilibrium for {self.explanation.unstable} of "
                f"the samples: the product of w E φ′² reaches {self.explanation.radius:.4g} and "
                "must stay below 1. The conjugate kernel solves its equation there, but is not "
                "that of any network, however wide; the tangent kernel is marked by NaN.",
                TheoryDoubtful,
                stacklevel=4,
            )
        logger.info("%s kernel, %d × %d: %s", self.model, *self.shape, self.explanation)


class FixedPairs:
    """All pairs of some rows, whose products serve any number of models.

    For models that are tried one after the other, each of them once: nothing is fitted, and no
    matrix is made.

    Parameters
    ----------
    X : ndarray of shape (n, p)
    """

    def __init__(self, X: FloatArray) -> None:
        self._X = X
        self._rows, self._columns = np.triu_indices(len(X), 1)
        self._inner = self.entries(X @ X.T)[: len(self._rows)]
        self._squares = np.einsum("ij,ij->i", X, X)
        self._scales = np.maximum(np.sqrt(self._squares), 1e-30)
        self._rho = self._inner / (self._scales[self._rows] * self._scales[self._columns])

    def entries(self, matrix: FloatArray) -> FloatArray:
        """Those of a symmetric matrix above the diagonal, then those on it."""
        return np.concatenate([matrix[self._rows, self._columns], np.diag(matrix)])

    @property
    def multiplicity(self) -> FloatArray:
        """How often each of the entries stands in the matrix."""
        return np.concatenate([np.full(len(self._rows), 2.0), np.ones(len(self._X))])

    def matrix(self, entries: FloatArray) -> FloatArray:
        """Return the symmetric matrix that has these entries."""
        n = len(self._X)
        result = np.empty((n, n))
        result[self._rows, self._columns] = entries[: len(self._rows)]
        result[self._columns, self._rows] = entries[: len(self._rows)]
        result[np.arange(n), np.arange(n)] = entries[len(self._rows) :]
        return result

    @cached_property
    def _terms(self) -> int | None:
        """Terms of Mehler's series that are enough for all pairs; None if there are too few."""
        largest = float(np.abs(self._rho).max(initial=0.0))
        return next((terms for terms in _TERMS if largest**terms <= SERIES_BOUND), None)

    def _sums(self, own: FloatArray, others: FloatArray, kind: KernelName) -> FloatArray:
        """Σ_k w_k ρ^k (a_ik b_jk + b_ik a_jk) of all pairs for every b, (P, n, terms).

        The tangent kernel of one layer is Σ_k (1 + k) ρ^k a_ik a_jk.
        """
        terms = own.shape[1]
        weights = np.ones(terms) + (kind == "ntk") * np.arange(terms)
        out = np.empty((len(others), len(self._rho)))
        columns = np.ascontiguousarray(others.transpose(0, 2, 1))
        compiled.series_sums(self._rho, np.ascontiguousarray(own.T), columns, weights, out)
        return out

    def _one_layer(self, layer: Activation, terms: int, kind: KernelName) -> FloatArray:
        own = layer.hermite_coefficients(self._scales, terms)
        samples = sample_columns(layer, self._scales)
        diagonal = samples.square
        if kind == "ntk":
            diagonal = diagonal + self._squares * samples.slope_square
        return np.concatenate([0.5 * self._sums(own, own[None], kind)[0], diagonal])

    def kernel(self, model: Model, kind: KernelName, convention: Convention) -> FloatArray:
        """Entries of the exact kernel of a model."""
        if isinstance(model, ExplicitNetwork) and model.depth == 1 and self._terms is not None:
            return self._one_layer(model.activations[0], self._terms, kind)
        which = 0 if kind == "ck" else 1
        pairs = pair_map(model, self._squares, None, convention)
        *both, left = pairs.loop(self._rows, self._columns, self._inner)
        diagonal = pairs.diagonal()[which]
        values = both[which]
        if len(left):
            row, column = self._rows[left], self._columns[left]
            same = (self._X[row] == self._X[column]).all(axis=1)
            values[left[same]] = diagonal[row[same]]
            if not same.all():
                row, column, left = row[~same], column[~same], left[~same]
                inputs = InputPairs.of(self._X[row], self._X[column])
                near = both[0][left]
                values[left] = pairs.careful(row, column, inputs, near)[which]
        return np.concatenate([values, diagonal])

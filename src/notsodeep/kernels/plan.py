"""Kernels of a model on data, tile by tile."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.kernels import compiled
from notsodeep.kernels.routes import Block, RouteName
from notsodeep.kernels.samples import SERIES_BOUND, padded
from notsodeep.kernels.single_pairs import InputPairs
from notsodeep.kernels.univariate import ALL_TRAINED, CosineMap, pair_map
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, Model
from notsodeep.numerics.pair_quadrature import TOLERANCE
from notsodeep.records import Record

logger = logging.getLogger("notsodeep.kernels")

SIDE = 384
"""Side of a square tile: about a megabyte of doubles for each kernel, which stays in cache."""

_PROBE = 256  # samples on each side of the block that tells how long the series must be
_CAREFUL = 4_000  # single pairs worked on at a time
_MANY = 1e-3  # share of marked pairs above which a block is done again by the general route


@dataclass(repr=False)
class Explanation(Record):
    """How a kernel was computed.

    Attributes
    ----------
    route : {"univariate", "hinge", "series"}
    reason : str
    terms : tuple of int
        Lengths of the series that were prepared (series route).
    bound : float
        Bound on what the series leave out, relative to the size of the kernel; 0 for closed forms.
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

    def __str__(self) -> str:
        text = f"{self.route} route ({self.reason})"
        if self.terms:
            text += f", up to {max(self.terms)} terms, remainder below {self.bound:.0e}"
        text += f", {self.careful_pairs} pairs one by one"
        if self.terms and self.careful_pairs:
            text += f" (estimated error below {TOLERANCE:.0e})"
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
    """

    model: Model
    X: FloatArray
    Y: FloatArray | None
    convention: Convention
    train: tuple[float, ...] = ALL_TRAINED
    explanation: Explanation = field(init=False)

    def __post_init__(self) -> None:
        # What arrives on a worker may begin at an odd address, where matrix products round
        # differently; aligned arrays are not copied.
        self.X = np.require(self.X, requirements="A")
        self.Y = None if self.Y is None else np.require(self.Y, requirements="A")
        self._columns = self.X if self.Y is None else self.Y
        self._squares1 = np.einsum("ij,ij->i", self.X, self.X)
        self._squares2 = self._squares1 if self.Y is None else np.einsum("ij,ij->i", self.Y, self.Y)
        self._one_norm = self._merge_equal_norms()
        self._counting = threading.Lock()
        second = None if self.Y is None else self._squares2
        self._pairs = pair_map(self.model, self._squares1, second, self.convention, self.train)
        self._norms1, self._norms2 = np.sqrt(self._squares1), padded(np.sqrt(self._squares2), 1.0)
        self._cosine, self.explanation = self._choose()

    def _merge_equal_norms(self) -> bool:
        """If the norms differ by rounding only, make them equal, and say so."""
        everything = np.concatenate([self._squares1, self._squares2])
        middle = 0.5 * float(everything.min() + everything.max())
        if middle == 0.0 or np.ptp(everything) > 1e-13 * middle:
            return False
        self._squares1 = np.full_like(self._squares1, middle)
        self._squares2 = np.full_like(self._squares2, middle)
        return True

    def _choose(self) -> tuple[CosineMap | None, Explanation]:
        """Decide on the route; the only place where that is done."""
        reason = None
        if self._one_norm:
            reason, size = "inputs of one norm", float(self._squares1[0])
        elif self._homogeneous:
            reason, size = "positively homogeneous activation", 1.0
        if reason is not None:
            cosine = CosineMap(self.model, size, self.convention, self.train)
            if cosine.resolved:
                return cosine, Explanation("univariate", reason)
        if self._pairs.kind == "hinge":
            return None, Explanation("hinge", "ReLU family in closed form")
        return None, Explanation("series", "Hermite coefficients of the activation")

    @property
    def _homogeneous(self) -> bool:
        if isinstance(self.model, ExplicitNetwork):
            return all(activation.homogeneous for activation in self.model.activations)
        if isinstance(self.model, DeepEquilibrium):
            return all(
                layer.activation.homogeneous and layer.bias == 0.0 and layer.normalise == "none"
                for layer in self.model.cell
            )
        return self.model.activation.homogeneous and self.model.bias == 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the kernel."""
        return len(self.X), len(self._columns)

    @cached_property
    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        return self._pairs.diagonal()

    def diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of every row of X with itself."""
        return self._diagonal

    def tiles(self, side: int | None = None) -> list[Tile]:
        """Cut the kernel into tiles; of a symmetric one, only what is on and above the diagonal."""
        n, m = self.shape
        side = side or SIDE
        if self.Y is None:
            parts = _parts(n, side)
            return [Tile(r, c) for i, r in enumerate(parts) for c in parts[i:]]
        # Few rows or few columns make long tiles, of the same size.
        rows, columns = _parts(n, side**2 // min(m, side)), _parts(m, side**2 // min(n, side))
        return [Tile(r, c) for r in rows for c in columns]

    def tile(self, tile: Tile) -> FloatArray:
        """CK and NTK of a tile, shape (2, rows, columns); symmetric if on the diagonal."""
        both = np.empty((2, *tile.shape))
        upper = self.Y is None and tile.rows == tile.columns
        self._evaluate(tile, both[0], both[1], upper=upper)
        if upper:
            compiled.mirror(both[0])
            compiled.mirror(both[1])
        return both

    def _evaluate(self, tile: Tile, gram: FloatArray, tangent: FloatArray, *, upper: bool) -> None:
        """Fill a tile; with `upper`, only what lies on and above its diagonal."""
        rows = tile.rows
        X, Y = self.X[rows], self._columns[tile.columns]
        own = np.arange(len(X))
        first = own + 1 if upper else np.zeros_like(own)
        block = Block(gram, tangent, rows, tile.columns.start, first, X, Y)
        if self._cosine is not None:
            marked = self._cosine.run(block, self._norms1[rows], self._norms2, self._homogeneous)
        if self._cosine is None or marked.sum() > _MANY * gram.size:
            marked = self._pairs.run(block, self._first_attempt)
        if marked.any():
            self._finish(block, marked)
        if upper:
            for kernel, values in zip((gram, tangent), self.diagonal(), strict=True):
                kernel[own, own] = values[rows]

    @cached_property
    def _first_attempt(self) -> int:
        """Which length of the series to begin with: correlated data want the longest at once.

        Decided by some rows from everywhere, and not by what a tile before wanted: results must not
        depend on the order of the work.
        """
        n, m = self.shape
        if self._pairs.attempts == 1 or min(n, m) < _PROBE:
            return 0
        rows = slice(0, n, n // _PROBE)
        X, Y = self.X[rows], self._columns[:_PROBE]
        gram, tangent = np.empty((2, len(X), len(Y)))
        block = Block(gram, tangent, rows, 0, np.zeros(len(X), dtype=np.int64), X, Y)
        return self._pairs.attempts - 1 if self._pairs.attempt(block, 0)[:, 1].any() else 0

    def _finish(self, block: Block, marked: NDArray[np.int64]) -> None:
        """Do the marked pairs of a block one by one; equal inputs take the diagonal's value."""
        worked_on = np.arange(block.gram.shape[1]) >= block.first[:, None]
        rows, columns = np.nonzero(np.isnan(block.gram) & worked_on & (marked > 0)[:, None])
        for start in range(0, len(rows), _CAREFUL):
            here = rows[start : start + _CAREFUL], columns[start : start + _CAREFUL]
            row, column = here[0] + block.rows.start, here[1] + block.shift
            X, Y = self.X[row], self._columns[column]
            same = (X == Y).all(axis=1)
            values = [diagonal[row] for diagonal in self.diagonal()]
            if not same.all():
                inputs = InputPairs.of(X[~same], Y[~same])
                careful = self._pairs.careful(row[~same], column[~same], inputs)
                for value, result in zip(values, careful, strict=True):
                    value[~same] = result
            block.gram[here], block.tangent[here] = values
        with self._counting:
            self.explanation.careful_pairs += len(rows)

    def report(self) -> None:
        """Log how the kernel was computed."""
        if self.explanation.route == "series":
            lengths = {length for layer in self._pairs.layers for length in layer.prepared}
            self.explanation.terms = tuple(sorted(lengths))
            self.explanation.bound = SERIES_BOUND
        logger.info("%s kernel, %d × %d: %s", self.model, *self.shape, self.explanation)

"""The univariate route: kernels as polynomials in the cosine, and the choice of a pair map."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.kernels import compiled
from notsodeep.kernels.cells import CellPairs
from notsodeep.kernels.routes import Block, ExplicitPairs, PairMap, VanillaPairs
from notsodeep.kernels.single_pairs import InputPairs
from notsodeep.models import Convention, ExplicitNetwork, Model, MonotoneEquilibrium
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series

_REACH = 0.5  # |cosine| up to which the middle polynomial of the univariate route goes
_SIZES = (32, 64, 128)
_WORTH_FITTING = 100  # pairs beyond the middle piece from which the outer ones are fitted
_NOISE = 4e-15  # Chebyshev coefficients below this, relative to the values, are rounding

ALL_TRAINED = (1.0, 1.0, 1.0, 1.0)
"""Factors of weights, inputs, biases and read-out in a tangent kernel with everything trained."""


def pair_map(
    model: Model,
    squares1: FloatArray,
    squares2: FloatArray | None,
    convention: Convention,
    train: tuple[float, ...] = ALL_TRAINED,
) -> PairMap:
    """Return the pair map of a model between samples of these squared norms."""
    if isinstance(model, ExplicitNetwork):
        return ExplicitPairs(model, squares1, squares2, convention)
    if not isinstance(model, MonotoneEquilibrium) and model.is_vanilla and train == ALL_TRAINED:
        return VanillaPairs(model, squares1, squares2, convention)
    return CellPairs(model, squares1, squares2, convention, train)


def _powers(series: FloatArray) -> FloatArray:
    """Turn Chebyshev series (columns) into powers, padded as the compiled loop wants them."""
    length = compiled.TERMS_STEP * -(-len(series) // compiled.TERMS_STEP)
    powers = np.zeros((length, series.shape[1]))
    for column in range(series.shape[1]):
        converted = np.polynomial.chebyshev.cheb2poly(series[:, column])
        powers[: len(converted), column] = converted
    return powers


class CosineMap:
    """The kernels as functions of the cosine, for samples of one norm or homogeneous models."""

    def __init__(
        self,
        model: Model,
        squared_norm: float,
        convention: Convention,
        train: tuple[float, ...],
    ) -> None:
        # One sample against as many equal ones as there are ever nodes.
        many = np.full(max(_SIZES), squared_norm)
        self._pairs = pair_map(model, many[:1], many, convention, train)
        self._squared_norm = squared_norm
        self.middle = self._fit(lambda x: (_REACH * x, 1.0 - _REACH * np.abs(x)))
        self._extending = threading.Lock()
        self._extended = False
        self._outer: tuple[FloatArray, ...] | None = None

    @property
    def resolved(self) -> bool:
        """Whether the polynomials represent the kernels to rounding."""
        return self.middle is not None

    def outer(self) -> tuple[FloatArray, ...] | None:
        """Polynomials for 0.5 < |cosine| ≤ 1, fitted when first asked for; None if they fail."""
        with self._extending:
            if not self._extended:
                span = math.sqrt(1.0 - _REACH)

                def rest(x: FloatArray) -> FloatArray:
                    return np.asarray((0.5 * span * (1.0 + x)) ** 2)

                upper = self._fit(lambda x: (1.0 - rest(x), rest(x)))
                lower = self._fit(lambda x: (rest(x) - 1.0, rest(x)))
                self._outer = None if upper is None or lower is None else (*upper, *lower)
                self._extended = True
        return self._outer

    def _fit(
        self, cosine_and_rest: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
    ) -> tuple[FloatArray, FloatArray] | None:
        """Polynomials in x ∈ [−1, 1] for both kernels, or None if they do not reach rounding."""
        for size in _SIZES:
            points = chebyshev_points(size)
            values = np.stack(self._evaluate(*cosine_and_rest(points)), axis=1)
            series = chebyshev_series(values)
            scale = np.abs(values).max(axis=0)
            small = (np.abs(series) <= _NOISE * scale).all(axis=1)
            if small[-4:].all():
                kept = int(np.flatnonzero(~small).max(initial=0)) + 1
                powers = _powers(series[:kept])
                # In powers the coefficients grow; rounding must not grow with them.
                if (np.abs(powers).sum(axis=0) <= 100.0 * scale).all():
                    return np.ascontiguousarray(powers[:, 0]), np.ascontiguousarray(powers[:, 1])
                return None
        return None

    def _evaluate(self, cosine: FloatArray, rest: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both kernels at given cosines, 1 − |cosine| = rest being known apart."""
        inner = self._squared_norm * cosine
        gram, tangent = np.empty((2, 1, len(cosine)))
        none = np.zeros(1, dtype=np.int64)
        # Samples of one feature, whose products are the inner products wanted.
        block = Block(gram, tangent, slice(0, 1), 0, none, np.ones((1, 1)), inner[:, None])
        self._pairs.run(block)
        left = np.flatnonzero(np.isnan(gram[0]))
        if left.size:
            norms = np.full(left.size, math.sqrt(self._squared_norm))
            inputs = InputPairs(inner[left], norms, norms, rest[left])
            gram[0, left], tangent[0, left] = self._pairs.careful(0 * left, left, inputs)
        return gram[0], tangent[0]

    def run(
        self, block: Block, norms1: FloatArray, norms2: FloatArray, homogeneous: bool
    ) -> IntArray:
        """Turn a block of x·y into both kernels, in place; return marks per row.

        `norms1` belongs to the rows of the block, `norms2` to all columns and a strip beyond.
        """
        assert self.middle is not None
        marked = np.zeros((len(block.gram), 2), dtype=np.int64)
        outer: tuple[FloatArray, ...] | None = (np.empty(0),) * 4
        while outer is not None:
            block.fill()
            compiled.univariate_block(
                block.gram, block.tangent, block.first, block.shift, norms1, norms2, homogeneous,
                _REACH, *self.middle, *outer, marked,
            )  # fmt: skip
            # The outer polynomials are made only if a block has enough large cosines to pay.
            finished = outer[0].size > 0 or marked[:, 1].sum() < _WORTH_FITTING
            outer = None if finished else self.outer()
        return marked[:, 0]

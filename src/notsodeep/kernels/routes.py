"""How the pairs of a block are evaluated; `plan` decides which route is taken.

Routes, fastest first:

univariate
    Inputs of equal norm, or a positively homogeneous activation: the kernel is a function of the
    cosine alone (times the norms), fitted once by polynomials.
hinge
    The ReLU family, centred or not: arc-cosine form inside Newton's method.
series
    Any other activation: Mehler's series inside Newton's method, with as many terms as the block
    needs.

Whatever a route marks as uncertain goes to `single_pairs`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernels import compiled
from notsodeep.kernels.samples import Layer, SampleColumns, equilibrium_scales
from notsodeep.kernels.single_pairs import InputPairs, equilibrium_pairs, explicit_pairs
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, Model
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
RouteName = Literal["univariate", "hinge", "series"]

_REACH = 0.5  # |cosine| up to which the middle polynomial of the univariate route goes
_SIZES = (32, 64, 128)
_WORTH_FITTING = 100  # pairs beyond the middle piece from which the outer ones are fitted
_OVERFLOW = 1e290  # leaves room for the sums and products on the way to an entry
_NOISE = 4e-15  # Chebyshev coefficients below this, relative to the values, are rounding


@dataclass(frozen=True)
class Block:
    """A block of pairs being worked on.

    Attributes
    ----------
    gram : ndarray of shape (rows, columns)
        Room for x·y, and then for the conjugate kernel.
    tangent : ndarray of shape (rows, columns)
        Room for the tangent kernel.
    rows : slice
        Which samples the rows are.
    shift : int
        Which sample the first column is.
    first : ndarray of shape (rows,)
        The column at which the work on a row begins.
    X, Y : ndarray of shape (rows, p), (columns, p)
        The samples of rows and columns.
    """

    gram: FloatArray
    tangent: FloatArray
    rows: slice
    shift: int
    first: IntArray
    X: FloatArray
    Y: FloatArray

    def fill(self) -> None:
        """Put x·y into `gram`; again, if a first attempt has overwritten it."""
        np.matmul(self.X, self.Y.T, out=self.gram)


class PairMap:
    """A model between two sets of samples: everything about it that a block needs."""

    def __init__(
        self,
        model: Model,
        squares1: FloatArray,
        squares2: FloatArray | None,
        convention: Convention,
    ) -> None:
        self.model = model
        self.convention = convention
        split = len(squares1)
        squares = squares1 if squares2 is None else np.concatenate([squares1, squares2])

        def layer(activation: Activation, scales: FloatArray) -> Layer:
            return Layer(activation, scales[:split], None if squares2 is None else scales[split:])

        if isinstance(model, DeepEquilibrium):
            self.layers = [layer(model.activation, equilibrium_scales(model, squares))]
        else:
            self.layers = []
            scales = np.sqrt(squares)
            for activation in model.activations:
                scales = np.maximum(scales, 1e-30)
                self.layers.append(layer(activation, scales))
                scales = np.sqrt(self.layers[-1].everything.square)
        self._require_stable()
        self._require_representable()

    @property
    def kind(self) -> RouteName:
        """Name of the route of the compiled loops: hinge if every layer is one."""
        return "hinge" if all(x.kind == compiled.HINGE for x in self.layers) else "series"

    def diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of every row sample with itself, from their own formulas."""
        return self._diagonal([layer.rows for layer in self.layers])

    def _diagonal(self, layers: list[SampleColumns]) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of samples with themselves, from their columns in every layer."""
        if isinstance(self.model, DeepEquilibrium):
            (samples,) = layers
            variance = samples.scales**2
            dot = self.model.sigma_a2 * samples.slope_square
            if self.convention == "feature":
                tangent = samples.square + variance * samples.slope_square / (1.0 - dot)
                return samples.square, tangent
            return variance, variance / (1.0 - dot)
        covariance = tangent = layers[0].scales ** 2
        for samples in layers:
            covariance = samples.square
            tangent = covariance + tangent * samples.slope_square
        return covariance, tangent

    def _require_stable(self) -> None:
        """Refuse σa² E φ′² ≥ 1, on the diagonal and so, by Cauchy and Schwarz, everywhere.

        There the equilibrium repels: G/(1 − Ġ) means nothing, and although G solves its equation it
        is not the kernel of any network, however wide.
        """
        if not isinstance(self.model, DeepEquilibrium):
            return
        samples = self.layers[0].everything
        dot = self.model.sigma_a2 * samples.slope_square
        worst = int(dot.argmax())
        if not dot[worst] < 1.0:
            raise NotConverged(
                f"The {self.model} has no stable equilibrium for some of the samples, and so no "
                f"kernel: σa² E φ′(√q ξ)² reaches {dot[worst]:.4g}, where the variance q is "
                f"{samples.scales[worst] ** 2:.4g}, and must stay below 1. Use a smaller sigma_a2."
            )

    def _require_representable(self) -> None:
        """Refuse kernels whose entries, bounded by the diagonal, overflow."""
        samples = [layer.everything for layer in self.layers]
        with np.errstate(over="ignore"):
            largest = max(float(kernel.max()) for kernel in self._diagonal(samples))
        if not largest < _OVERFLOW:
            raise InvalidInput(
                f"The kernels of the {self.model} are too large for double precision: entries "
                f"reach {largest:.3g}, and must stay below {_OVERFLOW:.0e}. Scale the data down."
            )

    @property
    def attempts(self) -> int:
        """How many lengths of the series there are to try."""
        return max(len(layer.lengths) for layer in self.layers)

    def run(self, block: Block, start: int = 0) -> IntArray:
        """Turn a block of x·y into both kernels, in place; return marks per row.

        The series are lengthened, from the one with index `start` on, until they do.
        """
        for attempt in range(start, self.attempts):
            marked = self.attempt(block, attempt)
            if not marked[:, 1].any():
                break
        return marked[:, 0]

    def attempt(self, block: Block, index: int) -> IntArray:
        """Do a block with series of one length; return what was marked, and what longer ones do."""
        block.fill()
        marked = np.zeros((len(block.gram), 2), dtype=np.int64)
        place = (block.gram, block.tangent, block.first, block.shift)
        if isinstance(self.model, DeepEquilibrium):
            arguments = self._arguments(self.layers[0], index, block.rows)
            feature = self.convention == "feature"
            compiled.solve_block(*place, *arguments, self.model.sigma_a2, feature, marked)
        else:
            block.tangent[:] = block.gram
            for layer in self.layers:
                compiled.map_block(*place, *self._arguments(layer, index, block.rows), marked)
        return marked

    def _arguments(self, layer: Layer, attempt: int, rows: slice) -> tuple[object, ...]:
        series = layer.series(layer.lengths[min(attempt, len(layer.lengths) - 1)])
        return (
            layer.kind,
            layer.rows.scales[rows],
            layer.padded_scales,
            series.left[rows],
            series.right,
            series.table,
            layer.mean1[rows],
            layer.mean2,
            layer.constant,
            layer.both,
            layer.cross,
        )

    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops."""
        chosen = [(layer.rows.take(rows), layer.columns.take(columns)) for layer in self.layers]
        if isinstance(self.model, ExplicitNetwork):
            return explicit_pairs(self.model, inputs, chosen)
        sigma_a2 = self.model.sigma_a2
        full, value, slope = equilibrium_pairs(self.model, inputs, *chosen[0])
        dot = sigma_a2 * slope
        if self.convention == "feature":
            return value, value + full * slope / (1.0 - dot)
        return full, full / (1.0 - dot)


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

    def __init__(self, model: Model, squared_norm: float, convention: Convention) -> None:
        # One sample against as many equal ones as there are ever nodes.
        many = np.full(max(_SIZES), squared_norm)
        self._pairs = PairMap(model, many[:1], many, convention)
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

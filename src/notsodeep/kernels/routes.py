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

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernels import compiled
from notsodeep.kernels.samples import Layer, Series, equilibrium_scales
from notsodeep.kernels.single_pairs import InputPairs, equilibrium_pairs, explicit_pairs
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, Model

RouteName = Literal["univariate", "hinge", "series"]

_OVERFLOW = 1e290  # leaves room for the sums and products on the way to an entry


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


class PairMap(ABC):
    """A model between two sets of samples: everything about it that a block needs.

    Attributes
    ----------
    layers : list of Layer
        The activations of the model with what they are at every sample's scale.
    """

    layers: list[Layer]

    def __init__(self, model: Model, convention: Convention) -> None:
        self.model = model
        self.convention = convention

    @property
    def kind(self) -> RouteName:
        """Name of the route of the compiled loops: hinge if every layer is one."""
        return "hinge" if all(x.kind == compiled.HINGE for x in self.layers) else "series"

    def diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of every row sample with itself, from their own formulas."""
        split = len(self.layers[0].rows.scales)
        both = self._everything
        return both[0][:split], both[1][:split]

    @cached_property
    def _everything(self) -> tuple[FloatArray, FloatArray]:
        return self._diagonal()

    @abstractmethod
    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of all samples, rows first, with themselves."""

    def require_representable(self) -> None:
        """Refuse kernels whose entries, bounded by the diagonal, overflow."""
        with np.errstate(over="ignore"):
            largest = max(float(kernel.max()) for kernel in self._everything)
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
        self._loop(block, index, marked)
        return marked

    @abstractmethod
    def _loop(self, block: Block, index: int, marked: IntArray) -> None:
        """Run the compiled loop over a block that holds x·y."""

    @abstractmethod
    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops."""


def series_of(layer: Layer, attempt: int) -> Series:
    """Return the series of a layer for the attempt of that index."""
    return layer.series(layer.lengths[min(attempt, len(layer.lengths) - 1)])


def _arguments(layer: Layer, attempt: int, rows: slice) -> tuple[object, ...]:
    series = series_of(layer, attempt)
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


class VanillaPairs(PairMap):
    """The vanilla DEQ: one scalar equation for each pair."""

    model: DeepEquilibrium

    def __init__(
        self,
        model: DeepEquilibrium,
        squares1: FloatArray,
        squares2: FloatArray | None,
        convention: Convention,
    ) -> None:
        super().__init__(model, convention)
        split = len(squares1)
        squares = squares1 if squares2 is None else np.concatenate([squares1, squares2])
        scales = equilibrium_scales(model, squares)
        second = None if squares2 is None else scales[split:]
        self.layers = [Layer(model.activation, scales[:split], second)]
        self._require_stable()
        self.require_representable()

    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        samples = self.layers[0].everything
        variance = samples.scales**2
        dot = self.model.sigma_a2 * samples.slope_square
        if self.convention == "feature":
            tangent = samples.square + variance * samples.slope_square / (1.0 - dot)
            return samples.square, tangent
        return variance, variance / (1.0 - dot)

    def _require_stable(self) -> None:
        """Refuse σa² E φ′² ≥ 1, on the diagonal and so, by Cauchy and Schwarz, everywhere.

        There the equilibrium repels: G/(1 − Ġ) means nothing, and although G solves its equation it
        is not the kernel of any network, however wide.
        """
        samples = self.layers[0].everything
        dot = self.model.sigma_a2 * samples.slope_square
        worst = int(dot.argmax())
        if not dot[worst] < 1.0:
            raise NotConverged(
                f"The {self.model} has no stable equilibrium for some of the samples, and so no "
                f"kernel: σa² E φ′(√q ξ)² reaches {dot[worst]:.4g}, where the variance q is "
                f"{samples.scales[worst] ** 2:.4g}, and must stay below 1. Use a smaller sigma_a2."
            )

    def _loop(self, block: Block, index: int, marked: IntArray) -> None:
        place = (block.gram, block.tangent, block.first, block.shift)
        arguments = _arguments(self.layers[0], index, block.rows)
        feature = self.convention == "feature"
        compiled.solve_block(*place, *arguments, self.model.sigma_a2, feature, marked)

    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops."""
        (layer,) = self.layers
        one, two = layer.rows.take(rows), layer.columns.take(columns)
        full, value, slope = equilibrium_pairs(self.model, inputs, one, two)
        dot = self.model.sigma_a2 * slope
        if self.convention == "feature":
            return value, value + full * slope / (1.0 - dot)
        return full, full / (1.0 - dot)


class ExplicitPairs(PairMap):
    """An explicit network: every pair goes through the layers one by one."""

    model: ExplicitNetwork

    def __init__(
        self,
        model: ExplicitNetwork,
        squares1: FloatArray,
        squares2: FloatArray | None,
        convention: Convention,
    ) -> None:
        super().__init__(model, convention)
        split = len(squares1)
        squares = squares1 if squares2 is None else np.concatenate([squares1, squares2])
        self.layers = []
        scales = np.sqrt(squares)
        for activation in model.activations:
            scales = np.maximum(scales, 1e-30)
            second = None if squares2 is None else scales[split:]
            self.layers.append(Layer(activation, scales[:split], second))
            scales = np.sqrt(self.layers[-1].everything.square)
        self.require_representable()

    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        covariance = tangent = self.layers[0].everything.scales ** 2
        for layer in self.layers:
            covariance = layer.everything.square
            tangent = covariance + tangent * layer.everything.slope_square
        return covariance, tangent

    def _loop(self, block: Block, index: int, marked: IntArray) -> None:
        place = (block.gram, block.tangent, block.first, block.shift)
        block.tangent[:] = block.gram
        for layer in self.layers:
            compiled.map_block(*place, *_arguments(layer, index, block.rows), marked)

    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops."""
        chosen = [(layer.rows.take(rows), layer.columns.take(columns)) for layer in self.layers]
        return explicit_pairs(self.model, inputs, chosen)

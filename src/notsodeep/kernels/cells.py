"""Pairs of samples in a general cell: rings of layers, and monotone networks.

Layer l reads the covariance V of what the layer before passes on and makes of it
G = a_i a_j (w V + u x·y + b), where a normalises the pre-activations; it passes on
c_i c_j (E[φφ] − m_i m_j), where c and m normalise the features.  Around the ring this is one scalar
equation for each pair, and its slope is the product of w a_i a_j c_i c_j E[φ′φ′].
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotConverged
from notsodeep.kernels import compiled
from notsodeep.kernels.cell_pairs import PairLayer, Passage, ring_kernels, solve_pairs
from notsodeep.kernels.routes import PairMap, series_of
from notsodeep.kernels.samples import Layer
from notsodeep.kernels.single_pairs import InputPairs
from notsodeep.models import Convention, DeepEquilibrium, MonotoneEquilibrium
from notsodeep.models.layers import Dense, require_one_variance, solve_variances
from notsodeep.numerics.chebyshev import at_many_scales

_FEW = 48  # different norms up to which nothing is tabulated


@dataclass(frozen=True)
class CellLayer:
    """One layer of a cell at the scales of n samples.

    Attributes
    ----------
    layer : Layer
        The activation with what it is at every sample's scale.
    weight, inject, bias : float
    featured : bool
        Whether the features are normalised.
    inner, gain, coupling : ndarray of shape (n,)
        a, c and r: r_i r_j is added to the weight of a pair.
    """

    layer: Layer
    weight: float
    inject: float
    bias: float
    featured: bool
    inner: FloatArray
    gain: FloatArray
    coupling: FloatArray

    @property
    def passed_on(self) -> FloatArray:
        """Second moment of what the layer passes on, for every sample."""
        if self.featured:
            return np.ones_like(self.inner)
        return self.layer.everything.square

    @property
    def amplification(self) -> FloatArray:
        """W a² c² E φ′²: the layer's share in the spectral radius of the Jacobian, squared."""
        strength = self.weight + self.coupling**2
        return np.asarray(
            strength * self.inner**2 * self.gain**2 * self.layer.everything.slope_square
        )

    def facts(self) -> FloatArray:
        """Return what the compiled loop wants to know of every sample; (SAMPLE_FACTS, n)."""
        samples, constant = self.layer.everything, self.layer.constant
        raw = samples.mean + constant
        facts = np.zeros((compiled.SAMPLE_FACTS, len(self.inner)))
        facts[compiled.TAU] = samples.scales
        facts[compiled.INNER] = self.inner
        facts[compiled.FACTOR] = self.gain * samples.scales
        facts[compiled.COUPLING] = self.coupling
        if self.featured:
            facts[compiled.MEAN] = self.gain * raw
        else:
            # E(h − c)(h − c) = E hh − c(m_i + m_j − c): a sum of one half for each sample, so that
            # the loop adds where normalised features multiply their means.
            facts[compiled.TAKEN] = constant * (raw - 0.5 * constant)
        return facts


class Coefficients(NamedTuple):
    """The series of all layers, one after the other."""

    starts: IntArray
    left: FloatArray
    right: FloatArray
    tables: IntArray


class CellPairs(PairMap):
    """A cell between two sets of samples."""

    model: DeepEquilibrium | MonotoneEquilibrium

    def __init__(
        self,
        model: DeepEquilibrium | MonotoneEquilibrium,
        squares1: FloatArray,
        squares2: FloatArray | None,
        convention: Convention,
        train: tuple[float, ...],
        *,
        unstable: bool = False,
    ) -> None:
        super().__init__(model, convention)
        self._split = len(squares1)
        self._symmetric = squares2 is None
        self._squares = squares1 if squares2 is None else np.concatenate([squares1, squares2])
        self._train = np.array(train)
        self._cell = self._at_samples()
        self.layers = [member.layer for member in self._cell]
        if not unstable:
            self._require_stable()
        self.require_representable()
        self._preparing = threading.Lock()
        self._prepared: dict[int, Coefficients] = {}
        facts = np.stack([member.facts() for member in self._cell])
        self._row_facts = np.ascontiguousarray(facts[:, :, : self._split])
        self._column_facts = self._row_facts
        if not self._symmetric:
            self._column_facts = np.ascontiguousarray(facts[:, :, self._split :])
        self._kinds = np.array([layer.kind for layer in self.layers], dtype=np.int64)
        self._numbers = np.array(
            [
                (m.layer.both, m.layer.cross, m.weight, m.inject, m.bias)
                for m in self._cell
            ]
        )  # fmt: skip

    def _at_samples(self) -> list[CellLayer]:
        """Work out every layer at the scale of every sample."""
        if isinstance(self.model, MonotoneEquilibrium):
            model = self.model
            scales = _of_norms(lambda squares: model.scales(squares)[None], self._squares)[0]
            couplings = np.full_like(scales, model.response.coupling)
            described = Dense(model.unit, 2.0 * model.skew, model.inject, model.bias)
            return [self._member(described, scales, np.ones_like(scales), couplings)]
        cell, name = self.model.cell, f"the variance of the {self.model}"
        incoming = _of_norms(
            lambda squares: solve_variances(cell, squares, name=name)[0].incoming, self._squares
        )
        # A scan over variances, too slow for every norm: the ends of the range stand for what is
        # between.
        for square in {float(self._squares.min()), float(self._squares.max())}:
            require_one_variance(cell, square, str(self.model))
        members = []
        for layer, variance in zip(cell, incoming, strict=True):
            spread = np.maximum(np.sqrt(variance), LEAST_SCALE)
            one = np.ones_like(spread)
            scales, inner = (
                (one, 1.0 / spread) if layer.normalise == "preactivation" else (spread, one)
            )
            members.append(self._member(layer, scales, inner, np.zeros_like(spread)))
        return members

    def _member(
        self, described: Dense, scales: FloatArray, inner: FloatArray, coupling: FloatArray
    ) -> CellLayer:
        first = scales[: self._split]
        layer = Layer(
            described.activation, first, None if self._symmetric else scales[self._split :]
        )
        featured = described.normalise == "feature"
        gain = np.ones_like(scales)
        if featured:
            variance = layer.everything.square - layer.everything.mean**2
            gain = 1.0 / np.sqrt(np.maximum(variance, LEAST_SCALE**2))
        numbers = described.weight, described.inject, described.bias
        return CellLayer(layer, *numbers, featured, inner, gain, coupling)

    @property
    def radius(self) -> FloatArray:
        """Π_l w_l a² c² E φ_l′², for every sample: below one, wide networks settle."""
        return np.asarray(np.prod([member.amplification for member in self._cell], axis=0))

    def _require_stable(self) -> None:
        radius = self.radius
        worst = int(radius.argmax())
        if not radius[worst] < 1.0:
            raise NotConverged(
                f"The {self.model} has no stable equilibrium for some of the samples, and so no "
                f"kernel: the product of w E φ′² over its layers reaches {radius[worst]:.4g}, at "
                f"‖x‖² = {self._squares[worst]:.4g}, and must stay below 1. Use smaller weights, "
                "or unstable='mark' to see what the equations give there."
            )

    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        passages = [
            Passage(
                m.inner**2,
                m.weight + m.coupling**2,
                m.coupling**2,
                m.inject,
                m.bias,
                m.passed_on,
                m.gain**2 * m.layer.everything.slope_square,
            )
            for m in self._cell
        ]
        return ring_kernels(passages, self._squares, self._train, self.convention == "feature")

    def _coefficients(self, attempt: int) -> Coefficients:
        with self._preparing:
            if attempt not in self._prepared:
                self._prepared[attempt] = self._make_coefficients(attempt)
        return self._prepared[attempt]

    def _make_coefficients(self, attempt: int) -> Coefficients:
        lefts, rights, tables = [], [], []
        for member in self._cell:
            series = series_of(member.layer, attempt)
            left, right = series.left, series.right
            if member.featured and member.layer.kind == compiled.SERIES:
                # Normalised features: no mean, and variance one.
                beyond = 0 if self._symmetric else self._split
                left = left * member.gain[: self._split, None]
                right = right * member.gain[beyond:, None]
                left[:, 0], right[:, 0] = 0.0, 0.0
            lefts.append(left)
            rights.append(right)
            tables.append(series.table)
        starts = np.cumsum([0, *(left.shape[1] for left in lefts)])
        left = np.concatenate(lefts, axis=1)
        right = left if self._symmetric else np.concatenate(rights, axis=1)
        return Coefficients(starts, left, right, np.stack(tables))

    def _loop(
        self,
        attempt: int,
        rows: IntArray,
        columns: IntArray,
        inner: FloatArray,
        state: NDArray[np.int8],
    ) -> tuple[FloatArray, FloatArray]:
        conjugate, tangent = np.empty((2, len(inner)))
        starts, left, right, tables = self._coefficients(attempt)
        compiled.solve_cells(
            rows, columns, inner, conjugate, tangent, state, self._kinds, starts,
            self._row_facts, self._column_facts, left, right, tables, self._numbers, self._train,
            self.convention == "feature",
        )  # fmt: skip
        return conjugate, tangent

    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs, near: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops."""
        others = columns if self._symmetric else columns + self._split
        layers = [
            PairLayer(
                m.layer.activation,
                m.weight + m.coupling[rows] * m.coupling[others],
                m.inject,
                m.bias,
                m.featured,
                m.layer.everything.take(rows),
                m.layer.everything.take(others),
                m.inner[rows] * m.inner[others],
                m.gain[rows] * m.gain[others],
                m.coupling[rows] * m.coupling[others],
            )
            for m in self._cell
        ]
        passages = solve_pairs(layers, inputs, str(self.model))
        feature = self.convention == "feature"
        return ring_kernels(passages, inputs.inner, self._train, feature)


def _of_norms(function: Callable[[FloatArray], FloatArray], squares: FloatArray) -> FloatArray:
    """Evaluate a positive function of ‖x‖² with values (rows, n), by a table where that pays."""
    different, place = np.unique(squares, return_inverse=True)
    if different.size <= _FEW:
        return function(different)[:, place]

    def logarithms(norms: FloatArray) -> FloatArray:
        return np.asarray(np.log(np.maximum(function(norms**2), LEAST_SCALE**2)).T)

    # In logarithms a table has a relative error, whatever the decades between the norms.
    return np.exp(at_many_scales(logarithms, np.sqrt(different)).T)[:, place]

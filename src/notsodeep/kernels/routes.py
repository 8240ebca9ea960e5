"""Kernels of lists of pairs: the compiled loops of each kind of model, and what they leave.

Both kernels of a pair are functions of x·y and of what is known about either sample at its scale.
The loops evaluate the expectations in one of two ways:

hinge
    The ReLU family, centred or not: arc-cosine form inside Newton's method.
series
    Any other activation: Mehler's series inside Newton's method, with as many terms as the pairs
    need.

Whatever a loop is not sure of goes to `single_pairs`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernels import compiled
from notsodeep.kernels.samples import Layer, Series, equilibrium_scales
from notsodeep.kernels.single_pairs import InputPairs, equilibrium_pairs, explicit_pairs
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, Model

RouteName = Literal["table", "univariate", "hinge", "series"]

_OVERFLOW = 1e290  # leaves room for the sums and products on the way to an entry


class PairMap(ABC):
    """A model between two sets of samples: everything about it that a pair needs.

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
    def radius(self) -> FloatArray:
        """Π_l w_l E φ_l′² for every sample, rows first: below one, wide networks settle."""
        return np.zeros(len(self.layers[0].everything.scales))

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
        """Reject kernels whose entries, bounded by the diagonal, overflow."""
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

    def loop(
        self, rows: IntArray, columns: IntArray, inner: FloatArray, *, longest: bool = False
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Both kernels of pairs (rows[k], columns[k]) with products x·y = inner[k].

        The series are lengthened for the pairs that want it, or as long as can be at once.  Also
        returned: which pairs are left for `careful`; their kernels are good approximations.
        """
        attempt = self.attempts - 1 if longest else 0
        state = np.zeros(len(inner), dtype=np.int8)
        conjugate, tangent = self._loop(attempt, rows, columns, inner, state)
        for later in range(attempt + 1, self.attempts):
            todo = np.flatnonzero(state == compiled.LONGER)
            if not todo.size:
                break
            again = np.zeros(len(todo), dtype=np.int8)
            part = rows[todo], columns[todo], inner[todo]
            conjugate[todo], tangent[todo] = self._loop(later, *part, again)
            state[todo] = again
        return conjugate, tangent, np.flatnonzero(state)

    @abstractmethod
    def _loop(
        self,
        attempt: int,
        rows: IntArray,
        columns: IntArray,
        inner: FloatArray,
        state: NDArray[np.int8],
    ) -> tuple[FloatArray, FloatArray]:
        """Run the compiled loop with series of one length; `state` says what became of a pair."""

    @abstractmethod
    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs, near: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops.

        `near` are approximations of the conjugate kernel.
        """


def series_of(layer: Layer, attempt: int) -> Series:
    """Return the series of a layer for the attempt of that index."""
    return layer.series(layer.lengths[min(attempt, len(layer.lengths) - 1)])


def _arguments(layer: Layer, attempt: int) -> tuple[object, ...]:
    series = series_of(layer, attempt)
    return (
        layer.kind,
        layer.rows.scales,
        layer.columns.scales,
        series.left,
        series.right,
        series.table,
        layer.mean1,
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
        *,
        unstable: bool = False,
    ) -> None:
        super().__init__(model, convention)
        split = len(squares1)
        squares = squares1 if squares2 is None else np.concatenate([squares1, squares2])
        scales = equilibrium_scales(model, squares)
        second = None if squares2 is None else scales[split:]
        self.layers = [Layer(model.activation, scales[:split], second)]
        if not unstable:
            self._require_stable()
        self.require_representable()

    @property
    def radius(self) -> FloatArray:
        """σa² E φ′² for every sample."""
        return np.asarray(self.model.sigma_a2 * self.layers[0].everything.slope_square)

    def _diagonal(self) -> tuple[FloatArray, FloatArray]:
        samples = self.layers[0].everything
        variance = samples.scales**2
        dot = self.model.sigma_a2 * samples.slope_square
        if self.convention == "feature":
            tangent = samples.square + variance * samples.slope_square / (1.0 - dot)
            return samples.square, tangent
        return variance, variance / (1.0 - dot)

    def _require_stable(self) -> None:
        """Reject σa² E φ′² ≥ 1, on the diagonal and so, by Cauchy and Schwarz, everywhere.

        There the equilibrium repels: G/(1 − Ġ) means nothing, and although G solves its equation it
        is not the kernel of any network, however wide.
        """
        samples, dot = self.layers[0].everything, self.radius
        worst = int(dot.argmax())
        if not dot[worst] < 1.0:
            raise NotConverged(
                f"The {self.model} has no stable equilibrium for some of the samples, and so no "
                f"kernel: σa² E φ′(√q ξ)² reaches {dot[worst]:.4g}, where the variance q is "
                f"{samples.scales[worst] ** 2:.4g}, and must stay below 1. Use a smaller sigma_a2, "
                "or unstable='mark' to see what the equations give there."
            )

    def _loop(
        self,
        attempt: int,
        rows: IntArray,
        columns: IntArray,
        inner: FloatArray,
        state: NDArray[np.int8],
    ) -> tuple[FloatArray, FloatArray]:
        conjugate, tangent = np.empty((2, len(inner)))
        compiled.solve_pairs(
            rows, columns, inner, conjugate, tangent, state, *_arguments(self.layers[0], attempt),
            self.model.sigma_a2, self.convention == "feature",
        )  # fmt: skip
        return conjugate, tangent

    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs, near: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops."""
        (layer,) = self.layers
        one, two = layer.rows.take(rows), layer.columns.take(columns)
        if self.convention == "feature":
            # `near` is E[φφ] in this convention; the equation is about G.
            near = self.model.sigma_a2 * near + self.model.sigma_b2 * inputs.inner
        full, value, slope = equilibrium_pairs(self.model, inputs, one, two, near)
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
            # A zero row has no correlation with any other; a scale above zero keeps 0/0 out of the
            # loops.
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

    def _loop(
        self,
        attempt: int,
        rows: IntArray,
        columns: IntArray,
        inner: FloatArray,
        state: NDArray[np.int8],
    ) -> tuple[FloatArray, FloatArray]:
        conjugate, tangent = inner.copy(), inner.copy()
        for layer in self.layers:
            place = rows, columns, conjugate, tangent, state
            compiled.map_pairs(*place, *_arguments(layer, attempt))
        return conjugate, tangent

    def careful(
        self, rows: IntArray, columns: IntArray, inputs: InputPairs, near: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Both kernels of single pairs (rows[k], columns[k]), without compiled loops."""
        chosen = [(layer.rows.take(rows), layer.columns.take(columns)) for layer in self.layers]
        return explicit_pairs(self.model, inputs, chosen)

"""What each sample brings to every pair of a ring, prepared for the compiled loops.

A sample enters a kernel through the variances of its pre-activations alone: they are solved for
first, then come the moments of every activation there, and the series that the loops evaluate.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from notsodeep.activations import Activation
from notsodeep.activations.activation import LEAST_SQUARE
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.activations.polynomial import Polynomial
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernels import loops
from notsodeep.kernels.careful import PairLayer, SampleMoments, solve_pairs
from notsodeep.kernels.ring import Ring, hinge_of, normalises
from notsodeep.models.layers import Dense, require_one_variance, solve_variances
from notsodeep.numerics.chebyshev import at_many_scales

TERMS = (48, 384)
"""Lengths of the series that are tried in turn; the longer one serves |ρ| up to about 0.92."""

SERIES_BOUND = 1e-14
"""Bound on what a series leaves out, relative to √(E φ²(u) E φ²(v)), and likewise for φ′."""

_FEW = 48  # different norms up to which nothing is tabulated
_MARGIN = 1e-8  # rounding errors are multiplied by 1/(1 − gain): eight digits are left
_ASKED = 96  # samples whose series tell how many terms all of them need
_OVERFLOW = 1e290  # leaves room for the sums and products on the way to an entry


@dataclass(frozen=True)
class InputPairs:
    """Pairs of inputs (x, y).

    Attributes
    ----------
    inner : ndarray of shape (n,)
        x·y.
    norm1, norm2 : ndarray of shape (n,)
        ‖x‖ and ‖y‖.
    rest : ndarray of shape (n,)
        1 − |cos(x, y)|, free of cancellation.
    """

    inner: FloatArray
    norm1: FloatArray
    norm2: FloatArray
    rest: FloatArray

    @classmethod
    def of(cls, X: FloatArray, Y: FloatArray) -> InputPairs:
        """Pair the rows of X with those of Y."""
        inner = np.einsum("ij,ij->i", X, Y)
        norm1, norm2 = (np.sqrt(np.einsum("ij,ij->i", Z, Z)) for Z in (X, Y))
        unit1, unit2 = (
            Z / np.maximum(norm, LEAST_SCALE)[:, None] for Z, norm in ((X, norm1), (Y, norm2))
        )
        # 1 ∓ cos = ½‖x/‖x‖ ∓ y/‖y‖‖²: differences of nearly equal entries are exact (Sterbenz).
        difference = unit1 - np.where(inner >= 0.0, 1.0, -1.0)[:, None] * unit2
        rest = 0.5 * np.einsum("ij,ij->i", difference, difference)
        # With a zero row there is no angle; by convention it is a right one.
        rest = np.where(np.minimum(norm1, norm2) > 0.0, np.minimum(rest, 1.0), 1.0)
        return cls(inner, norm1, norm2, rest)

    def distances(self, spread1: FloatArray, spread2: FloatArray) -> tuple[FloatArray, FloatArray]:
        """½σ₁σ₂‖x/σ₁ ∓ y/σ₂‖²."""
        size, product = spread1 * spread2, self.norm1 * self.norm2
        across = 0.5 * size * (self.norm1 / spread1 - self.norm2 / spread2) ** 2
        small, large = product * self.rest, product * (2.0 - self.rest)
        acute = self.inner >= 0.0
        return across + np.where(acute, small, large), across + np.where(acute, large, small)


@dataclass(frozen=True)
class _MomentColumns:
    """At scales (n,): E φ/√(E φ²), `log_growth` and log E φ′², as a table of an activation."""

    activation: Activation

    def __call__(self, tau: FloatArray) -> FloatArray:
        phi = self.activation
        moments = phi.moments(tau)
        root = np.sqrt(np.maximum(moments.square, LEAST_SQUARE))
        growth = phi.log_growth(moments.square, tau)
        steepness = np.log(np.maximum(moments.slope_square, LEAST_SQUARE))
        # Quantities of order one, or logarithms: a table has an absolute error.
        return np.column_stack([moments.mean / root, growth, steepness])


def sample_moments(activation: Activation, scales: FloatArray) -> SampleMoments:
    """Work out the moments of φ at every sample's scale."""
    columns = _MomentColumns(activation)
    relative_mean, growth, steepness = at_many_scales(
        columns, scales, activation.keep_interpolant
    ).T
    square = activation.from_log_growth(growth, scales)
    return SampleMoments(scales, relative_mean * np.sqrt(square), square, np.exp(steepness))


class LayerState:
    """A layer at the scales of n samples.

    Attributes
    ----------
    layer : Dense
    spread : ndarray of shape (n,)
        σ of the pre-activations, before they are normalised.
    moments : SampleMoments
    inner, gain : ndarray of shape (n,)
        a and c.
    degree : int or None
        Of a polynomial, whose series is finite.
    """

    def __init__(self, layer: Dense, variance: FloatArray) -> None:
        self.layer, self.hinge = layer, hinge_of(layer.activation)
        self.spread = np.maximum(np.sqrt(variance), LEAST_SCALE)
        one = np.ones_like(self.spread)
        normalised = layer.normalise == "preactivation"
        self.inner = 1.0 / self.spread if normalised else one
        self.moments = sample_moments(layer.activation, one if normalised else self.spread)
        self.featured = layer.normalise == "feature"
        self.gain = 1.0 / np.sqrt(self.moments.variance) if self.featured else one
        base = layer.activation.uncentred
        self.degree = base.degree if isinstance(base, Polynomial) else None
        self._series: dict[int, tuple[FloatArray, IntArray]] = {}

    @property
    def passed_on(self) -> FloatArray:
        """t², the second moment of what the layer passes on."""
        return np.ones_like(self.spread) if self.featured else self.moments.square

    @property
    def slope(self) -> FloatArray:
        """a² c² E φ′²: dV/dG of a sample with itself."""
        return self.inner**2 * self.gain**2 * self.moments.slope_square

    def facts(self) -> FloatArray:
        """Return what the compiled loop wants to know of every sample; (SAMPLE_FACTS, n)."""
        constant = 0.0 if self.hinge is None else self.hinge.constant
        raw = self.moments.mean + constant
        facts = np.zeros((loops.SAMPLE_FACTS, len(self.inner)))
        facts[loops.TAU] = self.moments.scales
        facts[loops.INNER] = self.inner
        facts[loops.FACTOR] = self.gain * self.moments.scales
        if self.featured:
            facts[loops.MEAN] = self.gain * raw
        else:
            # E(h − c)(h − c) = E hh − c(m_i + m_j − c): a sum of one half for each sample, so that
            # the loop adds where normalised features multiply their means.
            facts[loops.TAKEN] = constant * (raw - 0.5 * constant)
        return facts

    @property
    def lengths(self) -> tuple[int, ...]:
        """Series lengths worth trying, the last one being final."""
        if self.hinge is not None:
            return (1,)
        if self.degree is None:
            return TERMS
        step = loops.TERMS_STEP
        return (max(step * -(-(self.degree + 1) // step), 2 * step),)

    def series(self, attempt: int) -> tuple[FloatArray, IntArray]:
        """Return Hermite coefficients (n, terms) and the terms needed at each |ρ|."""
        terms = self.lengths[min(attempt, len(self.lengths) - 1)]
        if terms not in self._series:
            self._series[terms] = self._make_series(terms)
        return self._series[terms]

    def _make_series(self, terms: int) -> tuple[FloatArray, IntArray]:
        table = np.full(loops.BINS + 1, terms, dtype=np.int64)
        if self.hinge is not None:
            return np.zeros((len(self.spread), 1)), table
        coefficients = self.layer.activation.hermite_coefficients(self.moments.scales, terms)
        if self.degree is None:
            table = terms_table(coefficients, self.moments)
        if self.featured:  # no mean, and variance one
            coefficients = coefficients * self.gain[:, None]
            coefficients[:, 0] = 0.0
        return np.ascontiguousarray(coefficients), table


class RingStates:
    """A ring at n samples: everything about them that a pair needs.

    Parameters
    ----------
    ring : Ring
    squares : ndarray of shape (n,)
        ‖x‖².

    Raises
    ------
    NotConverged
        The variances grow without bound, or there is no stable equilibrium.
    """

    def __init__(self, ring: Ring, squares: FloatArray) -> None:
        self.ring, self.squares = ring, squares
        self.layers = [
            LayerState(layer, variance)
            for layer, variance in zip(ring.layers, _variances(ring, squares), strict=True)
        ]
        self._require_stable()
        self._require_representable()
        self._preparing = threading.Lock()
        self._facts = np.stack([layer.facts() for layer in self.layers])
        self._prepared: dict[int, tuple[IntArray, FloatArray, IntArray]] = {}
        none = (0.0, 0.0, 0.0)
        self._numbers = np.array(
            [
                ((x.hinge or none)[0], (x.hinge or none)[1], x.layer.weight, x.layer.inject,
                 x.layer.bias, x.layer.weight + ring.extra)
                for x in self.layers
            ]
        )  # fmt: skip
        self._kinds = np.array(
            [loops.SERIES if x.hinge is None else loops.HINGE for x in self.layers], dtype=np.int64
        )

    @property
    def method(self) -> str:
        """Name of what the compiled loop does: "hinge" if every layer is one, else "series"."""
        return "series" if any(layer.hinge is None for layer in self.layers) else "hinge"

    def _require_stable(self) -> None:
        """Reject Π_l w_l E φ_l′² ≥ 1, on the diagonal and so, by Cauchy and Schwarz, everywhere.

        There the equilibrium repels, and although G solves its equation it is not the kernel of
        any network, however wide.
        """
        weights = np.prod([layer.layer.weight for layer in self.layers])
        radius = weights * np.prod([layer.slope for layer in self.layers], axis=0)
        worst = int(radius.argmax())
        if not radius[worst] < 1.0:
            where = f"at ‖x‖² = {self.squares[worst]:.4g}"
            raise self.ring.unstable(float(radius[worst]), where)

    def _require_representable(self) -> None:
        """Reject kernels whose entries, bounded by the diagonal, overflow."""
        with np.errstate(over="ignore"):
            largest = max(float(kernel.max()) for kernel in self.diagonal)
        if not largest < _OVERFLOW:
            raise InvalidInput(
                f"The kernels of the {self.ring.name} are too large for double precision: entries "
                f"reach {largest:.3g}, and must stay below {_OVERFLOW:.0e}. Scale the data down."
            )

    @cached_property
    def diagonal(self) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of every sample with itself: Θ_l = T_l + w_l E[φ′φ′]_{l−1} Θ_{l−1}."""
        state, slope = self.layers[-1].passed_on, self.layers[-1].slope
        # A turn from Θ = 0 gives the inhomogeneous part; Θ = part/(1 − product) closes the ring.
        # Pre-activations here are those before they are normalised.
        theta, product = np.zeros_like(state), np.ones_like(state)
        for at in self.layers:
            full = at.layer.weight * state + at.layer.inject * self.squares + at.layer.bias
            theta = full + self.ring.extra * state + at.layer.weight * slope * theta
            product = product * at.layer.weight * slope
            state, slope = at.passed_on, at.slope
        theta = theta / (1.0 - product)
        if self.ring.feature:
            return state, state + slope * theta
        return self.layers[-1].inner ** 2 * full, self.layers[-1].inner ** 2 * theta

    def loop(
        self, rows: IntArray, columns: IntArray, inner: FloatArray, *, longest: bool = False
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Both kernels of pairs of samples with products x·y = inner[k].

        The series are lengthened for the pairs that want it, or as long as can be at once.  Also
        returned: which pairs are left for `careful`.
        """
        attempts = max(len(layer.lengths) for layer in self.layers)
        attempt = attempts - 1 if longest else 0
        conjugate, tangent, state = self._loop(attempt, rows, columns, inner)
        for later in range(attempt + 1, attempts):
            todo = np.flatnonzero(state == loops.LONGER)
            if not todo.size:
                break
            part = rows[todo], columns[todo], inner[todo]
            conjugate[todo], tangent[todo], state[todo] = self._loop(later, *part)
        return conjugate, tangent, np.flatnonzero(state)

    def _loop(
        self, attempt: int, rows: IntArray, columns: IntArray, inner: FloatArray
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        conjugate, tangent = np.empty((2, len(inner)))
        state = np.zeros(len(inner), dtype=np.int64)
        loops.solve_ring(
            rows, columns, inner, conjugate, tangent, state, self._kinds, *self._series(attempt),
            self._facts, self._numbers, self.ring.feature,
        )  # fmt: skip
        return conjugate, tangent, state

    def _series(self, attempt: int) -> tuple[IntArray, FloatArray, IntArray]:
        """Return the series of all layers side by side: where each begins, series and tables."""
        with self._preparing:
            if attempt not in self._prepared:
                series, tables = zip(*(layer.series(attempt) for layer in self.layers), strict=True)
                starts = np.cumsum([0, *(part.shape[1] for part in series)])
                together = series[0] if len(series) == 1 else np.concatenate(series, axis=1)
                self._prepared[attempt] = starts, together, np.stack(tables)
            return self._prepared[attempt]

    def careful(self, rows: IntArray, columns: IntArray, inputs: InputPairs) -> FloatArray:
        """Solve single pairs without compiled loops; both kernels, shape (2, pairs)."""
        layers = self.pair_layers(rows, columns, inputs)
        return np.stack(solve_pairs(self.ring, layers, lambda values, _: values))[..., 0]

    def pair_layers(self, rows: IntArray, columns: IntArray, inputs: InputPairs) -> list[PairLayer]:
        """Lay single pairs of samples out for `careful.solve_pairs`, as images of one pixel."""
        found = []
        for index, at in enumerate(self.layers):
            layer, before = at.layer, self.layers[index - 1]
            spread1, spread2 = at.spread[rows], at.spread[columns]
            size = spread1 * spread2
            root = np.sqrt(before.passed_on)
            minus, plus = (layer.inject * part for part in inputs.distances(spread1, spread2))
            state = (
                0.5 * layer.weight * size * (root[rows] / spread1 - root[columns] / spread2) ** 2
            )
            ones = 1.0 / spread1, 1.0 / spread2
            bias = 0.5 * layer.bias * size
            minus = minus + state + bias * (ones[0] - ones[1]) ** 2
            plus = plus + state + bias * (ones[0] + ones[1]) ** 2
            moments = at.moments.take(rows[:, None]), at.moments.take(columns[:, None])
            spreads = spread1[:, None], spread2[:, None]
            fields = *spreads, *moments, minus[:, None], plus[:, None]
            found.append(PairLayer(layer.activation, layer.weight, layer.normalise, *fields))
        return found


def _variances(ring: Ring, squares: FloatArray) -> FloatArray:
    """Variances of the pre-activations of every layer, before normalisation; shape (L, n)."""
    if all(x.activation.homogeneous and not normalises(x) for x in ring.layers):
        return _affine_variances(ring, squares)
    different, position = np.unique(squares, return_inverse=True)
    logarithms = _LogVariances(ring)
    if different.size <= _FEW:
        incoming = np.exp(logarithms(np.sqrt(different)).T)
    else:
        # In logarithms a table has a relative error, whatever the decades between the norms.
        keep = ring.layers[0].activation.keep_interpolant
        incoming = np.exp(at_many_scales(logarithms, np.sqrt(different), keep).T)
    if ring.closed and (len(ring.layers) > 1 or ring.layers[0].bias > 0.0):
        # A scan over variances, too slow for every norm: the ends of the range stand for what is
        # between.
        for square in {float(squares.min()), float(squares.max())}:
            require_one_variance(ring.layers, square, ring.name)
    return np.asarray(incoming[:, position])


def _affine_variances(ring: Ring, squares: FloatArray) -> FloatArray:
    """Solve v = α + βv, where homogeneous activations have E φ²(τξ) = τ² E φ²(ξ)."""
    state, gain = np.zeros_like(squares), 1.0
    for layer in ring.layers:
        factor = float(np.asarray(layer.activation.moments(1.0).square))
        state = factor * (layer.weight * state + layer.inject * squares + layer.bias)
        gain *= factor * layer.weight
    if gain >= 1.0 - _MARGIN:
        raise NotConverged(
            f"The {ring.name} has no finite variance, or one that rounding errors decide: the "
            f"product of w E φ²(ξ) over its layers is {gain:.12g} and must be below 1 by "
            f"{_MARGIN:.0e}. Use smaller weights."
        )
    state = state / (1.0 - gain)
    found = []
    for layer in ring.layers:
        found.append(layer.weight * state + layer.inject * squares + layer.bias)
        state = float(np.asarray(layer.activation.moments(1.0).square)) * found[-1]
    return np.stack(found)


@dataclass(frozen=True)
class _LogVariances:
    """Logarithms of the variances at norms (n,), shape (n, L), as a table of a ring."""

    ring: Ring

    def __call__(self, norms: FloatArray) -> FloatArray:
        name = f"the variance of the {self.ring.name}"
        variances = solve_variances(self.ring.layers, norms**2, name=name)[0].incoming
        return np.asarray(np.log(np.maximum(variances, LEAST_SCALE**2)).T)


def terms_table(coefficients: FloatArray, moments: SampleMoments) -> IntArray:
    """Terms of Mehler's series that suffice for |ρ| ≤ bin/BINS, or −1 where all do not.

    By Parseval, what K terms leave of E[φφ] is at most |ρ|^K √(r_i r_j), r = E φ² − Σ_{k<K} a_k²;
    and of E[φ′φ′] at most |ρ|^{K−1} √(r′_i r′_j), r′ = E φ′² − Σ_{k<K} k a_k²/τ².  These change
    slowly with the scale: of many samples some are asked, from the smallest scale to the largest.
    """
    terms, count = coefficients.shape[1], len(moments.scales)
    if count > _ASKED:
        order = np.argsort(moments.scales)
        chosen = order[np.linspace(0, count - 1, _ASKED).astype(np.int64)]
        coefficients, moments = coefficients[chosen], moments.take(chosen)
    squares = coefficients**2
    slopes = squares * np.arange(terms) / moments.scales[:, None] ** 2
    left_over = np.ones((2, terms + 1))
    for row, energy, total in ((0, squares, moments.square), (1, slopes, moments.slope_square)):
        share = np.cumsum(energy, axis=1) / np.maximum(total, 1e-300)[:, None]
        # What rounding leaves of a vanishing remainder is not a remainder.
        left_over[row, 1:] = np.maximum(1.0 - share, 1e-15).max(axis=0)
    powers = _powers_of_bins(terms)
    bound = np.maximum(powers[:, 1:] * left_over[0], powers[:, :-1] * left_over[1])
    orders = np.arange(terms + 1)
    # docs/theory/gaussian-calculus.md, "How many terms".
    enough = (bound <= SERIES_BOUND) & (orders > 0) & (orders % loops.TERMS_STEP == 0)
    table = np.where(enough.any(axis=1), enough.argmax(axis=1), -1)
    return np.asarray(table, dtype=np.int64)


@lru_cache(maxsize=8)
def _powers_of_bins(terms: int) -> FloatArray:
    """(bin/BINS)^k for k = −1, …, terms, where 0 stands for −1; shape (BINS + 1, terms + 2)."""
    rho = (np.arange(loops.BINS + 1) / loops.BINS)[:, None]
    return np.asarray(rho ** np.maximum(np.arange(-1, terms + 1), 0))

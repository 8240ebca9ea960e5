"""Kernels of single pairs by closed forms or quadrature: for what the compiled loops leave.

These are pairs whose series converges too slowly, and nearly equal or opposite inputs.  There the
derivative kernel of a kinked activation depends on √(1 − |ρ|), where ρ has lost all digits.  So the
unknowns are the two defects of a covariance G of pre-activations with variances σ₁², σ₂²,

    P = σ₁σ₂ − G = ½σ₁σ₂ E(u/σ₁ − v/σ₂)²    and    N = σ₁σ₂ + G = ½σ₁σ₂ E(u/σ₁ + v/σ₂)²,

of which the smaller has all its digits.  If the layer before passes on features with second moments
t₁², t₂² and covariance V, whose defects are F∓ = t₁t₂ ∓ V, then with M the mean over a window

    P = A₋ + w M F₋,   N = A₊ + w M F₊,   dF₋/dP = dF₊/dN = E[φ′(u)φ′(v)],

where A∓ = ½σ₁σ₂ (w M(t₁/σ₁ − t₂/σ₂)² + u M‖x/σ₁ ∓ y/σ₂‖² + b(1/σ₁ ∓ 1/σ₂)²) is a sum of squares:
all that could cancel is in it.  A row of data is an image of one pixel, where M does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation
from notsodeep.activations.closed_forms import root_of, sine_minus_chord
from notsodeep.activations.pairs import LEAST_SCALE, standardised_pairs
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.kernels.ring import Hinge, Ring, hinge_of
from notsodeep.numerics.pair_quadrature import pair_distances

NEAR = 1e-6
"""1 − |ρ| below this is computed by itself; above, √(1 − |ρ|) is right to 1e-13."""

_MAX_STEPS = 100
_MAX_SWEEPS = 20_000
_TOLERANCE = 1e-13  # of a step in 1 − |ρ|, relative to its root, of which kernels are functions
_RESIDUAL = 1e-12
_NOISE = 1e-9  # relative steps that no longer shrink: probabilities of kinks far out are that rough
_STALLED = 4  # steps in which the residual must halve
# An expectation by quadrature costs 10⁵ evaluations, eight turns by series a few thousand.
_START_TERMS, _START_STEPS = 96, 8
_DISTANCE_TERMS = 384
_TAIL = 1e-13  # share of E φ² that may be beyond a series from which distances are taken
_TOGETHER = 4096  # distances by series at a time


@dataclass(frozen=True)
class SampleMoments:
    """An activation at some scales τ: τ, E φ, E φ² and E φ′², arrays of one shape."""

    scales: FloatArray
    mean: FloatArray
    square: FloatArray
    slope_square: FloatArray

    def take(self, index: NDArray[np.bool_] | IntArray | slice) -> SampleMoments:
        """Return those of some of the samples."""
        return SampleMoments(
            self.scales[index], self.mean[index], self.square[index], self.slope_square[index]
        )

    @property
    def variance(self) -> FloatArray:
        """Var φ."""
        return np.maximum(self.square - self.mean**2, LEAST_SCALE**2)


@dataclass(frozen=True)
class PairLayer:
    """One layer for K pairs at P pixels; all arrays are (K, P).

    Attributes
    ----------
    spread1, spread2 : ndarray
        σ of the pre-activations, before they are normalised.
    one, two : SampleMoments
    minus, plus : ndarray
        A∓.
    """

    activation: Activation
    weight: float
    normalise: str | None
    spread1: FloatArray
    spread2: FloatArray
    one: SampleMoments
    two: SampleMoments
    minus: FloatArray
    plus: FloatArray

    @property
    def size(self) -> FloatArray:
        """σ₁σ₂."""
        return self.spread1 * self.spread2

    @property
    def squash(self) -> FloatArray | float:
        """a₁a₂: what the covariance of the pre-activations is multiplied with."""
        return 1.0 / self.size if self.normalise == "preactivation" else 1.0

    @property
    def gain(self) -> FloatArray | float:
        """c₁c₂: what the covariance of the features is multiplied with."""
        if self.normalise != "feature":
            return 1.0
        return 1.0 / np.sqrt(self.one.variance * self.two.variance)

    @property
    def largest(self) -> FloatArray:
        """t₁t₂: the largest covariance that is passed on."""
        if self.normalise == "feature":
            return np.ones_like(self.spread1)
        return np.sqrt(self.one.square * self.two.square)

    def take(self, pairs: NDArray[np.bool_] | IntArray) -> PairLayer:
        """Return the layer for some of the pairs."""
        fields = (self.spread1, self.spread2, self.one, self.two, self.minus, self.plus)
        parts = (f.take(pairs) if isinstance(f, SampleMoments) else f[pairs] for f in fields)
        return PairLayer(self.activation, self.weight, self.normalise, *parts)  # type: ignore[arg-type]


Mean = Callable[[FloatArray, int], FloatArray]
"""M of a layer, on arrays (K, P)."""
Expectations = Callable[
    [PairLayer, FloatArray, FloatArray, IntArray], tuple[FloatArray, FloatArray]
]
"""(layer, ρ, 1 − |ρ|, which of the pairs these are) ↦ E[φφ] and E[φ′φ′]."""


class _Turn(NamedTuple):
    """What the layers do at an iterate: for each of them arrays (K, P)."""

    minus: list[FloatArray]  # P
    plus: list[FloatArray]  # N
    passed_minus: list[FloatArray]  # F₋
    passed_plus: list[FloatArray]  # F₊
    slopes: list[FloatArray]  # dV/dG

    def keep(self, pairs: IntArray, other: _Turn) -> None:
        """Take over what another turn has for some of the pairs."""
        for mine, new in zip(self, other, strict=True):
            for array, values in zip(mine, new, strict=True):
                array[pairs] = values


def solve_pairs(ring: Ring, layers: list[PairLayer], mean: Mean) -> tuple[FloatArray, FloatArray]:
    """Both kernels of pairs at every pixel, shape (K, P) each.

    Raises
    ------
    NotConverged
        The residual of a pair stayed above 1e-12.
    """
    minus, plus = layers[0].minus.copy(), layers[0].plus.copy()
    with np.errstate(under="ignore"):
        if ring.closed:
            minus, plus = layers[0].size, layers[0].size.copy()
            rough = [_by_series(layer) for layer in layers]
            start = _newton(ring, layers, rough, mean, (minus, plus), _START_STEPS)
            minus, plus = start.minus[0], start.plus[0]
        turn = _newton(ring, layers, [_exact] * len(layers), mean, (minus, plus), _MAX_STEPS)
        return _kernels(ring, layers, mean, turn)


def _newton(
    ring: Ring,
    layers: list[PairLayer],
    expectations: list[Expectations],
    mean: Mean,
    start: tuple[FloatArray, FloatArray],
    max_steps: int,
) -> _Turn:
    """Solve for P and N of the first layer; return the last turn of every pair."""
    minus, plus = start
    final = max_steps == _MAX_STEPS
    distances = final and any(layer.activation.kinks for layer in layers)
    active = np.arange(len(minus))
    result: _Turn | None = None
    last = np.full_like(minus, np.inf)
    best, since = np.full(len(minus), np.inf), np.zeros(len(minus), dtype=np.int64)
    for _ in range(max_steps):
        some = [layer.take(active) for layer in layers]
        P, N, size = minus[active], plus[active], some[0].size
        turn = _turn(some, expectations, mean, P, N, active, distances=distances)
        if result is None:
            result = turn
        else:
            result.keep(active, turn)
        if not ring.closed:
            return turn
        residual = _residual(some[0], mean, P, N, turn)
        nothing = [np.zeros_like(P) for _ in some[1:]]
        step = _around(ring, mean, [residual, *nothing], turn.slopes)[0]
        worst = (np.abs(residual) / size).max(axis=1)
        # Newton's method squares errors or is at its end; plain steps contract in any case.
        better = worst <= 0.5 * best[active]
        step = np.where((better | (worst < _RESIDUAL))[:, None], step, residual)
        since[active] = np.where(better, 0, since[active] + 1)
        best[active] = np.minimum(best[active], worst)
        moved = np.abs(step) / size
        near = np.minimum(P, N) / size
        settled = moved <= _TOLERANCE * np.sqrt(near) + 1e-30
        settled |= (moved <= _NOISE * near) & (moved >= 0.5 * last[active])
        done = settled.all(axis=1) | ((since[active] >= _STALLED) & (worst <= _RESIDUAL))
        last[active] = moved
        active, step = active[~done], step[~done]
        if not active.size:
            break
        low, high = minus[active], plus[active]
        minus[active], plus[active] = np.maximum(low + step, 0.0), np.maximum(high - step, 0.0)
    assert result is not None
    if final and active.size and not best[active].max() <= _RESIDUAL:
        raise ring.unsolved(f"{int((best[active] > _RESIDUAL).sum())} pairs", float(best.max()))
    return result


def _turn(
    layers: list[PairLayer],
    expectations: list[Expectations],
    mean: Mean,
    minus: FloatArray,
    plus: FloatArray,
    pairs: IntArray,
    *,
    distances: bool,
) -> _Turn:
    """Go once through the layers, from P and N of the first."""
    turn = _Turn([], [], [], [], [])
    for index, (layer, evaluate) in enumerate(zip(layers, expectations, strict=True)):
        if index:
            minus = layer.minus + layer.weight * mean(turn.passed_minus[-1], index)
            plus = layer.plus + layer.weight * mean(turn.passed_plus[-1], index)
        rho, rest = _correlation(layer, minus, plus)
        value, slope = evaluate(layer, rho, rest, pairs)
        passed = _defects(layer, rho, rest, value, distances=distances)
        slope = layer.gain * layer.squash * slope
        for kept, new in zip(turn, (minus, plus, *passed, slope), strict=True):
            kept.append(np.asarray(new))
    return turn


def _correlation(
    layer: PairLayer, minus: FloatArray, plus: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """ρ of the pre-activations, and 1 − |ρ| with all its digits."""
    rest = np.clip(np.minimum(minus, plus) / layer.size, 0.0, 1.0)
    # A sample without variance has no correlation; by convention it is zero.
    solvable = np.minimum(layer.spread1, layer.spread2) > LEAST_SCALE
    rest = np.where(solvable, rest, 1.0)
    return np.where(minus <= plus, 1.0 - rest, rest - 1.0), rest


def _residual(
    layer: PairLayer, mean: Mean, minus: FloatArray, plus: FloatArray, turn: _Turn
) -> FloatArray:
    """By how much P of the first layer has to grow, from the smaller of P and N."""
    grown = layer.minus + layer.weight * mean(turn.passed_minus[-1], 0) - minus
    shrunk = plus - layer.plus - layer.weight * mean(turn.passed_plus[-1], 0)
    solvable = np.minimum(layer.spread1, layer.spread2) > LEAST_SCALE
    return np.where(solvable, np.where(minus <= plus, grown, shrunk), 0.0)


def _around(
    ring: Ring, mean: Mean, given: list[FloatArray], slopes: list[FloatArray]
) -> list[FloatArray]:
    """Solve x_l = given_l + w_l M(slope_{l−1} ∘ x_{l−1}) around the ring."""
    weights = [layer.weight for layer in ring.layers]

    def chain(first: FloatArray) -> list[FloatArray]:
        found = [first]
        for index in range(1, len(given)):
            read = mean(slopes[index - 1] * found[-1], index)
            found.append(given[index] + weights[index] * read)
        return found

    first = given[0]
    if not ring.closed:
        return chain(first)
    if first.shape[1] == 1:  # an affine map of one number
        product = weights[0] * slopes[-1]
        for weight, slope in zip(weights[1:], slopes, strict=False):
            product = product * weight * slope
        constant = first + weights[0] * slopes[-1] * chain(np.zeros_like(first))[-1]
        if len(given) == 1:
            constant = first
        return chain(constant / (1.0 - product))
    for _ in range(_MAX_SWEEPS):
        before, first = first, given[0] + weights[0] * mean(slopes[-1] * chain(first)[-1], 0)
        scale = np.abs(first).max(axis=1, keepdims=True)
        if (np.abs(first - before) <= 1e-16 * scale).all():
            break
    return chain(first)


def _kernels(
    ring: Ring, layers: list[PairLayer], mean: Mean, turn: _Turn
) -> tuple[FloatArray, FloatArray]:
    """CK and NTK of the last layer from the defects: Θ_l = T_l + w_l M(slope_{l−1} ∘ Θ_{l−1})."""
    passed = []
    for layer, low, high in zip(layers, turn.passed_minus, turn.passed_plus, strict=True):
        passed.append(np.where(low <= high, layer.largest - low, high - layer.largest))
    trained = []
    for index, layer in enumerate(layers):
        low, high = turn.minus[index], turn.plus[index]
        full = np.where(low <= high, layer.size - low, high - layer.size)
        trained.append(full + ring.extra * passed[index - 1] if ring.extra else full)
    tangent = _around(ring, mean, trained, turn.slopes)[-1]
    last = layers[-1]
    if ring.feature:
        return passed[-1], passed[-1] + turn.slopes[-1] * tangent
    full = np.where(
        turn.minus[-1] <= turn.plus[-1], last.size - turn.minus[-1], turn.plus[-1] - last.size
    )
    return np.asarray(last.squash * full), np.asarray(last.squash * tangent)


def _exact(
    layer: PairLayer, rho: FloatArray, rest: FloatArray, _: IntArray
) -> tuple[FloatArray, FloatArray]:
    flat = (a.ravel() for a in (layer.one.scales, layer.two.scales, rho, rest))
    pairs = standardised_pairs(layer.activation, *flat)
    return pairs.value.reshape(rho.shape), pairs.derivative.reshape(rho.shape)


def _by_series(layer: PairLayer) -> Expectations:
    """Return cheap expectations, good where |ρ| is not near one: a start for others."""
    if hinge_of(layer.activation) is not None:
        return _exact
    scales, position = np.unique(
        np.stack([layer.one.scales, layer.two.scales]), return_inverse=True
    )
    first, second = position.reshape(2, *layer.one.scales.shape)
    coefficients = layer.activation.hermite_coefficients(scales, _START_TERMS)

    def evaluate(
        part: PairLayer, rho: FloatArray, _: FloatArray, pairs: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        value, slope = np.zeros_like(rho), np.zeros_like(rho)
        i, j = first[pairs], second[pairs]
        for k in range(_START_TERMS - 1, -1, -1):
            slope = slope * rho + value
            value = value * rho + coefficients[i, k] * coefficients[j, k]
        return value, slope / (part.one.scales * part.two.scales)

    return evaluate


def _defects(
    layer: PairLayer, rho: FloatArray, rest: FloatArray, value: FloatArray, *, distances: bool
) -> tuple[FloatArray, FloatArray]:
    """F₋ and F₊ of what a layer passes on, the smaller with its digits if `distances`."""
    one, two = layer.one, layer.two
    size = np.sqrt(one.square * two.square)
    minus, plus = size - value, size + value
    hinge = hinge_of(layer.activation)
    if hinge is not None:
        minus, plus = _hinge_defects(hinge, one, two, rho, rest, plus)
    elif distances:
        solvable = np.minimum(one.scales, two.scales) > LEAST_SCALE
        for sign, defect in ((1.0, minus), (-1.0, plus)):
            near = (defect < NEAR * size) & solvable
            if near.any():
                moments = one.take(near), two.take(near)
                distance = _distance(layer.activation, *moments, rho[near], rest[near], sign)
                defect[near] = 0.5 * size[near] * distance
    if layer.normalise == "feature":
        spread = np.sqrt(one.variance * two.variance)
        plus = spread + value - one.mean * two.mean
        minus = minus - _length_gap(one.mean, two.mean, one.variance, two.variance, size)
        minus, plus = layer.gain * np.maximum(minus, 0.0), layer.gain * plus
    return minus, plus


def _length_gap(
    mean1: FloatArray, mean2: FloatArray, var1: FloatArray, var2: FloatArray, size: FloatArray
) -> FloatArray:
    """s₁s₂ − m₁m₂ − ς₁ς₂ for the vectors (m, ς) of lengths s, by Lagrange's identity."""
    spread1, spread2 = np.sqrt(var1), np.sqrt(var2)
    inner = mean1 * mean2 + spread1 * spread2
    across = (mean1 * spread2 - mean2 * spread1) ** 2
    gap = across / (size + np.maximum(inner, 0.0))
    return np.asarray(np.where(inner > 0.0, gap, size - inner))


def _hinge_defects(
    hinge: Hinge,
    one: SampleMoments,
    two: SampleMoments,
    rho: FloatArray,
    rest: FloatArray,
    plus: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """F∓ of a hinge in closed form.

    With θ the small angle of (1, |ρ|), S = sin θ − θ cos θ and d = (both − cross)/2: for ρ ≥ 0
    F₋ = τ₁τ₂(both·rest/2 − d S/π), and for ρ < 0
    F₊ = τ₁τ₂(d + cross·rest/2 + d S/π), where F₋ + F₊ = both·τ₁τ₂.
    """
    both, cross, constant = hinge
    product, half = one.scales * two.scales, 0.5 * (both - cross)
    chord = half / math.pi * sine_minus_chord(np.arctan2(root_of(rest), 1.0 - rest))
    same = 0.5 * both * rest - chord
    opposite = 0.5 * (both + cross) - 0.5 * cross * rest - chord
    minus = product * np.maximum(np.where(rho >= 0.0, same, opposite), 0.0)
    if constant == 0.0:
        across = product * np.where(rho >= 0.0, both - same, half + 0.5 * cross * rest + chord)
        return minus, across
    # Centring: the vectors (m − c, ς) of τ₁h − c and τ₂h − c at ρ = 1.
    size = np.sqrt(one.square * two.square)
    return minus + _length_gap(one.mean, two.mean, one.variance, two.variance, size), plus


def _distance(
    activation: Activation,
    one: SampleMoments,
    two: SampleMoments,
    rho: FloatArray,
    rest: FloatArray,
    sign: float,
) -> FloatArray:
    """E(φ(u)/s₁ − sign·φ(v)/s₂)², s² = E φ², without the cancellation of its parts."""
    root1, root2 = np.sqrt(one.square), np.sqrt(two.square)
    if not activation.kinks:
        scales, position = np.unique(np.stack([one.scales, two.scales]), return_inverse=True)
        first, second = position.reshape(2, -1)
        units = np.sqrt(np.asarray(activation.moments(scales).square))
        series = activation.hermite_coefficients(scales, _DISTANCE_TERMS) / units[:, None]
        if (1.0 - np.square(series).sum(axis=1)).max() <= _TAIL:
            parts = [slice(k, k + _TOGETHER) for k in range(0, len(rho), _TOGETHER)]
            return np.concatenate(
                [
                    _series_distance(series[first[k]], series[second[k]], rho[k], rest[k], sign)
                    for k in parts
                ]
            )

    def units_of(unit: float) -> Callable[[FloatArray], FloatArray]:
        return lambda x: np.asarray(activation.value(x)[None] / unit)

    return pair_distances(
        [(units_of(a), units_of(sign * b)) for a, b in zip(root1, root2, strict=True)],
        one.scales,
        two.scales,
        rho,
        root_of(rest),
        activation.kinks,
        name=str(activation),
    )


def _series_distance(
    left: FloatArray, right: FloatArray, rho: FloatArray, rest: FloatArray, sign: float
) -> FloatArray:
    """Σ_k (α_k − ε_k β_k)² + 2 ε_k α_k β_k (1 − |ρ|^k), ε_k = sign·sgn(ρ)^k."""
    order = np.arange(left.shape[1])
    signs = sign * np.where(rho < 0.0, -1.0, 1.0)[:, None] ** order
    with np.errstate(divide="ignore"):
        fallen = -np.expm1(order * np.log1p(-rest)[:, None])
    fallen[:, 0] = 0.0
    right = signs * right
    return np.asarray(((left - right) ** 2 + 2.0 * left * right * fallen).sum(axis=1))

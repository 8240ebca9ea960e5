"""Single pairs in a general cell, by closed form or quadrature: for what `cell_block` leaves.

As in `single_pairs`, 1 − |ρ| is carried by itself where it is tiny and an activation has a kink.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray

from notsodeep.activations import Activation
from notsodeep.activations.pairs import LEAST_SCALE, standardised_pairs
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.kernels.samples import SampleColumns
from notsodeep.kernels.single_pairs import InputPairs, feature_rest

_NEAR = 1e-6  # 1 − |ρ| below this is computed by itself
_MAX_STEPS = 100
_TOLERANCE = 4e-15  # a step, relative to the largest possible covariance, not worth another turn
_RESIDUAL = 1e-12
# A turn by quadrature costs 10⁵ evaluations a pair and layer, eight turns by series a few thousand.
_START_TERMS, _START_STEPS = 192, 8


class Passage(NamedTuple):
    """What a layer does to covariances, at the solution; arrays over pairs or samples.

    Attributes
    ----------
    squash : ndarray
        a_i a_j.
    weight : ndarray or float
        w + r_i r_j.
    again : ndarray or float
        r_i r_j, which a tangent kernel counts once more.
    inject, bias : float
    value, slope : ndarray
        The covariance V that is passed on, and its derivative by G.
    """

    squash: FloatArray
    weight: FloatArray | float
    again: FloatArray | float
    inject: float
    bias: float
    value: FloatArray
    slope: FloatArray


def ring_kernels(
    passages: list[Passage], inner: FloatArray, train: FloatArray, feature: bool
) -> tuple[FloatArray, FloatArray]:
    """CK and NTK of a ring from what its layers do: Θ_l = T_l + w_l E[φ′φ′]_{l−1} Θ_{l−1}.

    T_l is the trained part of G_l; `train` holds the factors of weights, inputs, biases, read-out.
    """
    state, before = passages[-1].value, passages[-1].slope
    # A turn from Θ = 0 gives the inhomogeneous part; Θ = part/(1 − product) closes the ring.
    theta, product = np.zeros_like(state), np.ones_like(state)
    full = state
    for layer in passages:
        injected, carried = layer.inject * inner, layer.squash * layer.weight * before
        trained = train[0] * (layer.weight + layer.again) * state
        source = layer.squash * (trained + train[1] * injected + train[2] * layer.bias)
        theta = source + carried * theta
        product = product * carried
        full = layer.squash * (layer.weight * state + injected + layer.bias)
        state, before = layer.value, layer.slope
    with np.errstate(divide="ignore"):
        theta = theta / (1.0 - product)
    if feature:
        return state, train[3] * state + before * theta
    return full, theta


@dataclass(frozen=True)
class PairLayer:
    """One layer of a cell for n pairs; see `notsodeep.kernels.cells` for the letters.

    Attributes
    ----------
    activation : Activation
    weight : ndarray of shape (n,)
    inject, bias : float
    featured : bool
    one, two : SampleColumns
        The activation at the scales of both samples.
    squash, gain, again : ndarray of shape (n,)
        a_i a_j, c_i c_j, r_i r_j.
    """

    activation: Activation
    weight: FloatArray
    inject: float
    bias: float
    featured: bool
    one: SampleColumns
    two: SampleColumns
    squash: FloatArray
    gain: FloatArray
    again: FloatArray

    @property
    def size(self) -> FloatArray:
        """τ_i τ_j."""
        return self.one.scales * self.two.scales

    @property
    def largest(self) -> FloatArray:
        """The largest covariance that can be passed on, √(v_i v_j)."""
        if self.featured:
            return np.ones_like(self.squash)
        return np.sqrt(self.one.square * self.two.square)

    @property
    def taken(self) -> FloatArray:
        """What normalised features take off: m_i m_j."""
        return self.one.mean * self.two.mean if self.featured else np.zeros_like(self.squash)

    def correlation(self, state: FloatArray, inner: FloatArray) -> FloatArray:
        """ρ of the pre-activations, if the layer reads the covariance `state`."""
        full = self.squash * (self.weight * state + self.inject * inner + self.bias)
        # A sample without variance has no correlation; by convention it is zero.
        solvable = np.minimum(self.one.scales, self.two.scales) > LEAST_SCALE
        return np.where(solvable, np.clip(full / self.size, -1.0, 1.0), 0.0)

    def part(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> PairLayer:
        """Return the layer for some of the pairs."""
        values = (getattr(self, field.name) for field in fields(self))
        return PairLayer(
            *(
                v.take(chosen)  # type: ignore[arg-type]
                if isinstance(v, SampleColumns)
                else v[chosen]
                if isinstance(v, np.ndarray)
                else v
                for v in values
            )
        )


class _Turn(NamedTuple):
    """One turn through the cell: what comes out, its slope, and every layer's own."""

    state: FloatArray
    slope: FloatArray
    correlations: list[FloatArray]
    raw: list[FloatArray]
    values: list[FloatArray]
    slopes: list[FloatArray]


def _turn(layers: list[PairLayer], inner: FloatArray, state: FloatArray) -> _Turn:
    total = np.ones_like(state)
    correlations, raw, values, slopes = [], [], [], []
    for layer in layers:
        rho = layer.correlation(state, inner)
        pairs = standardised_pairs(
            layer.activation, layer.one.scales, layer.two.scales, rho, 1.0 - np.abs(rho)
        )
        state = layer.gain * (pairs.value - layer.taken)
        slope = layer.gain * pairs.derivative
        total = total * layer.squash * layer.weight * slope
        correlations.append(rho)
        raw.append(pairs.value)
        values.append(state)
        slopes.append(slope)
    return _Turn(state, total, correlations, raw, values, slopes)


def solve_pairs(layers: list[PairLayer], inputs: InputPairs, name: str) -> list[Passage]:
    """Solve for the covariance of the state, pair by pair; return what every layer does there.

    Newton's method on V inside the bracket |V| ≤ √(v_i v_j).

    Raises
    ------
    NotConverged
        With the worst pair and its residual.
    """
    inner, bound = inputs.inner, layers[-1].largest
    state = np.clip(_approximate(layers, inner), -bound, bound)
    low, high = -bound, bound.copy()
    turn = _turn(layers, inner, state)
    values, slopes = [v.copy() for v in turn.values], [s.copy() for s in turn.slopes]
    correlations = [rho.copy() for rho in turn.correlations]
    image, total = turn.state.copy(), turn.slope.copy()
    active = np.arange(len(state))
    for _ in range(_MAX_STEPS):
        gap = image[active] - state[active]
        low[active] = np.where(gap >= 0.0, state[active], low[active])
        high[active] = np.where(gap <= 0.0, state[active], high[active])
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = state[active] + gap / (1.0 - total[active])
        inside = (moved >= low[active]) & (moved <= high[active])
        moved = np.where(inside, moved, 0.5 * (low[active] + high[active]))
        again = np.abs(moved - state[active]) > _TOLERANCE * bound[active]
        active, moved = active[again], moved[again]
        if not active.size:
            break
        state[active] = moved
        turn = _turn([layer.part(active) for layer in layers], inner[active], moved)
        image[active], total[active] = turn.state, turn.slope
        for kept, new in zip(
            (*values, *slopes, *correlations),
            (*turn.values, *turn.slopes, *turn.correlations),
            strict=True,
        ):
            kept[active] = new
    residual = np.abs(image - state) / np.maximum(bound, LEAST_SCALE**2)
    if (residual > _RESIDUAL).any():
        worst = int(residual.argmax())
        raise NotConverged(
            f"{int((residual > _RESIDUAL).sum())} pairs of the {name} did not converge: the worst, "
            f"with x·y = {inner[worst]:.6g}, has a residual of {residual[worst]:.3g}. Use smaller "
            "weights."
        )
    near = np.zeros(len(state), dtype=bool)
    for layer, rho in zip(layers, correlations, strict=True):
        solvable = np.minimum(layer.one.scales, layer.two.scales) > LEAST_SCALE
        near |= solvable & (1.0 - np.abs(rho) < _NEAR)
    if near.any() and any(layer.activation.kinks for layer in layers):
        close = _near_pairs([layer.part(near) for layer in layers], inputs.part(near), state[near])
        for kept, new in zip((*values, *slopes), close, strict=True):
            kept[near] = new
    return [
        Passage(x.squash, x.weight, x.again, x.inject, x.bias, value, slope)
        for x, value, slope in zip(layers, values, slopes, strict=True)
    ]


def _near_pairs(layers: list[PairLayer], inputs: InputPairs, state: FloatArray) -> list[FloatArray]:
    """Values and slopes of all layers where r = 1 − |ρ| is tiny and what matters.

    The unknown is d = 1 − |V|/√(v_i v_j).  A pre-activation is a vector with the components
    (√w s, √u ‖x‖, √b), so that for ρ > 0

    τ_i τ_j r = (product of lengths − inner product) + w s_i s_j d + u ‖x‖‖y‖ c,

    c = 1 − |cos(x, y)|, where the bracket is a sum of squared determinants over the sum of the two
    products (Lagrange).  A component of the other sign is missed twice.
    """
    deficit = 1.0 - np.minimum(np.abs(state) / layers[-1].largest, 1.0)
    for _ in range(_MAX_STEPS):
        rest, sign, root1, root2 = deficit, np.sign(state), *_roots(layers[-1])
        product = np.ones_like(deficit)
        values, slopes = [], []
        incoming = state
        for layer in layers:
            rho = layer.correlation(incoming, inputs.inner)
            toward = np.where(rho >= 0.0, 1.0, -1.0)
            lengths1 = np.stack([np.sqrt(layer.weight) * root1, inputs.norm1, np.ones_like(root1)])
            lengths2 = np.stack([np.sqrt(layer.weight) * root2, inputs.norm2, np.ones_like(root2)])
            factors = np.sqrt([[1.0], [layer.inject], [layer.bias]])
            lengths1, lengths2 = factors * lengths1, factors * lengths2
            whole = np.sqrt((lengths1**2).sum(axis=0) * (lengths2**2).sum(axis=0))
            across = sum(
                (lengths1[i] * lengths2[j] - lengths1[j] * lengths2[i]) ** 2
                for i, j in ((0, 1), (0, 2), (1, 2))
            ) / (whole + (lengths1 * lengths2).sum(axis=0))
            # For components of the sign of ρ, w s_i s_j(1 − |cos|); of the other sign 1 + |cos| = 2
            # − (1 − |cos|).
            missing = np.stack(
                [
                    np.where(sign == toward, rest, 2.0 - rest),
                    np.where(np.sign(inputs.inner) == toward, inputs.rest, 2.0 - inputs.rest),
                    np.where(toward > 0.0, 0.0, 2.0),
                ]
            )
            short = (across + (lengths1 * lengths2 * missing).sum(axis=0)) / whole
            close = 1.0 - np.abs(rho) < _NEAR
            short = np.where(close, np.maximum(short, 0.0), 1.0 - np.abs(rho))
            pairs = standardised_pairs(
                layer.activation, layer.one.scales, layer.two.scales, rho, short
            )
            rest = feature_rest(layer.activation, layer.one, layer.two, rho, short, pairs.value)
            if layer.featured:
                rest = _rest_without_means(layer, rest, pairs.value)
            incoming = layer.gain * (pairs.value - layer.taken)
            slope = layer.gain * pairs.derivative
            product = product * layer.squash * layer.weight * np.abs(slope)
            sign = np.sign(incoming)
            root1, root2 = _roots(layer)
            values.append(incoming)
            slopes.append(slope)
        # Newton's step on d(V): the slope is that of a turn, with moduli because d counts down from
        # |V|.
        moved = np.maximum(deficit + (rest - deficit) / (1.0 - product), 0.0)
        settled = np.abs(moved - deficit) <= 1e-13 * np.sqrt(deficit) + 1e-30
        deficit = moved
        if settled.all():
            return [*values, *slopes]
    worst = int(np.argmin(settled))
    raise NotConverged(
        f"1 − |ρ| of a pair with x·y = {inputs.inner[worst]:.6g} did not converge in {_MAX_STEPS} "
        "steps. Use smaller weights."
    )


def _roots(layer: PairLayer) -> tuple[FloatArray, FloatArray]:
    """√v of both samples, v the second moment that the layer passes on."""
    if layer.featured:
        one = np.ones_like(layer.squash)
        return one, one
    return np.sqrt(layer.one.square), np.sqrt(layer.two.square)


def _rest_without_means(layer: PairLayer, rest: FloatArray, value: FloatArray) -> FloatArray:
    """Turn 1 − E[φφ]/(s_i s_j) into 1 − (E[φφ] − m_i m_j)/(ς_i ς_j), without cancellation."""
    mean1, mean2 = layer.one.mean, layer.two.mean
    spread1, spread2 = (
        np.sqrt(np.maximum(s.square - s.mean**2, 0.0)) for s in (layer.one, layer.two)
    )
    size, spread = np.sqrt(layer.one.square * layer.two.square), spread1 * spread2
    # s_i s_j − (m_i m_j + ς_i ς_j) for the vectors (m, ς) of lengths s: Lagrange's identity again.
    across = (mean1 * spread2 - mean2 * spread1) ** 2 / (size + mean1 * mean2 + spread)
    careful = (size * rest - across) / spread
    plain = 1.0 - np.minimum(np.abs(value - mean1 * mean2) / spread, 1.0)
    return np.asarray(np.where(value > 0.0, np.maximum(careful, 0.0), plain))


def _approximate(layers: list[PairLayer], inner: FloatArray) -> FloatArray:
    """Solve for V with truncated series: a good start, so that expensive evaluations are few."""
    series = []
    for layer in layers:
        scales, place = np.unique(
            np.stack([layer.one.scales, layer.two.scales]), return_inverse=True
        )
        first, second = place.reshape(2, -1)
        coefficients = layer.activation.hermite_coefficients(scales, _START_TERMS)
        products = (coefficients[first] * coefficients[second]).T
        series.append((products, products[1:] * np.arange(1, _START_TERMS)[:, None]))
    bound = layers[-1].largest
    state = np.zeros_like(inner)
    for _ in range(_START_STEPS):
        image, total = state, np.ones_like(state)
        for layer, (products, derivatives) in zip(layers, series, strict=True):
            rho = layer.correlation(image, inner)
            slope = polyval(rho, derivatives, tensor=False) / layer.size
            image = layer.gain * (polyval(rho, products, tensor=False) - layer.taken)
            total = total * layer.squash * layer.weight * layer.gain * slope
        with np.errstate(divide="ignore", invalid="ignore"):
            step = (image - state) / (1.0 - total)
        state = np.clip(np.where(np.isfinite(step), state + step, state), -bound, bound)
    return np.asarray(state)

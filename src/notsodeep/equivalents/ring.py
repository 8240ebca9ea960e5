"""Every dense kernel near right angles, by one walk around the ring of its cell.

A kernel is κ(‖x‖², ‖y‖², x·y).  The equations of a cell, C = wV + u s + b, G = C or whitened, and
V = E[φφ] or whitened, are followed with numbers of any kind that can be added and multiplied:
polynomials of degree two in (s, χ, ω) = (x·y, ‖x‖² − τ0², ‖y‖² − τ0²), called jets, or arrays, real
or complex, with an entry for each pair of inputs.  An explicit network is a ring that is not
closed: its first layer does not read the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    Dense,
    ExplicitNetwork,
    KernelName,
    MonotoneEquilibrium,
    require_varying,
)
from notsodeep.models.layers import solve_variances, stability
from notsodeep.numerics.quadrature import resolved_samples

TERMS = (60, 400)
"""Lengths of Mehler's series: few terms do unless inputs at right angles are correlated."""

EXTRA = 6
"""Hermite coefficients beyond: E[φ⁽⁵⁾φ′], of the tangent kernel, has the most derivatives."""

_TAIL = 1e-14
_MAX_NEWTON_STEPS = 60

Number = Any
"""A float, a complex array or a `Jet`."""

Value = TypeVar("Value")


class SlowSeries(InvalidInput):
    """More terms are needed."""


@dataclass(frozen=True)
class Jet:
    """one + s·s + q(χ + ω) + qq(χ² + ω²) + qr χω + ss s² + sq s(χ + ω)."""

    __array_ufunc__ = None  # NumPy leaves products with arrays to __rmul__

    one: Any
    s: Any = 0.0
    q: Any = 0.0
    qq: Any = 0.0
    qr: Any = 0.0
    ss: Any = 0.0
    sq: Any = 0.0

    @property
    def terms(self) -> tuple[Any, ...]:
        """All coefficients, in this order."""
        return self.one, self.s, self.q, self.qq, self.qr, self.ss, self.sq

    def __add__(self, other: Number) -> Jet:
        """Of coefficients, or of the first and a number."""
        if not isinstance(other, Jet):
            return replace(self, one=self.one + other)
        return Jet(*(a + b for a, b in zip(self.terms, other.terms, strict=True)))

    def __mul__(self, other: Number) -> Jet:
        """Multiply polynomials, up to degree two."""
        if not isinstance(other, Jet):
            return Jet(*(a * other for a in self.terms))
        a, b = self, other
        return Jet(
            a.one * b.one,
            a.one * b.s + a.s * b.one,
            a.one * b.q + a.q * b.one,
            a.one * b.qq + a.qq * b.one + a.q * b.q,
            a.one * b.qr + a.qr * b.one + 2.0 * a.q * b.q,
            a.one * b.ss + a.ss * b.one + a.s * b.s,
            a.one * b.sq + a.sq * b.one + a.s * b.q + a.q * b.s,
        )

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Number) -> Jet:
        """Subtract a jet or a number."""
        return self.__add__(other * -1.0)

    def __rsub__(self, other: Number) -> Jet:
        """Subtract from a number."""
        return self.__mul__(-1.0).__add__(other)

    def inverse(self) -> Jet:
        """1/self: with u = self/one − 1, 1/(1 + u) = 1 − u + u² up to degree two."""
        u = self.__mul__(1.0 / self.one).__add__(-1.0)
        return u.__mul__(u).__sub__(u).__add__(1.0).__mul__(1.0 / self.one)


def _value(x: Number) -> Any:
    return x.one if isinstance(x, Jet) else x


def _of_both(value: Any, first: Any, second: Any) -> Jet:
    """f(χ)f(ω) for f = value + first χ + second χ²."""
    return Jet(value**2, q=value * first, qq=value * second, qr=first**2)


def _inverse_root(value: Any, first: Any, second: Any) -> Jet:
    """1/√(f(χ)f(ω)) for f = value + first χ + second χ²."""
    a, b = first / value, second / value
    return _of_both(1.0, -0.5 * a, 0.375 * a**2 - 0.5 * b).__mul__(1.0 / value)


@dataclass(frozen=True, eq=False)
class Unit:
    """Moments of an activation φ at the scale τ = √q of its pre-activations.

    Many activations at once have arrays of one shape in place of numbers; complex ones too, whose
    imaginary parts are derivatives.
    """

    scale: Any  # τ
    square: Any  # v = E φ²(τξ)
    square_slope: Any  # dv/dq
    square_bend: Any  # d²v/dq²
    slope_square: Any  # E φ′²(τξ)
    hermite: NDArray[Any]  # coefficients of φ(τξ) in orthonormal polynomials, (…, terms + EXTRA)
    name: str  # for messages

    def mean(self, first: Any, second: Any) -> tuple[Any, Any, Any]:
        """E φ(√q ξ) in χ, for a variance q of these derivatives (d/dq is half of d²/dx²)."""
        a0, a2, a4 = (
            self.hermite[..., a] * math.sqrt(math.factorial(a)) / np.power(self.scale, float(a))
            for a in (0, 2, 4)
        )
        return a0, 0.5 * a2 * first, 0.5 * a2 * second + 0.125 * a4 * first**2

    def second_moment(self, first: Any, second: Any) -> tuple[Any, Any, Any]:
        """E φ²(√q ξ) in χ, for a variance q of these derivatives."""
        slope, bend = self.square_slope, self.square_bend
        return self.square, slope * first, slope * second + 0.5 * bend * first**2


def unit_of(activation: Activation, scale: float, terms: int) -> Unit:
    """Moments by quadrature, for any activation."""
    moments = activation.moments(scale)
    return Unit(
        scale=scale,
        square=float(moments.square),
        square_slope=0.5 * float(moments.square_curvature),
        square_bend=_second_derivative(activation, scale),
        slope_square=float(moments.slope_square),
        hermite=activation.hermite_coefficients(scale, terms + EXTRA)[0],
        name=str(activation),
    )


def _second_derivative(activation: Activation, scale: float) -> float:
    """Return the second derivative of q ↦ E φ²(√q ξ): ½ E[φφ′(ξ³ − 3ξ)]/q^{3/2}."""

    def value_and_slope(x: FloatArray) -> FloatArray:
        return np.stack([activation.value(x), activation.derivative(x)])

    total = 0.0
    splits = activation.panel_ends(scale)
    for part in resolved_samples(value_and_slope, np.array([scale]), splits, name=str(activation)):
        value, slope = part.values
        # ¼ E[(φ²)⁗], with three of the derivatives moved to the density: φ need have only one.
        xi = part.rule.nodes
        total += float((part.rule.weights * value * slope * (xi**3 - 3.0 * xi)).sum())
    return 0.5 * total / scale**3


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer for a pair of inputs: C = wV + u s + b, G = inner·C, V = outer·(E[φφ] − means)."""

    dense: Dense
    hermite: tuple[Any, Any]  # of φ(τξ), for x and for y: shapes that broadcast
    scales: tuple[Any, Any]
    square: Any  # E φ² and E φ′², for the kernel of an input with itself
    slope_square: Any
    incoming: Any  # C of an input with itself
    growth: tuple[Any, Any] = (0.0, 0.0)  # of the variance of G: first and second order in χ
    inner: Any = 1.0
    outer: Any = 1.0
    means: Any = 0.0
    again: float = 0.0  # counted twice by the tangent kernel of a monotone network
    tail: float = _TAIL  # of Mehler's series, relative to its largest term

    @property
    def norms_matter(self) -> bool:
        """Whether the variance of G depends on the norm, up to second order."""
        return bool(np.any(self.growth[0]) or np.any(self.growth[1]))

    def moment(self, covariance: Any) -> Callable[[int, int], Any]:
        """Return (a, b) ↦ E[φ^(a)(u)φ^(b)(v)] for that covariance of u and v, by Mehler's series.

        Σ_k ρ^k a_{k+a} b_{k+b} √((k+a)!(k+b)!)/(k! τ^a τ′^b): derivatives are weak, so that a kink
        has all of them.
        """
        (one, two), (tau, tau2) = self.hermite, self.scales
        rho = np.asarray(covariance / (tau * tau2))
        # At right angles the first term is all there is.
        count = one.shape[-1] - EXTRA if rho.any() else 1
        powers = rho[..., None] ** np.arange(count)

        @cache
        def moment(a: int, b: int) -> Any:
            # Each derivative multiplies term k by about √k: polynomial, which ρ^k outweighs.
            parts = powers * _factorials(count, a, b)
            parts = parts * one[..., a : a + count] * two[..., b : b + count]
            if count > 1 and abs(parts[..., -8:]).max() > self.tail * max(abs(parts).max(), 1e-300):
                raise SlowSeries(
                    f"The expansion of {self.dense.activation} does not converge: inputs at right "
                    f"angles have pre-activations of correlation {abs(rho).max():.4g}. Use smaller "
                    "biases."
                )
            return parts.sum(axis=-1) / (np.power(tau, float(a)) * np.power(tau2, float(b)))

        return moment

    def correlate(self, full: Number) -> tuple[Number, Number]:
        """E[φφ] and E[φ′φ′] for the covariance `full`: Price's theorem up to degree two."""
        e = self.moment(_value(full))
        if not isinstance(full, Jet):
            return e(0, 0), e(1, 1)
        move = full - full.one
        first, second = self.growth
        norms = Jet(0.0, q=first, qq=second)

        def composed(k: int) -> Jet:
            result: Jet = move * e(k + 1, k + 1) + move * move * (0.5 * e(k + 2, k + 2)) + e(k, k)
            if self.norms_matter:
                result += norms * (0.5 * e(k + 2, k)) + move * norms * (0.5 * e(k + 3, k + 1))
                result += Jet(0.0, qq=first**2) * (0.125 * e(k + 4, k))
                result += Jet(0.0, qr=first**2) * (0.25 * e(k + 2, k + 2))
            return result

        return composed(0), composed(1)


@lru_cache(maxsize=256)
def _factorials(terms: int, a: int, b: int) -> FloatArray:
    # In logarithms: (k + a)! overflows at k = 170.
    k = np.arange(terms)
    logarithms = 0.5 * (gammaln(k + a + 1) + gammaln(k + b + 1)) - gammaln(k + 1)
    return np.asarray(np.exp(logarithms))


@dataclass(frozen=True, eq=False)
class Turn:
    """One turn around the ring: G, V and E[φ′φ′] of each layer, and the product of w E[φ′φ′]."""

    fulls: list[Number]
    features: list[Number]
    slopes: list[Number]
    gain: Any


def turn(layers: Sequence[Layer], state: Number, s: Number) -> Turn:
    """Follow the covariance `state` of the last layer once around the ring."""
    fulls, features, slopes, gain = [], [], [], 1.0
    for layer in layers:
        d = layer.dense
        full = layer.inner * (state * d.weight + s * d.inject + d.bias)
        feature, slope = layer.correlate(full)
        state = layer.outer * (feature - layer.means)
        slope = layer.outer * slope
        gain = gain * (d.weight * _value(layer.inner) * _value(slope))
        fulls.append(full)
        features.append(state)
        slopes.append(slope)
    return Turn(fulls, features, slopes, gain)


def equilibrium(layers: Sequence[Layer], s: Number) -> Turn:
    """Solve for the covariance that comes back as it went in, order by order."""
    state = 0.0 * _value(s)
    if layers[0].dense.weight == 0.0:  # nothing comes back
        return turn(layers, state, s)
    plain = [
        replace(layer, **{name: _value(getattr(layer, name)) for name in _NORMALISING})
        for layer in layers
    ]
    for _ in range(_MAX_NEWTON_STEPS):
        image = turn(plain, state, _value(s))
        step = (image.features[-1] - state) / (1.0 - image.gain)
        state = state + step
        if np.max(abs(step)) <= 1e-15 * max(np.max(abs(state)), 1e-30):
            break
    else:
        left = abs(turn(plain, state, _value(s)).features[-1] - state)
        if not np.max(left) <= 1e-12 * max(np.max(abs(state)), 1e-30):
            raise NotConverged(
                "The kernel at right angles was not found: there is no fixed point, or it is "
                "repelling. Use smaller weights."
            )
    if isinstance(s, Jet):
        # A turn maps what is unknown at an order, y, to known + gain·y.
        new = turn(layers, state, s)
        first, room = new.features[-1], 1.0 - new.gain
        state = Jet(state, first.s / room, first.q / room)
        second = turn(layers, state, s).features[-1].terms[3:]
        state = Jet(*state.terms[:3], *(c / room for c in second))
    return turn(layers, state, s)


_NORMALISING = ("inner", "outer", "means")


def read(layers: Sequence[Layer], at: Turn, kind: KernelName, convention: Convention) -> Number:
    """Return the kernel of the last layer, conjugate or tangent."""
    if kind == "ck":
        return at.features[-1] if convention == "feature" else at.fulls[-1]
    theta: Number = 0.0
    product: Number = 1.0
    before, state = at.slopes[-1], at.features[-1]
    for layer, full, feature, slope in zip(layers, at.fulls, at.features, at.slopes, strict=True):
        carried = layer.dense.weight * layer.inner * before
        theta = full + layer.again * layer.inner * state + carried * theta
        product = carried * product
        before, state = slope, feature
    room = 1.0 - product
    theta = theta * (room.inverse() if isinstance(room, Jet) else 1.0 / room)
    return theta if convention == "preactivation" else at.features[-1] + at.slopes[-1] * theta


def with_itself(layers: Sequence[Layer], kind: KernelName, convention: Convention) -> Any:
    """Return the kernel of an input with itself."""
    plain = [
        replace(layer, **{name: _value(getattr(layer, name)) for name in _NORMALISING})
        for layer in layers
    ]
    at = Turn(
        [layer.incoming * layer.inner for layer in plain],
        [layer.outer * (layer.square - layer.means) for layer in plain],
        [layer.outer * layer.slope_square for layer in plain],
        0.0,
    )
    return read(plain, at, kind, convention)


def ring_of(model: DeepEquilibrium | ExplicitNetwork) -> tuple[Dense, ...]:
    """Return the layers of a model; the first of an explicit network does not read the last."""
    if isinstance(model, DeepEquilibrium):
        return model.cell
    first, *others = model.activations
    return (Dense(first, 0.0, inject=1.0), *(Dense(each, 1.0) for each in others))


def layers_at(
    model: DeepEquilibrium | ExplicitNetwork | MonotoneEquilibrium,
    squared_norms: FloatArray,
    terms: int,
    tail: float = _TAIL,
) -> list[Layer]:
    """Return the layers at m norms, for all pairs of them; m = 1 has numbers in place of (m, m)."""
    one = len(squared_norms) == 1

    def pair(x: FloatArray) -> tuple[Any, Any]:
        return (x[0], x[0]) if one else (x[:, None], x[None, :])

    def outer(x: FloatArray) -> Any:
        return x[0] ** 2 if one else np.outer(x, x)

    if isinstance(model, MonotoneEquilibrium):
        return [_monotone_layer(model, squared_norms, terms, tail)]
    cell = ring_of(model)
    require_varying(cell[0].activation, math.sqrt(squared_norms[0]), "an equivalent")
    variances, _ = solve_variances(cell, squared_norms, name=f"the variance of {model}")
    radius = stability(cell, variances).max()
    if not radius < 1.0:
        raise NotConverged(
            f"The {model} has no stable equilibrium: the product of w E φ′² over its layers is "
            f"{radius:.4g} and must stay below 1. Use smaller weights."
        )
    layers = []
    for dense, incoming, tau in zip(cell, variances.incoming, variances.scales, strict=True):
        require_varying(dense.activation, float(tau[0]), "an equivalent")
        moments = dense.activation.moments(tau)
        whiten, normal = dense.normalise == "preactivation", dense.normalise == "feature"
        layers.append(
            Layer(
                dense,
                pair(dense.activation.hermite_coefficients(tau, terms + EXTRA)),
                pair(tau),
                moments.square[0],
                moments.slope_square[0],
                incoming[0],
                inner=outer(incoming**-0.5) if whiten else 1.0,
                outer=outer(moments.variance**-0.5) if normal else 1.0,
                means=outer(moments.mean) if normal else 0.0,
                tail=tail,
            )
        )
    return layers


def _monotone_layer(
    model: MonotoneEquilibrium, squared_norms: FloatArray, terms: int, tail: float
) -> Layer:
    """Treat it as a vanilla layer, of which the tangent kernel counts a part twice."""
    tau = model.scales(squared_norms)
    unit = model.response
    moments = unit.activation.moments(float(tau[0]))
    hermite = unit.activation.hermite_coefficients(float(tau[0]), terms + EXTRA)[0]
    dense = Dense(unit.activation, 2.0 * model.skew + unit.coupling**2, model.inject, model.bias)
    return Layer(
        dense,
        (hermite, hermite),
        (tau[0], tau[0]),
        float(moments.square),
        float(moments.slope_square),
        tau[0] ** 2,
        again=unit.coupling**2,
        tail=tail,
    )


def around(
    cell: Sequence[Dense], units: Sequence[Unit], squared_norm: float, again: float = 0.0
) -> list[Layer]:
    """Return the layers at one norm, with their dependence on norms up to second order in χ."""
    closed = cell[0].weight > 0.0
    free = [dense.normalise is None for dense in cell]
    rows = [(d, u, f) for d, u, f in zip(cell, units, free, strict=True)]

    def walk(first: Any, second: Any) -> tuple[list[tuple[Any, Any]], Any, Any]:
        """Return derivatives of every C and of the last E φ², for those that the first reads."""
        incoming = []
        for dense, unit, plain in rows:
            c = dense.weight * first + dense.inject, dense.weight * second
            incoming.append(c)
            _, first, second = unit.second_moment(*c) if plain else (0.0, 0.0, 0.0)
        return incoming, first, second

    gain = math.prod(d.weight * u.square_slope if plain else 0.0 for d, u, plain in rows)
    first = walk(0.0, 0.0)[1] / (1.0 - gain) if closed else 0.0
    second = walk(first, 0.0)[2] / (1.0 - gain) if closed else 0.0
    layers = []
    state: Any = 1.0 if cell[-1].normalise == "feature" else units[-1].square
    for (dense, unit, _), growth in zip(rows, walk(first, second)[0], strict=True):
        incoming = dense.weight * state + dense.inject * squared_norm + dense.bias
        state = 1.0 if dense.normalise == "feature" else unit.square
        layer = Layer(
            dense, (unit.hermite, unit.hermite), (unit.scale, unit.scale), unit.square,
            unit.slope_square, incoming, growth, again=again,
        )  # fmt: skip
        if dense.normalise == "preactivation":
            layer = replace(layer, growth=(0.0, 0.0), inner=_inverse_root(incoming, *growth))
        if dense.normalise == "feature":
            mean, v = unit.mean(*growth), unit.second_moment(*growth)
            spread = (
                v[0] - mean[0] ** 2,
                v[1] - 2.0 * mean[0] * mean[1],
                v[2] - 2.0 * mean[0] * mean[2] - mean[1] ** 2,
            )
            layer = replace(layer, means=_of_both(*mean), outer=_inverse_root(*spread))
        layers.append(layer)
    return layers


def with_enough_terms(make: Callable[[int], Value]) -> Value:
    """Call `make` with more terms where Mehler's series is slow."""
    try:
        return make(TERMS[0])
    except SlowSeries:
        return make(TERMS[1])

"""Equivalents of kernels on the unit sphere, where a kernel is a function g of x·y alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.dual_derivatives import DualDerivatives, dual_derivatives
from notsodeep.equivalents.equivalent_matrix import Equivalent, SphereCoefficients
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    Model,
    MonotoneEquilibrium,
    checked_choice,
)
from notsodeep.models.layers import solve_variances
from notsodeep.numerics.fixed_point import solve_fixed_point


@dataclass(frozen=True)
class _Jet:
    """A function of t by its value and first two derivatives at 0, and its value at 1."""

    value: float
    first: float
    second: float
    end: float

    def plus(self, other: _Jet) -> _Jet:
        return _Jet(
            self.value + other.value,
            self.first + other.first,
            self.second + other.second,
            self.end + other.end,
        )

    def times(self, other: _Jet) -> _Jet:
        return _Jet(
            self.value * other.value,
            self.first * other.value + self.value * other.first,
            self.second * other.value + 2.0 * self.first * other.first + self.value * other.second,
            self.end * other.end,
        )

    def scaled(self, factor: float) -> _Jet:
        return _Jet(*(factor * x for x in (self.value, self.first, self.second, self.end)))

    def mapped(self, value: float, first: float, second: float, end: float) -> _Jet:
        """F∘self for F with these derivatives at self.value; `end` is F at self.end."""
        bend = second * self.first**2 + first * self.second
        return _Jet(value, first * self.first, bend, end)


_SMALLEST = 1e-60  # variance of a layer whose powers, up to the fifth, are numbers
_INNER_PRODUCT = _Jet(0.0, 1.0, 0.0, 1.0)


def sphere_equivalent(
    model: Model,
    X: ArrayLike,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
) -> Equivalent:
    """Compute the equivalent α 11ᵀ + β XXᵀ + μI of a kernel on the unit sphere.

    With g(t) the kernel as a function of t = x·y: α = g(0) + g″(0)/(2d), β = g′(0) and
    μ = g(1) − g(0) − g′(0) (sphere paper, arXiv 2308.16425, theorems 1 and 2, the sign of k′(0)
    corrected).  The derivatives of a DEQ's g come from implicit differentiation of
    g = σa² f(g) + σb² t, those of an explicit network from the chain rule.  The model is not
    centred here: the constant is part of the kernel.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
        Any activation.
    X : array_like of shape (n, d)
        Rows of norm one, taken to be spread evenly over the sphere.
    kind : {"ck", "ntk"}
    convention : {"preactivation", "feature"}
        Concerns DEQs only.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(100, 120, rng=0)
    >>> deq = nsd.DeepEquilibrium("normalized_relu", sigma_a2=0.2)
    >>> c = nsd.sphere_equivalent(deq, X).coefficients
    >>> round(c.value, 5), round(c.linear, 5), round(c.curvature, 5), round(c.diagonal, 5)
    (0.07091, 0.89337, 0.05688, 0.03571)
    """
    owner = "sphere_equivalent"
    kind = checked_choice(model, kind, convention, owner)
    rows = checks.unit_rows(X, "X", owner)
    n, d = rows.shape
    if min(n, d) < 2:
        requirement = "have at least two rows and two columns (the theory lets both grow)"
        raise checks.invalid("X", owner, requirement, f"shape {rows.shape}")
    numbers = sphere_coefficients(model, d, kind=kind, convention=convention)
    core = np.array([[numbers.constant]])
    return Equivalent(rows, np.ones((n, 1)), core, numbers, None, model, kind, convention)


def sphere_coefficients(
    model: Model,
    dimension: int,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
) -> SphereCoefficients:
    """Compute α, β and μ of `sphere_equivalent` for points on the sphere of R^dimension."""
    owner = "sphere_coefficients"
    kind = checked_choice(model, kind, convention, owner)
    checks.integer_at_least(dimension, 2, "dimension", owner)
    if isinstance(model, ExplicitNetwork):
        g = _explicit(model, kind)
    elif isinstance(model, DeepEquilibrium) and model.is_vanilla:
        g = _equilibrium(model, kind, convention)
    else:
        g = SphereRing(model).kernel(kind, convention)
    return SphereCoefficients(
        constant=g.value + g.second / (2.0 * dimension),
        linear=g.first,
        # Non-negative Taylor coefficients make μ at least zero, up to rounding.
        diagonal=max(0.0, g.end - g.value - g.first),
        value=g.value,
        curvature=g.second,
        end=g.end,
    )


def _equilibrium(deq: DeepEquilibrium, kind: KernelName, convention: Convention) -> _Jet:
    back, forth = deq.sigma_a2, deq.sigma_b2
    activation = deq.activation
    variance = deq.preactivation_variance(1.0)

    def dual(G: float) -> DualDerivatives:
        return dual_derivatives(activation, variance, G)

    def angle_map(G: FloatArray) -> FloatArray:
        return np.asarray(back * dual(float(G)).value)

    angle = float(solve_fixed_point(angle_map, 0.0, name=f"g(0) of the {deq}").value)
    f = dual(angle)
    moments = activation.moments(np.sqrt(variance))
    # g = σa² f(g) + σb² t, differentiated at t = 0.
    # g′ = σa² f′g′ + σb² and g″ = σa²(f″g′² + f′g″); σa² f′ < 1 since the angle map contracts.
    room = 1.0 - back * f.first
    first = forth / room
    g = _Jet(angle, first, back * f.second * first**2 / room, variance)
    if kind == "ck":
        if convention == "preactivation":
            return g
        return g.mapped(f.value, f.first, f.second, float(moments.square))
    slope = g.mapped(f.first, f.second, f.third, float(moments.slope_square))
    if not back * slope.end < 1.0:
        raise NotConverged(
            f"The tangent kernel of the {deq} is infinite: σa² E φ′(√q ξ)² = "
            f"{back * slope.end:.4g} must stay below 1. Use a smaller sigma_a2."
        )
    # K = G/(1 − σa² f′(G)); its features part is Φ + G f′/(1 − σa² f′).
    left = _Jet(room, -back * slope.first, -back * slope.second, 1.0 - back * slope.end)
    inverse = left.mapped(1.0 / room, -1.0 / room**2, 2.0 / room**3, 1.0 / left.end)
    if convention == "preactivation":
        return g.times(inverse)
    features = g.mapped(f.value, f.first, f.second, float(moments.square))
    return features.plus(g.times(slope).times(inverse))


@dataclass(frozen=True)
class SphereLayer:
    """A layer of a cell on the unit sphere: G = a²(w V + u t + b), V ← c²(E[φφ] − m²).

    `again` is what the tangent kernel counts twice, in a monotone network.
    """

    activation: Activation
    variance: float
    weight: float
    inject: float
    bias: float
    squash: float = 1.0
    gain: float = 1.0
    taken: float = 0.0
    again: float = 0.0


def sphere_layers(model: DeepEquilibrium | MonotoneEquilibrium) -> list[SphereLayer]:
    """Return the layers of a cell for inputs of norm one."""
    if isinstance(model, MonotoneEquilibrium):
        scale = float(model.scales(np.ones(1))[0])
        unit = model.response
        weight = 2.0 * model.skew + unit.coupling**2
        numbers = (weight, model.inject, model.bias)
        return [SphereLayer(unit.activation, scale**2, *numbers, again=unit.coupling**2)]
    variances, _ = solve_variances(model.cell, np.ones(1), name=f"the variance of the {model}")
    layers = []
    for layer, incoming, tau in zip(
        model.cell, variances.incoming[:, 0], variances.scales[:, 0], strict=True
    ):
        squash = 1.0 / float(incoming) if layer.normalise == "preactivation" else 1.0
        gain, taken = 1.0, 0.0
        if layer.normalise == "feature":
            moments = layer.activation.moments(float(tau))
            gain, taken = 1.0 / float(moments.variance), float(moments.mean) ** 2
        variances_of_weights = (layer.weight, layer.inject, layer.bias)
        normalising = (squash, gain, taken)
        layers.append(
            SphereLayer(layer.activation, float(tau) ** 2, *variances_of_weights, *normalising)
        )
    return layers


class SphereRing:
    """A general cell on the unit sphere: what the layers do, as functions of t = x·y."""

    def __init__(self, model: DeepEquilibrium | MonotoneEquilibrium) -> None:
        self._name = str(model)
        self.layers = sphere_layers(model)
        last = self.layers[-1]
        square = float(last.activation.moments(math.sqrt(last.variance)).square)
        end = last.gain * (square - last.taken)

        def angle_map(value: FloatArray) -> FloatArray:
            return np.asarray(self._turn(_Jet(float(value), 0.0, 0.0, end))[1][-1].value)

        start = solve_fixed_point(angle_map, 0.0, name=f"g(0) of the {model}").value
        state = _Jet(float(start), 0.0, 0.0, end)
        # What a turn leaves at an order is known + gain·(what it was given there).
        # g(0) may be found with derivatives left at zero: a turn's value does not depend on them.
        _, features, slopes = self._turn(state)
        gain = math.prod(
            layer.weight * layer.squash * slope.value
            for layer, slope in zip(self.layers, slopes, strict=True)
        )
        state = replace(state, first=features[-1].first / (1.0 - gain))
        second = self._turn(state)[1][-1].second / (1.0 - gain)
        self.fulls, self.features, self.slopes = self._turn(replace(state, second=second))
        self.state = self.features[-1]

    def _turn(self, state: _Jet) -> tuple[list[_Jet], list[_Jet], list[_Jet]]:
        """G, V and ∂V/∂G of every layer, if the first reads the covariance `state`."""
        fulls, features, slopes = [], [], []
        for layer in self.layers:
            constant = _Jet(layer.bias, 0.0, 0.0, layer.bias)
            full = state.scaled(layer.weight).plus(_INNER_PRODUCT.scaled(layer.inject))
            full = full.plus(constant).scaled(layer.squash)
            f = dual_derivatives(layer.activation, layer.variance, full.value)
            moments = layer.activation.moments(math.sqrt(layer.variance))
            slope = full.mapped(f.first, f.second, f.third, float(moments.slope_square))
            state = full.mapped(f.value, f.first, f.second, float(moments.square))
            taken = _Jet(-layer.taken, 0.0, 0.0, -layer.taken)
            state = state.plus(taken).scaled(layer.gain)
            fulls.append(full)
            features.append(state)
            slopes.append(slope.scaled(layer.gain))
        return fulls, features, slopes

    def kernel(self, kind: KernelName, convention: Convention) -> _Jet:
        """Return a kernel of the last layer as a function of t."""
        if kind == "ck":
            return self.features[-1] if convention == "feature" else self.fulls[-1]
        theta, product = _Jet(0.0, 0.0, 0.0, 0.0), _Jet(1.0, 0.0, 0.0, 1.0)
        before, state = self.slopes[-1], self.state
        for layer, full, feature, slope in zip(
            self.layers, self.fulls, self.features, self.slopes, strict=True
        ):
            carried = before.scaled(layer.weight * layer.squash)
            source = full.plus(state.scaled(layer.again * layer.squash))
            theta, product = source.plus(carried.times(theta)), carried.times(product)
            before, state = slope, feature
        if not product.end < 1.0:
            raise NotConverged(
                f"The {self._name} has no stable equilibrium on the unit sphere: the product of "
                f"w E φ′² over its layers is {product.end:.4g} and must stay below 1. Use smaller "
                "weights."
            )
        room = _Jet(1.0, 0.0, 0.0, 1.0).plus(product.scaled(-1.0))
        x = room.value
        theta = theta.times(room.mapped(1.0 / x, -1.0 / x**2, 2.0 / x**3, 1.0 / room.end))
        if convention == "preactivation":
            return theta
        return self.features[-1].plus(self.slopes[-1].times(theta))


def _explicit(network: ExplicitNetwork, kind: KernelName) -> _Jet:
    covariance = tangent = _INNER_PRODUCT
    for activation in network.activations:
        moments = activation.moments(float(np.sqrt(covariance.end)))
        f = dual_derivatives(activation, covariance.end, covariance.value)
        slope = covariance.mapped(f.first, f.second, f.third, float(moments.slope_square))
        covariance = covariance.mapped(f.value, f.first, f.second, float(moments.square))
        if not _SMALLEST < covariance.end < 1.0 / _SMALLEST:
            verb = "vanishes" if covariance.end < 1.0 else "is too large"
            raise InvalidInput(
                f"The {network} {verb} on the unit sphere: E σ² = {covariance.end:.3g} for "
                f"{activation}, and must be between {_SMALLEST:g} and {1.0 / _SMALLEST:g}. Use "
                "another activation, or one of usual size."
            )
        tangent = covariance.plus(tangent.times(slope))
    return tangent if kind == "ntk" else covariance

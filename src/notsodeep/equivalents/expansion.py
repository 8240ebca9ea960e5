"""The kernel of any dense cell, expanded around inputs of one norm at right angles.

Every dense kernel is a function κ(‖x‖², ‖y‖², x·y).  On a Gaussian mixture ‖x‖² − τ0² and x·y are
small, and the Taylor coefficients at (τ0², τ0², 0) up to the second order are all that an
equivalent needs.  They are found by carrying polynomials through the equations of the cell: what is
unknown at an order appears there linearly, so that each order costs one division.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.jets import INNER, ONE, UNIT, Jet, Quadratic, constant_jet
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    Dense,
    ExplicitNetwork,
    KernelName,
    checked_choice,
)
from notsodeep.models.layers import require_one_variance, solve_variances, stability
from notsodeep.numerics.quadrature import resolved_samples
from notsodeep.records import Record

TERMS = (60, 400)
# E[φ⁽⁵⁾φ′], from the curvature of the tangent kernel's slopes, is the highest of the moments.
_MOST_DERIVATIVES = 6
_TAIL = 1e-14


@dataclass(frozen=True, repr=False)
class Expansion(Record):
    """Taylor coefficients of a kernel κ(‖x‖², ‖y‖², x·y) at (τ0², τ0², 0).

    With χ = ‖x‖² − τ0², ω = ‖y‖² − τ0² and s = x·y, κ is about

    constant + linear·s + norm_shift·(χ + ω) + norm_curvature·(χ² + ω²) + norm_fluctuation·χω
    + covariance_overlap·s² + rescaling·s(χ + ω).

    Attributes
    ----------
    constant, linear, norm_shift, norm_curvature : float
        The first, third and fourth vanish for a centred cell without biases.
    norm_fluctuation, covariance_overlap, rescaling : float
    scale2 : float
        The kernel of an input with ‖x‖² = τ0² with itself.
    tau0 : float

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
    >>> e = expansion(deq, 1.0)
    >>> round(e.constant, 6), round(e.linear, 6), round(e.diagonal, 6)
    (0.0298, 0.843052, 0.016036)
    """

    _derived = ("diagonal",)

    constant: float
    linear: float
    norm_shift: float
    norm_curvature: float
    norm_fluctuation: float
    covariance_overlap: float
    rescaling: float
    scale2: float
    tau0: float

    @property
    def diagonal(self) -> float:
        """γ = scale2 − constant − τ0²·linear, the factor of the identity; never negative."""
        return max(0.0, self.scale2 - self.constant - self.tau0**2 * self.linear)

    @property
    def size(self) -> float:
        """The unit in which residuals are judged: the kernel's diagonal."""
        return self.scale2


@dataclass(frozen=True, eq=False)
class UnitMoments:
    """What the expansion asks of an activation, at the scale τ = √q of its pre-activations.

    Many activations at once have arrays of one shape in place of numbers, (…, terms + 6) in place
    of `hermite`; complex ones too, whose imaginary parts are derivatives.

    Attributes
    ----------
    scale : float
        τ.
    square, square_slope, square_bend : float
        v = E φ²(τξ), dv/dq and d²v/dq².
    slope_square : float
        E φ′²(τξ).
    hermite : ndarray of shape (terms + 6,)
        Coefficients of φ(τξ) in orthonormal Hermite polynomials.
    name : str
        Of the activation, for messages.
    """

    scale: Any
    square: Any
    square_slope: Any
    square_bend: Any
    slope_square: Any
    hermite: NDArray[Any]
    name: str

    def mean(self, q: Quadratic) -> Quadratic:
        """E φ(√q ξ) for a variance q(χ); d/dq is half of a second derivative."""
        zeroth, second, fourth = (
            float(self.hermite[a]) * math.sqrt(math.factorial(a)) / self.scale**a for a in (0, 2, 4)
        )
        first = 0.5 * second * q.first
        return Quadratic(zeroth, first, 0.5 * second * q.second + 0.125 * fourth * q.first**2)

    def second_moment(self, q: Quadratic) -> Quadratic:
        """E φ²(√q ξ) for a variance q(χ)."""
        return Quadratic(
            self.square,
            self.square_slope * q.first,
            self.square_slope * q.second + 0.5 * self.square_bend * q.first**2,
        )

    def mixed(self, covariance: Any) -> Callable[[int, int], Any]:
        """Return (a, b) ↦ E[φ^(a)(u)φ^(b)(v)] for that covariance of u and v, by Mehler's series.

        Σ_k ρ^k a_{k+a} a_{k+b} √((k+a)!(k+b)!)/(k! τ^{a+b}): derivatives are weak, so that a kink
        has all of them.
        """
        rho = np.asarray(covariance / self.scale**2)
        powers = rho[..., None] ** np.arange(self.hermite.shape[-1] - _MOST_DERIVATIVES)
        alone = not rho.any()  # the first term

        @cache
        def moment(a: int, b: int) -> Any:
            if alone:
                first = self.hermite[..., a] * self.hermite[..., b] * _factorials(1, a, b)[0]
                return first / np.power(self.scale, float(a + b))
            total = mehler_sum(self.hermite, self.hermite, a, b, powers, self.name)
            return total / np.power(self.scale, float(a + b))

        return moment


class SlowSeries(InvalidInput):
    """More terms are needed."""


def mehler_sum(
    one: FloatArray,
    two: FloatArray,
    a: int,
    b: int,
    powers: FloatArray,
    name: str,
    tail: float = _TAIL,
) -> Any:
    """Σ_k ρ^k one_{k+a} two_{k+b} √((k+a)!(k+b)!)/k! over the last axis, for the powers ρ^k.

    For Hermite coefficients of φ(τξ) and φ(τ′ξ) it is E[φ^(a)(u)φ^(b)(v)] τ^a τ′^b (Mehler).  The
    last terms must be below `tail`, relative to the largest.
    """
    terms = powers.shape[-1]
    # Each derivative multiplies term k by about √k: polynomial growth, which ρ^k outweighs.
    parts = powers * _factorials(terms, a, b) * one[..., a : a + terms] * two[..., b : b + terms]
    if abs(parts[..., -8:]).max() > tail * max(abs(parts).max(), 1e-300):
        raise SlowSeries(
            f"The expansion of {name} does not converge: inputs at right angles have "
            f"pre-activations of correlation {np.abs(powers[..., 1]).max():.4g}. Use smaller "
            "biases."
        )
    return parts.sum(axis=-1)


@lru_cache(maxsize=256)
def _factorials(terms: int, a: int, b: int) -> FloatArray:
    # In logarithms: (k + a)! overflows at k = 170.
    k = np.arange(terms)
    logarithms = 0.5 * (gammaln(k + a + 1) + gammaln(k + b + 1)) - gammaln(k + 1)
    return np.asarray(np.exp(logarithms))


def _unit_moments(activation: Activation, scale: float, terms: int) -> UnitMoments:
    """By quadrature, for any activation."""
    moments = activation.moments(scale)
    return UnitMoments(
        scale=scale,
        square=float(moments.square),
        # ∂/∂q of a Gaussian expectation is half that of the second derivative (heat equation).
        square_slope=0.5 * float(moments.square_curvature),
        square_bend=_second_derivative(activation, scale),
        slope_square=float(moments.slope_square),
        hermite=activation.hermite_coefficients(scale, terms + _MOST_DERIVATIVES)[0],
        name=str(activation),
    )


@np.errstate(under="ignore", over="ignore")  # densities far out, and powers of scales
def expansion(
    model: DeepEquilibrium | ExplicitNetwork,
    tau0: float,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
) -> Expansion:
    """Expand the kernel of any dense cell or network, centred or not, around data of scale tau0.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    tau0 : float
        √(tr C°/p).
    kind : {"ck", "ntk"}
    convention : {"preactivation", "feature"}
        Concerns DEQs only.

    Raises
    ------
    InvalidInput
        Inputs at right angles have nearly the same pre-activations.
    NotConverged
        There is no variance, or no stable equilibrium.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = [nsd.Dense("erf", 0.5, inject=0.6, bias=0.1), nsd.Dense("relu", 0.8, inject=0.3)]
    >>> found = expansion(nsd.DeepEquilibrium(cell=cell), 1.0)
    >>> bool(found.constant > 0.0), bool(found.rescaling < 0.0)
    (True, True)
    """
    owner = "an equivalent"
    checked_choice(model, kind, convention, owner)
    scale = checks.data_scale(tau0, "tau0", owner)
    if isinstance(model, ExplicitNetwork):
        cell, scales = as_cell(model.activations), np.array(model.scales(scale)[:-1])
        convention = "feature"
    elif isinstance(model, DeepEquilibrium):
        cell, scales = model.cell, _stable_scales(model, scale)
    else:
        raise checks.invalid("model", owner, "be a DEQ or a network of dense layers", str(model))
    # Few terms do unless inputs at right angles are strongly correlated.
    for terms in TERMS:
        units = [
            _unit_moments(layer.activation, float(tau), terms)
            for layer, tau in zip(cell, scales, strict=True)
        ]
        try:
            numbers = expanded(cell, units, scale, kind, convention)
            return Expansion(*map(float, (*numbers, scale)))
        except SlowSeries:
            if terms == TERMS[-1]:
                raise
    raise AssertionError


def as_cell(activations: Sequence[Activation]) -> tuple[Dense, ...]:
    """Return the layers of an explicit network as a ring that the first layer does not close."""
    first, *others = activations
    return (Dense(first, 0.0, inject=1.0), *(Dense(each, 1.0) for each in others))


def _stable_scales(deq: DeepEquilibrium, tau0: float) -> FloatArray:
    """Return the scales of all layers, for a cell that settles."""
    variances, _ = solve_variances(deq.cell, np.array([tau0**2]), name=f"the variance of {deq}")
    if not deq.is_vanilla:
        require_one_variance(deq.cell, tau0**2, str(deq))
    radius = float(stability(deq.cell, variances)[0])
    if not radius < 1.0:
        raise NotConverged(
            f"The {deq} has no stable equilibrium at ‖x‖² = τ0² = {tau0**2:.4g}: the product of "
            f"w E φ′² over its layers is {radius:.4g} and must stay below 1. Use smaller weights."
        )
    return variances.scales[:, 0]


def expanded(
    cell: Sequence[Dense],
    units: Sequence[UnitMoments],
    tau0: float,
    kind: KernelName,
    convention: Convention,
) -> tuple[Any, ...]:
    """Expand the kernel of a ring whose activations are given by their moments.

    Parameters
    ----------
    cell : sequence of Dense
        Of which the variances and the normalisation are read.
    units : sequence of UnitMoments
        Of every layer, at its own scale.
    tau0, kernel, convention
        As in `expansion`.

    Returns
    -------
    tuple
        The eight numbers of `Expansion` in their order; arrays if the moments are arrays.
    """
    ring = _Ring(cell, units, tau0)
    return (*ring.kernel(kind, convention), ring.diagonal(kind, convention))


class _Ring:
    """A cell at inputs of norm τ0, with its variances and covariances as polynomials.

    Normalised pre-activations are whitened, G = C/√(C_ii C_jj); normalised features are centred
    and whitened, (E[φφ] − μμ′)/(ςς′), and their slopes divided by ςς′.
    """

    def __init__(self, cell: Sequence[Dense], units: Sequence[UnitMoments], tau0: float) -> None:
        self.cell, self.units = cell, units
        self.incoming = self._variances(tau0**2)
        self.inner, self.outer, self.means = [ONE] * len(cell), [ONE] * len(cell), []
        self.variances = []
        for index, (layer, unit, incoming) in enumerate(
            zip(cell, units, self.incoming, strict=True)
        ):
            q = incoming
            if layer.normalise == "preactivation":
                self.inner[index], q = incoming.whitening(), UNIT
            self.variances.append(q)
            self.means.append(constant_jet(0.0))
            if layer.normalise == "feature":
                mean, v = unit.mean(q), unit.second_moment(q)
                spread = Quadratic(
                    v.value - mean.value**2,
                    v.first - 2.0 * mean.value * mean.first,
                    v.second - 2.0 * mean.value * mean.second - mean.first**2,
                )
                self.means[index], self.outer[index] = mean.product(), spread.whitening()
        self.mixed: list[Callable[[int, int], Any]] = []
        self.sources, self.fulls, self.features = self._turn(self._state())

    def _variances(self, squared_norm: float) -> list[Quadratic]:
        """C_l = w_l v_{l−1} + u_l ‖x‖² + b_l as quadratics in χ, order by order."""
        pairs = list(zip(self.cell, self.units, strict=True))
        gain = math.prod(
            layer.weight * unit.square_slope if layer.normalise is None else 0.0
            for layer, unit in pairs
        )

        def turn(state: Quadratic) -> tuple[list[Quadratic], Quadratic]:
            inside = []
            for layer, unit in pairs:
                drive = layer.inject * squared_norm + layer.bias
                q = Quadratic(
                    layer.weight * state.value + drive,
                    layer.weight * state.first + layer.inject,
                    layer.weight * state.second,
                )
                inside.append(q)
                if layer.normalise == "feature":
                    state = UNIT
                else:
                    state = unit.second_moment(UNIT if layer.normalise is not None else q)
            return inside, state

        last = self.cell[-1].normalise == "feature"
        start = Quadratic(1.0 if last else self.units[-1].square, 0.0, 0.0)
        # A turn maps what is unknown at an order, y, to known + gain·y: start from y = 0 and
        # divide.
        first = turn(start)[1].first / (1.0 - gain)
        start = start._replace(first=first)
        second = turn(start)[1].second / (1.0 - gain)
        return turn(start._replace(second=second))[0]

    def _state(self) -> Jet:
        """Solve for the covariance of what the last layer passes on, order by order."""
        closed = self.cell[0].weight != 0.0
        value = self._at_right_angles() if closed else 0.0
        gain, covariance = 1.0, value
        for index, layer in enumerate(self.cell):
            mixed, covariance = self._passed_on(index, covariance)
            self.mixed.append(mixed)
            gain *= layer.weight * mixed(1, 1) * self.inner[index].one * self.outer[index].one
        if not closed:  # the first layer of an explicit network does not read it
            return constant_jet(value)
        # What a turn leaves at an order is known + gain·(what it was given there).
        image = self._turn(constant_jet(value))[2][-1]
        first = image.s / (1.0 - gain), image.q / (1.0 - gain)
        image = self._turn(Jet(value, *first, 0.0, 0.0, 0.0, 0.0))[2][-1]
        second = (new / (1.0 - gain) for new in (image.qq, image.qr, image.ss, image.sq))
        return Jet(value, *first, *second)

    def _passed_on(self, index: int, covariance: float) -> tuple[Callable[[int, int], Any], Any]:
        """Return the mixed moments of a layer at right angles, and the covariance after it."""
        layer = self.cell[index]
        full = (layer.weight * covariance + layer.bias) * self.inner[index].one
        mixed = self.units[index].mixed(full)
        return mixed, (mixed(0, 0) - self.means[index].one) * self.outer[index].one

    def _at_right_angles(self) -> float:
        """V of two inputs of norm τ0 at right angles, by plain iteration: it contracts."""
        value = 0.0
        for _ in range(2000):
            image = value
            for index in range(len(self.cell)):
                image = self._passed_on(index, image)[1]
            # To the last bit; the floor of 1e-46 is for odd activations, where V vanishes.
            if abs(image - value) <= 1e-16 * max(abs(image), 1e-30):
                return image
            value = image
        raise NotConverged("The covariance at right angles was not found in 2000 turns.")

    def _turn(self, state: Jet) -> tuple[list[Jet], list[Jet], list[Jet]]:
        """C, G and what is passed on of every layer, if the first reads the covariance `state`."""
        sources, fulls, features = [], [], []
        for index, layer in enumerate(self.cell):
            source = constant_jet(layer.bias).plus(state, layer.weight).plus(INNER, layer.inject)
            full = source.times(self.inner[index])
            state = _composed(self.mixed[index], 0, full, self.variances[index])
            state = state.plus(self.means[index], -1.0).times(self.outer[index])
            sources.append(source)
            fulls.append(full)
            features.append(state)
        return sources, fulls, features

    def kernel(self, kind: KernelName, convention: Convention) -> Jet:
        if kind == "ck":
            return self.features[-1] if convention == "feature" else self.fulls[-1]
        slopes = [  # E[φ′φ′]
            _composed(mixed, 1, full, q).times(outer)
            for mixed, full, q, outer in zip(
                self.mixed, self.fulls, self.variances, self.outer, strict=True
            )
        ]
        # Θ_l = C_l + w_l E[φ′φ′]_{l−1} Θ_{l−1} around the ring: a turn from Θ = 0 gives the
        # inhomogeneous part, the product of the factors what multiplies Θ, and Θ = part/(1 −
        # product).
        theta, product, before = constant_jet(0.0), ONE, slopes[-1]
        for layer, source, inner, slope in zip(
            self.cell, self.sources, self.inner, slopes, strict=True
        ):
            carried = before.times(constant_jet(layer.weight))
            theta = source.plus(carried.times(theta)).times(inner)
            product = carried.times(product).times(inner)
            before = slope
        theta = theta.times(ONE.plus(product, -1.0).inverse())
        if convention == "preactivation":
            return theta
        return self.features[-1].plus(slopes[-1].times(theta))

    def diagonal(self, kind: KernelName, convention: Convention) -> Any:
        """Return the kernel of an input of norm τ0 with itself."""
        last = self.units[-1]
        square = 1.0 if self.cell[-1].normalise == "feature" else last.square
        if kind == "ck":
            return square if convention == "feature" else last.scale**2
        slopes = [
            unit.slope_square * outer.one
            for unit, outer in zip(self.units, self.outer, strict=True)
        ]
        theta, product, before = 0.0, 1.0, slopes[-1]
        for layer, unit, incoming, inner, slope in zip(
            self.cell, self.units, self.incoming, self.inner, slopes, strict=True
        ):
            own = unit.scale**2 if layer.normalise != "preactivation" else incoming.value
            theta = (own + layer.weight * before * theta) * inner.one
            product *= layer.weight * before * inner.one
            before = slope
        # `product` is below one where the equilibrium is stable: checked in `_stable_scales`.
        theta /= 1.0 - product
        if convention == "preactivation":
            return theta
        return square + before * theta


def _composed(mixed: Callable[[int, int], Any], shift: int, full: Jet, q: Quadratic) -> Jet:
    """E[φ^(k)(u)φ^(k)(v)], k = `shift`, for variances q(χ), q(ω) and covariance `full`.

    By Price's theorem ∂/∂cov raises both derivatives by one, and ∂/∂q one of them by two, halved.
    """

    def e(a: int, b: int) -> Any:
        return mixed(a + shift, b + shift)

    move = full._replace(one=0.0)
    norms = Jet(0.0, 0.0, q.first, q.second, 0.0, 0.0, 0.0)  # δ_i + δ_j
    apart = Jet(0.0, 0.0, 0.0, q.first**2, 0.0, 0.0, 0.0)  # δ_i² + δ_j²
    across = Jet(0.0, 0.0, 0.0, 0.0, q.first**2, 0.0, 0.0)  # δ_i δ_j
    return (
        constant_jet(e(0, 0))
        .plus(move, e(1, 1))
        .plus(norms, 0.5 * e(2, 0))
        .plus(move.times(move), 0.5 * e(2, 2))
        .plus(move.times(norms), 0.5 * e(3, 1))
        .plus(apart, 0.125 * e(4, 0))
        .plus(across, 0.25 * e(2, 2))
    )


def _second_derivative(activation: Activation, scale: float) -> float:
    """Return the second derivative of q ↦ E φ²(√q ξ): ½ E[φφ′(ξ³ − 3ξ)]/q^{3/2}."""

    def value_and_slope(x: FloatArray) -> FloatArray:
        return np.stack([activation.value(x), activation.derivative(x)])

    splits = activation.panel_ends(scale)
    total = 0.0
    scales = np.array([scale])
    for part in resolved_samples(value_and_slope, scales, splits, name=str(activation)):
        value, slope = part.values
        # ¼ E[(φ²)⁗], with three of the derivatives moved to the density: φ need have only one.
        xi = part.rule.nodes
        total += float((part.rule.weights * value * slope * (xi**3 - 3.0 * xi)).sum())
    return 0.5 * total / scale**3

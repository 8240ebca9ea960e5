"""Activations made of others: their mean taken off, rescaled, or with an identity skip."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation, frozen_parameters
from notsodeep.activations.piecewise_linear import (
    CANCELLATION,
    PiecewiseLinear,
    piecewise_linear,
)
from notsodeep.activations.polynomial import AbstractPolynomial, moments_of_series
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged


@dataclass(frozen=True, repr=False)
class Centred(Activation):
    """φ(x) − constant, where constant = E φ(scale·ξ), less a mean if one is to be kept.

    Attributes
    ----------
    base : Activation
        φ; never itself centred.
    scale : float
        The scale at which the mean vanishes (τ* for a DEQ).
    constant : float
        E φ(scale·ξ), from `centre`; E φ(scale·ξ) − mean, from `with_mean`.

    Examples
    --------
    >>> from notsodeep.activations import centre, named
    >>> phi = centre(named("relu"), 1.0)
    >>> round(phi.constant, 6), bool(abs(phi.moments(1.0).mean) < 1e-15)
    (0.398942, True)
    """

    base: Activation
    scale: float
    constant: float

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x) − constant."""
        return self.base.value(x) - self.constant

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x)."""
        return self.base.derivative(x)

    def panel_ends(self, reach: float) -> tuple[float, ...]:
        """Points between which φ varies slowly enough to be integrated."""
        return self.base.panel_ends(reach)

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """Those of the base, minus c(E φ(u) + E φ(v)) − c²."""
        pairs = self.base.closed_form_pairs(scale1, scale2, rho, rest)
        if pairs is None or self.constant == 0.0:
            return pairs
        # Many pairs share few scales: means are worked out once per scale.
        scales, place = np.unique(np.stack([scale1, scale2]), return_inverse=True)
        means = self.base.hermite_coefficients(scales, 1)[:, 0][place.reshape(2, -1)]
        return pairs[0] - self.constant * (means[0] + means[1] - self.constant), pairs[1]

    def closed_form_moments(self, scales: FloatArray) -> FloatArray | None:
        """Return those of the base less the constant; NaN where E φ² cancels against it."""
        if isinstance(self.base, PiecewiseLinear):
            return self.base.closed_form_moments(scales, self.constant)
        if isinstance(self.base, AbstractPolynomial):
            series = self._hermite_coefficients(scales, self.base.degree + 3)
            return moments_of_series(series, scales)
        moments = self.base.closed_form_moments(scales)
        if moments is None:
            return None
        c = self.constant
        mean, _, curvature, square, _, square_curvature = moments
        sizes = square + 2.0 * np.abs(c * mean) + c**2
        curvatures = np.abs(square_curvature) + 2.0 * np.abs(c * curvature)
        moments[3] += c * (c - 2.0 * mean)
        moments[5] -= 2.0 * c * curvature
        moments[0] -= c
        # (φ²)″ is 2φ′² + 2φφ″: its size is that of E φ′², which nothing is taken from.
        inexact = (sizes > CANCELLATION * moments[3]) | (curvatures > CANCELLATION * moments[4])
        moments[:, inexact] = np.nan
        return moments

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        coefficients = self.base.hermite_coefficients(scales, terms)
        coefficients[:, 0] -= self.constant
        return coefficients

    def __str__(self) -> str:
        if self.constant == 0.0:
            return str(self.base)
        return f"{self.base} {'−' if self.constant > 0.0 else '+'} {abs(self.constant):.6g}"


def centre(activation: Activation, scale: float) -> Centred:
    """Subtract E φ(scale·ξ) from φ.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> round(centre(named("relu"), 2.0).constant, 6)
    0.797885
    """
    tau = checks.positive_number(scale, "scale", "centre")
    base = activation.base if isinstance(activation, Centred) else activation
    return centred_by(base, tau, base.moments(tau).mean)


def with_mean(activation: Activation, scale: float, mean: float) -> Centred:
    """Shift φ so that E φ(scale·ξ) becomes `mean`.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> phi = with_mean(named("relu"), 2.0, 0.1)
    >>> round(phi.constant, 6), round(phi.moments(2.0).mean, 6)
    (0.697885, 0.1)
    """
    centred = centre(activation, scale)
    return centred_by(centred.base, centred.scale, centred.constant - mean)


def centred_by(base: Activation, scale: float, constant: float) -> Centred:
    """Build the centred activation from a constant that is already known."""
    unchanged = constant == 0.0
    return Centred(
        name="centred",
        parameters=frozen_parameters({"activation": base, "scale": scale, "constant": constant}),
        kinks=base.kinks,
        parity=base.parity if unchanged or base.parity == "even" else None,
        lipschitz=base.lipschitz,
        homogeneous=base.homogeneous and unchanged,
        detected=base.detected,
        base=base,
        scale=scale,
        constant=constant,
    )


@dataclass(frozen=True, repr=False)
class Scaled(Activation):
    """gain·φ(steepness·x): everything about it follows from φ at steepness times the scale.

    Attributes
    ----------
    base : Activation
        φ; never itself scaled.
    gain : float
    steepness : float
        Positive.

    Examples
    --------
    >>> from notsodeep.activations import named, scaled
    >>> steep = scaled(named("tanh"), gain=0.5, steepness=2.0)
    >>> steep, steep.lipschitz, steep.parity
    (<activation scaled(activation=tanh, gain=0.5, steepness=2)>, 1.0, 'odd')
    >>> round(steep.moments(1.0).square, 6), round(0.25 * named("tanh").moments(2.0).square, 6)
    (0.158815, 0.158815)
    """

    base: Activation
    gain: float
    steepness: float

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate gain·φ(steepness·x)."""
        return self.gain * self.base.value(self.steepness * x)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate gain·steepness·φ′(steepness·x)."""
        return self.gain * self.steepness * self.base.derivative(self.steepness * x)

    def closed_form_moments(self, scales: FloatArray) -> FloatArray:
        """Return those of φ at steepness·τ; each derivative brings a factor of the steepness."""
        own = self.base.moments(self.steepness * scales)
        a, b = self.gain, self.steepness
        return np.stack(
            [
                a * own.mean,
                a * b * own.slope,
                a * b**2 * own.curvature,
                a**2 * own.square,
                (a * b) ** 2 * own.slope_square,
                (a * b) ** 2 * own.square_curvature,
            ]
        )

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return those of φ at steeper scales, if it has a closed form."""
        b = self.steepness
        pairs = self.base.closed_form_pairs(b * scale1, b * scale2, rho, rest)
        if pairs is None:
            return None
        return self.gain**2 * pairs[0], (self.gain * b) ** 2 * pairs[1]

    def panel_ends(self, reach: float) -> tuple[float, ...]:
        """Return those of φ, nearer; and its panels 1/2, 1, 2, … where they are narrower now."""
        ends = [end / self.steepness for end in self.base.panel_ends(self.steepness * reach)]
        if self.steepness > 1.0:
            doublings = math.ceil(math.log2(max(self.steepness, 1.0))) + 1
            # The quadrature has panels of its own at ±2^k in x; those of φ are at ±2^k/steepness.
            own = (2.0**k / self.steepness for k in range(-1, doublings))
            ends += [sign * end for end in own if end < reach for sign in (-1.0, 1.0)]
        return tuple(ends)

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        """E[aφ(bτξ) h_k(ξ)]: those of φ at bτ, times a."""
        return self.gain * self.base.hermite_coefficients(self.steepness * scales, terms)


def scaled(activation: Activation, gain: float = 1.0, steepness: float = 1.0) -> Activation:
    """Return gain·φ(steepness·x); of a piecewise-linear φ, another one.

    Parameters
    ----------
    activation : Activation
        φ.
    gain : float
    steepness : float
        Positive.

    Examples
    --------
    >>> from notsodeep.activations import hard_tanh, named
    >>> scaled(named("erf"), 2.0, 0.5)([-1.0, 1.0]).round(6)
    array([-1.041,  1.041])
    >>> scaled(hard_tanh(), gain=3.0, steepness=2.0).kinks
    (-0.5, 0.5)
    """
    a = checks.finite_number(gain, "gain", "scaled")
    b = checks.positive_number(steepness, "steepness", "scaled")
    if isinstance(activation, PiecewiseLinear):
        return piecewise_linear(
            tuple(knot / b for knot in activation.knots),
            tuple(a * b * slope for slope in activation.slopes),
            a * activation.value_at_zero,
        )
    if isinstance(activation, Scaled):
        return scaled(activation.base, a * activation.gain, b * activation.steepness)
    return Scaled(
        name="scaled",
        parameters=frozen_parameters({"activation": activation, "gain": a, "steepness": b}),
        kinks=tuple(kink / b for kink in activation.kinks),
        parity=activation.parity,
        lipschitz=abs(a) * b * activation.lipschitz,
        homogeneous=activation.homogeneous,
        detected=activation.detected,
        base=activation,
        gain=a,
        steepness=b,
    )


_MAX_STEPS = 500
_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)
_PROBE = np.concatenate([np.linspace(-40.0, 40.0, 8001), [-1e3, 1e3]])


@dataclass(frozen=True, repr=False)
class WithSkip(Activation):
    """ψ, where ψ(g) solves ψ = φ(αψ + g): a unit that sees its own output.

    Attributes
    ----------
    base : Activation
        φ.
    alpha : float
        α.
    increasing : bool
        Whether φ′ ≥ 0 was seen everywhere: then any negative α is allowed.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> psi = with_skip(named("tanh"), 0.5)
    >>> y = psi([0.3])
    >>> bool(abs(y - np.tanh(0.5 * y + 0.3)) < 1e-15), psi.lipschitz
    (True, 2.0)
    """

    base: Activation
    alpha: float
    increasing: bool

    def argument(self, x: FloatArray) -> FloatArray:
        """Solve h − αφ(h) = x for h = αψ + x, by Newton's method inside a bracket.

        Newton's method may fall into a two-cycle inside a bracket that stays as it is: where three
        steps have not halved it, it is bisected.
        """
        h = np.array(x, dtype=np.float64)
        # The slope of h ↦ h − αφ(h) is at least `steep`, which bounds the way from x to h.
        steep = self._least_slope
        reach = np.abs(self.alpha * self.base.value(h)) / steep * 1.0000001
        low, high = h - reach, h + reach
        width = high - low
        for step in range(_MAX_STEPS):
            feedback = self.alpha * self.base.value(h)
            gap = h - feedback - x
            resolved = np.abs(gap) <= _ROUNDING * (np.abs(h) + np.abs(feedback) + np.abs(x))
            low, high = np.where(gap <= 0.0, h, low), np.where(gap >= 0.0, h, high)
            # A closed bracket is an answer too: where the equation is steep, no h has a small gap.
            resolved |= high - low <= _ROUNDING * np.abs(h)
            moved = h - gap / np.maximum(1.0 - self.alpha * self.base.derivative(h), steep)
            inside = (moved >= low) & (moved <= high)
            if step % 3 == 2:
                inside &= (high - low <= 0.5 * width) | resolved
                width = high - low
            h = np.where(inside, moved, 0.5 * (low + high))
            # Resolved up to the rounding of the equation itself, the last step included.
            if resolved.all():
                return h
        worst = int(np.argmin(resolved))
        raise NotConverged(
            f"ψ = φ(αψ + x) of {self} was not solved in {_MAX_STEPS} steps at "
            f"x = {np.ravel(x)[worst]:.6g}. Use an alpha nearer to 0."
        )

    @property
    def _least_slope(self) -> float:
        """A lower bound on 1 − αφ′."""
        if self.alpha < 0.0 and self.increasing:
            return 1.0
        return 1.0 - abs(self.alpha) * self.base.lipschitz

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate ψ(x)."""
        return self.base.value(self.argument(x))

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate ψ′ = φ′/(1 − αφ′) at αψ + x."""
        slope = self.base.derivative(self.argument(x))
        return np.asarray(slope / (1.0 - self.alpha * slope))

    def panel_ends(self, reach: float) -> tuple[float, ...]:
        """Where the panels of φ end, moved as ψ moves them; finer ones if ψ is steep at zero."""
        stretch = reach + abs(self.alpha) * (abs(float(self.base(0.0))) + reach)
        finest = -2 - max(0, math.ceil(math.log2(1.0 / self._least_slope)))
        own = [2.0**k for k in range(finest, max(1, math.ceil(math.log2(stretch + 2.0))) + 1)]
        ends = np.array([*self.base.panel_ends(stretch), 0.0, *own, *(-end for end in own)])
        moved = ends - self.alpha * self.base.value(ends)
        return tuple(sorted({float(end) for end in moved if abs(end) < reach}))


def with_skip(activation: str | Activation, alpha: float) -> Activation:
    """Return the activation of a cell with an identity skip around its state.

    A residual cell z = φ(α√m z + h)/√m, in which each unit sees itself, is the cell z = ψ(h)/√m
    without a skip, ψ(g) being the solution of ψ = φ(αψ + g): an identity at every width.  Its slope
    is φ′/(1 − αφ′), and a kink at k moves to k − αφ(k).  Of a piecewise-linear φ, another one.

    Parameters
    ----------
    activation : str or Activation
        φ.
    alpha : float
        α.  α·Lip φ < 1 is required; a negative α must have |α|·Lip φ < 1 unless φ increases.

    Examples
    --------
    >>> with_skip("relu", 0.5)([-1.0, 1.0])
    array([0., 2.])
    """
    from notsodeep.activations.catalogue import as_activation

    base = as_activation(activation)
    number = checks.finite_number(alpha, "alpha", "with_skip")
    points = np.concatenate([_PROBE, np.asarray(base.kinks) + 1e-9, np.asarray(base.kinks) - 1e-9])
    increasing = bool(base.derivative(points).min() >= 0.0)
    if not (number <= 0.0 and increasing) and not abs(number) * base.lipschitz < 1.0:
        raise checks.invalid(
            "alpha",
            "with_skip",
            f"satisfy |alpha| < {1.0 / base.lipschitz:.6g}, one over the Lipschitz constant of "
            f"{base}, so that a unit has one state",
            f"alpha = {number:g}, whose product with that constant is "
            f"{abs(number) * base.lipschitz:.6g}",
            "Use an alpha nearer to 0.",
        )
    if number == 0.0:
        return base
    if isinstance(base, PiecewiseLinear):
        return _piecewise(base, number)
    steepness = base.lipschitz
    # ψ′ = φ′/(1 − αφ′) grows with φ′; where φ decreases, slopes of either sign count.
    lost = number if increasing else abs(number)
    # As φ′ → ∞ the slope φ′/(1 − αφ′) tends to −1/α; only α < 0 gets here with an unbounded φ′.
    lipschitz = steepness / (1.0 - lost * steepness) if math.isfinite(steepness) else -1.0 / number
    return WithSkip(
        name="with_skip",
        parameters=frozen_parameters({"activation": base, "alpha": number}),
        kinks=tuple(float(k - number * base(k)) for k in base.kinks),
        parity="odd" if base.parity == "odd" else None,
        lipschitz=lipschitz,
        homogeneous=False,
        detected=base.detected,
        base=base,
        alpha=number,
        increasing=increasing,
    )


def _piecewise(base: PiecewiseLinear, alpha: float) -> Activation:
    knots = np.asarray(base.knots, dtype=np.float64)
    slopes = np.asarray(base.slopes, dtype=np.float64)
    moved = knots - alpha * base.value(knots)
    steeper = slopes / (1.0 - alpha * slopes)
    # ψ(0) = φ(h) where h − αφ(h) = 0: on the piece whose moved ends enclose zero.
    piece = int(np.searchsorted(moved, 0.0))
    anchor = float(moved[min(piece, len(moved) - 1)]) if len(moved) else None
    if anchor is None:
        at_zero = base.value_at_zero / (1.0 - alpha * float(slopes[0]))
    else:
        knot = knots[min(piece, len(knots) - 1)]
        at_zero = float(base.value(np.array([knot]))[0]) - anchor * float(steeper[piece])
    return piecewise_linear(tuple(moved.tolist()), tuple(steeper.tolist()), at_zero)

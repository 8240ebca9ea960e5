"""Activations made of others: their mean taken off, rescaled, or with an identity skip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation
from notsodeep.activations.closed_forms import Pairs
from notsodeep.activations.pairs import standardised_pairs
from notsodeep.activations.piecewise_linear import CANCELLATION, PiecewiseLinear, piecewise_linear
from notsodeep.activations.polynomial import Polynomial, moments_of_series
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.numerics.quadrature import CUTOFF


@dataclass(frozen=True, repr=False)
class Centred(Activation):
    """φ(x) − constant, where constant = E φ(scale·ξ)."""

    base: Activation  # φ; never itself centred
    scale: float  # at which the mean vanishes (τ* for a DEQ)
    constant: float

    @property
    def uncentred(self) -> Activation:
        """φ without the constant."""
        return self.base

    @property
    def shift(self) -> float:
        """The constant."""
        return self.constant

    @property
    def hinge(self) -> tuple[float, float] | None:
        """Slopes of a φ of the ReLU family."""
        return self.base.hinge

    @cached_property
    def _rescaled(self) -> Scaled | None:
        """aφ(bx) − c as a(φ(bx) − c/a): quadratures then see φ at its own scale."""
        if not isinstance(self.base, Scaled):
            return None
        inner = centred_by(self.base.base, self.scale, self.constant / self.base.gain)
        return _scaled(inner, self.base.gain, self.base.steepness)

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x) − constant."""
        return self.base.value(x) - self.constant

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x)."""
        return self.base.derivative(x)

    def panel_ends(self, largest_scale: float) -> tuple[float, ...]:
        """Those of φ."""
        return self.base.panel_ends(largest_scale)

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> Pairs | None:
        """Those of the base, minus c(E φ(u) + E φ(v)) − c²."""
        if self._rescaled is not None:
            return self._rescaled.closed_form_pairs(scale1, scale2, rho, rest)
        pairs = self.base.closed_form_pairs(scale1, scale2, rho, rest)
        if pairs is None or self.constant == 0.0:
            return pairs
        # Many pairs share few scales: means are worked out once per scale.
        scales, index = np.unique(np.stack([scale1, scale2]), return_inverse=True)
        means = self.base.hermite_coefficients(scales, 1)[:, 0][index.reshape(2, -1)]
        return pairs[0] - self.constant * (means[0] + means[1] - self.constant), pairs[1]

    def closed_form_moments(self, scales: FloatArray) -> FloatArray | None:
        """Return those of the base less the constant; NaN where E φ² cancels against it."""
        if self._rescaled is not None:
            return self._rescaled.closed_form_moments(scales)
        if isinstance(self.base, PiecewiseLinear):
            return self.base.closed_form_moments(scales, self.constant)
        if isinstance(self.base, Polynomial):
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
    return centred_by(activation.uncentred, tau, activation.uncentred.moments(tau).mean)


def centred_by(activation: Activation, scale: float, constant: float) -> Centred:
    """Build the centred activation from a constant that is already known."""
    base, constant = activation.uncentred, constant + activation.shift
    unchanged = constant == 0.0
    return Centred(
        name="centred",
        parameters=(("activation", base), ("scale", scale), ("constant", constant)),
        kinks=base.kinks,
        parity=base.parity if unchanged or base.parity == "even" else None,
        lipschitz=base.lipschitz,
        homogeneous=base.homogeneous and unchanged,
        base=base,
        scale=scale,
        constant=constant,
    )


@dataclass(frozen=True, repr=False)
class Scaled(Activation):
    """gain·φ(steepness·x): everything about it follows from φ at steepness times the scale."""

    base: Activation  # φ; never itself scaled
    gain: float  # not 0
    steepness: float  # positive

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate gain·φ(steepness·x)."""
        return self.gain * self.base.value(self.steepness * x)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate gain·steepness·φ′(steepness·x)."""
        return self.gain * self.steepness * self.base.derivative(self.steepness * x)

    def closed_form_moments(self, scales: FloatArray) -> FloatArray:
        """Return those of φ at steepness·τ; each derivative brings a factor of the steepness."""
        a, b = self.gain, self.steepness
        own = self.base.moments(b * scales)
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
    ) -> Pairs:
        """Return those of φ at steeper scales, by whatever route they take."""
        b = self.steepness
        pairs = standardised_pairs(self.base, b * scale1, b * scale2, rho, rest)
        return self.gain**2 * pairs.value, (self.gain * b) ** 2 * pairs.derivative

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        """E[aφ(bτξ) h_k(ξ)]: those of φ at bτ, times a."""
        return self.gain * self.base.hermite_coefficients(self.steepness * scales, terms)


def scaled(activation: Activation, gain: float = 1.0, steepness: float = 1.0) -> Activation:
    """Return gain·φ(steepness·x), steepness > 0; of a piecewise-linear φ, another one.

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
    if a == 0.0:
        return piecewise_linear((), (0.0,))
    if isinstance(activation, Scaled):
        return scaled(activation.base, a * activation.gain, b * activation.steepness)
    return _scaled(activation, a, b)


def _scaled(base: Activation, gain: float, steepness: float) -> Scaled:
    return Scaled(
        name="scaled",
        parameters=(("activation", base), ("gain", gain), ("steepness", steepness)),
        kinks=tuple(kink / steepness for kink in base.kinks),
        parity=base.parity,
        lipschitz=abs(gain) * steepness * base.lipschitz,
        homogeneous=base.homogeneous,
        base=base,
        gain=gain,
        steepness=steepness,
    )


_MAX_STEPS = 500
_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)
_PROBE = np.concatenate([np.linspace(-40.0, 40.0, 8001), [-1e3, 1e3]])


@dataclass(frozen=True, repr=False)
class WithSkip(Activation):
    """ψ, where ψ(g) solves ψ = φ(αψ + g): a unit that sees its own output."""

    base: Activation  # φ
    alpha: float  # α
    min_slope: float  # a lower bound on 1 − αφ′

    def argument(self, x: FloatArray) -> FloatArray:
        """Solve h − αφ(h) = x for h = αψ + x, by Newton's method inside a bracket.

        Newton's method may fall into a two-cycle inside a bracket that stays as it is: where three
        steps have not halved it, it is bisected.
        """
        h = np.array(x, dtype=np.float64)
        # The slope of h ↦ h − αφ(h) is at least `min_slope`, which bounds the way from x to h.
        reach = np.abs(self.alpha * self.base.value(h)) / self.min_slope * 1.0000001
        low, high = h - reach, h + reach
        width = high - low
        for step in range(_MAX_STEPS):
            feedback = self.alpha * self.base.value(h)
            gap = h - feedback - x
            resolved = np.abs(gap) <= _ROUNDING * (np.abs(h) + np.abs(feedback) + np.abs(x))
            low, high = np.where(gap <= 0.0, h, low), np.where(gap >= 0.0, h, high)
            # A closed bracket is an answer too: where the equation is steep, no h has a small gap.
            resolved |= high - low <= _ROUNDING * np.abs(h)
            slope = np.maximum(1.0 - self.alpha * self.base.derivative(h), self.min_slope)
            moved = h - gap / slope
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

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate ψ(x)."""
        return self.base.value(self.argument(x))

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate ψ′ = φ′/(1 − αφ′) at αψ + x."""
        slope = self.base.derivative(self.argument(x))
        return np.asarray(slope / (1.0 - self.alpha * slope))

    def panel_ends(self, largest_scale: float) -> tuple[float, ...]:
        """Where the panels of φ end, moved as ψ moves them; finer ones if ψ is steep at zero."""
        reach = CUTOFF * largest_scale
        stretch = reach + abs(self.alpha) * (abs(float(self.base(0.0))) + reach)
        finest = -2 - max(0, math.ceil(math.log2(1.0 / self.min_slope)))
        powers = np.arange(finest, max(1, math.ceil(math.log2(stretch + 2.0))) + 1)
        own = np.ldexp(1.0, powers)
        ends = np.array([*self.base.panel_ends(stretch / CUTOFF), 0.0, *own, *-own])
        moved = ends - self.alpha * self.base.value(ends)
        return tuple(sorted({*self.kinks, *moved[np.abs(moved) < reach].tolist()}))


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
    signed = number if increasing else abs(number)
    # As φ′ → ∞ the slope φ′/(1 − αφ′) tends to −1/α; only α < 0 gets here with an unbounded φ′.
    bounded = math.isfinite(steepness)
    return WithSkip(
        name="with_skip",
        parameters=(("activation", base), ("alpha", number)),
        kinks=tuple(float(k - number * base(k)) for k in base.kinks),
        parity="odd" if base.parity == "odd" else None,
        lipschitz=steepness / (1.0 - signed * steepness) if bounded else -1.0 / number,
        base=base,
        alpha=number,
        min_slope=1.0 if number < 0.0 and increasing else 1.0 - abs(number) * steepness,
    )


def _piecewise(base: PiecewiseLinear, alpha: float) -> Activation:
    knots = np.asarray(base.knots, dtype=np.float64)
    slopes = np.asarray(base.slopes, dtype=np.float64)
    moved = knots - alpha * base.value(knots)
    steeper = slopes / (1.0 - alpha * slopes)
    # ψ(0) = φ(h) where h − αφ(h) = 0: on the piece whose moved ends enclose zero.
    piece = int(np.searchsorted(moved, 0.0))
    if not len(moved):
        at_zero = base.value_at_zero / (1.0 - alpha * float(slopes[0]))
    else:
        nearest = min(piece, len(knots) - 1)
        at_zero = float(base(knots[nearest]) - moved[nearest] * steeper[piece])
    return piecewise_linear(tuple(moved.tolist()), tuple(steeper.tolist()), at_zero)

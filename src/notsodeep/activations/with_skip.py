"""Activations with an identity skip around the state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation, frozen_parameters
from notsodeep.activations.piecewise_linear import PiecewiseLinear, piecewise_linear
from notsodeep.arrays import FloatArray

_MAX_STEPS = 120
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
        """Solve h − αφ(h) = x for h = αψ + x, by Newton's method inside a bracket."""
        h = np.array(x, dtype=np.float64)
        # The slope of h ↦ h − αφ(h) is at least `steep`, which bounds the way from x to h.
        steep = self._least_slope
        reach = np.abs(self.alpha * self.base.value(h)) / steep * 1.0000001
        low, high = h - reach, h + reach
        for _ in range(_MAX_STEPS):
            gap = h - self.alpha * self.base.value(h) - x
            low, high = np.where(gap <= 0.0, h, low), np.where(gap >= 0.0, h, high)
            moved = h - gap / np.maximum(1.0 - self.alpha * self.base.derivative(h), steep)
            moved = np.where((moved >= low) & (moved <= high), moved, 0.5 * (low + high))
            step = np.abs(moved - h)
            h = moved
            if (step <= 4e-16 * np.maximum(np.abs(h), 1e-300)).all():
                break
            # At the last bit Newton's method may go to and fro; the bracket has closed then.
            if (high - low <= 1e-15 * np.abs(h) + 1e-300).all():
                break
        return h

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
        raise checks.refusal(
            "alpha",
            "with_skip",
            f"satisfy |alpha| < {1.0 / base.lipschitz:.6g}, one over the Lipschitz constant of "
            f"{base}, so that a unit has one state",
            f"alpha = {number:g}, whose product with that constant is "
            f"{abs(number) * base.lipschitz:.6g}",
            "Use a smaller alpha.",
        )
    if number == 0.0:
        return base
    if isinstance(base, PiecewiseLinear):
        return _piecewise(base, number)
    steepness = base.lipschitz
    # ψ′ = φ′/(1 − αφ′) grows with φ′; where φ decreases, slopes of either sign count.
    lost = number if increasing else abs(number)
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

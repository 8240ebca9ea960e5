"""Between which numbers the slopes of an activation lie, and whether that is proven."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from notsodeep.activations import (
    Activation,
    Centred,
    Custom,
    Elementary,
    PiecewiseLinear,
    Scaled,
)
from notsodeep.activations.formulas import Apply, Formula, Variable

# Functions that a formula may consist of, with the exact range of their slopes.
_SLOPES = {
    "abs": (-1.0, 1.0),
    "arctan": (0.0, 1.0),
    "cos": (-1.0, 1.0),
    "erf": (0.0, 2.0 / np.sqrt(np.pi)),
    "relu": (0.0, 1.0),
    "sigmoid": (0.0, 0.25),
    "sin": (-1.0, 1.0),
    "softplus": (0.0, 1.0),
    "tanh": (0.0, 1.0),
}
_SAMPLES = np.concatenate([np.linspace(-40.0, 40.0, 80_001), np.geomspace(40.0, 1e6, 2_000)])


class SlopeRange(NamedTuple):
    """Numbers between which all slopes of an activation lie.

    Where they are not proven they were sampled: good enough to choose a solver by, not for a proof.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> slope_range(named("normalized_relu")).high
    1.4142135623730951
    >>> slope_range(named("gelu")).monotone
    False
    """

    low: float
    high: float
    proven: bool

    @property
    def monotone(self) -> bool:
        """Whether no slope is negative."""
        return self.low >= 0.0 and self.high > 0.0

    @property
    def largest(self) -> float:
        """The Lipschitz constant."""
        return max(abs(self.low), abs(self.high))

    @property
    def beta(self) -> float:
        """The largest slope, or the largest size of one where some are negative."""
        return self.high if self.monotone else self.largest


def slope_range(activation: Activation) -> SlopeRange:
    """Return the range of φ′: proven for what is known by name, sampled for other functions.

    Examples
    --------
    >>> from notsodeep.activations import from_formula, leaky_relu
    >>> slope_range(leaky_relu(1.4, 0.1))
    SlopeRange(low=0.1, high=1.4, proven=True)
    >>> slope_range(from_formula("sigmoid(x)"))
    SlopeRange(low=0.0, high=0.25, proven=True)
    """
    match activation:
        case PiecewiseLinear(slopes=slopes):
            return SlopeRange(float(min(slopes)), float(max(slopes)), True)
        case Elementary(name="swish" | "gelu", lipschitz=steepest):
            # φ′(−x) = 1 − φ′(x) for both.  The constants are known to nine digits; rounded up.
            return SlopeRange(1.0 - steepest - 1e-9, steepest + 1e-9, True)
        case Elementary(name=name) if name in _SLOPES:
            return SlopeRange(*_SLOPES[name], True)
        case Elementary(name="elu", parameters=((_, alpha),)):
            return SlopeRange(min(0.0, alpha), max(1.0, alpha), True)
        case Centred(base=base):
            return slope_range(base)
        case Scaled(base=base, gain=gain, steepness=steepness):
            inner = slope_range(base)
            ends = sorted((gain * steepness * inner.low, gain * steepness * inner.high))
            return SlopeRange(ends[0], ends[1], inner.proven)
        case Custom(
            function=Formula(expression=Apply(operation=name, arguments=(Variable(),)))
        ) if name in _SLOPES:
            return SlopeRange(*_SLOPES[name], True)
    sampled = activation.derivative(np.concatenate([-_SAMPLES[::-1], _SAMPLES]))
    low, high = float(np.min(sampled)), float(np.max(sampled))
    # A slope of −1e-17 at a place where φ is flat is rounding.
    low = 0.0 if -1e-12 < low < 0.0 else low
    return SlopeRange(low, max(high, activation.lipschitz) if high > 0.0 else high, False)

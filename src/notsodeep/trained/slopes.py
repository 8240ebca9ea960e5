"""Between which slopes an activation lies: all that proofs of fixed points ask of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep.activations import (
    Activation,
    Centred,
    Elementary,
    Elu,
    Formula,
    PiecewiseLinear,
    Scaled,
    Wave,
)
from notsodeep.activations.expressions import Apply, Variable
from notsodeep.records import Record

# Functions that a formula may consist of, with the exact range of their slopes.
_OF_X = {
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


@dataclass(frozen=True, repr=False)
class SlopeRange(Record):
    """Numbers between which all slopes of an activation lie.

    Attributes
    ----------
    low, high : float
    proven : bool
        False where they were only sampled: good enough to choose a solver by, not for a proof.

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


def slope_range(activation: Activation) -> SlopeRange:
    """Return the range of φ′: proven for what is known by name, sampled for other functions.

    Examples
    --------
    >>> from notsodeep.activations import from_formula, leaky_relu
    >>> slope_range(leaky_relu(1.4, 0.1))
    SlopeRange(low=0.1, high=1.4, proven=True)
    >>> slope_range(from_formula("sigmoid(x)"))
    SlopeRange(low=0, high=0.25, proven=True)
    """
    match activation:
        case PiecewiseLinear(slopes=slopes):
            return SlopeRange(float(min(slopes)), float(max(slopes)), True)
        case Elementary(name="swish" | "gelu", lipschitz=steepest):
            # φ′(−x) = 1 − φ′(x) for both.  The constants are known to nine digits; rounded up.
            return SlopeRange(1.0 - steepest - 1e-9, steepest + 1e-9, True)
        case Elementary(name=name) if name in _OF_X:
            return SlopeRange(*_OF_X[name], True)
        case Wave():
            return SlopeRange(-1.0, 1.0, True)
        case Elu(alpha=alpha):
            return SlopeRange(min(0.0, alpha), max(1.0, alpha), True)
        case Centred(base=base):
            return slope_range(base)
        case Scaled(base=base, gain=gain, steepness=steepness):
            own = slope_range(base)
            ends = sorted((gain * steepness * own.low, gain * steepness * own.high))
            return SlopeRange(ends[0], ends[1], own.proven)
        case Formula(expression=Apply(operation=name, arguments=(Variable(),))) if name in _OF_X:
            return SlopeRange(*_OF_X[name], True)
    sampled = activation.derivative(np.concatenate([-_SAMPLES[::-1], _SAMPLES]))
    low, high = float(np.min(sampled)), float(np.max(sampled))
    # A slope of −1e-17 at a place where φ is flat is rounding.
    low = 0.0 if -1e-12 < low < 0.0 else low
    return SlopeRange(low, max(high, activation.lipschitz) if high > 0.0 else high, False)

"""An activation with its argument and its value multiplied by numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation, frozen_parameters
from notsodeep.activations.piecewise_linear import PiecewiseLinear, piecewise_linear
from notsodeep.arrays import FloatArray


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

"""Activations with their Gaussian mean taken off, as the mixture theory requires."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation, frozen_parameters
from notsodeep.activations.polynomial import AbstractPolynomial, moments_of_series
from notsodeep.arrays import FloatArray


@dataclass(frozen=True, repr=False)
class Centred(Activation):
    """φ(x) − constant, where constant = E φ(scale·ξ).

    Attributes
    ----------
    base : Activation
        φ; never itself centred.
    scale : float
        The scale at which the mean vanishes (τ* for a DEQ).
    constant : float

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
        """Compute the moments of a centred polynomial from its series."""
        if not isinstance(self.base, AbstractPolynomial):
            return None
        return moments_of_series(self._hermite_coefficients(scales, self.base.degree + 3), scales)

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        coefficients = self.base.hermite_coefficients(scales, terms)
        coefficients[:, 0] -= self.constant
        return coefficients

    def __str__(self) -> str:
        return str(self.base) if self.constant == 0.0 else f"{self.base} − {self.constant:.6g}"


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

"""Kernels of single pairs, by closed form or quadrature: for what the compiled loops leave.

These are pairs whose series converges too slowly, pairs for which Newton's method needs a bracket,
and nearly equal or opposite inputs.  For the last, the derivative kernel of a kinked activation
depends on √(1 − |ρ|), so 1 − |ρ| is carried by itself, from the difference of the two inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation
from notsodeep.activations.gaussian_pairs import LEAST_SCALE, standardised_pairs
from notsodeep.architectures import DeepEquilibrium, ExplicitNetwork
from notsodeep.errors import NotConverged
from notsodeep.kernels.sample_scales import SampleColumns

FloatArray = NDArray[np.float64]

_LINEAR = 1e-11  # below this 1 − |ρ| the first-order change of the kernel is exact to rounding
_MAX_STEPS = 100
_TOLERANCE = 4e-15  # a step in ρ that is not worth another evaluation
_RESIDUAL = 1e-12
_START_TERMS, _START_STEPS = 192, 8


@dataclass(frozen=True)
class InputPairs:
    """Pairs of inputs (x, y).

    Attributes
    ----------
    inner : ndarray of shape (n,)
        x·y.
    apart : ndarray of shape (n,)
        ‖x − y‖² where x·y > 0, ‖x + y‖² elsewhere; free of cancellation.
    """

    inner: FloatArray
    apart: FloatArray

    def part(self, chosen: NDArray[np.bool_]) -> InputPairs:
        """Return some of the pairs."""
        return InputPairs(self.inner[chosen], self.apart[chosen])


def equilibrium_pairs(
    deq: DeepEquilibrium, inputs: InputPairs, one: SampleColumns, two: SampleColumns
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Solve G = σa² E[φ(u)φ(v)] + σb² x·y; return G, E[φφ] and E[φ′φ′].

    Newton's method on ρ = G/(τ₁τ₂), kept inside a bracket: the residual is at most 0 at ρ = −1 and
    at least 0 at ρ = 1.

    Raises
    ------
    NotConverged
        With the worst pair and its residual.
    """
    sigma_a2 = deq.sigma_a2
    drive = deq.sigma_b2 * inputs.inner
    size = one.scales * two.scales
    # With a zero input there is nothing to solve: u is constant, and ρ is 0 by convention.
    solvable = np.minimum(one.scales, two.scales) > LEAST_SCALE
    rho = np.where(solvable, _approximate(deq, drive, one.scales, two.scales), 0.0)
    low, high = np.full_like(rho, -1.0), np.ones_like(rho)
    value, slope = _pairs(deq.activation, one.scales, two.scales, rho)
    gap = np.where(solvable, sigma_a2 * value + drive - size * rho, 0.0)
    active = np.flatnonzero(solvable)
    for _ in range(_MAX_STEPS):
        here = gap[active]
        low[active] = np.where(here >= 0.0, rho[active], low[active])
        high[active] = np.where(here <= 0.0, rho[active], high[active])
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = rho[active] + here / (size[active] * (1.0 - sigma_a2 * slope[active]))
        inside = (moved >= low[active]) & (moved <= high[active])
        moved = np.where(inside, moved, 0.5 * (low[active] + high[active]))
        again = np.abs(moved - rho[active]) > _TOLERANCE
        active, moved = active[again], moved[again]
        if not active.size:
            break
        rho[active] = moved
        value[active], slope[active] = _pairs(
            deq.activation, one.scales[active], two.scales[active], moved
        )
        gap[active] = sigma_a2 * value[active] + drive[active] - size[active] * moved
    _require_convergence(deq, inputs, one, two, np.abs(gap) / size)
    rest = _refined_rest(deq, inputs, one, two, rho)
    refined = rest != 1.0 - np.abs(rho)
    if refined.any():
        value[refined], slope[refined] = _pairs(
            deq.activation, one.scales[refined], two.scales[refined], rho[refined], rest[refined]
        )
    return np.asarray(sigma_a2 * value + drive), value, slope


def _approximate(
    deq: DeepEquilibrium, drive: FloatArray, scale1: FloatArray, scale2: FloatArray
) -> FloatArray:
    """Solve for ρ with a truncated series: a good start, so that dear evaluations are few."""
    scales, place = np.unique(np.stack([scale1, scale2]), return_inverse=True)
    first, second = place.reshape(2, -1)
    coefficients = deq.activation.hermite_coefficients(scales, _START_TERMS)
    products = (coefficients[first] * coefficients[second]).T
    slopes = products[1:] * np.arange(1, _START_TERMS)[:, None]
    size = scale1 * scale2
    rho = np.clip(drive / size, -1.0, 1.0)
    for _ in range(_START_STEPS):
        value = np.polynomial.polynomial.polyval(rho, products, tensor=False)
        slope = np.polynomial.polynomial.polyval(rho, slopes, tensor=False)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = (deq.sigma_a2 * value + drive - size * rho) / (size - deq.sigma_a2 * slope)
        rho = np.clip(np.where(np.isfinite(step), rho + step, rho), -1.0, 1.0)
    return np.asarray(rho)


def _require_convergence(
    deq: DeepEquilibrium,
    inputs: InputPairs,
    one: SampleColumns,
    two: SampleColumns,
    residual: FloatArray,
) -> None:
    stuck = residual > _RESIDUAL
    if stuck.any():
        worst = int(residual.argmax())
        raise NotConverged(
            f"{int(stuck.sum())} pairs of the {deq} did not converge: the worst, with x·y = "
            f"{inputs.inner[worst]:.6g} and variances {one.scales[worst] ** 2:.6g} and "
            f"{two.scales[worst] ** 2:.6g}, has a residual of {residual[worst]:.3g}. "
            "Use a smaller sigma_a2."
        )


def _refined_rest(
    deq: DeepEquilibrium,
    inputs: InputPairs,
    one: SampleColumns,
    two: SampleColumns,
    rho: FloatArray,
) -> FloatArray:
    """1 − |ρ|, from Δ = E(u ∓ v)² = σa² E(φ(u) ∓ φ(v))² + σb² ‖x ∓ y‖² where it is tiny."""
    size = one.scales * two.scales
    rest = 1.0 - np.abs(rho)
    # To first order E(φ(u) − φ(v))² = E φ′² Δ; with a plus sign only if φ is odd.
    follows = (rho > 0.0) | (deq.activation.parity == "odd") | (deq.sigma_a2 == 0.0)
    gain = deq.sigma_a2 * np.sqrt(one.slope_square * two.slope_square)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = deq.sigma_b2 * inputs.apart / (1.0 - gain)
        precise = np.maximum(spread - (one.scales - two.scales) ** 2, 0.0) / (2.0 * size)
    return np.where(follows & (gain < 1.0) & (precise < _LINEAR) & (rest < 1e-9), precise, rest)


def explicit_pairs(
    network: ExplicitNetwork,
    inputs: InputPairs,
    layers: list[tuple[SampleColumns, SampleColumns]],
) -> tuple[FloatArray, FloatArray]:
    """Carry pairs through every layer; return Σ_L and Θ_L.

    `layers` holds, for each activation, the columns of both samples at its input scale.
    """
    covariance, tangent = inputs.inner.copy(), inputs.inner.copy()
    spread = inputs.apart
    for activation, (one, two) in zip(network.activations, layers, strict=True):
        size = one.scales * two.scales
        rho = np.clip(covariance / size, -1.0, 1.0)
        precise = np.maximum(spread - (one.scales - two.scales) ** 2, 0.0) / (2.0 * size)
        tiny = (precise < _LINEAR) & (1.0 - np.abs(rho) < 1e-9)
        rest = np.where(tiny, precise, 1.0 - np.abs(rho))
        value, slope = _pairs(activation, one.scales, two.scales, rho, rest)
        follows = tiny & ((rho > 0.0) | (activation.parity == "odd"))
        total = one.square + two.square
        spread = np.where(follows, slope * spread, total - 2.0 * np.abs(value))
        tangent = value + tangent * slope
        covariance = value
    return covariance, tangent


def _pairs(
    activation: Activation,
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    rest: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    if rest is None:
        rest = 1.0 - np.abs(rho)
    pairs = standardised_pairs(activation, scale1, scale2, rho, rest)
    return pairs.value, pairs.derivative

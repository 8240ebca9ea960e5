"""Kernels of single pairs, by closed form or quadrature: for what the compiled loops leave.

These are pairs whose series converges too slowly, pairs for which Newton's method needs a bracket,
and nearly equal or opposite inputs.  For the last, the derivative kernel of a kinked activation
depends on √(1 − |ρ|), where ρ itself has lost all digits.  So 1 − |ρ| is carried by itself: from
the difference of the two inputs, scaled to one length, through every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation, Centred, PiecewiseLinear
from notsodeep.activations.closed_forms import hinge_rest, root_of
from notsodeep.activations.pairs import LEAST_SCALE, standardised_pairs
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.kernels.samples import SampleColumns
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.numerics.pair_quadrature import pair_distances

_NEAR = 1e-6  # 1 − |ρ| below this is computed by itself; above, √(1 − |ρ|) is right to 1e-13
_MAX_STEPS = 100
_TOLERANCE = 4e-15  # a step in ρ that is not worth another evaluation
_RESIDUAL = 1e-12


@dataclass(frozen=True)
class InputPairs:
    """Pairs of inputs (x, y).

    Attributes
    ----------
    inner : ndarray of shape (n,)
        x·y.
    norm1, norm2 : ndarray of shape (n,)
        ‖x‖ and ‖y‖.
    rest : ndarray of shape (n,)
        1 − |cos(x, y)|, free of cancellation.
    """

    inner: FloatArray
    norm1: FloatArray
    norm2: FloatArray
    rest: FloatArray

    @classmethod
    def of(cls, X: FloatArray, Y: FloatArray) -> InputPairs:
        """Pair the rows of X with those of Y."""
        inner = np.einsum("ij,ij->i", X, Y)
        norm1, norm2 = (np.sqrt(np.einsum("ij,ij->i", Z, Z)) for Z in (X, Y))
        unit1, unit2 = (
            Z / np.maximum(norm, LEAST_SCALE)[:, None] for Z, norm in ((X, norm1), (Y, norm2))
        )
        # 1 ∓ cos = ½‖x/‖x‖ ∓ y/‖y‖‖²: differences of nearly equal entries are exact (Sterbenz).
        difference = unit1 - np.where(inner >= 0.0, 1.0, -1.0)[:, None] * unit2
        rest = 0.5 * np.einsum("ij,ij->i", difference, difference)
        # With a zero row there is no angle; by convention it is a right one.
        rest = np.where(np.minimum(norm1, norm2) > 0.0, np.minimum(rest, 1.0), 1.0)
        return cls(inner, norm1, norm2, rest)

    def part(self, chosen: NDArray[np.bool_]) -> InputPairs:
        """Return some of the pairs."""
        columns = (self.inner, self.norm1, self.norm2, self.rest)
        return InputPairs(*(column[chosen] for column in columns))


def equilibrium_pairs(
    deq: DeepEquilibrium,
    inputs: InputPairs,
    one: SampleColumns,
    two: SampleColumns,
    start: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Solve G = σa² E[φ(u)φ(v)] + σb² x·y from `start`; return G, E[φφ] and E[φ′φ′].

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
    rho = np.where(solvable & np.isfinite(start), np.clip(start / size, -1.0, 1.0), 0.0)
    low, high = np.full_like(rho, -1.0), np.ones_like(rho)
    value, slope = _pairs(deq.activation, one.scales, two.scales, rho)
    gap = np.where(solvable, sigma_a2 * value + drive - size * rho, 0.0)
    active = np.flatnonzero(solvable)
    for _ in range(_MAX_STEPS):
        here = gap[active]
        # The residual falls with ρ where σa²E[φ′φ′] < 1, so that its sign says on which side the
        # root is.
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
    near = solvable & (1.0 - np.abs(rho) < _NEAR)
    if deq.activation.kinks and near.any():
        value[near], slope[near] = _near_pairs(
            deq, inputs.part(near), one.take(near), two.take(near), rho[near]
        )
    return np.asarray(sigma_a2 * value + drive), value, slope


def _near_pairs(
    deq: DeepEquilibrium,
    inputs: InputPairs,
    one: SampleColumns,
    two: SampleColumns,
    rho: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """E[φφ] and E[φ′φ′] where r = 1 − |ρ| is tiny and what matters; ρ is known as far as it goes.

    With d = 1 − |E[φφ]|/(s₁s₂), s² = E φ², and c = 1 − |cos(x, y)| the equation for ρ is
    τ₁τ₂ r = (τ₁τ₂ − σa² s₁s₂ − σb² ‖x‖‖y‖) + σa² s₁s₂ d(r) + σb² ‖x‖‖y‖ c.
    As τ² = σa² s² + σb² ‖x‖², the bracket is that of two vectors (√σa² s, √σb² ‖x‖): the product of
    their lengths less their inner product, which is a determinant squared over the sum of the two.
    """
    sigma_a2, sigma_b2 = deq.sigma_a2, deq.sigma_b2
    root1, root2 = np.sqrt(one.square), np.sqrt(two.square)
    size = one.scales * two.scales
    along = sigma_a2 * root1 * root2 + sigma_b2 * inputs.norm1 * inputs.norm2
    across = sigma_a2 * sigma_b2 * (root1 * inputs.norm2 - root2 * inputs.norm1) ** 2
    drive = across / (size + along) + sigma_b2 * inputs.norm1 * inputs.norm2 * inputs.rest
    rest = 1.0 - np.abs(rho)
    last = np.full_like(rest, np.inf)
    for _ in range(_MAX_STEPS):
        value, slope = _pairs(deq.activation, one.scales, two.scales, rho, rest)
        deficit = feature_rest(deq.activation, one, two, rho, rest, value)
        gap = drive + sigma_a2 * root1 * root2 * deficit - size * rest
        moved = np.maximum(rest + gap / (size * (1.0 - sigma_a2 * np.abs(slope))), 0.0)
        step = np.abs(moved - rest)
        # Probabilities of kinks at large scales have errors of about 1e-10 of their own: steps of
        # that size which no longer shrink are those, and would go to and fro for ever.
        noise = (step <= 1e-9 * rest) & (step >= 0.5 * last)
        # What is wanted is a function of √r, whose error is step/(2√r).
        settled = (step <= 1e-13 * np.sqrt(rest) + 1e-30) | noise
        rest, last = moved, step
        if settled.all():
            return _pairs(deq.activation, one.scales, two.scales, rho, rest)
    worst = int(np.argmin(settled))
    raise NotConverged(
        f"1 − |ρ| of a pair of the {deq} with x·y = {inputs.inner[worst]:.6g} did not converge in "
        f"{_MAX_STEPS} steps. Use a smaller sigma_a2."
    )


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


def explicit_pairs(
    network: ExplicitNetwork,
    inputs: InputPairs,
    layers: list[tuple[SampleColumns, SampleColumns]],
) -> tuple[FloatArray, FloatArray]:
    """Carry pairs through every layer; return Σ_L and Θ_L.

    `layers` holds, for each activation, the columns of both samples at its input scale.
    """
    covariance, tangent, rest = inputs.inner.copy(), inputs.inner.copy(), inputs.rest
    for depth, (activation, (one, two)) in enumerate(zip(network.activations, layers, strict=True)):
        rho = np.clip(covariance / (one.scales * two.scales), -1.0, 1.0)
        # Carried from the layer before where it is tiny; elsewhere ρ itself is the better source.
        rest = np.where(1.0 - np.abs(rho) < _NEAR, rest, 1.0 - np.abs(rho))
        value, slope = _pairs(activation, one.scales, two.scales, rho, rest)
        # Only a kink further on feels √(1 − |ρ|), and this costs a quadrature for each pair.
        if any(later.kinks for later in network.activations[depth + 1 :]):
            rest = feature_rest(activation, one, two, rho, rest, value)
        tangent = value + tangent * slope
        covariance = value
    return covariance, tangent


def feature_rest(
    activation: Activation,
    one: SampleColumns,
    two: SampleColumns,
    rho: FloatArray,
    rest: FloatArray,
    value: FloatArray,
) -> FloatArray:
    """1 − |E[φ(u)φ(v)]|/√(E φ²(u) E φ²(v)), by itself where it is tiny.

    Half of E(φ(u)/s₁ ∓ φ(v)/s₂)², s² = E φ²: in closed form for the ReLU family, by quadrature of
    the squared difference for others.
    """
    root1, root2 = np.sqrt(one.square), np.sqrt(two.square)
    plain = 1.0 - np.minimum(np.abs(value) / np.maximum(root1 * root2, LEAST_SCALE**2), 1.0)
    # Nothing can be near unless the arguments are; a zero sample has no correlation.
    near = (plain < _NEAR) & (np.minimum(one.scales, two.scales) > LEAST_SCALE)
    if not near.any():
        return np.asarray(plain)
    one, two, sign = one.take(near), two.take(near), np.sign(value[near])
    base = activation.base if isinstance(activation, Centred) else activation
    constant = activation.constant if isinstance(activation, Centred) else 0.0
    hinge = isinstance(base, PiecewiseLinear) and base.homogeneous
    if hinge and (constant == 0.0 or (sign > 0.0).all()):
        assert isinstance(base, PiecewiseLinear)
        deficit = hinge_rest(rho[near], rest[near], base.slopes[-1], base.slopes[0], sign)
        plain[near] = _centred_rest(deficit, one, two, constant)
        return np.asarray(plain)
    functions = (
        (partial(_in_units, activation, root), partial(_in_units, activation, s * other))
        for root, other, s in zip(root1[near], root2[near], sign, strict=True)
    )
    plain[near] = 0.5 * pair_distances(
        functions,
        one.scales,
        two.scales,
        rho[near],
        root_of(rest[near]),
        activation.kinks,
        name=str(activation),
    )
    return np.asarray(plain)


def _in_units(activation: Activation, unit: float, x: FloatArray) -> FloatArray:
    return np.asarray(activation.value(x)[None] / unit)


def _centred_rest(
    deficit: FloatArray, one: SampleColumns, two: SampleColumns, constant: float
) -> FloatArray:
    """Turn 1 − E[hh]/√(…) of a homogeneous h into that of h − c.

    At ρ = 1 the functions τ₁h − c and τ₂h − c span a parallelogram of area c |τ₁ − τ₂| √(Var h); as
    in `_near_pairs`, its square over the sum of (product of lengths) and (inner product) is the
    difference of the two.
    """
    if constant == 0.0:
        return deficit
    mean1, mean2 = one.mean + constant, two.mean + constant
    length = np.sqrt(one.square * two.square)
    # E h² from E(h − c)²; h at scale τ is τ times h at scale 1.
    square1, square2 = (
        part.square + constant * (2.0 * mean - constant)
        for part, mean in ((one, mean1), (two, mean2))
    )
    product = np.sqrt(square1 * square2)
    inner = product - constant * (mean1 + mean2 - constant)
    spread = np.maximum(square1 - mean1**2, 0.0) / one.scales**2
    area2 = constant**2 * (one.scales - two.scales) ** 2 * spread
    return np.asarray((product * deficit + area2 / (length + inner)) / length)


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

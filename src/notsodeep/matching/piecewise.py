"""Families of piecewise-linear networks: leaky ReLU, hard tanh, both in one, and two kinks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import brentq

from notsodeep.activations import Activation, hard_tanh, leaky_relu, named, piecewise_linear
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Expansion
from notsodeep.equivalents.expansion import expanded
from notsodeep.equivalents.ring import EXTRA, TERMS, Unit, ring_of
from notsodeep.matching.family import (
    COEFFICIENT_TOL,
    EIGHT,
    Family,
    Infeasible,
    Problem,
    fit,
    units,
)
from notsodeep.models import ExplicitNetwork

_COUNT = TERMS[0] + EXTRA
_ROOTS = [math.sqrt(k) for k in range(_COUNT)]
_DIVISORS = np.sqrt(np.arange(2, _COUNT) * np.arange(1, _COUNT - 1))
_ONE, _TWO = (ring_of(ExplicitNetwork([named("relu")] * depth)) for depth in (1, 2))
"""Rings of which the variances alone are read."""


# One layer -------------------------------------------------------------------------------------


def _leaky_slopes(problem: Problem) -> FloatArray:
    """CK: a + b = 2√A1, (a − b)² = 4π(T2/τ0² − A1)/(π − 2).

    NTK: (a + b)² = 2A1, (a − b)² = 2π(T2/τ0² − A1)/(π − 1); a ≥ b.  Mixture paper, corollary 2,
    corrected.
    """
    linear, _, _, scale2 = problem.target.four
    linear = max(linear, 0.0)
    # T2 ≥ τ0² A1 by Parseval, with equality for a linear φ only.
    excess = max(0.0, scale2 / problem.scale**2 - linear)
    if problem.kind == "ck":
        total, difference = 2.0 * math.sqrt(linear), 4.0 * math.pi * excess / (math.pi - 2.0)
    else:
        total, difference = math.sqrt(2.0 * linear), 2.0 * math.pi * excess / (math.pi - 1.0)
    half = 0.5 * math.sqrt(difference)
    return np.array([0.5 * total + half, 0.5 * total - half])


LEAKY_RELU = Family(
    "leaky_relu",
    ("positive_slope", "negative_slope"),
    lambda x, problem: [leaky_relu(float(x[0]), float(x[1]))],
    starts=(),
    meets=("linear", "scale2"),
    solve=_leaky_slopes,
)
"""max(ax, bx)."""


def _scale_and_clip(problem: Problem) -> FloatArray:
    """Find the clip c of a·clip(x, −c, c) from T2/(τ0² A1), then the scale a from A1.

    With the moments at a = 1: CK E[σ²]/(τ0²E[σ′]²) = T2/(τ0²A1), which has a solution iff
    1 < T2/(τ0²A1) < π/2; NTK (E[σ²] + τ0²E[σ′²])/(2τ0²E[σ′]²) = T2/(τ0²A1), solvable iff it
    exceeds 1.
    """
    linear, _, _, scale2 = problem.target.four
    tau0, tangent = problem.scale, problem.kind == "ntk"
    if not tau0**2 * linear > 1e-12 * scale2:
        raise Infeasible("linear is 0 (φ is even, or a jump), and a hard tanh has a positive one")
    wanted = scale2 / (tau0**2 * linear)
    if not 1.0 < wanted < (math.inf if tangent else math.pi / 2.0):
        bound = "above 1" if tangent else "between 1 and π/2 = 1.5708"
        raise Infeasible(f"scale2/(τ0²·linear) = {wanted:.6g} must be {bound} for a hard tanh")

    def excess(log_clip: float) -> float:
        # E σ′ = E σ′² = P(|ξ| < c), and E σ² = E ξ² 1(|ξ| < c) + c² P(|ξ| > c).
        c = math.exp(log_clip)
        inside, density = math.erf(c / math.sqrt(2.0)), math.exp(-0.5 * c * c)
        beyond = math.erfc(c / math.sqrt(2.0))
        square = inside - 2.0 * c * density / math.sqrt(2.0 * math.pi) + c * c * beyond
        return (0.5 * (square + inside) if tangent else square) / inside**2 - wanted

    # The ratio falls from its limit at c = 0, a jump, to 1 at c = ∞, a line: one root, in log c/τ0.
    # Beyond e⁴ τ0 the clip is never met.
    low, high = -3.0, 1.0
    while excess(low) < 0.0 and low > -33.0:
        low -= 2.0
    if excess(low) < 0.0:  # a clip below 1e-14 of the scale
        raise Infeasible("the target is that of a jump up to rounding")
    while excess(high) > 0.0 and high < 4.0:
        high += 0.25
    if excess(high) > 0.0:
        raise Infeasible("the target is that of a linear network up to rounding")
    clip = tau0 * math.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))
    gain = math.sqrt(0.5 * linear if tangent else linear)
    return np.array([gain / math.erf(clip / (tau0 * math.sqrt(2.0))), clip])


HARD_TANH = Family(
    "hard_tanh",
    ("scale", "clip"),
    lambda x, problem: [hard_tanh(float(x[0]), float(x[1]))],
    starts=(),
    meets=("linear", "scale2"),
    bounds=((-np.inf, 1e-3), (np.inf, 100.0)),
    solve=_scale_and_clip,
)
"""a·clip(x, −c, c)."""


def _knot(x: FloatArray) -> float:
    """Return the outer knot c/τ0 from the parameters (four slopes, log(c/τ0))."""
    # Beyond 20 τ0 a knot is never met, and within 0.0025 τ0 the three are as good as one.
    return math.exp(float(np.clip(x[4], -6.0, 3.0)))


def _three_knots(x: FloatArray, problem: Problem) -> list[Activation]:
    clip = problem.scale * _knot(x)
    return [piecewise_linear((-clip, 0.0, clip), tuple(float(s) for s in x[:4]))]


def _reach_of_three_knots(x: FloatArray, problem: Problem) -> tuple[float, ...]:
    clip = _knot(x)
    unit = lines(list(map(float, x[:4])), [-clip, 0.0, clip], 0.0, problem.scale)
    return _as_expansion(_ONE, [unit], problem).four


def _as_expansion(ring: Any, moments: Sequence[Unit], problem: Problem) -> Expansion:
    numbers = expanded(ring, moments, problem.scale, problem.kind, "feature")
    return Expansion(*(float(number) for number in (*numbers, problem.scale)))


def _shapes(problem: Problem) -> list[FloatArray]:
    """Start from the closed forms and from the fit of φ, the smallest mismatch first."""
    a, b = _leaky_slopes(problem)
    shapes = [_fitted_shape(problem), np.array([b, b, a, a, 0.0])]
    with contextlib.suppress(Infeasible):
        scale, clip = _scale_and_clip(problem)
        shapes.append(np.array([0.0, scale, scale, 0.0, math.log(clip / problem.scale)]))
    weights = units(("linear", "covariance_overlap", "scale2"), problem.scale)
    wanted = np.array(problem.target.four)[[0, 2, 3]]

    def mismatch(x: FloatArray) -> float:
        reached = np.array(_reach_of_three_knots(x, problem))[[0, 2, 3]]
        return float(np.abs((reached - wanted) * weights).max())

    return sorted(shapes, key=mismatch)


def _fitted_shape(problem: Problem) -> FloatArray:
    """Slopes of the best fit to φ(τξ), with its knots at ±1.5 and the scale of the target."""
    xi, clip = np.linspace(-4.0, 4.0, 401), 1.5
    weight = np.exp(-0.25 * xi**2)  # the root of the density: least squares squares it
    inner = np.clip(xi, -clip, clip)
    columns = np.stack(
        [
            np.minimum(xi + clip, 0.0),
            np.minimum(inner, 0.0),
            np.maximum(inner, 0.0),
            np.maximum(xi - clip, 0.0),
            np.ones_like(xi),
        ],
        axis=1,
    )
    tau = math.sqrt(problem.model.preactivation_variance(problem.scale**2))
    values = problem.model.cell[-1].activation(tau * xi)
    slopes = np.linalg.lstsq(columns * weight[:, None], values * weight, rcond=None)[0][:4]
    x = np.append(slopes / problem.scale, math.log(clip))
    ratio = problem.target.four[-1] / _reach_of_three_knots(x, problem)[-1]
    return np.append(math.sqrt(ratio) * x[:4], x[4])


PIECEWISE_LINEAR = Family(
    "piecewise_linear",
    ("slope_far_left", "slope_left", "slope_right", "slope_far_right", "log_knot"),
    _three_knots,
    starts=_shapes,
    meets=("linear", "covariance_overlap", "scale2"),
    # A knot close to 0 with steep slopes would imitate a jump, one far out would do nothing.
    bounds=((-4.0, -4.0, -4.0, -4.0, -1.2), (4.0, 4.0, 4.0, 4.0, 1.0)),
    reach=_reach_of_three_knots,
)
"""Slopes on (−∞, −c), (−c, 0), (0, c), (c, ∞), and log(c/τ0)."""


# Two layers ------------------------------------------------------------------------------------

_NUMBERS = ("slope_left", "slope_middle", "slope_right", "middle", "log_reach", "value_at_zero")
# Knots close together with steep slopes would imitate a jump, and far out they do nothing.
_LOWER = np.array([-4.0, -4.0, -4.0, -2.0, -2.5, -3.0] * 2)
_UPPER = np.array([4.0, 4.0, 4.0, 2.0, 1.2, 3.0] * 2)
# Of every kind of shape one: leaking, bending up, clipped, nearly linear.
_STARTS = np.array(
    [
        [0.6, 0.8, 1.0, -0.2, 0.0, 0.3, 0.3, 1.3, 0.5, 0.3, -0.2, 0.1],
        [0.2, 1.0, 0.8, 0.1, 0.0, 0.1, 0.2, 1.0, 0.8, 0.1, 0.0, 0.1],
        [0.9, 0.8, 1.1, 0.2, -0.2, 0.0, 0.0, 0.9, 1.1, 0.5, -0.3, 0.0],
        [0.4, 1.1, 0.7, -0.4, 0.3, 0.4, 0.9, 0.3, 1.1, -0.2, 0.0, -0.2],
    ]
)


def _two_kinks(x: FloatArray, problem: Problem) -> list[Activation]:
    """Knots are at τ(middle ± e^log_reach), τ the scale of what the layer reads."""
    layers: list[Activation] = []
    scale = problem.scale
    for part in np.reshape(x, (2, 6)):
        half = math.exp(float(part[4]))
        knots = (scale * (float(part[3]) - half), scale * (float(part[3]) + half))
        slopes = tuple(map(float, part[:3]))
        layers.append(piecewise_linear(knots, slopes, scale * float(part[5])))
        scale = math.sqrt(_kinks(part, scale).square)
    return layers


def _kinks(part: NDArray[Any], tau: Any) -> Unit:
    """Moments of one layer from its six numbers, or of many from columns."""
    numbers = part if part.dtype.kind == "c" else part.tolist()
    left, middle, right, centre, log_half, at_zero = numbers
    half = np.exp(log_half) if part.dtype.kind == "c" else math.exp(log_half)
    return lines([left, middle, right], [centre - half, centre + half], at_zero, tau)


def _pair(x: NDArray[Any], problem: Problem) -> list[Unit]:
    first = _kinks(x[:6], problem.scale)
    return [first, _kinks(x[6:], first.square**0.5)]


def _solve_two_kinks(problem: Problem) -> FloatArray:
    """Meet all coefficients, moving as little as possible from one of a few shapes.

    Where the target is at the edge of what kernels can have, the shape must be there too, or the
    equations would have a double root.
    """
    target, free = problem.target, _Free(problem.target)
    wanted = np.array([getattr(target, name) for name in EIGHT])
    scales = units(EIGHT, problem.scale) / target.scale2

    def mismatch(x: FloatArray) -> FloatArray:
        full = free.full(x)
        if not ((full >= _LOWER) & (full <= _UPPER)).all():
            raise Infeasible("out of bounds")
        reached = _as_expansion(_TWO, _pair(full, problem), problem)
        return np.asarray((np.array([getattr(reached, name) for name in EIGHT]) - wanted) * scales)

    def jacobian(x: FloatArray) -> FloatArray:
        # By complex steps: f(x + ih) = f(x) + ih f′(x) − …, all formulas being analytic, and
        # h = 1e-30 leaves rounding errors alone.
        columns = free.full(x[:, None] + 1e-30j * np.eye(len(x)))
        numbers = expanded(_TWO, _pair(columns, problem), problem.scale, problem.kind, "feature")
        slopes = [np.broadcast_to(number, len(x)).imag / 1e-30 for number in numbers]
        return np.asarray(scales[:, None] * np.array(slopes))

    starts = []
    for shape in _STARTS:
        start = shape[free.places]
        # Two layers of one activation each: the fourth root of the diagonal is its scale.
        for _ in range(3):
            reached = _as_expansion(_TWO, _pair(free.full(start), problem), problem)
            ratio = (target.scale2 / reached.scale2) ** 0.25
            start = np.where(free.is_scale, ratio, 1.0) * start
        starts.append(start)
    every = list(range(len(EIGHT)))
    for places in (every, [k for k in every if EIGHT[k] != "rescaling"]):
        x = fit(
            lambda x, places=places: mismatch(x)[places],  # type: ignore[misc]
            starts,
            len(places),
            lambda x, places=places: jacobian(x)[places],  # type: ignore[misc]
        )
        if np.abs(mismatch(x)[places]).max() <= COEFFICIENT_TOL:
            break
    return free.full(x)


def _is_centred(target: Expansion) -> bool:
    # Coefficients this small are met by zero.
    return abs(target.constant) <= COEFFICIENT_TOL * target.scale2


class _Free:
    """The parameters that are free for a target, and how they make all twelve.

    Inputs at right angles have the kernel κ0 + κ_q(χ + ω) + κ_qr χω + …, which is positive
    semi-definite: κ0 κ_qr ≥ κ_q².  Three edges of that are usual.

    * κ0 = 0, a centred model: both layers are centred by their values at zero.
    * Also κ_ss = 0, an odd model: both layers are odd.
    * κ0 κ_qr = κ_q², as for homogeneous φ: an odd first layer keeps right angles right.
    """

    def __init__(self, target: Expansion) -> None:
        self.centred = _is_centred(target)
        overlap = abs(target.covariance_overlap) * target.tau0**4
        odd = self.centred and overlap <= COEFFICIENT_TOL * target.scale2
        product = target.constant * target.norm_fluctuation
        edge = product - target.norm_shift**2 <= 1e-9 * product
        self.odd = np.array([odd or (edge and not self.centred), odd])
        of_layer = [[0, 1, 4] if each else [0, 1, 2, 3, 4, 5] for each in self.odd]
        if self.centred:
            of_layer = [[k for k in places if k != 5] for places in of_layer]
        self.places = [6 * layer + k for layer in (0, 1) for k in of_layer[layer]]
        self.is_scale = np.isin(np.array(self.places) % 6, (0, 1, 2, 5))

    def full(self, x: NDArray[Any]) -> NDArray[Any]:
        """All twelve, of one vector or of columns."""
        parameters = np.zeros((12, *x.shape[1:]), x.dtype)
        parameters[self.places] = x
        for part, odd in zip((parameters[:6], parameters[6:]), self.odd, strict=True):
            if odd:
                part[2] = part[0]
            elif self.centred:
                part[5] = -_kinks(part, 1.0).hermite[..., 0]
        return parameters


TWO_KINKS = Family(
    "two_kinks",
    tuple(f"{name}_{layer}" for layer in (1, 2) for name in _NUMBERS),
    _two_kinks,
    starts=(),
    meets=tuple(name for name in EIGHT if name != "rescaling"),
    bounds=(_LOWER, _UPPER),
    has_means=True,
    solve=_solve_two_kinks,
    # Simpler families do for centred vanilla models.
    in_auto=lambda problem: not (problem.model.is_vanilla and _is_centred(problem.target)),
)
"""Two layers with three slopes, two knots and a value at zero each: all seven coefficients."""


# Gaussian moments of a layer ---------------------------------------------------------------------


def lines(slopes: Sequence[Any], knots: Sequence[Any], at_zero: Any, tau: Any) -> Unit:
    """Moments at scale τ of a layer with these slopes between ascending knots, in units of τ.

    Of many layers if the numbers are arrays, complex ones too.  σ(τξ)/τ = y₀ + aξ +
    Σ_k Δ_k (ξ − κ_k)₊; with density ϕ and tail Q of a knot, E(ξ − κ)₊ = ϕ − κQ and
    E(ξ − κ₁)₊(ξ − κ₂)₊ = (1 + κ₁κ₂)Q₂ − κ₁ϕ₂ for κ₁ ≤ κ₂.  σ″ is Δ_k at the knots, so that by
    Price's theorem dv/dq = E σ′² + Σ Δ_k σ(k)ϕ_k/τ, and once more for d²v/dq².
    """
    array = isinstance(knots[0], np.ndarray | np.generic)
    exp, erfc = (np.exp, special.erfc) if array else (math.exp, math.erfc)
    a = slopes[0]
    changes = [after - before for before, after in pairwise(slopes)]
    tails = [0.5 * erfc(k / math.sqrt(2.0)) for k in knots]
    densities = [exp(-0.5 * k * k) / math.sqrt(2.0 * math.pi) for k in knots]
    # The leftmost line at ξ = 0, where hinges at negative knots are open already.
    base = at_zero + sum(d * k * (k.real < 0.0) for d, k in zip(changes, knots, strict=True))
    mean = slope = growth = bend = 0.0
    square, slope_square = 0.0, a**2
    rows = []
    value = base + a * knots[0]  # at the knot, which the hinges before it have reached
    for index, (k, d, phi, tail) in enumerate(zip(knots, changes, densities, tails, strict=True)):
        mean += d * (phi - k * tail)
        slope += d * tail
        slope_square = slope_square + (slopes[index + 1] ** 2 - slopes[index] ** 2) * tail
        if index:
            value = value + slopes[index] * (k - knots[index - 1])
        growth = growth + d * value * phi
        jump = slopes[index + 1] ** 2 - slopes[index] ** 2
        bend = bend + 0.5 * phi * (jump * k + d * value * (k * k - 1.0))
        for other, (left, change) in enumerate(zip(knots[: index + 1], changes, strict=False)):
            twice = 1.0 if other == index else 2.0
            square = square + twice * d * change * ((1.0 + left * k) * tail - left * phi)
        # The second derivative of (ξ − κ)₊ is δ_κ, so that a_n = ϕ(κ) h_{n−2}(κ)/√(n(n − 1)); the
        # recurrence carries ϕh_n.  Plain floats: over few knots NumPy costs more than it saves.
        row, before, now = [], 0.0, d * phi
        for n in range(_COUNT - 2):
            row.append(now)
            before, now = now, (k * now - _ROOTS[n] * before) / _ROOTS[n + 1]
        rows.append(row)
    higher = np.sum([np.array(row) for row in rows], axis=0).T / _DIVISORS
    hermite = np.empty((*higher.shape[:-1], _COUNT), higher.dtype)
    hermite[..., 0], hermite[..., 1], hermite[..., 2:] = base + mean, a + slope, higher
    # E ξ(ξ − κ)₊ = Q(κ), which is why `slope` serves for both.
    square = square + base**2 + a**2 + 2.0 * (base * mean + a * slope)
    return Unit(
        scale=tau,
        square=tau**2 * square,
        square_slope=slope_square + growth,
        square_bend=bend / tau**2,
        slope_square=slope_square,
        hermite=np.asarray(tau)[..., None] * hermite,
        name="piecewise linear",
    )

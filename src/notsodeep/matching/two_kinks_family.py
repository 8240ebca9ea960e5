"""Two piecewise-linear layers with two kinks and an offset each: enough for every coefficient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from notsodeep.activations import Activation, named, piecewise_linear
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Expansion
from notsodeep.equivalents.expansion import expanded
from notsodeep.equivalents.ring import Unit, ring_of
from notsodeep.matching.coefficient_fit import fit_coefficients
from notsodeep.matching.family import MET, Family, Infeasible, MixtureFamily
from notsodeep.matching.problem import EIGHT, Problem
from notsodeep.models import ExplicitNetwork

# 60 terms of Mehler's series, and the 6 that derivatives shift away (see `Unit`).
_TERMS = 66
_ROOTS = [math.sqrt(k) for k in range(_TERMS)]
_DIVISORS = np.sqrt(np.arange(2, _TERMS) * np.arange(1, _TERMS - 1))
_CHAIN = ring_of(ExplicitNetwork([named("relu")] * 2))  # of which variances are read
_PROMISED = tuple(name for name in EIGHT if name != "rescaling")
_NUMBERS = ("slope_left", "slope_middle", "slope_right", "middle", "log_reach", "value_at_zero")

# Knots close together with steep slopes would imitate a jump, and far out they do nothing.
_LEAST = np.array([-4.0, -4.0, -4.0, -2.0, -2.5, -3.0] * 2)
_MOST = np.array([4.0, 4.0, 4.0, 2.0, 1.2, 3.0] * 2)

# Of every kind of shape one: leaking, bending up, clipped, nearly linear.
_STARTS = np.array(
    [
        [0.6, 0.8, 1.0, -0.2, 0.0, 0.3, 0.3, 1.3, 0.5, 0.3, -0.2, 0.1],
        [0.2, 1.0, 0.8, 0.1, 0.0, 0.1, 0.2, 1.0, 0.8, 0.1, 0.0, 0.1],
        [0.9, 0.8, 1.1, 0.2, -0.2, 0.0, 0.0, 0.9, 1.1, 0.5, -0.3, 0.0],
        [0.4, 1.1, 0.7, -0.4, 0.3, 0.4, 0.9, 0.3, 1.1, -0.2, 0.0, -0.2],
    ]
)


@dataclass(frozen=True)
class TwoKinks(MixtureFamily):
    """Two layers, each with three slopes, two knots and a value at zero: twelve parameters.

    Meets all four coefficients of a centred DEQ, whose norm_fluctuation one layer ties to its
    covariance_overlap, and the seven (see `Expansion`) of one that is not centred: with biases, or
    with φ as it is.  Where it can it also meets `rescaling`, the largest of what seven leave out.
    The kernel is then that of the model as given, not of its centred sibling.

    Knots are at τ(middle ± e^log_reach), τ the scale of what the layer reads; the value at zero
    also is in units of τ.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = [nsd.Dense("erf", 0.5, inject=0.6, bias=0.1), nsd.Dense("relu", 0.8, inject=0.3)]
    >>> deq = nsd.DeepEquilibrium(cell=cell)
    >>> m = nsd.match(deq, tau0=1.0, family=TwoKinks())
    >>> m.feasible, m.model == deq, m.network.depth
    (True, True, 2)
    """

    name = "two_kinks"
    has_means = True
    bounds = (_LEAST, _MOST)
    parameter_names = tuple(f"{name}_{layer}" for layer in (1, 2) for name in _NUMBERS)

    def for_auto(self, problem: Problem) -> Family | None:
        """Apply to models that are not vanilla and centred: simpler families do for those."""
        applies = super().for_auto(problem) is not None
        return self if applies and not (problem.is_centred and problem.model.is_vanilla) else None

    def undertaken(self, problem: Problem) -> tuple[str, ...]:
        """All that an equivalent needs, whether the DEQ is centred or not."""
        return _PROMISED

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build it from six numbers for each layer."""
        layers: list[Activation] = []
        scale = problem.scale
        for part in np.reshape(parameters, (2, 6)):
            left, right = (scale * knot for knot in _knots(part))
            slopes = tuple(map(float, part[:3]))
            layers.append(piecewise_linear((left, right), slopes, scale * float(part[5])))
            scale = math.sqrt(_layer(part, scale).square)
        return ExplicitNetwork(layers)

    def solve(self, problem: Problem) -> FloatArray:
        """Meet all coefficients, moving as little as possible from one of a few shapes.

        Where the target is at the edge of what kernels can have, the shape must be there too, or
        the equations would have a double root.
        """
        target = problem.expansion
        free = _Free(target)

        def reached(x: FloatArray) -> Expansion:
            full = free.full(x)
            if not ((full >= _LEAST) & (full <= _MOST)).all():
                raise Infeasible("out of bounds")
            return _reached(full, problem)

        starts = []
        for shape in _STARTS:
            start = shape[free.places]
            # Two layers of one activation each: the fourth root of the diagonal is its scale.
            for _ in range(3):
                ratio = target.scale2 / _reached(free.full(start), problem).scale2
                start = np.where(free.is_scale, ratio**0.25, 1.0) * start
            starts.append(start)
        for names in (EIGHT, _PROMISED):
            promised = tuple(map(EIGHT.index, names))
            found = fit_coefficients(
                problem,
                reached,
                starts,
                promised=promised,
                nearest=True,
                slopes=lambda x: mismatch_slopes(x, free.full, problem),
            )
            mismatch = problem.mismatch(reached(found))[list(promised)]
            if np.abs(mismatch).max() <= MET:
                break
        return free.full(found)


class _Free:
    """The parameters that are free for a target, and how they make all twelve.

    Inputs at right angles have the kernel κ0 + κ_q(χ + ω) + κ_qr χω + …, which is positive
    semi-definite: κ0 κ_qr ≥ κ_q².  Three edges of that are usual.

    * κ0 = 0, a centred model: both layers are centred by their values at zero.
    * Also κ_ss = 0, an odd model: both layers are odd.
    * κ0 κ_qr = κ_q², as for homogeneous φ: an odd first layer keeps right angles right.
    """

    def __init__(self, target: Expansion) -> None:
        # As `MET`: coefficients this small are met by zero.
        little = 1e-9 * target.scale2
        self.centred = abs(target.constant) <= little
        odd = self.centred and abs(target.covariance_overlap) * target.tau0**4 <= little
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
                part[5] = -_layer(part, 1.0).hermite[..., 0]
        return parameters


def _knots(part: NDArray[Any]) -> tuple[Any, Any]:
    if part.dtype.kind == "c":
        reach = np.exp(part[4])
        return part[3] - reach, part[3] + reach
    middle, half = float(part[3]), math.exp(float(part[4]))
    return middle - half, middle + half


def _reached(parameters: FloatArray, problem: Problem) -> Expansion:
    return Expansion(*map(float, (*_expanded(parameters, problem), problem.scale)))


def _expanded(parameters: NDArray[Any], problem: Problem) -> tuple[Any, ...]:
    """Expand the kernel from the moments of both layers in closed form."""
    first = _layer(parameters[:6], problem.scale)
    second = _layer(parameters[6:], first.square**0.5)
    return expanded(_CHAIN, (first, second), problem.scale, problem.kind, "feature")


def mismatch_slopes(
    x: FloatArray, full: Callable[[NDArray[Any]], NDArray[Any]], problem: Problem
) -> FloatArray:
    """Differentiate the mismatch of the eight coefficients in x; shape (8, len(x)).

    `full` makes all twelve parameters from x.  By complex steps, a column for each entry of x: all
    formulas are analytic, f(x + ih) = f(x) + ih f′(x) − …, and h = 1e-30 leaves rounding errors
    alone.
    """
    columns = full(x[:, None] + 1e-30j * np.eye(len(x)))
    found = [np.broadcast_to(each, len(x)).imag for each in _expanded(columns, problem)]
    units = problem.units(EIGHT) / problem.expansion.scale2
    return np.asarray(units[:, None] * np.array(found) / 1e-30)


def _layer(part: NDArray[Any], tau: Any) -> Unit:
    """Moments of a layer at scale τ, or of many layers, (6, count), complex ones.

    σ(τξ)/τ = y₀ + aξ + Σ_k Δ_k (ξ − κ_k)₊; with density ϕ and tail Q of a knot, E(ξ − κ)₊ = ϕ − κQ
    and E(ξ − κ₁)₊(ξ − κ₂)₊ = (1 + κ₁κ₂)Q₂ − κ₁ϕ₂ for κ₁ ≤ κ₂.  σ″ is Δ_k at the knots, so that by
    Price's theorem dv/dq = E σ′² + Σ Δ_k σ(k)ϕ_k/τ, and once more for d²v/dq².
    """
    exp: Callable[[Any], Any] = math.exp
    erfc: Callable[[Any], Any] = math.erfc
    numbers = part
    if part.dtype.kind == "c":
        exp, erfc = np.exp, special.erfc
    else:
        numbers = part.tolist()
    a, middle, right, _, _, at_zero = numbers
    knots = _knots(part)
    changes = (middle - a, right - middle)
    tails = [0.5 * erfc(k / math.sqrt(2.0)) for k in knots]
    densities = [exp(-0.5 * k * k) / math.sqrt(2.0 * math.pi) for k in knots]
    # The leftmost line at ξ = 0, where hinges at negative knots are open already.
    base = at_zero + sum(d * k * (k.real < 0.0) for d, k in zip(changes, knots, strict=True))

    mean = slope = 0.0
    rows = []
    for k, d, phi, tail in zip(knots, changes, densities, tails, strict=True):
        mean += d * (phi - k * tail)
        slope += d * tail
        # The second derivative of (ξ − κ)₊ is δ_κ, so that a_n = ϕ(κ) h_{n−2}(κ)/√(n(n − 1)); the
        # recurrence carries ϕh_n.  Plain floats: over two knots NumPy costs more than it saves.
        row, before, now = [], 0.0, d * phi
        for n in range(_TERMS - 2):
            row.append(now)
            before, now = now, (k * now - _ROOTS[n] * before) / _ROOTS[n + 1]
        rows.append(row)
    higher = (np.array(rows[0]) + np.array(rows[1])).T / _DIVISORS
    hermite = np.empty((*higher.shape[:-1], _TERMS), higher.dtype)
    hermite[..., 0], hermite[..., 1], hermite[..., 2:] = base + mean, a + slope, higher

    # E ξ(ξ − κ)₊ = Q(κ), which is why `slope` serves for both.
    square = base**2 + a**2 + 2.0 * (base * mean + a * slope)
    for i in (0, 1):
        for j in (0, 1):
            low, last = knots[min(i, j)], max(i, j)
            product = (1.0 + low * knots[last]) * tails[last] - low * densities[last]
            square += changes[i] * changes[j] * product
    slope_square = a**2 * (1.0 - tails[0]) + middle**2 * (tails[0] - tails[1])
    slope_square += right**2 * tails[1]
    growth, bend = slope_square, 0.0
    jumps = (middle**2 - a**2, right**2 - middle**2)
    for k, d, phi, jump in zip(knots, changes, densities, jumps, strict=True):
        value = base + a * k + changes[0] * (k - knots[0])  # knots are in order
        growth = growth + d * value * phi  # not in place: it is slope_square at first
        bend += 0.5 * phi * (jump * k + d * value * (k * k - 1.0))
    return Unit(
        scale=tau,
        square=tau**2 * square,
        square_slope=growth,
        square_bend=bend / tau**2,
        slope_square=slope_square,
        hermite=np.asarray(tau)[..., None] * hermite,
        name="two kinks",
    )

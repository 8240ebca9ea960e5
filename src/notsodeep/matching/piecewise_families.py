"""Families of piecewise-linear networks: leaky ReLU, hard tanh, and both in one."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, ndtr

from notsodeep.activations import Moments, centre, hard_tanh, leaky_relu, piecewise_linear
from notsodeep.activations.piecewise_linear import PiecewiseLinear as Line
from notsodeep.arrays import FloatArray
from notsodeep.matching.coefficient_fit import fit_coefficients
from notsodeep.matching.family import (
    LINEAR,
    OVERLAP,
    SCALE,
    Infeasible,
    MixtureFamily,
    checked_layers,
)
from notsodeep.matching.problem import Four, Problem
from notsodeep.models import ExplicitNetwork


@dataclass(frozen=True)
class LeakyReLU(MixtureFamily):
    """Layers max(ax, bx), centred: slopes a and b for each.

    One layer meets linear and scale2 in closed form; two are fitted to all four coefficients.

    Attributes
    ----------
    layers : int
        1 or 2.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("swish", sigma_a2=0.2)
    >>> m = nsd.match(deq, tau0=1.0, family=LeakyReLU(layers=2))
    >>> m.network.depth
    2
    """

    layers: int = 1
    name = "leaky_relu"

    def __post_init__(self) -> None:
        checked_layers(self.name, self.layers, (1, 2))

    @property
    def promised(self) -> tuple[int, ...]:  # type: ignore[override]
        """Two coefficients with one layer, all four with two."""
        return (LINEAR, SCALE) if self.layers == 1 else (0, 1, 2, 3)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Slopes on the right and on the left, layer by layer."""
        sides = ("positive_slope", "negative_slope")
        if self.layers == 1:
            return sides
        return tuple(f"{side}_{k}" for k in (1, 2) for side in sides)

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build it from pairs of slopes."""
        layers = [leaky_relu(float(a), float(b)) for a, b in parameters.reshape(-1, 2)]
        return ExplicitNetwork(layers).centred(problem.scale)

    def solve(self, problem: Problem) -> FloatArray:
        """One layer in closed form; two by least squares, 3 unknowns for 4 targets.

        Multiplying layer 1 and dividing layer 2 changes nothing, so layer 1 has slope 1 on the
        right.
        """
        one = _leaky_slopes(problem)
        if self.layers == 1:
            return one
        found = fit_coefficients(
            problem,
            lambda x: problem.achieved(self.network(np.append(1.0, x), problem)),
            # First layers from nearly linear to bending back; the second as in the match of one
            # layer.
            [np.array([s, *one]) for s in (0.8, 0.3, -0.3)],
        )
        return np.append(1.0, found)


def _leaky_slopes(problem: Problem) -> FloatArray:
    """CK: a + b = 2√A1, (a − b)² = 4π(T2/τ0² − A1)/(π − 2).

    NTK: (a + b)² = 2A1, (a − b)² = 2π(T2/τ0² − A1)/(π − 1); a ≥ b.  Mixture paper, corollary 2,
    corrected.
    """
    linear, _, _, scale2 = problem.target
    # T2 ≥ τ0² A1 by Parseval, with equality for a linear φ only.
    excess = max(0.0, scale2 / problem.scale**2 - linear)
    if problem.kind == "ck":
        total, difference = 2.0 * math.sqrt(linear), 4.0 * math.pi * excess / (math.pi - 2.0)
    else:
        total, difference = math.sqrt(2.0 * linear), 2.0 * math.pi * excess / (math.pi - 1.0)
    half = 0.5 * math.sqrt(difference)
    return np.array([0.5 * total + half, 0.5 * total - half])


@dataclass(frozen=True)
class HardTanh(MixtureFamily):
    """One layer a·clip(x, −c, c), for odd φ: meets linear and scale2.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> m = nsd.match(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), tau0=1.0, family=HardTanh())
    >>> {name: round(value, 4) for name, value in m.parameters.items()}
    {'scale': 0.7643, 'clip': 1.1965}
    """

    name = "hard_tanh"
    promised = (LINEAR, SCALE)
    bounds = ((-np.inf, 1e-3), (np.inf, 100.0))
    parameter_names = ("scale", "clip")

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build it from a and c."""
        # The centring is at zero already; it records the scale.
        layer = hard_tanh(float(parameters[0]), float(parameters[1]))
        return ExplicitNetwork([layer]).centred(problem.scale)

    def solve(self, problem: Problem) -> FloatArray:
        """Find the clip c from T2/(τ0² A1), then the scale a from A1.

        With the moments at a = 1: CK E[σ²]/(τ0²E[σ′]²) = T2/(τ0²A1), which has a solution iff
        1 < T2/(τ0²A1) < π/2; NTK (E[σ²] + τ0²E[σ′²])/(2τ0²E[σ′]²) = T2/(τ0²A1), solvable iff it
        exceeds 1.
        """
        linear, _, _, scale2 = problem.target
        tau0, tangent = problem.scale, problem.kind == "ntk"
        if not tau0**2 * linear > 1e-12 * scale2:
            raise Infeasible(
                "linear is 0 (φ is even, or a jump), and a hard tanh has a positive one"
            )
        wanted = scale2 / (tau0**2 * linear)
        limit = math.inf if tangent else math.pi / 2.0
        if not 1.0 < wanted < limit:
            bound = "above 1" if tangent else "between 1 and π/2 = 1.5708"
            raise Infeasible(f"scale2/(τ0²·linear) = {wanted:.6g} must be {bound} for a hard tanh")

        def excess(log_clip: float) -> float:
            # E σ′ = E σ′² = P(|ξ| < c), and E σ² = E ξ² 1(|ξ| < c) + c² P(|ξ| > c).
            c = math.exp(log_clip)
            inside, density = math.erf(c / math.sqrt(2.0)), math.exp(-0.5 * c * c)
            beyond = math.erfc(c / math.sqrt(2.0))
            square = inside - 2.0 * c * density / math.sqrt(2.0 * math.pi) + c * c * beyond
            return (0.5 * (square + inside) if tangent else square) / inside**2 - wanted

        # The ratio falls from its limit at c = 0, a jump, to 1 at c = ∞, a line: one root, in log
        # c/τ0.  Beyond e⁴ τ0 the clip is never met.
        low, high = -3.0, 1.0
        while excess(low) < 0.0 and low > -33.0:
            low -= 2.0
        if excess(low) < 0.0:  # a clip below 1e-14 of the scale
            raise Infeasible("the target is that of a jump up to rounding")
        while excess(high) > 0.0 and high < 4.0:
            high += 0.25
        if excess(high) > 0.0:  # linear up to rounding
            raise Infeasible("the target is that of a linear network up to rounding")
        clip = tau0 * math.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))
        gain = math.sqrt(0.5 * linear if tangent else linear)
        return np.array([gain / float(erf(clip / (tau0 * math.sqrt(2.0)))), clip])


@dataclass(frozen=True)
class PiecewiseLinear(MixtureFamily):
    """One layer with slopes on (−∞, −c), (−c, 0), (0, c), (c, ∞): five parameters with log(c/τ0).

    Meets linear, covariance_overlap and scale2 while it stays Lipschitz.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> m = nsd.match(nsd.DeepEquilibrium("gelu", 0.2), tau0=1.0, family=PiecewiseLinear())
    >>> m.feasible, len(m.parameters)
    (True, 5)
    """

    name = "piecewise_linear"
    promised = (LINEAR, OVERLAP, SCALE)
    # A knot close to 0 with steep slopes would imitate a jump, one far out would do nothing.
    bounds = ((-4.0, -4.0, -4.0, -4.0, -1.2), (4.0, 4.0, 4.0, 4.0, 1.0))
    parameter_names = (
        "slope_far_left",
        "slope_left",
        "slope_right",
        "slope_far_right",
        "log_knot",
    )

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build it from four slopes and log(c/τ0)."""
        return ExplicitNetwork([centre(self._shape(parameters, problem), problem.scale)])

    def _shape(self, parameters: FloatArray, problem: Problem) -> Line:
        clip = problem.scale * _knot(parameters)
        return piecewise_linear((-clip, 0.0, clip), tuple(float(s) for s in parameters[:4]))

    def solve(self, problem: Problem) -> FloatArray:
        """Meet A1, A3 and T2, starting from the closed forms and from the fit of φ.

        Five parameters for three equations: the solution nearest to the start is taken.  The start
        with the smallest mismatch comes first, so that what already fits is changed least.
        """

        def reached(x: FloatArray) -> Four:
            return problem.achieved_by(three_knots_moments(x, problem.scale))

        def mismatch(x: FloatArray) -> float:
            return float(np.abs(problem.mismatch(reached(x))).max())

        a, b = _leaky_slopes(problem)
        starts = [_fitted_shape(problem), np.array([b, b, a, a, 0.0])]
        with contextlib.suppress(Infeasible):
            scale, clip = HardTanh().solve(problem)
            starts.append(np.array([0.0, scale, scale, 0.0, math.log(clip / problem.scale)]))
        starts.sort(key=mismatch)
        return fit_coefficients(problem, reached, starts, promised=self.promised, nearest=True)


def _moments(slopes: FloatArray, clip: float, tau: float) -> Moments:
    """Moments at scale τ of σ with four slopes between the knots −cτ, 0 and cτ, centred there.

    σ(τξ) = αξ + β on each piece, so that all of them are sums of E[ξ^k 1(piece)], k ≤ 2.
    """
    knots = np.array([-clip, 0.0, clip])
    density = np.exp(-0.5 * knots**2) / math.sqrt(2.0 * math.pi)
    share = np.diff(ndtr(knots), prepend=0.0, append=1.0)
    # ∫ξϕ = −ϕ and ∫ξ²ϕ = Φ − ξϕ, between neighbouring knots.
    first = -np.diff(density, prepend=0.0, append=0.0)
    second = share - np.diff(knots * density, prepend=0.0, append=0.0)
    alpha = tau * slopes
    beta = clip * np.array([alpha[0] - alpha[1], 0.0, 0.0, alpha[2] - alpha[3]])
    mean = float(alpha @ first + beta @ share)
    beta = beta - mean
    return Moments(
        scale=tau,
        mean=0.0,
        slope=float(slopes @ share),
        curvature=float(np.diff(slopes) @ density) / tau,
        square=float(alpha**2 @ second + 2.0 * (alpha * beta) @ first + beta**2 @ share),
        slope_square=float(slopes**2 @ share),
        square_curvature=2.0 / tau * float(slopes @ (alpha * second + beta * first)),
    )


def _knot(x: FloatArray) -> float:
    """Return the outer knot c/τ0 from the parameters (four slopes, log(c/τ0))."""
    # Beyond 20 τ0 a knot is never met, and within 0.0025 τ0 the three are as good as one.
    return math.exp(float(np.clip(x[4], -6.0, 3.0)))


def three_knots_moments(x: FloatArray, tau0: float) -> tuple[Moments]:
    """Moments of the layer of `PiecewiseLinear` with parameters x, at tau0."""
    return (_moments(x[:4], _knot(x), tau0),)


def _fitted_shape(problem: Problem) -> FloatArray:
    """Slopes of the best fit to φ(τ*ξ), with its knots at ±1.5 and the scale of the target."""
    xi = np.linspace(-4.0, 4.0, 401)
    # The root of the density: least squares squares it.
    weight = np.exp(-0.25 * xi**2)
    clip = 1.5
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
    layers = three_knots_moments(np.append(slopes / problem.scale, math.log(clip)), problem.scale)
    scale = math.sqrt(problem.target.scale2 / problem.achieved_by(layers).scale2)
    return np.append(scale * slopes / problem.scale, math.log(clip))

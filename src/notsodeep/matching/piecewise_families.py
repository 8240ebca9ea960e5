"""Families of piecewise-linear networks: leaky ReLU, hard tanh, and both in one."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, ndtr

from notsodeep.activations import Moments, centre, hard_tanh, leaky_relu, piecewise_linear
from notsodeep.checks import FloatArray
from notsodeep.matching.coefficient_fit import described, fit_coefficients
from notsodeep.matching.family import Family, MixtureTask, Solution
from notsodeep.models import ExplicitNetwork

_LINEAR, _OVERLAP, _SCALE = 0, 2, 3


def _build_leaky(x: FloatArray, tau0: float) -> ExplicitNetwork:
    layers = [leaky_relu(float(a), float(b)) for a, b in x.reshape(-1, 2)]
    return ExplicitNetwork(layers).centred(tau0)


def _solve_leaky(task: MixtureTask) -> Solution:
    """CK: a + b = 2√A1, (a − b)² = 4π(T2/τ0² − A1)/(π − 2).

    NTK: (a + b)² = 2A1, (a − b)² = 2π(T2/τ0² − A1)/(π − 1); a ≥ b.  Mixture paper, corollary 2,
    corrected.
    """
    linear, _, _, scale2 = task.target.four
    # T2 ≥ τ0² A1 by Parseval, with equality for a linear φ only.
    excess = max(0.0, scale2 / task.tau0**2 - linear)
    if task.kernel == "conjugate":
        total, difference = 2.0 * math.sqrt(linear), 4.0 * math.pi * excess / (math.pi - 2.0)
    else:
        total, difference = math.sqrt(2.0 * linear), 2.0 * math.pi * excess / (math.pi - 1.0)
    half = 0.5 * math.sqrt(difference)
    x = np.array([0.5 * total + half, 0.5 * total - half])
    return described(task, _build_leaky(x, task.tau0), x, (_LINEAR, _SCALE))


def _solve_two_leaky(task: MixtureTask) -> Solution:
    """Both layers leaky, as in the authors' experiments: 3 unknowns for 4 targets, least squares.

    Multiplying layer 1 and dividing layer 2 changes nothing, so layer 1 has slope 1 on the right.
    """

    def build(x: FloatArray, tau0: float) -> ExplicitNetwork:
        return _build_leaky(np.array([1.0, x[0], x[1], x[2]]), tau0)

    one = _solve_leaky(task).parameters
    assert one is not None
    starts = [np.array([s, *one]) for s in (0.8, 0.3, -0.3)]
    found = fit_coefficients(task, build, starts)
    parameters = None if found.parameters is None else np.append(1.0, found.parameters)
    return Solution(parameters, found.feasible, found.reason)


def _build_hard_tanh(x: FloatArray, tau0: float) -> ExplicitNetwork:
    # The centring is at zero already; it records the scale.
    return ExplicitNetwork([hard_tanh(float(x[0]), float(x[1]))]).centred(tau0)


def _solve_hard_tanh(task: MixtureTask) -> Solution:
    """Find the clip c from T2/(τ0² A1), then the scale a from A1.

    With σ = a·clip(x, −c, c) and the moments at a = 1: CK E[σ²]/(τ0²E[σ′]²) = T2/(τ0²A1), which
    has a solution iff 1 < T2/(τ0²A1) < π/2; NTK (E[σ²] + τ0²E[σ′²])/(2τ0²E[σ′]²) = T2/(τ0²A1),
    solvable iff it exceeds 1.
    """
    linear, _, _, scale2 = task.target.four
    tau0, tangent = task.tau0, task.kernel == "tangent"
    if not linear > 0.0:
        reason = "linear is 0 for this DEQ (φ is even), and a hard tanh has a positive one"
        return Solution(None, False, reason)
    wanted = scale2 / (tau0**2 * linear)
    limit = math.inf if tangent else math.pi / 2.0
    if not 1.0 < wanted < limit:
        bound = "above 1" if tangent else "between 1 and π/2 = 1.5708"
        reason = f"scale2/(τ0²·linear) = {wanted:.6g} must be {bound} for a hard tanh"
        return Solution(None, False, reason)

    def excess(log_clip: float) -> float:
        m = _moments(np.array([0.0, 1.0, 1.0, 0.0]), math.exp(log_clip), tau0)
        top = 0.5 * (m.square + tau0**2 * m.slope_square) if tangent else m.square
        return float(top / (tau0 * m.slope) ** 2) - wanted

    low, high = -3.0, 1.0
    while excess(low) < 0.0 and low > -33.0:
        low -= 2.0
    if excess(low) < 0.0:  # a clip below 1e-14 of the scale
        return Solution(None, False, "the target is that of a jump up to rounding")
    while excess(high) > 0.0 and high < 4.0:
        high += 0.25
    if excess(high) > 0.0:  # linear up to rounding
        return Solution(None, False, "the target is that of a linear network up to rounding")
    clip = tau0 * math.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))
    gain = math.sqrt(0.5 * linear if tangent else linear)
    x = np.array([gain / float(erf(clip / (tau0 * math.sqrt(2.0)))), clip])
    return described(task, _build_hard_tanh(x, tau0), x, (_LINEAR, _SCALE))


def _moments(slopes: FloatArray, clip: float, tau: float) -> Moments:
    """Moments at scale τ of σ with four slopes between the knots −cτ, 0 and cτ, centred there.

    σ(τξ) = αξ + β on each piece, so that all of them are sums of E[ξ^k 1(piece)], k ≤ 2.
    """
    knots = np.array([-clip, 0.0, clip])
    density = np.exp(-0.5 * knots**2) / math.sqrt(2.0 * math.pi)
    share = np.diff(ndtr(knots), prepend=0.0, append=1.0)
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
    return math.exp(float(np.clip(x[4], -6.0, 3.0)))


def _build_three_knots(x: FloatArray, tau0: float) -> ExplicitNetwork:
    """Slopes on (−∞, −c), (−c, 0), (0, c), (c, ∞), and log(c/τ0)."""
    clip = tau0 * _knot(x)
    shape = piecewise_linear((-clip, 0.0, clip), tuple(float(s) for s in x[:4]))
    return ExplicitNetwork([centre(shape, tau0)])


def _three_knots_moments(x: FloatArray, tau0: float) -> tuple[Moments]:
    return (_moments(x[:4], _knot(x), tau0),)


def _solve_three_knots(task: MixtureTask) -> Solution:
    """Meet A1, A3 and T2, starting from the closed forms and from the piecewise-linear fit of φ.

    Five parameters for three equations: the solution nearest to the start is taken.  The start
    with the smallest mismatch comes first, so that what already fits is changed least.
    """
    starts = [_fitted_shape(task)]
    leaky = _solve_leaky(task).parameters
    if leaky is not None:
        a, b = leaky
        starts.append(np.array([b, b, a, a, 0.0]))
    tanh = _solve_hard_tanh(task).parameters
    if tanh is not None:
        starts.append(np.array([0.0, tanh[0], tanh[0], 0.0, math.log(tanh[1] / task.tau0)]))

    def mismatch(x: FloatArray) -> float:
        reached = task.achieved_by(_three_knots_moments(x, task.tau0))
        return float(np.abs(task.mismatch(reached)).max())

    starts.sort(key=mismatch)
    promised = (_LINEAR, _OVERLAP, _SCALE)
    return fit_coefficients(
        task,
        _build_three_knots,
        starts,
        moments=_three_knots_moments,
        promised=promised,
        nearest=True,
    )


def _fitted_shape(task: MixtureTask) -> FloatArray:
    """Slopes of the best fit to φ(τ*ξ), with its knots at ±1.5 and the scale of the target."""
    xi = np.linspace(-4.0, 4.0, 401)
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
    tau = task.deq.tau_star
    values = task.deq.activation(tau * xi)
    slopes = np.linalg.lstsq(columns * weight[:, None], values * weight, rcond=None)[0][:4]
    layers = _three_knots_moments(np.append(slopes / task.tau0, math.log(clip)), task.tau0)
    scale = math.sqrt(task.target.scale2 / task.achieved_by(layers).scale2)
    return np.append(scale * slopes / task.tau0, math.log(clip))


LEAKY_RELU = Family("leaky_relu", ("positive_slope", "negative_slope"), _build_leaky, _solve_leaky)
TWO_LEAKY_RELU = Family(
    "leaky_relu",
    ("positive_slope_1", "negative_slope_1", "positive_slope_2", "negative_slope_2"),
    _build_leaky,
    _solve_two_leaky,
)
HARD_TANH = Family(
    "hard_tanh",
    ("scale", "clip"),
    _build_hard_tanh,
    _solve_hard_tanh,
    bounds=((-np.inf, 1e-3), (np.inf, 100.0)),
)
PIECEWISE_LINEAR = Family(
    "piecewise_linear",
    ("slope_far_left", "slope_left", "slope_right", "slope_far_right", "log_knot"),
    _build_three_knots,
    _solve_three_knots,
    # A knot close to 0 with steep slopes would imitate a jump, one far out would do nothing.
    bounds=((-4.0, -4.0, -4.0, -4.0, -1.2), (4.0, 4.0, 4.0, 4.0, 1.0)),
)

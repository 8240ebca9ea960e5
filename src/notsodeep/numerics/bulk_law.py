"""The limiting eigenvalue distribution of WWᵀ, for samples of several classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.fft import dct
from scipy.optimize import brentq, minimize_scalar

from notsodeep.checks import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.numerics.silverstein import EDGE, SilversteinEquation

Interval = tuple[float, float]

_MASS = 1e-6  # largest error of the total mass that is accepted
_NODES = (64, 128, 256, 512, 1024, 2048)
_GRID = 600


@dataclass(frozen=True, eq=False)
class BulkLaw:
    """A generalised Marchenko–Pastur law: a density on intervals, and perhaps a mass at zero.

    Attributes
    ----------
    equation : SilversteinEquation
        Gives the Stieltjes transform; the density is Im m(x)/π on the real axis.
    support : tuple of (float, float)
        Where the density is positive, ascending.
    zero_mass : float
        Mass at 0: the share of rows beyond the rank, max(0, 1 − rank/n).
    mass_error : float
        |total mass − 1|, as integrated.
    """

    equation: SilversteinEquation
    support: tuple[Interval, ...]
    zero_mass: float
    mass_error: float
    _cosines: tuple[FloatArray, ...] = field(repr=False)

    @classmethod
    def of(cls, equation: SilversteinEquation) -> BulkLaw:
        """Find the support and integrate the density.

        Raises
        ------
        NotConverged
            The equation was not solved, or the mass is not 1 to within 1e-6.
        """
        support = _support(equation)
        rank = float(equation.weights[(equation.eigenvalues > 0.0).any(axis=1)].sum())
        zero_mass = max(0.0, 1.0 - rank / float(equation.ratios.sum()))
        cosines = tuple(_cosine_series(equation, interval) for interval in support)
        total = zero_mass + sum(np.pi * series[0] for series in cosines)
        error = abs(total - 1.0)
        if not error <= _MASS:
            raise NotConverged(
                f"The limiting density integrates to {total:.8f} with its point mass, and must to "
                f"1 within {_MASS:g}: part of the spectrum was missed. Fewer distinct eigenvalues "
                "of the covariance (group close ones) make it easier."
            )
        return cls(equation, support, zero_mass, error, cosines)

    def density(self, x: FloatArray) -> FloatArray:
        """Return the density at x, without the point mass; zero outside the support."""
        points = np.asarray(x, dtype=np.float64)
        flat = points.ravel()
        result = np.zeros(flat.shape)
        inside = np.zeros(flat.shape, dtype=bool)
        for low, high in self.support:
            inside |= (flat > low) & (flat < high)
        result[inside] = self.equation.stieltjes(flat[inside]).imag / np.pi
        return np.maximum(result, 0.0).reshape(points.shape)

    def cdf(self, x: FloatArray) -> FloatArray:
        """Return the share of eigenvalues ≤ x."""
        points = np.asarray(x, dtype=np.float64)
        result = np.where(points >= 0.0, self.zero_mass, 0.0)
        for interval, series in zip(self.support, self._cosines, strict=True):
            angle = _angle(points, interval)
            order = np.arange(1, len(series))
            waves = np.sin(np.multiply.outer(angle, order)) @ (series[1:] / order)
            result = result + series[0] * angle + waves
        return np.asarray(np.clip(result, 0.0, 1.0))


def _is_wide(interval: Interval) -> bool:
    """Whether an interval spans so many decades that it is better seen in log x."""
    low, high = interval
    return 0.0 < 100.0 * low < high


def _angle(x: FloatArray, interval: Interval) -> FloatArray:
    """θ ∈ [0, π] with x, or log x, = middle − half·cos θ, x beyond the ends put there."""
    low, high = interval
    inside = np.clip(x, low, high)
    if _is_wide(interval):
        inside, low, high = np.log(inside), np.log(low), np.log(high)
    return np.asarray(np.arccos(np.clip((low + high - 2.0 * inside) / (high - low), -1.0, 1.0)))


def _cosine_series(equation: SilversteinEquation, interval: Interval) -> FloatArray:
    """Coefficients of density·dx/dθ in cos kθ.

    Square-root edges become smooth in θ, so the series converges fast, and its integral is known
    term by term.
    """
    low, high = interval
    for size in _NODES:
        angle = np.pi * (np.arange(size) + 0.5) / size
        share = np.sin(0.5 * angle) ** 2
        if _is_wide(interval):
            x = low * (high / low) ** share
            slope = 0.5 * np.log(high / low) * x * np.sin(angle)
        else:
            x = low + (high - low) * share
            slope = 0.5 * (high - low) * np.sin(angle)
        density = np.maximum(equation.stieltjes(x).imag, 0.0) / np.pi
        series = dct(density * slope, type=2) / size
        series[0] *= 0.5
        if np.abs(series[-size // 8 :]).max() <= 1e-10 * max(abs(series[0]), 1e-300):
            break
    return np.asarray(series)


def _support(equation: SilversteinEquation) -> tuple[Interval, ...]:
    if equation.eigenvalues.shape[1] == 1:
        return _support_of_one_class(equation)
    return _support_by_bisection(equation)


def _support_of_one_class(equation: SilversteinEquation) -> tuple[Interval, ...]:
    """Edges are the critical points of x(s) = −s + Σ w t s/(s + ct) (Silverstein and Choi, 1995).

    Outside the spectrum s = 1/m is real and h(s) = 1 − c Σ w t²/(s + ct)² > 0.  Between two poles
    −ct the function h is concave, so that there is one gap of the spectrum there, or none.
    """
    positive = equation.eigenvalues[:, 0] > 0.0
    t, w = equation.eigenvalues[positive, 0], equation.weights[positive]
    order = np.argsort(t)
    t, w = t[order], w[order]
    c = float(equation.ratios[0])

    def h(s: float) -> float:
        return float(1.0 - c * (w @ (t / (s + c * t)) ** 2))

    def x(s: float) -> float:
        return float(-s + w @ (t * s / (s + c * t)))

    # At distance √(cΣwt²) from all poles h ≥ 0; at half of √(cw)t from one it is below zero.
    far = float(np.sqrt(c * (w @ t**2)))
    near = 0.5 * np.sqrt(c * w) * t
    left = brentq(h, -c * t[0] + near[0], -c * t[0] + far * (1 + 1e-9), xtol=1e-15)
    right = brentq(h, -c * t[-1] - far * (1 + 1e-9), -c * t[-1] - near[-1], xtol=1e-15)
    edges = [x(left)]
    strength = (w * t**2) ** (1.0 / 3.0)
    for k, (below, above) in enumerate(pairwise(t)):
        # The two poles alone keep h below zero if they are too close for their weights.
        if c * (strength[k] + strength[k + 1]) ** 3 >= (c * (above - below)) ** 2:
            continue
        ends = (-c * above, -c * below)
        room = 1e-9 * (ends[1] - ends[0])
        top = minimize_scalar(
            lambda s: -h(s), bounds=(ends[0] + room, ends[1] - room), method="bounded",
            options={"xatol": 1e-12 * (ends[1] - ends[0])},
        )  # fmt: skip
        if -top.fun > 0.0:
            far_edge = brentq(h, ends[0] + min(near[k + 1], 0.49 * (top.x - ends[0])), top.x)
            near_edge = brentq(h, top.x, ends[1] - min(near[k], 0.49 * (ends[1] - top.x)))
            edges += [x(near_edge), x(far_edge)]
    edges.append(x(right))
    return tuple((float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=True))


def _support_by_bisection(equation: SilversteinEquation) -> tuple[Interval, ...]:
    """Edges are where the solution on the real axis turns complex."""

    def inside(x: FloatArray) -> FloatArray:
        return np.asarray((equation.solve(x).imag > EDGE).any(axis=1), dtype=np.float64)

    # Finer at both ends, where the edges are.
    grid = 1.01 * equation.reach * np.sin(np.linspace(0.0, np.pi / 2, _GRID + 1)[1:]) ** 2
    grid = np.concatenate([grid[0] * np.logspace(-2, -0.05, 20), grid])
    state = inside(grid)
    change = np.flatnonzero(np.diff(state))
    low, high, start = grid[change], grid[change + 1], state[change]
    # At distance ε from an edge δ moves by √ε, which must stay above its accuracy.
    for _ in range(24):
        middle = 0.5 * (low + high)
        same = inside(middle) == start
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    edges = [0.0, *low] if state[0] else list(low)
    return tuple((float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=True))

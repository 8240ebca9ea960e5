"""The limiting eigenvalue distribution of WWᵀ, for samples of several classes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.polynomial.chebyshev import chebint, chebval
from scipy.optimize import brentq, minimize_scalar

from notsodeep.arrays import FloatArray
from notsodeep.equivalents.silverstein import EDGE, SilversteinEquation
from notsodeep.errors import NotConverged
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series
from notsodeep.records import Record

Interval = tuple[float, float]

_MASS = 1e-6  # largest error of the total mass that is accepted
_ZERO = 1e-14  # edges found by search below this share of the largest are zero
_TERMS = (64, 128, 256)  # of the series of a piece, before it is cut in two
# The whole law has mass one, so that this is absolute.
_TAIL = 1e-8  # largest of the last terms of a series that is good enough
_CUTS, _PIECES = 20, 500  # largest numbers of cuts to one piece, and of pieces of an interval
_GRID = 600
_DECADES, _PER_DECADE = 3.0, 80  # of a spectrum beyond which, and how densely, all are searched


@dataclass(frozen=True, eq=False, repr=False)
class BulkLaw(Record):
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
    _pieces: tuple[_Piece, ...] = field(repr=False)

    @classmethod
    def of(cls, equation: SilversteinEquation) -> BulkLaw:
        """Find the support and integrate the density.

        Raises
        ------
        NotConverged
            The equation was not solved, or the mass is not 1 to within 1e-6.
        """
        support = _support(equation)
        zero_mass = max(0.0, 1.0 - equation.rank() / float(equation.ratios.sum()))
        pieces = tuple(piece for interval in support for piece in _cut(equation, interval))
        total = zero_mass + sum(piece.mass for piece in pieces)
        error = abs(total - 1.0)
        # The pieces are integrated whether or not their series is resolved; this is the only judge
        # of them, and also catches an interval of the support that was not found.
        if not error <= _MASS:
            raise NotConverged(
                f"The limiting density integrates to {total:.8f} with its point mass, and must to "
                f"1 within {_MASS:g}: part of the spectrum was missed. Fewer distinct eigenvalues "
                "of the covariance (group close ones) make it easier."
            )
        return cls(equation, support, zero_mass, error, pieces)

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
        for piece in self._pieces:
            result = result + piece.mass_below(points)
        return np.asarray(np.clip(result, 0.0, 1.0))


@dataclass(frozen=True, eq=False, repr=False)
class _Piece(Record):
    """Part of the support, on which density·dx/dθ is a short Chebyshev series in θ ∈ [0, π].

    sin²(θ/2) is the share of the way from low to high, in x or, with a finite grain s, in
    log(x − low + s): the square roots at the edges of the support become smooth in θ.
    """

    low: float
    high: float
    grain: float
    series: FloatArray

    @functools.cached_property
    def _integral(self) -> FloatArray:
        return np.asarray(0.5 * np.pi * chebint(self.series, lbnd=-1), dtype=np.float64)

    @property
    def mass(self) -> float:
        # T_k(1) = 1 for every k: the value of the integral at the upper end.
        return float(self._integral.sum())

    @property
    def is_resolved(self) -> bool:
        # Several terms: every other one vanishes for a density that is symmetric in θ.
        return float(np.abs(self.series[-len(self.series) // 8 :]).max()) <= _TAIL

    def mass_below(self, x: FloatArray) -> FloatArray:
        """Integrate the density up to x."""
        inside = np.clip(x, self.low, self.high) - self.low
        width = self.high - self.low
        if np.isinf(self.grain):
            share = inside / width
        else:
            share = np.log1p(inside / self.grain) / np.log1p(width / self.grain)
        angle = 2.0 * np.arcsin(np.sqrt(np.clip(share, 0.0, 1.0)))
        return np.asarray(chebval(2.0 * angle / np.pi - 1.0, self._integral))


def _cut(equation: SilversteinEquation, interval: Interval) -> list[_Piece]:
    """Cut an interval of the support until a short series will do on every piece."""
    todo = [(interval, 0)]
    done: list[_Piece] = []
    while todo:
        (low, high), cuts = todo.pop()
        grain = _grain(equation, low, high)
        for terms in _TERMS:
            piece = _Piece(low, high, grain, _series(equation, low, high, grain, terms))
            if piece.is_resolved:
                break
        # In the coordinate of the piece, so that a cut of four decades makes two of two.
        middle = float(_positions(low, high, grain, np.array(0.5)))
        exhausted = cuts == _CUTS or len(done) + len(todo) >= _PIECES
        if piece.is_resolved or exhausted or not low < middle < high:
            done.append(piece)
        else:
            todo += [((low, middle), cuts + 1), ((middle, high), cuts + 1)]
    return done


def _grain(equation: SilversteinEquation, low: float, high: float) -> float:
    """Return the size of the details at the lower end; infinite if low and high are of one size.

    One that reaches zero has details of the size of the harmonic mean of the eigenvalues.
    """
    if low == 0.0:
        values = equation.eigenvalues.max(axis=1)
        low = 1.0 / float(equation.weights @ (1.0 / values)) if (values > 0.0).all() else high
    # Up to two decades a series in x, too, has less than the 64 terms that are tried first (about
    # 50 at a ratio of 100, against 20 to 30).
    return low if 100.0 * low < high else np.inf


def _positions(low: float, high: float, grain: float, share: FloatArray) -> FloatArray:
    """Return x at a share of the way from low to high."""
    if np.isinf(grain):
        return np.asarray(low + (high - low) * share)
    return np.asarray(low + grain * np.expm1(np.log1p((high - low) / grain) * share))


def _series(
    equation: SilversteinEquation, low: float, high: float, grain: float, terms: int
) -> FloatArray:
    angle = 0.5 * np.pi * (1.0 + chebyshev_points(terms))
    x = _positions(low, high, grain, np.sin(0.5 * angle) ** 2)
    slope = high - low if np.isinf(grain) else np.log1p((high - low) / grain) * (x - low + grain)
    # dx/dθ = (dx/d share)·½ sin θ.  The density behaves as sin θ does at an edge, or as 1/sin θ
    # where it diverges at x = 0 (n = p): the product is smooth in both cases.
    density = np.maximum(equation.stieltjes(x).imag, 0.0) / np.pi
    return chebyshev_series(density * slope * 0.5 * np.sin(angle))


def _support(equation: SilversteinEquation) -> tuple[Interval, ...]:
    if equation.eigenvalues.shape[1] == 1:
        return _support_of_one_class(equation)
    return _support_by_search(equation)


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

    # h = −dx/ds, so that x falls as s grows through each interval outside the spectrum.
    def h(s: float) -> float:
        return float(1.0 - c * (w @ (t / (s + c * t)) ** 2))

    def x(s: float) -> float:
        return float(-s + w @ (t * s / (s + c * t)))

    # At distance √(cΣwt²) from all poles h ≥ 0; at half of √(cw)t from one it is below zero.
    far = float(np.sqrt(c * (w @ t**2)))
    near = 0.5 * np.sqrt(c * w) * t
    # Right of all poles is where x lies below the spectrum, left of all where it lies above.  The
    # factor 1 + 1e-9 makes the sign at the far end certain when a single pole makes h = 0 there.
    left = brentq(h, -c * t[0] + near[0], -c * t[0] + far * (1 + 1e-9), xtol=1e-15)
    right = brentq(h, -c * t[-1] - far * (1 + 1e-9), -c * t[-1] - near[-1], xtol=1e-15)
    edges = [x(left)]
    strength = (w * t**2) ** (1.0 / 3.0)
    for k, (below, above) in enumerate(pairwise(t)):
        # The two poles alone keep h below zero if they are too close for their weights.
        # The least of A/a² + B/b² over a + b = D is (A^⅓ + B^⅓)³/D².
        if c * (strength[k] + strength[k + 1]) ** 3 >= (c * (above - below)) ** 2:
            continue
        ends = (-c * above, -c * below)
        # Off the poles themselves, where h is −∞.
        room = 1e-9 * (ends[1] - ends[0])
        top = minimize_scalar(
            lambda s: -h(s), bounds=(ends[0] + room, ends[1] - room), method="bounded",
            options={"xatol": 1e-12 * (ends[1] - ends[0])},
        )  # fmt: skip
        if -top.fun > 0.0:
            # Both starts are within `near` of a pole, where h < 0, and on its side of the top.
            far_edge = brentq(h, ends[0] + min(near[k + 1], 0.49 * (top.x - ends[0])), top.x)
            near_edge = brentq(h, top.x, ends[1] - min(near[k], 0.49 * (ends[1] - top.x)))
            # t ascends, so that gaps come in ascending order of x; in each the larger s is the
            # smaller x.
            edges += [x(near_edge), x(far_edge)]
    edges.append(x(right))
    # x has a double zero at s = 0 there: an s of the order of 1e-15 leaves x of the order of 1e-30.
    if edges[0] < 1e-20 * edges[-1]:  # n = p: the spectrum reaches zero
        edges[0] = 0.0
    return tuple((float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=True))


def _support_by_search(equation: SilversteinEquation) -> tuple[Interval, ...]:
    """Edges are where the solution on the real axis turns complex."""

    def inside(x: FloatArray) -> FloatArray:
        delta = equation.solve(x.reshape(-1))
        inner = delta.imag > EDGE * (1.0 + np.abs(delta))
        return np.asarray(inner.any(axis=1), dtype=np.float64).reshape(x.shape)

    # Finer at both ends, where the edges are; and at every scale, if there are many.
    # The last point is beyond the spectrum, so that the number of edges that follow is even, or odd
    # if the first point is inside.
    grid = 1.01 * equation.reach * np.sin(np.linspace(0.0, np.pi / 2, _GRID + 1)[1:]) ** 2
    smallest = float(equation.eigenvalues[equation.eigenvalues > 0.0].min())
    decades = np.log10(equation.reach / smallest)
    if decades > _DECADES:
        number = round(_PER_DECADE * (decades + 3.0))
        grid = np.union1d(grid, np.geomspace(1e-3 * smallest, equation.reach, number))
    state = inside(grid)
    # When n is near p the lowest edge is near zero, or there.
    while grid[0] > _ZERO * equation.reach and (state[0] or grid[0] > 1e-7 * equation.reach):
        below = grid[0] * np.logspace(-2.0, -0.1, 20)
        grid, state = np.concatenate([below, grid]), np.concatenate([inside(below), state])
    change = np.flatnonzero(np.diff(state))
    low, high, start = grid[change], grid[change + 1], state[change]
    # At distance ε from an edge δ moves by √ε, which must stay above its accuracy.  Sixteen parts
    # at a time, because solving for many points costs little more than for one.
    # Six rounds leave 16⁻⁶ = 6e-8 of a step of the grid.
    for _ in range(6):
        part = (high - low) / 16
        same = inside(low[:, None] + part[:, None] * np.arange(1, 16)) == start[:, None]
        ahead = np.where(same.all(axis=1), 15, np.argmin(same, axis=1))
        low, high = low + ahead * part, low + (ahead + 1) * part
    edges = [0.0, *low] if state[0] else list(low)
    return tuple((float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=True))

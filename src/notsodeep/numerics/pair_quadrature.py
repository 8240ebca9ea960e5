"""E[f(u)f(v)] and E(f(u) − g(v))² for a Gaussian pair, by quadrature with an error estimate.

With u = τ₁ξ and v = τ₂(ρξ + √(1−ρ²) η), the inner integral over η is split where v meets a kink of
f.  As a function of ξ it is smooth, but changes within √(1−ρ²) of the places where ρτ₂ξ meets one,
so the outer panels shrink geometrically towards those places, and towards the kinks of f(τ₁ξ).

This is the slow, certain route: about 10⁵ evaluations for a pair.  It is meant for the few pairs
that neither a closed form nor a series can do, nor, without kinks, the rule of
`notsodeep.numerics.smooth_pairs`.  The error is estimated on every panel from the decay of Legendre
coefficients, as in `notsodeep.numerics.quadrature`; where the sum is too large, the panels are
halved, and a pair that stays unresolved or asks for too many evaluations is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.errors import QuadratureError
from notsodeep.numerics.quadrature import gauss_legendre, gauss_legendre_errors
from notsodeep.numerics.smooth_pairs import smooth_pair

VectorFunction = Callable[[FloatArray], FloatArray]
Combination = Callable[[FloatArray, FloatArray], FloatArray]

TOLERANCE = 1e-12
"""Largest estimated error of an expectation, relative to √(E f(u)² E f(v)²)."""

_NODES = 12  # the estimate is made of the last of so many coefficients: ten need a refinement
# exp(−9²/2) = 2.6e-18: what is beyond does not count in double precision, unless f grows so fast
# that its second moment has been rejected before.
_REACH = 9.0
_UNIT = np.arange(-_REACH, _REACH + 1.0, 1.5)  # panels that resolve the Gaussian density
_REFINEMENTS = 7
_BLOCK = 1 << 20  # function values at a time
_MOST = 1 << 27  # function values for one pair: some seconds
_NO_DISTANCE = 1e-30  # the square of a rounding error


def pair_quadrature(
    function: VectorFunction,
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    root: FloatArray,
    kinks: tuple[float, ...] = (),
    ends: tuple[float, ...] = (),
    *,
    name: str = "the function",
) -> FloatArray:
    """Integrate f(u)f(v) for pairs with standard deviations scale1, scale2 and correlation ρ.

    Parameters
    ----------
    function : callable
        Maps x to an array of shape (channels, *x.shape); each channel is paired with itself.
    scale1, scale2, rho : ndarray of shape (n_pairs,)
    root : ndarray of shape (n_pairs,)
        √(1 − ρ²); given apart because it is small where it matters.
    kinks : tuple of float
    ends : tuple of float
        Further points at which panels must end, because f varies fast there.
    name : str
        What messages call the function.

    Returns
    -------
    ndarray of shape (channels, n_pairs)
        With an estimated error of at most `TOLERANCE`.

    Raises
    ------
    QuadratureError
        Some pair cannot be done to the tolerance, or not with a bounded number of evaluations.
    """
    columns = []
    for pair in map(_Pair, scale1, scale2, rho, root):
        value = None
        # At ρ = ±1 the inner density of that rule has no width.
        if not kinks and not ends and pair.root > 0.0:
            value = smooth_pair(function, *pair, TOLERANCE)
        if value is None:
            layout = _Layout(pair, kinks, ends, name)
            value = _integrate(function, function, np.multiply, layout)
        columns.append(value)
    return np.stack(columns, axis=1)


def pair_distances(
    functions: Iterable[tuple[VectorFunction, VectorFunction]],
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    root: FloatArray,
    kinks: tuple[float, ...] = (),
    ends: tuple[float, ...] = (),
    *,
    name: str = "the function",
) -> FloatArray:
    """Integrate (f(u) − g(v))², with functions f, g of size one for each pair; shape (n_pairs,).

    Without the cancellation of E f² + E g² − 2E fg: the root of the result is right to about
    1e-13, however small it is.  Parameters otherwise as for `pair_quadrature`.
    """
    results = []
    for (first, second), *pair in zip(functions, scale1, scale2, rho, root, strict=True):
        layout = _Layout(_Pair(*pair), kinks, ends, name)
        results.append(float(_integrate(first, second, _square_distance, layout)[0]))
    return np.array(results)


def _square_distance(first: FloatArray, second: FloatArray) -> FloatArray:
    return np.asarray((first - second) ** 2)


class _Pair(NamedTuple):
    """One pair (u, v)."""

    scale1: float
    scale2: float
    rho: float
    root: float

    def __str__(self) -> str:
        return (
            f"standard deviations {self.scale1:.6g} and {self.scale2:.6g} and correlation "
            f"{self.rho:.12g}"
        )


class _Layout:
    """Where the panels for one pair end, before any refinement.

    Attributes
    ----------
    pair : _Pair
    grid : ndarray
        Points x: kinks, what is graded towards them and 0, and further ends.
    outer_ends : ndarray
        In ξ.
    description : str
        For messages.
    """

    def __init__(
        self, pair: _Pair, kinks: tuple[float, ...], ends: tuple[float, ...], name: str
    ) -> None:
        self.pair = pair
        reach = _REACH * max(pair.scale1, pair.scale2)
        centres = np.array(sorted({0.0, *(k for k in kinks if abs(k) < reach)}))
        near = [e for e in ends if abs(e) < reach]
        # Activations vary on lengths of about one around 0 and their kinks, and more slowly away.
        self.grid = np.unique(np.concatenate([_graded(centres, 0.5, reach), near]))
        sharp = centres if kinks else centres[:0]
        self.outer_ends = _outer_ends(pair, self.grid, sharp, smooth=not kinks and not near)
        self.description = f"The expectation of {name} ({len(kinks)} kinks) over a pair with {pair}"


def _integrate(
    first: VectorFunction, second: VectorFunction, combine: Combination, layout: _Layout
) -> FloatArray:
    """E[combine(first(u), second(v))] of one pair, refined until its error is small.

    Few outer panels need it, those where φ bends: they alone are halved, or get more inner ones.
    """
    ends = layout.outer_ends
    panels = _Panels.of(first, second, combine, layout, (ends[:-1], ends[1:]), 0)
    # Cost of a round: (outer nodes) × (inner nodes) of the panels chosen, 12 each per panel.
    for _ in range(_REFINEMENTS):
        value = panels.value.sum(axis=-1)
        if combine is np.multiply:
            size = np.sqrt(panels.square1.sum(axis=-1) * panels.square2.sum(axis=-1))
        else:
            # What counts is the root of a distance, to an absolute error: functions are of size 1.
            size = np.sqrt(np.maximum(value, _NO_DISTANCE))
        # At most half of the tolerance for each direction.
        limit = 0.5 * TOLERANCE * size
        errors = panels.outer_error.sum(axis=-1), panels.inner_error.sum(axis=-1)
        if not np.isfinite(value).all():
            break
        if all((error <= limit).all() for error in errors):
            return np.asarray(value)
        panels = panels.refined(first, second, combine, layout, limit)
    with np.errstate(invalid="ignore", divide="ignore"):
        worst = float(np.max((errors[0] + errors[1]) / size))
    raise QuadratureError(
        f"{layout.description} could not be computed: the estimated error is {worst:.1e} "
        f"of its size, and {TOLERANCE:.0e} is required. The function varies too fast at "
        "this scale, or has an undeclared kink. Use inputs of smaller norm."
    )


def _graded(centres: FloatArray, finest: float, coarsest: float) -> FloatArray:
    """Centres ± finest, 2·finest, 4·finest, …: around each as far as it is the nearest centre."""
    count = max(1, math.ceil(math.log2(max(coarsest / finest, 1.0))) + 1)
    steps = np.ldexp(finest, np.arange(count))
    edges = np.concatenate([[-math.inf], 0.5 * (centres[1:] + centres[:-1]), [math.inf]])
    points = centres[:, None] + np.concatenate([-steps, steps])
    own = (points > edges[:-1, None]) & (points < edges[1:, None])
    return np.unique(np.concatenate([centres, points[own]]))


def _outer_ends(pair: _Pair, grid: FloatArray, kinks: FloatArray, *, smooth: bool) -> FloatArray:
    """Cut ξ where u or E[v | ξ] meet the grid, and ever finer towards the kinks."""
    parts = [_UNIT, grid / pair.scale1]
    sharp = [kinks / pair.scale1]
    slope = pair.rho * pair.scale2
    # The grid of a smooth function is only graded: one of two nearly equal ones will do.
    # Below 1e-300 the quotients overflow, and E[v | ξ] is the same for all ξ.
    if abs(slope) * _REACH > 1e-300 and not (smooth and 0.7 < abs(slope) / pair.scale1 < 1.4):
        parts.append(grid / slope)
        sharp.append(kinks / slope)
    # Only a kink makes the inner integral change within √(1−ρ²); at ρ = ±1 it is a kink itself.
    # From 0.5 on the unit panels resolve that change; 1e-13 is near the rounding of ξ itself.
    if kinks.size and 0.0 < pair.root < 0.5:
        for places in sharp:
            near = np.unique(places[np.abs(places) < _REACH])
            if near.size:
                parts.append(_graded(near, max(pair.root, 1e-13), 1.0))
    ends = np.concatenate(parts)
    return np.unique(np.clip(ends, -_REACH, _REACH))


class _Panels(NamedTuple):
    """Outer panels, what they contribute to an integral, and the parts of its estimated error.

    Attributes
    ----------
    left, right : ndarray of shape (n_panels,)
        In ξ.
    level : ndarray of shape (n_panels,)
        How many times the inner panels are halved.
    value, outer_error, inner_error : ndarray of shape (channels, n_panels)
    square1, square2 : ndarray of shape (channels, n_panels)
        Parts of E f(u)² and E f(v)², which errors are compared with.
    """

    left: FloatArray
    right: FloatArray
    level: FloatArray
    value: FloatArray
    outer_error: FloatArray
    inner_error: FloatArray
    square1: FloatArray
    square2: FloatArray

    @classmethod
    def of(
        cls,
        first: VectorFunction,
        second: VectorFunction,
        combine: Combination,
        layout: _Layout,
        ends: tuple[FloatArray, FloatArray],
        level: int,
    ) -> _Panels:
        """Integrate over panels with these left and right ends."""
        pair = layout.pair
        xi, weights = (part.reshape(-1) for part in _rule(np.stack(ends, axis=-1)))
        mean = pair.rho * pair.scale2 * xi
        spread = pair.scale2 * pair.root
        with np.errstate(over="ignore", invalid="ignore"):
            of_u = first(pair.scale1 * xi)
            conditional, error = np.zeros((2, len(of_u), xi.size))
            if spread == 0.0:
                conditional = combine(of_u, second(mean))
            else:
                inner = _InnerEnds(layout.grid, spread, level)
                low, high = inner.windows(mean)
                values = inner.panels(low, high) * _NODES
                if values * xi.size > _MOST:
                    raise QuadratureError(
                        f"{layout.description} would take {values * xi.size:.1e} evaluations, and "
                        f"at most {_MOST:.1e} are made. Use fewer kinks, or inputs of smaller norm."
                    )
                step = max(1, _BLOCK // values)
                for start in range(0, xi.size, step):
                    part = slice(start, start + step)
                    eta, inner_weights = _rule(inner.around(mean[part], low[part], high[part]))
                    of_v = second(mean[part, None] + spread * eta)
                    weighted = combine(of_u[:, part, None], of_v) * inner_weights
                    conditional[:, part] = weighted.sum(axis=-1)
                    error[:, part] = gauss_legendre_errors(weighted, _NODES).sum(axis=-1)
            integrand = conditional * weights
            # ξ stands for v/τ₂ here: v alone has the same law, so that E f(v)² needs no inner
            # integral.
            squares = (of_u**2 * weights, second(pair.scale2 * xi) ** 2 * weights)
            return cls(
                *ends,
                np.full(len(ends[0]), float(level)),
                _by_panel(integrand),
                gauss_legendre_errors(integrand, _NODES),
                _by_panel(error * weights),
                *(_by_panel(square) for square in squares),
            )

    def refined(
        self,
        first: VectorFunction,
        second: VectorFunction,
        combine: Combination,
        layout: _Layout,
        limit: FloatArray,
    ) -> _Panels:
        """Integrate again where the error is more than a panel's share of the limit."""
        # A panel below its share of the limit cannot matter; all others are done again, and only in
        # the direction whose sum is too large.
        share = limit[:, None] / self.left.size
        outside, inside = (
            (errors > share).any(axis=0) & bool((errors.sum(axis=-1) > limit).any())
            for errors in (self.outer_error, self.inner_error)
        )
        again = outside | inside
        parts = [_Panels(*(column[..., ~again] for column in self))]
        for level in np.unique(self.level[again]):
            for halve in (False, True):
                for deeper in (False, True):
                    chosen = again & (self.level == level) & (outside == halve) & (inside == deeper)
                    if not chosen.any():
                        continue
                    left, right = self.left[chosen], self.right[chosen]
                    if halve:
                        middle = 0.5 * (left + right)
                        left, right = np.append(left, middle), np.append(middle, right)
                    place = (left, right)
                    parts.append(
                        _Panels.of(first, second, combine, layout, place, int(level) + deeper)
                    )
        return _Panels(*(np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True)))


def _by_panel(nodes: FloatArray) -> FloatArray:
    """Sum over the nodes of each panel."""
    return np.asarray(nodes.reshape(len(nodes), -1, _NODES).sum(axis=-1))


class _InnerEnds:
    """Ends of panels in η for many values of E[v | ξ]: unit steps, and where v meets the grid."""

    def __init__(self, grid: FloatArray, spread: float, refinement: int) -> None:
        self._grid, self._spread, self._refinement = grid, spread, refinement

    def windows(self, mean: FloatArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the part of the grid that v can reach from each mean."""
        width = _REACH * self._spread
        return np.searchsorted(self._grid, mean - width), np.searchsorted(self._grid, mean + width)

    def panels(self, low: NDArray[np.intp], high: NDArray[np.intp]) -> int:
        """Return the largest number of panels."""
        return (_UNIT.size - 1 + int((high - low).max())) << self._refinement

    def around(self, mean: FloatArray, low: NDArray[np.intp], high: NDArray[np.intp]) -> FloatArray:
        """Return the ends for some of the means, shape (n, ends); short rows repeat the last."""
        most = int((high - low).max())
        if most == 0:
            return _halved(_UNIT[None, :], self._refinement)
        index = low[:, None] + np.arange(most)
        met = self._grid[np.minimum(index, self._grid.size - 1)]
        # Rows have different numbers of splits; panels of no width at the end keep the array
        # rectangular and weigh nothing.
        split = np.where(index < high[:, None], (met - mean[:, None]) / self._spread, _REACH)
        unit = np.broadcast_to(_UNIT, (mean.size, _UNIT.size))
        ends = np.concatenate([unit, np.clip(split, -_REACH, _REACH)], axis=1)
        return _halved(np.sort(ends, axis=1), self._refinement)


def _halved(ends: FloatArray, times: int) -> FloatArray:
    """Cut every panel into 2**times equal ones; ends run along the last axis."""
    for _ in range(times):
        finer = np.empty((*ends.shape[:-1], 2 * ends.shape[-1] - 1))
        finer[..., ::2] = ends
        finer[..., 1::2] = 0.5 * (ends[..., 1:] + ends[..., :-1])
        ends = finer
    return ends


def _rule(ends: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gauss–Legendre nodes on the panels, and weights that contain the Gaussian density."""
    x, w = gauss_legendre(_NODES)
    half = 0.5 * np.diff(ends, axis=-1)
    middle = 0.5 * (ends[..., 1:] + ends[..., :-1])
    nodes = (middle[..., None] + half[..., None] * x).reshape(*ends.shape[:-1], -1)
    weights = (half[..., None] * w).reshape(nodes.shape)
    return nodes, weights * np.exp(-0.5 * nodes**2) / math.sqrt(2.0 * math.pi)

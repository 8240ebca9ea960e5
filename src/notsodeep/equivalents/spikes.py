"""Isolated eigenvalues of an equivalent, outside the bulk.

With z = (λ − γ)/a and (WWᵀ − z)⁻¹ known in the limit, λ is an eigenvalue of
a·XXᵀ + V C Vᵀ + γI outside the bulk iff I + M R(z) is singular, where
a·XXᵀ + V C Vᵀ = a(WWᵀ + U M Uᵀ), U = [J, W Bᵀ, ψ], B = means/√p (on the sphere U is the vector of
ones alone), and R = lim Uᵀ(WWᵀ − z)⁻¹U is block diagonal: W is odd, the others even.
(Benaych-Georges and Nadakuditi, arXiv 1103.2221, in the form for classes.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.polynomial.chebyshev import chebval
from numpy.typing import NDArray
from scipy import linalg
from scipy.optimize import brentq

from notsodeep.arrays import FloatArray
from notsodeep.equivalents.bulk_law import BulkLaw
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.population import Population
from notsodeep.equivalents.structured_matrix import StructuredMatrix
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series
from notsodeep.records import Record

ComplexArray = NDArray[np.complex128]

# u = 1, the edge, is 1.22 in the variable of the series: its terms fall as 1.92⁻ᵏ, 64 of them to
# 1e-18.
_NEAREST = 0.9  # u up to which there is a series
_TERMS = 64
_RESOLVED = 1e-13


class OutsideBulk:
    """δ(z) of the Silverstein equation, for one z at a time and at little cost.

    With z = c + h(u + 1/u)/2, c and h the middle and half the length of the bulk, all z right of
    it are 0 < u < 1, and δ is analytic in |u| < 1 and real: a Chebyshev series on 0 < u ≤ 0.9.
    Elsewhere, or if the series does not reach rounding, the equation is solved; solutions are kept,
    since the search for eigenvalues begins at the same points for every model.
    """

    def __init__(self, bulk: BulkLaw) -> None:
        self._equation = bulk.equation
        low, high = bulk.support[0][0], bulk.support[-1][1]
        self._middle, self._half = 0.5 * (low + high), 0.5 * (high - low)
        self._series = self._fitted()
        self._solved: dict[float, ComplexArray] = {}

    def __call__(self, z: float) -> ComplexArray:
        """Return δ at z, shape (K,)."""
        if self._series is not None and z > self._middle + self._half:
            distance = (z - self._middle) / self._half
            u = 1.0 / (distance + np.sqrt(distance**2 - 1.0))
            if u <= _NEAREST:
                return np.asarray(chebval(2.0 * u / _NEAREST - 1.0, self._series), np.complex128)
        if z not in self._solved:
            self._solved[z] = self._equation.solve(np.array([z]))[0]
        return self._solved[z]

    def _fitted(self) -> FloatArray | None:
        """Coefficients of the series, shape (terms, K); None if they do not die out."""
        u = 0.5 * _NEAREST * (1.0 + chebyshev_points(_TERMS))
        z = self._middle + 0.5 * self._half * (u + 1.0 / u)
        series = chebyshev_series(self._equation.solve(z).real)
        tail = np.abs(series[-_TERMS // 8 :]).max(axis=0)
        resolved = (tail <= _RESOLVED * np.abs(series).max(axis=0)).all()
        return series if resolved else None


@dataclass(frozen=True, repr=False)
class Spike(Record):
    """A direction in which the kernel has more than noise.

    Attributes
    ----------
    value : float
        The isolated eigenvalue; NaN if the direction stays inside the bulk.
    strength : float
        Strength over the detectability threshold at the nearest edge of the bulk: above 1 the
        eigenvalue leaves the bulk.  NaN for eigenvalues in a gap, where there are two edges.
    rank : int or None
        How many eigenvalues of the kernel lie above it; None inside the bulk.
    """

    value: float
    strength: float
    rank: int | None


def isolated_eigenvalues(
    eq: Equivalent, population: Population, bulk: BulkLaw, outside: OutsideBulk
) -> tuple[tuple[Spike, ...], tuple[Spike, ...]]:
    """Return the eigenvalues outside the bulk, largest first, and the directions that stay in it.

    Right of the bulk −R is positive definite and decreases with z, so that the eigenvalues of
    (−R)^{1/2} M (−R)^{1/2} decrease too, and each that starts above 1 at the edge crosses 1 once.
    In a gap of the bulk, or below it, those of M⁻¹ + R(z) increase, and each that changes its sign
    has one root.
    """
    determinant = _Determinant(eq, population, outside)
    scale, shift, n = eq.coefficients.linear, eq.coefficients.diagonal, eq.shape[0]
    start = population.beyond(bulk.support[-1][1])
    found, missed = [], []
    for index, strength in enumerate(determinant.strengths(start)):
        # Every one of the eigenvalues, in descending order, decreases with z, so that the same
        # index follows one of them from the edge outwards; at infinity R is 0.
        if strength > 1.0:
            value = _crossing(determinant, index, start)
            found.append(Spike(scale * value + shift, float(strength), index))
        # The others are zero or negative: J and W Bᵀ make pairs of either sign.
        elif strength > 1e-9:
            missed.append(Spike(math.nan, float(strength), None))
    # Gaps of an estimated spectrum are those between the atoms of the estimate.  Below the bulk is
    # where low rank lifts eigenvalues from the point mass.
    ends = [0.0, *chain.from_iterable(bulk.support)] if population.is_exact else []
    for low, high in zip(ends[0:-1:2], ends[1::2], strict=True):
        if high > low:
            above = round(n * (1.0 - float(bulk.cdf(np.array(0.5 * (low + high))))))
            for root, more in _roots_in_gap(determinant, low, high):
                found.append(Spike(scale * root + shift, math.nan, above + more))
    found.sort(key=lambda spike: -spike.value)
    return tuple(found), tuple(missed)


def point_mass_spikes(eq: Equivalent) -> tuple[Spike, ...]:
    """Return the eigenvalues of V C Vᵀ + γI other than γ, for a kernel without a linear part."""
    own = StructuredMatrix(eq.X, 0.0, eq.factors, eq.core, 0.0).eigvalsh()[::-1]
    # V C Vᵀ has the rank of C: all other eigenvalues are zero up to rounding.
    isolated = np.flatnonzero(np.abs(own) > 1e-12 * np.abs(own).max())
    return tuple(Spike(float(own[rank]) + eq.shift, math.inf, int(rank)) for rank in isolated)


class _Determinant:
    """M and R(z) of the module's docstring."""

    def __init__(self, eq: Equivalent, population: Population, outside: OutsideBulk) -> None:
        self._population = population
        self._outside = outside
        self._middle, self._energies = _middle(eq, population)
        values, axes = np.linalg.eigh(self._middle)
        # M may be singular (coefficients that vanish, absent classes), and `branches` needs M⁻¹.
        kept = np.abs(values) > 1e-13 * np.abs(values).max(initial=0.0)
        self._values, self._axes = values[kept], axes[:, kept]

    def block(self, z: float) -> FloatArray:
        """R at real z outside the bulk, shape (r, r)."""
        place, delta = np.array([z]), self._outside(z)[None]
        classes = self._population.class_form(place, delta)[0].real
        K = len(classes)
        size = len(self._middle)
        result = np.zeros((size, size))
        result[np.arange(K), np.arange(K)] = classes
        if self._energies.size:
            # B D(D − z)⁻¹Bᵀ for the means, an average of the resolvent for ψ:
            # docs/theory/mixture.md, "Isolated eigenvalues".
            result[K : 2 * K, K : 2 * K] = self._population.mean_form(place, delta)[0].real
            resolvent = self._population.equation.resolvent(place, delta)[0].real
            result[-1, -1] = resolvent[self._population.column] @ self._energies
        return result

    def strengths(self, z: float) -> FloatArray:
        """Eigenvalues of (−R)^{1/2} M (−R)^{1/2} right of the bulk, descending."""
        values, vectors = np.linalg.eigh(-self.block(z))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(linalg.eigvalsh(root.T @ self._middle @ root)[::-1])

    def branches(self, z: float) -> FloatArray:
        """Eigenvalues of M⁻¹ + R(z) on the range of M, ascending."""
        form = self._axes.T @ self.block(z) @ self._axes
        return np.asarray(linalg.eigvalsh(np.diag(1.0 / self._values) + form))

    @property
    def negative(self) -> int:
        """The number of negative eigenvalues of M."""
        return int((self._values < 0.0).sum())


def _middle(eq: Equivalent, population: Population) -> tuple[FloatArray, FloatArray]:
    """Return M, with J's columns scaled to unit length, and the share of each class in ‖ψ‖²."""
    lengths = np.diag(np.sqrt(eq.class_counts.astype(np.float64)))
    core = eq.limit_core / eq.coefficients.linear
    stats = eq.statistics
    if stats is None:  # no means and no ψ: the ones are the only direction
        return lengths @ core @ lengths, np.empty(0)
    K, p = stats.means.shape
    B = population.means.T
    energies = np.bincount(stats.J.argmax(axis=1), stats.psi**2, minlength=K)
    # The length of ψ is put into M, so that R has an average of the resolvent in its place.
    length = math.sqrt(float(energies.sum()))
    side = length * (lengths @ core[:-1, -1:]) / np.sqrt(p)
    empty = np.zeros((K, 1))
    # X = W + JB, so that XXᵀ = WWᵀ + JBWᵀ + WBᵀJᵀ + JBBᵀJᵀ; the rest is V C Vᵀ/a.
    middle = np.block(
        [
            [lengths @ (B @ B.T + core[:-1, :-1] / p) @ lengths, lengths, side],
            [lengths, np.zeros((K, K)), empty],
            [side.T, empty.T, core[-1:, -1:] * length**2],
        ]
    )
    return middle, np.asarray(energies / max(length**2, 1e-300), dtype=np.float64)


def _crossing(determinant: _Determinant, index: int, start: float) -> float:
    """Where the strength of a direction falls to 1, right of the edge."""
    stop = 2.0 * start
    while determinant.strengths(stop)[index] > 1.0:
        stop *= 2.0
    return float(brentq(lambda z: determinant.strengths(z)[index] - 1.0, start, stop, rtol=1e-12))


def _roots_in_gap(determinant: _Determinant, low: float, high: float) -> list[tuple[float, int]]:
    """Return the roots in a gap, largest first, and how many eigenvalues join the bulk above."""
    # R has square-root singularities at the edges, where δ is least accurate.
    room = 1e-6 * (high - low)
    left, right = low + room, high - room
    at_right = determinant.branches(right)
    crosses = (determinant.branches(left) < 0.0) & (at_right > 0.0)
    # Haynsworth's inertia: above z there are as many more as M⁻¹ + R(z) has negative eigenvalues
    # more than M.
    joined = int((at_right < 0.0).sum()) - determinant.negative
    roots = [
        float(brentq(lambda z, k=k: determinant.branches(z)[k], left, right, rtol=1e-12))
        for k in np.flatnonzero(crosses)  # of a smaller branch the root is larger
    ]
    return [(root, joined + place) for place, root in enumerate(roots)]

"""Isolated eigenvalues of an equivalent kernel.

With z = (λ − γ)/a and (WWᵀ − z)⁻¹ known in the limit, λ is an eigenvalue of
a·XXᵀ + V C Vᵀ + γI outside the bulk iff I + M R(z) is singular, where
a·XXᵀ + V C Vᵀ = a(WWᵀ + U M Uᵀ), U = [J, W Bᵀ, ψ], B = means/√p (on the sphere U is the vector of
ones alone), and R = lim Uᵀ(WWᵀ − z)⁻¹U is block diagonal: W is odd, the others even.
(Benaych-Georges and Nadakuditi, arXiv 1103.2221, in the form for classes.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import linalg
from scipy.optimize import brentq

from notsodeep.checks import FloatArray
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.population import Population
from notsodeep.numerics.bulk_law import BulkLaw

_GAP_POINTS = 64


@dataclass(frozen=True)
class Spike:
    """A direction in which the kernel has more than noise.

    Attributes
    ----------
    value : float
        The isolated eigenvalue; NaN if the direction stays inside the bulk.
    strength : float
        Strength over the detectability threshold at the nearest edge of the bulk: above 1 the
        eigenvalue leaves the bulk.  NaN for eigenvalues in a gap, where there are two edges.
    """

    value: float
    strength: float

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form, with None for NaN."""
        return {name: value if math.isfinite(value) else None for name, value in vars(self).items()}


def isolated_eigenvalues(
    eq: Equivalent, population: Population, bulk: BulkLaw
) -> tuple[tuple[Spike, ...], tuple[Spike, ...]]:
    """Return the eigenvalues outside the bulk, largest first, and the directions that stay in it.

    Right of the bulk −R is positive definite and decreases with z, so that the eigenvalues of
    (−R)^{1/2} M (−R)^{1/2} decrease too, and each that starts above 1 at the edge crosses 1 once.
    In gaps of the bulk the determinant's changes of sign are found on a grid.
    """
    determinant = _Determinant(eq, population)
    scale, shift = eq.coefficients.linear, eq.coefficients.diagonal
    edge = bulk.support[-1][1]
    start = edge * (1.0 + 1e-9)
    at_edge = determinant.strengths(start)
    found, missed = [], []
    for index, strength in enumerate(at_edge):
        if strength > 1.0:
            value = _crossing(determinant, index, start)
            found.append(Spike(scale * value + shift, float(strength)))
        elif strength > 1e-9:
            missed.append(Spike(math.nan, float(strength)))
    # Gaps of an estimated spectrum are those between the atoms of the estimate.
    intervals = bulk.support if population.is_exact else ()
    for (_, low), (high, _) in pairwise(intervals):
        roots = _roots_in_gap(determinant, low, high)
        found += [Spike(scale * root + shift, math.nan) for root in roots]
    found.sort(key=lambda spike: -spike.value)
    return tuple(found), tuple(missed)


def point_mass_spikes(eq: Equivalent) -> tuple[Spike, ...]:
    """Return the eigenvalues of V C Vᵀ + γI other than γ, for a kernel without a linear part."""
    values, vectors = np.linalg.eigh(eq.core)
    root = eq.factors @ (vectors * np.sqrt(np.abs(values)))
    inner = root.T @ root
    own = np.linalg.eigvals(inner * np.sign(values)).real
    largest = float(np.abs(own).max(initial=0.0))
    kept = sorted((v for v in own if abs(v) > 1e-12 * largest), reverse=True)
    return tuple(Spike(float(v) + eq.shift, math.inf) for v in kept)


class _Determinant:
    """M and R(z) of the module's docstring, with J's columns scaled to unit length."""

    def __init__(self, eq: Equivalent, population: Population) -> None:
        self._population = population
        lengths = np.diag(np.sqrt(eq.class_counts.astype(np.float64)))
        core = eq.core / eq.coefficients.linear
        stats = eq.statistics
        if stats is None:  # no means and no ψ: the ones are the only direction
            self._middle = lengths @ core @ lengths
            self._energies = np.empty(0)
            return
        K, p = stats.means.shape
        B = stats.means / np.sqrt(p)
        energies = np.bincount(stats.J.argmax(axis=1), stats.psi**2, minlength=K)
        # The length of ψ is put into M, so that R has an average of the resolvent in its place.
        length = math.sqrt(float(energies.sum()))
        self._energies = np.asarray(energies / max(length**2, 1e-300), dtype=np.float64)
        side = length * (lengths @ core[:-1, -1:]) / np.sqrt(p)
        empty = np.zeros((K, 1))
        self._middle = np.block(
            [
                [lengths @ (B @ B.T + core[:-1, :-1] / p) @ lengths, lengths, side],
                [lengths, np.zeros((K, K)), empty],
                [side.T, empty.T, core[-1:, -1:] * length**2],
            ]
        )

    def blocks(self, z: FloatArray) -> FloatArray:
        """R at real z outside the bulk, shape (points, r, r)."""
        equation = self._population.equation
        delta = equation.solve(z)
        resolvent = equation.resolvent(z, delta)[:, self._population.column].real
        K = resolvent.shape[1]
        size = len(self._middle)
        result = np.zeros((len(z), size, size))
        result[:, np.arange(K), np.arange(K)] = resolvent
        if self._energies.size:
            result[:, K : 2 * K, K : 2 * K] = self._population.mean_form(z, delta).real
            result[:, -1, -1] = resolvent @ self._energies
        return result

    def strengths(self, z: float) -> FloatArray:
        """Eigenvalues of (−R)^{1/2} M (−R)^{1/2} right of the bulk, descending."""
        negative = -self.blocks(np.array([z]))[0]
        values, vectors = np.linalg.eigh(negative)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(linalg.eigvalsh(root.T @ self._middle @ root)[::-1])

    def sign(self, z: FloatArray) -> FloatArray:
        """Sign of det(I + M R(z)), shape (points,)."""
        matrices = np.eye(len(self._middle)) + self._middle @ self.blocks(z)
        return np.asarray(np.linalg.slogdet(matrices)[0])


def _crossing(determinant: _Determinant, index: int, start: float) -> float:
    """Where the strength of a direction falls to 1, right of the edge."""
    stop = 2.0 * start
    while determinant.strengths(stop)[index] > 1.0:
        stop *= 2.0
    return float(brentq(lambda z: determinant.strengths(z)[index] - 1.0, start, stop, rtol=1e-12))


def _roots_in_gap(determinant: _Determinant, low: float, high: float) -> list[float]:
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    grid = middle - half * (1.0 - 1e-6) * np.cos(np.linspace(0.0, np.pi, _GAP_POINTS))
    signs = determinant.sign(grid)
    roots = []
    for k in np.flatnonzero(np.diff(np.sign(signs))):
        left, right = float(grid[k]), float(grid[k + 1])
        for _ in range(50):
            centre = 0.5 * (left + right)
            same = determinant.sign(np.array([centre]))[0] == signs[k]
            left, right = (centre, right) if same else (left, centre)
        roots.append(0.5 * (left + right))
    return roots

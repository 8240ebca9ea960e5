"""Exact kernels for the tables, with NumPy alone and independent of the package.

Everything is done by Hermite series on one fixed quadrature rule, cut at 0 and at the activation's
kinks.  Slow and plain on purpose: this is the second opinion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TERMS = 50


@dataclass(frozen=True)
class Activation:
    """φ, φ′ and the points other than 0 where φ′ jumps."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    kinks: tuple[float, ...] = ()

    def minus(self, constant: float) -> Activation:
        """φ − constant."""
        return Activation(lambda x: self.value(x) - constant, self.slope, self.kinks)


RELU = Activation(lambda x: np.maximum(x, 0.0), lambda x: (x > 0.0) * 1.0)
TANH = Activation(np.tanh, lambda x: 1.0 / np.cosh(x) ** 2)
ARCTAN = Activation(np.arctan, lambda x: 1.0 / (1.0 + x**2))


def rule(cuts: tuple[float, ...] = ()) -> tuple[Array, Array]:
    """Nodes and weights for E f(ξ): Gauss–Legendre panels of width 1 on [−12, 12], cut further."""
    ends = np.unique([*np.arange(-12.0, 13.0), *(c for c in cuts if abs(c) < 12.0)])
    x, w = np.polynomial.legendre.leggauss(30)
    half = np.diff(ends)[:, None] / 2
    nodes = ((ends[1:] + ends[:-1])[:, None] / 2 + half * x).ravel()
    return nodes, (half * w).ravel() * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)


def hermite(x: Array, terms: int) -> Array:
    """Orthonormal h_0 … h_{terms−1}."""
    rows = [np.ones_like(x), x]
    for k in range(1, terms - 1):
        rows.append((x * rows[k] - np.sqrt(k) * rows[k - 1]) / np.sqrt(k + 1))
    return np.array(rows[:terms])


@dataclass(frozen=True)
class Moments:
    """E φ, E φ′, E φ″, E φ², E φ′², E (φ²)″ at one scale."""

    mean: float
    slope: float
    curvature: float
    square: float
    slope_square: float
    square_curvature: float


def moments(phi: Activation, tau: float) -> Moments:
    """Weak moments at scale τ."""
    x, w = rule(tuple(k / tau for k in phi.kinks))
    y, second = phi.value(tau * x), (x**2 - 1) / tau**2
    values = (y, x * y / tau, second * y, y**2, phi.slope(tau * x) ** 2, second * y**2)
    return Moments(*(float(w @ v) for v in values))


def coefficient_table(phi: Activation, scales: Array) -> tuple[Array, Array, Array]:
    """Hermite coefficients, E φ² and E φ′², one row or entry for each scale."""
    if not phi.kinks:
        x, w = rule()
        y = phi.value(scales[:, None] * x)
        return y @ (hermite(x, TERMS) * w).T, y**2 @ w, phi.slope(scales[:, None] * x) ** 2 @ w
    rows = []
    for tau in scales:
        x, w = rule(tuple(k / tau for k in phi.kinks))
        y = phi.value(tau * x)
        rows.append((hermite(x, TERMS) @ (w * y), w @ y**2, w @ phi.slope(tau * x) ** 2))
    table, square, slope_square = zip(*rows, strict=True)
    return np.array(table), np.array(square), np.array(slope_square)


def series(table: Array, rho: Array) -> tuple[Array, Array]:
    """Σ a_k a_k ρ^k and its derivative in ρ, for all pairs, by Horner's rule."""
    value, slope = np.zeros_like(rho), np.zeros_like(rho)
    for column in table.T[::-1]:
        slope = slope * rho + value
        value = value * rho + np.outer(column, column)
    return value, slope


def with_diagonal(matrix: Array, diagonal: Array) -> Array:
    """Put another diagonal in place."""
    np.fill_diagonal(matrix, diagonal)
    return matrix


def layer(phi: Activation, sigma: Array, theta: Array) -> tuple[Array, Array]:
    """One step of the explicit recursion: CK and NTK behind a layer."""
    scales = np.sqrt(np.diag(sigma))
    size = np.outer(scales, scales)
    table, square, slope_square = coefficient_table(phi, scales)
    value, slope = series(table, np.clip(sigma / size, -1, 1))
    value = with_diagonal(value, square)
    return value, value + theta * with_diagonal(slope / size, slope_square)


def equilibrium(phi: Activation, s: float, gram: Array) -> dict[str, Array]:
    """Compute the four kernels of a DEQ with σa² = s (φ without kinks other than 0)."""
    x, w = rule()
    norms = np.diag(gram).copy()
    q = norms.copy()
    for _ in range(80):
        q = s * (phi.value(np.sqrt(q)[:, None] * x) ** 2 @ w) + (1 - s) * norms
    scales = np.sqrt(q)
    size = np.outer(scales, scales)
    table, square, slope_square = coefficient_table(phi, scales)
    G = gram.copy()
    for _ in range(8):
        pairs, slope = series(table, np.clip(G / size, -1, 1))
        dot = s * slope / size
        step = (s * pairs + (1 - s) * gram - G) / (1 - dot)
        G = with_diagonal(G + step, q)
    off_diagonal = np.abs(with_diagonal(step, 0 * q)).max()
    if off_diagonal > 1e-12:
        raise ArithmeticError(f"the kernel was not found: last step {off_diagonal:.3g}")
    pairs, dot = with_diagonal(pairs, square), with_diagonal(dot, s * slope_square)
    tail = G * dot / (1 - dot)
    return {"G": G, "features": pairs, "K": G + tail, "feature K": pairs + tail / s}


def norm(matrix: Array) -> float:
    """Operator norm of a symmetric matrix."""
    return float(np.abs(np.linalg.eigvalsh(matrix)[[0, -1]]).max())

"""A kernel between classes, as a few K × K tables.

Between samples i of class a and j of class b of a Gaussian mixture, with w = x − E x, u^c = μ_c·w
and ψ = ‖w‖² − E‖w‖², up to what vanishes as p grows,

    k_ij = A_ab x_i·x_j + L_ab/p + (R_ab ψ_j + R_ba ψ_i)/√p + N_ab ψ_i ψ_j + Γ_a [i = j].

`limit_tables` are those of the four coefficients.  `resolved_tables` are for a finite p: the
projection of any kernel of norms and inner products on 1, ψ and the noise of either sample, which
is positive semidefinite as the kernel is.  It has the part of the norm that is due to the mean,

    ψ = ‖w‖² − E‖w‖² + (2/√p) u^a,

the curvature of the kernel along the means, with d = x_i·x_j − E x_i·x_j,

    ½ ∂²k/∂d² · 2 u_i^b u_j^a/p      and      ∂²k/∂d∂ψ_j · u_i^b ψ_j/√p  (and i, j exchanged),

and the p²/2 features (w_i·w_j)² with a spectrum of their own.  Terms that are quadratic in the
noise of one sample are left out, and with them their means: L is without Cov(ψ, d) ∂²k/∂d∂ψ, which
nothing else in the tables would balance, so that there would be poles where the kernel has none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.prediction.classes import Classes

KernelFunction = Callable[[FloatArray, FloatArray | None], FloatArray]
"""(X, Y) ↦ the kernel of rows of X with rows of Y, or of X with itself for None."""

NODES = 5
"""Gauss–Hermite nodes in each of the two norms and the inner product."""

LINEAR_TOL = 1e-8
"""Linear part, relative to the kernel, below which the limit has no noise to speak of."""


@dataclass(frozen=True, eq=False)
class KernelTables:
    """The tables; what is zero in the limit comes last."""

    linear: FloatArray  # (K, K): A
    constant: FloatArray  # (K, K): L
    norm: FloatArray  # (K, K): R
    norms: FloatArray  # (K, K): N
    diagonal: FloatArray  # (K,): Γ
    mean_norm: float  # coefficient of u^a in ψ
    tilt: FloatArray  # (K, K): coefficient of d ψ_j for i in class a, j in class b
    curvature: FloatArray  # (K, K): coefficient of d²
    quadratic: FloatArray  # (K, K): coefficient of (w_i·w_j)²; Γ is without


def limit_tables(
    classes: Classes, shares: FloatArray, four: tuple[float, float, float, float]
) -> KernelTables:
    """Return the tables of the equivalent: A = a, L = α2 ttᵀ + α3 T, R = α2 t1ᵀ, N = α2.

    `four` is (a, α2, α3, scale2) and Γ = scale2 − τ0² a, with τ0² the mean trace by `shares`.
    """
    a, bend, overlap, scale2 = four
    tau0 = classes.scale(shares)
    if a * tau0**2 <= LINEAR_TOL * scale2:
        raise InvalidInput(
            f"model must have a linear part in the limit of large p, got {a:.3g}. Without one the "
            "limit has no noise; give the model itself, not its expansion."
        )
    ones, zeros = np.ones_like(classes.overlaps), np.zeros_like(classes.overlaps)
    t = (classes.traces - tau0**2) * math.sqrt(classes.dimension)
    return KernelTables(
        linear=a * ones,
        constant=bend * np.outer(t, t) + overlap * classes.overlaps,
        norm=bend * t[:, None] * ones,
        norms=bend * ones,
        diagonal=np.full(classes.count, max(0.0, scale2 - tau0**2 * a)),
        mean_norm=0.0,
        tilt=zeros,
        curvature=zeros,
        quadratic=zeros,
    )


def resolved_tables(kernel: KernelFunction, classes: Classes) -> KernelTables:
    """Project the kernel function for every pair of classes, on 125 points of ℝ² each.

    k(x, y) = f(‖x‖², ‖y‖², x·y) is averaged over the Gaussian law of its three arguments: every
    class has its own scale, pairs of a class have a mean product, and averages stand in the place
    of derivatives at one point.
    """
    p, K = classes.dimension, classes.count
    law = _PairLaw.of(classes)
    L, A, R, N, B, S = (np.zeros((K, K)) for _ in range(6))
    for a in range(K):
        for b, (mean, d, left, right, both, square, left_tilt, right_tilt) in law.projections(
            kernel, a
        ):
            L[a, b] = L[b, a] = mean
            A[a, b] = A[b, a] = d
            N[a, b] = N[b, a] = both
            B[a, b] = B[b, a] = square
            R[a, b], R[b, a] = right, left
            S[a, b], S[b, a] = right_tilt, left_tilt
    # What the form for i ≠ j gives on the diagonal already: A‖w‖², L, Nψ² and the curvature.
    gamma = law.self_kernel(kernel) - np.diag(A) * classes.traces - np.diag(L)
    gamma -= np.diag(N) * law.norm_variance + 2.0 * np.diag(B) * np.diag(law.along) / p**2
    L, R, N = _positive(p * L, math.sqrt(p) * R, N, np.sqrt(2.0 * np.diag(classes.overlaps)))
    one_sided = S.T * law.cross
    square = np.maximum(B, 0.0)
    gamma, quadratic = _split(np.maximum(gamma, 0.0), square, classes.traces**2)
    return KernelTables(
        linear=A,
        constant=L - p * (A * law.products + one_sided + one_sided.T),
        norm=R,
        norms=N,
        diagonal=gamma,
        mean_norm=2.0 / math.sqrt(p),
        tilt=S,
        curvature=B,
        quadratic=quadratic,
    )


@dataclass(frozen=True)
class _PairLaw:
    """The joint Gaussian law of ‖x‖², ‖y‖² and x·y for every pair of classes."""

    scales: FloatArray  # E‖x‖², (K,)
    products: FloatArray  # E x·y, (K, K)
    norm_variance: FloatArray  # Var ‖x‖², (K,)
    spread: FloatArray  # Var x·y, (K, K)
    cross: FloatArray  # Cov(x·y, ‖x‖²), x of the first class, (K, K)
    widening: FloatArray  # d log Var(x·y)/d‖y‖², y of the second class, (K, K)
    along: FloatArray  # μ_aᵀ C_b μ_a, (K, K)

    @classmethod
    def of(cls, classes: Classes) -> _PairLaw:
        p, T, a = classes.dimension, classes.overlaps, np.arange(classes.count)
        forms = classes.mean_forms
        along = forms[a, a, :]
        scales = classes.traces + np.diag(classes.mean_products) / p
        norm_variance = 2.0 * np.diag(T) / p + 4.0 * np.diag(along) / p**2
        # The outermost node is at 2.86 standard deviations: E‖x‖² > 2.86·√(2 tr C²)/p needs (tr
        # C)²/tr C² > 16.3.
        reach = float(_rule()[0].max()) * np.sqrt(norm_variance)
        if (reach >= scales).any():
            worst = int(np.argmax(reach / scales))
            directions = 2.0 * scales[worst] ** 2 / norm_variance[worst]
            raise InvalidInput(
                "mixture must have norms that stay clear of zero, (tr C)²/tr C² of 17 or more, got "
                f"{directions:.3g} in class {worst}. Use prediction.pilot_curve on real data."
            )
        return cls(
            scales=scales,
            products=classes.mean_products / p,
            norm_variance=norm_variance,
            spread=T / p + (along + along.T) / p**2,
            cross=2.0 * forms[a, :, a] / p**2,  # μ_aᵀ C_a μ_b
            widening=classes.third_overlaps / np.diag(T) / T,
            along=along,
        )

    def projections(self, kernel: KernelFunction, a: int) -> list[tuple[int, FloatArray]]:
        """Return b and (E f, coefficients of d, ψ_x, ψ_y, ψ_xψ_y, d², dψ_x, dψ_y) for b ≥ a."""
        nodes, weights = _rule()
        gu, gv, gs = (g.ravel() for g in np.meshgrid(nodes, nodes, nodes, indexing="ij"))
        roots = np.sqrt(np.einsum("i,j,k->ijk", weights, weights, weights).ravel())
        left = math.sqrt(self.norm_variance[a]) * gu
        pairs = []
        for b in range(a, len(self.scales)):
            right = math.sqrt(self.norm_variance[b]) * gv
            on_left = self.cross[a, b] / self.norm_variance[a]
            on_right = self.cross[b, a] / self.norm_variance[b]
            rest = self.spread[a, b] - on_left * self.cross[a, b] - on_right * self.cross[b, a]
            # The spread of x·y grows with either norm.
            wide = (1.0 + self.widening[b, a] * left) * (1.0 + self.widening[a, b] * right)
            variance = np.maximum(rest, 0.0) * np.maximum(wide, 0.0)
            d = on_left * left + on_right * right + np.sqrt(variance) * gs
            square = d * d - self.spread[a, b] * np.maximum(wide, 0.0)
            # The squares of the norms are no term of the tables; without them the others would
            # stand in for the curvature in the norm.
            columns = [np.ones_like(d), d, left, right, left * right, square, d * left, d * right]
            columns += [left**2, right**2]
            pairs.append((b, right, d, np.column_stack(columns)))
        values = _pair_values(
            kernel,
            self.scales[a] + math.sqrt(self.norm_variance[a]) * nodes,
            np.stack([self.scales[b] + right for b, right, _, _ in pairs]),
            np.stack([self.products[a, b] + d for b, _, d, _ in pairs]),
        )
        result = []
        for (b, _, _, basis), f in zip(pairs, values, strict=True):
            # A projection in L² of the Gaussian law.  The columns are not orthogonal, since d
            # depends on the norms through `cross` and `widening`, hence least squares; the mean is
            # taken by itself.
            fit = np.linalg.lstsq(roots[:, None] * basis, roots * f, rcond=None)[0]
            fit[0] = roots**2 @ f
            result.append((b, fit[:8]))
        return result

    def self_kernel(self, kernel: KernelFunction) -> FloatArray:
        """Return the mean of k(x, x) over each class, shape (K,)."""
        nodes, weights = _rule()
        squares = self.scales[:, None] + np.sqrt(self.norm_variance)[:, None] * nodes
        rows = np.column_stack([np.sqrt(squares.ravel()), np.zeros(squares.size)])
        return np.asarray(np.diag(kernel(rows, None)).reshape(squares.shape) @ weights)


@functools.cache
def _rule() -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, weights / weights.sum()


def _pair_values(
    kernel: KernelFunction, left: FloatArray, right: FloatArray, inner: FloatArray
) -> FloatArray:
    """Return f(u, v, s) for few u, shape (nodes,), and v, s of shape (pairs, nodes³).

    Points of the plane have the norms and the inner products; the first index of nodes³ is u's.
    """
    pairs, points = right.shape
    u = np.repeat(left, points // len(left))
    cosine = inner / np.sqrt(u)
    # Gaussian nodes of x·y may exceed the norms; such points go to the nearest that exist.
    sine = np.sqrt(np.maximum(right - cosine**2, 1e-12))
    result = np.empty((pairs, points))
    for i, square in enumerate(left):
        part = slice(i * points // len(left), (i + 1) * points // len(left))
        rows = np.column_stack([cosine[:, part].ravel(), sine[:, part].ravel()])
        row = np.array([[math.sqrt(square), 0.0]])
        result[:, part] = kernel(row, rows).reshape(pairs, -1)
    return result


def _positive(
    L: FloatArray, R: FloatArray, N: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Clip what the quadrature leaves negative in the core of 1 and ψ."""
    K = len(L)
    unit = np.concatenate([np.ones(K), scale])
    units = np.outer(unit, unit)
    core = np.block([[L, R], [R.T, N]]) * units
    values, vectors = np.linalg.eigh(0.5 * (core + core.T))
    core = (vectors * np.maximum(values, 0.0)) @ vectors.T / units
    return core[:K, :K], core[:K, K:], core[K:, K:]


def _split(
    gamma: FloatArray, square: FloatArray, traces2: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Take the quadratic features out of Γ, or as many of them as it holds."""
    used = np.diag(square) * traces2
    share = np.where(used > 0.0, gamma / np.maximum(used, 1e-300), 1.0).min()
    quadratic = min(1.0, float(share)) * square
    return gamma - np.diag(quadratic) * traces2, quadratic

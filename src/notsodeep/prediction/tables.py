"""A kernel between classes, as a few K × K tables.

Between samples i of class a and j of class b of a Gaussian mixture, with w = x − E x and
ψ = ‖w‖² − E‖w‖²,

    k_ij = A_ab x_i·x_j + L_ab/p + (R_ab ψ_j + R_ba ψ_i)/√p + N_ab ψ_i ψ_j + Γ_a [i = j]

up to what vanishes as p grows.  `limit_tables` are those of the four coefficients;
`resolved_tables` keep most of what the limit drops at a finite p, for any kernel that is a
function of norms and inner products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Coefficients
from notsodeep.prediction.classes import Classes

KernelFunction = Callable[[FloatArray, FloatArray | None], FloatArray]
"""(X, Y) ↦ the kernel of rows of X with rows of Y, or of X with itself for None."""

_NODES = 5  # of Gauss and Hermite, in each of the two norms and the inner product


@dataclass(frozen=True, eq=False)
class KernelTables:
    """The tables; what is zero in the limit comes last.

    Attributes
    ----------
    linear, constant, norm, norms : ndarray of shape (K, K)
        A, L, R and N.
    diagonal : ndarray of shape (K,)
        Γ.
    mean_norm : float
        2/√p if ψ also holds 2 μ_a·w/√p, the part of the norm that is due to the mean.
    tilt : ndarray of shape (K,)
        κ_a: the linear part is A_ab (1 + κ_a ψ_i)(1 + κ_b ψ_j) x_i·x_j.
    own_mean : ndarray of shape (K, K)
        Coefficient of (μ_a·w_i)(μ_b·w_j): curvature of the kernel along a sample's own mean.
    quadratic : ndarray of shape (K, K)
        Coefficient of (w_i·w_j)², whose p²/2 features have a spectrum of their own; Γ is without.
    """

    linear: FloatArray
    constant: FloatArray
    norm: FloatArray
    norms: FloatArray
    diagonal: FloatArray
    mean_norm: float
    tilt: FloatArray
    own_mean: FloatArray
    quadratic: FloatArray


def limit_tables(
    classes: Classes, shares: FloatArray, four: tuple[float, float, float, float]
) -> KernelTables:
    """Return the tables of the kernel's equivalent: A = a, L = α2 ttᵀ + α3 T, R = α2 t1ᵀ, N = α2.

    Parameters
    ----------
    classes : Classes
    shares : ndarray of shape (K,)
        n_a/n, which the mean trace is taken with.
    four : tuple of float
        (a, α2, α3, scale2), as in `Coefficients.four`; Γ = scale2 − τ0² a.
    """
    a, bend, overlap, scale2 = four
    K = classes.count
    ones, zeros = np.ones((K, K)), np.zeros((K, K))
    tau0 = classes.scale(shares)
    t = (classes.traces - tau0**2) * math.sqrt(classes.dimension)
    gamma = Coefficients(a, bend, overlap, scale2, tau0).diagonal
    return KernelTables(
        linear=a * ones,
        constant=bend * np.outer(t, t) + overlap * classes.overlaps,
        norm=bend * t[:, None] * ones,
        norms=bend * ones,
        diagonal=np.full(K, gamma),
        mean_norm=0.0,
        tilt=zeros,
        own_mean=zeros,
        quadratic=zeros,
    )


def resolved_tables(kernel: KernelFunction, classes: Classes, owner: str) -> KernelTables:
    """Project the kernel function on 1, x·y, ψ_x, ψ_y and their products, for pairs of classes.

    k(x, y) = f(‖x‖², ‖y‖², x·y) is averaged over the Gaussian law of its three arguments, by
    quadrature with 125 points of ℝ² for each pair: every class has its own scale, pairs of a class
    have a mean product, and averages stand in the place of derivatives at one point.

    Raises
    ------
    InvalidInput
        Norms fluctuate so much that they reach zero: p is too small, or too few directions carry
        the variance.
    """
    p, K = classes.dimension, classes.count
    law = _PairLaw.of(classes, owner)
    A, L, R, N, B, S = (np.zeros((K, K)) for _ in range(6))
    for a in range(K):
        for b, part in law.projections(kernel, a):
            L[a, b] = L[b, a] = part.mean
            A[a, b] = A[b, a] = part.product
            N[a, b] = N[b, a] = part.norms
            B[a, b] = B[b, a] = part.square
            R[a, b], R[b, a] = part.right_norm, part.left_norm
            S[a, b], S[b, a] = part.right_tilt, part.left_tilt
    self_ = law.self_kernel(kernel)
    # What the form for i ≠ j gives on the diagonal already: A‖w‖², L and Nψ².
    gamma = self_ - np.diag(A) * classes.traces - np.diag(L) - np.diag(N) * law.norm_variance
    core = _positive(p * L, math.sqrt(p) * R, N, np.sqrt(2.0 * np.diag(classes.overlaps)))
    tilted = S.T * law.cross
    square = np.maximum(B, 0.0)
    gamma = gamma - 2.0 * np.diag(B) * np.diag(classes.mean_forms()[np.arange(K), np.arange(K)]) / p**2
    gamma, quadratic = _apart(np.maximum(gamma, 0.0), square, classes.traces**2)
    return KernelTables(
        linear=A,
        constant=core[0] - p * A * law.products - p * (tilted + tilted.T),
        norm=core[1],
        norms=core[2],
        diagonal=gamma,
        mean_norm=2.0 / math.sqrt(p),
        tilt=S,
        own_mean=2.0 * B / p,
        quadratic=quadratic,
    )


@dataclass(frozen=True)
class _Projection:
    """The mean of f over a pair of classes (x, y), and its coefficients."""

    mean: float
    product: float  # of d = x·y − E x·y
    left_norm: float  # of ψ_x
    right_norm: float  # of ψ_y
    norms: float  # of ψ_x ψ_y
    square: float  # of d²
    left_tilt: float  # of d ψ_x
    right_tilt: float  # of d ψ_y


@dataclass(frozen=True)
class _PairLaw:
    """The joint Gaussian law of ‖x‖², ‖y‖² and x·y for every pair of classes."""

    scales: FloatArray  # E‖x‖², (K,)
    products: FloatArray  # E x·y, (K, K)
    norm_variance: FloatArray  # Var ‖x‖², (K,)
    spread: FloatArray  # Var x·y, (K, K)
    cross: FloatArray  # Cov(x·y, ‖x‖²), x of the first class, (K, K)
    widening: FloatArray  # d log Var(x·y)/d‖y‖², y of the second class, (K, K)

    @classmethod
    def of(cls, classes: Classes, owner: str) -> _PairLaw:
        p, T = classes.dimension, classes.overlaps
        forms = classes.mean_forms()
        a = np.arange(classes.count)
        other = forms[a, a, :]  # μ_aᵀ C_b μ_a
        law = cls(
            scales=classes.traces + np.diag(classes.mean_products) / p,
            products=classes.mean_products / p,
            norm_variance=2.0 * np.diag(T) / p + 4.0 * np.diag(other) / p**2,
            spread=T / p + (other + other.T) / p**2,
            cross=2.0 * forms[a, :, a] / p**2,  # μ_aᵀ C_a μ_b
            widening=classes.third_overlaps / np.diag(T) / T,
        )
        # The outermost node is at 2.86 standard deviations: E‖x‖² > 2.86·√(2 tr C²)/p needs (tr
        # C)²/tr C² > 16.3.
        reach = float(_rule()[0].max()) * np.sqrt(law.norm_variance)
        if (reach >= law.scales).any():
            worst = int(np.argmax(reach / law.scales))
            requirement = (
                "have norms that stay clear of zero: class variance spread over 17 directions or "
                "more, (tr C)²/tr C²"
            )
            directions = 2.0 * law.scales[worst] ** 2 / law.norm_variance[worst]
            remedy = "Use tables='limit', or a pilot of real data: notsodeep.prediction.pilot."
            got = f"class {worst} with {directions:.3g}"
            raise checks.invalid("mixture", owner, requirement, got, remedy)
        return law

    def projections(self, kernel: KernelFunction, a: int) -> list[tuple[int, _Projection]]:
        """Return b and the projection for the pairs (a, b), b ≥ a."""
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
            columns = [np.ones(len(d)), d, left, right, left * right, square, d * left, d * right, left**2, right**2]
            pairs.append((b, right, d, np.column_stack(columns)))
        values = _pair_values(
            kernel,
            self.scales[a] + math.sqrt(self.norm_variance[a]) * nodes,
            np.stack([self.scales[b] + right for b, right, _, _ in pairs]),
            np.stack([self.products[a, b] + d for b, _, d, _ in pairs]),
        )
        found = []
        for (b, _, _, basis), f in zip(pairs, values, strict=True):
            # A projection in L² of the Gaussian law.  The columns are not orthogonal, since d
            # depends on the norms through `cross` and `widening`, hence least squares; the mean is
            # taken by itself.
            fit = np.linalg.lstsq(roots[:, None] * basis, roots * f, rcond=None)[0]
            found.append((b, _Projection(float(roots**2 @ f), *map(float, fit[1:8]))))
        return found

    def self_kernel(self, kernel: KernelFunction) -> FloatArray:
        """Return the mean of k(x, x) over each class, shape (K,)."""
        nodes, weights = _rule()
        squares = self.scales[:, None] + np.sqrt(self.norm_variance)[:, None] * nodes
        rows = np.column_stack([np.sqrt(squares.ravel()), np.zeros(squares.size)])
        return np.asarray(np.diag(kernel(rows, None)).reshape(squares.shape) @ weights)


def _rule() -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
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
    """Clip what the truncated expansion leaves negative in the core of 1 and ψ."""
    K = len(L)
    unit = np.concatenate([np.ones(K), scale])
    units = np.outer(unit, unit)
    core = np.block([[L, R], [R.T, N]]) * units
    values, vectors = np.linalg.eigh(0.5 * (core + core.T))
    core = (vectors * np.maximum(values, 0.0)) @ vectors.T / units
    return core[:K, :K], core[:K, K:], core[K:, K:]


def _apart(
    gamma: FloatArray, square: FloatArray, traces2: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Take the quadratic features out of Γ, or as many of them as it holds."""
    used = np.diag(square) * traces2
    share = np.where(used > 0.0, gamma / np.maximum(used, 1e-300), 1.0).min()
    quadratic = min(1.0, float(share)) * square
    return gamma - np.diag(quadratic) * traces2, quadratic

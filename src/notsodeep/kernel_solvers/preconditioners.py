"""Approximate inverses of K + λI, from the random-matrix equivalent, from few columns, from both.

See docs/solving.md for which to choose.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.equivalents import Equivalent
from notsodeep.kernels import KernelOperator, conjugate_kernel, tangent_kernel
from notsodeep.models import Convention, KernelModel, KernelName
from notsodeep.threads import map_threads, single_blas_thread

Columns = Callable[[NDArray[np.int64]], FloatArray]

_ROUNDS = 8  # the pivots of a round are drawn together
_ROWS = 2048  # of the factors, for one thread
_NEGLIGIBLE = 1e-10  # eigenvalues below this share of a round's largest are rounding


class LowRankInverse(LinearOperator):  # type: ignore[misc]  # scipy has no types
    """(F Fᵀ + λI)⁻¹, F = [F₁ F₂ …] of few columns, by Woodbury's identity.

    (F Fᵀ + λI)⁻¹ = (I − F (FᵀF + λI)⁻¹ Fᵀ)/λ; the factorisation is done once, here.

    Parameters
    ----------
    factors : sequence of ndarray of shape (n, k_i)
        Not copied.
    ridge : float
        λ > 0.
    """

    def __init__(self, factors: Sequence[FloatArray], ridge: float) -> None:
        self._factors = [factor for factor in factors if factor.shape[1]]
        self._ridge = ridge
        widths = [factor.shape[1] for factor in self._factors]
        self._ends = np.cumsum(widths)[:-1]
        n = len(factors[0])
        if self._factors:
            ends = np.cumsum([0, *widths])
            places = [slice(*pair) for pair in itertools.pairwise(ends)]
            inner = np.zeros((ends[-1], ends[-1]))
            for k, F in enumerate(self._factors):  # the lower triangle is all that is read
                for j, G in enumerate(self._factors[: k + 1]):
                    inner[places[k], places[j]] = F.T @ G
            inner[np.diag_indices(len(inner))] += ridge
            self._cholesky = linalg.cholesky(inner, lower=True, overwrite_a=True)
        self.rank = sum(widths)
        super().__init__(np.float64, (n, n))

    def _matmat(self, V: FloatArray) -> FloatArray:
        if not self._factors:
            return np.asarray(V / self._ridge)
        # Both passes over the factors are bound by memory: rows are shared among threads.
        chunks = [slice(start, start + _ROWS) for start in range(0, len(V), _ROWS)]

        def projection(rows: slice) -> FloatArray:
            return np.concatenate([F[rows].T @ V[rows] for F in self._factors])

        projected = sum(map_threads(projection, chunks), np.zeros((self.rank, V.shape[1])))
        # The system is small; BLAS threads woken for it would spin while the next pass runs.
        with single_blas_thread():
            inner = linalg.cho_solve((self._cholesky, True), projected, overwrite_b=True)
        parts = np.split(inner, self._ends)
        result = np.empty(V.shape)

        def remainder(rows: slice) -> None:
            lifted = sum(F[rows] @ part for F, part in zip(self._factors, parts, strict=True))
            result[rows] = (V[rows] - lifted) / self._ridge

        for _ in map_threads(remainder, chunks):
            pass
        return result

    def _matvec(self, v: FloatArray) -> FloatArray:
        return self._matmat(v.reshape(-1, 1))

    def _adjoint(self) -> LinearOperator:
        return self

    def _transpose(self) -> LinearOperator:
        return self


def pivoted_factor(
    columns: Columns, diagonal: FloatArray, rank: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return F of at most `rank` columns with F Fᵀ ≈ R, and the diagonal of R − F Fᵀ ≥ 0.

    Randomly pivoted Cholesky, a few rounds of many pivots each: pivots are drawn with
    probabilities proportional to the diagonal of what is left, R − F Fᵀ, so that they go where the
    approximation is bad (Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", 2023).  It is
    the Nyström approximation from the pivots' columns.

    Parameters
    ----------
    columns : callable
        ``columns(pivots)`` returns R[:, pivots], shape (n, len(pivots)).
    diagonal : ndarray of shape (n,)
        Of R, which is positive semidefinite.
    rank : int
    rng : numpy.random.Generator
    """
    left = np.maximum(diagonal, 0.0)
    n, done = len(left), 0
    rank = min(rank, n)
    F = np.empty((n, rank))
    # Diagonal entries that are left as rounding errors of differences are no pivots.
    smallest = 1e-14 * float(left.max(initial=0.0))
    size = -(-rank // _ROUNDS)
    while done < rank:
        possible = int((left > smallest).sum())
        if not possible:
            break  # R has a lower rank, and is known
        weights = np.where(left > smallest, left, 0.0)
        # A draw without replacement needs as many entries of positive probability.
        count = min(size, rank - done, possible)
        pivots = rng.choice(n, count, replace=False, p=weights / weights.sum())
        new = columns(pivots) - F[:, :done] @ F[pivots, :done].T
        # F_new F_newᵀ = N core⁺ Nᵀ.  Pivots drawn together may be nearly dependent, hence
        # eigenvalues with a cut-off where a single pivot needs a square root alone.
        core = new[pivots]
        values, axes = np.linalg.eigh(0.5 * (core + core.T))
        kept = values > _NEGLIGIBLE * values[-1]
        width = int(kept.sum())
        np.matmul(new, axes[:, kept] / np.sqrt(values[kept]), out=F[:, done : done + width])
        fresh = F[:, done : done + width]
        left = np.maximum(left - np.einsum("ij,ij->i", fresh, fresh), 0.0)
        # Exactly, so that no pivot is drawn twice, nor one again whose direction was cut off.
        left[pivots] = 0.0
        done += width
    return F[:, :done], left


_SAMPLE = 300  # samples on which the equivalent is held against the exact kernel
# The share of the equivalent that stays below the kernel on the sample is lowered by this, because
# on all samples it is a little smaller (MNIST, 4000 images: by 6 %).
_MARGIN = 0.8


def equivalent_preconditioner(eq: Equivalent, ridge: float) -> LinearOperator:
    """Return (K̄ + λI)⁻¹ of the random-matrix equivalent K̄ = a·XXᵀ + V C Vᵀ + γI.

    By Woodbury's identity; no entry of the kernel is evaluated.

    Parameters
    ----------
    eq : Equivalent
        Of the kernel and the samples of the system: from `equivalent` or `sphere_equivalent`.
    ridge : float
        λ of the system.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.kernel_solvers import solve
    >>> mixture = nsd.data.paper_mixture(dimension=300)
    >>> X, y = mixture.sample(400, rng=0)
    >>> stats = mixture.statistics(X, y)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2).centred(stats.tau0)
    >>> eq = nsd.equivalent(deq, X, stats, kind="ntk")
    >>> K = nsd.tangent_kernel(deq, X)
    >>> near = equivalent_preconditioner(eq, ridge=1e-2)
    >>> solve(K, y, 1e-2).steps > 5 * solve(K, y, 1e-2, preconditioner=near).steps
    True
    """
    owner = "equivalent_preconditioner"
    _equivalent_of(eq, Equivalent, owner)
    return eq.inverse(checks.at_least_zero(ridge, "ridge", owner))


def nystrom_preconditioner(
    model: KernelModel,
    X: ArrayLike,
    rank: int,
    ridge: float,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
    rng: int | np.random.Generator = 0,
) -> LinearOperator:
    """Return (F Fᵀ + (λ + δ)I)⁻¹, F Fᵀ the Nyström approximation of the exact kernel.

    δ stands for the flat part of what F Fᵀ misses: half the median of its diagonal.  F is made of
    `rank` columns of the kernel, chosen by randomly pivoted Cholesky: n·rank evaluations of the
    kernel, 8·n·rank bytes, and 4·n·rank operations for each vector the inverse is applied to.

    Parameters
    ----------
    model, X, kernel, convention
        Of the system, as for `KernelOperator`.
    rank : int
        A few percent of n; never more than n.
    ridge : float
        λ > 0 of the system.
    rng : int or numpy.random.Generator
        Draws the columns.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.kernel_solvers import solve
    >>> data = nsd.data.load("digits", samples=600, rng=0)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> K = nsd.tangent_kernel(deq, data.X)
    >>> near = nystrom_preconditioner(deq, data.X, rank=100, ridge=1e-2, kind="ntk")
    >>> solve(K, data.y, 1e-2).steps > 3 * solve(K, data.y, 1e-2, preconditioner=near).steps
    True
    """
    owner = "nystrom_preconditioner"
    rank = checks.positive_integer(rank, "rank", owner)
    level = checks.positive_number(ridge, "ridge", owner)
    generator = checks.random_generator(rng, owner)
    rows = checks.samples(X, "X", owner)
    exact = _Columns(model, rows, kind, convention)
    factor, left = pivoted_factor(exact, exact.diagonal(), rank, generator)
    return LowRankInverse([factor], level + _flat_part(left))


def combined_preconditioner(
    eq: Equivalent, rank: int, ridge: float, *, rng: int | np.random.Generator = 0
) -> LinearOperator:
    """Return (c·L + F Fᵀ + (λ + δ)I)⁻¹: the equivalent, and the Nyström part of what it misses.

    L = a·XXᵀ + V C₊ Vᵀ is the equivalent without its identity term (C₊: without negative
    eigenvalues) and F Fᵀ the Nyström approximation of K − c·L from `rank` of its columns.  The
    columns need not spend themselves on the linear part, which needs no evaluation of the kernel.
    K − c·L must stay positive semidefinite: c is the largest such number on a sample of the rows,
    less a margin.  δ is as for `nystrom_preconditioner`.

    Parameters
    ----------
    eq : Equivalent
        Of the system; model, samples, kernel and convention are read from it.
    rank : int
        Columns of the kernel to evaluate.
    ridge : float
        λ > 0 of the system.
    rng : int or numpy.random.Generator
        Draws the sample and the columns.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.kernel_solvers import solve
    >>> data = nsd.data.load("digits", samples=600, rng=0)
    >>> stats = nsd.data.MixtureStatistics.estimate(data.X, data.y)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2).centred(stats.tau0)
    >>> near = combined_preconditioner(nsd.equivalent(deq, data.X, stats), rank=100, ridge=1e-2)
    >>> K = nsd.conjugate_kernel(deq, data.X)
    >>> solve(K, data.y, 1e-2).steps > 3 * solve(K, data.y, 1e-2, preconditioner=near).steps
    True
    """
    owner = "combined_preconditioner"
    _equivalent_of(eq, Equivalent, owner)
    rank = checks.positive_integer(rank, "rank", owner)
    level = checks.positive_number(ridge, "ridge", owner)
    generator = checks.random_generator(rng, owner)
    exact = _Columns(eq.model, eq.samples, eq.kind, eq.convention)
    root = _linear_root(eq)
    root *= np.sqrt(_share_below(root, exact, level, generator))

    def missed(pivots: IntArray) -> FloatArray:
        return exact(pivots) - root @ root[pivots].T

    diagonal = exact.diagonal() - np.einsum("ij,ij->i", root, root)
    factor, left = pivoted_factor(missed, diagonal, rank, generator)
    return LowRankInverse([root, factor], level + _flat_part(left))


class _Columns:
    """Columns of an exact kernel, and its diagonal."""

    def __init__(
        self, model: KernelModel, X: FloatArray, kind: KernelName, convention: Convention
    ) -> None:
        self._whole = KernelOperator(model, X, kind=kind, convention=convention)
        self._X = X
        self._function = tangent_kernel if kind == "ntk" else conjugate_kernel

    def __call__(self, pivots: IntArray) -> FloatArray:
        """Return K[:, pivots], shape (n, len(pivots))."""
        return self.among(slice(None), pivots)

    def among(self, rows: IntArray | slice, columns: IntArray) -> FloatArray:
        """Return K[rows, columns]."""
        whole = self._whole
        kernel = self._function(
            whole.model, self._X[rows], self._X[columns], convention=whole.convention
        )
        return np.asarray(kernel, dtype=np.float64)

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape (n,)."""
        return self._whole.diagonal()


def _flat_part(left: FloatArray) -> float:
    """Return δ ≥ 0 such that δI is the flat part of a remainder with this diagonal.

    A kernel on high-dimensional data ends in a multiple of the identity, which no low rank can
    hold.  Half of the median rather than all of it: eigenvalues above one cost conjugate gradients
    less than eigenvalues below.
    """
    return 0.5 * float(np.median(left))


def _linear_root(eq: Equivalent) -> FloatArray:
    """Return H with H Hᵀ = a·XXᵀ + V C₊ Vᵀ, shape (n, p + rank C₊)."""
    values, axes = np.linalg.eigh(eq.core)
    kept = values > 1e-15 * np.abs(values).max(initial=0.0)
    low_rank = eq.factors @ (axes[:, kept] * np.sqrt(values[kept]))
    return np.concatenate([np.sqrt(eq.linear) * eq.X, low_rank], axis=1)


def _share_below(
    root: FloatArray, exact: _Columns, ridge: float, rng: np.random.Generator
) -> float:
    """Return c ≤ 1 such that c·H Hᵀ stays below K + λI, judged on a sample of the rows."""
    n = len(root)
    sample = rng.choice(n, min(n, _SAMPLE), replace=False)
    kernel = exact.among(sample, sample)
    kernel = 0.5 * (kernel + kernel.T) + ridge * np.eye(len(sample))
    linear = root[sample] @ root[sample].T
    last = len(sample) - 1
    # The largest μ with H Hᵀv = μ(K + λI)v: c = 1/μ is where K + λI − c·H Hᵀ turns singular.
    (largest,) = linalg.eigh(linear, kernel, eigvals_only=True, subset_by_index=(last, last))
    return float(min(1.0, _MARGIN / largest)) if largest > 0.0 else 1.0


def _equivalent_of(eq: Any, kind: type, owner: str) -> None:
    """Require the random-matrix equivalent of a kernel."""
    if not isinstance(eq, kind):
        remedy = "Make one with equivalent(model, X, stats) or sphere_equivalent(model, X)."
        raise checks.invalid("eq", owner, "be an Equivalent", type(eq).__name__, remedy)

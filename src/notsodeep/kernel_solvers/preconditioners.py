"""Approximate inverses of K + λI, from few columns of the kernel and from its equivalent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.equivalents import Equivalent
from notsodeep.equivalents.structured_matrix import StructuredMatrix
from notsodeep.errors import InvalidInput
from notsodeep.kernels import KernelOperator
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, KernelModel, KernelName

ROUNDS = 8
"""The pivots of a round are drawn together."""

RANK_TOL = 1e-10
"""Eigenvalues below this share of a round's largest are rounding."""

SHARE_ROWS = 300
"""Samples on which the equivalent is compared with the exact kernel."""

SHARE_MARGIN = 0.8
"""The share of the equivalent that stays below the kernel on the sample is lowered by this, because
on all samples it is a little smaller (MNIST, 4000 images: by 6 %)."""


def preconditioner(
    model: KernelModel,
    X: ArrayLike,
    rank: int,
    ridge: float,
    *,
    equivalent: Equivalent | None = None,
    kind: KernelName = "ck",
    convention: Convention = "feature",
    rng: int | np.random.Generator = 0,
) -> LinearOperator:
    """Return (c·L + F Fᵀ + (λ + δ)I)⁻¹: the Nyström approximation of the kernel, or of K − c·L.

    F is made of `rank` columns of the kernel, chosen by randomly pivoted Cholesky: n·rank
    evaluations of the kernel, 8·n·rank bytes, and 4·n·rank operations for each vector the inverse
    is applied to.  δ stands for the flat part of what F Fᵀ misses: half the median of its diagonal.
    With an equivalent, L = a·XXᵀ + V C₊ Vᵀ is that without its identity term, so that the columns
    need not spend themselves on the linear part; c is the largest number that leaves K − c·L
    positive semidefinite on a sample of the rows, less a margin.  See the page "Solving" of the
    documentation for which to choose.

    Parameters
    ----------
    model, X, kind, convention
        Of the system, as for `KernelOperator`.
    rank : int
        A few percent of n; never more than n.
    ridge : float
        λ > 0 of the system.
    equivalent : Equivalent, optional
        Of the same kernel and samples.
    rng : int or numpy.random.Generator
        Draws the columns.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.kernel_solvers import solve
    >>> data = nsd.data.load("digits", samples=600, rng=0)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> K = nsd.kernel(deq, data.X, kind="ntk")
    >>> near = preconditioner(deq, data.X, rank=100, ridge=1e-2, kind="ntk")
    >>> solve(K, data.y, 1e-2).steps > 3 * solve(K, data.y, 1e-2, preconditioner=near).steps
    True
    """
    rank = checks.positive_integer(rank, "rank", "preconditioner")
    level = checks.positive_number(ridge, "ridge", "preconditioner")
    generator = checks.random_generator(rng, "preconditioner")
    rows = checks.samples(X, "X", "preconditioner")
    diagonal = KernelOperator(model, rows, kind=kind, convention=convention).diagonal()

    def exact(left: IntArray | slice, right: IntArray) -> FloatArray:
        K = exact_kernel(model, rows[left], rows[right], kind=kind, convention=convention)
        return np.asarray(K, dtype=np.float64)

    root = np.empty((len(rows), 0))
    if equivalent is not None:
        if not isinstance(equivalent, Equivalent) or len(equivalent.X) != len(rows):
            raise InvalidInput(
                f"equivalent must be an Equivalent of the {len(rows)} rows, got {equivalent!r}."
            )
        root = _linear_root(equivalent)
        root *= np.sqrt(_share_below(root, exact, level, generator))
    factor, rest = pivoted_factor(
        lambda pivots: exact(slice(None), pivots) - root @ root[pivots].T,
        diagonal - np.einsum("ij,ij->i", root, root),
        rank,
        generator,
    )
    # A kernel on high-dimensional data ends in a multiple of the identity, which no low rank can
    # hold.  Half of the median rather than all of it: eigenvalues above one cost conjugate
    # gradients less than eigenvalues below.
    flat = 0.5 * float(np.median(rest))
    F = np.concatenate([root, factor, np.zeros((len(rows), 1))], axis=1)
    return StructuredMatrix(F, 1.0, np.empty((len(F), 0)), np.empty((0, 0)), flat).inverse(level)


def pivoted_factor(
    columns: Callable[[IntArray], FloatArray],
    diagonal: FloatArray,
    rank: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Return F of at most `rank` columns with F Fᵀ ≈ R, and the diagonal of R − F Fᵀ ≥ 0.

    Randomly pivoted Cholesky, a few rounds of many pivots each: pivots are drawn with
    probabilities proportional to the diagonal of what is left, R − F Fᵀ, so that they go where the
    approximation is bad (Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", 2023).  It is
    the Nyström approximation from the pivots' columns; ``columns(pivots)`` returns R[:, pivots].
    """
    left = np.maximum(diagonal, 0.0)
    n, done = len(left), 0
    rank = min(rank, n)
    F = np.empty((n, rank))
    # Diagonal entries that are left as rounding errors of differences are no pivots.
    smallest = 1e-14 * float(left.max(initial=0.0))
    size = -(-rank // ROUNDS)
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
        mask = values > RANK_TOL * values[-1]
        width = int(mask.sum())
        np.matmul(new, axes[:, mask] / np.sqrt(values[mask]), out=F[:, done : done + width])
        fresh = F[:, done : done + width]
        left = np.maximum(left - np.einsum("ij,ij->i", fresh, fresh), 0.0)
        # Exactly, so that no pivot is drawn twice, nor one again whose direction was cut off.
        left[pivots] = 0.0
        done += width
    return F[:, :done], left


def _linear_root(eq: Equivalent) -> FloatArray:
    """Return H with H Hᵀ = a·XXᵀ + V C₊ Vᵀ, shape (n, p + rank C₊)."""
    values, axes = np.linalg.eigh(eq.core)
    mask = values > 1e-15 * np.abs(values).max(initial=0.0)
    low_rank = eq.factors @ (axes[:, mask] * np.sqrt(values[mask]))
    return np.concatenate([np.sqrt(eq.linear) * eq.X, low_rank], axis=1)


def _share_below(
    root: FloatArray,
    exact: Callable[[IntArray | slice, IntArray], FloatArray],
    ridge: float,
    rng: np.random.Generator,
) -> float:
    """Return c ≤ 1 such that c·H Hᵀ stays below K + λI, judged on a sample of the rows."""
    sample = rng.choice(len(root), min(len(root), SHARE_ROWS), replace=False)
    kernel = exact(sample, sample)
    kernel = 0.5 * (kernel + kernel.T) + ridge * np.eye(len(sample))
    linear = root[sample] @ root[sample].T
    last = len(sample) - 1
    # The largest μ with H Hᵀv = μ(K + λI)v: c = 1/μ is where K + λI − c·H Hᵀ turns singular.
    (largest,) = linalg.eigh(linear, kernel, eigvals_only=True, subset_by_index=(last, last))
    return float(min(1.0, SHARE_MARGIN / largest)) if largest > 0.0 else 1.0

"""One eigendecomposition, or one Krylov space, from which every regularised fit follows.

With K = U diag(w) Uᵀ a fit to Y with filter s (the share of each eigendirection that is left out)
is K α = U (1 − s(w)) UᵀY: ridge s = λ/(w + λ), gradient flow until time t s = exp(−tw).  On a
Krylov space of K and Y the same formula holds with its Ritz values and vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.structured_matrix import row_blocks
from notsodeep.errors import InvalidInput
from notsodeep.kernel_solvers import requirements
from notsodeep.kernel_solvers.spectral_density import SpectralDensity, spectral_density

# The workspace of dsyevd, 1 + 6n + 2n² numbers, passes 2³¹ at the next n.
_LAPACK = 32_766  # rows beyond which eigenvectors overflow the 32-bit integers of LAPACK

Filter = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class SpectralBasis:
    """Eigenvalues, eigenvectors and the targets in terms of them.

    Attributes
    ----------
    values : ndarray of shape (m,)
    vectors : ndarray of shape (n, m)
    targets : ndarray of shape (m, k)
        UᵀY; Y lies in the span of U.
    tail : ndarray of shape (s, m)
        K U = U diag(values) + Q·tail with orthonormal Q orthogonal to U; s = 0 if all n
        eigenvectors are there.
    density : SpectralDensity or None
        For traces, if not all eigenvalues are there.
    """

    values: FloatArray
    vectors: FloatArray
    targets: FloatArray
    tail: FloatArray
    density: SpectralDensity | None

    def trace(self, function: Filter) -> tuple[float, float]:
        """Return tr f(K) and its standard error."""
        if self.density is None:
            return float(function(self.values).sum()), 0.0
        value, error = self.density.average(function)
        return self.density.size * value, self.density.size * error

    def score(self, left_out: Filter, entries: int) -> float:
        """Return generalised cross-validation, ‖s(K)Y‖²/entries/(tr s(K)/n)², for a filter s."""
        left = self.trace(left_out)[0] / len(self.vectors)
        return self.squared(left_out(self.values)) / entries / left**2

    def lowest(self) -> float:
        """Return the smallest value at which a filter is looked at."""
        nodes = self.values if self.density is None else self.density.nodes
        return float(min(self.values.min(), nodes.min()))

    def combine(self, weights: FloatArray) -> FloatArray:
        """U diag(weights) UᵀY, shape (n, k)."""
        return np.asarray(self.vectors @ (weights[:, None] * self.targets))

    def squared(self, weights: FloatArray) -> float:
        """‖U diag(weights) UᵀY‖², of all columns together."""
        return float(np.square(weights[:, None] * self.targets).sum())

    def outside(self, weights: FloatArray) -> float:
        """‖Q·tail·diag(weights) UᵀY‖, what K does beyond the space; the worst column over ‖y‖."""
        return self._worst_share(self.tail @ (weights[:, None] * self.targets))

    def rounding(self, weights: FloatArray) -> float:
        """2.2e-16·‖K‖·‖α‖, α = U diag(weights) UᵀY: what rounding errors leave, over ‖y‖."""
        unit = float(np.finfo(np.float64).eps) * float(np.abs(self.values).max())
        return unit * self._worst_share(weights[:, None] * self.targets)

    def residual(self, weights: FloatArray) -> float:
        """Return the relative residual of α = U diag(weights) UᵀY, with its rounding errors."""
        return self.outside(weights) + self.rounding(weights)

    def _worst_share(self, columns: FloatArray) -> float:
        """Return the largest ‖column‖/‖y‖, of the columns y that are not zero."""
        sizes = np.linalg.norm(self.targets, axis=0)
        shares = np.linalg.norm(columns, axis=0) / np.where(sizes > 0.0, sizes, 1.0)
        return float(shares.max())

    def diagonal(self, weights: FloatArray) -> FloatArray:
        """Return the diagonal of U diag(w) Uᵀ for each column w of the weights (m, j): (n, j)."""
        n = len(self.vectors)
        result = np.empty((n, weights.shape[1]))
        for rows in row_blocks(n):
            result[rows] = np.square(self.vectors[rows]) @ weights
        return result


def kept_basis(basis: SpectralBasis | None, owner: str, call: str) -> SpectralBasis:
    """Require the basis of a path; it is as large as the problem, and no part of a JSON form."""
    if basis is None:
        raise InvalidInput(
            f"The JSON form of a {owner} holds its curves, not the eigenvectors that its "
            f"coefficients are made of. Compute it again with {call}."
        )
    return basis


def spectral_basis(
    K: FloatArray | LinearOperator,
    Y: FloatArray,
    weights: Callable[[FloatArray], FloatArray],
    *,
    tolerance: float,
    max_steps: int,
    probes: int,
    rng: int | np.random.Generator,
    owner: str,
) -> tuple[SpectralBasis, FloatArray]:
    """Return a space that holds α = a(K) Y for every filter a, and the residual of each there.

    Parameters
    ----------
    K : ndarray or LinearOperator of shape (n, n)
        A matrix is decomposed; an operator is multiplied until the residuals are below `tolerance`
        or `max_steps` are done.
    Y : ndarray of shape (n, k)
    weights : callable
        From m eigenvalues to the values of every filter there, shape (filters, m).
    tolerance, max_steps, probes, rng, owner
        As for `ridge_path`, which is an owner.
    """
    matrix = requirements.symmetric_matrix(K, owner)
    steps = checks.positive_integer(max_steps, "max_steps", owner)
    number = checks.integer_at_least(probes, 2, "probes", owner)
    generator = checks.random_generator(rng, owner)

    def good(space: SpectralBasis) -> bool:
        return all(space.outside(row) <= tolerance for row in weights(space.values))

    if isinstance(K, np.ndarray):
        basis = _dense_basis(np.asarray(K, dtype=np.float64), Y, owner)
    else:
        basis = _krylov_basis(matrix, Y, good, steps, number, generator)
    return basis, np.array([basis.residual(row) for row in weights(basis.values)])


def _dense_basis(K: FloatArray, Y: FloatArray, owner: str) -> SpectralBasis:
    """All eigenvectors of a matrix."""
    n = len(K)
    why = "the most that LAPACK's eigenvectors allow; pass a KernelOperator"
    requirements.at_most(n, _LAPACK, "rows of K", owner, why)
    checks.enough_memory(
        3 * 8 * n * n,
        f"The eigendecomposition of a {n} × {n} kernel",
        "Pass a KernelOperator, which is never held as a whole.",
    )
    values, vectors = np.linalg.eigh(K)
    return SpectralBasis(values, vectors, vectors.T @ Y, np.empty((0, n)), None)


def _krylov_basis(
    matrix: LinearOperator,
    Y: FloatArray,
    good: Callable[[SpectralBasis], bool],
    max_steps: int,
    probes: int,
    rng: np.random.Generator,
) -> SpectralBasis:
    """Block Lanczos from Y, until the space is `good` or complete, or `max_steps` are done."""
    n = matrix.shape[0]
    left, sizes, _ = np.linalg.svd(Y, full_matrices=False)
    # Centred one-hot targets add up to zero: K columns of rank K − 1.
    fresh = left[:, sizes > 1e-13 * sizes.max(initial=1e-300)]
    basis, inner = fresh, np.empty((0, 0))
    density = spectral_density(matrix, probes=probes, rng=rng)
    check = 4
    for step in range(1, max_steps + 1):
        image = np.asarray(matrix @ fresh)
        old, width = len(inner), fresh.shape[1]
        grown = np.zeros((old + width, old + width))
        grown[:old, :old] = inner
        # All earlier blocks, not the last two alone: rounding makes the short recurrence lose
        # orthogonality as soon as a Ritz value converges.  The second time removes what is left.
        for _ in range(2):
            known = basis.T @ image
            grown[:, old:] += known
            image = image - basis @ known
        grown[old:, :old] = grown[:old, old:].T
        inner = grown
        left, sizes, right = np.linalg.svd(image, full_matrices=False)
        room = n - basis.shape[1]
        # Directions below rounding leave the block; when none is left the space is invariant.
        kept = np.flatnonzero(sizes[:room] > 1e-12 * np.abs(np.diag(inner)).max())
        next_block, onward = left[:, kept], sizes[kept, None] * right[kept]
        complete = not len(kept)
        if complete or step in (check, max_steps):
            # A check is a dense eigenproblem, O(m³); at geometric distances all of them together
            # cost little more than the last, and at most 30 % of the products are superfluous.
            check = max(check + 1, int(1.3 * check))
            values, axes = np.linalg.eigh(0.5 * (inner + inner.T))
            projected = axes.T @ (basis.T @ Y)
            # K·basis = basis·inner + next_block·onward, where `onward` meets the last block alone.
            tail = onward @ axes[old:]
            space = SpectralBasis(values, np.empty((n, 0)), projected, tail, density)
            if complete or step == max_steps or good(space):
                return SpectralBasis(values, basis @ axes, projected, tail, density)
        basis, fresh = np.concatenate([basis, next_block], axis=1), next_block
    raise AssertionError("unreachable")

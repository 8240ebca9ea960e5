"""One block Lanczos iteration behind eigenpairs, spectral densities and regularisation paths."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernel_solvers.solve import symmetric_matrix
from notsodeep.records import Plotted

EXTRA = 4
"""Vectors of a block beyond the eigenpairs wanted: convergence is ruled by the gap to the first
eigenvalue outside the block, not by the next one."""

CHECK_GROWTH = 1.3
"""A check is a dense eigenproblem, O(m³): at geometric distances all of them together cost little
more than the last, and at most 30 % of the products are superfluous."""


@dataclass(frozen=True, eq=False)
class KrylovSpace:
    """K·basis = basis·inner + Q·onward, Q orthonormal and orthogonal to the basis."""

    basis: FloatArray  # (n, m), orthonormal
    inner: FloatArray  # (m, m)
    onward: FloatArray  # (s, block): what leaves the space, from the last block
    start: FloatArray  # (r, k): the start is the first r columns of the basis times this
    complete: bool

    def ritz(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return Ritz values (m,), vectors in terms of the basis (m, m), and onward of each."""
        values, axes = np.linalg.eigh(0.5 * (self.inner + self.inner.T))
        return values, axes, self.onward @ axes[len(axes) - self.onward.shape[1] :]


def krylov_spaces(
    operator: LinearOperator, start: FloatArray, max_steps: int
) -> Iterator[KrylovSpace]:
    """Grow a space by one block product at a time; yield it after each, until it is complete."""
    n = len(start)
    left, sizes, right = np.linalg.svd(start, full_matrices=False)
    # Centred one-hot targets add up to zero: K columns of rank K − 1.
    mask = sizes > 1e-13 * sizes.max(initial=1e-300)
    fresh, coordinates = left[:, mask], sizes[mask, None] * right[mask]
    basis, inner = np.empty((n, 0)), np.empty((0, 0))
    for _ in range(max_steps):
        basis = np.concatenate([basis, fresh], axis=1)
        image = np.asarray(operator @ fresh)
        old = len(inner)
        grown = np.zeros((basis.shape[1],) * 2)
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
        # Directions below rounding leave the block; when none is left the space is invariant.
        scale = max(np.abs(np.diag(inner)).max(), 1e-300)
        mask = np.flatnonzero(sizes[: n - basis.shape[1]] > 1e-12 * scale)
        onward = sizes[mask, None] * right[mask]
        yield KrylovSpace(basis, inner, onward, coordinates, not len(mask))
        if not len(mask):
            return
        fresh = left[:, mask]


def next_check(step: int) -> int:
    """Return the step at which to look again."""
    return max(step + 1, int(CHECK_GROWTH * step))


@dataclass(frozen=True, eq=False, repr=False)
class Eigenpairs(Plotted):
    """Leading eigenpairs."""

    _drawing = "eigenpairs"

    values: FloatArray  # (count,), descending
    vectors: FloatArray  # (n, count), orthonormal
    residuals: FloatArray  # (count,): ‖K v − θ v‖; an eigenvalue of K lies within this of θ
    converged: bool
    steps: int  # products of the operator with a block of vectors
    seconds: float
    reason: str


def top_eigenpairs(
    operator: LinearOperator | FloatArray,
    count: int,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 100,
    rng: int | np.random.Generator = 0,
    raises: bool = True,
) -> Eigenpairs:
    """Find the largest eigenvalues of a symmetric operator and their eigenvectors.

    Block Lanczos with full orthogonalisation, 8·n·(count + 4)·steps bytes.  In blocks, because a
    product of a kernel with many vectors costs little more than with one.

    Parameters
    ----------
    operator : LinearOperator or ndarray of shape (n, n)
        Symmetric.
    count : int
        Eigenpairs wanted.
    tolerance : float
        Every ‖K v − θ v‖ must be below this times the largest |θ|.
    max_steps : int
        Most products of the operator with a block.
    rng : int or numpy.random.Generator
        Draws the vectors to start from.
    raises : bool, default True
        Raise `NotConverged` on failure; otherwise return the record with ``converged=False``.

    Examples
    --------
    >>> pairs = top_eigenpairs(np.diag(np.arange(1.0, 101.0)), 3)
    >>> pairs.values.round(6), pairs.converged
    (array([100.,  99.,  98.]), True)
    """
    began = time.perf_counter()
    matrix = symmetric_matrix(operator)
    n = matrix.shape[0]
    count = checks.positive_integer(count, "count", "top_eigenpairs")
    if count > n:
        raise InvalidInput(f"count must be at most {n}, the size of the operator, got {count}.")
    rtol = checks.positive_number(tolerance, "tolerance", "top_eigenpairs")
    most = checks.positive_integer(max_steps, "max_steps", "top_eigenpairs")
    generator = checks.random_generator(rng, "top_eigenpairs")
    start = generator.standard_normal((n, min(n, count + EXTRA)))
    converged, check = False, 1
    for steps, space in enumerate(krylov_spaces(matrix, start, most), 1):
        if steps < min(check, most) and not space.complete:
            continue
        check = steps + 1 if steps < 12 else next_check(steps)
        values, axes, tail = space.ritz()
        residuals = np.linalg.norm(tail[:, ::-1][:, :count], axis=0)
        converged = bool((residuals <= rtol * np.abs(values).max()).all())
        if converged or space.complete:
            break
    reason = "converged" if converged else f"no convergence in {steps} steps"
    vectors = space.basis @ axes[:, ::-1][:, :count]
    seconds = time.perf_counter() - began
    pairs = Eigenpairs(values[::-1][:count], vectors, residuals, converged, steps, seconds, reason)
    if raises and not converged:
        raise NotConverged(
            f"The {count} largest eigenpairs were not found to a relative {rtol:g}: {reason} "
            f"(residual {residuals.max():.3g} of {np.abs(values).max():.3g}). Ask for one pair "
            "more, so that the last is not one of a cluster, or allow a larger tolerance.",
            pairs,
        )
    return pairs


@dataclass(frozen=True, eq=False, repr=False)
class SpectralDensity(Plotted):
    """The law of the eigenvalues of a symmetric operator, as seen by random probes.

    Each probe v gives weights that sum to one for averages vᵀf(K)v at the common nodes; their mean
    estimates tr f(K)/n and their spread its standard error.
    """

    _drawing = "spectral_density"

    nodes: FloatArray  # (m,)
    weights: FloatArray  # (probes, m)
    size: int  # number of eigenvalues n

    def average(self, function: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
        """Return tr f(K)/n and its standard error, f applied to eigenvalues."""
        value, error = self._over_probes(np.asarray(function(self.nodes)))
        return float(value), float(error)

    def cdf(self, x: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the share of eigenvalues ≤ x and its standard error, shaped as x.

        A jump at every node: smooth on the scale of the distance of nodes.
        """
        points = checks.real_array(x, "x", "cdf")
        return self._over_probes((self.nodes <= points[..., None]).astype(np.float64))

    def density(self, x: ArrayLike, width: float) -> tuple[FloatArray, FloatArray]:
        """Return the density at x and its standard error, smoothed by a Gaussian.

        `width` is its standard deviation: a few percent of the width of the bulk.
        """
        points = checks.real_array(x, "x", "density")
        scale = checks.positive_number(width, "width", "density")
        bumps = np.exp(-0.5 * ((points[..., None] - self.nodes) / scale) ** 2)
        return self._over_probes(bumps / (scale * np.sqrt(2.0 * np.pi)))

    def _over_probes(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard error of Σ weights·values over probes; values (…, m)."""
        single = values @ self.weights.T
        error = single.std(axis=-1, ddof=1) / np.sqrt(len(self.weights))
        return np.asarray(single.mean(axis=-1)), np.asarray(error)


def spectral_density(
    operator: LinearOperator | FloatArray,
    *,
    probes: int = 10,
    steps: int = 80,
    rng: int | np.random.Generator = 0,
) -> SpectralDensity:
    """Estimate the density of all eigenvalues by block Lanczos quadrature.

    Ubaru, Chen and Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature" (SIAM J.
    Matrix Anal. Appl. 38, 2017), with all probes in one block.  `steps` products of the operator
    with `probes` vectors; all Lanczos vectors are kept, 8·n·probes·steps bytes.

    Parameters
    ----------
    operator : LinearOperator or ndarray of shape (n, n)
        Symmetric.
    probes : int
        Random vectors, at least 2; the error falls with their square root, and with that of n.
    steps : int
        Resolution: polynomials of degree 2·steps − 1 are averaged exactly over each probe.
    rng : int or numpy.random.Generator

    Examples
    --------
    >>> density = spectral_density(np.diag(np.linspace(1.0, 2.0, 400)), probes=4, steps=20)
    >>> mean, error = density.average(lambda x: x)
    >>> bool(abs(mean - 1.5) < 5 * error)
    True
    """
    matrix = symmetric_matrix(operator)
    n = matrix.shape[0]
    probes = checks.integer_at_least(probes, 2, "probes", "spectral_density")
    steps = checks.positive_integer(steps, "steps", "spectral_density")
    checks.enough_memory(
        8 * n * probes * min(steps, -(-n // probes)),
        f"A density of {probes} probes, {steps} steps",
        "Lower probes, or steps.",
    )
    generator = checks.random_generator(rng, "spectral_density")
    start = generator.standard_normal((n, probes))
    start /= np.linalg.norm(start, axis=0)
    *_, space = krylov_spaces(matrix, start, steps)
    values, axes, _ = space.ritz()
    # Gauss quadrature: squared components of each probe along the Ritz vectors.
    along = space.start.T @ axes[: len(space.start)]
    return SpectralDensity(values, along**2, n)

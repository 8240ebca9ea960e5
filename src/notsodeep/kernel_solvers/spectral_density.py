"""The density of all eigenvalues of an operator, estimated from products with random vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.kernel_solvers import requirements
from notsodeep.records import Plotted

Estimate = tuple[FloatArray, FloatArray]
"""An average over the probes, and its standard error."""


@dataclass(frozen=True, eq=False, repr=False)
class SpectralDensity(Plotted):
    """The law of the eigenvalues of a symmetric operator, as seen by random probes.

    Each probe v gives a quadrature rule, nodes θ and weights that sum to one, for averages
    vᵀf(K)v/‖v‖²; their mean estimates tr f(K)/n and their spread its standard error.

    Attributes
    ----------
    nodes, weights : ndarray of shape (probes, steps)
        Rules of fewer steps are filled up with weights of zero.
    size : int
        Number of eigenvalues n.

    Examples
    --------
    >>> density = spectral_density(np.diag(np.linspace(0.0, 1.0, 500)), probes=20, steps=40)
    >>> share, error = density.cdf([0.25, 0.5])
    >>> bool((abs(share - [0.25, 0.5]) < 0.05).all()), density.size
    (True, 500)
    """

    _drawing = "spectral_density"

    nodes: FloatArray
    weights: FloatArray
    size: int

    def average(self, function: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
        """Return tr f(K)/n and its standard error, f applied to eigenvalues."""
        value, error = self._over_probes(np.asarray(function(self.nodes))[None])
        return float(value[0]), float(error[0])

    def cdf(self, x: ArrayLike) -> Estimate:
        """Return the share of eigenvalues ≤ x and its standard error, shaped as x.

        To be held against ``limiting_spectrum(eq).cdf(x)``.  A jump at every node: smooth on the
        scale of the distance of nodes.
        """
        points = checks.real_array(x, "x", "SpectralDensity.cdf")
        inside = self.nodes <= points.reshape(-1, 1, 1)
        value, error = self._over_probes(inside.astype(np.float64))
        return value.reshape(points.shape), error.reshape(points.shape)

    def density(self, x: ArrayLike, width: float) -> Estimate:
        """Return the density at x and its standard error, smoothed by a Gaussian.

        To be held against ``limiting_spectrum(eq).density(x)``.

        Parameters
        ----------
        x : array_like
        width : float
            Standard deviation of the Gaussian: a few percent of the width of the bulk.
        """
        owner = "SpectralDensity.density"
        points = checks.real_array(x, "x", owner)
        scale = checks.positive_number(width, "width", owner)
        away = (points.reshape(-1, 1, 1) - self.nodes) / scale
        bumps = np.exp(-0.5 * away**2) / (scale * np.sqrt(2.0 * np.pi))
        value, error = self._over_probes(bumps)
        return value.reshape(points.shape), error.reshape(points.shape)

    def _over_probes(self, values: FloatArray) -> Estimate:
        """Mean and standard error of Σ weights·values over probes; values (m, probes, steps)."""
        single = (values * self.weights).sum(axis=2)
        probes = len(self.weights)
        return single.mean(axis=1), single.std(axis=1, ddof=1) / np.sqrt(probes)


def spectral_density(
    operator: LinearOperator | FloatArray,
    *,
    probes: int = 10,
    steps: int = 80,
    rng: int | np.random.Generator = 0,
) -> SpectralDensity:
    """Estimate the density of all eigenvalues by stochastic Lanczos quadrature.

    Ubaru, Chen and Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature" (SIAM J.
    Matrix Anal. Appl. 38, 2017).  `steps` products of the operator with `probes` vectors; all
    Lanczos vectors are kept and made orthogonal again, 8·n·probes·steps bytes.

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
    owner = "spectral_density"
    matrix = requirements.symmetric_matrix(operator, owner)
    n = matrix.shape[0]
    probes = checks.integer_at_least(
        probes, 2, "probes", owner, "One probe alone cannot tell its error."
    )
    steps = min(checks.positive_integer(steps, "steps", owner), n)
    checks.enough_memory(
        8 * n * probes * steps,
        f"A density of {probes} probes, {steps} steps",
        "Lower probes, or steps.",
    )
    generator = checks.random_generator(rng, owner)
    vectors = np.zeros((steps, n, probes))
    start = generator.standard_normal((n, probes))
    vectors[0] = start / np.linalg.norm(start, axis=0)
    diagonals, offsets = np.zeros((probes, steps)), np.zeros((probes, steps))
    for step in range(steps):
        image = np.asarray(matrix @ vectors[step])
        diagonals[:, step] = np.einsum("ij,ij->j", vectors[step], image)
        # Without this converged Ritz values come back as copies, in the place of new nodes.
        for _ in range(2):
            known = np.einsum("tij,ij->tj", vectors[: step + 1], image)
            image -= np.einsum("tij,tj->ij", vectors[: step + 1], known)
        norms = np.linalg.norm(image, axis=0)
        # A probe whose space is exhausted stops; what follows has no weight.
        scale = np.abs(diagonals).max(axis=1) + offsets.max(axis=1)
        offsets[:, step] = np.where(norms > 1e-12 * scale, norms, 0.0)
        if step + 1 < steps:
            alive = offsets[:, step] > 0.0
            vectors[step + 1][:, alive] = image[:, alive] / norms[alive]
    nodes, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    for probe in range(probes):
        ends = np.flatnonzero(offsets[probe] == 0.0)
        length = int(ends[0]) + 1 if len(ends) else steps
        values, axes = eigh_tridiagonal(
            diagonals[probe, :length], offsets[probe, : length - 1], lapack_driver="stev"
        )
        # Gauss quadrature: squared first components, since the probe is the first Lanczos vector.
        nodes[probe, :length], weights[probe, :length] = values, axes[0] ** 2
    return SpectralDensity(nodes, weights, n)

"""The eigenvalue distribution of the mean covariance C° = Σ_a (n_a/n) C_a."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from notsodeep.arrays import FloatArray, IntArray

SpectrumOrigin = Literal["population", "pooled within-class sample covariance"]


@dataclass(frozen=True, eq=False)
class ClassCovariances:
    """The covariances C_1 … C_K and the means in a basis that diagonalises every C_a.

    Attributes
    ----------
    eigenvalues : ndarray of shape (m, K)
        The distinct rows (λ_1, …, λ_K): one eigenvalue of each class, for m groups of directions.
    weights : ndarray of shape (m,)
        The share of the p directions in each group.
    group : ndarray of shape (p,)
        The group of each direction.
    means : ndarray of shape (p, K)
        Coordinates of the raw means μ_a in these directions.
    shared_basis : bool
        False if the C_a do not commute: then no such basis exists, the directions are those of C°,
        and every column of `eigenvalues` is that of C°.
    """

    eigenvalues: FloatArray
    weights: FloatArray
    group: IntArray
    means: FloatArray
    shared_basis: bool

    @classmethod
    def from_directions(
        cls, values: FloatArray, means: FloatArray, *, shared_basis: bool = True
    ) -> ClassCovariances:
        """Group p directions, given by their eigenvalues (p, K) and mean coordinates (p, K).

        Eigenvalues that agree to 1e-12 of the largest are one, and below that they are zero:
        computed ones of a full matrix are no more exact.
        """
        grain = 1e-12 * max(float(values.max()), 1e-300)
        clean = np.where(values > grain, values, 0.0)
        _, first, group, counts = np.unique(
            np.rint(clean / grain), axis=0, return_index=True, return_inverse=True,
            return_counts=True,
        )  # fmt: skip
        return cls(clean[first], counts / counts.sum(), group.reshape(-1), means, shared_basis)


@dataclass(frozen=True, eq=False)
class CovarianceSpectrum:
    """A discrete law Σ_k w_k δ(λ_k) of the eigenvalues of C°, raw scale (not divided by p).

    Attributes
    ----------
    eigenvalues : ndarray of shape (m,)
        The distinct atoms λ_k ≥ 0, ascending.
    weights : ndarray of shape (m,)
        The share of the p eigenvalues at each atom; they sum to one.
    origin : str
        ``"population"``: exact, from a known mixture.  ``"pooled within-class sample
        covariance"``: eigenvalues of an estimate, which sampling spreads out (by about the
        factor (1 ± √(p/n))² of Marchenko and Pastur); they estimate the trace of C° without
        bias, but not its spectrum.
    classes : ClassCovariances or None
        The covariance of each class by itself; known for a mixture only.

    Examples
    --------
    >>> from notsodeep.data import paper_mixture
    >>> mixture = paper_mixture(dimension=100)
    >>> spectrum = mixture.statistics(*mixture.sample(80, rng=0)).covariance_spectrum
    >>> spectrum.eigenvalues, spectrum.weights, spectrum.is_population
    (array([1.4]), array([1.]), True)
    """

    eigenvalues: FloatArray
    weights: FloatArray
    origin: SpectrumOrigin
    classes: ClassCovariances | None = None

    @classmethod
    def from_eigenvalues(
        cls, values: FloatArray, origin: SpectrumOrigin, classes: ClassCovariances | None = None
    ) -> CovarianceSpectrum:
        """Collect p eigenvalues, in any order, into atoms and weights.

        Rounding can leave eigenvalues of a semi-definite matrix slightly below zero; they are
        set to zero.
        """
        atoms, counts = np.unique(np.maximum(values, 0.0), return_counts=True)
        return cls(atoms, counts / counts.sum(), origin, classes)

    @property
    def is_population(self) -> bool:
        """Whether these are the eigenvalues of the true C°."""
        return self.origin == "population"

    def mean(self) -> float:
        """First moment, tr C°/p = τ0²."""
        return float(self.weights @ self.eigenvalues)

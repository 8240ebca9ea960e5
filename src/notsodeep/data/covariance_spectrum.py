"""The eigenvalue distribution of the mean covariance C° = Σ_a (n_a/n) C_a."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from notsodeep.checks import FloatArray

SpectrumOrigin = Literal["population", "pooled within-class sample covariance"]


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
    """

    eigenvalues: FloatArray
    weights: FloatArray
    origin: SpectrumOrigin

    @classmethod
    def from_eigenvalues(cls, values: FloatArray, origin: SpectrumOrigin) -> CovarianceSpectrum:
        """Collect p eigenvalues, in any order, into atoms and weights.

        Rounding can leave eigenvalues of a semi-definite matrix slightly below zero; they are
        set to zero.
        """
        atoms, counts = np.unique(np.maximum(values, 0.0), return_counts=True)
        return cls(atoms, counts / counts.sum(), origin)

    @property
    def is_population(self) -> bool:
        """Whether these are the eigenvalues of the true C°."""
        return self.origin == "population"

    def mean(self) -> float:
        """First moment, tr C°/p = τ0²."""
        return float(self.weights @ self.eigenvalues)

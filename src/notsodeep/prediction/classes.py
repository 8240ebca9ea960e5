"""What the theory needs to know of the classes: covariances and means, free of the dimension."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import GaussianMixture
from notsodeep.errors import InvalidInput

GROUPS = 64
"""Groups of directions that a covariance spectrum is merged into: four digits of every risk."""

SAME_BASIS_TOL = 1e-9
"""Share of the covariances off the diagonal up to which they count as commuting."""


@dataclass(frozen=True, eq=False)
class Classes:
    """K classes x ~ N(μ_a/√p, C_a/p) whose covariances share a basis, in groups of directions.

    Examples
    --------
    >>> classes = Classes.of(GaussianMixture(means=np.eye(2, 30), covariances=[1.0, 1.5]))
    >>> classes.values, classes.traces, classes.overlaps
    (array([[1. , 1.5]]), array([1. , 1.5]), array([[1.  , 1.5 ], [1.5 , 2.25]]))
    """

    dimension: int  # p
    values: FloatArray  # (m, K): λ_ga, the eigenvalue of C_a in group g
    weights: FloatArray  # (m,): w_g, the share of the p directions in each group
    gram: FloatArray  # (m, K, K): B_g[a, b] = Σ_{k∈g} μ_ak μ_bk, raw means
    shared_basis: bool = True  # False: C_a are taken by their diagonals in the basis of the mean

    @classmethod
    def of(cls, mixture: object) -> Classes:
        """Read a mixture of at least two classes."""
        if not isinstance(mixture, GaussianMixture):
            raise InvalidInput(
                f"mixture must be a GaussianMixture, got {type(mixture).__name__}. For real data "
                "use nsd.prediction.pilot_curve(nsd.kernel(model, X), y, ridges)."
            )
        K, p = mixture.means.shape
        if K < 2:
            raise InvalidInput(f"mixture must have at least two classes, got {K}.")
        C, means, shared = mixture.covariances, mixture.means, True
        if C.ndim < 3:
            values = np.broadcast_to(C.reshape(K, -1), (K, p))
        else:
            # The eigenvectors of a generic combination diagonalise every C_a if they commute, also
            # where the mean has equal eigenvalues.
            generic = np.modf(np.sqrt(2.0) * np.arange(1, K + 1))[0] + 0.5
            for mixing in (generic, mixture.weights):
                basis = np.linalg.eigh(np.tensordot(mixing, C, 1))[1]
                turned = basis.T @ C @ basis
                values = np.maximum(np.diagonal(turned, axis1=1, axis2=2), 0.0)
                turned[:, np.arange(p), np.arange(p)] = 0.0
                shared = bool(np.linalg.norm(turned) <= SAME_BASIS_TOL * np.linalg.norm(values))
                if shared:
                    break
            means = means @ basis
        grain = 1e-12 * values.max()  # computed eigenvalues are no more exact
        rows, group = np.unique(np.rint(values.T / grain), axis=0, return_inverse=True)
        group, m = group.reshape(-1), len(rows)
        gram = np.zeros((m, K, K))
        np.add.at(gram, group, means.T[:, :, None] * means.T[:, None, :])
        weights = np.bincount(group, minlength=m).astype(np.float64) / p
        return cls(p, rows * grain, weights, gram, shared).merged(GROUPS)

    def merged(self, groups: int) -> Classes:
        """Merge directions of neighbouring mean eigenvalue into groups of equal share."""
        if len(self.values) <= groups:
            return self
        order = np.argsort(self.values.mean(axis=1), kind="stable")
        # By the middle of each direction's share, so that a heavy one does not straddle two groups.
        share = np.cumsum(self.weights[order]) - 0.5 * self.weights[order]
        label = np.empty(len(order), np.intp)
        label[order] = np.minimum((share * groups).astype(np.intp), groups - 1)
        weights = np.asarray(np.bincount(label, self.weights, groups), dtype=np.float64)
        values, gram = np.zeros((groups, self.count)), np.zeros((groups, self.count, self.count))
        np.add.at(values, label, self.weights[:, None] * self.values)  # traces are kept
        np.add.at(gram, label, self.gram)
        used = weights > 0.0
        values = values[used] / weights[used, None]
        return Classes(self.dimension, values, weights[used], gram[used], self.shared_basis)

    @property
    def count(self) -> int:
        """K."""
        return int(self.values.shape[1])

    @functools.cached_property
    def traces(self) -> FloatArray:
        """Tr C_a/p, shape (K,)."""
        return self.weights @ self.values

    @functools.cached_property
    def overlaps(self) -> FloatArray:
        """T_ab = tr C_a C_b/p, shape (K, K)."""
        return (self.weights[:, None] * self.values).T @ self.values

    @functools.cached_property
    def third_overlaps(self) -> FloatArray:
        """Tr C_a C_b²/p, shape (K, K)."""
        return (self.weights[:, None] * self.values).T @ self.values**2

    @functools.cached_property
    def mean_products(self) -> FloatArray:
        """μ_a·μ_b, shape (K, K)."""
        return np.asarray(self.gram.sum(axis=0))

    @functools.cached_property
    def mean_forms(self) -> FloatArray:
        """μ_aᵀ C_c μ_b, shape (K, K, K), the class c of the covariance last."""
        return np.tensordot(self.gram, self.values, axes=(0, 0))

    @functools.cached_property
    def with_means(self) -> IntArray:
        """Groups that the means lie in."""
        return np.flatnonzero(np.abs(self.gram).max(axis=(1, 2)) > 0.0)

    @functools.cached_property
    def mean_roots(self) -> FloatArray:
        """R_g with B_g = R_g R_gᵀ for the groups `with_means`."""
        squares, basis = np.linalg.eigh(self.gram[self.with_means])
        return np.asarray(basis * np.sqrt(np.maximum(squares, 0.0))[:, None, :])

    def scale(self, shares: FloatArray) -> float:
        """τ0 = √(Σ_a share_a tr C_a/p)."""
        return float(np.sqrt(shares @ self.traces))

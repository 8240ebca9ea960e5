"""What the theory needs to know of the classes: covariances and means, free of the dimension."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.data.mixture_statistics import ClassCovariances
from notsodeep.errors import InvalidInput

GROUPS = 64
"""Groups of directions that a covariance spectrum is merged into: four digits of every risk."""


@dataclass(frozen=True, eq=False)
class Classes:
    """K classes x ~ N(μ_a/√p, C_a/p) whose covariances share a basis, in groups of directions.

    Attributes
    ----------
    dimension : int
        p.
    values : ndarray of shape (m, K)
        λ_ga, the eigenvalue of C_a in group g.
    weights : ndarray of shape (m,)
        w_g, the share of the p directions in each group.
    gram : ndarray of shape (m, K, K)
        B_g[a, b] = Σ_{k∈g} μ_ak μ_bk, raw means.
    full : ndarray of shape (K, p, p) or None
        The covariances, if they share no basis.  `values` are then their diagonals in the basis of
        their mean: enough for traces, not for resolvents.
    means : ndarray of shape (K, p) or None
        μ_a, beside `full`.

    Examples
    --------
    >>> mixture = GaussianMixture(means=np.eye(2, 30), covariances=[1.0, 1.5])
    >>> classes = Classes.of(mixture)
    >>> classes.values, classes.traces, classes.overlaps
    (array([[1. , 1.5]]), array([1. , 1.5]), array([[1.  , 1.5 ], [1.5 , 2.25]]))
    """

    dimension: int
    values: FloatArray
    weights: FloatArray
    gram: FloatArray
    full: FloatArray | None = None
    means: FloatArray | None = None

    @classmethod
    def of(cls, source: object, owner: str = "predict_risk") -> Classes:
        """Read a mixture, or the exact statistics of a sample of one.

        Raises
        ------
        InvalidInput
            It is neither, it has one class only, or the statistics do not hold the covariance of
            each class.
        """
        if isinstance(source, Classes):
            return source
        if isinstance(source, GaussianMixture):
            known = source._class_covariances(source.weights)
            if not known.shared_basis:
                return cls.without_basis(source, owner)
        elif isinstance(source, MixtureStatistics):
            known = _known_covariances(source, owner)
        else:
            requirement = "be a GaussianMixture, or the statistics of a sample of one"
            remedy = (
                "Of rows and labels, prediction.estimated_mixture(X, y) makes one; "
                "prediction.pilot_curve(kernel(model, X), y, ridges) needs none."
            )
            raise checks.invalid("mixture", owner, requirement, type(source).__name__, remedy)
        return cls._grouped(known, owner)

    @classmethod
    def _grouped(cls, known: ClassCovariances, owner: str) -> Classes:
        p, K = known.means.shape
        _several(K, owner)
        gram = np.zeros((len(known.weights), K, K))
        np.add.at(gram, known.group, known.means[:, :, None] * known.means[:, None, :])
        return cls(p, known.eigenvalues, known.weights, gram)._merged(GROUPS)

    @classmethod
    def without_basis(cls, mixture: GaussianMixture, owner: str) -> Classes:
        """Keep full covariances (K, p, p), as if they shared no basis."""
        K, p = mixture.means.shape
        _several(K, owner)
        basis = np.linalg.eigh(np.tensordot(mixture.weights, mixture.covariances, 1))[1]
        values = np.einsum("ki,akl,li->ia", basis, mixture.covariances, basis, optimize=True)
        along = (mixture.means @ basis).T
        gram = along[:, :, None] * along[:, None, :]
        return cls(
            p, np.maximum(values, 0.0), np.full(p, 1.0 / p), gram,
            mixture.covariances, mixture.means,
        )  # fmt: skip

    def _merged(self, groups: int) -> Classes:
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
        kept = weights > 0.0
        return Classes(
            self.dimension, values[kept] / weights[kept, None], weights[kept], gram[kept]
        )

    def coarser(self, groups: int) -> Classes:
        """Return the same classes in fewer groups of directions, as if they shared a basis."""
        return Classes(self.dimension, self.values, self.weights, self.gram)._merged(groups)

    @property
    def count(self) -> int:
        """K."""
        return int(self.values.shape[1])

    @functools.cached_property
    def traces(self) -> FloatArray:
        """Tr C_a/p, shape (K,)."""
        return np.asarray(self.weights @ self.values)

    @functools.cached_property
    def overlaps(self) -> FloatArray:
        """T_ab = tr C_a C_b/p, shape (K, K)."""
        if self.full is not None:
            flat = self.full.reshape(self.count, -1)
            return np.asarray(flat @ flat.T / self.dimension)
        return np.asarray((self.weights[:, None] * self.values).T @ self.values)

    @functools.cached_property
    def third_overlaps(self) -> FloatArray:
        """Tr C_a C_b²/p, shape (K, K)."""
        if self.full is not None:
            squares = self.full @ self.full
            flat = (matrix.reshape(self.count, -1) for matrix in (self.full, squares))
            return np.asarray(next(flat) @ next(flat).T / self.dimension)
        return np.asarray((self.weights[:, None] * self.values).T @ self.values**2)

    @functools.cached_property
    def mean_products(self) -> FloatArray:
        """μ_a·μ_b, shape (K, K)."""
        return np.asarray(self.gram.sum(axis=0))

    def mean_forms(self) -> FloatArray:
        """Return μ_aᵀ C_c μ_b, shape (K, K, K), the class of the covariance last."""
        if self.full is not None and self.means is not None:
            moved = self.full @ self.means.T  # (c, p, b)
            return np.asarray(np.moveaxis(self.means @ moved, 0, -1))
        return np.asarray(np.tensordot(self.gram, self.values, axes=(0, 0)))

    def scale(self, shares: FloatArray) -> float:
        """τ0 = √(Σ_a share_a tr C_a/p)."""
        return float(np.sqrt(shares @ self.traces))


def _known_covariances(stats: MixtureStatistics, owner: str) -> ClassCovariances:
    known = stats.covariance_spectrum.classes
    if known is not None and known.shared_basis:
        return known
    got = "estimated ones" if known is None else "covariances that share no basis"
    raise InvalidInput(
        f"mixture of {owner} must hold the covariance of each class, which statistics have only if "
        f"they are exact and the covariances commute. Got {got}. Use the GaussianMixture itself, "
        "or notsodeep.prediction.estimated_mixture(X, y)."
    )


def _several(K: int, owner: str) -> None:
    if K < 2:
        raise checks.invalid("mixture", owner, "have at least two classes", K)

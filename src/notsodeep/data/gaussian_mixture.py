"""Gaussian mixtures in the theory's scaling."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data.mixture_statistics import (
    ClassCovariances,
    CovarianceSpectrum,
    MixtureStatistics,
)
from notsodeep.data.preprocessing import to_theory_scale
from notsodeep.errors import InvalidInput


@dataclass(frozen=True, eq=False, init=False)
class GaussianMixture:
    """K classes x ~ N(μ_a/√p, C_a/p) (mixture paper, arXiv 2402.02697, section 2).

    Parameters
    ----------
    means : array-like of shape (K, p)
        The raw means μ_a.
    covariances : array-like
        The raw covariances C_a: one scalar c for C_a = c·I in every class, or shape (K,) for
        C_a = c_a·I, (K, p) for diagonals, (K, p, p) for full matrices; positive semi-definite.
    weights : array-like of shape (K,), optional
        Class probabilities, positive, with sum 1; equal if left out.

    Examples
    --------
    >>> mixture = GaussianMixture(means=[[2.0, 0, 0, 0], [0, 2.0, 0, 0]], covariances=[1.0, 1.5])
    >>> X, y = mixture.sample(6, rng=0)
    >>> X.shape, sorted(y.tolist())
    ((6, 4), [0, 0, 0, 1, 1, 1])
    >>> mixture.statistics(X, y).T
    array([[1.  , 1.5 ],
           [1.5 , 2.25]])
    """

    means: FloatArray
    covariances: FloatArray
    weights: FloatArray

    def __init__(
        self, means: ArrayLike, covariances: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        owner = "GaussianMixture"
        centres = checks.samples(means, "means", owner)
        arrays = {
            "means": centres,
            "covariances": _covariance_stack(covariances, centres, owner),
            "weights": _class_proportions(weights, len(centres), owner),
        }
        for name, array in arrays.items():
            own = array.copy()
            own.flags.writeable = False
            object.__setattr__(self, name, own)
        checks.nonzero_scale(float(self.weights @ self._traces), owner)
        if self.covariances.ndim == 3:
            _ = self._roots  # factorised now, so that a matrix that is not PSD is rejected now

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GaussianMixture):
            return NotImplemented
        return (
            np.array_equal(self.means, other.means)
            and np.array_equal(self.covariances, other.covariances)
            and np.array_equal(self.weights, other.weights)
        )

    def __hash__(self) -> int:
        return hash((self.means.tobytes(), self.covariances.tobytes(), self.weights.tobytes()))

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return len(self.means)

    @property
    def dimension(self) -> int:
        """Number of features p."""
        return int(self.means.shape[1])

    def class_counts(self, n: int) -> IntArray:
        """Class sizes of a sample of `n`: the integers nearest to n·weights that sum to n.

        The rounding is by largest remainder (ties to the lower class), so each count is within
        one of n·weight and depends on nothing random.
        """
        shares = checks.positive_integer(n, "n", "GaussianMixture.sample") * self.weights
        counts = np.floor(shares + 1e-9).astype(np.int64)
        behind = np.argsort(counts - shares, kind="stable")[: n - int(counts.sum())]
        counts[behind] += 1
        why = f"(n = {n} is too small for these weights)"
        checks.class_sizes(counts, 1, "GaussianMixture.sample", why)
        return counts

    def sample(
        self, n: int, rng: int | np.random.Generator, *, shuffle: bool = True
    ) -> tuple[FloatArray, IntArray]:
        """Draw `n` samples, in the theory's 1/√p scaling.

        Parameters
        ----------
        n : int
            Number of samples; class sizes are those of `class_counts`, not random.
        rng : int or Generator
            Seed, or a generator.
        shuffle : bool
            Mix the classes (default), or keep them in blocks, class 0 first.

        Returns
        -------
        X : ndarray of shape (n, p)
            Samples.
        y : ndarray of shape (n,)
            Class of each sample.
        """
        generator = checks.random_generator(rng, "GaussianMixture.sample")
        y = np.repeat(np.arange(self.num_classes), self.class_counts(n))
        if shuffle:
            generator.shuffle(y)
        raw = generator.standard_normal((n, self.dimension))
        for a in range(self.num_classes):
            rows = y == a
            if self.covariances.ndim == 3:
                raw[rows] = raw[rows] @ self._roots[a].T
            else:
                raw[rows] *= np.sqrt(self.covariances[a])
            raw[rows] += self.means[a]
        return to_theory_scale(raw), y

    def statistics(self, X: object, y: object) -> MixtureStatistics:
        """Exact statistics for samples of this mixture.

        τ0, t, T, means and spectrum are the population's, with C° = Σ (n_a/n) C_a weighted by the
        class sizes in `y`; ψ is that of the sample, with the exact means and expectations.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Samples in the theory's scaling, as `sample` returns them.
        y : array-like of shape (n,)
            Their classes, 0 … K − 1; none may be empty.
        """
        owner = "GaussianMixture.statistics"
        rows = checks.samples(X, "X", owner)
        if rows.shape[1] != self.dimension:
            requirement = f"have the mixture's {self.dimension} features"
            raise checks.invalid("X", owner, requirement, f"{rows.shape[1]} features")
        labels = checks.class_labels(y, len(rows), owner, self.num_classes)
        counts = np.bincount(labels, minlength=self.num_classes)
        checks.class_sizes(counts, 1, owner, "of the mixture")
        proportions = counts / len(rows)
        centred = rows - to_theory_scale(self.means)[labels]
        squared_norms = np.einsum("ij,ij->i", centred, centred)
        tau0_squared = float(proportions @ self._traces)
        return MixtureStatistics(
            tau0=checks.nonzero_scale(tau0_squared, owner),
            t=(self._traces - tau0_squared) * np.sqrt(self.dimension),
            T=self._overlaps(),
            J=np.equal.outer(labels, np.arange(self.num_classes)).astype(np.float64),
            psi=squared_norms - self._traces[labels],
            means=self.means,
            classes=np.arange(self.num_classes),
            provenance="exact",
            make_spectrum=functools.partial(self._spectrum, proportions),
        )

    def tau0(self, counts: ArrayLike | None = None) -> float:
        """Return τ0 = √(tr C°/p), C° = Σ (n_a/n) C_a, for class sizes or for the weights.

        Examples
        --------
        >>> GaussianMixture([[0.0, 0.0], [1.0, 0.0]], [1.0, 4.0]).tau0(counts=[3, 1])
        1.3228756555322954
        """
        sizes = self.weights if counts is None else np.asarray(counts, dtype=np.float64)
        if sizes.shape != self.weights.shape or not (sizes >= 0.0).all() or not sizes.sum() > 0.0:
            raise InvalidInput(f"counts must hold {self.num_classes} class sizes, got {counts!r}.")
        return float(np.sqrt(sizes @ self._traces / sizes.sum()))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "means": self.means.tolist(),
            "covariances": self.covariances.tolist(),
            "weights": self.weights.tolist(),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> GaussianMixture:
        """Rebuild a mixture from `to_dict`."""
        return cls(content["means"], content["covariances"], content["weights"])

    @functools.cached_property
    def _traces(self) -> FloatArray:
        """Tr C_a/p, shape (K,)."""
        if self.covariances.ndim == 1:
            return self.covariances
        if self.covariances.ndim == 2:
            return np.asarray(self.covariances.mean(axis=1))
        return np.asarray(np.trace(self.covariances, axis1=1, axis2=2) / self.dimension)

    def _overlaps(self) -> FloatArray:
        """T_ab = tr(C_a C_b)/p, shape (K, K)."""
        if self.covariances.ndim == 1:
            return np.outer(self.covariances, self.covariances)
        flat = self.covariances.reshape(self.num_classes, -1)
        return np.asarray(flat @ flat.T / self.dimension)

    def _spectrum(self, proportions: FloatArray) -> CovarianceSpectrum:
        classes = self._class_covariances(proportions)
        values = classes.eigenvalues[classes.group] @ proportions
        return CovarianceSpectrum.from_eigenvalues(values, "population", classes)

    def _class_covariances(self, proportions: FloatArray) -> ClassCovariances:
        K, p = self.means.shape
        if self.covariances.ndim < 3:
            values = np.broadcast_to(self.covariances.reshape(K, -1).T, (p, K))
            return ClassCovariances.from_directions(values, self.means.T)
        # A combination without symmetries has a common basis of the C_a among its eigenvectors,
        # which their mean need not have where its own eigenvalues coincide.
        uneven = proportions * (1.0 + np.sqrt(2.0 + np.arange(K)) / 10.0)
        basis = np.linalg.eigh(np.tensordot(uneven, self.covariances, axes=1))[1]
        rotated = basis.T @ self.covariances @ basis
        values = np.diagonal(rotated, axis1=1, axis2=2).T.copy()
        rotated[:, np.arange(p), np.arange(p)] = 0.0
        if np.linalg.norm(rotated) > 1e-10 * np.linalg.norm(values):
            eigenvalues, basis = np.linalg.eigh(np.tensordot(proportions, self.covariances, axes=1))
            values = np.repeat(eigenvalues[:, None], K, axis=1)
            return ClassCovariances.from_directions(
                values, basis.T @ self.means.T, shared_basis=False
            )
        return ClassCovariances.from_directions(values, basis.T @ self.means.T)

    @functools.cached_property
    def _roots(self) -> tuple[FloatArray, ...]:
        """Matrices R_a with R_a R_aᵀ = C_a, for full covariances."""
        return tuple(_root(matrix, a) for a, matrix in enumerate(self.covariances))


def _root(matrix: FloatArray, a: int) -> FloatArray:
    """Cholesky factor, or the eigenvalue root of a singular matrix."""
    try:
        return np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(matrix)
        _positive_semidefinite(float(values[0]), float(values[-1]), a, "GaussianMixture")
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)), dtype=np.float64)


def _class_proportions(weights: object, num_classes: int, owner: str) -> FloatArray:
    """Require K positive weights that sum to one; None stands for equal weights."""
    if weights is None:
        return np.full(num_classes, 1.0 / num_classes)
    array = checks.real_array(weights, "weights", owner)
    if array.shape != (num_classes,):
        requirement = f"hold one number for each of the {num_classes} rows of means"
        raise checks.invalid("weights", owner, requirement, f"shape {array.shape}")
    if not (array > 0.0).all():
        remedy = "Leave out a class that never occurs."
        raise checks.invalid("weights", owner, "be positive", f"a weight of {array.min()}", remedy)
    if abs(array.sum() - 1.0) > 1e-8:
        raise checks.invalid(
            "weights", owner, "sum to 1", f"a sum of {array.sum()}", "Divide by the sum."
        )
    return np.asarray(array / array.sum(), dtype=np.float64)


def _covariance_stack(covariances: object, means: FloatArray, owner: str) -> FloatArray:
    """Require one scalar, K scalars, (K, p) diagonals or (K, p, p) symmetric matrices."""
    K, p = means.shape
    array = checks.real_array(covariances, "covariances", owner)
    if array.ndim == 0:
        array = np.full(K, float(array))
    if array.shape not in ((K,), (K, p), (K, p, p)):
        requirement = f"be a scalar, or have shape ({K},), ({K}, {p}) or ({K}, {p}, {p})"
        remedy = "They are K scalars, K diagonals or K full matrices, one per row of means."
        raise checks.invalid("covariances", owner, requirement, f"shape {array.shape}", remedy)
    if array.ndim < 3 and (array < 0.0).any():
        remedy = "A covariance is positive semi-definite."
        raise checks.invalid(
            "covariances", owner, "not be negative", f"a value of {array.min()}", remedy
        )
    if array.ndim == 3:
        for a, matrix in enumerate(array):
            gap = float(np.abs(matrix - matrix.T).max())
            if gap > 1e-10 * max(float(np.abs(matrix).max()), 1e-300):
                got = f"class {a} with an asymmetry of {gap:.3g}"
                raise checks.invalid(
                    "covariances", owner, "be symmetric", got, "Use (C + C.T) / 2."
                )
    return array


def _positive_semidefinite(smallest: float, largest: float, a: int, owner: str) -> None:
    """Require that the smallest eigenvalue of class `a` is not negative beyond rounding."""
    if smallest < -1e-10 * max(largest, 0.0) or largest < 0.0:
        raise checks.invalid(
            "covariances",
            owner,
            "be positive semi-definite",
            f"class {a} with a smallest eigenvalue of {smallest:.6g}",
            "Clip its negative eigenvalues, or estimate it from more samples.",
        )

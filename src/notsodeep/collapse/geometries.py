"""Geometries that collapse leads to, and the small matrices in which classes are compared.

The same record comes from features or from their Gram matrix, so that every measure of the
features also applies to a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import requirements
from notsodeep.collapse.class_statistics import ClassStatistics
from notsodeep.records import Plotted, Record

Weights = Literal["class", "sample"]

ROUNDING = 32.0 * float(np.finfo(np.float64).eps)
"""Relative rounding error of sums such as means: a few units in the last place."""


@dataclass(frozen=True, eq=False)
class ClassGeometry:
    """Class means about a centre, and the variability around them.

    Attributes
    ----------
    counts : ndarray of shape (K,)
    weights : ndarray of shape (K,)
        π_k of S_W = Σ π_k Σ_k and S_B = Σ π_k m_k m_kᵀ, with Σ_k the covariance of class k
        (divided by n_k) and m_k = μ_k − centre.
    variances : ndarray of shape (K,)
        v_k = tr Σ_k.
    gram : ndarray of shape (K, K)
        m_j·m_k.
    squared_distances : ndarray of shape (K, K)
        ‖μ_j − μ_k‖².
    inverse_traces : ndarray of shape (K,), or None
        tr(Σ_k S_B⁺); None if only traces of the scatter were kept.
    rank : int
        Numerical rank of S_B.
    cutoff : float
        Singular values of the centred, weighted means below `cutoff` times the largest count as
        zero, in the rank and in the pseudo-inverse.
    rounding, variance_rounding : float
        Lengths of means, and variances, below these are rounding errors.
    """

    counts: IntArray
    weights: FloatArray
    variances: FloatArray
    gram: FloatArray
    squared_distances: FloatArray
    inverse_traces: FloatArray | None
    rank: int
    cutoff: float
    rounding: float
    variance_rounding: float

    @property
    def norms(self) -> FloatArray:
        """‖m_k‖, shape (K,)."""
        return np.sqrt(np.maximum(np.diag(self.gram), 0.0))


def class_weights(counts: IntArray, weights: Weights) -> FloatArray:
    """Give each class the same weight, or each sample; the sum is one."""
    if weights == "class":
        return np.full(len(counts), 1.0 / len(counts))
    return np.asarray(counts / counts.sum())


def centred_means(statistics: ClassStatistics, centring: Weights) -> FloatArray:
    """Return m_k = μ_k − Σ_j c_j μ_j, shape (K, d)."""
    centre = class_weights(statistics.counts, centring) @ statistics.means
    return np.asarray(statistics.means - centre)


def geometry_of_features(
    statistics: ClassStatistics, centring: Weights, weighting: Weights, cutoff: float
) -> ClassGeometry:
    """Reduce streamed statistics; every class must have a sample."""
    M = centred_means(statistics, centring)
    weights = class_weights(statistics.counts, weighting)
    _, singular, directions = np.linalg.svd(np.sqrt(weights)[:, None] * M, full_matrices=False)
    rounding = ROUNDING * float(np.linalg.norm(statistics.means, axis=1).max())
    rank, cutoff = numerical_rank(singular, len(weights), cutoff, rounding)
    inverse_traces = None
    if statistics.kind == "full":
        along = statistics.variances_along(directions[:rank])
        # S_B⁺ in its own eigenvectors, so that no d × d matrix is inverted.
        inverse_traces = along @ singular[:rank] ** -2.0
    means = statistics.means
    return ClassGeometry(
        statistics.counts,
        weights,
        statistics.variances,
        M @ M.T,
        # From differences: ‖a‖² + ‖b‖² − 2a·b would cancel for classes that are close together.
        np.array([np.square(means - mean).sum(axis=1) for mean in means]),
        inverse_traces,
        rank,
        cutoff,
        rounding,
        rounding**2,
    )


def cosine_matrix(gram: FloatArray, rounding: float) -> FloatArray:
    """Return the cosines of vectors with this Gram matrix; NaN for vectors that are zero."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    norms = np.where(norms > rounding, norms, np.nan)
    cosines = gram / np.outer(norms, norms)
    np.fill_diagonal(cosines, np.where(np.isnan(norms), np.nan, 1.0))
    return np.asarray(np.clip(cosines, -1.0, 1.0))


def numerical_rank(
    singular: FloatArray, num_classes: int, cutoff: float, rounding: float
) -> tuple[int, float]:
    """Rank of S_B, at most K − 1, from the singular values; and the relative cut-off in force.

    That is the larger of the one asked for and the one that rounding dictates.
    """
    largest = float(singular[0])
    if largest <= rounding:
        return 0, cutoff
    cutoff = max(cutoff, rounding / largest)
    return min(int((singular > cutoff * largest).sum()), num_classes - 1), cutoff


def majority_and_minority(counts: FloatArray | IntArray) -> dict[str, IntArray]:
    """Split the classes by size, ``{"majority": …, "minority": …}``; empty if all are equal.

    A class is in the minority if it has fewer samples than the average class.  With two sizes these
    are the smaller classes, whatever their number.

    Examples
    --------
    >>> majority_and_minority(np.array([50, 50, 50, 5]))
    {'majority': array([0, 1, 2]), 'minority': array([3])}
    """
    if counts.min() == counts.max():
        return {}
    small = counts < counts.mean()
    return {"majority": np.flatnonzero(~small), "minority": np.flatnonzero(small)}


@dataclass(frozen=True, eq=False)
class ClassifierView:
    """Classifier and centred class means, a row for each class.

    Attributes
    ----------
    W, M : ndarray of shape (K, d)
    margins : ndarray of shape (K,)
        Own logit of every class mean minus the largest other one, rounding error subtracted.
    """

    W: FloatArray
    M: FloatArray
    margins: FloatArray

    @classmethod
    def of(
        cls, W: FloatArray, b: FloatArray, means: FloatArray, centred: FloatArray
    ) -> ClassifierView:
        """Evaluate the classifier W h + b at the class means."""
        logits = means @ W.T + b
        own = np.diag(logits).copy()
        np.fill_diagonal(logits, -math.inf)
        size = np.linalg.norm(means, axis=1).max() * np.linalg.norm(W, axis=1).max()
        return cls(W, centred, own - logits.max(axis=1) - ROUNDING * (size + np.abs(b).max()))

    @property
    def norms(self) -> FloatArray:
        """‖w_k‖, shape (K,)."""
        return np.asarray(np.linalg.norm(self.W, axis=1))

    @property
    def rounding(self) -> float:
        """Rows shorter than this are zero up to rounding."""
        return ROUNDING * float(self.norms.max())

    @property
    def cosines(self) -> FloatArray:
        """Cosines between the rows of W, shape (K, K)."""
        return cosine_matrix(self.W @ self.W.T, self.rounding)


def simplex_etf(num_classes: int, num_features: int, rng: int | np.random.Generator) -> FloatArray:
    """Draw a simplex ETF in a random position, shape (K, d), with rows of unit length.

    E Eᵀ = K/(K−1)·(I − 11ᵀ/K).  As it stands it is a fixed ETF classifier, with logits ``h @ E.T``.

    Parameters
    ----------
    num_classes : int
        K ≥ 2.
    num_features : int
        d ≥ K − 1.
    rng : int or numpy.random.Generator
        Decides the position; it is uniform among all rotations and reflections.

    Examples
    --------
    >>> E = simplex_etf(4, 16, rng=0)
    >>> (E @ E.T).round(3)[0]
    array([ 1.   , -0.333, -0.333, -0.333])
    """
    owner = "simplex_etf"
    K = requirements.num_classes_of_simplex(num_classes, owner)
    d = checks.positive_integer(num_features, "num_features", owner)
    _room_for_simplex(K, d, owner)
    normal = checks.random_generator(rng, owner).standard_normal((d, K - 1))
    basis, triangle = np.linalg.qr(normal)
    basis *= np.sign(np.diag(triangle))  # makes the law of the basis uniform
    return np.asarray(simplex_coordinates(K) @ basis.T)


def simplex_coordinates(num_classes: int) -> FloatArray:
    """Return a simplex ETF in K − 1 dimensions, shape (K, K − 1), the same on every call.

    Column j is a Helmert contrast: class j + 1 against the classes before it.
    """
    K = num_classes
    j = np.arange(1, K)
    contrasts = np.triu(np.ones((K, K - 1)))
    contrasts[j, j - 1] = -j
    return contrasts * np.sqrt(K / ((K - 1.0) * j * (j + 1.0)))


def simplex_gram(num_classes: int) -> FloatArray:
    """T = (I − 11ᵀ/K)/√(K−1): the Gram matrix of a simplex ETF, of Frobenius norm one."""
    K = num_classes
    return np.asarray((np.eye(K) - 1.0 / K) / np.sqrt(K - 1.0))


@dataclass(frozen=True, eq=False, repr=False)
class NearestETF(Record):
    """The scaled, turned and shifted simplex ETF nearest to a set of vectors.

    Attributes
    ----------
    vertices : ndarray of shape (K, d)
        The nearest points centre + scale·E, E a simplex ETF.
    centre : ndarray of shape (d,)
        Mean of the rows.
    scale : float
        Length of the vertices, seen from the centre.
    distance : float
        ‖M − vertices‖_F/‖M − centre‖_F, in [0, 1]; 0 for an ETF.

    Examples
    --------
    >>> nearest = nearest_etf([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    >>> nearest.vertices.shape, round(nearest.scale, 4), round(nearest.distance, 4)
    ((3, 2), 1.0196, 0.0192)
    """

    vertices: FloatArray
    centre: FloatArray
    scale: float
    distance: float


def nearest_etf(vectors: object) -> NearestETF:
    """Find the simplex ETF nearest to K vectors in the Frobenius norm, up to shift and scale.

    Orthogonal Procrustes: with E₀ a fixed ETF and E₀ᵀ(M − centre) = U S Vᵀ, the nearest ETF is
    tr(S)/K·E₀ U Vᵀ.  Relabelling the classes turns E₀, so their order does not matter.

    Parameters
    ----------
    vectors : array-like of shape (K, d)
        Class means or classifier rows, d ≥ K − 1.

    Examples
    --------
    >>> nearest_etf(3.0 * simplex_etf(5, 8, rng=1) + 1.0).distance < 1e-14
    True
    """
    owner = "nearest_etf"
    M = checks.samples(requirements.host_array(vectors), "vectors", owner)
    K, d = M.shape
    requirements.num_classes_of_simplex(K, owner)
    _room_for_simplex(K, d, owner)
    centre = M.mean(axis=0)
    centred = M - centre
    size = float(np.linalg.norm(centred))
    rounding = 4.0 * np.finfo(np.float64).eps * float(np.linalg.norm(M))
    _distinct_points(size, rounding, "vectors", owner)
    coordinates = simplex_coordinates(K)
    left, singular, right = np.linalg.svd(coordinates.T @ centred, full_matrices=False)
    scale = float(singular.sum()) / K
    # ‖E₀‖_F² = K, so that the best factor is ⟨M, E₀UVᵀ⟩/K = tr S/K.
    vertices = scale * (coordinates @ left @ right)
    distance = float(np.linalg.norm(centred - vertices)) / size
    return NearestETF(centre + vertices, centre, scale, distance)


def _room_for_simplex(num_classes: int, num_features: int, owner: str) -> None:
    """Require d ≥ K − 1."""
    if num_features < num_classes - 1:
        requirement = f"be at least {num_classes - 1}"
        remedy = f"A simplex of {num_classes} points spans {num_classes - 1} dimensions."
        raise checks.invalid("num_features", owner, requirement, num_features, remedy)


def _distinct_points(spread: float, rounding: float, parameter: str, owner: str) -> None:
    """Require rows that are not all the same."""
    if spread <= rounding:
        got = "rows that coincide up to rounding"
        raise checks.invalid(parameter, owner, "have rows that differ", got)


@dataclass(frozen=True, eq=False, repr=False)
class SeliGeometry(Plotted):
    """Classifier and class features of the SELI geometry, in K − 1 dimensions.

    Attributes
    ----------
    classifier : ndarray of shape (K, K − 1)
        Rows w_k.
    features : ndarray of shape (K, K − 1)
        Row k is the feature shared by all samples of class k.
    logits : ndarray of shape (K, K)
        Row k is what a sample of class k gets: I − 11ᵀ/K.
    singular_values : ndarray of shape (K − 1,)
        Of the encoded label matrix, in descending order; all equal iff the classes are balanced or
        K = 2.

    Examples
    --------
    >>> geometry = seli([100, 100, 1])
    >>> geometry.classifier.shape, geometry.singular_values.round(3)
    ((3, 2), array([10.   ,  5.831]))
    """

    _drawing = "seli"

    classifier: FloatArray
    features: FloatArray
    logits: FloatArray
    singular_values: FloatArray


def seli(counts: object) -> SeliGeometry:
    """Compute the SELI geometry of classes with the given sizes.

    Equal columns may be merged: with P = I − 11ᵀ/K the encoded label matrix has the singular values
    Λ and left vectors of P·diag(√n_k) = V Λ Uᵀ.  Then W = V Λ^½ and h_k = (U Λ^½)_k/√n_k, so that
    h_j·w_k = P_jk.  Its global scale is the one in which the logits are exactly P.

    Parameters
    ----------
    counts : array-like of shape (K,)
        Class sizes n_k > 0.

    Examples
    --------
    >>> geometry = seli([100, 100, 1])
    >>> (geometry.features @ geometry.classifier.T).round(3)[0]
    array([ 0.667, -0.333, -0.333])
    """
    n = requirements.class_counts(counts, "seli")
    K = len(n)
    encoded = (np.eye(K) - 1.0 / K) * np.sqrt(n)
    left, singular, right = np.linalg.svd(encoded)
    root = np.sqrt(singular[: K - 1])  # the last singular value is zero: 1ᵀP = 0
    classifier = left[:, : K - 1] * root
    features = right[: K - 1].T * root / np.sqrt(n)[:, None]
    return SeliGeometry(classifier, features, np.eye(K) - 1.0 / K, singular[: K - 1])

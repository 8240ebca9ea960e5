"""The geometries that collapse leads to: the simplex ETF, and SELI for imbalanced classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.collapse import requirements
from notsodeep.records import Plotted, Record


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
    vertices = scale * (coordinates @ left @ right)
    distance = float(np.linalg.norm(centred - vertices)) / size
    return NearestETF(centre + vertices, centre, scale, distance)


def _room_for_simplex(num_classes: int, num_features: int, owner: str) -> None:
    """Require d ≥ K − 1."""
    if num_features < num_classes - 1:
        requirement = f"be at least {num_classes - 1}"
        remedy = f"A simplex of {num_classes} points spans {num_classes - 1} dimensions."
        raise checks.refusal("num_features", owner, requirement, num_features, remedy)


def _distinct_points(spread: float, rounding: float, parameter: str, owner: str) -> None:
    """Require rows that are not all the same."""
    if spread <= rounding:
        got = "rows that coincide up to rounding"
        raise checks.refusal(parameter, owner, "have rows that differ", got)


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

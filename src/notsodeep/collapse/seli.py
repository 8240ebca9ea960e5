"""The SELI geometry: what takes the place of the simplex ETF when classes are imbalanced.

Simplex-encoded-label interpolation (Thrampoulidis, Kini, Vakilian and Behnia, 2022): the logits are
those of the simplex, and classifier and features are the balanced factors of the simplex-encoded
label matrix, which has one column for each *sample*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep.checks import FloatArray
from notsodeep.checks import collapse as collapse_checks
from notsodeep.records import Plotted


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
    n = collapse_checks.class_counts(counts, "seli")
    K = len(n)
    encoded = (np.eye(K) - 1.0 / K) * np.sqrt(n)
    left, singular, right = np.linalg.svd(encoded)
    root = np.sqrt(singular[: K - 1])  # the last singular value is zero: 1ᵀP = 0
    classifier = left[:, : K - 1] * root
    features = right[: K - 1].T * root / np.sqrt(n)[:, None]
    return SeliGeometry(classifier, features, np.eye(K) - 1.0 / K, singular[: K - 1])

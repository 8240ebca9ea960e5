"""The measures NC1, NC2 and NC3 as pure functions of a few small matrices.

Each is 0 at collapse and may be taken over a subset of the classes; over all of them it is the
usual definition.  Vectors stay centred at the centre of *all* classes, and are compared with the
part of the simplex that belongs to the subset.  Sources: Papyan, Han and Donoho (PNAS 2020);
Galanti, György and Hutter (2021) for CDNV.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from notsodeep.checks import FloatArray, IntArray
from notsodeep.collapse.class_geometry import ClassGeometry
from notsodeep.collapse.simplex_etf import simplex_gram


class Measured(NamedTuple):
    """A value, or None or infinity with the reason."""

    value: float | None
    reason: str = ""


ONE_CLASS = Measured(None, "needs two classes; the group has one")


def variability(geometry: ClassGeometry, classes: IntArray) -> Measured:
    """NC1: tr(S_W S_B⁺)/K.  S_W of the subset, S_B and K of all classes.

    So that NC1 of all classes is the weighted mean of its values on the parts of a partition.
    """
    if geometry.inverse_traces is None:
        return Measured(None, "only the traces of the scatter were kept (scatter='trace')")
    if geometry.rank == 0:
        return Measured(math.inf, "all class means coincide")
    weights = geometry.weights[classes]
    mean = float(weights @ geometry.inverse_traces[classes] / weights.sum())
    return Measured(mean / len(geometry.weights))


def trace_ratio(geometry: ClassGeometry, classes: IntArray) -> Measured:
    """NC1, second form: tr S_W/tr S_B, both of the subset."""
    weights = geometry.weights[classes]
    between = float(weights @ np.square(geometry.norms[classes]))
    if between <= geometry.rounding**2 * weights.sum():
        return Measured(math.inf, "the class means coincide with their centre")
    return Measured(float(weights @ geometry.variances[classes]) / between)


def normalised_variances(geometry: ClassGeometry) -> FloatArray:
    """CDNV of every pair: (v_j + v_k)/(2‖μ_j − μ_k‖²), shape (K, K), zero on the diagonal.

    Infinite where two means coincide, be the variances zero or not: the classes are not apart.
    """
    sums = np.add.outer(geometry.variances, geometry.variances)
    apart = geometry.squared_distances > geometry.rounding**2
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.where(apart, 0.5 * sums / geometry.squared_distances, np.inf)
    np.fill_diagonal(result, 0.0)
    return np.asarray(result)


def mean_normalised_variance(pairs: FloatArray, classes: IntArray) -> Measured:
    """NC1, third form: the mean CDNV over the pairs within the subset."""
    if len(classes) < 2:
        return ONE_CLASS
    values = _off_diagonal(pairs, classes)
    if np.isinf(values).any():
        a, b = np.argwhere(np.isinf(pairs[np.ix_(classes, classes)]))[0]
        return Measured(math.inf, f"the means of classes {classes[a]} and {classes[b]} coincide")
    return Measured(float(values.mean()))


def simplex_deviation(products: FloatArray, classes: IntArray, smallest: float) -> Measured:
    """NC2 of M Mᵀ or W Wᵀ, and NC3 of W Mᵀ: ‖G/‖G‖ − T/‖T‖‖_F, both restricted to the subset.

    `smallest` is the norm below which G is zero up to rounding.
    """
    if len(classes) < 2:
        return ONE_CLASS
    block = products[np.ix_(classes, classes)]
    size = float(np.linalg.norm(block))
    if size <= smallest:
        return Measured(None, "the vectors are zero up to rounding")
    target = simplex_gram(len(products))[np.ix_(classes, classes)]
    return Measured(float(np.linalg.norm(block / size - target / np.linalg.norm(target))))


def self_duality(W: FloatArray, M: FloatArray, classes: IntArray, rounding: float) -> Measured:
    """NC3, second form: ‖W/‖W‖ − M/‖M‖‖_F over the rows of the subset."""
    weights, means = W[classes], M[classes]
    size_w, size_m = float(np.linalg.norm(weights)), float(np.linalg.norm(means))
    if size_w == 0.0 or size_m <= rounding:
        return Measured(None, "classifier or class means are zero up to rounding")
    return Measured(float(np.linalg.norm(weights / size_w - means / size_m)))


def equal_norms(norms: FloatArray, classes: IntArray) -> Measured:
    """Coefficient of variation of the norms: standard deviation over mean."""
    if len(classes) < 2:
        return ONE_CLASS
    mean = float(norms[classes].mean())
    if mean == 0.0:
        return Measured(None, "the vectors are zero")
    return Measured(float(norms[classes].std()) / mean)


def cosine_matrix(gram: FloatArray, rounding: float) -> FloatArray:
    """Return the cosines of vectors with this Gram matrix; NaN for vectors that are zero."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    norms = np.where(norms > rounding, norms, np.nan)
    cosines = gram / np.outer(norms, norms)
    np.fill_diagonal(cosines, np.where(np.isnan(norms), np.nan, 1.0))
    return np.asarray(np.clip(cosines, -1.0, 1.0))


def angles(cosines: FloatArray, classes: IntArray) -> tuple[Measured, Measured, Measured]:
    """Mean cosine, its standard deviation (equiangularity), and the mean of |cos + 1/(K−1)|.

    Over the pairs within the subset; the last compares with the angle of the whole simplex.
    """
    if len(classes) < 2:
        return ONE_CLASS, ONE_CLASS, ONE_CLASS
    lost = classes[np.isnan(np.diag(cosines)[classes])]
    if lost.size:
        failed = Measured(None, f"the vector of class {lost[0]} is zero up to rounding")
        return failed, failed, failed
    values = _off_diagonal(cosines, classes)
    deviation = np.abs(values + 1.0 / (len(cosines) - 1.0)).mean()
    return Measured(float(values.mean())), Measured(float(values.std())), Measured(float(deviation))


def _off_diagonal(matrix: FloatArray, classes: IntArray) -> FloatArray:
    block = matrix[np.ix_(classes, classes)]
    return np.asarray(block[~np.eye(len(classes), dtype=bool)])

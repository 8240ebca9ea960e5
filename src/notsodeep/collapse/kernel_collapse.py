"""Collapse of the features behind a kernel, from its Gram matrix alone."""

from __future__ import annotations

from typing import get_args

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import requirements
from notsodeep.collapse.collapse_report import CollapseReport, collapse_report
from notsodeep.collapse.geometries import (
    ClassGeometry,
    Weights,
    class_weights,
    majority_and_minority,
    numerical_rank,
)

_EPSILON = float(np.finfo(np.float64).eps)


def kernel_nc1(
    K: object,
    y: object,
    *,
    centring: Weights = "class",
    weighting: Weights = "class",
    cutoff: float = 1e-6,
) -> CollapseReport:
    """Measure NC1 and NC2 of the features h of a kernel K_ij = h_i·h_j.

    Inner products of class means are means over blocks of K, μ_j·μ_k = mean_{i∈j, l∈k} K_il, and
    so v_k = mean_{i∈k} K_ii − μ_k·μ_k.  The directions of S_B are combinations of the means, which
    gives tr(S_W S_B⁺) as well.  One pass over K.

    Parameters
    ----------
    K : array-like of shape (n, n)
        A symmetric kernel matrix, such as an exact CK or NTK.
    y : array-like of shape (n,)
        Labels 0 … C − 1, no class empty.
    centring, weighting : {"class", "sample"}
        As in `CollapseMetrics`.
    cutoff : float
        Relative cut-off for singular values of the centred means.  A Gram matrix holds their
        squares, so that those below 1e-8 of the largest are lost in rounding.

    Returns
    -------
    CollapseReport
        Without the measures of a classifier.  Variances below 1e-14 times the largest K_ii are
        rounding errors; a note names the classes.

    Examples
    --------
    >>> X = np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])
    >>> report = kernel_nc1(X @ X.T, np.array([0, 0, 1, 1]))
    >>> round(report.overall.nc1_trace_ratio, 12)
    0.01
    """
    owner = "kernel_nc1"
    gram = _gram_matrix(K, owner)
    checks.known_name(centring, get_args(Weights), "centring")
    checks.known_name(weighting, get_args(Weights), "weighting")
    smallest_cutoff = checks.share(cutoff, "cutoff", owner)
    labels = checks.class_labels(y, len(gram), owner)
    num_classes = requirements.num_classes_of_simplex(int(labels.max()) + 1, owner)
    checks.class_labels(labels, len(gram), owner, num_classes)
    counts = np.bincount(labels, minlength=num_classes)
    checks.class_sizes(counts, 1, owner, "from 0 to the largest label")
    geometry = _geometry(gram, labels, counts, centring, weighting, smallest_cutoff)
    return collapse_report(geometry, majority_and_minority(counts), centring, weighting)


def _geometry(
    gram: FloatArray,
    labels: IntArray,
    counts: IntArray,
    centring: Weights,
    weighting: Weights,
    cutoff: float,
) -> ClassGeometry:
    membership = np.equal.outer(labels, np.arange(len(counts))) / counts
    products = gram @ membership  # h_i·μ_k, shape (n, K)
    blocks = membership.T @ products  # μ_j·μ_k
    centre = class_weights(counts, centring)
    products_centred = products - (products @ centre)[:, None]  # h_i·m_k
    shift = blocks @ centre
    means = blocks - shift[:, None] - shift + centre @ shift  # m_j·m_k
    means = 0.5 * (means + means.T)
    weights = class_weights(counts, weighting)
    root = np.sqrt(weights)
    squares, vectors = np.linalg.eigh(means * np.outer(root, root))
    squares, vectors = np.maximum(squares[::-1], 0.0), vectors[:, ::-1]
    scale = float(np.diag(gram).max())
    # Squared lengths are differences of entries of K, each with an error of its own.
    rounding2 = 32.0 * _EPSILON * scale
    rounding = float(np.sqrt(rounding2))
    singular = np.sqrt(squares)
    rank, cutoff = numerical_rank(singular, len(counts), cutoff, rounding)
    # Coordinates of the samples along the directions of S_B.
    # A direction is Σ_k √π_k v_k m_k/σ, so that h_i along it needs h_i·m_k only.
    coordinates = products_centred @ (root[:, None] * vectors[:, :rank] / singular[:rank])
    deviations = coordinates - (membership.T @ coordinates)[labels]
    along = membership.T @ np.square(deviations)
    own = np.diag(blocks)
    return ClassGeometry(
        counts,
        weights,
        np.maximum(membership.T @ np.diag(gram) - own, 0.0),  # negative by rounding only
        means,
        np.add.outer(own, own) - 2.0 * blocks,
        along @ squares[:rank] ** -1.0,
        rank,
        cutoff,
        rounding,
        rounding2,
    )


def _gram_matrix(K: object, owner: str) -> FloatArray:
    """Require a square symmetric matrix of finite numbers."""
    array = checks.samples(K, "K", owner)
    if array.shape[0] != array.shape[1]:
        raise checks.invalid("K", owner, "be square", f"shape {array.shape}")
    gap = float(np.abs(array - array.T).max())
    if gap > 1e-8 * float(np.abs(array).max()):
        raise checks.invalid("K", owner, "be symmetric", f"an asymmetry of {gap:.3g}")
    return array

"""Collapse of the features behind a kernel, from its Gram matrix alone."""

from __future__ import annotations

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse.measures import (
    GRAM_CUTOFF,
    ROUNDING,
    ClassGeometry,
    CollapseReport,
    collapse_report,
    majority_and_minority,
    numerical_rank,
)
from notsodeep.errors import InvalidInput


def kernel_collapse(K: object, y: object) -> CollapseReport:
    """Measure NC1 and NC2 of the features h of a kernel K_ij = h_i·h_j.

    Inner products of class means are means over blocks of K, μ_j·μ_k = mean_{i∈j, l∈k} K_il, and
    so v_k = mean_{i∈k} K_ii − μ_k·μ_k.  The directions of S_B are combinations of the means, which
    gives tr(S_W S_B⁺) as well.  One pass over K.  Variances below 1e-14 times the largest K_ii are
    rounding errors; a note names the classes.

    Parameters
    ----------
    K : array-like of shape (n, n)
        A symmetric kernel matrix, such as an exact CK or NTK.
    y : array-like of shape (n,)
        Labels 0 … C − 1, no class empty.

    Examples
    --------
    >>> X = np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])
    >>> report = kernel_collapse(X @ X.T, np.array([0, 0, 1, 1]))
    >>> round(report.overall["nc1_trace_ratio"], 12)
    0.01
    """
    gram = checks.samples(K, "K", "kernel_collapse")
    if gram.shape[0] != gram.shape[1]:
        raise InvalidInput(f"K must be square, got shape {gram.shape}.")
    gap = float(np.abs(gram - gram.T).max())
    if gap > 1e-8 * float(np.abs(gram).max()):
        raise InvalidInput(f"K must be symmetric, got an asymmetry of {gap:.3g}.")
    labels = checks.class_labels(y, len(gram), "kernel_collapse")
    num_classes = max(int(labels.max()) + 1, 1)
    checks.integer_at_least(num_classes, 2, "num_classes", "kernel_collapse")
    checks.class_labels(labels, len(gram), "kernel_collapse", num_classes)
    counts = np.bincount(labels, minlength=num_classes)
    checks.class_sizes(counts, 1, "kernel_collapse", "from 0 to the largest label")
    return collapse_report(_geometry(gram, labels, counts), majority_and_minority(counts))


def _geometry(gram: FloatArray, labels: IntArray, counts: IntArray) -> ClassGeometry:
    num_classes = len(counts)
    membership = np.equal.outer(labels, np.arange(num_classes)) / counts
    products = gram @ membership  # h_i·μ_k, shape (n, K)
    blocks = membership.T @ products  # μ_j·μ_k
    products_centred = products - products.mean(axis=1, keepdims=True)  # h_i·m_k
    shift = blocks.mean(axis=0)
    means = blocks - shift[:, None] - shift + shift.mean()  # m_j·m_k
    means = 0.5 * (means + means.T)
    squares, vectors = np.linalg.eigh(means / num_classes)
    squares, vectors = np.maximum(squares[::-1], 0.0), vectors[:, ::-1]
    # Squared lengths are differences of entries of K, each with a rounding error.
    rounding2 = ROUNDING * float(np.diag(gram).max())
    singular = np.sqrt(squares)
    rank = numerical_rank(singular, num_classes, GRAM_CUTOFF, float(np.sqrt(rounding2)))
    # Coordinates of the samples along the directions of S_B.  A direction is Σ_k v_k m_k/(σ√K), so
    # that h_i along it needs h_i·m_k only.
    scale = singular[:rank] * np.sqrt(num_classes)
    coordinates = products_centred @ (vectors[:, :rank] / scale)
    deviations = coordinates - (membership.T @ coordinates)[labels]
    along = membership.T @ np.square(deviations)
    own = np.diag(blocks)
    return ClassGeometry(
        counts=counts,
        variances=np.maximum(membership.T @ np.diag(gram) - own, 0.0),  # negative by rounding only
        gram=means,
        squared_distances=np.add.outer(own, own) - 2.0 * blocks,
        inverse_traces=along @ squares[:rank] ** -1.0,
        rank=rank,
        rounding=float(np.sqrt(rounding2)),
        variance_rounding=rounding2,
    )

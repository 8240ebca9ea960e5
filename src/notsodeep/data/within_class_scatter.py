"""One pass over class-centred rows: what the mixture statistics of real data need.

With z_i = x_i − x̄_a the class-centred rows and A_a = Σ_{i∈a} z_i z_iᵀ the scatter of class a, the
pass collects ‖z_i‖², the overlaps M_ab = tr(A_a A_b) and a matrix with the non-zero eigenvalues of
Σ_a w_a A_a.  When p ≤ n it multiplies features with features, blocks of rows of A_a at a time;
otherwise samples with samples, for tr(A_a A_b) = Σ_{i∈a, j∈b} (z_i·z_j)².  Either way it takes
n·p·min(n, p) multiplications and memory of the order of X.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep.checks import FloatArray, IntArray

_BLOCK = 256


@dataclass(frozen=True, eq=False)
class WithinClassScatter:
    """Sums over class-centred rows, in the scale of X.

    Attributes
    ----------
    means : ndarray of shape (K, p)
        Class means x̄_a.
    squared_norms : ndarray of shape (n,)
        ‖z_i‖², in the order of X.
    overlaps : ndarray of shape (K, K)
        tr(A_a A_b).
    pooled : ndarray of shape (min(n, p), min(n, p))
        A symmetric matrix with the non-zero eigenvalues of Σ_a w_a A_a.
    """

    means: FloatArray
    squared_norms: FloatArray
    overlaps: FloatArray
    pooled: FloatArray


def within_class_scatter(
    X: FloatArray, labels: IntArray, counts: IntArray, pooling: FloatArray
) -> WithinClassScatter:
    """Collect the scatter of every class.

    Parameters
    ----------
    X : ndarray of shape (n, p)
        Samples.
    labels : ndarray of shape (n,)
        Class of each sample, 0 … K − 1; no class is empty.
    counts : ndarray of shape (K,)
        Samples in each class.
    pooling : ndarray of shape (K,)
        The weights w_a of the pooled matrix.
    """
    order = np.argsort(labels, kind="stable")
    centred = X[order]
    ends = np.cumsum(counts)
    classes = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    means = np.empty((len(counts), X.shape[1]))
    for a, rows in enumerate(classes):
        means[a] = centred[rows].mean(axis=0)
        centred[rows] -= means[a]
    squared_norms = np.empty(len(X))
    squared_norms[order] = np.einsum("ij,ij->i", centred, centred)
    if X.shape[1] <= len(X):
        overlaps, pooled = _by_features(centred, classes, pooling)
    else:
        overlaps, pooled = _by_samples(centred, labels[order], pooling)
    return WithinClassScatter(means, squared_norms, overlaps, pooled)


def _by_features(
    centred: FloatArray, classes: list[slice], pooling: FloatArray
) -> tuple[FloatArray, FloatArray]:
    n, p = centred.shape
    K = len(classes)
    overlaps = np.zeros((K, K))
    pooled = np.empty((p, p))
    # K·width·p numbers are held at a time: no more than a quarter of X.
    width = max(1, min(_BLOCK, n // (4 * K)))
    for start in range(0, p, width):
        stop = min(start + width, p)
        strip = np.empty((K, stop - start, p - start))
        for a, rows in enumerate(classes):
            np.matmul(centred[rows, start:stop].T, centred[rows, start:], out=strip[a])
        # The strip is the upper triangle; what lies right of its square counts twice.
        square = strip[:, :, : stop - start].reshape(K, -1)
        whole = strip.reshape(K, -1)
        overlaps += 2.0 * (whole @ whole.T) - square @ square.T
        pooled[start:stop, start:] = np.tensordot(pooling, strip, axes=1)
        pooled[start:, start:stop] = pooled[start:stop, start:].T
    return overlaps, pooled


def _by_samples(
    centred: FloatArray, labels: IntArray, pooling: FloatArray
) -> tuple[FloatArray, FloatArray]:
    n = len(centred)
    K = len(pooling)
    membership = np.equal.outer(labels, np.arange(K)).astype(np.float64)
    root = np.sqrt(pooling)[labels]
    overlaps = np.zeros((K, K))
    pooled = np.empty((n, n))
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        strip = centred[start:stop] @ centred[start:].T
        pooled[start:stop, start:] = strip * np.outer(root[start:stop], root[start:])
        pooled[start:, start:stop] = pooled[start:stop, start:].T
        np.square(strip, out=strip)
        here = membership[start:stop]
        upper = here.T @ strip @ membership[start:]
        overlaps += upper + upper.T - here.T @ strip[:, : stop - start] @ here
    return overlaps, pooled

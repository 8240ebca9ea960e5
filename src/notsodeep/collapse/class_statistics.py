"""Class means and within-class scatter in one pass, mergeable in any order.

Every batch is centred at its own class means before anything is squared, and batches are joined by
the update of Chan, Golub and LeVeque (1983):

    n = n₁ + n₂,   μ = μ₁ + (n₂/n) δ,   A = A₁ + A₂ + (n₁n₂/n) δδᵀ,   δ = μ₂ − μ₁.

A difference of sums of squares would cancel exactly where collapse is measured.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.linalg.blas import dsyrk

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotEnoughMemory

ScatterKind = Literal["full", "trace"]

# Small batches wait until there are this many samples, and this many for each class: BLAS updates a
# d × d matrix far faster by many rows at once.
_BLOCK, _BLOCK_PER_CLASS = 4096, 64


class ClassStatistics:
    """Counts, means and scatter of K classes, in float64.

    Parameters
    ----------
    num_classes, num_features : int
        K and d.
    scatter : {"full", "trace"}
        Keep the K matrices A_k = Σ_{i∈k} (h_i − μ_k)(h_i − μ_k)ᵀ, 8·K·d² bytes, or their traces.
    storage : ndarray of shape (K, 1 + d + d²) or (K, 1 + d + 1), optional
        The `storage` of other statistics, to continue from.  It is used in place.

    Examples
    --------
    >>> statistics = ClassStatistics(num_classes=2, num_features=1)
    >>> statistics.add(np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1]))
    >>> statistics.counts, statistics.means.ravel(), statistics.variances
    (array([2, 1]), array([2., 5.]), array([1., 0.]))
    """

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        scatter: ScatterKind = "full",
        storage: FloatArray | None = None,
    ) -> None:
        self.kind: ScatterKind = scatter
        layout = storage_shape(num_classes, num_features, scatter)
        if storage is None:
            _scatter_fits(*layout)
            storage = np.zeros(layout)
        _statistics_storage(storage, layout, "ClassStatistics")
        self.num_classes = num_classes
        self.num_features = num_features
        self._storage = storage
        self._means = storage[:, 1 : 1 + num_features]
        # Of every A_k the lower triangle only: BLAS does half the work.
        shape = (num_features, num_features) if scatter == "full" else ()
        self._scatter = storage[:, 1 + num_features :].reshape(num_classes, *shape)
        self._waiting: list[tuple[FloatArray, IntArray]] = []

    @property
    def storage(self) -> FloatArray:
        """Row k holds n_k, μ_k and the lower triangle of A_k, or its trace.

        All there is to send from one worker to another.
        """
        self._settle()
        return self._storage

    @property
    def means(self) -> FloatArray:
        """Class means μ_k, shape (K, d); zero for a class without samples."""
        self._settle()
        return self._means

    @property
    def counts(self) -> IntArray:
        """Samples n_k of each class, shape (K,)."""
        return self.storage[:, 0].astype(np.int64)

    @property
    def variances(self) -> FloatArray:
        """v_k = tr A_k/n_k, shape (K,); every class must have a sample."""
        counts = self.counts
        traces = np.einsum("kii->k", self._scatter) if self.kind == "full" else self._scatter
        return np.asarray(traces / counts)

    def variances_along(self, directions: FloatArray) -> FloatArray:
        """Return v_rᵀ A_k v_r/n_k for the rows v_r of `directions`, shape (K, r); full only."""
        counts = self.counts
        result = np.empty((self.num_classes, len(directions)))
        for k, lower in enumerate(self._scatter):
            whole = np.tril(lower) + np.tril(lower, -1).T
            result[k] = np.einsum("ri,ri->r", directions @ whole, directions)
        return result / counts[:, None]

    def add(self, features: FloatArray, labels: IntArray) -> None:
        """Take in samples, shapes (n, d) and (n,), labels 0 … K − 1."""
        enough = max(_BLOCK, _BLOCK_PER_CLASS * self.num_classes)
        if len(labels) >= enough:
            self._absorb(features, labels)
            return
        self._waiting.append((features.copy(), labels.copy()))  # the caller may reuse the arrays
        if sum(len(waiting) for _, waiting in self._waiting) >= enough:
            self._settle()

    def _settle(self) -> None:
        """Absorb the small batches that wait."""
        if self._waiting:
            features, labels = zip(*self._waiting, strict=True)
            self._waiting = []
            self._absorb(np.concatenate(features), np.concatenate(labels))

    def _absorb(self, features: FloatArray, labels: IntArray) -> None:
        rows = features[np.argsort(labels, kind="stable")]  # a copy, which may be centred in place
        counts = np.bincount(labels, minlength=self.num_classes)
        ends = np.cumsum(counts)
        for k in np.flatnonzero(counts):
            members = rows[ends[k] - counts[k] : ends[k]]
            mean = members.mean(axis=0)
            members -= mean
            self._join(int(k), float(counts[k]), mean, members)

    def merge(self, other: ClassStatistics) -> None:
        """Take in everything that `other`, of the same kind and shape, has seen."""
        nothing = np.empty((0, self.num_features))
        for k in np.flatnonzero(other.counts):
            self._scatter[k] += other._scatter[k]
            self._join(int(k), float(other.storage[k, 0]), other.means[k], nothing)

    def _join(self, k: int, count: float, mean: FloatArray, centred: FloatArray) -> None:
        """Join `count` samples to class k, given their mean and what is left to be squared."""
        before = self._storage[k, 0]
        total = before + count
        shift = mean - self._means[k]
        # A_new = A + B + n_A n_B/(n_A + n_B)·δδᵀ (Chan, Golub and LeVeque): no raw squares, which
        # would cancel against the mean; the shift is one more row of the same update.
        between = shift * np.sqrt(before * count / total)
        if self.kind == "trace":
            self._scatter[k] += np.vdot(centred, centred) + np.vdot(between, between)
        else:
            columns = np.vstack([centred, between]).T
            # A view of A_k in Fortran order: the upper triangle there is the lower one here.
            dsyrk(1.0, columns, beta=1.0, c=self._scatter[k].T, overwrite_c=1)
        self._means[k] += shift * (count / total)
        self._storage[k, 0] = total


def storage_shape(num_classes: int, num_features: int, scatter: ScatterKind) -> tuple[int, int]:
    """Shape of `ClassStatistics.storage`."""
    return num_classes, 1 + num_features + (num_features**2 if scatter == "full" else 1)


def _statistics_storage(storage: object, shape: tuple[int, int], owner: str) -> None:
    """Require a writable float64 array of the given shape, contiguous in memory."""
    if not isinstance(storage, np.ndarray) or storage.shape != shape:
        got = f"shape {storage.shape}" if isinstance(storage, np.ndarray) else repr(storage)
        raise checks.invalid("storage", owner, f"be an array of shape {shape}", got)
    if storage.dtype != np.float64 or not (storage.flags.writeable and storage.flags.c_contiguous):
        requirement = "be writable, contiguous and of float64"
        raise checks.invalid(
            "storage", owner, requirement, f"dtype {storage.dtype}", "Pass a copy."
        )


def _scatter_fits(num_classes: int, numbers: int) -> None:
    """Reject class statistics, `numbers` of them for each class, that the memory does not hold."""
    needed = 8 * num_classes * numbers
    available = checks.available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The within-class scatter of {num_classes} classes needs {needed / 2**30:.1f} GiB, "
            f"and {available / 2**30:.1f} GiB of memory are free. Use CollapseMetrics(…, "
            "scatter='trace'), which leaves out tr(S_W S_B⁺)/K alone."
        )

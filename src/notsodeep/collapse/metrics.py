"""Neural collapse measured over batches: NC1 to NC4 in one pass, NC4 of samples in a second.

Every batch is centred at its class means before anything is squared, and batches are joined by the
update of Chan, Golub and LeVeque (1983):

    n = n₁ + n₂,   μ = μ₁ + (n₂/n) δ,   A = A₁ + A₂ + (n₁n₂/n) δδᵀ,   δ = μ₂ − μ₁.

A difference of sums of squares would cancel exactly where collapse is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from scipy.linalg.blas import dsyrk

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse.geometry import host_array
from notsodeep.collapse.measures import (
    RANK_CUTOFF,
    ROUNDING,
    ClassGeometry,
    ClassifierView,
    CollapseReport,
    NearestMeanMismatch,
    collapse_report,
    majority_and_minority,
    nearest_mean_mismatch,
    numerical_rank,
)
from notsodeep.errors import InvalidInput, NotEnoughMemory

ScatterKind = Literal["full", "trace"]

BLOCK_ROWS, BLOCK_ROWS_PER_CLASS = 4096, 64
"""Small batches wait until there are this many samples, and this many for each class: BLAS updates
a d × d matrix far faster by many rows at once."""


class CollapseMetrics:
    """Neural-collapse metrics of last-layer features, one pass over batches, mergeable.

    Batches and workers may come in any order: float64 sums are joined by Chan's update.  Arrays or
    torch tensors, on any device.  `compute` may be called at any time and changes nothing.

    Parameters
    ----------
    num_classes : int
        K ≥ 2.
    scatter : {"full", "trace"}
        "full" keeps a d × d matrix for each class; "trace" a number, and leaves out tr(S_W S_B⁺)/K.
    groups : mapping of str to list of int, optional
        Classes to report separately.  By default "majority" and "minority", the classes with
        more and with fewer samples than the average class, if sizes differ.

    Examples
    --------
    >>> import numpy as np
    >>> from notsodeep.collapse import simplex_etf
    >>> E = simplex_etf(3, 8, rng=0)
    >>> metrics = CollapseMetrics(num_classes=3)
    >>> metrics.update(np.repeat(E, 20, axis=0), np.repeat([0, 1, 2], 20))
    >>> report = metrics.compute(E)
    >>> report.overall["nc2_features"] < 1e-12 and report.overall["nc3_duality"] < 1e-12
    True
    """

    def __init__(
        self,
        num_classes: int,
        *,
        scatter: ScatterKind = "full",
        groups: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_classes = checks.integer_at_least(num_classes, 2, "num_classes", "CollapseMetrics")
        checks.known_name(scatter, ("full", "trace"), "scatter")
        self.scatter: ScatterKind = scatter
        self.groups: dict[str, IntArray] | None = None
        if groups is not None:
            self.groups = {name: self._classes(name, groups[name]) for name in groups}
        self._statistics: ClassStatistics | None = None

    @property
    def statistics(self) -> ClassStatistics:
        """Counts, means and scatter collected so far."""
        if self._statistics is None:
            raise InvalidInput(
                "CollapseMetrics has seen no samples. Call update(features, labels) first."
            )
        return self._statistics

    def resume(self, statistics: ClassStatistics) -> None:
        """Go on from statistics collected elsewhere, in place of what has been seen here."""
        self._require_same(statistics.num_classes, statistics.kind)
        self._statistics = statistics

    def update(self, features: object, labels: object) -> None:
        """Take in a batch: features (n, d) of any real dtype and labels (n,) of 0 … K − 1."""
        rows = checks.real_array(host_array(features), "features", "CollapseMetrics.update")
        if rows.ndim != 2 or len(rows) or not rows.shape[1]:
            rows = checks.samples(rows, "features", "CollapseMetrics.update")
        checks.powers_nonzero(rows, "features", "CollapseMetrics.update")
        classes = checks.class_labels(
            host_array(labels), len(rows), "CollapseMetrics.update", self.num_classes
        )
        self._matching(rows.shape[1]).add(rows, classes)

    def merge(self, other: CollapseMetrics) -> None:
        """Take in everything another object has seen; that one stays as it is."""
        self._require_same(other.num_classes, other.scatter)
        if other._statistics is not None:
            self._matching(other._statistics.num_features).merge(other._statistics)

    def mismatch(
        self, features: object, W: object, b: object = None, *, labels: object = None
    ) -> NearestMeanMismatch:
        """Count the disagreements of NC4 in a batch of the second pass.

        NC4 compares every sample with the final class means, so that it cannot be computed in the
        first pass.  The counts of batches add up: ``sum`` them with ``+`` and hand the total to
        `compute`.  `W` is (K, d) and `b` (K,) or None; NC4 of the groups needs `labels`.
        """
        statistics = self._complete()
        weights, bias = self._classifier(W, b)
        rows = checks.samples(host_array(features), "features", "CollapseMetrics.mismatch")
        self._matching(rows.shape[1])
        classes = None
        if labels is not None:
            classes = checks.class_labels(
                host_array(labels), len(rows), "CollapseMetrics.mismatch", self.num_classes
            )
        return nearest_mean_mismatch(rows, statistics.means, weights, bias, classes)

    def compute(
        self, W: object = None, b: object = None, *, mismatch: NearestMeanMismatch | None = None
    ) -> CollapseReport:
        """Compute every measure from what has been seen so far; every class must have a sample.

        Parameters
        ----------
        W : array-like or tensor of shape (K, d), optional
            Classifier, a row for each class.  Without it the measures of the classifier are NaN.
        b : array-like or tensor of shape (K,), optional
            Bias; it matters to `nc4_of_means` alone.
        mismatch : NearestMeanMismatch, optional
            Total of a second pass; without it NC4 of samples is NaN.
        """
        statistics = self._complete()
        view = None
        if W is not None:
            view = ClassifierView.of(*self._classifier(W, b), statistics.means)
        groups = self.groups
        if groups is None:
            groups = majority_and_minority(statistics.counts)
        return collapse_report(statistics.geometry(), groups, view, mismatch)

    def _matching(self, width: int) -> ClassStatistics:
        if self._statistics is None:
            self._statistics = ClassStatistics(self.num_classes, width, self.scatter)
        if width != self._statistics.num_features:
            raise InvalidInput(
                f"features must have {self._statistics.num_features} columns, as before, got "
                f"{width}."
            )
        return self._statistics

    def _complete(self) -> ClassStatistics:
        checks.class_sizes(self.statistics.counts, 1, "CollapseMetrics", "by now")
        return self.statistics

    def _classifier(self, W: object, b: object) -> tuple[FloatArray, FloatArray]:
        shape = (self.num_classes, self.statistics.num_features)
        weights = checks.matrix_of_shape(host_array(W), shape, "W", "CollapseMetrics")
        if b is None:
            return weights, np.zeros(self.num_classes)
        bias = checks.real_array(host_array(b), "b", "CollapseMetrics")
        if bias.shape != (self.num_classes,):
            raise InvalidInput(f"b must have shape ({self.num_classes},), got {bias.shape}.")
        return weights, bias

    def _classes(self, name: str, indices: object) -> IntArray:
        array = checks.plain_array(indices, f"groups[{name!r}]", "CollapseMetrics")
        valid = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
        if not valid or array.min() < 0 or array.max() >= self.num_classes:
            raise InvalidInput(
                f"groups[{name!r}] must be a list of classes from 0 to {self.num_classes - 1}, got "
                f"{indices!r}."
            )
        return np.unique(array).astype(np.int64)

    def _require_same(self, num_classes: int, scatter: str) -> None:
        if (num_classes, scatter) != (self.num_classes, self.scatter):
            raise InvalidInput(
                f"statistics must be of {self.num_classes} classes with scatter={self.scatter!r}, "
                f"got {num_classes} with {scatter!r}."
            )


class ClassStatistics:
    """Counts, means and scatter of K classes, in float64.

    `scatter` "full" keeps the K matrices A_k = Σ_{i∈k} (h_i − μ_k)(h_i − μ_k)ᵀ, 8·K·d² bytes,
    "trace" their traces.  `storage`, of other statistics, is continued from, in place.

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
            needed, available = 8 * layout[0] * layout[1], checks.available_memory()
            if needed > available:
                raise NotEnoughMemory(
                    f"The within-class scatter of {num_classes} classes needs "
                    f"{needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB of memory are free."
                    " Use scatter='trace', which leaves out tr(S_W S_B⁺)/K alone."
                )
            storage = np.zeros(layout)
        flags = storage.flags
        if (
            storage.shape != layout
            or storage.dtype != np.float64
            or not (flags.writeable and flags.c_contiguous)
        ):
            raise InvalidInput(
                f"storage must be a writable contiguous float64 array of shape {layout}, got "
                f"{storage.dtype} of shape {storage.shape}."
            )
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

    def geometry(self) -> ClassGeometry:
        """Reduce to what the measures need; every class must have a sample."""
        M = self.means - self.means.mean(axis=0)
        _, singular, directions = np.linalg.svd(M / np.sqrt(self.num_classes), full_matrices=False)
        rounding = ROUNDING * float(np.linalg.norm(self.means, axis=1).max())
        rank = numerical_rank(singular, self.num_classes, RANK_CUTOFF, rounding)
        inverse_traces = np.full(self.num_classes, np.nan)
        if self.kind == "full":
            # S_B⁺ in its eigenvectors, so that no d × d matrix is inverted.
            inverse_traces = self.variances_along(directions[:rank]) @ singular[:rank] ** -2.0
        return ClassGeometry(
            counts=self.counts,
            variances=self.variances,
            gram=M @ M.T,
            # From differences: ‖a‖² + ‖b‖² − 2a·b would cancel for classes that are close together.
            squared_distances=np.array([np.square(M - m).sum(axis=1) for m in M]),
            inverse_traces=inverse_traces,
            rank=rank,
            rounding=rounding,
            variance_rounding=rounding**2,
        )

    def add(self, features: FloatArray, labels: IntArray) -> None:
        """Take in samples, shapes (n, d) and (n,), labels 0 … K − 1."""
        enough = max(BLOCK_ROWS, BLOCK_ROWS_PER_CLASS * self.num_classes)
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

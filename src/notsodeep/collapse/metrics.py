"""Neural collapse measured over batches: NC1 to NC4 in one pass, NC4 in a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import requirements
from notsodeep.collapse.class_statistics import ClassStatistics, ScatterKind
from notsodeep.collapse.collapse_report import CollapseReport, collapse_report
from notsodeep.collapse.geometries import (
    ClassifierView,
    Weights,
    centred_means,
    geometry_of_features,
    majority_and_minority,
)
from notsodeep.collapse.measures import NearestMeanMismatch, nearest_mean_mismatch
from notsodeep.errors import InvalidInput


class CollapseMetrics:
    """Neural-collapse metrics of last-layer features, one pass over batches, mergeable.

    Batches and workers may come in any order: float64 sums are joined by Chan's update.  Arrays or
    torch tensors, on any device.  `compute` may be called at any time and changes nothing.

    Parameters
    ----------
    num_classes : int
        K ≥ 2.
    centring : {"class", "sample"}
        Centre the class means at their own mean (the default), or at the mean of all samples,
        which an imbalance pulls to the majority.
    weighting : {"class", "sample"}
        Weights of S_W and S_B: 1/K for each class (the default), or n_k/N.
    scatter : {"full", "trace"}
        "full" keeps a d × d matrix for each class; "trace" a number, and leaves out tr(S_W S_B⁺)/K.
    cutoff : float
        Singular values of the centred means below this share of the largest count as zero.
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
    >>> report.overall.nc2_features < 1e-12 and report.overall.nc3_duality < 1e-12
    True
    """

    def __init__(
        self,
        num_classes: int,
        *,
        centring: Weights = "class",
        weighting: Weights = "class",
        scatter: ScatterKind = "full",
        cutoff: float = 1e-10,
        groups: Mapping[str, Any] | None = None,
    ) -> None:
        owner = "CollapseMetrics"
        self.num_classes = requirements.num_classes_of_simplex(num_classes, owner)
        checks.known_name(centring, get_args(Weights), "centring")
        checks.known_name(weighting, get_args(Weights), "weighting")
        checks.known_name(scatter, get_args(ScatterKind), "scatter")
        self.centring: Weights = centring
        self.weighting: Weights = weighting
        self.scatter: ScatterKind = scatter
        self.cutoff = checks.share(cutoff, "cutoff", owner)
        self.groups: dict[str, IntArray] | None = None
        if groups is not None:
            self.groups = requirements.class_groups(groups, self.num_classes, owner)
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
        kept, expected = (statistics.num_classes, statistics.kind), (self.num_classes, self.scatter)
        _same_kind(kept, expected, "CollapseMetrics.resume")
        self._statistics = statistics

    def update(self, features: object, labels: object) -> None:
        """Take in a batch.

        Parameters
        ----------
        features : array-like or tensor of shape (n, d)
            Any real dtype; sums are in float64.
        labels : array-like or tensor of shape (n,)
            Integers 0 … K − 1.
        """
        rows, classes = requirements.labelled_features(
            features, labels, self.num_classes, "CollapseMetrics.update"
        )
        self._matching(rows.shape[1], "features", "CollapseMetrics.update").add(rows, classes)

    def merge(self, other: CollapseMetrics) -> None:
        """Take in everything another object has seen; that one stays as it is."""
        owner = "CollapseMetrics.merge"
        kept, expected = (other.num_classes, other.scatter), (self.num_classes, self.scatter)
        _same_kind(kept, expected, owner)
        if other._statistics is not None:
            width = other._statistics.num_features
            self._matching(width, "other", owner).merge(other._statistics)

    def mismatch(
        self, features: object, W: object, b: object = None, *, labels: object = None
    ) -> NearestMeanMismatch:
        """Count the disagreements of NC4 in a batch of the second pass.

        NC4 compares every sample with the final class means, so that it cannot be had in the first
        pass.  The counts of batches add up: ``sum`` them with ``+`` and hand the total to
        `compute`.

        Parameters
        ----------
        features : array-like or tensor of shape (n, d)
        W, b
            Classifier of shape (K, d) and bias of shape (K,), or None.
        labels : array-like or tensor of shape (n,), optional
            True classes; needed for NC4 of the groups.
        """
        owner = "CollapseMetrics.mismatch"
        statistics = self._complete(owner)
        weights, bias = self._classifier(W, b, owner)
        rows = checks.samples(requirements.host_array(features), "features", owner)
        _same_width(rows.shape[1], statistics.num_features, "features", owner)
        classes = None
        if labels is not None:
            host = requirements.host_array(labels)
            classes = checks.class_labels(host, len(rows), owner, self.num_classes)
        return nearest_mean_mismatch(rows, statistics.means, weights, bias, classes)

    def compute(
        self, W: object = None, b: object = None, *, mismatch: NearestMeanMismatch | None = None
    ) -> CollapseReport:
        """Compute every measure from what has been seen so far.

        Parameters
        ----------
        W : array-like or tensor of shape (K, d), optional
            Classifier, a row for each class.  Without it the measures of the classifier are None.
        b : array-like or tensor of shape (K,), optional
            Bias; it matters to `nc4_of_means` alone.
        mismatch : NearestMeanMismatch, optional
            Total of a second pass; without it NC4 is None.

        Raises
        ------
        InvalidInput
            A class without samples.
        """
        owner = "CollapseMetrics.compute"
        statistics = self._complete(owner)
        view = None
        if W is not None:
            weights, bias = self._classifier(W, b, owner)
            centred = centred_means(statistics, self.centring)
            view = ClassifierView.of(weights, bias, statistics.means, centred)
        groups = self.groups
        if groups is None:
            groups = majority_and_minority(statistics.counts)
        geometry = geometry_of_features(statistics, self.centring, self.weighting, self.cutoff)
        return collapse_report(geometry, groups, self.centring, self.weighting, view, mismatch)

    def _matching(self, width: int, parameter: str, owner: str) -> ClassStatistics:
        if self._statistics is None:
            self._statistics = ClassStatistics(self.num_classes, width, self.scatter)
        _same_width(width, self._statistics.num_features, parameter, owner)
        return self._statistics

    def _complete(self, owner: str) -> ClassStatistics:
        statistics = self.statistics
        checks.class_sizes(statistics.counts, 1, owner, "by now")
        return statistics

    def _classifier(self, W: object, b: object, owner: str) -> tuple[FloatArray, FloatArray]:
        width = self.statistics.num_features
        return requirements.classifier(W, b, self.num_classes, width, owner)


def _same_width(found: int, expected: int, parameter: str, owner: str) -> None:
    """Require the number of features seen so far."""
    if found != expected:
        requirement = f"have {expected} features, as before"
        raise checks.invalid(parameter, owner, requirement, f"{found} features")


def _same_kind(found: tuple[int, str], expected: tuple[int, str], owner: str) -> None:
    """Require statistics of as many classes, with the same kind of scatter."""
    if found != expected:
        requirement = f"be of {expected[0]} classes, with scatter = {expected[1]!r}"
        got = f"{found[0]} classes, with scatter = {found[1]!r}"
        raise checks.invalid("the statistics", owner, requirement, got)

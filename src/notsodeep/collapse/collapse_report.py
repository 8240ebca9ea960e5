"""The answer of the collapse measurements: numbers, and a reason wherever a number is missing."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from notsodeep.checks import FloatArray, IntArray
from notsodeep.collapse.class_geometry import Weights
from notsodeep.records import Plotted, Record


@dataclass(frozen=True, repr=False)
class CollapseSummary(Record):
    """The measures over all classes, or over a group of them.

    All but the two mean cosines vanish at collapse.  A value is None, or infinite, only
    with an entry in `reasons`.

    Attributes
    ----------
    classes : tuple of int
    nc1 : float
        tr(S_W S_B⁺)/K; S_B and K are always those of all classes.
    nc1_trace_ratio : float
        tr S_W/tr S_B.
    nc1_cdnv : float
        Mean over pairs of (v_j + v_k)/(2‖μ_j − μ_k‖²).
    nc2_features, nc2_classifier : float
        ‖MMᵀ/‖MMᵀ‖ − T‖_F for the centred means M, and for the classifier W.
    equinorm_features, equinorm_classifier : float
        Standard deviation over mean of the norms.
    equiangular_features, equiangular_classifier : float
        Standard deviation of the cosines.
    maximal_angle_features, maximal_angle_classifier : float
        Mean of |cos + 1/(K−1)|.
    nc3_alignment, nc3_duality : float
        ‖WMᵀ/‖WMᵀ‖ − T‖_F and ‖W/‖W‖ − M/‖M‖‖_F.
    nc4 : float
        Share of samples whose arg-max class is not that of the nearest mean.
    nc4_of_means : float
        Share of classes whose own mean the classifier does not give the largest logit; a tie
        counts.  It is NC4 where every class is a point.
    cosine_features, cosine_classifier : float
        Mean cosine: −1/(K−1) at collapse, 1 for a minority that has merged.
    reasons : dict of str to str

    Examples
    --------
    >>> from notsodeep.collapse import CollapseMetrics
    >>> metrics = CollapseMetrics(num_classes=2)
    >>> metrics.update([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.1]], [0, 0, 1])
    >>> summary = metrics.compute().overall
    >>> summary.nc1, summary.nc3_duality, summary.reasons["nc3_duality"]
    (0.0, None, 'no classifier was given')
    """

    classes: tuple[int, ...]
    nc1: float | None
    nc1_trace_ratio: float | None
    nc1_cdnv: float | None
    nc2_features: float | None
    nc2_classifier: float | None
    equinorm_features: float | None
    equinorm_classifier: float | None
    equiangular_features: float | None
    equiangular_classifier: float | None
    maximal_angle_features: float | None
    maximal_angle_classifier: float | None
    nc3_alignment: float | None
    nc3_duality: float | None
    nc4: float | None
    nc4_of_means: float | None
    cosine_features: float | None
    cosine_classifier: float | None
    reasons: dict[str, str]


@dataclass(frozen=True, eq=False, repr=False)
class CollapseReport(Plotted):
    """How far a set of features, and a classifier, have collapsed.  Printing it gives a table.

    Attributes
    ----------
    overall : CollapseSummary
    groups : dict of str to CollapseSummary
        Such as "majority" and "minority"; empty for balanced classes.
    counts : ndarray of shape (K,)
    centring : {"class", "sample"}
        The centre of the means is the mean of the class means, or of the samples.
    weighting : {"class", "sample"}
        S_W = Σ π_k Σ_k and S_B = Σ π_k m_k m_kᵀ with π_k = 1/K, or n_k/N; Σ_k is divided by n_k.
    between_rank : int
        Numerical rank of S_B.
    cutoff : float
        Relative cut-off for singular values of the centred means, in the rank and in S_B⁺.
    variances : ndarray of shape (K,)
        v_k = tr Σ_k.
    feature_norms : ndarray of shape (K,)
        ‖m_k‖ of the centred means.
    classifier_norms : ndarray of shape (K,), or None without a classifier
    feature_cosines : ndarray of shape (K, K)
        NaN where a centred mean is zero; `notes` says so.
    classifier_cosines : ndarray of shape (K, K), or None without a classifier
    cdnv : ndarray of shape (K, K)
        CDNV of every pair.
    notes : tuple of str
        Whatever else limits the numbers.

    Examples
    --------
    >>> from notsodeep.collapse import CollapseMetrics, simplex_etf
    >>> W = simplex_etf(3, 4, rng=0)
    >>> metrics = CollapseMetrics(num_classes=3)
    >>> metrics.update(W[[0, 0, 0, 1, 2]], [0, 0, 0, 1, 2])
    >>> report = metrics.compute(W)
    >>> report.counts, report.between_rank, sorted(report.groups)
    (array([3, 1, 1]), 2, ['majority', 'minority'])
    """

    _drawing = "collapse"

    overall: CollapseSummary
    groups: dict[str, CollapseSummary]
    counts: IntArray
    centring: Weights
    weighting: Weights
    between_rank: int
    cutoff: float
    variances: FloatArray
    feature_norms: FloatArray
    classifier_norms: FloatArray | None
    feature_cosines: FloatArray
    classifier_cosines: FloatArray | None
    cdnv: FloatArray
    notes: tuple[str, ...]

    def __str__(self) -> str:
        summaries = {"all": self.overall, **self.groups}
        head = (
            f"{len(self.counts)} classes, {int(self.counts.sum())} samples; centre by "
            f"{self.centring}, S_W and S_B by {self.weighting}; rank of S_B {self.between_rank}"
        )
        names = list(summaries)
        blocks = [names[i : i + 3] for i in range(0, len(names), 3)]  # three columns fit a terminal
        tables = [_table({name: summaries[name] for name in block}) for block in blocks]
        remarks = [*_remarks(summaries), *self.notes]
        wrapped = [
            textwrap.fill(r, 79, initial_indent="  ", subsequent_indent="    ") for r in remarks
        ]
        return "\n".join([textwrap.fill(head, 79), *tables, *wrapped])


_TITLES = {
    "nc1": "NC1  tr(S_W S_B⁺)/K",
    "nc1_trace_ratio": "NC1  tr S_W/tr S_B",
    "nc1_cdnv": "NC1  mean CDNV",
    "nc2_features": "NC2  means",
    "nc2_classifier": "NC2  classifier",
    "equinorm_features": "equal norms, means",
    "equinorm_classifier": "equal norms, classifier",
    "equiangular_features": "equal angles, means",
    "equiangular_classifier": "equal angles, classifier",
    "maximal_angle_features": "largest angles, means",
    "maximal_angle_classifier": "largest angles, classifier",
    "nc3_alignment": "NC3  classifier × means",
    "nc3_duality": "NC3  classifier − means",
    "nc4": "NC4  samples",
    "nc4_of_means": "NC4  class means",
    "cosine_features": "mean cosine, means",
    "cosine_classifier": "mean cosine, classifier",
}


def _table(summaries: dict[str, CollapseSummary]) -> str:
    lines = [f"{'':<34}" + "".join(f"{name[:14]:>15}" for name in summaries)]
    for field, title in _TITLES.items():
        values = [getattr(summary, field) for summary in summaries.values()]
        shown = ["–" if value is None else f"{value:.4g}" for value in values]
        lines.append(f"{title:<34}" + "".join(f"{text:>15}" for text in shown))
    return "\n".join(lines)


def _remarks(summaries: dict[str, CollapseSummary]) -> list[str]:
    """Say each reason once, with the quantities and the groups that it explains."""
    quantities: dict[str, list[str]] = {}
    groups: dict[str, list[str]] = {}
    for name, summary in summaries.items():
        for quantity, reason in summary.reasons.items():
            quantities.setdefault(reason, []).append(quantity)
            groups.setdefault(reason, []).append(name)
    remarks = []
    for reason, found in quantities.items():
        what = list(dict.fromkeys(found))
        where = list(dict.fromkeys(groups[reason]))
        place = "" if len(where) == len(summaries) else f" ({', '.join(where)})"
        remarks.append(f"{', '.join(what)}{place}: {reason}")
    return remarks

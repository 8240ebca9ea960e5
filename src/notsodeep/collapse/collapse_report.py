"""The answer of the collapse measurements: numbers, and a reason wherever a number is missing."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import measures
from notsodeep.collapse.geometries import ClassGeometry, ClassifierView, Weights, cosine_matrix
from notsodeep.collapse.measures import Measured, NearestMeanMismatch
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


_NO_CLASSIFIER = Measured(None, "no classifier was given")


def collapse_report(
    geometry: ClassGeometry,
    groups: dict[str, IntArray],
    centring: Weights,
    weighting: Weights,
    classifier: ClassifierView | None = None,
    mismatch: NearestMeanMismatch | None = None,
) -> CollapseReport:
    """Take every measure over all classes and over every group."""
    K = len(geometry.counts)
    pairs = measures.normalised_variances(geometry)
    cosines = cosine_matrix(geometry.gram, geometry.rounding)

    def summary(classes: IntArray) -> CollapseSummary:
        return _summary(geometry, pairs, cosines, classes, classifier, mismatch)

    return CollapseReport(
        overall=summary(np.arange(K)),
        groups={name: summary(classes) for name, classes in groups.items()},
        counts=geometry.counts,
        centring=centring,
        weighting=weighting,
        between_rank=geometry.rank,
        cutoff=geometry.cutoff,
        variances=geometry.variances,
        feature_norms=geometry.norms,
        classifier_norms=None if classifier is None else classifier.norms,
        feature_cosines=cosines,
        classifier_cosines=None if classifier is None else classifier.cosines,
        cdnv=pairs,
        notes=_notes(geometry, cosines),
    )


def _summary(
    geometry: ClassGeometry,
    pairs: FloatArray,
    cosines: FloatArray,
    classes: IntArray,
    view: ClassifierView | None,
    mismatch: NearestMeanMismatch | None,
) -> CollapseSummary:
    found = {
        "nc1": measures.variability(geometry, classes),
        "nc1_trace_ratio": measures.trace_ratio(geometry, classes),
        "nc1_cdnv": measures.mean_normalised_variance(pairs, classes),
        "nc2_features": measures.simplex_deviation(geometry.gram, classes, geometry.rounding**2),
        "equinorm_features": measures.equal_norms(geometry.norms, classes),
        "nc4": _mismatch_share(mismatch, classes, len(geometry.counts)),
    }
    angles = measures.angles(cosines, classes)
    found |= zip(
        ("cosine_features", "equiangular_features", "maximal_angle_features"), angles, strict=True
    )
    names = ("cosine_classifier", "equiangular_classifier", "maximal_angle_classifier")
    if view is None:
        others = ("nc2_classifier", "equinorm_classifier", "nc3_alignment", "nc3_duality")
        found |= dict.fromkeys((*names, *others, "nc4_of_means"), _NO_CLASSIFIER)
    else:
        cross = view.W @ view.M.T
        noise = geometry.rounding * float(view.norms.max())
        found |= zip(names, measures.angles(view.cosines, classes), strict=True)
        found |= {
            "nc2_classifier": measures.simplex_deviation(
                view.W @ view.W.T, classes, view.rounding**2
            ),
            "equinorm_classifier": measures.equal_norms(view.norms, classes),
            "nc3_alignment": measures.simplex_deviation(cross, classes, noise),
            "nc3_duality": measures.self_duality(view.W, view.M, classes, geometry.rounding),
            "nc4_of_means": Measured(float((view.margins[classes] <= 0.0).mean())),
        }
    return CollapseSummary(
        classes=tuple(int(k) for k in classes),
        **{name: measured.value for name, measured in found.items()},
        reasons={name: measured.reason for name, measured in found.items() if measured.reason},
    )


def _mismatch_share(
    mismatch: NearestMeanMismatch | None, classes: IntArray, num_classes: int
) -> Measured:
    if mismatch is None:
        return Measured(None, "needs a second pass: see CollapseMetrics.mismatch")
    if len(classes) == num_classes:
        return Measured(mismatch.share)
    share = mismatch.share_of(classes)
    return Measured(share, "" if share is not None else "mismatch was counted without labels")


def _notes(geometry: ClassGeometry, cosines: FloatArray) -> tuple[str, ...]:
    notes = []
    K = len(geometry.counts)
    single = np.flatnonzero(geometry.counts == 1)
    if single.size:
        notes.append(f"one sample, so variance zero: classes {_listed(single)}")
    constant = (geometry.counts > 1) & (geometry.variances <= geometry.variance_rounding)
    if constant.any():
        notes.append(f"variance zero up to rounding: classes {_listed(np.flatnonzero(constant))}")
    if 0 < geometry.rank < K - 1:
        notes.append(
            f"S_B has rank {geometry.rank}, not K − 1 = {K - 1}; tr(S_W S_B⁺) leaves out the rest"
        )
    centred_at_zero = np.flatnonzero(np.isnan(np.diag(cosines)))
    if centred_at_zero.size:
        notes.append(f"means at the centre, so no cosines: classes {_listed(centred_at_zero)}")
    return tuple(notes)


def _listed(classes: IntArray) -> str:
    shown = ", ".join(map(str, classes[:8]))
    return shown + (", …" if len(classes) > 8 else "")

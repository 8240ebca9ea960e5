"""Every measure, over all classes and over groups of them, put into a report."""

from __future__ import annotations

import numpy as np

from notsodeep.checks import FloatArray, IntArray
from notsodeep.collapse import measures
from notsodeep.collapse.class_geometry import ClassGeometry, Weights
from notsodeep.collapse.classifier_view import ClassifierView
from notsodeep.collapse.collapse_report import CollapseReport, CollapseSummary
from notsodeep.collapse.measures import Measured
from notsodeep.collapse.nearest_mean import NearestMeanMismatch

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
    cosines = measures.cosine_matrix(geometry.gram, geometry.rounding)

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

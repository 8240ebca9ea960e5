"""The measures NC1 to NC4 as pure functions of a few small matrices.

Each is 0 at collapse and may be taken over a subset of the classes; over all of them it is the
usual definition.  Vectors stay centred at the mean of *all* class means, and are compared with the
part of the simplex that belongs to the subset.  A measure that is not defined is NaN, and one that
diverges is infinite.  Sources: Papyan, Han and Donoho (PNAS 2020); Galanti, György and Hutter
(2021) for CDNV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse.geometry import simplex_gram
from notsodeep.records import Plotted, Record

ROUNDING = 32.0 * float(np.finfo(np.float64).eps)
"""Relative rounding error of sums such as means: a few units in the last place."""

RANK_CUTOFF, GRAM_CUTOFF = 1e-10, 1e-6
"""Relative cut-off for singular values of the centred means, in the rank of S_B and in S_B⁺, from
features and from a Gram matrix, which holds their squares."""

TITLES = {
    "nc1": "NC1  tr(S_W S_B⁺)/K",  # S_B and K are always those of all classes
    "nc1_trace_ratio": "NC1  tr S_W/tr S_B",
    "nc1_cdnv": "NC1  mean CDNV",  # mean over pairs of (v_j + v_k)/(2‖μ_j − μ_k‖²)
    "nc2_features": "NC2  means",  # ‖MMᵀ/‖MMᵀ‖ − T‖_F, M the centred means
    "nc2_classifier": "NC2  classifier",
    "equinorm_features": "equal norms, means",  # standard deviation over mean of the norms
    "equinorm_classifier": "equal norms, classifier",
    "equiangular_features": "equal angles, means",  # standard deviation of the cosines
    "equiangular_classifier": "equal angles, classifier",
    "maximal_angle_features": "largest angles, means",  # mean of |cos + 1/(K−1)|
    "maximal_angle_classifier": "largest angles, classifier",
    "nc3_alignment": "NC3  classifier × means",  # ‖WMᵀ/‖WMᵀ‖ − T‖_F
    "nc3_duality": "NC3  classifier − means",  # ‖W/‖W‖ − M/‖M‖‖_F
    "nc4": "NC4  samples",  # share whose arg-max class is not that of the nearest mean
    "nc4_of_means": "NC4  class means",  # share of means without the largest logit
    "cosine_features": "mean cosine, means",  # −1/(K−1) at collapse, 1 if merged
    "cosine_classifier": "mean cosine, classifier",
}


@dataclass(frozen=True, eq=False, repr=False)
class CollapseReport(Plotted):
    """How far a set of features, and a classifier, have collapsed.  Printing it gives a table.

    All measures but the two mean cosines vanish at collapse; NaN where one is not defined.  S_W =
    Σ Σ_k/K and S_B = Σ m_k m_kᵀ/K, with Σ_k divided by n_k and m_k = μ_k − mean of the μ.
    """

    _drawing = "collapse"

    overall: dict[str, float]
    groups: dict[str, dict[str, float]]  # such as "majority" and "minority"; none if balanced
    counts: IntArray  # (K,)
    between_rank: int  # numerical rank of S_B
    variances: FloatArray  # (K,): v_k = tr Σ_k
    feature_norms: FloatArray  # (K,): ‖m_k‖
    classifier_norms: FloatArray | None  # (K,); None without a classifier
    feature_cosines: FloatArray  # (K, K): NaN where a centred mean is zero
    classifier_cosines: FloatArray | None  # (K, K)
    cdnv: FloatArray  # (K, K): of every pair, infinite where two means coincide
    notes: tuple[str, ...]  # what limits the numbers

    def __str__(self) -> str:
        columns = {"all": self.overall, **self.groups}
        names = list(columns)
        lines = [
            f"{len(self.counts)} classes, {int(self.counts.sum())} samples; rank of S_B "
            f"{self.between_rank}"
        ]
        for start in range(0, len(names), 3):  # three columns fit a terminal
            block = names[start : start + 3]
            lines.append(f"{'':<34}" + "".join(f"{name[:14]:>15}" for name in block))
            for key, title in TITLES.items():
                cells = [columns[name][key] for name in block]
                shown = ["–" if math.isnan(value) else f"{value:.4g}" for value in cells]
                lines.append(f"{title:<34}" + "".join(f"{text:>15}" for text in shown))
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True, eq=False)
class ClassGeometry:
    """Class means about their mean, and the variability around them."""

    counts: IntArray  # (K,)
    variances: FloatArray  # (K,): v_k = tr Σ_k
    gram: FloatArray  # (K, K): m_j·m_k
    squared_distances: FloatArray  # (K, K): ‖μ_j − μ_k‖²
    inverse_traces: FloatArray  # (K,): tr(Σ_k S_B⁺); NaN if only traces of the scatter were kept
    rank: int  # of S_B
    rounding: float  # lengths of means below this are rounding errors
    variance_rounding: float

    @property
    def norms(self) -> FloatArray:
        """‖m_k‖, shape (K,)."""
        return np.sqrt(np.maximum(np.diag(self.gram), 0.0))

    def notes(self) -> list[str]:
        """Say what limits the numbers."""
        K, constant = len(self.counts), self.variances <= self.variance_rounding
        found = {
            "one sample, so variance zero": self.counts == 1,
            "variance zero up to rounding": (self.counts > 1) & constant,
            "means at the centre, so no cosines": self.norms <= self.rounding,
        }
        notes = [f"{text}: classes {_listed(mask)}" for text, mask in found.items() if mask.any()]
        pairs = np.argwhere(np.triu(self.squared_distances <= self.rounding**2, 1))
        if len(pairs):
            notes.append(f"the means of classes {pairs[0][0]} and {pairs[0][1]} coincide")
        if 0 < self.rank < K - 1:
            notes.append(f"S_B has rank {self.rank}, not {K - 1}; tr(S_W S_B⁺) leaves out the rest")
        return notes


@dataclass(frozen=True, eq=False)
class ClassifierView:
    """Classifier and centred class means, a row for each class."""

    W: FloatArray  # (K, d)
    M: FloatArray  # (K, d)
    margins: (
        FloatArray  # (K,): own logit of every class mean minus the largest other, less rounding
    )

    @classmethod
    def of(cls, W: FloatArray, b: FloatArray, means: FloatArray) -> ClassifierView:
        """Evaluate the classifier W h + b at the class means."""
        logits = means @ W.T + b
        own = np.diag(logits).copy()
        np.fill_diagonal(logits, -math.inf)
        size = np.linalg.norm(means, axis=1).max() * np.linalg.norm(W, axis=1).max()
        margins = own - logits.max(axis=1) - ROUNDING * (size + np.abs(b).max())
        return cls(W, means - means.mean(axis=0), margins)


@dataclass(frozen=True, eq=False, repr=False)
class NearestMeanMismatch(Record):
    """Samples on which classifier and nearest class mean disagree.  Those of batches add up."""

    disagreements: IntArray  # (K + 1,): by true class; the last entry is for unlabelled samples
    totals: IntArray  # (K + 1,)
    # Samples whose largest logit, or nearest mean, is not unique; the lower class was taken.  After
    # minority collapse these decide the accuracy of the minority.
    ties: int

    @property
    def share(self) -> float:
        """NC4, the share of samples on which they disagree."""
        return float(self.disagreements.sum() / self.totals.sum())

    def share_of(self, classes: IntArray) -> float:
        """NC4 over the samples of some classes; NaN if samples came without labels."""
        total = self.totals[classes].sum()
        if self.totals[-1] > 0 or total == 0:
            return math.nan
        return float(self.disagreements[classes].sum() / total)

    def __add__(self, other: NearestMeanMismatch) -> NearestMeanMismatch:
        return NearestMeanMismatch(
            self.disagreements + other.disagreements,
            self.totals + other.totals,
            self.ties + other.ties,
        )


def nearest_mean_mismatch(
    features: FloatArray, means: FloatArray, W: FloatArray, b: FloatArray, labels: IntArray | None
) -> NearestMeanMismatch:
    """Count the rows h of `features` with arg max_k (w_k·h + b_k) ≠ arg min_k ‖h − μ_k‖."""
    K = len(means)
    logits = features @ W.T + b
    centre = means.mean(axis=0)  # takes a common offset out of the squares
    centred = means - centre
    closeness = (features - centre) @ centred.T - 0.5 * np.square(centred).sum(axis=1)
    differ = logits.argmax(axis=1) != closeness.argmax(axis=1)
    labels = np.full(len(features), K) if labels is None else labels
    return NearestMeanMismatch(
        np.bincount(labels[differ], minlength=K + 1),
        np.bincount(labels, minlength=K + 1),
        int((_tied(logits) | _tied(closeness)).sum()),
    )


def collapse_report(
    geometry: ClassGeometry,
    groups: dict[str, IntArray],
    view: ClassifierView | None = None,
    mismatch: NearestMeanMismatch | None = None,
) -> CollapseReport:
    """Take every measure over all classes and over every group."""
    K = len(geometry.counts)
    sums = np.add.outer(geometry.variances, geometry.variances)
    # Infinite where two means coincide, be the variances zero or not: the classes are not apart.
    apart = geometry.squared_distances > geometry.rounding**2
    with np.errstate(divide="ignore", invalid="ignore"):
        cdnv = np.where(apart, 0.5 * sums / geometry.squared_distances, np.inf)
    np.fill_diagonal(cdnv, 0.0)
    cosines = cosine_matrix(geometry.gram, geometry.rounding)
    norms = own = None
    if view is not None:
        norms = np.linalg.norm(view.W, axis=1)
        own = cosine_matrix(view.W @ view.W.T, ROUNDING * float(norms.max()))

    def measures(classes: IntArray) -> dict[str, float]:
        found = dict.fromkeys(TITLES, math.nan)
        found |= _of_features(geometry, cdnv, cosines, classes)
        if view is not None and norms is not None and own is not None:
            found |= _of_classifier(geometry, view, norms, own, classes)
        if mismatch is not None:
            share = mismatch.share if len(classes) == K else mismatch.share_of(classes)
            found["nc4"] = share
        return found

    notes = geometry.notes()
    if view is None:
        notes.append("no classifier was given")
    elif mismatch is None:
        notes.append("NC4 of samples needs a second pass: see CollapseMetrics.mismatch")
    return CollapseReport(
        overall=measures(np.arange(K)),
        groups={name: measures(classes) for name, classes in groups.items()},
        counts=geometry.counts,
        between_rank=geometry.rank,
        variances=geometry.variances,
        feature_norms=geometry.norms,
        classifier_norms=norms,
        feature_cosines=cosines,
        classifier_cosines=own,
        cdnv=cdnv,
        notes=tuple(notes),
    )


def _of_features(
    geometry: ClassGeometry, cdnv: FloatArray, cosines: FloatArray, classes: IntArray
) -> dict[str, float]:
    K = len(geometry.counts)
    # S_W of the subset, S_B and K of all classes: NC1 of all is the mean of that of the parts.
    nc1 = math.inf if geometry.rank == 0 else geometry.inverse_traces[classes].mean() / K
    between = float(np.square(geometry.norms[classes]).mean())
    within = float(geometry.variances[classes].mean())
    ratio = within / between if between > geometry.rounding**2 else math.inf
    mean, deviation, angle = angles(cosines, classes)
    return {
        "nc1": math.nan if np.isnan(geometry.inverse_traces).any() else float(nc1),
        "nc1_trace_ratio": ratio,
        "nc1_cdnv": float(_off_diagonal(cdnv, classes).mean()) if len(classes) > 1 else math.nan,
        "nc2_features": simplex_deviation(geometry.gram, classes, geometry.rounding**2),
        "equinorm_features": _variation(geometry.norms[classes]),
        "cosine_features": mean,
        "equiangular_features": deviation,
        "maximal_angle_features": angle,
    }


def _of_classifier(
    geometry: ClassGeometry,
    view: ClassifierView,
    norms: FloatArray,
    cosines: FloatArray,
    classes: IntArray,
) -> dict[str, float]:
    W, M = view.W[classes], view.M[classes]
    size_w, size_m = float(np.linalg.norm(W)), float(np.linalg.norm(M))
    zero = size_w == 0.0 or size_m <= geometry.rounding
    duality = math.nan if zero else float(np.linalg.norm(W / size_w - M / size_m))
    mean, deviation, angle = angles(cosines, classes)
    largest = float(norms.max())
    return {
        "nc2_classifier": simplex_deviation(view.W @ view.W.T, classes, (ROUNDING * largest) ** 2),
        "equinorm_classifier": _variation(norms[classes]),
        "nc3_alignment": simplex_deviation(view.W @ view.M.T, classes, geometry.rounding * largest),
        "nc3_duality": duality,
        "nc4_of_means": float((view.margins[classes] <= 0.0).mean()),
        "cosine_classifier": mean,
        "equiangular_classifier": deviation,
        "maximal_angle_classifier": angle,
    }


def simplex_deviation(products: FloatArray, classes: IntArray, smallest: float) -> float:
    """NC2 of M Mᵀ or W Wᵀ, and NC3 of W Mᵀ: ‖G/‖G‖ − T/‖T‖‖_F, both restricted to the subset.

    `smallest` is the norm below which G is zero up to rounding.
    """
    block = products[np.ix_(classes, classes)]
    size = float(np.linalg.norm(block))
    if len(classes) < 2 or size <= smallest:
        return math.nan
    target = simplex_gram(len(products))[np.ix_(classes, classes)]
    return float(np.linalg.norm(block / size - target / np.linalg.norm(target)))


def angles(cosines: FloatArray, classes: IntArray) -> tuple[float, float, float]:
    """Mean cosine, its standard deviation (equiangularity), and the mean of |cos + 1/(K−1)|.

    Over the pairs within the subset; the last compares with the angle of the whole simplex.
    """
    if len(classes) < 2:
        return math.nan, math.nan, math.nan
    values = _off_diagonal(cosines, classes)
    deviation = np.abs(values + 1.0 / (len(cosines) - 1.0)).mean()
    return float(values.mean()), float(values.std()), float(deviation)


def cosine_matrix(gram: FloatArray, rounding: float) -> FloatArray:
    """Return the cosines of vectors with this Gram matrix; NaN for vectors that are zero."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    norms = np.where(norms > rounding, norms, np.nan)
    cosines = gram / np.outer(norms, norms)
    np.fill_diagonal(cosines, np.where(np.isnan(norms), np.nan, 1.0))
    return np.asarray(np.clip(cosines, -1.0, 1.0))


def numerical_rank(singular: FloatArray, num_classes: int, cutoff: float, rounding: float) -> int:
    """Rank of S_B, at most K − 1, from the singular values of the centred means."""
    largest = float(singular[0])
    if largest <= rounding:
        return 0
    above = singular > max(cutoff * largest, rounding)
    return min(int(above.sum()), num_classes - 1)


def majority_and_minority(counts: FloatArray | IntArray) -> dict[str, IntArray]:
    """Split the classes by size, ``{"majority": …, "minority": …}``; empty if all are equal.

    A class is in the minority if it has fewer samples than the average class.  With two sizes these
    are the smaller classes, whatever their number.
    """
    if counts.min() == counts.max():
        return {}
    small = counts < counts.mean()
    return {"majority": np.flatnonzero(~small), "minority": np.flatnonzero(small)}


def _variation(norms: FloatArray) -> float:
    """Return standard deviation over mean."""
    mean = float(norms.mean())
    return float(norms.std()) / mean if len(norms) > 1 and mean > 0.0 else math.nan


def _off_diagonal(matrix: FloatArray, classes: IntArray) -> FloatArray:
    block = matrix[np.ix_(classes, classes)]
    return np.asarray(block[~np.eye(len(classes), dtype=bool)])


def _tied(scores: FloatArray) -> NDArray[np.bool_]:
    best = scores.max(axis=1, keepdims=True)
    return np.asarray((scores == best).sum(axis=1) > 1)


def _listed(mask: NDArray[np.bool_]) -> str:
    classes = np.flatnonzero(mask)
    return ", ".join(map(str, classes[:8])) + (", …" if len(classes) > 8 else "")

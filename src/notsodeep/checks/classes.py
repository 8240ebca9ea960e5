"""Checks of class labels, class sizes and class covariances."""

from __future__ import annotations

import math

import numpy as np

from notsodeep.checks.arrays import FloatArray, IntArray, plain_array, real_array
from notsodeep.checks.wording import refusal


def class_labels(
    y: object, num_samples: int, owner: str, num_classes: int | None = None
) -> IntArray:
    """Require one integer label per sample, in 0 … K − 1 if K is given; return them as int64."""
    array = plain_array(y, "y", owner)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise refusal(
            "y",
            owner,
            "be a vector of integer class labels",
            f"shape {array.shape} and dtype {array.dtype}",
            "Encode names with numpy.unique(y, return_inverse=True)[1].",
        )
    if len(array) != num_samples:
        requirement = f"have one label for each of the {num_samples} rows of X"
        raise refusal("y", owner, requirement, f"{len(array)} labels")
    array = array.astype(np.int64, copy=False)
    if num_classes is not None and len(array) and not 0 <= array.min() <= array.max() < num_classes:
        worst = int(array.min() if array.min() < 0 else array.max())
        requirement = f"hold labels from 0 to {num_classes - 1}, one for each of the classes"
        raise refusal("y", owner, requirement, f"a label {worst}")
    return array


def class_sizes(counts: IntArray, least: int, owner: str, why: str) -> None:
    """Require at least `least` samples in every class; `why` completes the sentence."""
    small = np.flatnonzero(counts < least)
    if small.size:
        first = int(small[0])
        count = int(counts[first])
        got = f"class {first} with {count}" if count else f"class {first} empty"
        plural = "sample" if least == 1 else "samples"
        raise refusal("y", owner, f"have at least {least} {plural} in every class {why}", got)


def class_proportions(weights: object, num_classes: int, owner: str) -> FloatArray:
    """Require K positive weights that sum to one; None stands for equal weights."""
    if weights is None:
        return np.full(num_classes, 1.0 / num_classes)
    array = real_array(weights, "weights", owner)
    if array.shape != (num_classes,):
        requirement = f"hold one number for each of the {num_classes} rows of means"
        raise refusal("weights", owner, requirement, f"shape {array.shape}")
    if not (array > 0.0).all():
        remedy = "Leave out a class that never occurs."
        raise refusal("weights", owner, "be positive", f"a weight of {array.min()}", remedy)
    if abs(array.sum() - 1.0) > 1e-8:
        raise refusal("weights", owner, "sum to 1", f"a sum of {array.sum()}", "Divide by the sum.")
    return np.asarray(array / array.sum(), dtype=np.float64)


def nonzero_scale(tau0_squared: float, owner: str, rounding: float = 0.0) -> float:
    """Require τ0² = tr C°/p above zero and the rounding error it may carry; return τ0."""
    if not tau0_squared > rounding:
        remedy = "Every sample equals its class mean, so there is no scale τ0 to work at."
        raise refusal("tau0", owner, "be positive", 0.0, remedy)
    return math.sqrt(tau0_squared)


def covariance_stack(covariances: object, means: FloatArray, owner: str) -> FloatArray:
    """Require one scalar, K scalars, (K, p) diagonals or (K, p, p) symmetric matrices."""
    K, p = means.shape
    array = real_array(covariances, "covariances", owner)
    if array.ndim == 0:
        array = np.full(K, float(array))
    if array.shape not in ((K,), (K, p), (K, p, p)):
        requirement = f"be a scalar, or have shape ({K},), ({K}, {p}) or ({K}, {p}, {p})"
        remedy = "They are K scalars, K diagonals or K full matrices, one per row of means."
        raise refusal("covariances", owner, requirement, f"shape {array.shape}", remedy)
    if array.ndim < 3 and (array < 0.0).any():
        remedy = "A covariance is positive semi-definite."
        raise refusal("covariances", owner, "not be negative", f"a value of {array.min()}", remedy)
    if array.ndim == 3:
        for a, matrix in enumerate(array):
            gap = float(np.abs(matrix - matrix.T).max())
            if gap > 1e-10 * max(float(np.abs(matrix).max()), 1e-300):
                got = f"class {a} with an asymmetry of {gap:.3g}"
                raise refusal("covariances", owner, "be symmetric", got, "Use (C + C.T) / 2.")
    return array


def positive_semidefinite(smallest: float, largest: float, a: int, owner: str) -> None:
    """Require that the smallest eigenvalue of class `a` is not negative beyond rounding."""
    if smallest < -1e-10 * max(largest, 0.0) or largest < 0.0:
        raise refusal(
            "covariances",
            owner,
            "be positive semi-definite",
            f"class {a} with a smallest eigenvalue of {smallest:.6g}",
            "Clip its negative eigenvalues, or estimate it from more samples.",
        )

"""Checks of class labels, class sizes and class covariances."""

from __future__ import annotations

import math

import numpy as np

from notsodeep.checks.arrays import IntArray, plain_array
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


def nonzero_scale(tau0_squared: float, owner: str, rounding: float = 0.0) -> float:
    """Require τ0² = tr C°/p above zero and the rounding error it may carry; return τ0."""
    if not tau0_squared > rounding:
        remedy = "Every sample equals its class mean, so there is no scale τ0 to work at."
        raise refusal("tau0", owner, "be positive", 0.0, remedy)
    return math.sqrt(tau0_squared)

"""Checks of trained heads, their backbones and what is trained with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from notsodeep.checks.arrays import FloatArray, samples
from notsodeep.checks.scalars import finite_number, positive_integer
from notsodeep.checks.wording import refusal


def layer_widths(widths: Sequence[int], owner: str) -> tuple[int, ...]:
    """Require at least one width, each an integer of at least one."""
    if isinstance(widths, str) or not isinstance(widths, Sequence) or not widths:
        raise refusal("widths", owner, "be a sequence of at least one integer", repr(widths))
    return tuple(positive_integer(width, "widths", owner) for width in widths)


def image_shape(shape: Any, owner: str) -> tuple[int, int, int]:
    """Require the three sizes of an image; say what to do about data without any."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        remedy = "Use the backbone 'mlp' for data that are not colour images."
        raise refusal("image_shape", owner, "have three sizes", repr(shape), remedy)
    channels, height, width = (positive_integer(size, "image_shape", owner) for size in shape)
    return channels, height, width


def simplex_frame(frame: object, owner: str) -> FloatArray:
    """Require the rows of a simplex ETF: unit vectors whose cosines are all −1/(K − 1)."""
    rows = samples(frame, "frame", owner)
    K = len(rows)
    gap = np.inf
    if K > 1:
        gap = float(np.abs(rows @ rows.T - (K * np.eye(K) - 1.0) / (K - 1.0)).max())
    if not gap < 1e-6:
        remedy = "notsodeep.collapse.simplex_etf(K, d, rng) makes one."
        got = f"a Gram matrix off by {gap:.2g}" if K > 1 else "one row"
        raise refusal("frame", owner, "have the rows of a simplex ETF", got, remedy)
    return rows


def fitting_widths(backbone: int, head: int, classifier: int, owner: str) -> None:
    """Require that each part takes as many features as the part before it gives."""
    if not backbone == head == classifier:
        got = f"{backbone} of the backbone, {head} of the head, {classifier} of the classifier"
        raise refusal("num_features", owner, "be the same for all three parts", got)


def contracting_budget(value: object, owner: str) -> float:
    """Require 0 < ρ < 1, which is a norm budget for every head."""
    number = finite_number(value, "spectral_budget", owner)
    if not 0.0 < number < 1.0:
        remedy = "It bounds the matrix of every head, and z = A z + h must contract."
        raise refusal("spectral_budget", owner, "satisfy 0 < spectral_budget < 1", number, remedy)
    return number


def complete_imbalance(num_majority: object, ratio: object, owner: str) -> None:
    """Require both the number of majority classes and the ratio, or neither."""
    if (num_majority is None) != (ratio is None):
        names = ("num_majority", "ratio")
        missing, given = names if num_majority is None else reversed(names)
        remedy = "Leave out both for balanced classes."
        raise refusal(missing, owner, f"be given with {given}", None, remedy)

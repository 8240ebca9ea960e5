"""Class imbalance: which samples to keep, and how to weigh what is left.

Indices depend on the labels and the seed alone.  Labels are 0 … K − 1; majority classes come
first, as in the literature on minority collapse (Fang et al., PNAS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class StepImbalance:
    """K_A majority classes of n_A samples, the other classes of n_A // R.

    Parameters
    ----------
    num_majority : int
        K_A: the classes 0 … K_A − 1 are the majority; at least one, and fewer than K.
    ratio : float
        R = n_A/n_B ≥ 1.

    Examples
    --------
    >>> imbalance = StepImbalance(num_majority=2, ratio=10)
    >>> imbalance.counts(num_classes=4, largest=50)
    array([50, 50,  5,  5])
    >>> len(imbalance.indices([0] * 50 + [1] * 50 + [2] * 50, rng=0))
    105
    """

    num_majority: int
    ratio: float

    def __post_init__(self) -> None:
        checks.positive_integer(self.num_majority, "num_majority", "StepImbalance")
        _check_ratio(self.ratio, "StepImbalance")

    def counts(self, num_classes: int, largest: int) -> IntArray:
        """Count the samples to keep of each class, shape (K,); the largest class has `largest`."""
        if self.num_majority >= num_classes:
            requirement = f"be less than the {num_classes} classes"
            raise checks.invalid("num_majority", "StepImbalance", requirement, self.num_majority)
        counts = np.full(num_classes, int(largest // self.ratio))
        counts[: self.num_majority] = largest
        _check_minority(int(counts.min()), largest, self.ratio, "StepImbalance")
        return counts

    def indices(self, y: object, rng: int | np.random.Generator) -> IntArray:
        """Choose the samples to keep; n_A is the size of the smallest class in `y`."""
        return _choose(self, y, rng)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"kind": "step", "num_majority": self.num_majority, "ratio": self.ratio}


@dataclass(frozen=True)
class ExponentialImbalance:
    """Class sizes falling geometrically, n_k = ⌊n_0 · R^{−k/(K−1)}⌋ (Cui et al., CVPR 2019).

    Parameters
    ----------
    ratio : float
        R ≥ 1, the largest class size over the smallest.

    Examples
    --------
    >>> ExponentialImbalance(ratio=100).counts(num_classes=5, largest=500)
    array([500, 158,  50,  15,   5])
    """

    ratio: float

    def __post_init__(self) -> None:
        _check_ratio(self.ratio, "ExponentialImbalance")

    def counts(self, num_classes: int, largest: int) -> IntArray:
        """Count the samples to keep of each class, shape (K,); the largest class has `largest`."""
        exponents = np.arange(num_classes) / max(num_classes - 1, 1)
        # 500 · 100^(−1) must be 5, though the power is rounded.
        counts = np.floor(largest * float(self.ratio) ** -exponents + 1e-9).astype(np.int64)
        _check_minority(int(counts.min()), largest, self.ratio, "ExponentialImbalance")
        return counts

    def indices(self, y: object, rng: int | np.random.Generator) -> IntArray:
        """Choose the samples to keep; n_0 is the size of the smallest class in `y`."""
        return _choose(self, y, rng)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"kind": "exponential", "ratio": self.ratio}


Imbalance = StepImbalance | ExponentialImbalance


def imbalance_from_dict(content: Mapping[str, Any]) -> Imbalance:
    """Rebuild a description from its `to_dict`."""
    kind = checks.known_name(content["kind"], ("step", "exponential"), "imbalance")
    if kind == "step":
        return StepImbalance(content["num_majority"], content["ratio"])
    return ExponentialImbalance(content["ratio"])


def class_weights(
    y: object, kind: Literal["inverse", "effective_number"] = "inverse", *, beta: float = 0.9999
) -> FloatArray:
    """Weight of each class in a class-balanced loss, shape (K,); the samples' mean weight is 1.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels 0 … K − 1, no class empty.
    kind : {"inverse", "effective_number"}
        w_k ∝ 1/n_k, or w_k ∝ (1 − β)/(1 − β^{n_k}) (Cui et al., CVPR 2019).
    beta : float
        β in [0, 1) of the effective number; the default is theirs for CIFAR.

    Examples
    --------
    >>> class_weights([0, 0, 0, 1])
    array([0.66666667, 2.        ])
    """
    checks.known_name(kind, ("inverse", "effective_number"), "kind of class weights")
    counts = _class_counts(_labels(y, "class_weights"), "class_weights")
    if kind == "inverse":
        raw = 1.0 / counts
    else:
        number = checks.finite_number(beta, "beta", "class_weights")
        if not 0.0 <= number < 1.0:
            raise checks.invalid("beta", "class_weights", "satisfy 0 ≤ beta < 1", number)
        raw = (1.0 - number) / (1.0 - np.power(number, counts, dtype=np.float64))
    return np.asarray(raw * counts.sum() / (raw @ counts))


def _choose(imbalance: Imbalance, y: object, rng: int | np.random.Generator) -> IntArray:
    owner = type(imbalance).__name__
    labels = _labels(y, owner)
    available = _class_counts(labels, owner)
    counts = imbalance.counts(len(available), int(available.min()))
    return per_class_indices(labels, counts, checks.random_generator(rng, owner))


def per_class_indices(
    labels: IntArray, counts: IntArray, generator: np.random.Generator
) -> IntArray:
    """Draw ``counts[k]`` samples of each class k without replacement; ascending indices."""
    chosen = [
        generator.choice(np.flatnonzero(labels == k), size=int(count), replace=False)
        for k, count in enumerate(counts)
    ]
    return np.sort(np.concatenate(chosen))


def _labels(y: object, owner: str) -> IntArray:
    labels = checks.class_labels(y, np.size(np.asarray(y)), owner)
    if not len(labels) or labels.min() < 0:
        got = "none" if not len(labels) else f"a label {int(labels.min())}"
        raise checks.invalid("y", owner, "hold labels 0 … K − 1", got)
    return labels


def _class_counts(labels: IntArray, owner: str) -> IntArray:
    counts = np.bincount(labels)
    checks.class_sizes(counts, 1, owner, "from 0 to the largest label")
    return counts


def _check_ratio(ratio: float, owner: str) -> None:
    if checks.finite_number(ratio, "ratio", owner) < 1.0:
        remedy = "It is the size of the largest class over that of the smallest."
        raise checks.invalid("ratio", owner, "be at least 1", ratio, remedy)


def _check_minority(smallest: int, largest: int, ratio: float, owner: str) -> None:
    if smallest < 1:
        raise checks.invalid(
            "ratio",
            owner,
            f"leave samples in the smallest class: {largest} // {ratio:g} = 0",
            f"ratio = {ratio:g} with {largest} samples in the largest class",
            f"Use a ratio of at most {largest}, or more samples.",
        )


def balanced_counts(n: int, num_classes: int) -> IntArray:
    """Class sizes that sum to `n` and differ by at most one, larger ones first."""
    counts = np.full(num_classes, n // num_classes)
    counts[: n % num_classes] += 1
    return counts


@dataclass(frozen=True, eq=False, init=False)
class BalancedBatches:
    """A class-balanced sampler: every batch has each class equally often, up to one sample.

    Small classes are repeated: each class runs through its samples in random order, and starts
    over in a new order when they are used up.  An epoch has ⌈n/batch_size⌉ batches.  Epoch e is a
    function of (labels, batch size, seed, e) alone, so training resumes exactly.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels 0 … K − 1, no class empty.
    batch_size : int
        Samples in a batch.
    seed : int
        Seed of all epochs.

    Examples
    --------
    >>> batches = BalancedBatches([0, 0, 0, 0, 0, 1], batch_size=2, seed=0)
    >>> [sorted(batch.tolist())[-1] for batch in batches.epoch(0)]
    [5, 5, 5]
    """

    labels: IntArray
    batch_size: int
    seed: int

    def __init__(self, y: object, batch_size: int, seed: int) -> None:
        owner = "BalancedBatches"
        labels = checks.class_labels(y, np.size(np.asarray(y)), owner).copy()
        labels.flags.writeable = False
        counts = np.bincount(np.maximum(labels, 0)) if labels.size else np.zeros(1, np.int64)
        checks.class_labels(labels, len(labels), owner, len(counts))
        checks.class_sizes(counts, 1, owner, "from 0 to the largest label")
        checks.random_generator(seed, owner)
        object.__setattr__(self, "labels", labels)
        size = checks.positive_integer(batch_size, "batch_size", owner)
        object.__setattr__(self, "batch_size", size)
        object.__setattr__(self, "seed", int(seed))

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self.labels) / self.batch_size)

    def epoch(self, number: int) -> Iterator[IntArray]:
        """Yield the index arrays of one epoch, each of shape (batch_size,)."""
        generator = np.random.default_rng([self.seed, number])
        members = [np.flatnonzero(self.labels == k) for k in range(int(self.labels.max()) + 1)]
        streams = [_endless(indices, generator) for indices in members]
        # Classes that get one sample more take turns over the epoch.
        turns = _endless(np.arange(len(members)), generator)
        for _ in range(len(self)):
            take = np.full(len(members), self.batch_size // len(members))
            extra = self.batch_size % len(members)
            while extra:
                k = next(turns)
                if take[k] == self.batch_size // len(members):
                    take[k] += 1
                    extra -= 1
            batch = [next(streams[k]) for k in range(len(members)) for _ in range(take[k])]
            yield generator.permutation(np.asarray(batch))


def _endless(indices: IntArray, generator: np.random.Generator) -> Iterator[int]:
    """Run through the indices in random order, again and again."""
    while True:
        yield from generator.permutation(indices).tolist()

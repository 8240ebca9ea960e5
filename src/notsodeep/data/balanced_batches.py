"""Mini-batches with equal classes, whatever the class sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.checks import IntArray


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

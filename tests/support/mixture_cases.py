"""Mixtures in the theory's scaling, of every kind that the tests are about."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from notsodeep.data import GaussianMixture, MixtureStatistics

KINDS = ("isotropic", "anisotropic", "different")


class Sample(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    stats: MixtureStatistics
    mixture: GaussianMixture


def mixture_of(kind: str, p: int, classes: int = 2, mean: float = 5.0) -> GaussianMixture:
    """Class a has its mean on an axis of its own.

    "isotropic": C_a = (1 + 4a/√p) I; "anisotropic": one diagonal, spread evenly over
    [1/4, 7/4], for all; "different": the same, turned around in every other class, and with the
    traces of the first kind.
    """
    axes = p // 2 + 8 * np.arange(classes)
    means = np.zeros((classes, p))
    means[np.arange(classes), axes] = mean
    spread = np.linspace(0.25, 1.75, p)
    growth = 1.0 + 4.0 * np.arange(classes) / np.sqrt(p)
    covariances = {
        "isotropic": growth,
        "anisotropic": np.stack([spread] * classes),
        "different": np.stack([g * spread[:: 1 - 2 * (a % 2)] for a, g in enumerate(growth)]),
    }[kind]
    return GaussianMixture(means, covariances)


def draw(mixture: GaussianMixture, n: int, seed: int = 0) -> Sample:
    X, y = mixture.sample(n, rng=seed)
    return Sample(X, y, mixture.statistics(X, y), mixture)

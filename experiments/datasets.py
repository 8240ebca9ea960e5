"""Rows of the synthetic data of the papers, by the seed of a cell."""

from __future__ import annotations

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import GaussianMixture, paper_mixture


def mixture_rows(
    dimension: int, n: int, m: int, seed: int
) -> tuple[GaussianMixture, tuple[FloatArray, IntArray], tuple[FloatArray, IntArray]]:
    """Return the mixture of Ling et al. 2024, n rows of it to work on, and m to test on."""
    mixture, rng = paper_mixture(dimension), np.random.default_rng(seed).spawn(2)[0]
    return mixture, mixture.sample(n, rng), mixture.sample(m, rng)

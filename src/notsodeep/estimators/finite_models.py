"""What the estimators with finite networks share: the search on data, and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from notsodeep.checks import FloatArray
from notsodeep.estimators.kernel_matrices import root_mean_square_norm
from notsodeep.matching import Match, match
from notsodeep.models import DeepEquilibrium, KernelName

MATCHED_ROWS = 1000
"""Rows on which families are compared by their exact kernels."""

_FEWEST = 8  # rows from which an exact kernel says something about a family


def match_on_data(
    deq: DeepEquilibrium,
    X: FloatArray,
    *,
    family: str,
    refine: bool,
    kernel: KernelName,
    rng: np.random.Generator,
) -> Match:
    """Find the shallow network for a DEQ on training rows (n, p), by at most 1000 of them.

    With fewer than eight rows only their scale is used.
    """
    options: dict[str, Any] = {"family": family, "kernel": kernel}
    if len(X) < _FEWEST:
        return match(deq, tau0=root_mean_square_norm(X), **options)
    rows = X[np.sort(rng.permutation(len(X))[:MATCHED_ROWS])]
    return match(deq, rows, refine=refine, **options)


def generator_from(random_state: Any) -> np.random.Generator:
    """Turn scikit-learn's random_state (None, a seed or a RandomState) into a Generator."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))

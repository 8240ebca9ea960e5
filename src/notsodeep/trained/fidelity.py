"""How faithful a network is to a given DEQ: statistics on held-out rows, and proofs per row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from notsodeep.arrays import FloatArray
from notsodeep.records import Record

LEVEL = 0.95
STATE_ERROR = 1e-2
"""Relative error within which a state agrees with another, where there are no classes."""


@dataclass(frozen=True, repr=False)
class Fidelity(Record):
    """Whether a network decides as a DEQ does, on held-out rows.

    Attributes
    ----------
    rows : int
    agreement : float
        Share of rows to which both give the same class; without a read-out, whose state is within
        1 % of the fixed point.
    agreement_bound : float
        Clopper and Pearson's lower bound of it at 95 %, for data drawn as the held-out rows are.
    logit_error : float
        ‖o − o*‖/‖o*‖ over all rows.
    logit_quantile : float
        Conformal quantile: of another row drawn like these, ‖o − o*‖ is below it with a
        probability of 95 %.  Infinite with fewer than 19 rows.
    certified : float or None
        Share of rows with a proof that the DEQ's class is the one the network gives; None where
        nothing can be proved.
    accuracy, deq_accuracy : float or None
        With labels.

    Examples
    --------
    >>> exact = np.eye(3)[[0, 1, 2, 1]]
    >>> fidelity = fidelity_of(exact + 0.1, exact)
    >>> fidelity.agreement, round(fidelity.agreement_bound, 3), round(fidelity.logit_error, 4)
    (1.0, 0.473, 0.1732)
    """

    rows: int
    agreement: float
    agreement_bound: float
    logit_error: float
    logit_quantile: float
    certified: float | None = None
    accuracy: float | None = None
    deq_accuracy: float | None = None


def fidelity_of(
    scores: FloatArray,
    exact: FloatArray,
    *,
    proved: NDArray[np.bool_] | None = None,
    labels: NDArray[np.int64] | None = None,
    states: bool = False,
) -> Fidelity:
    """Compare logits with those of the DEQ, both of shape (n, K).

    Parameters
    ----------
    scores, exact : ndarray of shape (n, K)
    proved : ndarray of bool, optional
        Rows whose class is proved.
    labels : ndarray of int, optional
    states : bool
        They are states, and not logits: there are no classes.
    """
    distances = np.linalg.norm(scores - exact, axis=1)
    if states:
        same = distances <= STATE_ERROR * np.linalg.norm(exact, axis=1)
    else:
        same = scores.argmax(axis=1) == exact.argmax(axis=1)
    size = float(np.linalg.norm(exact))

    def right(values: FloatArray) -> float | None:
        return None if labels is None else float(np.mean(values.argmax(axis=1) == labels))

    return Fidelity(
        len(same),
        float(same.mean()),
        lower_bound(int(same.sum()), len(same)),
        float(np.linalg.norm(distances)) / size if size else 0.0,
        conformal_quantile(distances),
        None if proved is None else float(proved.mean()),
        right(scores),
        right(exact),
    )


def lower_bound(successes: int, trials: int, level: float = LEVEL) -> float:
    """Return Clopper and Pearson's lower bound of a share.

    Examples
    --------
    >>> round(lower_bound(100, 100), 4)  # 0.05^(1/100)
    0.9705
    """
    if successes == 0:
        return 0.0
    return float(stats.beta.ppf(1.0 - level, successes, trials - successes + 1))


def conformal_quantile(distances: FloatArray, level: float = LEVEL) -> float:
    """Return the ⌈(n + 1)·level⌉-th smallest distance, infinite if there are too few.

    Examples
    --------
    >>> conformal_quantile(np.arange(1.0, 20.0)), conformal_quantile(np.ones(5))
    (19.0, inf)
    """
    rank = math.ceil((len(distances) + 1) * level)
    if rank > len(distances):
        return math.inf
    return float(np.sort(distances)[rank - 1])

"""Test accuracies of the networks, draw by draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True)
class Accuracy:
    """Shares of test rows that finite networks get right.

    Attributes
    ----------
    draws : Mapping of str to tuple of float
        For "deq", "matched" and "unmatched": one accuracy for each draw of the weights.  Draws with
        the same number go together.
    row_error : float
        Half-width of the 95 % interval of matched − deq, in percentage points, that comes from the
        choice of the test rows; see `row_error`.

    Examples
    --------
    >>> accuracy = Accuracy({"deq": (0.9, 0.92), "matched": (0.9, 0.93), "unmatched": (0.8, 0.8)})
    >>> accuracy
    Accuracy(deq 91.0 ± 1.4 %, matched 91.5 ± 2.1 %, unmatched 80.0 ± 0.0 %; 2 draws)
    >>> [round(end, 2) for end in accuracy.difference]
    [-5.85, 6.85]
    """

    draws: Mapping[str, tuple[float, ...]]
    row_error: float = 0.0

    @property
    def mean(self) -> dict[str, float]:
        """Mean over the draws."""
        return {role: float(np.mean(values)) for role, values in self.draws.items()}

    @property
    def deviation(self) -> dict[str, float]:
        """Standard deviation over the draws."""
        return {role: float(np.std(values, ddof=1)) for role, values in self.draws.items()}

    @property
    def difference(self) -> tuple[float, float]:
        """The 95 % interval of the mean of matched − deq, in percentage points.

        For other draws of the weights and other test rows: the two errors add in squares.
        """
        return difference_interval(
            self.draws["matched"], self.draws["deq"], row_error=self.row_error
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {
            "draws": {role: list(values) for role, values in self.draws.items()},
            "mean": self.mean,
            "deviation": self.deviation,
            "difference": list(self.difference),
            "row_error": self.row_error,
        }

    def __repr__(self) -> str:
        deviation = self.deviation
        shown = ", ".join(
            f"{role} {100 * mean:.1f} ± {100 * deviation[role]:.1f} %"
            for role, mean in self.mean.items()
        )
        return f"Accuracy({shown}; {len(self.draws['deq'])} draws)"


def difference_interval(
    left: Sequence[float], right: Sequence[float], level: float = 0.95, row_error: float = 0.0
) -> tuple[float, float]:
    """Return a t-interval for the mean difference of paired accuracies, in percentage points.

    `row_error` is the half-width of a further interval, independent of the draws.
    """
    differences = 100.0 * (np.array(left) - np.array(right))
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = float(stats.t.ppf(0.5 + level / 2.0, len(differences) - 1)) * error
    # All draws see the same test rows, so that their scatter says nothing about other rows: the two
    # errors are independent, and add in squares.
    half = math.hypot(half, row_error)
    return mean - half, mean + half


def row_error(right: Mapping[str, NDArray[np.bool_]], level: float = 0.95) -> float:
    """Return `Accuracy.row_error` from who got which row right, arrays of shape (draws, rows).

    Rows on which the networks differ as they do on most rows, mostly not at all, say nothing about
    the others.  Of k others, the mean over all n rows has a t-interval with k − 1 degrees of
    freedom; it is never wider than the upper bound (Clopper and Pearson) of the share of such rows,
    and that bound alone is left where there are none, or one: 20 rows without any difference leave
    14 points.

    Examples
    --------
    >>> alike = np.ones((10, 20), bool)
    >>> round(row_error({"deq": alike, "matched": alike}), 1)  # 1 − 0.05^(1/20)
    13.9
    """
    # Row by row, since both networks are right about most of the same rows: the scatter of the
    # difference is far below that of either accuracy.  Few draws leave some of their own scatter in
    # it, on the safe side.
    differences = right["matched"].mean(axis=0) - right["deq"].mean(axis=0)
    values, counts = np.unique(differences, return_counts=True)
    rows, others = len(differences), len(differences) - int(counts.max())
    share = stats.binomtest(others, rows, alternative="less").proportion_ci(level).high
    widest = (1.0 + abs(float(values[counts.argmax()]))) * float(share)
    if others < 2:
        return 100.0 * widest
    quantile = float(stats.t.ppf(0.5 + level / 2.0, others - 1))
    half = quantile * float(differences.std(ddof=1)) / math.sqrt(rows)
    return 100.0 * min(half, widest)


def unpacked_rows(packed: str, count: int) -> NDArray[np.bool_]:
    """Return which rows a network gets right, from its record."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8), count=count)
    return bits.astype(bool)

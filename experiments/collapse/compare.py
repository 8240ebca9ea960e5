"""Trained heads against one another: paired over seeds, and how much of a difference is gain."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from experiments.collapse.heads import LABELS

Record = dict[str, Any]


class Measure(NamedTuple):
    """A number of the last epoch; compared by ratios if logarithmic, else by differences."""

    key: str
    words: str
    higher_is_better: bool
    logarithmic: bool


_ALWAYS = (
    Measure("nc1", "NC1", False, True),
    Measure("loss", "training loss", False, True),
    Measure("test_accuracy", "test accuracy", True, False),
)
_IMBALANCED = (
    Measure("minority_cosine", "minority cosine", False, False),
    Measure("test_minority_accuracy", "test accuracy on the minority", True, False),
)


class PairedDifference(NamedTuple):
    """One head minus another (or over it, for a ratio), the seeds of one setting paired."""

    measure: Measure
    value: float  # mean difference, or geometric mean of the ratios
    low: float | None  # 95 % interval by Student's t; None with fewer than two seeds
    high: float | None
    seeds: int

    @property
    def verdict(self) -> str:
        """Say ``"ahead"``, ``"behind"``, or ``"open"`` if the interval says neither."""
        if self.low is None or self.high is None:
            return "open"
        nothing = 1.0 if self.measure.logarithmic else 0.0
        if self.low <= nothing <= self.high:
            return "open"
        return "ahead" if (self.value > nothing) == self.measure.higher_is_better else "behind"

    @property
    def p_value(self) -> float:
        """Two-sided, of no difference; 1 without an interval."""
        if self.low is None or self.high is None:
            return 1.0
        low, high = (math.log(x) if self.measure.logarithmic else x for x in (self.low, self.high))
        half, middle = (high - low) / 2, (high + low) / 2
        if half == 0.0:
            return float(middle == 0.0)
        statistic = abs(middle) / half * stats.t.ppf(0.975, self.seeds - 1)
        return float(2.0 * stats.t.sf(statistic, self.seeds - 1))


def holm(p_values: list[float], level: float = 0.05) -> list[bool]:
    """Return which of many hypotheses are rejected, by Holm's step-down procedure."""
    rejected = [False] * len(p_values)
    for done, index in enumerate(np.argsort(p_values)):
        if p_values[index] > level / (len(p_values) - done):
            break
        rejected[index] = True
    return rejected


def measures_of(records: list[Record]) -> tuple[Measure, ...]:
    """Return what is compared; the first is what the verdict is about.

    For imbalanced classes that is the minority cosine, for balanced ones NC1.
    """
    imbalanced = any(record["groups"] for record in records)
    return (*_IMBALANCED, *_ALWAYS) if imbalanced else _ALWAYS


def last_value(record: Record, key: str) -> float:
    """Return a number of the last epoch; NaN if it does not exist."""
    value = record["epochs"][-1][key]
    return math.nan if value is None else float(value)


def by_settings(records: list[Record]) -> list[list[Record]]:
    """Split records into groups that differ in head and seed alone, in order of appearance."""
    groups: dict[tuple[tuple[str, Any], ...], list[Record]] = {}
    for record in records:
        shared = ((k, v) for k, v in record["settings"].items() if k not in ("head", "seed"))
        groups.setdefault(tuple(shared), []).append(record)
    return list(groups.values())


def heads_of(records: list[Record]) -> list[str]:
    """Return the heads that were trained, in the order of `LABELS`."""
    trained = {record["settings"]["head"] for record in records}
    return [head for head in LABELS if head in trained]


def values_by_seed(records: list[Record], head: str, key: str) -> dict[int, float]:
    """Return the last value of every seed of a head."""
    return {
        record["settings"]["seed"]: last_value(record, key)
        for record in records
        if record["settings"]["head"] == head
    }


def paired_difference(
    records: list[Record], measure: Measure, against: str, head: str = "deq"
) -> PairedDifference | None:
    """Compare two heads of one setting; None if they share no seed with a number for both."""
    mine, theirs = (values_by_seed(records, name, measure.key) for name in (head, against))
    pairs = np.array([(mine[seed], theirs[seed]) for seed in mine if seed in theirs]).reshape(-1, 2)
    if measure.logarithmic:
        pairs = np.log(np.where(pairs > 0.0, pairs, np.nan))
    differences = (pairs[:, 0] - pairs[:, 1])[np.isfinite(pairs).all(axis=1)]
    n = len(differences)
    if n == 0:
        return None
    mean, low, high = float(differences.mean()), None, None
    # Accuracies are counts: that those of a few seeds differ equally is chance, not certainty.
    counts = measure.key.endswith("accuracy")
    if n > 1 and not (counts and np.ptp(differences) < 1e-9):
        half = float(stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / math.sqrt(n))
        low, high = mean - half, mean + half
    if measure.logarithmic:
        mean, low, high = (None if x is None else math.exp(x) for x in (mean, low, high))  # type: ignore[assignment]
    return PairedDifference(measure, mean, low, high, n)


def share_of_gain(records: list[Record], measure: Measure) -> float | None:
    """Return the share of the DEQ's lead over the explicit head that a gain-matched one has too.

    (explicit_matched − explicit)/(deq − explicit), on the scale on which the measure is compared;
    None unless the DEQ is ahead of the explicit head.
    """
    lead = paired_difference(records, measure, "explicit")
    control = paired_difference(records, measure, "explicit", head="explicit_matched")
    if lead is None or control is None or lead.verdict != "ahead":
        return None
    if measure.logarithmic:
        return math.log(control.value) / math.log(lead.value)
    return control.value / lead.value

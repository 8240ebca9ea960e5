"""Heads compared: paired over seeds, with intervals, and the share that is gain."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from experiments.collapse.comparison import (
    by_settings,
    heads_of,
    last_value,
    measures_of,
    paired_difference,
    share_of_gain,
)

Record = dict[str, Any]


def record(head: str, seed: int, *, ratio: float | None = None, **values: float | None) -> Record:
    """Make a record of one epoch with a few numbers."""
    last = {"nc1": 1.0, "loss": 1.0, "test_accuracy": 0.5, **values}
    return {
        "settings": {"head": head, "seed": seed, "data": "digits", "ratio": ratio},
        "groups": {} if ratio is None else {"majority": [0, 1], "minority": [2, 3]},
        "epochs": [{"nc1": 99.0}, last],
    }


def test_differences_are_paired_over_seeds() -> None:
    leads = [0.02, 0.03, 0.04]
    records = [record("explicit", s, test_accuracy=0.1 * s + 0.5) for s in range(3)]
    records += [record("deq", s, test_accuracy=0.1 * s + 0.5 + leads[s]) for s in range(3)]
    accuracy = next(m for m in measures_of(records) if m.key == "test_accuracy")
    found = paired_difference(records, accuracy, "explicit")
    assert found is not None
    half = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)
    assert (found.value, found.low, found.high) == pytest.approx((0.03, 0.03 - half, 0.03 + half))
    assert (found.verdict, found.seeds) == ("ahead", 3)
    even = [
        record(h, s, test_accuracy=a) for h, a in (("explicit", 0.5), ("deq", 0.6)) for s in (0, 1)
    ]
    chance = paired_difference(even, accuracy, "explicit")
    assert chance is not None
    assert (chance.low, chance.verdict) == (None, "open")
    other_way = paired_difference(records, accuracy, "deq", head="explicit")
    assert other_way is not None
    assert other_way.verdict == "behind"


def test_ratios_and_the_share_of_gain() -> None:
    nc1 = {"explicit": 8.0, "explicit_matched": 2.0, "deq": 1.0}
    records = [record(h, s, nc1=v * (1 + 0.001 * s)) for h, v in nc1.items() for s in range(3)]
    measure = measures_of(records)[0]
    assert measure.key == "nc1"
    lead = paired_difference(records, measure, "explicit")
    assert lead is not None
    assert lead.value == pytest.approx(1 / 8)
    assert lead.verdict == "ahead"  # smaller is better
    # Two of the three halvings come with gain.
    assert share_of_gain(records, measure) == pytest.approx(2 / 3)
    assert share_of_gain([r for r in records if r["settings"]["head"] != "deq"], measure) is None


def test_what_cannot_be_said_is_not_said() -> None:
    one_seed = [record("explicit", 0, nc1=8.0), record("deq", 0, nc1=1.0)]
    measure = measures_of(one_seed)[0]
    single = paired_difference(one_seed, measure, "explicit")
    assert single is not None
    assert (single.low, single.verdict) == (None, "open")
    assert share_of_gain(one_seed, measure) is None
    assert paired_difference(one_seed, measure, "residual") is None
    missing = [record("explicit", 0, nc1=None), record("deq", 0, nc1=1.0)]
    assert paired_difference(missing, measure, "explicit") is None
    assert math.isnan(last_value(missing[0], "nc1"))
    strangers = [record("explicit", 0), record("deq", 1)]
    assert paired_difference(strangers, measure, "explicit") is None


def test_groups_differ_in_head_and_seed_alone() -> None:
    records = [
        record(head, seed, ratio=ratio, minority_cosine=0.1)
        for ratio in (10.0, 100.0)
        for seed in range(2)
        for head in ("deq", "explicit")
    ]
    groups = by_settings(records)
    assert [len(group) for group in groups] == [4, 4]
    assert heads_of(records) == ["explicit", "deq"]
    assert measures_of(groups[0])[0].key == "minority_cosine"

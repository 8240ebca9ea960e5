"""What trained heads say about gain, in words: numbers per head, and the DEQ against controls."""

from __future__ import annotations

import numpy as np

from notsodeep.head_names import HEAD_LABELS
from notsodeep.papers.head_comparison import (
    Measure,
    PairedDifference,
    by_settings,
    heads_of,
    measures_of,
    paired_difference,
    share_of_gain,
    values_by_seed,
)
from notsodeep.papers.reproduction import Finding, Record

_RIVALS = ("explicit", "residual", "explicit_matched", "explicit_started", "explicit_inverse")
_VERDICTS = {"ahead": "DEQ ahead", "behind": "DEQ behind", "open": "no difference shown"}


def head_findings(records: list[Record]) -> list[Finding]:
    """Compare the heads of every setting: each measure for all heads, then the DEQ's lead."""
    findings = []
    for group in by_settings(records):
        place = setting_words(group[0])
        for measure in measures_of(group):
            name = f"{place}: {measure.words}"
            findings.append(Finding(name, "", _values(group, measure), _leads(group, measure)))
    return findings


def setting_words(record: Record) -> str:
    """Say what was trained, without head and seed."""
    settings = record["settings"]
    widths = f"width {settings['width']}"
    if (first := settings.get("first_width")) is not None:
        widths = f"widths {first} and {settings['width']}"
    words = f"{settings['data']}, {settings['backbone']} of {widths}"
    if "feature_scale" in settings:  # named only where it is not learned
        words += f", features of {settings['feature_scale']} scale"
    if not record["groups"]:
        return f"{words}, balanced"
    large, small = (len(record["groups"][name]) for name in ("majority", "minority"))
    return f"{words}, {large} + {small} classes, R = {settings['ratio']:g}"


def _values(group: list[Record], measure: Measure) -> str:
    """Mean and standard deviation over the seeds, for each head."""
    parts = []
    for head in heads_of(group):
        values = np.array(list(values_by_seed(group, head, measure.key).values()))
        values = values[np.isfinite(values)]
        if not len(values):
            text = "–"
        elif len(values) == 1:
            text = f"{values[0]:.3g}"
        else:
            text = f"{values.mean():.3g} ± {values.std(ddof=1):.1g}"
        parts.append(f"{HEAD_LABELS[head]} {text}")
    return "; ".join(parts)


def _leads(group: list[Record], measure: Measure) -> str:
    """Say whether the DEQ leads, and how much of the lead an explicit head of the same gain has."""
    parts = []
    for rival in _RIVALS:
        difference = paired_difference(group, measure, rival)
        if difference is not None:
            parts.append(f"against {HEAD_LABELS[rival]}: {_difference(difference)}")
    share = share_of_gain(group, measure)
    if share is not None:
        parts.append(f"{share:.0%} of the lead over the explicit head comes with its gain alone")
    return "; ".join(parts)


def _difference(difference: PairedDifference) -> str:
    sign = "×" if difference.measure.logarithmic else ""
    interval = ""
    if difference.low is not None and difference.high is not None:
        interval = f" [{difference.low:.3g}, {difference.high:.3g}]"
    return f"{sign}{difference.value:.3g}{interval}, {_VERDICTS[difference.verdict]}"

"""The report of trained heads: one HTML file, the verdict on gain first."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from notsodeep.checks import invalid
from notsodeep.head_names import HEAD_FORMS, HEAD_LABELS
from notsodeep.papers.collapse_findings import setting_words
from notsodeep.papers.head_comparison import (
    Measure,
    PairedDifference,
    by_settings,
    heads_of,
    last_value,
    measures_of,
    paired_difference,
    share_of_gain,
    values_by_seed,
)
from notsodeep.report.page import inline_figure, write_page
from notsodeep.report.trained_head_figures import SETTING_FIGURES, imbalanced_figure

Record = dict[str, Any]
_ROLES = {
    "explicit": "an explicit head of the same spectral budget",
    "explicit_matched": "an explicit head of the same gain",
    "explicit_started": "an explicit head of the same gain and start",
    "explicit_inverse": "an inverse head of the same gain and start",
    "residual": "a residual head of the same spectral budget",
}
_COLOURS = {"ahead": "holds", "behind": "fails", "open": ""}
_ACCURACIES = ("accuracy", "test_accuracy", "test_majority_accuracy", "test_minority_accuracy")
_VALUES = {
    "nc1": "NC1, tr(S_W S_B⁺)/K",
    "nc2_features": "NC2, means",
    "nc2_classifier": "NC2, classifier",
    "nc3_alignment": "NC3, alignment",
    "nc3_duality": "NC3, duality",
    "nc4": "NC4, nearest mean",
    "loss": "training loss",
    "accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "gain": "gain of the head",
    "gain_on_means": "its gain on the class means",
}
_MINORITY_VALUES = {
    "minority_cosine": "minority cosine, classifier",
    "minority_cosine_features": "minority cosine, means",
    "test_majority_accuracy": "test accuracy, majority",
    "test_minority_accuracy": "test accuracy, minority",
}


def write_collapse_page(records: list[Record], path: str | Path) -> Path:
    """Write the page of trained heads.

    Parameters
    ----------
    records : list of dict
        As `notsodeep.papers.collapse_training.train_head` returns them: any heads, seeds and
        settings.
    path : path
        The HTML file.
    """
    if not records:
        raise invalid("records", "write_collapse_page", "hold at least one trained head", 0)
    return write_page(path, "collapse.html", _content(records))


def _content(records: list[Record]) -> dict[str, Any]:
    groups = by_settings(records)
    data = ", ".join(dict.fromkeys(record["settings"]["data"] for record in records))
    figures = 0
    settings = []
    for group in groups:
        settings.append(_setting(group, figures))
        figures += len(SETTING_FIGURES)
    overview = []
    if len({r["settings"]["ratio"] for r in records if r["groups"]}) > 1:
        alt = "Minority cosine and test accuracy on the minority against the imbalance, by head."
        caption = "Means over seeds, with standard errors."
        overview = [inline_figure(imbalanced_figure(records), figures, alt, caption)]
    return {
        "title": f"Neural collapse of trained heads on {data}",
        "headline": headline(groups),
        "colour": verdict_colour(groups),
        "sentences": sentences(groups),
        "rule": rule(groups),
        "facts": _facts(groups),
        "settings": settings,
        "overview": overview,
        "heads": _heads(records),
        "provenance": _provenance(records),
    }


def primary(group: list[Record]) -> Measure:
    """Return the measure that the verdict is about."""
    return measures_of(group)[0]


def verdicts(groups: list[list[Record]], against: str) -> list[str]:
    """Return the verdict on the DEQ against another head in every setting that has both."""
    found = [paired_difference(group, primary(group), against) for group in groups]
    return [difference.verdict for difference in found if difference is not None]


def headline(groups: list[list[Record]]) -> str:
    """Say in one sentence how much of the DEQ's advantage is gain."""
    explicit, matched = verdicts(groups, "explicit"), verdicts(groups, "explicit_matched")
    if not explicit:
        return "The DEQ head was not trained beside an explicit one: there is nothing to compare."
    if "ahead" not in explicit:
        if _seeds(groups) < 2:
            return "One seed: the numbers below have no error bars, and decide nothing."
        return "No advantage of the DEQ head over an explicit one of the same budget is shown."
    if not matched:
        return "The DEQ head is ahead at equal spectral budget; whether by gain was not tested."
    if "ahead" not in matched:
        return (
            "The advantage of the DEQ head is gain: an explicit head of the same gain has it too."
        )
    if matched.count("ahead") < explicit.count("ahead"):
        return "Most of the DEQ head's advantage is gain, but not all of it."
    return "The DEQ head is ahead, and gain alone does not explain it."


def verdict_colour(groups: list[list[Record]]) -> str:
    """Name the verdict for the page's style: yes for ahead beyond gain, no, or open."""
    if "ahead" in verdicts(groups, "explicit_matched"):
        return "yes"
    decided = {"ahead", "behind"} & {*verdicts(groups, "explicit")}
    return "no" if decided else "open"


def sentences(groups: list[list[Record]]) -> list[str]:
    """Set the DEQ against its controls, and name the share of the lead that is gain."""
    found = []
    words = ", ".join(dict.fromkeys(primary(group).words for group in groups))
    for against, role in _ROLES.items():
        seen = verdicts(groups, against)
        only = paired_difference(groups[0], primary(groups[0]), against)
        if len(groups) == 1 and only is not None:
            found.append(f"Against {role}, {words}: {_difference(only)}.")
        elif seen:
            found.append(
                f"Against {role}, {words}: ahead in {seen.count('ahead')}, behind in "
                f"{seen.count('behind')}, undecided in {seen.count('open')} of {len(seen)} "
                "settings."
            )
    shares = [share_of_gain(group, primary(group)) for group in groups]
    known = [share for share in shares if share is not None]
    if known:
        span = f"{min(known):.0%}" if len(known) == 1 else f"{min(known):.0%} to {max(known):.0%}"
        found.append(f"An explicit head with the gain of the DEQ has {span} of the lead.")
    return [*found, *_realised_gains(groups)]


def _realised_gains(groups: list[list[Record]]) -> list[str]:
    """Say which gain the data see: a head need not use what its bound allows."""
    records = [record for group in groups for record in group]
    gains = {
        head: float(np.mean([last_value(r, "gain_on_means") for r in records if _head(r) == head]))
        for head in heads_of(records)
        if head in ("deq", "explicit_matched")
    }
    if len(gains) < 2:
        return []
    bound = next(r["gain_bound"] for r in records if _head(r) == "deq")
    return [
        f"Both may have gain {bound:.3g}; on the class means the DEQ head has {gains['deq']:.2f} "
        f"and its explicit control {gains['explicit_matched']:.2f}."
    ]


def _head(record: Record) -> str:
    return str(record["settings"]["head"])


def rule(groups: list[list[Record]]) -> str:
    """State the rule behind the verdict."""
    return (
        "Rule: one head is ahead of another if the 95 % interval of their difference, seeds "
        f"paired, excludes zero. There are up to {_seeds(groups)} seeds; that no difference is "
        "seen with few of them does not show that there is none, and of many intervals one in "
        "twenty excludes zero by chance."
    )


def _seeds(groups: list[list[Record]]) -> int:
    return max(len({record["settings"]["seed"] for record in group}) for group in groups)


def _facts(groups: list[list[Record]]) -> list[dict[str, str]]:
    first = groups[0]
    measure = primary(first)
    return [
        {
            "value": _spread(list(values_by_seed(first, head, measure.key).values()), measure.key),
            "label": f"{measure.words}, {HEAD_LABELS[head]}",
        }
        for head in heads_of(first)
    ]


def _setting(group: list[Record], first_figure: int) -> dict[str, Any]:
    heads = heads_of(group)
    shown = _VALUES | (_MINORITY_VALUES if group[0]["groups"] else {})
    rivals = [rival for rival in _ROLES if verdicts([group], rival)]
    counts, seeds = group[0]["counts"], _seeds([group])
    return {
        "title": setting_words(group[0]),
        "epochs": group[0]["settings"]["epochs"],
        "heads": [HEAD_LABELS[head] for head in heads],
        "measured": [
            {
                "label": label,
                "cells": [
                    _spread(list(values_by_seed(group, head, key).values()), key) for head in heads
                ],
            }
            for key, label in shown.items()
        ],
        "spread": ("One seed. " if seeds == 1 else f"Mean ± standard error over {seeds} seeds. ")
        + f"{len(counts)} classes of {_range(counts)} training samples.",
        "rivals": [HEAD_LABELS[rival] for rival in rivals],
        "differences": [_difference_row(group, measure, rivals) for measure in measures_of(group)]
        if rivals
        else [],
        "figures": [
            inline_figure(draw(group), first_figure + k, alt, caption)
            for k, (draw, alt, caption) in enumerate(SETTING_FIGURES)
        ],
    }


def _range(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _difference_row(group: list[Record], measure: Measure, rivals: list[str]) -> dict[str, Any]:
    cells = []
    for rival in rivals:
        difference = paired_difference(group, measure, rival)
        if difference is None:
            cells.append({"text": "–", "verdict": ""})
        else:
            colour = _COLOURS[difference.verdict]
            cells.append({"text": _difference(difference), "verdict": colour})
    share = share_of_gain(group, measure)
    return {
        "label": measure.words,
        "cells": cells,
        "share": "–" if share is None else f"{share:.0%}",
    }


def _difference(difference: PairedDifference) -> str:
    measure = difference.measure
    if measure.logarithmic:
        sign, form, scale = "× ", "{:.3g}", 1.0
    else:
        sign, form, scale = "", "{:+.3g}", 100.0 if measure.key in _ACCURACIES else 1.0
    text = sign + form.format(scale * difference.value)
    if difference.low is not None and difference.high is not None:
        ends = [form.format(scale * end) for end in (difference.low, difference.high)]
        text += f" [{', '.join(ends)}]"
    verdict = "undecided" if difference.verdict == "open" else difference.verdict
    return f"{text}, {verdict}".replace("-", "−")


def _spread(numbers: list[float], key: str) -> str:
    """Word the mean and its standard error, to the digit that the error reaches."""
    values = np.array(numbers)
    values = values[np.isfinite(values)]
    if not len(values):
        return "–"
    scale, unit = (100.0, " %") if key in _ACCURACIES else (1.0, "")
    mean = scale * float(values.mean())
    error = 0.0
    if len(values) > 1:
        error = scale * float(values.std(ddof=1)) / math.sqrt(len(values))
    if error == 0.0:
        return f"{mean:.3g}{unit}".replace("-", "−")
    digits = min(max(0, 1 - math.floor(math.log10(error))), 4)
    return f"{mean:.{digits}f} ± {error:.{digits}f}{unit}".replace("-", "−")


def _heads(records: list[Record]) -> list[dict[str, str]]:
    rows = []
    for head in heads_of(records):
        mine = [record for record in records if _head(record) == head]
        _, formula, bound = HEAD_FORMS[head]
        settings = mine[0]["settings"]
        if settings["activation"] == "identity":
            formula = re.sub(r"φ\((.*)\)", r"\1", formula)
        formula = formula.replace("φ", settings["activation"])
        bound = bound.replace("≤ s", f"≤ {settings['spectral_budget']:g}")
        bound = bound.replace("1/(1 − s)", f"{1.0 / (1.0 - settings['spectral_budget']):g}")
        rows.append(
            {
                "label": HEAD_LABELS[head],
                "formula": formula.replace("T steps", f"{settings['truncated_steps']} steps"),
                "bound": bound,
                "gain_bound": f"{mine[0]['gain_bound']:.4g}",
                "gain": _spread([record["epochs"][-1]["gain"] for record in mine], "gain"),
                "parameters": f"{sum(mine[0]['parameters'].values()):,}".replace(",", " "),
            }
        )
    return rows


def _provenance(records: list[Record]) -> list[dict[str, str]]:
    """List the settings; those that take several values, with all of them."""
    settings: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in record["settings"].items():
            settings.setdefault(key, {})[_plain(value)] = None
    return [
        {"name": key.replace("_", " "), "value": ", ".join(found)}
        for key, found in settings.items()
    ]


def _plain(value: Any) -> str:
    return "–" if value is None else str(value)

"""Tables of trained heads: mean ± standard error over seeds, and the DEQ against its controls.

"DEQ against" gives ratios (×) or differences with 95 % intervals by Student's t, paired over seeds,
in bold where the interval excludes no difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.collapse.compare import (
    Measure,
    PairedDifference,
    by_settings,
    heads_of,
    holm,
    measures_of,
    paired_difference,
)
from experiments.collapse.heads import ACTIVATIONS, LABELS
from experiments.runner import Record, stored

ON_HEADS = ("collapse-balanced", "collapse-imbalanced", "collapse-causes", "collapse-features")
TITLES = {
    "cifar10": "CIFAR-10, ResNet-18",
    "digits": "Digits, perceptron",
    "fashion_mnist": "Fashion-MNIST, perceptron",
    "cifar10_vgg19.npz": "CIFAR-10, features of VGG-19",
    "cifar100_vgg19.npz": "CIFAR-100, features of VGG-19",
}
SHARE = Measure("nc1_trace_ratio", "tr S_W/tr S_B", False, True)
"""Collapse by the whole scatters, which the weakest direction of the means does not decide."""
SUMMARY = {
    "loss": "training loss", "nc1": "NC1", SHARE.key: SHARE.words,
    "minority_cosine": "minority cosine",
}  # fmt: skip
RIVALS = ("explicit", "explicit_matched", "explicit_started", "explicit_inverse")
"""The DEQ's controls: its budget, its gain, its start too, its parametrisation too."""


def curve(record: Record) -> Record:
    """Return the last measured epoch."""
    return record["epochs"][-1]


def words(record: Record) -> str:
    """Name a setting by what varies among the settings of a table."""
    settings = record["settings"]
    parts = []
    if record["groups"]:
        sizes = "({}, {})".format(*(len(record["groups"][g]) for g in ("majority", "minority")))
        parts.append(f"{sizes}, R = {settings['ratio']:g}")
    if "scale_free_decay" in settings:
        parts.append(f"decay {settings['weight_decay']:g}")
    if settings["data"] in ("digits", "cifar10"):
        parts += [f"rate {settings['learning_rate']:g}", f"{settings['epochs']} epochs"]
        parts += ["strict solves"] * (settings["solver"] == "strict")
    parts += ["φ = " + settings["activation"]] * (settings["activation"] != "identity")
    return ", ".join(parts) or "balanced"


def place(record: Record) -> str:
    """Name the data of a table, and how much of them."""
    data, samples = record["settings"]["data"], record["settings"]["samples"]
    count = "all images" if samples is None else f"{samples} images"
    return f"{TITLES[data]}, {count}"


def order(records: list[Record]) -> tuple[Any, ...]:
    """Sort settings: few images first, balanced classes, linear heads; then by rate."""
    s = records[0]["settings"]
    bed = (s["data"], s["samples"] or np.inf, s["num_majority"] is not None, s["solver"])
    bend = list(ACTIVATIONS).index(s["activation"])
    return (*bed, bend, s["epochs"], s["num_majority"] or 0, s["ratio"] or 0.0, s["learning_rate"])


def spread(records: list[Record], key: str, factor: float) -> str:
    """Mean ± standard error of the last epoch over seeds; a dash where there is none."""
    values = np.array([curve(r)[key] for r in records if key in curve(r)], dtype=np.float64)
    if not len(values):
        return "–"
    values = factor * values
    if len(values) == 1:
        return f"{values[0]:.3g} (one seed)".replace("-", "−")
    # Equal values have a deviation of zero, not of their rounding errors.
    error = values.std(ddof=1) / np.sqrt(len(values)) if np.ptp(values) else 0.0
    digits = min(max(0, 1 - int(np.floor(np.log10(error)))), 6) if error else 3
    return f"{values.mean():.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def table(title: str, groups: list[list[Record]], key: str, factor: float = 1.0) -> None:
    """Print one quantity: a row for every setting, a column for every head."""
    heads = heads_of([record for group in groups for record in group])
    print(f"\n| {title} | " + " | ".join(LABELS[head] for head in heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for group in groups:
        mine = [[r for r in group if r["settings"]["head"] == head] for head in heads]
        cells = " | ".join(spread(records, key, factor) for records in mine)
        print(f"| {words(group[0])} | {cells} |")


def leads(groups: list[list[Record]], keys: tuple[str, ...]) -> None:
    """Print the DEQ against its controls: ratios or differences with 95 % intervals."""
    print("\n| DEQ against | " + " | ".join(LABELS[rival] for rival in RIVALS) + " |")
    print("|---" * (len(RIVALS) + 1) + "|")
    for key in keys:
        for group in groups:
            measure = next(m for m in (*measures_of(group), SHARE) if m.key == key)
            known = [record for record in group if key in curve(record)]
            cells = [difference(paired_difference(known, measure, rival)) for rival in RIVALS]
            if any(cell != "–" for cell in cells):
                print(f"| {measure.words}: {words(group[0])} | " + " | ".join(cells) + " |")


def difference(found: PairedDifference | None) -> str:
    """Write a ratio or a difference with its interval; bold where that excludes no difference."""
    if found is None or found.low is None:
        return "–"
    sign = "× " if found.measure.logarithmic else ""
    # Three digits of a ratio next to one would be of its distance from one, or none.
    form = ".3f" if sign and 0.95 < found.value < 1.05 else ".3g"
    low, value, high = (f"{x:{form}}" for x in (found.low, found.value, found.high))
    text = f"{sign}{value} [{low}, {high}]".replace("-", "−")
    return text if found.verdict == "open" else f"**{text}**"


def sections(records: list[Record]) -> dict[str, list[list[Record]]]:
    """Return the settings with at least two heads, by data and whether classes are balanced."""
    found: dict[str, list[list[Record]]] = {}
    for group in sorted(by_settings(records), key=order):
        if len(heads_of(group)) > 1:
            kind = "imbalanced" if group[0]["groups"] else "balanced"
            found.setdefault(f"{place(group[0])}, {kind}", []).append(group)
    return found


def seeds_of(group: list[Record]) -> int:
    """Count the seeds of a setting."""
    return len({record["settings"]["seed"] for record in group})


def counts(records: list[Record]) -> None:
    """Print in how many settings a linear DEQ is ahead, behind and open, against each control."""
    print("\n| linear DEQ against | " + " | ".join(SUMMARY.values()) + " |")
    print("|---" * (len(SUMMARY) + 1) + "|")
    linear = [
        group
        for groups in sections(records).values()
        for group in groups
        if group[0]["settings"]["activation"] == "identity"
    ]
    for rival in RIVALS:
        compared = [comparisons(group, rival) for group in linear]
        cells = []
        for key in SUMMARY:
            found = [each[key] for each in compared if key in each and each[key].low is not None]
            sure = holm([each.p_value for each in found])
            texts = []
            for verdict in ("ahead", "behind"):
                mine = [kept for each, kept in zip(found, sure, strict=True)
                        if each.verdict == verdict]  # fmt: skip
                texts.append(f"{len(mine)} ({sum(mine)})")
            texts.append(str(sum(each.verdict == "open" for each in found)))
            cells.append(", ".join(texts))
        print(f"| {LABELS[rival]} | " + " | ".join(cells) + " |")


def summary(records: list[Record]) -> None:
    """Print how often the DEQ is ahead of its controls, and a row for each setting.

    Counts are of settings ahead, behind and open by 95 % intervals; in brackets what is left by
    Holm's correction for their number.
    """
    print("\nAll stored settings, here and in the other experiments on heads:")
    counts([record for name in ON_HEADS for record in stored(name)])
    print("\nThese settings:")
    counts(records)
    rival = "explicit_matched"
    heading = ["setting", "seeds", *SUMMARY.values(), "gain on class means: DEQ", "explicit"]
    print("\n| " + " | ".join(heading) + " |\n" + "|---" * len(heading) + "|")
    for title, groups in sections(records).items():
        compared = [group for group in groups if {"deq", rival} <= {*heads_of(group)}]
        if compared:
            print(f"| **{title}** |" + " |" * (len(heading) - 1))
        for group in compared:
            found = comparisons(group, rival)
            pair = [r for r in group if r["settings"]["head"] in ("deq", rival)]
            gains = (
                np.mean([curve(r)["gain_on_means"] for r in pair if r["settings"]["head"] == head])
                for head in ("deq", rival)
            )
            cells = [difference(found.get(key)) for key in SUMMARY]
            cells += [f"{gain:.3f}" for gain in gains]
            seeds = max(each.seeds for each in found.values())
            print(f"| {words(group[0])} | {seeds} | " + " | ".join(cells) + " |")


def causes(records: list[Record]) -> None:
    """Print the DEQ against its controls where rates and activations were varied."""
    found = sections(records)
    for beginning in ("Digits", "CIFAR-10, ResNet-18, 2000 images"):
        for title in (title for title in found if title.startswith(beginning)):
            print(f"\n**{title}**")
            leads(found[title], ("loss", "nc1"))


def comparisons(group: list[Record], rival: str) -> dict[str, PairedDifference]:
    """Compare the DEQ with another head of one setting, in what the summary shows."""
    found = {}
    for measure in (*measures_of(group), SHARE):
        known = [record for record in group if measure.key in curve(record)]
        compared = paired_difference(known, measure, rival) if known else None
        if measure.key in SUMMARY and compared is not None:
            found[measure.key] = compared
    return found


def head_tables(records: list[Record]) -> None:
    """Print all tables; a run that has not ended gives what it has, if two heads are done."""
    for title, mine in sections(records).items():
        seeds = sorted({seeds_of(group) for group in mine})
        print(f"\n## {title}\n\n{' or '.join(map(str, seeds))} seeds.")
        table("Training loss", mine, "loss")
        table("NC1", mine, "nc1")
        if any(SHARE.key in curve(record) for group in mine for record in group):
            table(SHARE.words, mine, SHARE.key)
        if title.endswith("imbalanced"):
            table("Minority cosine", mine, "minority_cosine")
            table("Test accuracy on the minority, %", mine, "test_minority_accuracy", 100.0)
            leads(mine, ("loss", "nc1", SHARE.key, "minority_cosine", "test_minority_accuracy"))
        else:
            table("NC2, means", mine, "nc2_features")
            table("NC3, alignment", mine, "nc3_alignment")
            table("Test accuracy, %", mine, "test_accuracy", 100.0)
            leads(mine, ("loss", "nc1", SHARE.key))
        table("Gain on class means", mine, "gain_on_means")

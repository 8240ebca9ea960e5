"""Runs of trained heads, kept in one small JSON file, and the tables made of them.

``python trained_heads.py run EXPERIMENT PROFILE SECONDS [KEY=VALUE …]`` trains what the file lacks
of a profile, in the profile's order, until so many seconds have passed; only cells with the given
values, such as ``'activation="relu"' 'seed=[1, 2]'``.  It may be stopped and resumed, and several
may run at the same time.
``python trained_heads.py left EXPERIMENT PROFILE`` counts what is missing, ``merge FILE`` adds the
records of another such file.  ``python trained_heads.py docs`` writes docs/collapse-tables.md, puts
some tables into docs/collapse-experiments.md and draws its pictures, but for the one of three
classes, for which ``picture`` trains.  The file is trained_heads.json beside this script, or that
of the environment variable HEADS.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import stored_runs

from notsodeep import checks
from notsodeep.files import atomic_write
from notsodeep.files.manifests import versions
from notsodeep.head_names import HEAD_ACTIVATIONS, HEAD_LABELS, HeadKind
from notsodeep.papers.collapse_settings import CollapseSettings
from notsodeep.papers.collapse_training import train_head
from notsodeep.papers.head_comparison import (
    Measure,
    PairedDifference,
    by_settings,
    heads_of,
    measures_of,
    paired_difference,
)
from notsodeep.papers.reproduction import Profile, cell_name, cell_seed, experiment
from notsodeep.plotting.canvas import save_figure
from notsodeep.report.trained_head_figures import (
    curves_figure,
    imbalanced_figure,
    rates_figure,
    three_classes_figure,
)

Record = dict[str, Any]
STORE = Path(os.environ.get("HEADS", Path(__file__).with_suffix(".json")))
CURVES = (
    "epoch", "loss", "accuracy", "test_accuracy", "nc1", "nc1_trace_ratio", "nc2_features",
    "nc3_alignment", "gain_on_means", "minority_cosine", "test_minority_accuracy",
)  # fmt: skip
HEADING = """# Trained heads: all tables

Every stored run behind [heads and neural collapse](collapse-experiments.md), where the heads are
defined and what follows from the numbers is said. Mean ± standard error over seeds at the last
epoch; "DEQ against" gives ratios (×) or differences with 95 % intervals by Student's t, paired over
seeds, in bold where the interval excludes no difference. Settings, curves, seconds and versions of
every run are in `docs/tables/trained_heads.json`; `docs/tables/trained_heads.py` trains what it
lacks and writes this page.
"""
TITLES = {
    "cifar10": "CIFAR-10, ResNet-18",
    "digits": "Digits, perceptron",
    "fashion_mnist": "Fashion-MNIST, perceptron",
    "cifar10_vgg19.npz": "CIFAR-10, features of VGG-19",
    "cifar100_vgg19.npz": "CIFAR-100, features of VGG-19",
}
PICTURES: dict[str, tuple[str, int | None, float]] = {
    "resnet": ("cifar10", 5000, 5e-3),
    "fashion": ("fashion_mnist", 5000, 5e-3),
    "features": ("cifar10_vgg19.npz", 2000, 5e-3),
    "whole": ("cifar10_vgg19.npz", None, 5e-3),
    "hundred": ("cifar100_vgg19.npz", 10_000, 3e-2),
}
"""By picture: data, number of images, and the weight decay of runs with imbalanced classes."""
SHARE = Measure("nc1_trace_ratio", "tr S_W/tr S_B", higher_is_better=False, logarithmic=True)
"""Collapse by the whole scatters, which the weakest direction of the means does not decide."""
SUMMARY = {
    "loss": "training loss", "nc1": "NC1", SHARE.key: SHARE.words,
    "minority_cosine": "minority cosine",
}  # fmt: skip
RIVALS = ("explicit", "explicit_matched", "explicit_started", "explicit_inverse")
"""The DEQ's controls: its budget, its gain, its start too, its parametrisation too."""
AT_THE_END = ("nc2_classifier", "nc3_duality", "nc4", "gain", "spectral_norm")


def stored() -> dict[str, Record]:
    """Read all records by the names of their cells."""
    return json.loads(STORE.read_bytes()) if STORE.exists() else {}


def small(record: Record, seconds: float) -> Record:
    """Keep the settings, the curves, rounded, what the solver did at the end, and with what."""
    curves = [
        {key: number(key, epoch[key]) for key in CURVES if epoch.get(key) is not None}
        for epoch in record["epochs"]
    ]
    curves[-1] |= {key: number(key, record["epochs"][-1][key]) for key in AT_THE_END}
    kept = ("settings", "groups", "gain_bound", "num_features")
    return {
        **{key: record[key] for key in kept},
        "epochs": curves,
        "solver": record["epochs"][-1]["solver"],
        "seconds": round(seconds, 1),
        "versions": versions(),
    }


def number(key: str, value: float) -> float:
    """Round to four digits; accuracies to six, which tell one of 50,000 images."""
    return float(f"{value:.6g}" if key.endswith("accuracy") else f"{value:.4g}")


def run(name: str, profile: Any, seconds: float, wanted: dict[str, list[Any]]) -> None:
    """Train missing cells with one of the wanted values each, and store each as it ends."""
    checks.known_name(profile, get_args(Profile), "profile")
    work = experiment(name)
    for cell in stored_runs.missing(STORE, stored, work.cells(profile), seconds, wanted):
        clock = time.process_time()
        record = work.compute(cell, cell_seed(cell))
        found = small(record, time.process_time() - clock)
        add({cell_name(cell): found})
        say(f"{cell['head']:17s} {cell['data']} {found['seconds']} s, loss {curve(found)['loss']}")


def add(records: dict[str, Record]) -> None:
    """Write records beside the stored ones, each on a line of its own."""
    with stored_runs.writing(STORE):
        known = {**records, **stored()}
        lines = (f'"{name}": {json.dumps(known[name], sort_keys=True)}' for name in sorted(known))
        with atomic_write(STORE) as stream:
            stream.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def curve(record: Record) -> Record:
    """Return the last measured epoch."""
    return record["epochs"][-1]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


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
    bend = HEAD_ACTIVATIONS.index(s["activation"])
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
    say(f"\n| {title} | " + " | ".join(HEAD_LABELS[head] for head in heads) + " |")
    say("|---" * (len(heads) + 1) + "|")
    for group in groups:
        mine = [[r for r in group if r["settings"]["head"] == head] for head in heads]
        cells = " | ".join(spread(records, key, factor) for records in mine)
        say(f"| {words(group[0])} | {cells} |")


def leads(groups: list[list[Record]], keys: tuple[str, ...]) -> None:
    """Print the DEQ against its controls: ratios or differences with 95 % intervals."""
    say("\n| DEQ against | " + " | ".join(HEAD_LABELS[rival] for rival in RIVALS) + " |")
    say("|---" * (len(RIVALS) + 1) + "|")
    for key in keys:
        for group in groups:
            measure = next(m for m in (*measures_of(group), SHARE) if m.key == key)
            known = [record for record in group if key in curve(record)]
            cells = [difference(paired_difference(known, measure, rival)) for rival in RIVALS]
            if any(cell != "–" for cell in cells):
                say(f"| {measure.words}: {words(group[0])} | " + " | ".join(cells) + " |")


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


def sections() -> dict[str, list[list[Record]]]:
    """Return the settings with at least two heads, by data and whether classes are balanced."""
    found: dict[str, list[list[Record]]] = {}
    for group in sorted(by_settings(list(stored().values())), key=order):
        if len(heads_of(group)) > 1:
            kind = "imbalanced" if group[0]["groups"] else "balanced"
            found.setdefault(f"{place(group[0])}, {kind}", []).append(group)
    return found


def seeds_of(group: list[Record]) -> int:
    """Count the seeds of a setting."""
    return len({record["settings"]["seed"] for record in group})


def summary() -> None:
    """Print how often the DEQ is ahead of its controls, and a row for each setting."""
    say("\n| linear DEQ against | " + " | ".join(SUMMARY.values()) + " |")
    say("|---" * (len(SUMMARY) + 1) + "|")
    linear = [
        group
        for groups in sections().values()
        for group in groups
        if group[0]["settings"]["activation"] == "identity"
    ]
    for rival in RIVALS:
        verdicts = [
            (key, found.verdict)
            for group in linear
            for key, found in comparisons(group, rival).items()
        ]
        counts = (
            ", ".join(str(verdicts.count((key, v))) for v in ("ahead", "behind", "open"))
            for key in SUMMARY
        )
        say(f"| {HEAD_LABELS[rival]} | " + " | ".join(counts) + " |")
    rival = "explicit_matched"
    heading = ["setting", "seeds", *SUMMARY.values(), "gain on class means: DEQ", "explicit"]
    say("\n| " + " | ".join(heading) + " |\n" + "|---" * len(heading) + "|")
    for title, groups in sections().items():
        compared = [group for group in groups if {"deq", rival} <= {*heads_of(group)}]
        if compared:
            say(f"| **{title}** |" + " |" * (len(heading) - 1))
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
            say(f"| {words(group[0])} | {seeds} | " + " | ".join(cells) + " |")


def causes() -> None:
    """Print the DEQ against its controls where rates and activations were varied."""
    found = sections()
    for beginning in ("Digits", "CIFAR-10, ResNet-18, 2000 images"):
        for title in (title for title in found if title.startswith(beginning)):
            say(f"\n**{title}**")
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


def tables() -> None:
    """Print all tables; a run that has not ended gives what it has, if two heads are done."""
    for title, mine in sections().items():
        seeds = sorted({seeds_of(group) for group in mine})
        say(f"\n## {title}\n\n{' or '.join(map(str, seeds))} seeds.")
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


BLOCKS = {"causes": causes, "summary": summary}
"""What prints the tables between the marks of docs/collapse-experiments.md."""


def docs() -> None:
    """Write the page of tables, put some into the page about them, and draw the pictures."""
    place = Path(__file__).parents[1]
    images = place / "images"
    (place / "collapse-tables.md").write_text(HEADING + stored_runs.printed(tables))
    page = place / "collapse-experiments.md"
    text = stored_runs.filled(page.read_text(), BLOCKS)
    page.write_text(text)
    runs = list(stored().values())
    groups = {words(group[0]): group for group in by_settings(runs) if not group[0]["groups"]}
    swept, first = groups["rate 0.05, 100 epochs"], groups["rate 0.2, 100 epochs"]
    others = [r for r in runs if r["settings"]["head"] in heads_of(swept) and r not in swept]
    save_figure(rates_figure([*swept, *others]), images / "collapse-causes.png")
    save_figure(curves_figure(first), images / "collapse-terminal.png")
    for name, (data, samples, decay) in PICTURES.items():
        chosen = {"data": data, "samples": samples, "activation": "identity"}
        mine = [r for r in runs if chosen.items() <= r["settings"].items()]
        balanced = [r for r in mine if not r["groups"]]
        step = [r for r in mine if r["groups"] and r["settings"]["weight_decay"] == decay]
        drawn = {
            f"collapse-{name}.png": (curves_figure, balanced),
            f"collapse-{name}-imbalanced.png": (imbalanced_figure, step),
        }
        for file, (figure, shown) in drawn.items():
            if f"images/{file}" in text:
                save_figure(figure(shown), images / file)


def picture() -> None:
    """Train three heads on digits, 3 large and 7 small classes, and draw three classes."""
    heads: tuple[HeadKind, ...] = ("explicit", "deq", "explicit_matched")
    options: Any = {"samples": 1000, "test_samples": 330, "batch_size": 100, "epochs": 100}
    options |= {"learning_rate": 0.2, "num_majority": 3, "ratio": 10.0, "measure_every": 100}
    records = [train_head(CollapseSettings(head, **options)) for head in heads]
    file = Path(__file__).parents[1] / "images" / "collapse-three-classes.png"
    save_figure(three_classes_figure(records), file)
    for record in records:
        say(f"{record['settings']['head']}: minority cosine {curve(record)['minority_cosine']:.3f}")


def left(name: str, profile: Any) -> None:
    """Say how many cells are missing, by data and head, with the seconds that one has taken."""
    known = stored()
    missing = [c for c in experiment(name).cells(profile) if cell_name(c) not in known]
    for data, head in dict.fromkeys((c["data"], c["head"]) for c in missing):
        count = sum((c["data"], c["head"]) == (data, head) for c in missing)
        taken = [
            r["seconds"]
            for r in known.values()
            if (r["settings"]["data"], r["settings"]["head"]) == (data, head)
        ]
        cost = f"{np.mean(taken):.1f} s each so far" if taken else "cost not known"
        say(f"{data}, {HEAD_LABELS[head]}: {count} missing, {cost}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", name, profile, seconds, *pairs]:
            run(name, profile, float(seconds), stored_runs.chosen_values(pairs))
        case ["left", name, profile]:
            left(name, profile)
        case ["merge", file]:
            add(json.loads(Path(file).read_bytes()))
        case ["docs"]:
            docs()
        case ["picture"]:
            picture()
        case _:
            sys.exit(__doc__)

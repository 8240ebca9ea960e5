"""Markdown tables of trained heads, mean ± standard error over seeds, from stored runs.

Run ``python trained_heads.py DIRECTORY …`` on the directories of ``notsodeep reproduce
collapse-balanced`` and ``collapse-imbalanced``; a run that has not ended gives what it has.
NumPy only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]

HEADS = {
    "explicit": "explicit",
    "residual": "residual",
    "deq_truncated": "truncated DEQ",
    "deq": "DEQ",
    "explicit_matched": "explicit, gain of the DEQ",
}
# title: key, factor
BALANCED = {
    "NC1": ("nc1", 1.0),
    "NC2, means": ("nc2_features", 1.0),
    "NC2, classifier": ("nc2_classifier", 1.0),
    "NC3, alignment": ("nc3_alignment", 1.0),
    "NC4": ("nc4", 1.0),
    "training loss": ("loss", 1.0),
    "test accuracy, %": ("test_accuracy", 100.0),
    "gain": ("gain", 1.0),
    "gain on class means": ("gain_on_means", 1.0),
}
IMBALANCED = {
    "Minority cosine": ("minority_cosine", 1.0),
    "Accuracy on minority classes, %": ("test_minority_accuracy", 100.0),
    "NC1": ("nc1", 1.0),
    "Training loss": ("loss", 1.0),
    "Gain on class means": ("gain_on_means", 1.0),
}


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def stored(directory: Path) -> list[Record]:
    """Read the records of a run."""
    files = sorted((directory / "pieces").glob("*.json"))
    return [json.loads(file.read_bytes()) for file in files]


def network(record: Record) -> str:
    """Name what was trained, without head, imbalance and seed."""
    settings = record["settings"]
    return (
        f"{settings['data']}, {settings['backbone']} of width {settings['width']}, "
        f"{settings['epochs']} epochs, {settings['samples']} samples"
    )


def imbalance(record: Record) -> str:
    """Name numbers of majority and minority classes, and the ratio of their sizes."""
    sizes = tuple(len(record["groups"][name]) for name in ("majority", "minority"))
    return f"{sizes}, {record['settings']['ratio']:g}"


def order(record: Record) -> tuple[int, float]:
    """Sort settings by number of majority classes, then by ratio."""
    settings = record["settings"]
    return (settings["num_majority"] or 0, settings["ratio"] or 0.0)


def worded(records: list[Record], key: str, factor: float) -> str:
    """Mean ± standard error of the last epoch over seeds."""
    found = [record["epochs"][-1][key] for record in records]
    values = factor * np.array([value for value in found if value is not None], dtype=np.float64)
    if not len(values):
        return "–"
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    if error == 0.0:
        return f"{values.mean():.3g}".replace("-", "−")
    digits = min(max(0, 1 - int(np.floor(np.log10(error)))), 4)
    return f"{values.mean():.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def by_head(records: list[Record]) -> dict[str, list[Record]]:
    """Sort records by their heads."""
    found = {head: [r for r in records if r["settings"]["head"] == head] for head in HEADS}
    return {head: mine for head, mine in found.items() if mine}


def header(first: str, heads: list[str]) -> None:
    """Print the first two lines of a table."""
    say(f"\n| {first} | " + " | ".join(HEADS[head] for head in heads) + " |")
    say("|---" * (len(heads) + 1) + "|")


def row(first: str, records: dict[str, list[Record]], key: str, factor: float) -> None:
    """Print the line of one quantity."""
    cells = [worded(mine, key, factor) for mine in records.values()]
    say(f"| {first} | " + " | ".join(cells) + " |")


def tables(records: list[Record]) -> None:
    """Print what one network has done: balanced in one table, otherwise one per quantity."""
    heads = by_head(records)
    settings = {order(record): record for record in records}
    seeds = sorted({len({r["settings"]["seed"] for r in mine}) for mine in heads.values()})
    say(f"\n**{network(records[0])}**; {' or '.join(map(str, seeds))} seeds")
    if not records[0]["groups"]:
        header("", list(heads))
        for title, (key, factor) in BALANCED.items():
            row(title, heads, key, factor)
        return
    for title, (key, factor) in IMBALANCED.items():
        header(f"{title}: (K_A, K_B), R", list(heads))
        for setting, record in sorted(settings.items()):
            mine = by_head([r for r in records if order(r) == setting])
            row(imbalance(record), mine, key, factor)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        networks: dict[str, list[Record]] = {}
        for found in stored(Path(name)):
            networks.setdefault(network(found), []).append(found)
        for title in sorted(networks):
            tables(networks[title])

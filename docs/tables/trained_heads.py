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
    "minority cosine": ("minority_cosine", 1.0),
    "test accuracy, %": ("test_accuracy", 100.0),
    "majority, %": ("test_majority_accuracy", 100.0),
    "minority, %": ("test_minority_accuracy", 100.0),
    "NC1": ("nc1", 1.0),
    "training loss": ("loss", 1.0),
    "gain": ("gain", 1.0),
    "gain on class means": ("gain_on_means", 1.0),
}


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def stored(directory: Path) -> list[Record]:
    """Read the records of a run."""
    files = sorted((directory / "pieces").glob("*.json"))
    return [json.loads(file.read_bytes()) for file in files]


def place(record: Record) -> str:
    """Name what was trained, without head and seed."""
    settings = record["settings"]
    words = (
        f"{settings['data']}, {settings['backbone']} of width {settings['width']}, "
        f"{settings['epochs']} epochs, {settings['samples']} samples"
    )
    if settings["ratio"] is None:
        return f"{words}, balanced"
    return (
        f"{words}, (K_A, K_B) = ({len(record['groups']['majority'])}, "
        f"{len(record['groups']['minority'])}), R = {settings['ratio']:g}"
    )


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


def table(records: list[Record]) -> None:
    """Print the table of one setting: a row per quantity, a column per head."""
    by_head = {
        head: [record for record in records if record["settings"]["head"] == head]
        for head in HEADS
        if any(record["settings"]["head"] == head for record in records)
    }
    seeds = {head: len(mine) for head, mine in by_head.items()}
    say(f"\n**{place(records[0])}**; seeds: {sorted(set(seeds.values()))}\n")
    say("| | " + " | ".join(HEADS[head] for head in by_head) + " |")
    say("|---" * (len(by_head) + 1) + "|")
    rows = IMBALANCED if records[0]["groups"] else BALANCED
    for title, (key, factor) in rows.items():
        cells = [worded(mine, key, factor) for mine in by_head.values()]
        say(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        settings: dict[str, list[Record]] = {}
        for found in stored(Path(name)):
            settings.setdefault(place(found), []).append(found)
        for title in sorted(settings):
            table(settings[title])

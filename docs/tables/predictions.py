"""The tables of the page "Before training".

Run ``python predictions.py DIRECTORY …`` with directories of runs of ``notsodeep reproduce
risk-predictions`` or ``risk-on-images``, finished or not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from notsodeep.papers.reproduction import Record, experiment
from notsodeep.papers.risk_predictions import by_setting, deviations


def grid(records: list[Record]) -> list[str]:
    """Root mean squared deviations over the grid, and in units of the sampling error."""
    lines = [
        "| data | p | test error: sampling | limit | resolved | resolved / sampling "
        "| accuracy, points: sampling | limit | resolved | resolved / sampling |",
        "|" + "---|" * 10,
    ]
    for (data, activation, p), parts in sorted(by_setting(records).items()):
        mse, right = deviations(parts, "test_mse", relative=True), deviations(parts, "accuracy")
        cells = [f"{data}, {activation}", str(p)]
        cells += [f"{mse[key]:.1%}" for key in ("sampling", "limit", "resolved")]
        cells.append(f"{mse['resolved'] / mse['sampling']:.1f}")
        cells += [f"{100 * right[key]:.2f}" for key in ("sampling", "limit", "resolved")]
        cells.append(f"{right['resolved'] / max(right['sampling'], 1e-9):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    groups: dict[int, list[Record]] = {}
    for (_, _, p), parts in by_setting(records).items():
        groups.setdefault(p, []).extend(parts)
    for p, parts in sorted(groups.items()):
        train = deviations(parts, "train_mse")
        right = deviations(parts, "train_accuracy")
        lines.append(
            f"training, p = {p}: error {train['limit']:.4f} / {train['resolved']:.4f} "
            f"(sampling {train['sampling']:.4f}), accuracy {right['limit']:.4f} / "
            f"{right['resolved']:.4f} (sampling {right['sampling']:.4f})"
        )
    return lines


def others(name: str, records: list[Record]) -> list[str]:
    """All that is not on the grid: predicted, measured, gap in standard errors."""
    work = experiment(name)
    rest = [record for record in records if record["cell"]["part"] != "ridge"]
    rest.sort(key=lambda record: json.dumps(record["cell"]))
    return [f"{found.quantity} | {found.paper} | {found.ours}" for found in work.findings(rest)]


def main(directories: list[Path]) -> None:
    """Print everything."""
    for directory in directories:
        settings = json.loads((directory / "settings.json").read_text())["settings"]
        pieces = sorted((directory / "pieces").glob("*.json"))
        records = [json.loads(piece.read_text()) for piece in pieces]
        name = settings["name"]
        lines = grid(records) if name == "risk-predictions" else []
        sys.stdout.write("\n".join([*lines, *others(name, records)]) + "\n")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])

"""The tables of "Accuracy against width" on the page "The papers' experiments".

Run ``python accuracy.py DIRECTORY [FIGURE]`` with the directory of a run of
``notsodeep reproduce accuracy-versus-width``, finished or not; with a path for it the figure is
drawn too.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path

from notsodeep.papers.width_summary import WidthSummary, by_width
from notsodeep.plotting import save_figure
from notsodeep.report.accuracy_figure import accuracy_figure

HEADER = (
    "| width | draws | DEQ | matched | unmatched | matched − DEQ | unmatched − DEQ "
    "| training, DEQ / matched | inference, DEQ / matched |\n|" + "---|" * 9
)


def difference(summary: WidthSummary, role: str) -> str:
    """Difference of accuracies with its interval, in points."""
    interval = summary.interval(role)
    span = "" if interval is None else f" ({interval[0]:+.2f} … {interval[1]:+.2f})"
    return f"{summary.difference(role):+.2f}{span}".replace("-", "−")


def row(summary: WidthSummary) -> str:
    """One line of a table."""
    roles = ("deq", "matched", "unmatched")
    parts = [
        str(summary.width),
        str(summary.draws),
        *(summary.accuracy_text(role) for role in roles),
        *(difference(summary, role) for role in roles[1:]),
        *(f"{summary.ratio(work):.1f}" for work in ("training", "inference")),
    ]
    return "| " + " | ".join(parts) + " |"


def main(directory: Path, figure: Path | None) -> None:
    """Print a table for each curve."""
    pieces = sorted((directory / "pieces").glob("*.json"))
    records = [json.loads(piece.read_text()) for piece in pieces]
    # In the order of the sets in the paper, whatever the names of the files are.
    order = ("digits", "mnist", "fashion_mnist", "cifar10")
    records.sort(key=lambda r: (order.index(r["cell"]["data"]), r["cell"]["train"] != "readout",
                                r["cell"]["activation"], r["cell"]["draw"]))  # fmt: skip
    say = sys.stdout.write
    curves = groupby(by_width(records), lambda s: (s.data, s.activation, s.train, s.kernel_gap))
    for (data, activation, train, gaps), curve in curves:
        what = "read-out" if train == "readout" else "all weights"
        say(
            f"\n**{data.replace('_', ' ')}, {activation}, {what}**; relative distance of exact "
            f"kernels {gaps['matched']:.2%} matched, {gaps['unmatched']:.2%} unmatched\n"
            f"\n{HEADER}\n"
        )
        say("\n".join(map(row, curve)) + "\n")
    if figure is not None:
        save_figure(accuracy_figure(records), figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

"""Runs of the papers' experiments, kept in one small JSON file, and the tables made of them.

``python papers.py run EXPERIMENT SECONDS [KEY=VALUE …]`` computes cells of the paper profile that
the file lacks, in the profile's order, until so many seconds have passed; only those with the
given values, such as ``data="mnist" 'width=[32, 64]'``.  It may be stopped and resumed, and several
may run at the same time.
``python papers.py keep DIRECTORY`` adds what is in the directory of a ``notsodeep reproduce``.
``python papers.py left`` counts what is missing.  ``python papers.py docs`` puts the tables into
docs/reproduction.md, between marks, and draws its figures.  The file is papers.json beside this
script, or that of the environment variable PAPERS.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import stored_runs

from notsodeep.files import atomic_write
from notsodeep.files.manifests import versions
from notsodeep.papers.accuracy_versus_width import FEATURES
from notsodeep.papers.authors_protocol import CURVES, table
from notsodeep.papers.image_scalings import PAPER, SCALINGS, factor_for
from notsodeep.papers.reproduction import cell_name, cell_seed, experiment
from notsodeep.papers.width_summary import WidthSummary, by_width
from notsodeep.plotting import save_figure
from notsodeep.report.reproduction_figures import protocol_widths_figure, reproduction_figure

Record = dict[str, Any]
STORE = Path(os.environ.get("PAPERS", Path(__file__).with_suffix(".json")))
NAMES = (
    "accuracy-versus-width",
    "authors-protocol",
    "image-scalings",
    "gaussian-process-limit",
    "kernel-variability",
)


def say(text: str = "") -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")


def stored() -> dict[str, dict[str, Record]]:
    """Read the records of every experiment, by the names of their cells."""
    return json.loads(STORE.read_bytes()) if STORE.exists() else {name: {} for name in NAMES}


def add(name: str, record: Record) -> None:
    """Store one record; loss curves are thinned out and numbers rounded to seven digits."""
    if "losses" in record:
        marks = [0, 9, 29, 99]
        record = {**record, "losses": [record["losses"][k] for k in marks]}
    kept = {"versions": versions(), **_rounded(record)}
    with stored_runs.writing(STORE):
        content = stored()
        content.setdefault(name, {}).setdefault(cell_name(record["cell"]), kept)
        lines = [
            f' "{key}": {{\n'
            + ",\n".join(f'  "{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in part.items())
            + "\n }"
            for key, part in content.items()
        ]
        with atomic_write(STORE) as file:
            file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else value
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: item if key == "cell" else _rounded(item) for key, item in value.items()}
    return value


def run(name: str, seconds: float, wanted: dict[str, list[Any]]) -> None:
    """Compute missing cells with one of the wanted values each, and store each as it ends."""
    begin, work = time.monotonic(), experiment(name)

    def known() -> dict[str, Record]:
        return stored().get(name, {})

    for cell in stored_runs.missing(STORE, known, work.cells("paper"), seconds, wanted):
        add(name, {"cell": cell, **work.compute(cell, cell_seed(cell))})
        say(f"{time.monotonic() - begin:.0f} s: {json.dumps(cell, ensure_ascii=False)}")


def records_of(name: str) -> list[Record]:
    """Return stored records in the order of the profile."""
    found = stored().get(name, {})
    names = [cell_name(cell) for cell in experiment(name).cells("paper")]
    known = [found[each] for each in names if each in found]
    # Sets whose files are not on this machine are no cells of it, but keep their numbers.
    return known + [record for each, record in found.items() if each not in names]


def width_tables() -> None:
    """One table for each curve of accuracies against the width."""
    curves = groupby(
        by_width(records_of("accuracy-versus-width")),
        lambda s: (s.data, s.activation, s.train, s.kernel_gap),
    )
    for (data, activation, train, gaps), curve in curves:
        what = "read-out" if train == "readout" else "all weights"
        say(
            f"\n**{data.replace('_', ' ')}, {activation}, {what}**; relative distance of exact "
            f"kernels {gaps['matched']:.2%} matched, {gaps['unmatched']:.2%} unmatched\n"
        )
        say("| width | draws | DEQ | matched | unmatched | matched − DEQ | unmatched − DEQ "
            "| training, DEQ / matched | inference, DEQ / matched |")  # fmt: skip
        say("|" + "---|" * 9)
        for summary in curve:
            roles = ("deq", "matched", "unmatched")
            parts = [
                str(summary.width),
                str(summary.draws),
                *(summary.accuracy_text(role) for role in roles),
                *(difference(summary, role) for role in roles[1:]),
                *(f"{summary.ratio(work):.1f}" for work in ("training", "inference")),
            ]
            say("| " + " | ".join(parts) + " |")


def difference(summary: WidthSummary, role: str) -> str:
    """Difference of accuracies with its interval, in points."""
    interval = summary.interval(role)
    span = "" if interval is None else f" ({interval[0]:+.2f} … {interval[1]:+.2f})"
    return f"{summary.difference(role):+.2f}{span}".replace("-", "−")


def protocol_tables() -> None:
    """One table of changes for each data set and activation at width 512, and one of widths."""
    last, rows = None, table(records_of("authors-protocol"))
    for row in (row for row in rows if row["width"] == 512):
        means = means_of(row)
        gaps = (f"{means[role] - means['deq']:+.2f}" for role in ("matched", "plain"))
        shown = (f"{means[role]:.2f}" for role in ("deq", "matched", "plain"))
        cells = [row["change"], str(len(row["accuracies"]["deq"])), *shown, *gaps]
        place = (row["data"], row["activation"])
        if place != last:
            say(f"\n**{place[0].replace('_', ' ')}, {place[1]} DEQ, width 512**\n")
            say("| change | draws | DEQ | matched | plain | matched − DEQ | plain − DEQ |")
            say("|" + "---|" * 7)
            last = place
        say("| " + " | ".join(cells).replace("-", "−") + " |")
    widths = sorted({row["width"] for row in rows})
    for activation, (usual, other) in CURVES.items():
        say(f"\n**All widths, {activation} DEQ**: its accuracy in %, and points above it\n")
        say("| | " + " | ".join(map(str, widths)) + " |")
        say("|" + "---|" * (1 + len(widths)))
        for data in dict.fromkeys(row["data"] for row in rows):
            found = {
                (row["change"], row["width"]): means_of(row)
                for row in rows
                if (row["data"], row["activation"]) == (data, activation)
            }
            lines = {"DEQ": (usual, "deq"), "matched": (usual, "matched")}
            lines |= {"plain": (usual, "plain"), f"plain, {other}": (other, "plain")}
            for name, (change, role) in lines.items():
                cells = [point(found.get((change, width)), role) for width in widths]
                say(f"| {data.replace('_', ' ')}, {name} | " + " | ".join(cells) + " |")


def means_of(row: Record) -> dict[str, float]:
    """Mean accuracy of each network over the draws."""
    return {role: float(np.mean(values)) for role, values in row["accuracies"].items()}


def point(means: dict[str, float] | None, role: str) -> str:
    """Write the DEQ's accuracy, or how far another network is above it."""
    if means is None:
        return "–"
    shown = means["deq"] if role == "deq" else means[role] - means["deq"]
    return f"{shown:.2f}" if role == "deq" else f"{shown:+.2f}".replace("-", "−")


def loss_table() -> None:
    """Training loss after some epochs, for the networks of the authors' protocol."""
    say("\n| stands in for | network | ‖z‖², mean | loss after 1 epoch | 10 | 30 | 100 "
        "| training accuracy, % |")  # fmt: skip
    say("|" + "---|" * 8)
    for record in records_of("authors-protocol"):
        cell = record["cell"]
        if cell["readout"] != "sgd" or cell["rate"] != 1.0 or cell["scaling"] != "own":
            continue
        if (
            cell["samples"]
            and cell["data"] == "mnist"
            and cell["draw"] == 0
            and cell["width"] == 512
        ):
            solved = f", solved to {cell['solver']['tolerance']:g}" if "solver" in cell else ""
            parts = [
                f"{cell['activation']} DEQ",
                f"{cell['network']}{solved}",
                f"{record['mean_squared_norm']:.3f}",
                *(f"{loss:.3f}" for loss in record["losses"]),
                f"{100.0 * record['train_accuracy']:.2f}",
            ]
            say("| " + " | ".join(parts) + " |")


def scaling_table() -> None:
    """Both gaps on MNIST for every scaling of the images.

    ReLU networks and their centring are homogeneous, so that a multiple s of images has s² times
    their gap: such rows are not computed but follow from those of the images they are multiples of.
    """
    records = records_of("image-scalings")
    kinds = [f"{c}, {k} layers" for c in ("preactivation", "feature") for k in (1, 2)]
    computed = {r["cell"]["scaling"]: r for r in records if "matched" in r}
    heading = " | ".join(kinds).replace("1 layers", "1 layer")
    say(f"\n| images | root mean squared norm | tanh and its equivalent | {heading} |")
    say("|" + "---|" * (3 + len(kinds)))
    for record in records:
        cell, gap = record["cell"], record["equivalent"]
        name = cell["scaling"] + f", times {cell['factor']:g}" * (cell["factor"] != 1.0)
        base = computed.get(_multiple_of(cell["scaling"]))
        parts = [f"{gap['gap']:.3g} of {gap['norm']:.4g}"]
        if base is not None:
            s2 = record["mean_squared_norm"] / base["mean_squared_norm"]
            parts += [f"{s2 * base['matched'][kind]['gap']:.3g}" for kind in kinds]
        else:
            parts += [""] * len(kinds)
        say(f"| {name} | {math.sqrt(record['mean_squared_norm']):.3g} | {' | '.join(parts)} |")
    factors = factor_for(records, PAPER["equivalent"])
    found = ", ".join(f"{factor:.2g}" for factor in factors) or "none tried"
    wanted = [PAPER["matched"] / computed[SCALINGS[0]]["matched"][kind]["gap"] for kind in kinds]
    needed = " | ".join(f"{math.sqrt(ratio):.3g}" for ratio in wanted)
    say(f"| *factor on the first row that gives the paper's number* | | {found} | {needed} |")


def _multiple_of(scaling: str) -> str:
    """Return the scaling with computed ReLU networks of which this one is a multiple."""
    if scaling == SCALINGS[3]:
        return SCALINGS[1]
    return SCALINGS[0] if scaling in (SCALINGS[2], SCALINGS[4]) else scaling


def process_table() -> None:
    """Compare the distances with the paper's."""
    say("\n| | paper | here | as many true Gaussians |\n|---|---|---|---|")
    work = experiment("gaussian-process-limit")
    for finding in work.findings(records_of("gaussian-process-limit")):
        quantity = finding.quantity.replace(", 10000 networks of width 1000", "")
        say(f"| {quantity} | {finding.paper} | {finding.ours} | {finding.why} |")


def variability_table() -> None:
    """NC1 of both kernels by model and dimension, at the largest size that is complete."""
    say("\n| model | samples | d | ReLU, CK | ReLU, NTK | erf, CK | erf, NTK | inputs |")
    say("|" + "---|" * 8)
    records = records_of("kernel-variability")
    sizes = [record["cell"]["samples"] for record in records]
    size = max(sorted(set(sizes), reverse=True), key=sizes.count)
    for record in records:
        cell, values = record["cell"], record["nc1"]
        if cell["samples"] != size:
            continue
        name = f"DEQ, σₐ² = {cell['model']:g}" if cell["model"] else "one hidden layer"
        means = (
            f"{np.mean(values[phi][kind]):.4f}"
            for phi in ("relu", "erf")
            for kind in ("conjugate", "tangent")
        )
        parts = [name, str(cell["samples"]), str(cell["dimension"]), *means]
        say("| " + " | ".join([*parts, f"{np.mean(record['inputs']):.4f}"]) + " |")


BLOCKS = {
    "widths": width_tables,
    "protocol": protocol_tables,
    "losses": loss_table,
    "scalings": scaling_table,
    "process": process_table,
    "variability": variability_table,
}
"""What prints the tables between the marks of the page."""


def docs() -> None:
    """Replace the tables of the page between their marks, and draw the figures."""
    page = Path(__file__).parents[1] / "reproduction.md"
    text = stored_runs.filled(page.read_text(), BLOCKS)
    page.write_text(text)
    for name in NAMES:
        records = records_of(name)
        pictures = {name: records}
        if name == "accuracy-versus-width":  # pixels and features in a picture of their own each
            features = [each for each in records if each["cell"]["data"] in FEATURES]
            pixels = [each for each in records if each not in features]
            pictures = {name: pixels, f"{name}-features": features}
        for picture, shown in pictures.items():
            file = f"images/{picture}.png"
            if file in text and shown:
                save_figure(reproduction_figure(name, shown), page.parent / file)
    widths = protocol_widths_figure(records_of("authors-protocol"))
    save_figure(widths, page.parent / "images" / "authors-protocol-widths.png")


def left() -> None:
    """Count the cells that are missing."""
    for name in NAMES:
        cells, found = experiment(name).cells("paper"), stored().get(name, {})
        missing = sum(cell_name(cell) not in found for cell in cells)
        say(f"{name}: {missing} of {len(cells)} cells missing")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", name, seconds, *pairs]:
            run(name, float(seconds), stored_runs.chosen_values(pairs))
        case ["keep", directory]:
            settings = json.loads((Path(directory) / "settings.json").read_text())["settings"]
            for piece in sorted((Path(directory) / "pieces").glob("*.json")):
                add(settings["name"], json.loads(piece.read_text()))
        case ["left"]:
            left()
        case ["docs"]:
            docs()
        case _:
            say(__doc__ or "")

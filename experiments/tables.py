"""Tables of records, in Markdown: the paper's numbers beside ours."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from itertools import groupby

import numpy as np

from experiments.accuracy import authors_protocol
from experiments.accuracy.width_summary import WidthSummary, by_width
from experiments.collapse.tables import causes, head_tables
from experiments.collapse.tables import summary as head_summary
from experiments.kernels import mixture_equivalent
from experiments.kernels.gap_versus_dimension import slopes
from experiments.kernels.image_scalings import PAPER, SCALINGS, factor_for
from experiments.runner import Record, cell_name, experiment


def sphere_table(records: list[Record]) -> None:
    """Distances from the exact kernels of a DEQ on the sphere."""
    kinds = {"conjugate": "CK", "tangent": "NTK"}
    heading = (f"{kinds[r['cell']['kernel']]} (norm {r['norm']:.1f})" for r in records)
    print("\n| | " + " | ".join(heading) + " |\n|" + "---|" * (1 + len(records)))
    rows = {"asymptotic equivalent": [r["equivalent"]["gap"] for r in records]}
    names = ("quadratic network", "dual network, degree 32", "plain √2 ReLU network")
    for name, key in zip(names, ("quadratic", "dual", "plain"), strict=True):
        rows[name] = [record["gaps"][key] for record in records]
    for name, gaps in rows.items():
        # Rounding errors have no second digit.
        cells = (f"{gap:.0e}" if gap < 1e-9 else f"{gap:.3g}" for gap in gaps)
        print(f"| {name} | " + " | ".join(cells) + " |")


def equivalent_table(records: list[Record]) -> None:
    """Distance of a kernel from its equivalent, by exact kernels and by random networks."""
    print("\n| | paper | here, exact kernel | here, mean of random networks | its sampling error |")
    print("|" + "---|" * 5)
    for record in records:
        cell, exact, sampled = record["cell"], record["exact"], record["monte_carlo"]
        place = "MNIST 6 against 8" if cell["data"] == "mnist" else "two-class mixture, p = 1000"
        parts = [
            f"{cell['activation']}, {place}, n = {cell['samples']}",
            f"{mixture_equivalent.PAPER[cell['data']]:g}",
            f"{exact['gap']:.3g} of {record['norm']:.4g} ({exact['relative_gap']:.2%})",
            f"{sampled['gap']:.3g} ({cell['draws']} of width {cell['width']})",
            f"{sampled['own_error']:.3g}",
        ]
        print("| " + " | ".join(parts) + " |")


def matched_table(records: list[Record]) -> None:
    """Distances of matched and unmatched networks from DEQs, both conventions in a row."""
    print("\n| DEQ → network | data | preactivation | feature | unmatched, feature |")
    print("|" + "---|" * 5)
    found = {cell_name(record["cell"]): record for record in records}
    for record in found.values():
        cell = record["cell"]
        if cell["convention"] == "feature":
            continue
        feature = found[cell_name({**cell, "convention": "feature"})]
        family = cell["family"].replace("_", " ") + ", two layers" * (cell["layers"] == 2)
        place = "MNIST 6, 8" if cell["data"] == "mnist" else "mixture, p = 1000"
        gaps = (
            f"{each['matched']['gap']:.2g} of {each['matched']['norm']:.3g}"
            for each in (record, feature)
        )
        parts = [f"{cell['activation']} → {family}", f"{place}, n = {cell['samples']}", *gaps]
        print("| " + " | ".join([*parts, f"{feature['baseline']['gap']:.3g}"]) + " |")


def dimension_tables(records: list[Record]) -> None:
    """Distance from the equivalent by dimension, and the slope on logarithmic axes."""
    sizes = sorted({record["cell"]["dimension"] for record in records})
    for label, kernel in (("CK", "conjugate"), ("NTK", "tangent")):
        print(f"\n| {label}, p = | " + " | ".join(map(str, sizes)) + " | slope |")
        print("|" + "---|" * (2 + len(sizes)))
        for name, slope in slopes(records, kernel).items():
            mine = [record for record in records if record["cell"]["activation"] == name]
            means = (
                np.mean([r[kernel]["gap"] for r in mine if r["cell"]["dimension"] == p])
                for p in sizes
            )
            cells = [name.replace("_", " "), *(f"{mean:.3f}" for mean in means), f"{slope:.2f}"]
            print("| " + " | ".join(cells).replace("-", "−") + " |")


def width_tables(records: list[Record]) -> None:
    """One table for each curve of accuracies against the width."""
    curves = groupby(by_width(records), lambda s: (s.data, s.activation, s.train, s.kernel_gap))
    for (data, activation, train, gaps), curve in curves:
        what = "read-out" if train == "readout" else "all weights"
        print(
            f"\n**{data.replace('_', ' ')}, {activation}, {what}**; relative distance of exact "
            f"kernels {gaps['matched']:.2%} matched, {gaps['unmatched']:.2%} unmatched\n"
        )
        print("| width | draws | DEQ | matched | unmatched | matched − DEQ | unmatched − DEQ "
            "| training, DEQ / matched | inference, DEQ / matched |")  # fmt: skip
        print("|" + "---|" * 9)
        for summary in curve:
            roles = ("deq", "matched", "unmatched")
            parts = [
                str(summary.width),
                str(summary.draws),
                *(summary.accuracy_text(role) for role in roles),
                *(difference(summary, role) for role in roles[1:]),
                *(f"{summary.ratio(work):.1f}" for work in ("training", "inference")),
            ]
            print("| " + " | ".join(parts) + " |")


def difference(summary: WidthSummary, role: str) -> str:
    """Difference of accuracies with its interval, in points."""
    interval = summary.interval(role)
    span = "" if interval is None else f" ({interval[0]:+.2f} … {interval[1]:+.2f})"
    return f"{summary.difference(role):+.2f}{span}".replace("-", "−")


def protocol_tables(records: list[Record]) -> None:
    """One table of changes for each data set and activation at width 512, and one of widths."""
    last, rows = None, authors_protocol.table(records)
    for row in (row for row in rows if row["width"] == 512):
        means = means_of(row)
        gaps = (f"{means[role] - means['deq']:+.2f}" for role in ("matched", "plain"))
        shown = (f"{means[role]:.2f}" for role in ("deq", "matched", "plain"))
        cells = [row["change"], str(len(row["accuracies"]["deq"])), *shown, *gaps]
        place = (row["data"], row["activation"])
        if place != last:
            print(f"\n**{place[0].replace('_', ' ')}, {place[1]} DEQ, width 512**\n")
            print("| change | draws | DEQ | matched | plain | matched − DEQ | plain − DEQ |")
            print("|" + "---|" * 7)
            last = place
        print("| " + " | ".join(cells).replace("-", "−") + " |")
    widths = sorted({row["width"] for row in rows})
    for activation, (usual, other) in authors_protocol.CURVES.items():
        print(f"\n**All widths, {activation} DEQ**: its accuracy in %, and points above it\n")
        print("| | " + " | ".join(map(str, widths)) + " |")
        print("|" + "---|" * (1 + len(widths)))
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
                print(f"| {data.replace('_', ' ')}, {name} | " + " | ".join(cells) + " |")


def means_of(row: Record) -> dict[str, float]:
    """Mean accuracy of each network over the draws."""
    return {role: float(np.mean(values)) for role, values in row["accuracies"].items()}


def point(means: dict[str, float] | None, role: str) -> str:
    """Write the DEQ's accuracy, or how far another network is above it."""
    if means is None:
        return "–"
    shown = means["deq"] if role == "deq" else means[role] - means["deq"]
    return f"{shown:.2f}" if role == "deq" else f"{shown:+.2f}".replace("-", "−")


def loss_table(records: list[Record]) -> None:
    """Training loss after some epochs, for the networks of the authors' protocol."""
    print("\n| stands in for | network | ‖z‖², mean | loss after 1 epoch | 10 | 30 | 100 "
        "| training accuracy, % |")  # fmt: skip
    print("|" + "---|" * 8)
    for record in records:
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
            print("| " + " | ".join(parts) + " |")


def scaling_table(records: list[Record]) -> None:
    """Both gaps on MNIST for every scaling of the images.

    ReLU networks and their centring are homogeneous, so that a multiple s of images has s² times
    their gap: such rows are not computed but follow from those of the images they are multiples of.
    """
    kinds = [f"{c}, {k} layers" for c in ("preactivation", "feature") for k in (1, 2)]
    computed = {r["cell"]["scaling"]: r for r in records if "matched" in r}
    heading = " | ".join(kinds).replace("1 layers", "1 layer")
    print(f"\n| images | root mean squared norm | tanh and its equivalent | {heading} |")
    print("|" + "---|" * (3 + len(kinds)))
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
        print(f"| {name} | {math.sqrt(record['mean_squared_norm']):.3g} | {' | '.join(parts)} |")
    factors = factor_for(records, PAPER["equivalent"])
    found = ", ".join(f"{factor:.2g}" for factor in factors) or "none tried"
    wanted = [PAPER["matched"] / computed[SCALINGS[0]]["matched"][kind]["gap"] for kind in kinds]
    needed = " | ".join(f"{math.sqrt(ratio):.3g}" for ratio in wanted)
    print(f"| *factor on the first row that gives the paper's number* | | {found} | {needed} |")


def _multiple_of(scaling: str) -> str:
    """Return the scaling with computed ReLU networks of which this one is a multiple."""
    if scaling == SCALINGS[3]:
        return SCALINGS[1]
    return SCALINGS[0] if scaling in (SCALINGS[2], SCALINGS[4]) else scaling


def process_table(records: list[Record]) -> None:
    """Compare the distances with the paper's."""
    print("\n| | paper | here | as many true Gaussians |\n|---|---|---|---|")
    work = experiment("gaussian-process-limit")
    for finding in work.findings(records):
        quantity = finding.quantity.replace(", 10000 networks of width 1000", "")
        print(f"| {quantity} | {finding.paper} | {finding.ours} | {finding.why} |")


def variability_table(records: list[Record]) -> None:
    """NC1 of both kernels by model and dimension, at the largest size that is complete."""
    print("\n| model | samples | d | ReLU, CK | ReLU, NTK | erf, CK | erf, NTK | inputs |")
    print("|" + "---|" * 8)
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
        print("| " + " | ".join([*parts, f"{np.mean(record['inputs']):.4f}"]) + " |")


def finding_table(name: str, records: list[Record]) -> None:
    """Print our numbers beside the paper's."""
    print("\n| | paper | ours | |\n|---|---|---|---|")
    for row in experiment(name).findings(records):
        print(f"| {row.quantity} | {row.paper} | {row.ours} | {row.why} |".replace("  ", " "))


TABLES: dict[str, tuple[Callable[[list[Record]], None], ...]] = {
    "sphere-spectra": (sphere_table,),
    "mixture-equivalent": (equivalent_table,),
    "mixture-matched": (matched_table,),
    "gap-versus-dimension": (dimension_tables,),
    "accuracy-versus-width": (width_tables,),
    "authors-protocol": (protocol_tables, loss_table),
    "image-scalings": (scaling_table,),
    "gaussian-process-limit": (process_table,),
    "kernel-variability": (variability_table,),
    "collapse-balanced": (head_tables,),
    "collapse-imbalanced": (head_tables,),
    "collapse-causes": (causes, head_tables),
    "collapse-features": (head_summary, head_tables),
}
"""What prints the tables of an experiment; of the others, all numbers are listed."""


def table(name: str, records: list[Record]) -> str:
    """Return the tables of an experiment."""
    with redirect_stdout(io.StringIO()) as text:
        for show in TABLES.get(name, (partial(finding_table, name),)):
            show(records)
    return text.getvalue()

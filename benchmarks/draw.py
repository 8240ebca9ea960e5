"""Draw the figures of docs/benchmarks.md and docs/convolutions.md from the stored results.

python benchmarks/draw.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from measure import RESULTS
from notsodeep.plotting import DEEP, MUTED, SHALLOW, house_style, new_figure, save_figure

IMAGES = Path(__file__).parents[1] / "docs" / "images"
Record = dict[str, Any]
_PANELS = ("DEQ, relu, σa² = 0.2", "DEQ, erf, σa² = 0.2", "DEQ, tanh, σa² = 0.2", "one layer, relu")


def kernels_figure(record: Record) -> Figure:
    """Ratios to the Gram product, case by case."""
    rows = [row for row in record["rows"] if "ratio" in row][::-1]
    about = record["about"]
    figure, (axes,) = new_figure(width=6.4, height=0.24 * len(rows) + 0.9)
    with house_style():
        ratios = [row["ratio"] for row in rows]
        names = [row["case"] for row in rows]
        colours = [SHALLOW if "images" in name else DEEP for name in names]
        bars = axes.barh(names, ratios, color=colours, height=0.7)
        axes.bar_label(bars, labels=[f"{ratio:.1f}" for ratio in ratios], padding=3, fontsize=8)
        axes.axvline(1.0, color=MUTED, linewidth=1.0)
        axes.set_xlabel("time of CK and NTK, in products X Xᵀ")
        axes.set_title(f"n = {about['rows']:,}, p = {about['features']}, float64", loc="left")
        axes.margins(x=0.08, y=0.01)
        axes.tick_params(axis="y", labelsize=8, length=0)
    return figure


def _peer_panel(axes: Axes, rows: list[Record]) -> None:
    """Seconds against n: this package, the peer by its numbers of layers, and the Gram product."""
    series: dict[tuple[str, int], list[Record]] = {}
    for row in rows:
        if "seconds" in row:
            series.setdefault((row["library"], row["layers"]), []).append(row)
    styles = {0: "o-", 1: "o-", 4: "v--", 16: "s--", 60: "^-"}
    for (library, layers), points in series.items():
        ours = library == "notsodeep"
        label = library if ours or layers == 1 else f"{library}, {layers} layers"
        exponent = points[0].get("exponent")
        label += "" if exponent is None else f", n^{exponent:.2f}"
        n, seconds = ([point[key] for point in points] for key in ("n", "seconds"))
        style = "o-" if ours else styles.get(layers, "d-")
        axes.loglog(n, seconds, style, color=DEEP if ours else SHALLOW, label=label, markersize=4)
        if ours:
            gram = [point["gram"] for point in points]
            axes.loglog(n, gram, ":", color=MUTED, label="X Xᵀ")
    sizes = sorted({row["n"] for row in rows if "seconds" in row})
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("n")
    axes.set_ylim(top=60 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize=7.5, loc="upper left")


def peers_figure(record: Record) -> Figure:
    """Time against n, log-log, of the cases with a figure of their own."""
    cases = [case for case in _PANELS if any(r["case"] == case for r in record["rows"])]
    figure, panels = new_figure(len(cases), width=3.5, height=3.3)
    with house_style():
        for axes, case in zip(panels, cases, strict=True):
            _peer_panel(axes, [row for row in record["rows"] if row["case"] == case])
            axes.set_title(case, loc="left")
        panels[0].set_ylabel("processor seconds")
    return figure


def networks_figure(record: Record) -> Figure:
    """Cost of a DEQ in units of its matched network, by width and tolerance."""
    rows = [row for row in record["rows"] if "ratio" in row]
    figure, panels = new_figure(2, width=3.6, height=3.0)
    with house_style():
        for axes, work in zip(panels, ("inference", "training step"), strict=True):
            tolerances = sorted({row["tolerance"] for row in rows}, reverse=True)
            for tolerance, colour in zip(tolerances, (DEEP, SHALLOW, MUTED), strict=False):
                points = [r for r in rows if (r["work"], r["tolerance"]) == (work, tolerance)]
                width, ratio = ([point[key] for point in points] for key in ("width", "ratio"))
                low, high = zip(*(point["ratio_quartiles"] for point in points), strict=True)
                reach = [
                    [max(r - q, 0.0) for r, q in zip(ratio, low, strict=True)],
                    [max(q - r, 0.0) for r, q in zip(ratio, high, strict=True)],
                ]
                label = f"tolerance {tolerance:g}"
                axes.errorbar(
                    width,
                    ratio,
                    reach,
                    fmt="o-",
                    color=colour,
                    label=label,
                    capsize=3,
                    markersize=4,
                )
            axes.set_xscale("log", base=2)
            axes.set_xticks(width, [f"{value:,}" for value in width])
            axes.set_ylim(bottom=0.0)
            axes.axhline(1.0, color=MUTED, linewidth=1.0)
            axes.set_title(work, loc="left")
            axes.set_xlabel("width")
        panels[0].set_ylabel("time of the DEQ / time of the network")
        panels[0].legend(frameon=False, fontsize=8)
    return figure


def twins_figure(record: Record) -> Figure:
    """Gaps of kernels against σa², and accuracies of finite twins less those of their DEQs."""
    common = {"data": "digits", "activation": "relu", "size": 3, "padding": "circular"}
    common |= {"pooling": "flatten", "kernel": "ck"}
    series = sorted(
        (row for row in record["rows"] if common.items() <= row.items()),
        key=lambda row: row["sigma_a2"],
    )
    figure, (left, right) = new_figure(2, width=4.4, height=0.2 * len(record["rows"]) + 0.9)
    with house_style():
        for key, label, colour, style in (
            ("unmatched_relative_gap", "the DEQ's activation", MUTED, "s--"),
            ("unrefined_gap", "match of the dense DEQ", MUTED, "^:"),
            ("unmatched_scaled_gap", "the DEQ's activation, rescaled", SHALLOW, "s--"),
            ("relative_gap", "matched on images", DEEP, "o-"),
        ):
            gaps = [100.0 * row[key] for row in series]
            sigmas = [row["sigma_a2"] for row in series]
            left.semilogy(sigmas, gaps, style, color=colour, label=label, markersize=4)
        left.set_xlabel("σa²")
        left.set_ylabel("gap of the kernels, per cent")
        left.set_title("digits, relu, flattened", loc="left")
        left.legend(frameon=False, fontsize=7.5)
        rows = record["rows"][::-1]
        middle = [100.0 * (row["accuracy"]["matched"] - row["accuracy"]["deq"]) for row in rows]
        reach = [
            [m - row["accuracy_difference"][0] for m, row in zip(middle, rows, strict=True)],
            [row["accuracy_difference"][1] - m for m, row in zip(middle, rows, strict=True)],
        ]
        names = [named_twin(row) for row in rows]
        right.axvline(0.0, color=MUTED, linewidth=1.0)
        right.errorbar(middle, names, xerr=reach, fmt="o", color=DEEP, markersize=4, capsize=2)
        right.set_xlabel("twin − DEQ, points, 95 % interval")
        right.set_title("accuracy of finite networks", loc="left")
        right.tick_params(axis="y", labelsize=7.5, length=0)
    return figure


def named_twin(row: Record) -> str:
    """Name a DEQ by what differs from 3 × 3 windows, circular, flattened, and 32 channels."""
    sides = {"digits": 8, "mnist": 28}[row["data"]] // row["input_pooling"]
    usual = {"size": 3, "padding": "circular", "pooling": "flatten"}
    usual |= {"kernel": "ck", "channels": 32}
    words = {"size": "{0} × {0}", "padding": "{0} padding", "pooling": "pooling {0}"}
    words |= {"kernel": "{0}", "channels": "{0} channels"}
    other = [words[key].format(row[key]) for key in usual if row[key] != usual[key]]
    about = f"{row['data']} {sides} × {sides}, {row['activation']} {row['sigma_a2']:g}"
    return ", ".join([about, *other])


FIGURES: dict[str, Callable[[Record], Figure]] = {
    "kernels": kernels_figure,
    "peers": peers_figure,
    "networks": networks_figure,
    "convolutions/twins": twins_figure,
}


def main() -> None:
    """Draw what there are results for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--images", type=Path, default=IMAGES)
    options = parser.parse_args()
    for name, draw in FIGURES.items():
        path = options.results / f"{name}.json"
        if path.exists():
            figure = draw(json.loads(path.read_text()))
            of_page = f"benchmarks-{name}" if "/" not in name else name.replace("/", "-")
            print(save_figure(figure, options.images / f"{of_page}.png"))


if __name__ == "__main__":
    main()

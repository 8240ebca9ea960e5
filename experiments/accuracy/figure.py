"""Figure of accuracy and cost against the width."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.accuracy.width_summary import WidthSummary, by_width
from notsodeep.plotting.canvas import DEEP, MUTED, SHALLOW, house_style, new_figure

_ROLES = {"deq": ("DEQ", DEEP), "matched": ("matched", SHALLOW), "unmatched": ("unmatched", MUTED)}
_LINES = {"relu": "-", "tanh": "--"}
_MARKERS = "osD^"
_TRAINED = {"readout": "read-out trained", "all": "all weights trained"}


@house_style()
def accuracy_figure(records: list[dict[str, Any]]) -> Figure:
    """Draw a row of panels for each way of training: data sets, differences, cost."""
    summaries = by_width(records)
    trainings = [name for name in _TRAINED if any(s.train == name for s in summaries)]
    names = list(dict.fromkeys(s.data for s in summaries))
    columns = len(names) + 2
    figure, axes = new_figure(columns, rows=len(trainings), width=3.5, height=3.0)
    for row, train in enumerate(trainings):
        panels = axes[row * columns : (row + 1) * columns]
        curves = _curves([s for s in summaries if s.train == train])
        for panel, name in zip(panels, names, strict=False):
            _accuracies(panel, [curve for curve in curves if curve[0].data == name])
            panel.set_title(f"{name.replace('_', ' ')}, {_TRAINED[train]}")
        _differences(panels[-2], curves, names)
        _times(panels[-1], curves, names)
        for panel in panels:
            _width_axis(panel, sorted({s.width for curve in curves for s in curve}))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9)
    return figure


def _curves(summaries: list[WidthSummary]) -> list[list[WidthSummary]]:
    """Split into curves along the width."""
    curves: dict[tuple[str, str], list[WidthSummary]] = {}
    for summary in summaries:
        curves.setdefault((summary.data, summary.activation), []).append(summary)
    return list(curves.values())


def _accuracies(panel: Axes, curves: list[list[WidthSummary]]) -> None:
    for curve in curves:
        widths, activation = [s.width for s in curve], curve[0].activation
        style: dict[str, Any] = {"ls": _LINES[activation], "marker": "o", "ms": 3, "lw": 1.2}
        for role, (label, colour) in _ROLES.items():
            means, spreads = [s.mean(role) for s in curve], [s.deviation(role) for s in curve]
            name = f"{activation} {label}"
            panel.errorbar(widths, means, yerr=spreads, color=colour, label=name, **style)
    panel.set_ylabel("test accuracy in %")


def _differences(panel: Axes, curves: list[list[WidthSummary]], names: list[str]) -> None:
    """Draw the distance of mean accuracies from the DEQ's, the paper's panel d."""
    for curve in curves:
        for role in ("matched", "unmatched"):
            gaps = [abs(s.difference(role)) for s in curve]
            _line(panel, curve, gaps, _ROLES[role][1], names)
    panel.set_ylabel("points from the DEQ's accuracy")
    panel.set_title("gap to the DEQ")
    panel.set_ylim(bottom=0.0)
    for marker, name in zip(_MARKERS, names, strict=False):
        panel.plot([], [], marker=marker, ls="", color=MUTED, ms=4, label=name.replace("_", " "))
    panel.legend(fontsize=7)


def _times(panel: Axes, curves: list[list[WidthSummary]], names: list[str]) -> None:
    ratios = []
    for curve in curves:
        for work, colour in (("training", DEEP), ("inference", SHALLOW)):
            times = [s.ratio(work) for s in curve]  # type: ignore[arg-type]
            _line(panel, curve, times, colour, names, work if curve is curves[0] else None)
            ratios += times
    low, high = np.floor(np.log2(min(ratios))), np.ceil(np.log2(max(ratios)))
    ticks = [float(2.0**k) for k in np.arange(low, high + 1.0)]
    panel.set_yscale("log")
    panel.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_ylabel("time of the DEQ / matched")
    panel.set_title("cost")
    panel.legend(fontsize=7)


def _line(
    panel: Axes,
    curve: list[WidthSummary],
    values: list[float],
    colour: str,
    names: list[str],
    label: str | None = None,
) -> None:
    marker, dashes = _MARKERS[names.index(curve[0].data)], _LINES[curve[0].activation]
    widths = [s.width for s in curve]
    panel.plot(widths, values, color=colour, ls=dashes, marker=marker, ms=4, lw=1.2, label=label)


def _width_axis(panel: Axes, widths: list[int]) -> None:
    panel.set_xscale("log", base=2)
    shown = widths if len(widths) < 6 else widths[::2]
    panel.set_xticks(shown, labels=[str(width) for width in shown])
    panel.set_xlabel("width")

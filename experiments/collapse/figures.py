"""Collapse without training in pictures: the phase diagram, and kernels beside one another."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullLocator,
)

from experiments.collapse.heads import LABELS
from experiments.collapse.phase import HEADS, rows_of
from notsodeep import checks
from notsodeep.plotting.canvas import DEEP, MUTED, SHALLOW, house_style, new_figure

Record = dict[str, Any]
_VANISHED, _BORDER, _LINE = "#d9dce1", "#5b6270", "#b4472c"
_KERNELS = {"conjugate": "CK", "tangent": "NTK"}  # as in stored cells
_SIDES = {
    "deq": ("DEQ", DEEP, "o"),
    "matched": ("matched network", SHALLOW, "D"),
    "unmatched": ("unmatched network", MUTED, "s"),
}
# Told apart by lightness and dashes as well as by hue.
_STYLES: dict[str, dict[str, Any]] = {
    "explicit": {"color": SHALLOW, "ls": "-"},
    "plain": {"color": MUTED, "ls": "-"},
    "residual": {"color": "#1b7f6b", "ls": (0, (5, 2))},
    "deq_truncated": {"color": "#6fa3dc", "ls": (0, (1, 1))},
    "deq": {"color": DEEP, "ls": "-", "lw": 3.0, "alpha": 0.6},
    "deq_monotone": {"color": "#12305c", "ls": (0, (6, 1, 1, 1))},
    "explicit_matched": {"color": "#7a3b06", "ls": (0, (4, 3))},
    "explicit_started": {"color": "#b8860b", "ls": (0, (2, 1))},
    "explicit_inverse": {"color": "#8e2f6e", "ls": (0, (3, 1, 1, 1))},
}


def head_style(head: str) -> dict[str, Any]:
    """Return the arguments of a line for a head, its label among them."""
    checks.known_name(head, _STYLES, "head")
    return {"lw": 1.6, "label": LABELS[head], **_STYLES[head]}


def phase_figure(records: list[Record]) -> Figure:
    """Draw minority cosines over imbalance and gain, and the heads' cosines against imbalance.

    Parameters
    ----------
    records : list of dict
        Of the experiment ``collapse-phase``.
    """
    splits = list(dict.fromkeys(_split(record) for record in records))
    budgets = list(dict.fromkeys(record["cell"]["feature_budget"] for record in records))
    n = len(splits)
    figure, axes = new_figure(n, rows=len(budgets) + 1, width=max(3.4, 6.4 / n), height=3.0)
    with house_style():
        for row, budget in enumerate(budgets):
            panels = axes[row * n : (row + 1) * n]
            for panel, split in zip(panels, splits, strict=True):
                mine = [r for r in records if _place(r) == (*split, budget)]
                mesh = draw_phase_diagram(panel, mine, named_heads=panel is panels[-1])
            panels[0].set_ylabel(f"{budget} budget\ngain of the head")
        for panel, split in zip(axes, splits, strict=False):
            panel.set_title(f"{split[0]} large, {split[1]} small classes")
        for panel, split in zip(axes[-n:], splits, strict=True):
            _cosines_by_head(panel, [r for r in records if _place(r) == (*split, budgets[0])])
        axes[-n].set_ylabel(f"{budgets[0]} budget\nminority cosine")
        bar = figure.colorbar(mesh, ax=axes[:-n], location="top", aspect=40, shrink=0.6, pad=0.03)
        bar.set_label("minority cosine")
        handles, labels = axes[-1].get_legend_handles_labels()
        handles += [Line2D([], [], color=_LINE, lw=1.6), Patch(fc=_VANISHED, ec=_BORDER)]
        labels += ["threshold R*", "minority classifiers are zero"]
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=2 if n == 1 else min(n + 1, 4),
            frameon=False,
        )
    return figure


def _split(record: Record) -> tuple[int, int]:
    return record["cell"]["majority"], record["cell"]["minority"]


def _place(record: Record) -> tuple[int, int, str]:
    return (*_split(record), record["cell"]["feature_budget"])


def _edges(centres: list[float]) -> Any:
    """Return the borders of cells on a logarithmic axis."""
    logs = np.log(centres)
    inner = (logs[1:] + logs[:-1]) / 2
    return np.exp([2 * logs[0] - inner[0], *inner, 2 * logs[-1] - inner[-1]])


def draw_phase_diagram(axes: Axes, records: list[Record], *, named_heads: bool) -> QuadMesh:
    """Draw minority cosines over imbalance and gain, and the threshold, into one panel.

    Parameters
    ----------
    axes : Axes
    records : list of dict
        Rows of the diagram, of one split of the classes and one budget.
    named_heads : bool
        Name the gains of the heads at the right-hand side.
    """
    rows = sorted(rows_of(records, "gain"), key=lambda record: record["gain"])
    gains, ratios = [row["gain"] for row in rows], rows[0]["cell"]["ratios"]
    cosines = np.array([row["cosines"] for row in rows], dtype=np.float64)  # null becomes NaN
    axes.set_facecolor(_VANISHED)
    x, y = _edges(ratios), _edges(gains)
    mesh = axes.pcolormesh(
        x, y, np.ma.masked_invalid(cosines), cmap="cividis", vmin=-1.0 / 3.0, vmax=1.0,
        rasterized=True,
    )  # fmt: skip
    line = [row["threshold"] for row in rows]
    axes.plot(line, gains, color="white", lw=3.0)
    axes.plot(line, gains, color=_LINE, lw=1.6)
    if np.isnan(cosines).any():
        axes.contour(ratios, gains, np.isnan(cosines), levels=[0.5], colors=_BORDER, linewidths=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    axes.set_xlabel("imbalance R")
    axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1.0, 2.0, 4.0]))
    axes.yaxis.set_major_formatter(FixedFormatter(["¼", "½", "1", "2", "4"]))
    axes.yaxis.set_minor_locator(NullLocator())
    _head_lines(axes, records, named=named_heads)
    return mesh


def _head_lines(axes: Axes, records: list[Record], *, named: bool) -> None:
    """Mark the gains of the heads; those of equal gain share a line."""
    names: dict[float, str] = {}
    for head in HEADS:
        for record in rows_of(records, head)[:1]:
            names.setdefault(record["gain"], LABELS[head])
    for gain in names:
        axes.axhline(gain, color="white", lw=0.8, ls=(0, (2, 2)))
    if named:
        side = axes.secondary_yaxis("right")
        side.yaxis.set_major_locator(FixedLocator(list(names)))
        side.yaxis.set_major_formatter(FixedFormatter(list(names.values())))
        side.yaxis.set_minor_locator(NullLocator())
        side.tick_params(labelsize=7, length=2)


def _cosines_by_head(axes: Axes, records: list[Record]) -> None:
    for name in HEADS:
        for record in rows_of(records, name):
            ratios = record["cell"]["ratios"]
            cosines = np.array(record["cosines"], dtype=np.float64)
            axes.plot(ratios, cosines, **head_style(name))
            missing = np.isnan(cosines)
            if missing.any():  # the curve ends where the classifiers vanish
                last = int(np.argmax(missing)) - 1
                if last >= 0:
                    axes.plot(ratios[last], cosines[last], "x", color=head_style(name)["color"])
    axes.set_xscale("log")
    axes.set_xlim(ratios[0], ratios[-1])
    axes.set_xlabel("imbalance R")
    axes.set_ylim(-0.5, 1.08)


def kernel_figure(records: list[Record]) -> Figure:
    """Draw NC1 of the kernels, and how far the networks are from the DEQ.

    Parameters
    ----------
    records : list of dict
        Of the experiment ``collapse-kernels``.
    """
    places = list(dict.fromkeys(record["cell"]["data"] for record in records))
    figure, axes = new_figure(len(places), rows=2, width=max(3.6, 5.2 / len(places)), height=2.8)
    with house_style():
        for k, place in enumerate(places):
            mine = [record for record in records if record["cell"]["data"] == place]
            values, errors = axes[k], axes[len(places) + k]
            _kernel_values(values, mine)
            _kernel_errors(errors, mine)
            values.set_title(place.replace("_", " "))
        axes[0].set_ylabel("NC1 of the kernel")
        axes[len(places)].set_ylabel("distance from the DEQ")
        shares = sorted({record["cell"]["sigma_a2"] for record in records})
        if len(shares) > 1:
            listed = ", ".join(f"{share:g}" for share in shares)
            figure.supxlabel(f"σa² = {listed} from left to right", fontsize=9)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=min(2 * len(places), 4),
            frameon=False,
        )
    return figure


def _positions(records: list[Record]) -> dict[tuple[str, str, float], float]:
    """Place designs on the axis: activation and kernel, and within them σa² from left to right."""
    cells = [record["cell"] for record in records]
    kinds = list(dict.fromkeys((c["activation"], c["kernel"]) for c in cells))
    shares = sorted({c["sigma_a2"] for c in cells})
    spread = 0.22 if len(shares) > 1 else 0.0
    offsets = np.linspace(-spread, spread, len(shares))
    return {
        (*kind, share): place + float(offset)
        for place, kind in enumerate(kinds)
        for share, offset in zip(shares, offsets, strict=True)
    }


def _design(record: Record) -> tuple[str, str, float]:
    cell = record["cell"]
    return cell["activation"], cell["kernel"], cell["sigma_a2"]


def _designs_on_axis(axes: Axes, places: dict[tuple[str, str, float], float]) -> None:
    kinds = list(dict.fromkeys((phi, kernel) for phi, kernel, _ in places))
    axes.set_xticks(
        range(len(kinds)), labels=[f"{phi}\n{_KERNELS[kernel]}" for phi, kernel in kinds]
    )
    axes.set_xlim(-0.5, len(kinds) - 0.5)


def _kernel_values(axes: Axes, records: list[Record]) -> None:
    places = _positions(records)
    sizes = {"deq": 9.0, "matched": 4.0, "unmatched": 4.0}
    shift = {"deq": 0.0, "matched": 0.0, "unmatched": 0.05}
    for side, (label, colour, marker) in _SIDES.items():
        means = [
            np.mean([r[side]["nc1"] for r in records if _design(r) == design]) for design in places
        ]
        x = np.array(list(places.values())) + shift[side]
        axes.plot(
            x, means, marker, ms=sizes[side], color=colour, label=label,
            alpha=0.45 if side == "deq" else 1.0, mec="none",
        )  # fmt: skip
    inputs = float(np.mean([record["inputs"]["nc1"] for record in records]))
    axes.axhline(inputs, color=to_rgba("black", 0.6), lw=1.0, ls=":", label="inputs")
    axes.set_ylim(0.0, 1.12 * axes.get_ylim()[1])
    _designs_on_axis(axes, places)


def _kernel_errors(axes: Axes, records: list[Record]) -> None:
    """Absolute relative differences; a bar from the least to the largest of the draws."""
    places = _positions(records)
    for side in ("matched", "unmatched"):
        _, colour, marker = _SIDES[side]
        for design, x in places.items():
            errors = [
                abs(r[side]["nc1"] / r["deq"]["nc1"] - 1.0) for r in records if _design(r) == design
            ]
            axes.plot([x, x], [min(errors), max(errors)], color=colour, lw=1.2, alpha=0.7)
            axes.plot(x, np.mean(errors), marker, ms=4, color=colour)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.minorticks_off()
    _designs_on_axis(axes, places)

"""Neural collapse in pictures: the phase diagram, kernels beside one another, trained heads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from experiments.collapse.compare import by_settings, heads_of, values_by_seed
from experiments.collapse.heads import LABELS
from experiments.collapse.phase import HEADS, rows_of
from experiments.runner import Record
from notsodeep.plotting.canvas import DEEP, MUTED, SHALLOW, new_figure

_VANISHED, _BORDER, _LINE = "#d9dce1", "#5b6270", "#b4472c"
_KERNELS = {"conjugate": "CK", "tangent": "NTK"}
_SIDES = {  # label, colour, marker, size, shift
    "deq": ("DEQ", DEEP, "o", 9.0, 0.0),
    "matched": ("matched network", SHALLOW, "D", 4.0, 0.0),
    "unmatched": ("unmatched network", MUTED, "s", 4.0, 0.05),
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
_CURVES = {  # key: title, logarithmic axis
    "nc1": ("NC1, within classes", True),
    "nc2_features": ("NC2, means", True),
    "nc2_classifier": ("NC2, classifier", True),
    "nc3_alignment": ("NC3, alignment", True),
    "loss": ("training loss", True),
    "gain_on_means": ("gain on class means", False),
    "test_accuracy": ("test accuracy", False),
    "nc4": ("NC4, nearest mean", False),
}
_MINORITY = {
    "minority_cosine": ("minority cosine, classifier", False),
    "test_minority_accuracy": ("test accuracy, minority", False),
}


def _style(head: str) -> dict[str, Any]:
    return {"lw": 1.6, "label": LABELS[head], **_STYLES[head]}


def phase_figure(records: list[Record]) -> Figure:
    """Draw minority cosines over imbalance and gain, and the heads' cosines against imbalance."""

    def place(record: Record) -> tuple[int, int, str]:
        cell = record["cell"]
        return cell["majority"], cell["minority"], cell["feature_budget"]

    splits = list(dict.fromkeys(place(record)[:2] for record in records))
    budgets = list(dict.fromkeys(place(record)[2] for record in records))
    n = len(splits)
    figure, axes = new_figure(n, rows=len(budgets) + 1, width=max(3.4, 6.4 / n), height=3.0)
    for row, budget in enumerate(budgets):
        for panel, split in zip(axes[row * n : (row + 1) * n], splits, strict=True):
            mine = [record for record in records if place(record) == (*split, budget)]
            mesh = _phase_diagram(panel, mine, named=split == splits[-1])
        axes[row * n].set_ylabel(f"{budget} budget\ngain of the head")
    for panel, split in zip(axes, splits, strict=False):
        panel.set_title(f"{split[0]} large, {split[1]} small classes")
    for panel, split in zip(axes[-n:], splits, strict=True):
        _cosines_by_head(panel, [r for r in records if place(r) == (*split, budgets[0])])
    axes[-n].set_ylabel(f"{budgets[0]} budget\nminority cosine")
    bar = figure.colorbar(mesh, ax=axes[:-n], location="top", aspect=40, shrink=0.6, pad=0.03)
    bar.set_label("minority cosine")
    handles, labels = axes[-1].get_legend_handles_labels()
    handles += [Line2D([], [], color=_LINE, lw=1.6), Patch(fc=_VANISHED, ec=_BORDER)]
    labels += ["threshold R*", "minority classifiers are zero"]
    columns = 2 if n == 1 else min(n + 1, 4)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _edges(centres: list[float]) -> Any:
    """Return the borders of cells on a logarithmic axis."""
    logs = np.log(centres)
    inner = (logs[1:] + logs[:-1]) / 2
    return np.exp([2 * logs[0] - inner[0], *inner, 2 * logs[-1] - inner[-1]])


def _phase_diagram(axes: Axes, records: list[Record], *, named: bool) -> QuadMesh:
    """Draw minority cosines and the threshold; mark the gains of heads, with names if asked."""
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
    axes.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    axes.set_xlabel("imbalance R")
    axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1.0, 2.0, 4.0]))
    axes.yaxis.set_major_formatter(FixedFormatter(["¼", "½", "1", "2", "4"]))
    axes.yaxis.set_minor_locator(NullLocator())
    names: dict[float, str] = {}  # those of equal gain share a line
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
    return mesh


def _cosines_by_head(axes: Axes, records: list[Record]) -> None:
    for name in HEADS:
        for record in rows_of(records, name):
            ratios = record["cell"]["ratios"]
            cosines = np.array(record["cosines"], dtype=np.float64)
            axes.plot(ratios, cosines, **_style(name))
            known = np.flatnonzero(~np.isnan(cosines))
            if 0 < len(known) < len(cosines):  # the curve ends where the classifiers vanish
                last = known[-1]
                axes.plot(ratios[last], cosines[last], "x", color=_style(name)["color"])
    axes.set(xscale="log", xlim=(ratios[0], ratios[-1]), ylim=(-0.5, 1.08))
    axes.set_xlabel("imbalance R")


def kernel_figure(records: list[Record]) -> Figure:
    """Draw NC1 of the kernels, and how far the networks are from the DEQ.

    Activations and kernels have a place each, in which σa² grows from left to right.
    """
    sets = list(dict.fromkeys(record["cell"]["data"] for record in records))
    figure, axes = new_figure(len(sets), rows=2, width=max(3.6, 5.2 / len(sets)), height=2.8)
    cells = [record["cell"] for record in records]
    kinds = list(dict.fromkeys((c["activation"], c["kernel"]) for c in cells))
    shares = sorted({c["sigma_a2"] for c in cells})
    offsets = np.linspace(-0.22, 0.22, len(shares)) if len(shares) > 1 else [0.0]
    for k, name in enumerate(sets):
        values, errors = axes[k], axes[len(sets) + k]
        mine = [record for record in records if record["cell"]["data"] == name]
        for i, kind in enumerate(kinds):
            for share, offset in zip(shares, offsets, strict=True):
                group = [r for r in mine if _design(r) == (*kind, share)]
                if group:
                    _design_at(values, errors, i + float(offset), group)
        inputs = float(np.mean([record["inputs"]["nc1"] for record in mine]))
        values.axhline(inputs, color="black", alpha=0.6, lw=1.0, ls=":", label="inputs")
        values.set_ylim(0.0, 1.12 * values.get_ylim()[1])
        values.set_title(name.replace("_", " "))
        errors.set_yscale("log")
        errors.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        errors.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        errors.minorticks_off()
        for panel in (values, errors):
            labels = [f"{phi}\n{_KERNELS[kernel]}" for phi, kernel in kinds]
            panel.set_xticks(range(len(kinds)), labels=labels)
            panel.set_xlim(-0.5, len(kinds) - 0.5)
    axes[0].set_ylabel("NC1 of the kernel")
    axes[len(sets)].set_ylabel("distance from the DEQ")
    if len(shares) > 1:
        listed = ", ".join(f"{share:g}" for share in shares)
        figure.supxlabel(f"σa² = {listed} from left to right", fontsize=9)
    known = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
    columns = min(2 * len(sets), 4)
    figure.legend(known.values(), known, loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _design(record: Record) -> tuple[str, str, float]:
    cell = record["cell"]
    return cell["activation"], cell["kernel"], cell["sigma_a2"]


def _design_at(values: Axes, errors: Axes, x: float, records: list[Record]) -> None:
    """Draw means, and relative differences with a bar from the least to the largest draw."""
    for side, (label, colour, marker, size, shift) in _SIDES.items():
        mean = np.mean([record[side]["nc1"] for record in records])
        alpha = 0.45 if side == "deq" else 1.0
        values.plot(
            x + shift, mean, marker, ms=size, color=colour, label=label, alpha=alpha, mec="none"
        )
        if side != "deq":
            gaps = [abs(r[side]["nc1"] / r["deq"]["nc1"] - 1.0) for r in records]
            errors.plot([x, x], [min(gaps), max(gaps)], color=colour, lw=1.2, alpha=0.7)
            errors.plot(x, np.mean(gaps), marker, ms=4, color=colour)


def curves_figure(records: list[Record]) -> Figure:
    """Draw the first setting against the epoch: each head's median over seeds, and their range.

    A measure that an epoch lacks has no panel.
    """
    records = by_settings(records)[0]
    shown = dict(_CURVES)
    if any(record["groups"] for record in records):  # room for the minority
        del shown["nc4"], shown["nc2_classifier"]
        shown |= _MINORITY
    known = set.intersection(*({*epoch} for record in records for epoch in record["epochs"]))
    shown = {key: titles for key, titles in shown.items() if key in known}
    columns = -(-len(shown) // 2)
    figure, axes = new_figure(columns, rows=2, width=2.9, height=2.5)
    for panel, (key, (title, logarithmic)) in zip(axes, shown.items(), strict=False):
        for head in heads_of(records):
            _curve(panel, [r for r in records if r["settings"]["head"] == head], key, head)
        if logarithmic:
            _log_axis(panel)
        panel.set_title(title)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for panel in axes[columns:]:
        panel.set_xlabel("epoch")
    _legend(figure)
    return figure


def _curve(axes: Axes, records: list[Record], key: str, head: str) -> None:
    epochs = np.array([epoch["epoch"] for epoch in records[0]["epochs"]])
    rows = [[epoch[key] for epoch in record["epochs"]] for record in records]
    values = np.array(rows, dtype=np.float64)
    known = np.isfinite(values).all(axis=0)
    if known.any():
        style, x, values = _style(head), epochs[known], values[:, known]
        # Now and then classes merge for good in one seed: a mean would show that seed alone.
        axes.plot(x, np.median(values, axis=0), **style, marker="o" if len(x) == 1 else None)
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)


def _log_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 30.0 * low:  # too few powers of ten: a few numbers in plain digits
        few = MaxNLocator(4) if high < 5.0 * low else LogLocator(subs=(1.0, 2.0, 5.0))
        axes.yaxis.set_major_locator(few)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure) -> None:
    """Name every head that some panel shows, in the order of `LABELS`."""
    drawn = [axes.get_legend_handles_labels() for axes in figure.axes]
    known = {
        label: h for handles, labels in drawn for h, label in zip(handles, labels, strict=True)
    }
    labels = [label for label in LABELS.values() if label in known]
    letters = max(len(label) for label in labels)
    columns = min(max(1, int(figure.get_figwidth() / (0.6 + 0.09 * letters))), len(labels))
    handles = [known[label] for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def imbalanced_figure(records: list[Record]) -> Figure:
    """Draw cosine and test accuracy of the minority against the imbalance, by data and split."""
    imbalanced = [record for record in records if record["groups"]]
    columns = sorted({_column(record) for record in imbalanced})
    n = len(columns)
    figure, axes = new_figure(n, rows=2, width=max(2.8, 6.4 / n), height=2.6)
    for k, (data, large, small) in enumerate(columns):
        mine = [record for record in imbalanced if _column(record) == columns[k]]
        for row, key in enumerate(_MINORITY):
            _against(axes[row * n + k], mine, key, "ratio")
        name = Path(data).stem.replace("_", " ")  # of a set, or of a file
        axes[k].set_title(f"{name}\n{large} large, {small} small", fontsize=10)
        axes[n + k].set_xlabel("imbalance R")
    axes[0].set_ylabel("minority cosine")
    axes[n].set_ylabel("test accuracy,\nminority")
    _legend(figure)
    return figure


def _column(record: Record) -> tuple[str, int, int]:
    groups = record["groups"]
    return record["settings"]["data"], len(groups["majority"]), len(groups["minority"])


def rates_figure(records: list[Record]) -> Figure:
    """Draw loss, NC1 and gain against the rate, for the other settings of the first record."""

    def fixed(record: Record) -> Record:
        free = ("head", "seed", "learning_rate")
        return {key: value for key, value in record["settings"].items() if key not in free}

    mine = [record for record in records if fixed(record) == fixed(records[0])]
    shown = ("loss", "nc1", "gain_on_means")
    figure, axes = new_figure(len(shown), width=3.4, height=2.9)
    for panel, key in zip(axes, shown, strict=True):
        title, logarithmic = _CURVES[key]
        _against(panel, mine, key, "learning_rate")
        if logarithmic:
            _log_axis(panel)
        panel.set_title(title)
        panel.set_xlabel("learning rate")
    _legend(figure)
    return figure


def _against(axes: Axes, records: list[Record], key: str, setting: str) -> None:
    """Draw means and standard errors over seeds against a number of the settings."""
    numbers = sorted({record["settings"][setting] for record in records})
    heads = heads_of(records)
    for place, head in enumerate(heads):
        points = []
        for number in numbers:
            mine = [record for record in records if record["settings"][setting] == number]
            points.append(_mean_and_error(values_by_seed(mine, head, key).values()))
        means, errors = zip(*points, strict=True)
        # Beside one another, so that error bars can be told apart.
        x = np.array(numbers) * 1.04 ** (place - (len(heads) - 1) / 2)
        axes.errorbar(x, means, errors, marker="o", ms=3.5, capsize=2, elinewidth=1, **_style(head))
    axes.set_xscale("log")
    axes.set_xticks(numbers, labels=[f"{number:g}" for number in numbers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.15)


def _mean_and_error(numbers: Iterable[float]) -> tuple[float, float]:
    values = np.array([number for number in numbers if np.isfinite(number)])
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return (values.mean() if len(values) else np.nan), error


def three_classes_figure(records: list[Record]) -> Figure:
    """Draw the features of three classes in the plane of their means, the first seed of each head.

    Stored records are without these coordinates.
    """
    records = by_settings([record for record in records if "three_classes" in record])[0]
    heads = heads_of(records)
    figure, axes = new_figure(len(heads), width=2.7, height=2.9)
    for panel, head in zip(axes, heads, strict=True):
        record = next(r for r in records if r["settings"]["head"] == head)
        content = record["three_classes"]
        points = np.array(content["points"])
        small = np.isin(content["labels"], record["groups"].get("minority", []))
        # Colours for the groups only: classes are told apart by their numbers.
        for chosen, colour in ((~small, DEEP), (small, SHALLOW)):
            panel.scatter(points[chosen, 0], points[chosen, 1], s=6, color=colour, alpha=0.35, lw=0)
        for k, mean in zip(content["classes"], content["means"], strict=True):
            panel.plot([0.0, mean[0]], [0.0, mean[1]], color=_BORDER, lw=0.6, zorder=1)
            panel.annotate(
                str(k), mean, ha="center", va="center", fontsize=8, fontweight="bold",
                bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "alpha": 0.75, "lw": 0},
            )  # fmt: skip
        first, second = content["share"]
        panel.set_xlabel(f"{first:.0%} of the means", fontsize=8)
        panel.set_ylabel(f"{second:.0%}", fontsize=8)
        panel.set_aspect("equal", adjustable="datalim")
        panel.set(xticks=[], yticks=[])
        panel.set_title(LABELS[head].replace(", ", ",\n"), fontsize=10)
    return figure

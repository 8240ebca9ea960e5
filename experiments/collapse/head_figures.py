"""Neural collapse of trained heads in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

from experiments.collapse.compare import (
    by_settings,
    heads_of,
    values_by_seed,
)
from experiments.collapse.figures import head_style
from experiments.collapse.heads import LABELS
from notsodeep.arrays import FloatArray
from notsodeep.plotting.canvas import DEEP, SHALLOW, house_style, new_figure

Record = dict[str, Any]

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
_MINORITY_CURVES = {
    "minority_cosine": ("minority cosine, classifier", False),
    "test_minority_accuracy": ("test accuracy, minority", False),
}


def balanced_figure(records: list[Record]) -> Figure:
    """Draw the curves of the first setting of ``collapse-balanced``."""
    return curves_figure(by_settings(records)[0])


def curves_figure(records: list[Record]) -> Figure:
    """Draw collapse against the epoch: for each head the median of its seeds, and their range.

    Parameters
    ----------
    records : list of dict
        Of one setting: they differ in head and seed alone.  A measure that an epoch lacks has no
        panel.
    """
    shown = dict(_CURVES)
    if any(record["groups"] for record in records):  # room for the minority
        del shown["nc4"], shown["nc2_classifier"]
        shown |= _MINORITY_CURVES
    known = set.intersection(*({*epoch} for record in records for epoch in record["epochs"]))
    shown = {key: titles for key, titles in shown.items() if key in known}
    columns = -(-len(shown) // 2)
    figure, axes = new_figure(columns, rows=2, width=2.9, height=2.5)
    with house_style():
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
    epochs = [epoch["epoch"] for epoch in records[0]["epochs"]]
    values = _numbers([[epoch[key] for epoch in record["epochs"]] for record in records])
    known = np.isfinite(values).all(axis=0)
    if not known.any():
        return
    style = head_style(head)
    x, values = np.array(epochs)[known], values[:, known]
    # Now and then classes merge for good in one seed: a mean would show that seed alone.
    middle = np.median(values, axis=0)
    axes.plot(x, middle, **style, marker="o" if len(x) == 1 else None)
    if len(records) > 1:
        axes.fill_between(
            x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0
        )


def _numbers(values: list[Any]) -> FloatArray:
    """Turn nested lists into an array, null into NaN."""
    return np.array(values, dtype=np.float64)


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
    handles = [known[label] for label in labels]
    letters = max(len(label) for label in labels)
    columns = max(1, int(figure.get_figwidth() / (0.6 + 0.09 * letters)))  # inches
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False
    )


def _first_of_each_head(records: list[Record]) -> dict[str, Record]:
    return {
        head: min(
            (r for r in records if r["settings"]["head"] == head),
            key=lambda record: record["settings"]["seed"],
        )
        for head in heads_of(records)
    }


def _wrapped(label: str) -> str:
    return label.replace(", ", ",\n")


def imbalanced_figure(records: list[Record]) -> Figure:
    """Draw the minority against the imbalance: cosine above, test accuracy below.

    A column for every data set and number of large classes; means and standard errors over seeds.

    Parameters
    ----------
    records : list of dict
        Of the experiment ``collapse-imbalanced``.
    """
    imbalanced = [record for record in records if record["groups"]]
    columns = sorted({_column(record) for record in imbalanced})
    n = len(columns)
    figure, axes = new_figure(n, rows=2, width=max(2.8, 6.4 / n), height=2.6)
    quantities = {"minority_cosine": "minority cosine", "test_minority_accuracy": "test accuracy"}
    with house_style():
        for k, column in enumerate(columns):
            mine = [record for record in imbalanced if _column(record) == column]
            for row, key in enumerate(quantities):
                _against(axes[row * n + k], mine, key, "ratio")
            data, large, small = column
            name = Path(data).stem.replace("_", " ")  # of a set, or of a file
            axes[k].set_title(f"{name}\n{large} large, {small} small", fontsize=10)
            axes[n + k].set_xlabel("imbalance R")
        for row, words in enumerate(quantities.values()):
            axes[row * n].set_ylabel(words if row == 0 else f"{words},\nminority")
        _legend(figure)
    return figure


def _column(record: Record) -> tuple[str, int, int]:
    groups = record["groups"]
    return record["settings"]["data"], len(groups["majority"]), len(groups["minority"])


def rates_figure(records: list[Record]) -> Figure:
    """Draw loss, NC1 and gain against the learning rate, for the balanced runs of one network.

    Of settings that differ in more than head, seed and rate, those of the first record are shown.

    Parameters
    ----------
    records : list of dict
        Of the experiment ``collapse-causes``.
    """

    def fixed(record: Record) -> Record:
        free = ("head", "seed", "learning_rate")
        return {key: value for key, value in record["settings"].items() if key not in free}

    mine = [record for record in records if fixed(record) == fixed(records[0])]
    shown = ("loss", "nc1", "gain_on_means")
    figure, axes = new_figure(len(shown), width=3.4, height=2.9)
    with house_style():
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
    values_of_x = sorted({record["settings"][setting] for record in records})
    heads = heads_of(records)
    for place, head in enumerate(heads):
        means, errors = [], []
        for number in values_of_x:
            mine = [record for record in records if record["settings"][setting] == number]
            values = np.array(list(values_by_seed(mine, head, key).values()))
            values = values[np.isfinite(values)]
            means.append(values.mean() if len(values) else np.nan)
            enough = len(values) > 1
            errors.append(values.std(ddof=1) / np.sqrt(len(values)) if enough else 0.0)
        # Beside one another, so that error bars can be told apart.
        x = np.array(values_of_x) * 1.04 ** (place - (len(heads) - 1) / 2)
        axes.errorbar(
            x, means, yerr=errors, marker="o", ms=3.5, capsize=2, elinewidth=1, **head_style(head)
        )
    axes.set_xscale("log")
    axes.set_xticks(values_of_x, labels=[f"{number:g}" for number in values_of_x])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.15)


def three_classes_figure(records: list[Record]) -> Figure:
    """Draw the features of three classes in the plane of their means.

    Parameters
    ----------
    records : list of dict
        Of one setting; the first seed of each head is shown.
    """
    shown = _first_of_each_head(records)
    figure, axes = new_figure(len(shown), width=2.7, height=2.9)
    with house_style():
        for panel, (head, record) in zip(axes, shown.items(), strict=True):
            _projection(panel, record)
            panel.set_title(_wrapped(LABELS[head]), fontsize=10)
    return figure


def _projection(axes: Axes, record: Record) -> None:
    content = record["three_classes"]
    points, labels = _numbers(content["points"]), np.array(content["labels"])
    minority = record["groups"].get("minority", [])
    small = np.isin(labels, minority)
    # Colours for the groups only: classes are told apart by their numbers.
    for chosen, colour in ((~small, DEEP), (small, SHALLOW)):
        axes.scatter(points[chosen, 0], points[chosen, 1], s=6, color=colour, alpha=0.35, lw=0)
    means = _numbers(content["means"])
    for k, mean in zip(content["classes"], means, strict=True):
        axes.plot([0.0, mean[0]], [0.0, mean[1]], color="#5b6270", lw=0.6, zorder=1)
        axes.annotate(
            str(k), mean, ha="center", va="center", fontsize=8, fontweight="bold",
            bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "alpha": 0.75, "lw": 0},
        )  # fmt: skip
    first, second = content["share"]
    axes.set_xlabel(f"{first:.0%} of the means", fontsize=8)
    axes.set_ylabel(f"{second:.0%}", fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])


"""The figures of one setting: how they are drawn, what they show in words, and their caption."""

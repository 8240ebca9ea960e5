"""Figures of the reproduced experiments, from their stored records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.accuracy.authors_protocol import CURVES, table
from experiments.accuracy.figure import accuracy_figure
from experiments.collapse.figures import (
    curves_figure,
    imbalanced_figure,
    kernel_figure,
    phase_figure,
    rates_figure,
    three_classes_figure,
)
from experiments.kernels.image_scalings import PAPER
from notsodeep.plotting.canvas import DEEP, MUTED, SHALLOW, house_style, new_figure, save_figure
from notsodeep.plotting.predictions import transfer
from notsodeep.prediction import Transfer

Record = dict[str, Any]
_NAMES = {"conjugate": "CK", "tangent": "NTK"}  # as in stored cells


def draw(name: str, records: list[Record], path: Path) -> Path | None:
    """Draw the figures of an experiment; those that its records were stored without are left out.

    The first goes to `path`, which is returned, others to files with a number in their names.
    """
    drawn = []
    for k, make in enumerate(_FIGURES.get(name, ()), 1):
        try:
            with house_style():
                figure = make(records)
        except (KeyError, ValueError, IndexError):
            continue
        drawn.append(save_figure(figure, path.with_stem(path.stem + f"-{k}" * (k > 1))))
    return drawn[0] if drawn else None


def _spectra(axes: Axes, curves: dict[str, tuple[list[float], str]], title: str) -> None:
    """Sorted eigenvalues of several kernels on one axis."""
    for label, (values, colour) in curves.items():
        ordered = np.sort(np.asarray(values))[::-1]
        style: dict[str, Any] = {"lw": 3.0, "alpha": 0.5} if colour == DEEP else {"lw": 1.2}
        axes.plot(np.arange(1, len(ordered) + 1), ordered, color=colour, label=label, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rank")
    axes.set_ylabel("eigenvalue")
    axes.set_title(title)
    axes.legend()


def _sphere(records: list[Record]) -> Figure:
    figure, axes = new_figure(len(records))
    for panel, record in zip(axes, records, strict=True):
        networks = record["network_eigenvalues"]
        curves = {
            "DEQ": (record["eigenvalues"], DEEP),
            "quadratic network": (networks["quadratic"], SHALLOW),
            "plain ReLU network": (networks["plain"], MUTED),
        }
        _spectra(panel, curves, _NAMES[record["cell"]["kernel"]])
    return figure


def _equivalent(records: list[Record]) -> Figure:
    figure, axes = new_figure(len(records))
    for panel, record in zip(axes, records, strict=True):
        cell = record["cell"]
        curves = {
            f"{cell['activation']} DEQ": (record["eigenvalues"], DEEP),
            "equivalent": (record["equivalent_eigenvalues"], SHALLOW),
        }
        _spectra(panel, curves, f"{cell['data']}, n = {cell['samples']}".replace("_", " "))
    return figure


def _matched(records: list[Record]) -> Figure:
    shown = [r for r in records if r["cell"]["convention"] == "feature"]
    shown = [r for r in shown if r["cell"]["layers"] == 1]
    figure, axes = new_figure(len(shown), width=3.8)
    for panel, record in zip(axes, shown, strict=True):
        cell = record["cell"]
        curves = {
            f"{cell['activation']} DEQ": (record["eigenvalues"], DEEP),
            cell["family"].replace("_", " "): (record["matched_eigenvalues"], SHALLOW),
        }
        _spectra(panel, curves, cell["data"].replace("_", " "))
    return figure


def _dimension(records: list[Record]) -> Figure:
    figure, axes = new_figure(2)
    for panel, kernel in zip(axes, ("conjugate", "tangent"), strict=True):
        for name in dict.fromkeys(record["cell"]["activation"] for record in records):
            mine = [record for record in records if record["cell"]["activation"] == name]
            sizes = sorted({record["cell"]["dimension"] for record in mine})
            groups = [
                [r[kernel]["gap"] for r in mine if r["cell"]["dimension"] == p] for p in sizes
            ]
            means = np.array([np.mean(group) for group in groups])
            spread = [means - [min(g) for g in groups], [max(g) for g in groups] - means]
            panel.errorbar(sizes, means, yerr=spread, marker="o", ms=4, lw=1.2, label=name)
        ends = np.array([sizes[0], sizes[-1]], dtype=np.float64)
        panel.plot(ends, 0.8 * means[0] * (ends / ends[0]) ** -0.5, "k:", lw=1, label="slope −1/2")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(sizes, labels=[str(p) for p in sizes])
        panel.minorticks_off()
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.set_xlabel("p")
        panel.set_ylabel("distance to the equivalent")
        panel.set_title(_NAMES[kernel])
        panel.legend(fontsize=8, loc="lower left")
    return figure


def _risks(records: list[Record]) -> Figure:
    """Draw what was measured over what was predicted, for all ridges, times and networks."""
    figure, axes = new_figure(2)
    parts = [part for record in records for part in record["networks"].values()]
    for panel, (quantity, label) in zip(
        axes, (("test_mse", "mean squared error"), ("accuracy", "accuracy")), strict=True
    ):
        for part in parts:
            predicted = part["predicted"]["resolved"][quantity]
            panel.errorbar(
                predicted, part["measured"][quantity], yerr=part["errors"][quantity],
                fmt="o", ms=2.5, lw=0.8, color=DEEP, alpha=0.5,
            )  # fmt: skip
        ends = panel.get_xlim()
        panel.plot(ends, ends, color=MUTED, lw=0.8)
        panel.set_xlabel(f"{label}, predicted")
        panel.set_ylabel("measured")
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    return figure


def _image_risks(records: list[Record]) -> Figure:
    """Draw the squared error of more images over the ridge, and what each pilot said of it."""
    figure, axes = new_figure(len(records))
    for panel, record in zip(axes, records, strict=True):
        cell = record["cell"]
        for pilot in record["pilots"]:
            panel.plot(cell["ridges"], pilot["extrapolated"]["test_mse"], color=MUTED, lw=1.0)
        measured, errors = (record["measured"][name] for name in ("test_mse", "mse_error"))
        panel.errorbar(cell["ridges"], measured, yerr=errors, fmt="o", ms=4, color=DEEP)
        panel.set_xscale("log")
        panel.set_xlabel("ridge λ")
        panel.set_ylabel("mean squared error")
        panel.set_title(f"{cell['data']}, n = {cell['samples']}")
    return figure


def _scalings(records: list[Record]) -> Figure:
    """Draw the gap to the equivalent over the root mean squared norm of the images."""
    figure, axes = new_figure(1)
    for removed, colour in ((True, DEEP), (False, MUTED)):
        points = sorted(
            (np.sqrt(record["mean_squared_norm"]), record["equivalent"]["gap"])
            for record in records
            if ("mean removed" in record["cell"]["scaling"]) == removed
        )
        label = "mean removed" if removed else "mean kept"
        norms, gaps = [point[0] for point in points], [point[1] for point in points]
        axes[0].plot(norms, gaps, "o", color=colour, label=label)
    axes[0].axhline(PAPER["equivalent"], color=SHALLOW, lw=0.8, label="the paper's gap")
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    axes[0].set_xlabel("root mean squared norm of the images")
    axes[0].set_ylabel("distance to the equivalent, tanh")
    axes[0].legend()
    return figure


def _protocols(records: list[Record]) -> Figure:
    """Draw the gap to the DEQ under every change of the protocol, at the commonest width."""
    rows = table(records)
    widths = [row["width"] for row in rows]
    shown = [row for row in rows if row["width"] == max(set(widths), key=widths.count)]
    places = list(dict.fromkeys((row["data"], row["activation"]) for row in shown))
    columns = min(2, len(places))
    figure, axes = new_figure(columns, rows=-(-len(places) // columns), width=5.0, height=2.8)
    for panel in axes[len(places) :]:
        panel.set_axis_off()
    for panel, place in zip(axes, places, strict=False):
        mine = [row for row in shown if (row["data"], row["activation"]) == place][::-1]
        for role, colour in (("matched", SHALLOW), ("plain", MUTED)):
            gaps = [np.subtract(r["accuracies"][role], r["accuracies"]["deq"]) for r in mine]
            places_y = np.arange(len(mine)) + (0.15 if role == "matched" else -0.15)
            panel.plot([np.mean(gap) for gap in gaps], places_y, "o", color=colour, label=role)
        panel.axvline(0.0, color=DEEP, lw=0.8)
        panel.set_yticks(range(len(mine)), labels=[row["change"] for row in mine])
        panel.set_xlabel("points above the DEQ")
        panel.set_title(f"{place[1]} on {place[0].replace('_', ' ')}")
    axes[0].legend()
    return figure


@house_style()
def protocol_widths_figure(records: list[Record]) -> Figure:
    """Draw accuracies against the width under the authors' protocol, as their figure 3 has them."""
    rows = table(records)
    activations = list(dict.fromkeys(row["activation"] for row in rows))
    sets = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = new_figure(len(sets), rows=len(activations), width=3.4, height=2.8)
    for k, activation in enumerate(activations):
        usual, other = CURVES[activation]
        lines = {"DEQ": (usual, "deq", DEEP, "-"), "matched": (usual, "matched", SHALLOW, "-")}
        lines |= {"plain": (usual, "plain", MUTED, "-"), other: (other, "plain", MUTED, ":")}
        for panel, data in zip(axes[k * len(sets) :], sets, strict=False):
            for label, (change, role, colour, dashes) in lines.items():
                accuracies = {
                    row["width"]: float(np.mean(row["accuracies"][role]))
                    for row in rows
                    if (row["data"], row["activation"], row["change"]) == (data, activation, change)
                }
                widths = sorted(accuracies)
                heights = [accuracies[width] for width in widths]
                panel.plot(widths, heights, dashes, marker=".", color=colour, label=label)
            panel.set_xscale("log", base=2)
            panel.set_xticks(widths[::2], labels=map(str, widths[::2]))
            panel.set_title(f"{activation} on {data.replace('_', ' ')}")
            panel.set_xlabel("width")
        axes[k * len(sets)].set_ylabel("test accuracy in %")
        axes[k * len(sets)].legend(fontsize=8)
    return figure


def _process_limit(records: list[Record]) -> Figure:
    """Draw quantiles of standardised outputs over those of the normal law."""
    figure, axes = new_figure(len(records))
    for panel, record in zip(axes, records, strict=True):
        cell, values = record["cell"], record["quantiles"]
        normal = np.linspace(-3.0, 3.0, len(values))
        panel.plot(normal, values, ".", ms=4, color=DEEP, label="outputs")
        panel.plot(normal, normal, color=MUTED, lw=0.8, label="normal law")
        panel.set_xlabel("quantile of the normal law")
        panel.set_ylabel("quantile of outputs")
        panel.set_title(f"{cell['activation']}, {cell['networks']} networks")
        panel.legend()
    return figure


def _variability(records: list[Record]) -> Figure:
    """Draw NC1 of both kernels over the dimension, at the largest size that all have."""
    sizes = [record["cell"]["samples"] for record in records]
    size = max(sorted(set(sizes), reverse=True), key=sizes.count)
    models = list(dict.fromkeys(record["cell"]["model"] for record in records))
    figure, axes = new_figure(len(models), width=3.2)
    for panel, model in zip(axes, models, strict=True):
        mine = [r for r in records if r["cell"]["model"] == model and r["cell"]["samples"] == size]
        dimensions = [record["cell"]["dimension"] for record in mine]
        for name, colour in (("relu", SHALLOW), ("erf", DEEP)):
            for kind, line in (("conjugate", "-"), ("tangent", "--")):
                means = [np.mean(record["nc1"][name][kind]) for record in mine]
                label = f"{name}, {_NAMES[kind]}"
                panel.plot(
                    dimensions, means, line, marker="o", ms=3, lw=1.2, color=colour, label=label
                )
        inputs = [np.mean(record["inputs"]) for record in mine]
        panel.plot(dimensions, inputs, ":", color=MUTED, label="inputs")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("dimension")
        panel.set_ylabel("tr S_W/tr S_B")
        panel.set_title(f"DEQ, σa² = {model:g}" if model else "one hidden layer")
    axes[0].legend(fontsize=8)
    return figure


def _transfers(records: list[Record]) -> Figure:
    """Draw losses over epochs at the DEQ's rate, at the largest σa² on the first data set."""
    cells = [record["cell"] for record in records]
    data, sigma_a2 = cells[0]["data"], max(cell["sigma_a2"] for cell in cells)
    drawn = [
        record
        for record, cell in zip(records, cells, strict=True)
        if cell["data"] == data and cell["sigma_a2"] == sigma_a2
    ]
    figure, axes = new_figure(len(drawn))
    for panel, record in zip(axes, drawn, strict=True):
        cell = record["cell"]
        transfer(Transfer.from_dict(record["transfer"]), panel)
        kernel = _NAMES[cell["kernel"]]
        panel.set_title(f"{data}, {cell['activation']}, σa² = {sigma_a2:g}, {kernel}")
    return figure


_FIGURES: dict[str, tuple[Callable[[list[Record]], Figure], ...]] = {
    "sphere-spectra": (_sphere,),
    "mixture-equivalent": (_equivalent,),
    "mixture-matched": (_matched,),
    "gap-versus-dimension": (_dimension,),
    "accuracy-versus-width": (accuracy_figure,),
    "image-scalings": (_scalings,),
    "authors-protocol": (_protocols, protocol_widths_figure),
    "gaussian-process-limit": (_process_limit,),
    "kernel-variability": (_variability,),
    "risk-predictions": (_risks,),
    "risk-on-images": (_image_risks,),
    "hyper-parameters": (_transfers,),
    "collapse-phase": (phase_figure,),
    "collapse-kernels": (kernel_figure,),
    "collapse-balanced": (curves_figure,),
    "collapse-imbalanced": (imbalanced_figure, three_classes_figure),
    "collapse-causes": (rates_figure, curves_figure),
    "collapse-features": (imbalanced_figure, curves_figure),
}
_MORE: dict[str, tuple[Callable[[list[Record]], Figure], ...]] = {
    "authors-protocol": (protocol_widths_figure,),
    "collapse-imbalanced": (three_classes_figure,),
}

"""Eigenvalues of an exact kernel with the limiting law."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from notsodeep import checks
from notsodeep.checks import FloatArray
from notsodeep.equivalents import Comparison, LimitingSpectrum
from notsodeep.report.drawing import DEEP, MUTED, SHALLOW, house_style, new_figure

_BINS = 60


def spectrum_figure(comparison: Comparison, title: str = "") -> Figure:
    """Draw the histogram of exact eigenvalues, the limiting density over it, and the spikes.

    Left the bulk, right the isolated eigenvalues as predicted and as found.

    Parameters
    ----------
    comparison : Comparison
        With a law: `compare` makes one when the population is known.
    title : str
    """
    law = comparison.law
    if law is None:
        remedy = "Pass law=limiting_spectrum(eq, population='deconvolved') to compare."
        raise checks.refusal("comparison", "spectrum_figure", "hold a limiting law", "None", remedy)
    with house_style():
        figure, axes = new_figure(2, ratios=[2.2, 1.0])
        draw_bulk(axes[0], comparison.eigenvalues, law)
        draw_spikes(axes[1], comparison)
        if title:
            figure.suptitle(title)
    return figure


def draw_bulk(axes: Axes, eigenvalues: FloatArray, law: LimitingSpectrum) -> None:
    """Draw the histogram of the eigenvalues within the bulk and the density over it."""
    place, mass = law.point_mass
    ends = np.ravel(law.support) if law.support else np.quantile(eigenvalues, [0.02, 0.98])
    low, high = min(ends[0], place if mass else np.inf), max(ends[-1], place if mass else -np.inf)
    margin = 0.08 * max(high - low, 1e-3 * abs(place) + 1e-12)
    edges = np.linspace(low - margin, high + margin, _BINS + 1)
    counts, _ = np.histogram(eigenvalues, bins=edges)
    heights = counts / (len(eigenvalues) * (edges[1] - edges[0]))
    axes.stairs(heights, edges, fill=True, color=DEEP, alpha=0.45, label="exact eigenvalues")
    for index, (left, right) in enumerate(law.support):
        # Dense near the edges, where the density rises like a square root.
        x = left + (right - left) * np.sin(np.linspace(0.0, np.pi / 2, 200)) ** 2
        label = "limiting density" if index == 0 else None
        axes.plot(x, law.density(x), color=SHALLOW, lw=1.8, label=label)
    if mass:
        axes.axvline(place, color=SHALLOW, lw=1.2, ls=":", label=f"point mass {mass:.2f}")
        inside = heights[edges[1:] > place + margin]
        if inside.size and law.support:  # the bin of the point mass would dwarf the bulk
            axes.set_ylim(0.0, 1.6 * float(inside.max()))
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.set_title("bulk")
    axes.legend(frameon=False)


def draw_spikes(axes: Axes, comparison: Comparison) -> None:
    """Draw predicted and found isolated eigenvalues side by side."""
    axes.set_title("isolated eigenvalues")
    if not comparison.spikes:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "none predicted", ha="center", color=MUTED, transform=axes.transAxes)
        return
    places = np.arange(1, len(comparison.spikes) + 1)
    found = [spike.found for spike in comparison.spikes]
    predicted = [spike.predicted for spike in comparison.spikes]
    axes.plot(places, found, "o", color=DEEP, ms=7, label="exact")
    axes.plot(places, predicted, "x", color=SHALLOW, ms=9, mew=2, label="predicted")
    axes.set_xticks(places)
    axes.set_xlim(0.5, len(places) + 0.5)
    axes.set_ylim(0.0, 1.15 * max(*found, *predicted))
    axes.set_xlabel("largest first")
    axes.legend(loc="lower left", frameon=False)

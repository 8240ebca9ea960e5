"""Spectra of a DEQ's kernel and of its network's, over the limiting law of the DEQ's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.plotting.canvas import MUTED, colours, ink
from notsodeep.plotting.matches import draw_spectra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from notsodeep.equivalents import LimitingSpectrum

_BINS = 50
_WIDE = 30.0  # ratio of the ends of a bulk from which on a linear axis shows little


def draw_twin_bulks(
    axes: Axes, deq: FloatArray, network: FloatArray, law: LimitingSpectrum | None
) -> None:
    """Draw the histograms of both kernels' eigenvalues within the bulk, and the limiting density.

    Parameters
    ----------
    axes : Axes
    deq, network : ndarray of shape (n,)
        Eigenvalues, ascending.
    law : LimitingSpectrum or None
        Of the DEQ's kernel.  If its bulk reaches over orders of magnitude, as on images, the axis
        is logarithmic.
    """
    deep, shallow = colours()
    bulk = law.support if law is not None and law.support else ((deq[0], deq[-1]),)
    if bulk[-1][1] > _WIDE * max(bulk[0][0], 0.0):
        edges = np.geomspace(*_decades(deq), _BINS + 1)
        draw_spectra(axes, edges, deq, network, _shares(law, edges))
        axes.set_title("eigenvalues")
        return
    edges = np.linspace(*_window(deq, law), _BINS + 1)
    width = edges[1] - edges[0]
    highest = 0.0
    for values, colour, label, filled in (
        (deq, deep, "DEQ", True),
        (network, shallow, "network", False),
    ):
        heights = np.histogram(values, bins=edges)[0] / (len(values) * width)
        highest = max(highest, float(np.sort(heights)[-3:].min()))
        style: dict[str, Any] = {"fill": True, "alpha": 0.45} if filled else {"lw": 1.6}
        axes.stairs(heights, edges, color=colour, label=label, **style)
    if law is not None:
        for index, (left, right) in enumerate(law.support):
            # Dense near the edges, where the density rises like a square root.
            x = left + (right - left) * np.sin(np.linspace(0.0, np.pi / 2, 120)) ** 2
            density = law.density(x)
            highest = max(highest, float(np.quantile(density, 0.9)))
            label = "limiting density" if index == 0 else "_"
            axes.plot(x, density, color=ink(), lw=1.2, label=label)
        place, mass = law.point_mass
        if mass:
            axes.axvline(place, color=ink(), lw=1.0, ls=":", label=f"point mass {mass:.2f}")
    axes.set_ylim(0.0, 1.25 * highest)  # a bin that holds a point mass would dwarf the rest
    axes.set_xlim(edges[0], edges[-1])
    axes.set_title("eigenvalues: the bulk")
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.legend()


def _decades(deq: FloatArray) -> tuple[float, float]:
    top = float(deq[-1])
    return 0.9 * max(float(deq[deq > 0.0].min(initial=top)), 1e-6 * top), 1.1 * top


def _shares(law: LimitingSpectrum | None, edges: FloatArray) -> FloatArray:
    return np.empty(0) if law is None else np.diff(law.cdf(edges))


def _window(deq: FloatArray, law: LimitingSpectrum | None) -> tuple[float, float]:
    if law is not None and law.support:
        place, mass = law.point_mass
        low, high = law.support[0][0], law.support[-1][1]
        low = min(low, place) if mass else low
    else:
        low, high = (float(q) for q in np.quantile(deq, (0.02, 0.98)))
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def draw_isolated(
    axes: Axes, deq: FloatArray, network: FloatArray, law: LimitingSpectrum | None, most: int = 8
) -> None:
    """Draw the largest eigenvalues of both kernels, and the isolated ones that the law predicts.

    Those that the law predicts below the bulk, or in a gap of it, are left out.
    """
    deep, shallow = colours()
    spikes = [] if law is None else [s for s in law.spikes if s.rank is not None and s.rank < most]
    count = min(len(deq), max(3, min(most, len(spikes) + 2)))
    places = np.arange(1, count + 1)
    axes.plot(places, deq[::-1][:count], "o", color=deep, ms=8, alpha=0.6, label="DEQ")
    axes.plot(
        places, network[::-1][:count], "o", color=shallow, ms=8, mfc="none", mew=1.8,
        label="network",
    )  # fmt: skip
    if spikes:
        ranks = [1 + s.rank for s in spikes if s.rank is not None]
        values = [spike.value for spike in spikes]
        axes.plot(ranks, values, "x", color=ink(), ms=8, mew=1.6, label="predicted")
    if law is not None and law.support:
        axes.axhline(law.support[-1][1], color=MUTED, lw=1.0, ls=":", label="edge of the bulk")
    axes.set_xticks(places)
    axes.set_xlim(0.4, count + 0.6)
    axes.set_ylim(bottom=0.0)
    axes.set_title("the largest")
    axes.set_xlabel("rank")
    axes.legend()

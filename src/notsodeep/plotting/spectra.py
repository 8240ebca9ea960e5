"""Spectra in pictures: limiting laws, exact eigenvalues, estimated densities, twins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.plotting.canvas import MUTED, axes_or_new, colours, ink, new_figure
from notsodeep.plotting.matches import draw_spectra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from notsodeep.equivalents import Comparison, LimitingSpectrum
    from notsodeep.kernel_solvers import Eigenpairs, SpectralDensity
if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from notsodeep.equivalents import LimitingSpectrum

_BINS = 60


def spectrum_figure(comparison: Comparison, title: str = "") -> Figure:
    """Draw the histogram of exact eigenvalues, the limiting density over it, and the spikes.

    Left the bulk, right the isolated eigenvalues as predicted and as found.

    Parameters
    ----------
    comparison : Comparison
        With a law: `compare` makes one when the population is known.
    title : str

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X, deq = nsd.data.sphere(40, 60, rng=0), nsd.DeepEquilibrium("normalized_relu", 0.2)
    >>> result = nsd.compare(nsd.kernel(deq, X), nsd.sphere_equivalent(deq, X))
    >>> [axes.get_title() for axes in spectrum_figure(result).axes]
    ['bulk', 'isolated eigenvalues']
    """
    law = comparison.law
    if law is None:
        remedy = "Pass law=limiting_spectrum(eq, population='deconvolved') to compare."
        raise checks.invalid("comparison", "spectrum_figure", "hold a limiting law", "None", remedy)
    figure, axes = new_figure(2, ratios=[2.2, 1.0])
    draw_bulk(axes[0], comparison.eigenvalues, law)
    draw_spikes(axes[1], comparison)
    if title:
        figure.suptitle(title)
    return figure


def comparison(record: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the eigenvalues of the exact kernel, and the limiting density if the law is known.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X, deq = nsd.data.sphere(40, 60, rng=0), nsd.DeepEquilibrium("normalized_relu", 0.2)
    >>> result = nsd.compare(nsd.kernel(deq, X), nsd.sphere_equivalent(deq, X))
    >>> comparison(result, new_figure()[1][0]).get_title()
    'bulk'
    """
    axes = axes_or_new(ax)
    draw_bulk(axes, record.eigenvalues, record.law)
    return axes


def limiting_spectrum(record: LimitingSpectrum, ax: Axes | None = None) -> Axes:
    """Draw the limiting density, its point mass as a dotted line, and spikes as triangles.

    Spikes far from the bulk are named at the edge of the panel instead.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("tanh", 0.2)
    >>> law = nsd.limiting_spectrum(nsd.sphere_equivalent(deq, nsd.data.sphere(40, 60, rng=0)))
    >>> limiting_spectrum(law, new_figure()[1][0]).get_xlabel()
    'eigenvalue'
    """
    axes = axes_or_new(ax)
    _, shallow = colours()
    place, mass = record.point_mass
    ends = [*np.ravel(record.support), *([place] if mass else [])]
    width = max(max(ends) - min(ends), 1e-3 * abs(place) + 1e-12)
    values = [spike.value for spike in record.spikes]
    near = [value for value in values if min(ends) - width < value < max(ends) + width]
    far = [value for value in values if value not in near]
    ends += near
    _draw_law(axes, record)
    if near:
        ground = np.zeros(len(near))
        axes.plot(near, ground, "^", color=shallow, ms=8, clip_on=False, label="spikes")
    if far:
        listed = ", ".join(f"{value:.4g}" for value in far)
        axes.text(
            0.98, 0.55, f"spikes outside: {listed}", ha="right", color=MUTED,
            transform=axes.transAxes,
        )  # fmt: skip
    axes.set_xlim(min(ends) - 0.08 * width, max(ends) + 0.08 * width)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.set_title("limiting spectrum")
    axes.legend()
    return axes


def spectral_density(
    record: SpectralDensity, ax: Axes | None = None, *, width: float | None = None
) -> Axes:
    """Draw an estimated density of eigenvalues with a band of two standard errors.

    Parameters
    ----------
    record : SpectralDensity
    ax : Axes, optional
    width : float, optional
        Of the Gaussian that smooths it; 2 % of the range without its extreme percents by default.

    Examples
    --------
    >>> from notsodeep.kernel_solvers import spectral_density as estimate
    >>> density = estimate(np.diag(np.linspace(0.0, 1.0, 200)), probes=5, steps=20)
    >>> spectral_density(density, new_figure()[1][0]).get_ylabel()
    'density'
    """
    axes = axes_or_new(ax)
    (deep,) = colours(1)
    shares = np.cumsum(record.weights.mean(axis=0))
    # Isolated eigenvalues would leave no room for the rest.
    low, high = record.nodes[np.searchsorted(shares, (0.01, 0.99))]
    span = float(high - low) or 1.0
    x = np.linspace(low - 0.1 * span, high + 0.1 * span, 400)
    value, error = record.density(x, 0.02 * span if width is None else width)
    axes.fill_between(x, value - 2.0 * error, value + 2.0 * error, color=deep, alpha=0.25, lw=0)
    axes.plot(x, value, color=deep)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.set_title(f"density of {record.size} eigenvalues")
    return axes


def eigenpairs(record: Eigenpairs, ax: Axes | None = None) -> Axes:
    """Draw the leading eigenvalues by rank; bars show how far the exact ones may be.

    Examples
    --------
    >>> from notsodeep.kernel_solvers import top_eigenpairs
    >>> pairs = top_eigenpairs(np.diag(np.arange(1.0, 51.0)), 3)
    >>> eigenpairs(pairs, new_figure()[1][0]).get_xlabel()
    'rank'
    """
    axes = axes_or_new(ax)
    (deep,) = colours(1)
    from matplotlib.ticker import MaxNLocator

    ranks = np.arange(1, len(record.values) + 1)
    axes.errorbar(ranks, record.values, yerr=record.residuals, fmt="o", color=deep, ms=5, capsize=2)
    if record.values.min() > 0.0:
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rank")
    axes.set_ylabel("eigenvalue")
    axes.set_title(f"leading eigenvalues{'' if record.converged else ', not converged'}")
    return axes


def draw_bulk(axes: Axes, eigenvalues: FloatArray, law: LimitingSpectrum | None) -> None:
    """Draw the histogram of the eigenvalues within the bulk and the density over it."""
    (deep,) = colours(1)
    place, mass = (0.0, 0.0) if law is None else law.point_mass
    support = () if law is None else law.support
    ends = np.ravel(support) if support else np.quantile(eigenvalues, [0.02, 0.98])
    low, high = min(ends[0], place if mass else np.inf), max(ends[-1], place if mass else -np.inf)
    margin = 0.08 * max(high - low, 1e-3 * abs(place) + 1e-12)
    edges = np.linspace(low - margin, high + margin, _BINS + 1)
    counts, _ = np.histogram(eigenvalues, bins=edges)
    heights = counts / (len(eigenvalues) * (edges[1] - edges[0]))
    axes.stairs(heights, edges, fill=True, color=deep, alpha=0.45, label="exact eigenvalues")
    if law is not None:
        _draw_law(axes, law)
    inside = heights[edges[1:] > place + margin]
    if mass and inside.size and support:  # the bin of the point mass would dwarf the bulk
        axes.set_ylim(0.0, 1.6 * float(inside.max()))
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.set_title("bulk")
    axes.legend()


def _draw_law(axes: Axes, law: LimitingSpectrum) -> None:
    _, shallow = colours()
    for index, (left, right) in enumerate(law.support):
        # Dense near the edges, where the density rises like a square root.
        x = left + (right - left) * np.sin(np.linspace(0.0, np.pi / 2, 200)) ** 2
        label = "limiting density" if index == 0 else None
        axes.plot(x, law.density(x), color=shallow, label=label)
    place, mass = law.point_mass
    if mass:
        axes.axvline(place, color=shallow, lw=1.2, ls=":", label=f"point mass {mass:.2f}")


def draw_spikes(axes: Axes, comparison: Comparison) -> None:
    """Draw predicted and found isolated eigenvalues side by side."""
    deep, shallow = colours()
    axes.set_title("isolated eigenvalues")
    if not len(comparison.spikes):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "none predicted", ha="center", color=MUTED, transform=axes.transAxes)
        return
    places = np.arange(1, len(comparison.spikes) + 1)
    predicted, found = comparison.spikes.T
    axes.plot(places, found, "o", color=deep, ms=7, label="exact")
    axes.plot(places, predicted, "x", color=shallow, ms=9, mew=2, label="predicted")
    axes.set_xticks(places)
    axes.set_xlim(0.5, len(places) + 0.5)
    axes.set_ylim(0.0, 1.15 * max(*found, *predicted))
    axes.set_xlabel("largest first")
    axes.legend(loc="lower left")


_TWIN_BINS = 50
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
        edges = np.geomspace(*_decades(deq), _TWIN_BINS + 1)
        draw_spectra(axes, edges, deq, network, _shares(law, edges))
        axes.set_title("eigenvalues")
        return
    edges = np.linspace(*_window(deq, law), _TWIN_BINS + 1)
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
    spikes = [] if law is None else [s for s in law.spikes if s.rank < most]
    count = min(len(deq), max(3, min(most, len(spikes) + 2)))
    places = np.arange(1, count + 1)
    axes.plot(places, deq[::-1][:count], "o", color=deep, ms=8, alpha=0.6, label="DEQ")
    axes.plot(
        places, network[::-1][:count], "o", color=shallow, ms=8, mfc="none", mew=1.8,
        label="network",
    )  # fmt: skip
    if spikes:
        ranks = [1 + s.rank for s in spikes]
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

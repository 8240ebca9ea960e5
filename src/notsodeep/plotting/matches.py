"""Matches, certificates and conditions in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.plotting.canvas import MUTED, axes_or_new, colours, ink, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from notsodeep.equivalents.distances import KernelDistance
    from notsodeep.matching import Certificate, Match
    from notsodeep.models import Conditions, Verdict

_STYLES = ("-", "--", ":")
_SIDE = 200  # rows of a heat map, at most
_FAILS = "#b4472c"
_WIDEST = 2.0  # value over bound at which a bar is cut off


def match(record: Match, ax: Axes | None = None) -> Axes:
    """Draw the activations of a DEQ and of its shallow network, where their arguments fall.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> found = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0, family="hard_tanh")
    >>> axes = match(found, new_figure()[1][0])
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['φ of the DEQ', 'σ of the network']
    """
    axes = axes_or_new(ax)
    _draw_match(axes, record)
    return axes


def certificate(record: Certificate, ax: Axes | None = None) -> Axes:
    """Draw the eigenvalues of the networks' kernels against those of the DEQ's, one by one.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> found = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0, family="hard_tanh")
    >>> certified = found.certify(nsd.data.sphere(40, 30, rng=0))
    >>> certificate(certified, new_figure()[1][0]).get_title()
    'eigenvalues, one by one'
    """
    axes = axes_or_new(ax)
    _draw_certificate(axes, record)
    return axes


def kernel_distance(record: KernelDistance, ax: Axes | None = None) -> Axes:
    """Draw the eigenvalues of the other kernel against those of the first, one by one.

    Examples
    --------
    >>> from notsodeep.equivalents.distances import kernel_distance as measured
    >>> record = measured(np.diag([1.0, 2.0]), np.diag([1.0, 2.1]))
    >>> kernel_distance(record, new_figure()[1][0]).get_ylabel()
    'other kernel'
    """
    axes = axes_or_new(ax)
    draw_eigenvalue_scatter(axes, record.eigenvalues, record.other_eigenvalues)
    axes.set_xlabel("kernel")
    axes.set_ylabel("other kernel")
    return axes


def match_figure(match: Match, certificate: Certificate) -> Figure:
    """Draw both activations, both spectra and the difference of the kernels.

    Parameters
    ----------
    match : Match
    certificate : Certificate
        ``match.certify(X)``.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> found = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0, family="hard_tanh")
    >>> figure = match_figure(found, found.certify(nsd.data.sphere(40, 30, rng=0)))
    >>> [axes.get_title() for axes in figure.axes]
    ['activations', 'eigenvalues, one by one', 'difference of the kernels', '']
    """
    figure, axes = new_figure(3, width=3.9)
    _draw_match(axes[0], match)
    _draw_certificate(axes[1], certificate)
    draw_difference(axes[2], certificate.difference)
    return figure


def _draw_match(axes: Axes, record: Match) -> None:
    x = np.linspace(-3.0 * record.tau0, 3.0 * record.tau0, 601)
    layers = [] if record.fitted is None else [a(x) for a in record.fitted.activations]
    draw_activations(axes, x, record.model.cell[-1].activation(x), layers)


def _draw_certificate(axes: Axes, record: Certificate) -> None:
    matched, unmatched = record.matched, record.unmatched
    draw_eigenvalue_scatter(
        axes, matched.eigenvalues, matched.other_eigenvalues, unmatched.other_eigenvalues
    )


def conditions(record: Conditions, ax: Axes | None = None) -> Axes:
    """Draw each condition's value over its bound: red ones fail, grey is undecided.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> axes = conditions(nsd.conditions(nsd.DeepEquilibrium("tanh", 0.3)), new_figure()[1][0])
    >>> [label.get_text() for label in axes.get_yticklabels()][0]
    'contraction'
    """
    verdicts = tuple(record.verdicts)
    axes = axes_or_new(ax, height=0.9 + 0.32 * len(verdicts))
    marks = {True: colours(1)[0], False: _FAILS, None: MUTED}
    for row, verdict in enumerate(verdicts):
        share, colour = _share_of_bound(verdict), marks[verdict.holds]
        axes.barh(row, share, height=0.55, color=colour, alpha=0.75)
        axes.plot(0.0, row, "o", ms=5, color=colour, clip_on=False)  # seen where the bar is not
        numbers = f"{verdict.value:.3g} / {verdict.bound:.3g}"
        axes.text(
            share + 0.04, row, numbers, va="center", fontsize="small",
            bbox={"fc": axes.get_facecolor(), "lw": 0, "pad": 0.5},
        )  # fmt: skip
    axes.axvline(1.0, color=MUTED, lw=0.8, ls=":", zorder=0.5)
    axes.set_yticks(range(len(verdicts)), labels=[verdict.name for verdict in verdicts])
    axes.invert_yaxis()
    axes.set_xlim(0.0, _WIDEST + 0.5)
    axes.set_xlabel("value / bound")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return axes


def _share_of_bound(verdict: Verdict) -> float:
    """Length of the bar: value/bound, cut off; zero where there is no such thing."""
    if verdict.value == verdict.bound or not (verdict.bound > 0.0 and verdict.value > 0.0):
        return _WIDEST if verdict.holds is False else 0.0  # also for NaN
    return min(verdict.value / verdict.bound, _WIDEST)


def draw_activations(
    axes: Axes, x: FloatArray, phi: FloatArray, layers: Sequence[FloatArray]
) -> None:
    """Draw φ of the DEQ and the σ of every layer, where their arguments fall."""
    deep, shallow = colours()
    axes.axhline(0.0, color=MUTED, lw=0.6)
    axes.axvline(0.0, color=MUTED, lw=0.6)
    axes.plot(x, phi, color=deep, label="φ of the DEQ")
    for layer, values in enumerate(layers):
        label = "σ of the network" if len(layers) == 1 else f"σ, layer {layer + 1}"
        style = _STYLES[layer % len(_STYLES)]
        axes.plot(x, values, color=shallow, ls=style, label=label)
    axes.set_title("activations")
    axes.set_xlabel("x")
    axes.legend()


def draw_eigenvalue_scatter(
    axes: Axes, deq: FloatArray, matched: FloatArray, unmatched: FloatArray | None = None
) -> None:
    """Draw the sorted eigenvalues of the networks against those of the DEQ."""
    _, shallow = colours()
    lowest = max(float(deq[deq > 0.0].min(initial=1.0)), 1e-6 * float(deq[-1]))
    span = (lowest, 1.5 * float(deq[-1]))
    axes.plot(span, span, color=MUTED, lw=0.8)
    if unmatched is not None:
        axes.plot(deq, unmatched, ".", ms=3, color=MUTED, label="unmatched")
    axes.plot(deq, matched, ".", ms=3, color=shallow, label="matched")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*span)
    axes.set_ylim(*span)
    axes.set_title("eigenvalues, one by one")
    axes.set_xlabel("DEQ")
    axes.set_ylabel("network")
    if unmatched is not None:
        axes.legend(markerscale=3.0)


def draw_difference(axes: Axes, difference: FloatArray) -> None:
    """Draw K_deq − K_matched as a heat map, means of blocks where there are many rows."""
    matrix = _reduced(difference, _SIDE)
    limit = float(np.abs(matrix).max()) or 1.0
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title("difference of the kernels")
    axes.set_xticks([])
    axes.set_yticks([])
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, shrink=0.85)


def draw_spectra(
    axes: Axes, edges: FloatArray, deq: FloatArray, matched: FloatArray, law: FloatArray
) -> None:
    """Draw the shares of eigenvalues in bins of equal ratio: DEQ, network, and the limiting law.

    `law` holds the shares that it predicts, or nothing.
    """
    deep, shallow = colours()
    highest = 0.0
    for values, colour, label, filled in (
        (deq, deep, "DEQ", True),
        (matched, shallow, "network", False),
    ):
        counts, _ = np.histogram(values, bins=edges)
        highest = max(highest, float(counts.max()) / len(values))
        style: dict[str, Any] = {"fill": True, "alpha": 0.45} if filled else {"lw": 1.6}
        axes.stairs(counts / len(values), edges, color=colour, label=label, **style)
    if law.size:
        middles = np.sqrt(edges[1:] * edges[:-1])
        axes.plot(middles, law, ".", color=ink(), ms=4, label="limiting law")
    axes.set_ylim(0.0, 1.25 * highest)  # a point mass of the law would dwarf the rest
    axes.set_xscale("log")
    axes.set_title("spectra")
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("share")
    axes.legend()


def _reduced(matrix: FloatArray, side: int) -> FloatArray:
    """Means of blocks, so that the picture has at most `side` rows."""
    step = -(-len(matrix) // side)
    kept = len(matrix) // step * step
    blocks = matrix[:kept, :kept].reshape(kept // step, step, kept // step, step)
    return np.asarray(blocks.mean(axis=(1, 3)))

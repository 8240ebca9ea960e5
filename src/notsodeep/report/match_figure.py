"""A match and its certificate in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from notsodeep.checks import FloatArray
from notsodeep.matching import Certificate, Match
from notsodeep.report.drawing import DEEP, MUTED, SHALLOW, new_figure

_STYLES = ("-", "--", ":")
_SIDE = 200  # rows of a heat map, at most


def match_figure(match: Match, certificate: Certificate) -> Figure:
    """Draw both activations, both spectra and the difference of the kernels.

    Parameters
    ----------
    match : Match
    certificate : Certificate
        ``match.certify(X)``.
    """
    figure, axes = new_figure(3, width=3.9)
    x = np.linspace(-3.0 * match.tau0, 3.0 * match.tau0, 601)
    draw_activations(axes[0], x, match.deq.activation(x), [a(x) for a in match.network.activations])
    matched, baseline = certificate.matched, certificate.baseline
    draw_eigenvalue_scatter(
        axes[1], matched.eigenvalues, matched.other_eigenvalues, baseline.other_eigenvalues
    )
    draw_difference(axes[2], certificate.difference)
    return figure


def draw_activations(
    axes: Axes, x: FloatArray, phi: FloatArray, layers: Sequence[FloatArray]
) -> None:
    """Draw φ of the DEQ and the σ of every layer, where their arguments fall."""
    axes.axhline(0.0, color=MUTED, lw=0.6)
    axes.axvline(0.0, color=MUTED, lw=0.6)
    axes.plot(x, phi, color=DEEP, lw=2.0, label="φ of the DEQ")
    for layer, values in enumerate(layers):
        label = "σ of the network" if len(layers) == 1 else f"σ, layer {layer + 1}"
        style = _STYLES[layer % len(_STYLES)]
        axes.plot(x, values, color=SHALLOW, lw=2.0, ls=style, label=label)
    axes.set_title("activations")
    axes.set_xlabel("x")
    axes.legend(frameon=False)


def draw_eigenvalue_scatter(
    axes: Axes, deq: FloatArray, matched: FloatArray, unmatched: FloatArray
) -> None:
    """Draw the sorted eigenvalues of the networks against those of the DEQ."""
    lowest = max(float(deq[deq > 0.0].min(initial=1.0)), 1e-6 * float(deq[-1]))
    span = (lowest, 1.5 * float(deq[-1]))
    axes.plot(span, span, color=MUTED, lw=0.8)
    for values, colour, label in ((unmatched, MUTED, "unmatched"), (matched, SHALLOW, "matched")):
        axes.plot(deq, values, ".", ms=3, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*span)
    axes.set_ylim(*span)
    axes.set_title("eigenvalues, one by one")
    axes.set_xlabel("DEQ")
    axes.set_ylabel("network")
    axes.legend(frameon=False)


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
    highest = 0.0
    for values, colour, label, filled in (
        (deq, DEEP, "DEQ", True),
        (matched, SHALLOW, "network", False),
    ):
        counts, _ = np.histogram(values, bins=edges)
        highest = max(highest, float(counts.max()) / len(values))
        style: dict[str, Any] = {"fill": True, "alpha": 0.45} if filled else {"lw": 1.6}
        axes.stairs(counts / len(values), edges, color=colour, label=label, **style)
    if law.size:
        middles = np.sqrt(edges[1:] * edges[:-1])
        axes.plot(middles, law, "k.", ms=4, label="limiting law")
    axes.set_ylim(0.0, 1.25 * highest)  # a point mass of the law would dwarf the rest
    axes.set_xscale("log")
    axes.set_title("spectra")
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("share")
    axes.legend(frameon=False)


def _reduced(matrix: FloatArray, side: int) -> FloatArray:
    """Means of blocks, so that the picture has at most `side` rows."""
    step = -(-len(matrix) // side)
    kept = len(matrix) // step * step
    blocks = matrix[:kept, :kept].reshape(kept // step, step, kept // step, step)
    return np.asarray(blocks.mean(axis=(1, 3)))

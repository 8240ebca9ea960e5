"""A match and its certificate in one picture."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from notsodeep.checks import FloatArray
from notsodeep.matching import Certificate, Match
from notsodeep.report.drawing import DEEP, MUTED, SHALLOW, new_figure


def match_figure(match: Match, certificate: Certificate) -> Figure:
    """Draw both activations, both spectra and the difference of the kernels.

    Parameters
    ----------
    match : Match
    certificate : Certificate
        ``match.certify(X)``.
    """
    figure, axes = new_figure(3, width=3.9)
    draw_activations(axes[0], match)
    draw_eigenvalue_scatter(axes[1], certificate)
    draw_difference(axes[2], certificate)
    return figure


def draw_activations(axes: Axes, match: Match) -> None:
    """Draw φ of the DEQ and the σ of every layer where their arguments fall: three scales."""
    reach = 3.0 * match.tau0
    x = np.linspace(-reach, reach, 601)
    axes.axhline(0.0, color=MUTED, lw=0.6)
    axes.axvline(0.0, color=MUTED, lw=0.6)
    axes.plot(x, match.deq.activation(x), color=DEEP, lw=2.0, label="φ of the DEQ")
    styles = ("-", "--", ":")
    for layer, activation in enumerate(match.network.activations):
        label = "σ of the network" if match.network.depth == 1 else f"σ, layer {layer + 1}"
        style = styles[layer % len(styles)]
        axes.plot(x, activation(x), color=SHALLOW, lw=2.0, ls=style, label=label)
    axes.set_title("activations")
    axes.set_xlabel("x")
    axes.legend(frameon=False)


def draw_eigenvalue_scatter(axes: Axes, certificate: Certificate) -> None:
    """Draw the sorted eigenvalues of the networks against those of the DEQ."""
    deq = certificate.matched.eigenvalues
    lowest = max(float(deq[deq > 0.0].min(initial=1.0)), 1e-6 * float(deq[-1]))
    span = (lowest, 1.5 * float(deq[-1]))
    axes.plot(span, span, color=MUTED, lw=0.8)
    sides = (
        (certificate.baseline.other_eigenvalues, MUTED, "unmatched"),
        (certificate.matched.other_eigenvalues, SHALLOW, "matched"),
    )
    for values, colour, label in sides:
        axes.plot(deq, values, ".", ms=3, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*span)
    axes.set_ylim(*span)
    axes.set_title("eigenvalues")
    axes.set_xlabel("DEQ")
    axes.set_ylabel("network")
    axes.legend(frameon=False)


def draw_difference(axes: Axes, certificate: Certificate) -> None:
    """Draw K_deq − K_matched as a heat map, block means where there are many rows."""
    matrix = _reduced(certificate.difference, 200)
    limit = float(np.abs(matrix).max()) or 1.0
    image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(f"difference, {certificate.matched.relative_gap:.2%} of the norm")
    axes.set_xticks([])
    axes.set_yticks([])
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, shrink=0.85)


def _reduced(matrix: FloatArray, side: int) -> FloatArray:
    """Means of blocks, so that the picture has at most `side` rows."""
    step = -(-len(matrix) // side)
    kept = len(matrix) // step * step
    blocks = matrix[:kept, :kept].reshape(kept // step, step, kept // step, step)
    return np.asarray(blocks.mean(axis=(1, 3)))

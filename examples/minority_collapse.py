"""How imbalance merges the classifiers of small classes, and what a head with more gain does to it.

Run ``python examples/minority_collapse.py [--out minority_collapse.png]``; a few seconds.

Left, the optimal classifier vectors of three classes, which lie in a plane: a simplex when classes
are balanced, and two minority vectors that close up as the majority grows.  Right, the cosine of
the minority vectors against the imbalance, for heads with the same spectral budget.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from notsodeep.arrays import FloatArray
from notsodeep.collapse import layer_peeled, minority_collapse_threshold
from notsodeep.plotting import MUTED, house_style, new_figure, save_figure

HEADS = {"explicit": "#8a8f98", "plain": "#d9822b", "residual": "#5a9367", "deq": "#3b6ea8"}
BUDGET, SPECTRAL = 1.5, 0.5


def in_the_plane(W: FloatArray) -> FloatArray:
    """Turn three vectors of rank two into the plane, the first one upwards."""
    flat = np.linalg.svd(W)[0][:, :2] * np.linalg.svd(W)[1][:2]
    up = flat[0] / np.linalg.norm(flat[0])
    turned = flat @ np.array([[up[1], up[0]], [-up[0], up[1]]])
    return turned if turned[1, 0] > turned[2, 0] else turned * [-1.0, 1.0]


def draw_vectors(axes: Axes) -> None:
    """Draw the classifier of one majority and two minority classes."""
    for ratio, shade, side in ((1, 1.0, 1), (10, 0.7, 2), (50, 0.5, 1)):
        optimum = layer_peeled([ratio, 1, 1], budget=BUDGET)
        vectors = in_the_plane(optimum.classifier)
        for k, (x, y) in enumerate(vectors):
            colour = HEADS["deq"] if k == 0 else HEADS["plain"]
            axes.plot([0, x], [0, y], "o-", color=colour, alpha=shade, ms=4)
        x, y = 1.08 * vectors[side]
        align = "left" if side == 1 else "right"
        axes.text(x, y, f"R = {ratio}", color=HEADS["plain"], va="top", ha=align)
    axes.text(0.08, vectors[0, 1], "majority", color=HEADS["deq"], va="top")
    axes.set_aspect("equal")
    axes.set_title("classifiers of three classes")
    axes.set_axis_off()
    axes.margins(0.15)


def draw_cosines(axes: Axes) -> None:
    """Draw the minority cosine of two majority and two minority classes, head by head."""
    for head, colour in HEADS.items():
        spectral = None if head == "plain" else SPECTRAL
        options = {"budget": BUDGET, "head": head, "spectral_budget": spectral}
        threshold = minority_collapse_threshold(num_majority=2, num_minority=2, **options)
        print(f"{head:9s} minority classifiers coincide from R* = {threshold.ratio:.4g} on")
        ratios = np.geomspace(1.02, threshold.ratio, 20)
        cosines = [layer_peeled([r, r, 1, 1], **options).minority_cosine for r in ratios]
        axes.semilogx([*ratios, 1000.0], [*cosines, 1.0], color=colour)
        axes.axvline(threshold.ratio, color=colour, ls=":", lw=1.0)
        axes.text(threshold.ratio, 1.05, head, color=colour, ha="center")
    axes.axhline(-1 / 3, color=MUTED, lw=0.6)
    axes.text(900.0, -1 / 3 - 0.02, "simplex", color=MUTED, ha="right", va="top")
    axes.set_ylim(-0.45, 1.15)
    axes.set_xlim(1.0, 1000.0)
    axes.set_xlabel("imbalance R")
    axes.set_ylabel("cosine of minority classifiers")
    axes.set_title(f"heads of norm ≤ {SPECTRAL}; dotted: R*")


def main(out: str | Path = "minority_collapse.png") -> Path:
    """Solve the layer-peeled model along the imbalance, and draw."""
    with house_style():
        figure, (left, right) = new_figure(2, width=4.4, height=3.6)
        draw_vectors(left)
        draw_cosines(right)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="minority_collapse.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")

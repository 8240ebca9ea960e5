"""The phase diagram of minority collapse with one point on it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from notsodeep.plotting.canvas import house_style, new_figure
from notsodeep.report.collapse_figures import draw_phase_diagram


def phase_point_figure(records: list[dict[str, Any]], ratio: float, gain: float) -> Figure:
    """Draw minority cosines over imbalance and gain, and mark where one head stands.

    Parameters
    ----------
    records : list of dict
        Rows of the diagram, as the experiment ``collapse-phase`` computes them.
    ratio, gain : float
        The point; outside the diagram it is drawn on its border.
    """
    figure, (axes,) = new_figure(1, width=4.6, height=4.0)
    with house_style():
        mesh = draw_phase_diagram(axes, records, named_heads=False)
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        x, y = min(max(ratio, left), right), min(max(gain, low), high)
        axes.plot(x, y, "o", ms=11, mfc="none", mec="white", mew=3.5, clip_on=False)
        axes.plot(x, y, "o", ms=11, mfc="none", mec="#b4472c", mew=2.0, clip_on=False)
        axes.set_ylabel("gain of the head")
        axes.set_title("minority cosine, and the threshold R*")
        figure.colorbar(mesh, ax=axes)
    return figure

"""What all figures share: canvas, colours, and how they are written."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from matplotlib import rcParams, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from notsodeep.files.atomic_files import atomic_write
from notsodeep.report.colours import DEEP, MUTED, SHALLOW

__all__ = [
    "DEEP",
    "MUTED",
    "SHALLOW",
    "house_style",
    "new_figure",
    "save_figure",
    "svg_text",
]

_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "notsodeep",
}


def house_style() -> AbstractContextManager[None]:
    """Return the style figures are drawn in, whatever the user's own is.

    To switch takes milliseconds: within the style, which its salt gives away, nothing is done.
    """
    if rcParams["svg.hashsalt"] == _STYLE["svg.hashsalt"]:
        return nullcontext()
    return style.context(["default", _STYLE])


def new_figure(
    panels: int = 1,
    *,
    rows: int = 1,
    width: float = 4.2,
    height: float = 3.2,
    ratios: list[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels side by side, without pyplot; draw on it in `house_style`.

    With several `rows`, the panels of one follow those of the other.
    """
    with house_style():
        figure = Figure(figsize=(width * panels, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, panels, squeeze=False, width_ratios=ratios)
    return figure, list(axes.flat)


def svg_text(figure: Figure) -> str:
    """Return the figure as SVG, the same bytes every time."""
    buffer = io.StringIO()
    with house_style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure; the format is that of the file's ending."""
    target = Path(path)
    with house_style(), atomic_write(target) as stream:
        figure.savefig(
            stream,
            format=target.suffix.lstrip(".") or "svg",
            dpi=150,
            metadata={"Date": None} if target.suffix == ".svg" else None,
        )
    return target

"""What all figures share: axes, colours, and how they are written.

Matplotlib is imported where it is used: it is an extra, and takes a second.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notsodeep import extras
from notsodeep.files.atomic_files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEEP = "#3b6ea8"
"""Colour of the deep equilibrium model and of what was measured."""
SHALLOW = "#d9822b"
"""Colour of the explicit network and of what was predicted."""
MUTED = "#8a8f98"
"""Colour of what is there for comparison."""

_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "notsodeep",
}
_INK = "#d5d9e0"
# Matplotlib writes black and white as styles of the elements, which only !important overrules;
# text has no colour of its own, and takes that of the root.
_DARK = f"""<style>@media (prefers-color-scheme: dark) {{
svg {{ fill: {_INK}; }}
[style*="stroke: #000000"] {{ stroke: {_INK} !important; }}
[style*="fill: #000000"] {{ fill: {_INK} !important; }}
[style*="fill: #ffffff"] {{ fill: none !important; }}
}}</style>"""


def require_matplotlib() -> None:
    """Raise `MissingPackage`, with the command that installs it, if Matplotlib is not there."""
    extras.require("A figure", "matplotlib")


def house_style() -> AbstractContextManager[None]:
    """Return the style figures are drawn in, whatever the user's own is.

    To switch takes milliseconds: within the style, which its salt gives away, nothing is done.

    Examples
    --------
    >>> with house_style():
    ...     figure, axes = new_figure(2)
    >>> len(axes)
    2
    """
    require_matplotlib()
    from matplotlib import rcParams, style

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

    Examples
    --------
    >>> figure, (left, right) = new_figure(2, width=3.0)
    >>> float(figure.get_figwidth())
    6.0
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(width * panels, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, panels, squeeze=False, width_ratios=ratios)
    return figure, list(axes.flat)


def axes_or_new(ax: Axes | None, width: float = 4.6, height: float = 3.4) -> Axes:
    """Return the axes that were given, or those of a new figure of pyplot, which notebooks show."""
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    with house_style():
        return plt.subplots(figsize=(width, height), layout="constrained")[1]


def svg_text(figure: Figure) -> str:
    """Return the figure as SVG, the same bytes every time.

    Examples
    --------
    >>> svg_text(new_figure()[0]).count("</svg>")
    1
    """
    buffer = io.StringIO()
    with house_style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def themed_svg(svg: str) -> str:
    """Return a figure of the house style that turns its black and white over on a dark page.

    Shown as an image it follows the colour scheme of the place where it is shown.

    Examples
    --------
    >>> "prefers-color-scheme: dark" in themed_svg(svg_text(new_figure()[0]))
    True
    """
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}\n{_DARK}{svg[end:]}"


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure; the format is that of the file's ending.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save_figure(new_figure()[0], f"{directory}/empty.png").name
    'empty.png'
    """
    target = Path(path)
    with house_style(), atomic_write(target) as stream:
        figure.savefig(
            stream,
            format=target.suffix.lstrip(".") or "svg",
            dpi=150,
            metadata={"Date": None} if target.suffix == ".svg" else None,
        )
    return target

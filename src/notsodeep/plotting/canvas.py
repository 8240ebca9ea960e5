"""What all figures share: axes, colours, and how they are written.

Figures are drawn in the style that is in force, the user's; our own pages enter `house_style`.
Matplotlib is imported where it is used: it is an extra, and takes a second.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from notsodeep import extras
from notsodeep._files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEEP = "#3b6ea8"
"""Colour of the deep equilibrium model and of what was measured, in the house style."""
SHALLOW = "#d9822b"
"""Colour of the explicit network and of what was predicted, in the house style."""
MUTED = "#8a8f98"
"""Colour of what is there for comparison: a grey that is seen on light and on dark."""

_CYCLE = (DEEP, SHALLOW, "#4d8f5b", "#8d5a97", "#b4472c")
_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
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


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the style of our own pages, whatever the user's own is; also a decorator.

    To switch takes milliseconds: within the style, which its salt gives away, nothing is done.

    Examples
    --------
    >>> with house_style():
    ...     figure, axes = new_figure(2)
    >>> len(axes)
    2
    """
    require_matplotlib()
    from cycler import cycler
    from matplotlib import rcParams, style

    if rcParams["svg.hashsalt"] == _STYLE["svg.hashsalt"]:
        yield
        return
    with style.context(["default", {**_STYLE, "axes.prop_cycle": cycler(color=_CYCLE)}]):
        yield


def colours(count: int = 2) -> list[str]:
    """Return the first colours of the cycle in force: deep, shallow, and others.

    A cycle that has fewer is filled up with those of the house style.

    Examples
    --------
    >>> with house_style():
    ...     colours() == [DEEP, SHALLOW]
    True
    """
    require_matplotlib()
    from matplotlib import rcParams

    own = rcParams["axes.prop_cycle"].by_key().get("color", [])
    return [*own, *_CYCLE[len(own) :]][:count]


def ink() -> str:
    """Return the colour of text in the style in force."""
    from matplotlib import rcParams

    return str(rcParams["text.color"])


def new_figure(
    panels: int = 1,
    *,
    rows: int = 1,
    width: float = 4.2,
    height: float = 3.2,
    ratios: list[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels side by side, without pyplot.

    With several `rows`, the panels of one follow those of the other.

    Examples
    --------
    >>> figure, (left, right) = new_figure(2, width=3.0)
    >>> float(figure.get_figwidth())
    6.0
    """
    figure = blank_figure(width * panels, height * rows)
    axes = figure.subplots(rows, panels, squeeze=False, width_ratios=ratios)
    return figure, list(axes.flat)


def blank_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Make a figure without axes, in inches; notebooks show it, though pyplot does not know it."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    figure = Shown(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def axes_or_new(ax: Axes | None, height: float | None = None) -> Axes:
    """Return the axes that were given, or those of a new figure of pyplot, which notebooks show.

    `height` is the least that the figure should have, in inches.
    """
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(layout="constrained")
    if height is not None:
        figure.set_figheight(max(height, figure.get_figheight()))
    return axes


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

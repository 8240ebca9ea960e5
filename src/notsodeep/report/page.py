"""HTML pages: one file each, with everything in it and every value escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure

from notsodeep import __version__
from notsodeep.files import atomic_write
from notsodeep.plotting.canvas import svg_text

NAME = "report.html"
"""File of a run's page, in the directory of the run."""


def write_page(path: str | Path, template: str, content: Mapping[str, Any]) -> Path:
    """Fill a template with content, and write it.

    Parameters
    ----------
    path : path
    template : str
        File in ``templates``, an extension of ``base.html``.
    content : Mapping
        Values of the template; `title` is on every page.
    """
    environment = Environment(
        loader=PackageLoader("notsodeep.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    today = datetime.now(UTC).date().isoformat()
    written = {"version": __version__, "date": today}
    page = environment.get_template(template).render({**content, **written})
    target = Path(path)
    with atomic_write(target) as stream:
        stream.write(page.encode())
    return target


def inline_figure(figure: Figure, index: int, alt: str, caption: str) -> dict[str, Any]:
    """Return a figure for the template ``figures.html``.

    Parameters
    ----------
    figure : Figure
    index : int
        Number of the figure on its page, which makes its ids unique there.
    alt : str
        What it shows, for those who do not see it.
    caption : str
    """
    svg = _inline(svg_text(figure), f"figure{index}-")
    return {"svg": Markup(svg), "alt": alt, "caption": caption}


def _inline(svg: str, prefix: str) -> str:
    """Take an SVG file into a page: without its header, ids made unique on the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{prefix}{m.group(1)}"', body)
    body = re.sub(r'="#([^"]+)"', lambda m: f'="#{prefix}{m.group(1)}"', body)
    return re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{prefix}{m.group(1)})", body)

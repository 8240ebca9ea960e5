"""Figures that fit a light page and a dark one."""

from __future__ import annotations

_INK = "#d5d9e0"

# Matplotlib writes black and white as styles of the elements, which only !important overrules;
# text has no colour of its own, and takes that of the root.
_DARK = f"""<style>@media (prefers-color-scheme: dark) {{
svg {{ fill: {_INK}; }}
[style*="stroke: #000000"] {{ stroke: {_INK} !important; }}
[style*="fill: #000000"] {{ fill: {_INK} !important; }}
[style*="fill: #ffffff"] {{ fill: none !important; }}
}}</style>"""


def themed_svg(svg: str) -> str:
    """Return a figure of the house style that turns its black and white over on a dark page.

    Shown as an image it follows the colour scheme of the place where it is shown.
    """
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}\n{_DARK}{svg[end:]}"

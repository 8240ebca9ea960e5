"""Parts that the pages share."""

from __future__ import annotations

import base64
import html
import string

import streamlit as st

from notsodeep.plotting.canvas import themed_svg


def plain(text: object) -> str:
    """Return text that Markdown shows as it is.

    Streamlit reads nearly all text as Markdown, and messages quote what people typed.
    """
    words = " ".join(str(text).split("\n"))
    return "".join(f"\\{c}" if c in string.punctuation else c for c in words)


def show_error(error: Exception) -> None:
    """Tell why something cannot be shown, where it would be."""
    st.error(plain(error), icon=":material/error:")


def show_figure(svg: str, alt: str) -> None:
    """Show a figure as wide as its place, in the colours of the page."""
    picture = base64.b64encode(themed_svg(svg).encode()).decode()
    words = html.escape(alt, quote=True)
    st.html(
        f'<img alt="{words}" src="data:image/svg+xml;base64,{picture}" '
        'style="width:100%;height:auto;display:block">'
    )


def show_table(rows: list[dict[str, str]]) -> None:
    """Show records as a table; nothing for none.

    As Markdown, which unlike Streamlit's own table needs neither pandas nor Arrow.
    """
    if not rows:
        return
    lines = [[*rows[0]], ["---"] * len(rows[0])]
    lines += [[plain(cell) for cell in row.values()] for row in rows]
    st.markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def show_problems(problems: list[str]) -> None:
    """Tell what of a link could not be used."""
    for problem in problems:
        st.warning(f"{plain(problem)} The default is used.", icon=":material/link_off:")

"""What Streamlit runs: ``streamlit run script.py -- DIRECTORY_OF_RUNS``."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

from notsodeep.app.collapse_page import collapse_page
from notsodeep.app.explorer_page import explorer_page
from notsodeep.app.runs_page import runs_page

# Less room above the headings than Streamlit leaves, which a small screen has not to spare.
_STYLE = "<style>[data-testid='stMainBlockContainer'] { padding-top: 3.5rem; }</style>"


def main(runs: Path) -> None:
    """Show the page that the link names."""
    st.set_page_config(page_title="notsodeep explorer", page_icon="🔭", layout="wide")
    st.html(_STYLE)

    def stored() -> None:
        runs_page(runs)

    pages = [
        st.Page(explorer_page, title="Equivalence", icon=":material/tune:", default=True),
        st.Page(
            collapse_page, title="Collapse", icon=":material/scatter_plot:", url_path="collapse"
        ),
        st.Page(stored, title="Stored runs", icon=":material/folder_open:", url_path="runs"),
    ]
    st.navigation(pages, position="top").run()


main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs"))

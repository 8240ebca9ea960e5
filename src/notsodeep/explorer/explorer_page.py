"""The first page: a DEQ, data, and the network that is matched to it."""

from __future__ import annotations

import streamlit as st

from notsodeep.explorer.explorer_controls import controls
from notsodeep.explorer.page_parts import show_problems
from notsodeep.explorer.page_state import PageState
from notsodeep.explorer.state import ExplorerState


def explorer_page() -> None:
    """Show the page."""
    page = PageState(ExplorerState, "explorer")
    state, upload = controls(page)
    st.header("See the equivalence move", anchor=False)
    show_problems(page.problems)
    # The first time this import takes seconds, and a person has the controls meanwhile.
    from notsodeep.explorer.explorer_results import show_results

    show_results(state, upload)

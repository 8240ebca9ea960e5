"""What Streamlit runs: ``streamlit run script.py``."""

from __future__ import annotations

import streamlit as st

# Less room above the headings than Streamlit leaves, which a small screen has not to spare.
_STYLE = "<style>[data-testid='stMainBlockContainer'] { padding-top: 3.5rem; }</style>"


# A page imports what it needs when it is opened, so that the first one is soon there.
def _equivalence() -> None:
    from notsodeep.explorer.explorer_page import explorer_page

    explorer_page()


def _prediction() -> None:
    from notsodeep.explorer.prediction_page import prediction_page

    prediction_page()


def _trained() -> None:
    from notsodeep.explorer.trained_page import trained_page

    trained_page()


def main() -> None:
    """Show the page that the link names."""
    st.set_page_config(page_title="notsodeep explorer", page_icon="🔭", layout="wide")
    st.html(_STYLE)

    pages = [
        st.Page(_equivalence, title="Equivalence", icon=":material/tune:", default=True),
        st.Page(_trained, title="Trained", icon=":material/network_node:", url_path="trained"),
        st.Page(
            _prediction, title="Before training", icon=":material/query_stats:", url_path="predict"
        ),
    ]
    st.navigation(pages, position="top").run()


main()

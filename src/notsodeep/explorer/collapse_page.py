"""The second page: when minority classifiers merge, in the layer-peeled model."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st
from matplotlib.figure import Figure

from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.collapse_view import (
    CollapseView,
    collapse_view,
    diagram_key,
    diagram_records,
    words,
)
from notsodeep.explorer.drawings import svg_of
from notsodeep.explorer.page_parts import plain, show_error, show_figure, show_problems
from notsodeep.explorer.page_state import PageState
from notsodeep.explorer.state import CollapseState
from notsodeep.plotting.class_geometry import simplex_figure
from notsodeep.report.collapse_figures import phase_point_figure

_HEADS = {
    "plain": "none: z = h",
    "explicit": "explicit: z = M h",
    "residual": "residual: z = h + M h",
    "deq": "DEQ: z = A z + h",
}


@st.cache_resource(max_entries=16, show_spinner="Solving the layer-peeled model on a grid …")
def _records(key: tuple[int, int, float, str]) -> list[dict[str, Any]]:
    return diagram_records(*key)


@st.cache_resource(max_entries=64, show_spinner=False)
def _view(state: CollapseState) -> CollapseView:
    return collapse_view(state)


def collapse_page() -> None:
    """Show the page."""
    page = PageState(CollapseState, "collapse")
    state = _controls(page)
    st.header("When minority classes merge", anchor=False)
    st.caption(
        "The layer-peeled model: the best classifiers and features within a budget, for K_A large "
        "and K_B small classes, R = n_A/n_B. A head counts by its gain alone."
    )
    show_problems(page.problems)
    try:
        view = _view(state)
    except (NotSoDeepError, MemoryError) as error:
        show_error(error)
        return
    told, collapsed = words(state, view)
    (st.warning if collapsed else st.success)(plain(told))
    _numbers(view)
    left, right = st.columns(2)
    with right:
        _geometry(state, view)
    with left:  # last, since it takes seconds where the rest is there at once
        _diagram(state, view)


def _diagram(state: CollapseState, view: CollapseView) -> None:
    try:
        records = _records(diagram_key(state))
    except NotSoDeepError as error:
        show_error(error)
        return
    figure = svg_of(lambda: phase_point_figure(records, state.imbalance, view.optimum.gain))
    show_figure(figure, "Minority cosine over imbalance and gain, with the chosen point.")
    _download(figure, "phase.svg")


def _controls(page: PageState[CollapseState]) -> CollapseState:
    with st.sidebar:
        for name, label in (("majority", "large classes K_A"), ("minority", "small classes K_B")):
            rule = page.rule(name)
            st.slider(label, rule.least, rule.most, key=page.widget(name))
        rule = page.rule("ratio")
        st.slider("imbalance, log₁₀ R", rule.least, rule.most, step=0.05, key=page.widget("ratio"))
        st.selectbox(
            "head",
            page.rule("head").options,
            key=page.widget("head"),
            format_func=_HEADS.__getitem__,
        )
        if st.session_state[page.widget("head")] != "plain":
            rule = page.rule("spectral_budget")
            st.slider(
                "spectral budget of the head", rule.least, rule.most, step=0.05,
                key=page.widget("spectral_budget"), help="Bound on ‖M‖ or ‖A‖.",
            )  # fmt: skip
        rule = page.rule("budget")
        st.slider("budget √(E_W E_H)", rule.least, rule.most, step=0.1, key=page.widget("budget"))
        st.selectbox(
            "features are counted", page.rule("feature_budget").options,
            key=page.widget("feature_budget"), format_func="by {}".format,
        )  # fmt: skip
    return page.read()


def _numbers(view: CollapseView) -> None:
    optimum = view.optimum
    cosine = "–" if optimum.minority_cosine is None else f"{optimum.minority_cosine:.4f}"
    distance = view.distance_to_etf
    cells = st.columns(5)
    cells[0].metric("minority cosine", cosine)
    cells[1].metric("gain of the head", f"{optimum.gain:.3f}")
    cells[2].metric("loss", f"{optimum.loss:.4g}")
    cells[3].metric("distance to an ETF", "–" if distance is None else f"{distance:.4f}")
    cells[4].metric("rank of the logits", str(optimum.rank))
    st.caption(plain(f"{optimum.certificate}. {view.threshold_note}"))


def _geometry(state: CollapseState, view: CollapseView) -> None:
    classifier = view.optimum.classifier
    if len(classifier) != 4 or view.distance_to_etf is None:
        st.info("With K_A + K_B = 4 classes the classifiers are shown here, in three dimensions.")
        return
    minority = np.arange(4) >= state.majority

    def make() -> Figure:
        return simplex_figure(classifier, minority)

    figure = svg_of(make)
    show_figure(figure, "The four classifiers in space, with the nearest simplex.")
    _download(figure, "classifiers.svg")


def _download(figure: str, name: str) -> None:
    st.download_button(f"Figure (SVG): {name}", figure, name, "image/svg+xml", on_click="ignore")

"""The second page: when minority classifiers merge, in the layer-peeled model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import streamlit as st
from matplotlib.figure import Figure

from notsodeep.collapse import (
    CollapseThreshold,
    LayerPeeledOptimum,
    layer_peeled,
    minority_collapse_threshold,
    nearest_etf,
)
from notsodeep.collapse.certificate import FeatureBudget
from notsodeep.collapse.heads import Head
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.drawings import svg_of
from notsodeep.explorer.page_state import PageState, plain, show_error, show_figure, show_problems
from notsodeep.explorer.state import CollapseState
from notsodeep.papers.reproduction import experiment
from notsodeep.plotting.class_geometry import simplex_figure
from notsodeep.report.collapse_figures import phase_point_figure

_GAINS, _RATIOS = 13, 25  # of the diagram


@dataclass(frozen=True, eq=False)
class CollapseView:
    """The optimum at the chosen point, and the threshold for its gain.

    Attributes
    ----------
    optimum : LayerPeeledOptimum
    threshold : CollapseThreshold or None
        None if there is none that floats can follow.
    threshold_note : str
        Why.
    """

    optimum: LayerPeeledOptimum
    threshold: CollapseThreshold | None
    threshold_note: str

    @property
    def distance_to_etf(self) -> float | None:
        """How far the classifiers are from a simplex ETF; None if they are all equal."""
        try:
            return nearest_etf(self.optimum.classifier).distance
        except NotSoDeepError:
            return None


def collapse_view(state: CollapseState) -> CollapseView:
    """Solve the layer-peeled model at the chosen point."""
    head = cast(Head, state.head)
    bound = None if head == "plain" else state.spectral_budget
    budget = cast(FeatureBudget, state.feature_budget)
    optimum = layer_peeled(
        state.counts, budget=state.budget, head=head, spectral_budget=bound, feature_budget=budget
    )
    try:
        threshold = minority_collapse_threshold(
            num_majority=state.majority,
            num_minority=state.minority,
            budget=state.budget,
            feature_budget=budget,
            head=head,
            spectral_budget=bound,
        )
    except NotSoDeepError as error:
        return CollapseView(optimum, None, str(error))
    return CollapseView(optimum, threshold, "")


def diagram_key(state: CollapseState) -> tuple[int, int, float, str]:
    """Return what the diagram depends on: not the head and the imbalance, which are its axes."""
    return state.majority, state.minority, state.budget, state.feature_budget


def diagram_records(
    majority: int, minority: int, budget: float, feature_budget: str
) -> list[dict[str, Any]]:
    """Solve a grid of gains and imbalances, by the work of the experiment ``collapse-phase``."""
    ratios = [float(f"{ratio:.6g}") for ratio in np.geomspace(1.1, 1e4, _RATIOS)]
    work = experiment("collapse-phase")
    records = []
    for gain in np.geomspace(0.25, 4.0, _GAINS):
        cell = {
            "majority": majority, "minority": minority, "feature_budget": feature_budget,
            "budget": budget, "row": "gain", "head": "explicit", "spectral_budget": float(gain),
            "ratios": ratios,
        }  # fmt: skip
        records.append({"cell": cell, **work.compute(cell, 0)})
    return records


def words(state: CollapseState, view: CollapseView) -> tuple[str, bool]:
    """Say what becomes of the minority classes, and whether they have collapsed."""
    cosine = view.optimum.minority_cosine
    R = f"R = {state.imbalance:.4g}"
    threshold = view.threshold
    border = "" if threshold is None else f" The threshold for this gain is {threshold.ratio:.4g}."
    if cosine is None:
        if state.imbalance == 1.0:
            return f"All classes have the same size: a simplex ETF.{border}", False
        return f"At {R} the minority classifiers are zero: they vanish.{border}", True
    if threshold is not None and state.imbalance >= threshold.ratio:
        return f"At {R} the minority classifiers coincide: minority collapse.{border}", True
    return f"At {R} the minority classifiers stay apart, with cosine {cosine:.3f}.{border}", False


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

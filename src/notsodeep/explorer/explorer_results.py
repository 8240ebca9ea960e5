"""The right side of the first page: numbers, figures and evidence for what was chosen."""

from __future__ import annotations

import gc

import streamlit as st
from threadpoolctl import threadpool_limits

from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.drawings import ALT, figures_of
from notsodeep.explorer.explorer_data import Upload, prepared
from notsodeep.explorer.page_state import (
    plain,
    show_error,
    show_figure,
    show_table,
)
from notsodeep.explorer.shown import (
    TOLERANCE,
    Cost,
    KnownData,
    View,
    candidate_rows,
    coefficient_rows,
    condition_rows,
    deq_of,
    headline,
    inference_cost,
    view_of,
)
from notsodeep.explorer.state import (
    ExplorerState,
)
from notsodeep.explorer.take_away import take_away


def settle() -> None:
    """Suit the process to many small computations, after everything was imported.

    Matrices of a page are small, and on them a second thread of a linear algebra library gains
    little, and loses much where the other cores are busy: it gets one.  What is loaded by now stays
    for good, and the garbage collector need not look through it again and again.
    """
    threadpool_limits(limits=1, user_api="blas")
    gc.collect()
    gc.freeze()


_DATA = "data of the last view"


@st.cache_resource(show_spinner=False)
def _settled() -> None:
    settle()


@st.cache_resource(max_entries=8, show_spinner="Loading the data …")
def _known_data(
    key: str,  # noqa: ARG001  # of the cache
    here: bool,  # noqa: ARG001
    _state: ExplorerState,
    _upload: Upload | None,
    _before: KnownData | None,
) -> KnownData:
    return KnownData.of(prepared(_state, _upload), _before)


@st.cache_resource(max_entries=32, show_spinner="Matching …")
def _view(
    key: str,  # noqa: ARG001  # of the cache
    _state: ExplorerState,
    _data: KnownData,
) -> tuple[View, dict[str, str]]:
    view = view_of(_state, _data)
    return view, figures_of(view)


def show_results(state: ExplorerState, upload: Upload | None) -> None:
    """Compute and show; what cannot be computed is reported where the result would be."""
    _settled()
    before = st.session_state.get(_DATA)
    try:
        data = _known_data(state.key(state.data_fields), upload is not None, state, upload, before)
        st.session_state[_DATA] = data
        view, figures = _view(state.view_key, state, data)
    except (NotSoDeepError, MemoryError) as error:
        show_error(error)
        st.caption("Change the settings on the left; everything else stays as it is.")
        return
    show = {"good": st.success, "open": st.warning, "bad": st.error}
    words, news = headline(view)
    show[news](plain(words))
    cost = _numbers(state, view, data)
    _pictures(figures)
    _evidence(view, cost)
    take_away(state, view, data.rows, figures, upload)


def _numbers(state: ExplorerState, view: View, data: KnownData) -> Cost | None:
    if view.certificate is None:
        return None
    matched, unmatched = view.certificate.matched, view.certificate.unmatched
    cost = _cost(state, view, data)
    cells = st.columns(5)
    cells[0].metric("relative gap", f"{matched.relative_gap:.3%}", help="‖K − K′‖/‖K‖, held out.")
    cells[1].metric("gap ‖K − K′‖", f"{matched.gap:.4g}", help="In operator norm, held out.")
    cells[2].metric("unmatched network", f"{unmatched.relative_gap:.2%}", help="Its relative gap.")
    cells[3].metric("alignment", f"{matched.alignment:.6f}", help="⟨K, K′⟩/(‖K‖‖K′‖).")
    told = "–" if cost is None or cost.ratio is None else f"{cost.ratio:.1f} ×"
    cells[4].metric(
        f"cost at width {state.width}", told,
        help="Multiplications of the DEQ over those of the network; counted. Below you can "
        "measure the time.",
    )  # fmt: skip
    return cost


def _cost(state: ExplorerState, view: View, data: KnownData) -> Cost | None:
    try:
        return inference_cost(
            deq_of(state),
            view.match.network,
            tau0=view.match.tau0,
            in_features=data.rows.X.shape[1],
            width=state.width,
            out_features=len(data.rows.classes),
        )
    except NotSoDeepError:  # the variance of the pre-activations was not found
        return None


def _pictures(figures: dict[str, str]) -> None:
    names = list(figures)
    for start in range(0, len(names), 2):
        for place, name in zip(st.columns(2), names[start : start + 2], strict=False):
            with place:
                show_figure(figures[name], ALT[name])


def _evidence(view: View, cost: Cost | None) -> None:
    found = view.match
    st.subheader("Coefficients and conditions", anchor=False)
    left, right = st.columns(2)
    with left:
        show_table(coefficient_rows(found))
    with right:
        network = "no network" if found.fitted is None else str(found.fitted)
        st.code(network, language=None, wrap_lines=True)
        st.caption(plain(f"{found.reason[:1].upper()}{found.reason[1:]}."))
        if found.refinement is not None:
            st.caption(plain(f"Refined: {found.refinement}."))
        st.caption(plain(f"Limiting law: {view.law_note.rstrip('.')}."))
        if cost is not None:
            st.caption(plain(_cost_words(cost)))
    show_table(condition_rows(view))
    if len(found.candidates) > 1:
        with st.expander("Families that were tried"):
            show_table(candidate_rows(found))


def _cost_words(cost: Cost) -> str:
    if cost.steps is None:
        return (
            f"A step of the DEQ multiplies errors by {cost.rate:.3g}: plain steps do not get to "
            "its fixed point."
        )
    return (
        f"A step of the DEQ shrinks errors by {cost.rate:.3g}, so that it takes about {cost.steps} "
        f"to a relative error of {TOLERANCE:g}."
    )

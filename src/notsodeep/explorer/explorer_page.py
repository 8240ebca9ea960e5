"""The first page: a DEQ, data, and the network that is matched to it."""

from __future__ import annotations

import gc
from typing import Any

import streamlit as st
from threadpoolctl import threadpool_limits

from notsodeep.activations.expressions import FUNCTIONS
from notsodeep.data import data_directory
from notsodeep.data.catalogue import IMAGE_SETS
from notsodeep.data.digits import CLASS_NAMES
from notsodeep.data.image_store import listing
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.drawings import ALT, figures_of
from notsodeep.explorer.explorer_data import MAX_MEGABYTES, Upload, prepared
from notsodeep.explorer.page_state import (
    PageState,
    plain,
    show_error,
    show_figure,
    show_problems,
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
    headline,
    inference_cost,
    view_of,
)
from notsodeep.explorer.state import (
    ACTIVATIONS,
    DRAWN,
    FAMILIES,
    FORMULA,
    UPLOAD,
    WIDTHS,
    ExplorerState,
    digest_of,
)
from notsodeep.explorer.take_away import take_away

_GRAMMAR = (
    f"Numbers, x, pi, + - * / **, and {', '.join(sorted(FUNCTIONS))}. It is parsed, never run as "
    "code."
)
_LABELS = {
    "mixture": "Gaussian mixture",
    "sphere": "unit sphere",
    "upload": "a file of my own",
    "conjugate": "conjugate kernel (CK)",
    "tangent": "tangent kernel (NTK)",
    "feature": "features z*",
    "preactivation": "pre-activations",
}


def worded(name: str) -> str:
    """Return a choice as a person reads it."""
    return _LABELS.get(name, name.replace("_", " "))


def controls(page: PageState[ExplorerState]) -> tuple[ExplorerState, Upload | None]:
    """Show the widgets; return what is chosen, and the uploaded file."""
    with st.sidebar:
        st.subheader("The deep equilibrium model", anchor=False)
        _model(page)
        st.subheader("The data", anchor=False)
        upload = _data(page)
        st.subheader("The shallow network", anchor=False)
        _network(page)
    return page.read(lambda state: state.fields_in_use), upload


def _slider(page: PageState[ExplorerState], name: str, label: str, **options: Any) -> None:
    """Show a slider over the limits of a field."""
    rule = page.rule(name)
    st.slider(label, rule.least, rule.most, key=page.widget(name), **options)


def _choice(
    page: PageState[ExplorerState], name: str, label: str, options: Any, **more: Any
) -> None:
    st.selectbox(label, options, key=page.widget(name), format_func=worded, **more)


def _model(page: PageState[ExplorerState]) -> None:
    _choice(page, "activation", "activation φ", ACTIVATIONS)
    if st.session_state[page.widget("activation")] == FORMULA:
        st.text_input(
            "formula in x",
            key=page.widget("formula"),
            max_chars=page.rule("formula").longest,
            help=plain(_GRAMMAR),
        )
        st.text_input(
            "kinks of the formula",
            key=page.widget("kinks"),
            max_chars=page.rule("kinks").longest,
            help="Points where it bends or jumps, between commas.",
        )
    _slider(
        page, "sigma_a2", "σa²", step=0.01, help="Share of the variance that comes back through A."
    )


def _data(page: PageState[ExplorerState]) -> Upload | None:
    present = [row.name for row in listing(data_directory(None)) if row.present and row.on_disk]
    before = st.session_state[page.widget("data")]  # by a link, perhaps not on this machine
    options = list(dict.fromkeys([*DRAWN, *present, before, UPLOAD]))
    _choice(page, "data", "data", options)
    chosen, upload = st.session_state[page.widget("data")], None
    if chosen == UPLOAD:
        upload = _uploader(page)
    _slider(page, "samples", "samples n", step=10)
    if chosen in DRAWN:
        _slider(page, "dimension", "features p", step=10)
    if chosen == "mixture":
        _slider(page, "num_classes", "classes K")
        _slider(page, "means", "length of the class means ‖μ‖", step=0.5)
        _slider(
            page, "trace_step", "growth of the covariances", step=0.5,
            help="s in C_a = (1 + s·a/√p) C for the classes a = 0, 1, …",
        )  # fmt: skip
        _slider(
            page, "spread", "spread of the covariances", step=0.05,
            help="C has the eigenvalues 1 + spread and 1 − spread, half of each.",
        )  # fmt: skip
    elif chosen not in ("sphere", UPLOAD):
        names = CLASS_NAMES if chosen == "digits" else IMAGE_SETS[chosen].class_names
        st.text_input(
            "classes",
            key=page.widget("classes"),
            placeholder="all",
            max_chars=page.rule("classes").longest,
            help=f"Between commas; empty for all. Known: {', '.join(map(str, names[:20]))}.",
        )
    return upload


def _uploader(page: PageState[ExplorerState]) -> Upload | None:
    file = st.file_uploader(
        "a .npz or .csv file",
        type=["npz", "csv"],
        key="explorer.file",
        help=f"At most {MAX_MEGABYTES} MB.  .npz: arrays X (n, p) and y (n,), and X_test and "
        "y_test if you like.  .csv: a header, numbers, and a column named label.  It stays on "
        "this machine.",
    )
    if file is None:
        return None
    content = file.getvalue()
    page.set(upload=digest_of(content))
    return file.name, content


def _network(page: PageState[ExplorerState]) -> None:
    _choice(page, "family", "family", FAMILIES)
    _choice(page, "kernel", "kernel", page.rule("kernel").options)
    _choice(
        page, "convention", "of the DEQ's", page.rule("convention").options,
        help="What a trained read-out sees are the features; the papers' formulas are about the "
        "pre-activations.",
    )  # fmt: skip
    st.toggle(
        "refine on the data",
        key=page.widget("refine"),
        help="Minimise the distance of the exact kernels on the rows; takes some seconds.",
    )
    st.select_slider("width m", WIDTHS, key=page.widget("width"))
    rule = page.rule("seed")
    st.number_input("seed", rule.least, rule.most, step=1, key=page.widget("seed"))


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
            view.match.deq,
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


def explorer_page() -> None:
    """Show the page."""
    page = PageState(ExplorerState, "explorer")
    state, upload = controls(page)
    st.header("See the equivalence move", anchor=False)
    show_problems(page.problems)
    # The first time this import takes seconds, and a person has the controls meanwhile.
    from notsodeep.explorer.explorer_page import show_results

    show_results(state, upload)

"""The first page: a DEQ, data, and the network that is matched to it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from notsodeep.activations.formulas import FUNCTIONS
from notsodeep.data import data_directory
from notsodeep.data.images import IMAGE_SETS
from notsodeep.explorer.explorer_data import MAX_MEGABYTES, Upload
from notsodeep.explorer.page_state import (
    PageState,
    plain,
    show_problems,
)
from notsodeep.explorer.state import (
    ACTIVATIONS,
    CELL,
    DRAWN,
    FAMILIES,
    FORMULA,
    OWN,
    UPLOAD,
    WIDTHS,
    ExplorerState,
    digest_of,
)

_GRAMMAR = (
    f"Numbers, x, pi, + - * / **, and {', '.join(sorted(FUNCTIONS))}. It is parsed, never run as "
    "code."
)
_LABELS = {
    "cell": "a cell of layers",
    "own": "layers of my own",
    "mixture": "Gaussian mixture",
    "sphere": "unit sphere",
    "upload": "a file of my own",
    "ck": "conjugate kernel (CK)",
    "ntk": "tangent kernel (NTK)",
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
    if st.session_state[page.widget("activation")] == CELL:
        _cell(page)
        return
    _slider(
        page, "sigma_a2", "σa²", step=0.01, help="Share of the variance that comes back through A."
    )


def _cell(page: PageState[ExplorerState]) -> None:
    _choice(page, "cell", "cell", page.rule("cell").options)
    if st.session_state[page.widget("cell")] == OWN:
        st.text_area(
            "layers, one in a line",
            key=page.widget("layers"),
            max_chars=page.rule("layers").longest,
            help="An activation and its variances, as in tanh weight=.5 inject=.6 bias=.1. The "
            "first layer reads the last. Semicolons do for ends of lines.",
        )


def _data(page: PageState[ExplorerState]) -> Upload | None:
    present = [name for name in IMAGE_SETS if (data_directory() / f"{name}.npz").exists()]
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
        names = tuple("0123456789") if chosen == "digits" else IMAGE_SETS[chosen].classes
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
    _choice(page, "kind", "kernel", page.rule("kind").options)
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


def explorer_page() -> None:
    """Show the page."""
    page = PageState(ExplorerState, "explorer")
    state, upload = controls(page)
    st.header("See the equivalence move", anchor=False)
    show_problems(page.problems)
    # The first time this import takes seconds, and a person has the controls meanwhile.
    from notsodeep.explorer.explorer_results import show_results

    show_results(state, upload)

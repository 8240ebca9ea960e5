"""The page of trained networks: what one does when it is iterated, and what stands in for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from notsodeep import zoo
from notsodeep.compilation.compile import compile as compile_model
from notsodeep.data import Dataset, load
from notsodeep.data.images import IMAGE_SETS
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.drawings import svg_of
from notsodeep.explorer.page_state import plain, show_error, show_figure, show_table
from notsodeep.plotting import diagnosis_figure
from notsodeep.trained.diagnosis import Diagnosis, diagnose

if TYPE_CHECKING:
    from notsodeep.compilation.trained_record import TrainedCompilation

_FIRST = "monotone-digits-64"
_ROWS, _TEST_ROWS = 3000, 2000  # of the large sets, so that an answer takes seconds
_MOST_LAYERS = 4


def trained_page() -> None:
    """Show the page."""
    st.header("Trained networks", anchor=False)
    names = zoo.names()
    left, right = st.columns(2)
    name = left.selectbox("Network", names, index=names.index(_FIRST), key="network")
    layers = right.slider("Explicit layers", 1, _MOST_LAYERS, 3, key="layers")
    try:
        found = _diagnosis(name)
        _show_diagnosis(found)
        show_compilation(_compilation(name, layers))
    except NotSoDeepError as error:  # its data or its file is not on this machine
        show_error(error)


@st.cache_resource(max_entries=4, show_spinner="Loading …")
def _rows(name: str) -> Dataset:
    data = zoo.load(name).metadata["data"]
    if data in IMAGE_SETS:
        return load(data, preprocessing="unit_range", samples=_ROWS, test_samples=_TEST_ROWS)
    return load(data, preprocessing="unit_range")


@st.cache_resource(max_entries=8, show_spinner="Iterating from several starts …")
def _diagnosis(name: str) -> Diagnosis:
    return diagnose(zoo.load(name), _rows(name).X_test, progress=False)


@st.cache_resource(max_entries=16, show_spinner="Fitting explicit layers, and timing them …")
def _compilation(name: str, layers: int) -> TrainedCompilation:
    rows = _rows(name)
    cell = zoo.load(name)
    return compile_model(cell, rows.X, rows.y, rows.X_test, rows.y_test, layers=layers)


def _show_diagnosis(found: Diagnosis) -> None:
    st.subheader(plain(f"{found.verdict}: {found.reason}"), anchor=False)
    for note in found.notes:
        st.info(plain(note))
    words = (
        f"Residuals, agreement of truncations and spectral radii; the verdict is {found.verdict}."
    )
    show_figure(svg_of(lambda: diagnosis_figure(found)), words)
    with st.expander("Numbers and rule"):
        show_table([{"measure": label, "value": value} for label, value in found.table])
        for line in found.rule.splitlines():
            st.markdown(f"- {plain(line)}")


def show_compilation(compiled: TrainedCompilation) -> None:
    """Show the verdict, the front, and fidelity by the number of layers."""
    st.subheader(plain(compiled.verdict.headline), anchor=False)
    show_figure(svg_of(compiled.plot), "Fidelity against cost, and certified share by layers.")
    show_table(
        [
            {
                "layers": str(count),
                "agreement": f"{fidelity.agreement:.2%}",
                "at least (95 %)": f"{fidelity.agreement_bound:.2%}",
                "proved": "–" if fidelity.certified is None else f"{fidelity.certified:.1%}",
            }
            for count, fidelity in compiled.fidelity_by_layers.items()
        ]
    )

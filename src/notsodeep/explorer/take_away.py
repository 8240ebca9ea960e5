"""The end of the first page: files and code to take away."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import streamlit as st

from notsodeep.data import Dataset
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.computing import View
from notsodeep.explorer.drawings import archive
from notsodeep.explorer.explorer_controls import Upload
from notsodeep.explorer.page_parts import plain, show_error
from notsodeep.explorer.python_code import code_of
from notsodeep.explorer.state import ExplorerState
from notsodeep.matching import Match

if TYPE_CHECKING:
    from notsodeep.explorer.built_networks import BuiltNetworks


@st.cache_resource(max_entries=2, show_spinner="Building, fitting and timing the networks …")
def _built(
    key: str,  # noqa: ARG001  # of the cache
    _state: ExplorerState,
    _found: Match,
    _data: Dataset,
) -> BuiltNetworks:
    from notsodeep.explorer.built_networks import built_networks

    return built_networks(_state, _found, _data)


def take_away(
    state: ExplorerState,
    view: View,
    data: Dataset,
    figures: dict[str, str],
    upload: Upload | None,
) -> None:
    """Offer parameters, figures, code, and networks built on request."""
    st.subheader("Take it away", anchor=False)
    cells = st.columns(3)
    record = {"state": asdict(state), "match": view.match.to_dict()}
    if view.certificate is not None:
        record["certificate"] = view.certificate.to_dict(arrays=False)
    with cells[0]:
        st.download_button(
            "Parameters (JSON)", json.dumps(record, indent=2), "match.json", "application/json",
            on_click="ignore", width="stretch",
        )  # fmt: skip
    with cells[1]:
        st.download_button(
            "Figures (SVG)", archive(figures), "figures.zip", "application/zip",
            on_click="ignore", width="stretch",
        )  # fmt: skip
    code = code_of(state, upload[0] if upload is not None else "data.npz")
    with cells[2]:
        st.download_button(
            "Python code", code, "match.py", "text/x-python", on_click="ignore", width="stretch"
        )
    if view.match.fitted is not None:
        _network(state, view.match, data)
    with st.expander("The Python code of this page"):
        st.code(code, language="python")


def _network(state: ExplorerState, found: Match, data: Dataset) -> None:
    """Build the networks when asked to; what was built stays until the settings change."""
    key = state.key(state.fields_in_use)
    if st.button(f"Build the network with {state.width} units and measure it", key="build"):
        st.session_state["explorer.built"] = key
    if st.session_state.get("explorer.built") != key:
        return
    try:
        built = _built(key, state, found, data)
    except (NotSoDeepError, MemoryError) as error:
        show_error(error)
        return
    cells = st.columns(3)
    if built.accuracy is not None:
        cells[0].metric("held-out accuracy", f"{built.accuracy:.2%}", help="Read-out by ridge.")
    if built.timing is not None:
        rows = {"inference": built.timing.inference, "training": built.timing.training_step}
        for cell, (name, row) in zip(cells[1:], rows.items(), strict=True):
            cell.metric(
                f"DEQ's time, {name}", f"{row.ratio:.1f} ×",
                help=f"{1e3 * row.deq_seconds:.2f} ms against {1e3 * row.explicit_seconds:.2f} ms "
                f"for {built.timing.batch} rows; {row.solver.replace('_', ' ')}, {row.steps} "
                "steps.",
            )  # fmt: skip
    else:
        st.warning(plain(f"Not timed: {built.timing_note}"))
    left, right = st.columns(2)
    with left:
        st.download_button(
            "Network (safetensors)", built.safetensors, "network.safetensors",
            on_click="ignore", width="stretch",
        )  # fmt: skip
    with right:
        if built.onnx is not None:
            st.download_button(
                "Network (ONNX)", built.onnx, "network.onnx", on_click="ignore", width="stretch"
            )
        else:
            st.info(plain(built.onnx_note))

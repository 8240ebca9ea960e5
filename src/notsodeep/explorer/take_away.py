"""The end of the first page: files and code to take away."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from notsodeep.data import Dataset
from notsodeep.errors import MissingPackage, NoOnnxForm, NotSoDeepError
from notsodeep.explorer.drawings import archive
from notsodeep.explorer.explorer_data import SPACING, Upload
from notsodeep.explorer.page_state import plain, show_error
from notsodeep.explorer.shown import View
from notsodeep.explorer.state import CELL, FORMULA, UPLOAD, ExplorerState
from notsodeep.matching import Match
from notsodeep.networks.files import save
from notsodeep.networks.onnx import export_onnx
from notsodeep.networks.random import build
from notsodeep.networks.readout import as_tensor, fit_readout


def code_of(state: ExplorerState, upload_name: str = "data.npz") -> str:
    """Return a script that ends with the certificate of the page.

    Parameters
    ----------
    state : ExplorerState
    upload_name : str
        Name of the uploaded file, if one is used.
    """
    return "\n".join(
        [
            *(["import numpy as np"] if state.data in ("mixture", "sphere") else []),
            "import notsodeep as nsd",
            "",
            *_data(state, upload_name),
            "",
            *_model(state),
            "found = nsd.match(",
            "    deq,",
            "    X,",
            f"    family={state.family!r},",
            f"    kind={state.kind!r},",
            f"    convention={state.convention!r},",
            f"    refine={state.refine},",
            ")",
            "print(found)",
            f"certificate = found.certify(X_test{'' if _one_class(state) else ', y_test'})",
            "print(certificate)",
            "",
            "# A finite network with random weights; fit its read-out, or train it:",
            f"# net = nsd.build(found.network, X.shape[1], {state.width}, out_features, "
            f"rng={state.seed})",
            "",
        ]
    )


_PARTS = ("X, y = data.X, data.y", "X_test, y_test = data.X_test, data.y_test")


def _one_class(state: ExplorerState) -> bool:
    return state.data == "sphere" or (state.data == "mixture" and state.num_classes == 1)


def _data(state: ExplorerState, upload_name: str) -> list[str]:
    n, seed = state.samples, state.seed
    if state.data == "mixture":
        return [
            f"p, a = {state.dimension}, np.arange({state.num_classes})  # features, classes",
            f"means = np.zeros(({state.num_classes}, p))",
            f"means[a, {SPACING} * a] = {state.means!r}",
            f"covariances = 1.0 + {state.trace_step!r} * a / np.sqrt(p)",
            *_spread(state.spread),
            "mixture = nsd.data.GaussianMixture(means, covariances)",
            f"rng = np.random.default_rng({seed})",
            f"X, y = mixture.sample({n}, rng)",
            f"X_test, y_test = mixture.sample({n}, rng)",
        ]
    if state.data == "sphere":
        drawn = f"nsd.data.sphere({2 * n}, {state.dimension}, rng={seed})"
        return [f"X, X_test = np.split({drawn}, 2)"]
    if state.data == UPLOAD:
        return [
            f"path = {upload_name!r}",
            "whole = nsd.data.load(path)  # to count its rows",
            "rows, test_rows = len(whole.X), len(whole.X_test)",
            "data = nsd.data.load(",
            "    path,",
            f"    samples=min({n}, rows if test_rows else rows // 2),",
            f"    test_samples=min({n}, test_rows or rows // 2),",
            "    balanced=False,",
            f"    rng={seed},",
            ")",
            *_PARTS,
        ]
    classes = f", classes={list(state.class_names)!r}" if state.class_names else ""
    loaded = f"data = nsd.data.load({state.data!r}{classes}, samples={n}, rng={seed})"
    return [
        loaded,
        f"drawn = nsd.data.draw_rows(data.X_test, {n}, rng={seed})",
        "X, y = data.X, data.y",
        "X_test, y_test = data.X_test[drawn], data.y_test[drawn]",
    ]


def _spread(spread: float) -> list[str]:
    if spread == 0.0:
        return []
    return [
        f"levels = np.where(np.arange(p) % 2 == 0, 1.0 + {spread!r}, 1.0 - {spread!r})",
        "covariances = np.outer(covariances, levels)",
    ]


def _model(state: ExplorerState) -> list[str]:
    if state.activation == CELL:
        layers = [f"        nsd.Dense.from_text({text!r})," for text in state.layer_texts]
        return ["deq = nsd.DeepEquilibrium(", "    cell=[", *layers, "    ]", ")"]
    if state.activation != FORMULA:
        return [f"deq = nsd.DeepEquilibrium({state.activation!r}, sigma_a2={state.sigma_a2!r})"]
    formula = f"{state.formula!r}, kinks={state.kink_points!r}"
    return [
        f"phi = nsd.activations.from_formula({formula})",
        f"deq = nsd.DeepEquilibrium(phi, sigma_a2={state.sigma_a2!r})",
    ]


_RIDGE = 1e-2  # relative to the mean squared norm of the features


@dataclass(frozen=True, eq=False)
class BuiltNetworks:
    """The matched network in files, and what was measured."""

    safetensors: bytes
    onnx: bytes | None
    onnx_note: str  # why there is no ONNX file
    accuracy: float | None  # on held-out rows; None if there is one class only


def built_networks(state: ExplorerState, found: Match, data: Dataset) -> BuiltNetworks:
    """Draw the matched network at the state's width, fit its read-out, and export it."""
    module = build(
        found.network, data.X.shape[1], state.width, len(data.classes), state.seed,
        trainable="readout",
    )  # fmt: skip
    accuracy = None
    if len(data.classes) > 1:
        features = module.features(as_tensor(data.X, module.readout)).detach()
        ridge = _RIDGE * float(features.square().sum(dim=1).mean())
        fit_readout(module, data.X, data.y, ridge)
        guesses = module.eval()(as_tensor(data.X_test, module.readout)).argmax(dim=1)
        accuracy = float((guesses.numpy() == data.y_test).mean())
    with tempfile.TemporaryDirectory(prefix="notsodeep-") as directory:
        target, onnx = (Path(directory) / f"network.{end}" for end in ("safetensors", "onnx"))
        options: Any = {"preprocessing": data.preprocessing, "classes": data.classes}
        save(module, target, **options)
        note = ""
        try:
            export_onnx(module, onnx, **options)
        except (MissingPackage, NoOnnxForm) as error:
            note = str(error)
        content = None if note else onnx.read_bytes()
        return BuiltNetworks(target.read_bytes(), content, note, accuracy)


@st.cache_resource(max_entries=2, show_spinner="Building and fitting the network …")
def _built(
    key: str,  # noqa: ARG001  # of the cache
    _state: ExplorerState,
    _found: Match,
    _data: Dataset,
) -> BuiltNetworks:
    from notsodeep.explorer.take_away import built_networks

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
    if built.accuracy is not None:
        st.metric("held-out accuracy", f"{built.accuracy:.2%}", help="Read-out by ridge.")
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

"""The Python code that computes what the page shows."""

from __future__ import annotations

from notsodeep.explorer.explorer_data import SPACING
from notsodeep.explorer.state import FORMULA, UPLOAD, ExplorerState


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
            *(["import numpy as np"] if state.data == "mixture" else []),
            "import notsodeep as nsd",
            "",
            *_data(state, upload_name),
            "",
            *_model(state),
            "found = nsd.match(",
            "    deq,",
            "    X,",
            f"    family={state.family!r},",
            f"    kernel={state.kernel!r},",
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
        sizes = f"samples={n}, test_samples={n}, dimension={state.dimension}"
        return [f'data = nsd.data.load("sphere", {sizes}, rng={seed})', *_PARTS]
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
    if state.activation != FORMULA:
        return [f"deq = nsd.DeepEquilibrium({state.activation!r}, sigma_a2={state.sigma_a2!r})"]
    formula = f"{state.formula!r}, kinks={state.kink_points!r}"
    return [
        f"phi = nsd.activations.from_formula({formula})",
        f"deq = nsd.DeepEquilibrium(phi, sigma_a2={state.sigma_a2!r})",
    ]

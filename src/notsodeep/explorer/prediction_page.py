"""The page "before training": predicted curves that follow sliders."""

from __future__ import annotations

import math

import numpy as np
import streamlit as st
from matplotlib.figure import Figure

from notsodeep.data import GaussianMixture
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.drawings import svg_of
from notsodeep.explorer.page_parts import plain, show_error, show_figure
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium, Model
from notsodeep.plotting import learning_curve as draw_learning
from notsodeep.plotting import new_figure
from notsodeep.plotting import risk_comparison as draw_comparison
from notsodeep.plotting import width_curve as draw_widths
from notsodeep.prediction import compare_risks, effective_neurons, learning_curve, width_curve

_DIMENSION = 256
_FAMILIES = {"relu": "piecewise_linear", "tanh": "hard_tanh"}
_DATA = ("means", "traces", "covariances")


def example_mixture(kind: str) -> GaussianMixture:
    """Return two classes that differ in their means, their traces or their covariances alone."""
    means = np.zeros((2, _DIMENSION))
    if kind == "means":
        means[0, 0] = means[1, 8] = 2.0
        return GaussianMixture(means, 1.0)
    if kind == "traces":
        shift = 2.5 / math.sqrt(_DIMENSION)
        return GaussianMixture(means, [1.0 - shift, 1.0 + shift])
    first = np.where(np.arange(_DIMENSION) < _DIMENSION // 2, 1.9, 0.1)
    return GaussianMixture(means, [first, 2.0 - first])


def prediction_figure(
    activation: str, sigma_a2: float, kind: str, ratio: float, ridge: float
) -> Figure:
    """Predict and draw: networks over the ridge, errors over n/p, accuracies over the width."""
    mixture, n = example_mixture(kind), round(ratio * _DIMENSION)
    deq = DeepEquilibrium(activation, sigma_a2).centred(1.0)
    found = match(deq, tau0=1.0, family=_FAMILIES[activation], convention="feature")
    counts = mixture.class_counts(n)
    models: dict[str, Model] = {"DEQ": deq, "matched": found.network}
    plain_too = {**models, "plain": found.unmatched}
    seen = compare_risks(plain_too, mixture, counts, ridge=np.logspace(-3, 1, 17), tables="limit")
    sizes = np.unique((np.geomspace(0.1, 8.0, 24) * _DIMENSION).astype(int))
    learned = learning_curve(deq, mixture, sizes, ridge=ridge, tables="limit")
    widths = np.geomspace(64, 8192, 8).astype(int)
    wide = width_curve(models, mixture, counts, widths, ridge=ridge, tables="limit")
    figure, (left, middle, right) = new_figure(3, width=4.0)
    draw_comparison(seen, left)
    left.axvline(ridge, color="0.7", lw=0.8)
    draw_learning(learned, middle)
    middle.axvline(ratio, color="0.7", lw=0.8)
    draw_widths(wide, right)
    return figure


@st.cache_resource(max_entries=64, show_spinner=False)
def _drawn(activation: str, sigma_a2: float, kind: str, ratio: float, ridge: float) -> str:
    return svg_of(lambda: prediction_figure(activation, sigma_a2, kind, ratio, ridge))


def prediction_page() -> None:
    """Show the page."""
    st.header("Before training", anchor=False)
    st.caption(
        "Test errors and accuracies of a trained read-out on two Gaussian classes of dimension "
        f"{_DIMENSION}, from means and covariances alone. Nothing is drawn, nothing is trained."
    )
    with st.sidebar:
        activation = st.selectbox("activation", tuple(_FAMILIES), key="predicted-activation")
        sigma_a2 = st.slider("σa²", 0.0, 0.9, 0.5, step=0.05, key="predicted-sigma")
        kind = st.selectbox("classes differ in", _DATA, key="predicted-data")
        ratio = st.slider("log₂ n/p", -3.0, 3.0, 1.0, step=0.25, key="predicted-ratio")
        level = st.slider("log₁₀ λ", -3.0, 1.0, -2.0, step=0.25, key="predicted-ridge")
    try:
        picture = _drawn(activation, sigma_a2, kind, 2.0**ratio, 10.0**level)
        neurons = effective_neurons(DeepEquilibrium(activation, sigma_a2).centred(1.0), 1000)
    except NotSoDeepError as error:
        show_error(error)
        return
    show_figure(picture, "Accuracy over the ridge, error over n/p, accuracy over the width.")
    st.markdown(plain(
        f"1000 neurons of this DEQ count for {neurons:.0f} independent ones where the width is "
        "much larger than the number of samples."
    ))  # fmt: skip

"""The page "before training": predicted curves that follow sliders."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import streamlit as st
from matplotlib.axes import Axes

from notsodeep.data import GaussianMixture
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.drawings import panels
from notsodeep.explorer.page_state import PageState, plain, show_error, show_figure, show_problems
from notsodeep.explorer.state import WIDTHS, PredictionState
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium, Model
from notsodeep.prediction import (
    LearningCurve,
    RiskCurve,
    WidthCurve,
    effective_neurons,
    learning_curve,
    predict_risk,
    width_curve,
)

_DIMENSION = 256
_FAMILIES = {"relu": "piecewise_linear", "tanh": "hard_tanh"}


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


@dataclass(frozen=True, eq=False)
class PredictionView:
    """What the page shows.

    Attributes
    ----------
    risks : dict of RiskCurve
        DEQ, matched and plain network over the ridge.
    learned : LearningCurve
    widths : WidthCurve
        Over powers of two.
    """

    risks: dict[str, RiskCurve]
    learned: LearningCurve
    widths: WidthCurve


def prediction_view(state: PredictionState) -> PredictionView:
    """Predict everything on the page; nothing is drawn, nothing is trained."""
    mixture = example_mixture(state.data)
    counts = mixture.class_counts(round(2.0**state.log_ratio * _DIMENSION))
    deq = DeepEquilibrium(state.activation, state.sigma_a2).centred(1.0)
    found = match(deq, tau0=1.0, family=_FAMILIES[state.activation], convention="feature")
    models: dict[str, Model] = {"DEQ": deq, "matched": found.network}
    plain_too = {**models, "plain": found.unmatched}
    ridge, sizes = 10.0**state.log_ridge, np.geomspace(0.1, 8.0, 24) * _DIMENSION
    return PredictionView(
        {
            name: predict_risk(model, mixture, counts, ridge=np.logspace(-3, 1, 17))
            for name, model in plain_too.items()
        },
        learning_curve(deq, mixture, np.unique(sizes.astype(int)), ridge=ridge),
        width_curve(models, mixture, WIDTHS, ridge=ridge, counts=counts),
    )


_PANELS = {
    "risks": "Accuracy over the ridge.",
    "learned": "Error over the number of samples per dimension.",
    "widths": "Accuracy over the width.",
}


def prediction_figures(view: PredictionView, state: PredictionState) -> dict[str, str]:
    """Draw networks over the ridge, errors over n/p, accuracies over the width, by what they say.

    Side by side, or below one another on a phone.
    """
    here = (10.0**state.log_ridge, 2.0**state.log_ratio, state.width)

    def drawing(name: str, value: float) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            if name == "risks":
                _draw_risks(view.risks, axes)
            else:
                getattr(view, name).plot(axes)
            axes.axvline(value, color="0.7", lw=0.8)
            figure = axes.get_figure(root=True)
            assert figure is not None
            figure.subplots_adjust(top=0.84)  # for the axis above the last one

        return draw

    drawn = panels(drawing(name, value) for name, value in zip(_PANELS, here, strict=True))
    return dict(zip(_PANELS.values(), drawn, strict=True))


def _draw_risks(risks: dict[str, RiskCurve], axes: Axes) -> None:
    for (name, curve), line in zip(risks.items(), ("-", "--", ":"), strict=True):
        axes.plot(curve.values, curve.accuracy, line, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("ridge λ")
    axes.set_ylabel("accuracy")
    axes.legend()


def told(view: PredictionView, state: PredictionState) -> str:
    """Say what the width does to either network, and whether a plain one would do."""
    place = WIDTHS.index(state.width)
    shares = ", ".join(
        f"{name} {right[place]:.1%} (infinite width {view.widths.limit_accuracy[name]:.1%})"
        for name, right in view.widths.accuracy.items()
    )
    deq = DeepEquilibrium(state.activation, state.sigma_a2).centred(1.0)
    neurons = effective_neurons(deq, state.width)
    return (
        f"At width {state.width}: {shares}. {state.width} neurons of this DEQ have the width noise "
        f"of {neurons:.0f} independent ones where the width is much larger than the number of "
        "samples, and those of a hidden layer are independent; where more ridge would help, as at "
        "a width near the number of samples, the DEQ's noise helps it."
    )


@st.cache_resource(max_entries=64, show_spinner=False)
def _shown(state: PredictionState) -> tuple[dict[str, str], str]:
    view = prediction_view(state)
    return prediction_figures(view, state), told(view, state)


def prediction_page() -> None:
    """Show the page."""
    st.header("Before training", anchor=False)
    st.caption(
        "Test errors and accuracies of a trained read-out on two Gaussian classes of dimension "
        f"{_DIMENSION}, from means and covariances alone. Nothing is drawn, nothing is trained."
    )
    page = PageState(PredictionState, "predict")
    show_problems(page.problems)
    with st.sidebar:
        for name, label in (("activation", "activation"), ("data", "classes differ in")):
            st.selectbox(label, page.rule(name).options, key=page.widget(name))
        for name, label, step in (
            ("sigma_a2", "σa²", 0.05),
            ("log_ratio", "log₂ n/p", 0.25),
            ("log_ridge", "log₁₀ λ", 0.25),
        ):
            rule = page.rule(name)
            st.slider(label, rule.least, rule.most, step=step, key=page.widget(name))
        st.select_slider("width", WIDTHS, key=page.widget("width"))
    state = page.read()
    try:
        pictures, words = _shown(state)
    except NotSoDeepError as error:
        show_error(error)
        return
    for place, (alt, figure) in zip(st.columns(3), pictures.items(), strict=True):
        with place:
            show_figure(figure, alt)
    st.markdown(plain(words))

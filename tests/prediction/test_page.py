"""The page "before training" without a browser."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("streamlit")
from streamlit.testing.v1 import AppTest

from notsodeep.explorer.prediction_page import prediction_figures, prediction_view, told
from notsodeep.explorer.state import PredictionState


def page() -> None:
    from notsodeep.explorer.prediction_page import prediction_page

    prediction_page()


def test_the_page_follows_its_sliders_and_its_link() -> None:
    test = AppTest.from_function(page, default_timeout=300)
    test.query_params["sigma_a2"] = "0.8"
    test.query_params["width"] = "77"
    test.run()
    assert not test.exception
    assert "width" in test.warning[0].value  # 77 is none of the widths
    before = test.markdown[0].value
    assert "At width 1024" in before
    assert "of 655 independent ones" in before
    test.select_slider(key="predict.width").set_value(2048).run()
    assert not test.exception
    assert "At width 2048" in test.markdown[0].value
    assert test.query_params["width"] == "2048"


@pytest.mark.slow
def test_figures_are_drawn_within_a_second() -> None:
    def shown(state: PredictionState) -> None:
        view = prediction_view(state)
        assert len(prediction_figures(view, state)) == 3
        assert "independent" in told(view, state)

    shown(PredictionState())  # compiled loops, fonts
    start = time.process_time()
    shown(PredictionState(activation="tanh", sigma_a2=0.3, log_ridge=-1.0))
    assert time.process_time() - start < 1.0

"""The page "before training" without a browser."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("streamlit")
from streamlit.testing.v1 import AppTest

from notsodeep.explorer.prediction_page import prediction_figure


def page() -> None:
    from notsodeep.explorer.prediction_page import prediction_page

    prediction_page()


def test_the_page_follows_its_sliders() -> None:
    test = AppTest.from_function(page, default_timeout=60).run()
    assert not test.exception
    before = test.markdown[0].value
    assert "independent ones" in before
    test.slider(key="predicted-sigma").set_value(0.9).run()
    assert not test.exception
    assert test.markdown[0].value != before


@pytest.mark.slow
def test_figures_are_drawn_within_a_second() -> None:
    prediction_figure("relu", 0.5, "covariances", 2.0, 0.01)  # compiled loops, fonts
    start = time.process_time()
    figure = prediction_figure("tanh", 0.3, "means", 1.0, 0.1)
    assert time.process_time() - start < 2.0  # one on an idle machine
    assert len(figure.axes) == 3

"""The pages without a browser: widgets, links and messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from notsodeep import zoo
from notsodeep.explorer.explorer_data import prepared
from notsodeep.explorer.page_state import plain
from notsodeep.explorer.server import SCRIPT, options_of
from notsodeep.explorer.shown import KnownData, view_of
from notsodeep.explorer.state import ExplorerState

SMALL = {"samples": "100", "dimension": "120", "family": "leaky_relu"}


def explorer() -> None:
    from notsodeep.explorer.explorer_page import explorer_page

    explorer_page()


def opened(page: Any, query: dict[str, str], **arguments: Any) -> AppTest:
    test = AppTest.from_function(page, default_timeout=60, kwargs=arguments)
    for name, value in query.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def linked(test: AppTest) -> dict[str, str]:
    """Return the link of the page; Streamlit's testing has had both lists and texts there."""
    query = dict(test.query_params)
    return {name: text if isinstance(text, str) else text[0] for name, text in query.items()}


def shown(test: AppTest, label: str) -> str:
    return str(next(m.value for m in test.metric if m.label == label))


def expected(**changes: Any) -> str:
    state = ExplorerState(samples=100, dimension=120, family="leaky_relu", **changes)
    view = view_of(state, KnownData.of(prepared(state)))
    assert view.certificate is not None
    return f"{view.certificate.matched.relative_gap:.3%}"


def test_a_link_opens_and_a_slider_moves() -> None:
    test = opened(explorer, {**SMALL, "sigma_a2": "0.3"})
    assert shown(test, "relative gap") == expected(sigma_a2=0.3)
    assert test.sidebar.slider(key="explorer.sigma_a2").value == 0.3
    test.sidebar.slider(key="explorer.sigma_a2").set_value(0.1).run()
    assert shown(test, "relative gap") == expected(sigma_a2=0.1)
    assert linked(test) == {**SMALL, "sigma_a2": "0.1"}
    # Another link of the same page, as by the button that goes back.
    for name in list(test.query_params):
        del test.query_params[name]
    for name, value in {**SMALL, "activation": "tanh"}.items():
        test.query_params[name] = value
    test.run()
    assert shown(test, "relative gap") == expected(activation="tanh")
    assert test.sidebar.slider(key="explorer.sigma_a2").value == 0.2


def test_a_hidden_setting_is_remembered() -> None:
    test = opened(explorer, {**SMALL, "activation": "formula", "formula": "tanh(3*x)", "kinks": ""})
    test.sidebar.selectbox(key="explorer.activation").set_value("tanh").run()
    assert "formula" not in test.query_params
    test.sidebar.selectbox(key="explorer.activation").set_value("formula").run()
    assert test.sidebar.text_input(key="explorer.formula").value == "tanh(3*x)"


LATE = pytest.mark.slow  # of each kind of input one is bad every time


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"activation": "formula", "formula": "__import__('os')"}, "Unknown function '__import__'"),
        pytest.param(
            {"activation": "formula", "formula": "abs(x)", "kinks": ""},
            "undeclared kink near x = 0",
            marks=LATE,
        ),
        pytest.param(
            {"activation": "formula", "formula": "0*x", "kinks": ""},
            "activation of match is constant",
            marks=LATE,
        ),
        ({"activation": "formula", "kinks": "a"}, "must be numbers between commas"),
        pytest.param(
            {"activation": "cell", "cell": "own", "layers": "tanh weight=-1"},
            "at least 0",
            marks=LATE,
        ),
        ({"activation": "cell", "cell": "own", "layers": ""}, "at least one layer"),
        pytest.param(
            {"activation": "cell", "cell": "own", "layers": "relu weight=3 inject=1"},
            "not found",
            marks=LATE,
        ),
        ({"family": "dual"}, "for rows of norm one"),
        pytest.param({"data": "upload"}, "upload a .npz or .csv", marks=LATE),
        ({"data": "digits", "classes": "6,elephant"}, "elephant"),
        ({"activation": "formula", "formula": "2*x", "sigma_a2": "0.9"}, "was not found"),
    ],
)
def test_bad_input_is_explained_and_the_page_goes_on(query: dict[str, str], told: str) -> None:
    test = opened(explorer, {**SMALL, **query})
    messages = [message.value.replace("\\", "") for message in (*test.error, *test.warning)]
    messages += [caption.value.replace("\\", "") for caption in test.caption]
    assert any(told in message for message in messages), messages
    test.sidebar.selectbox(key="explorer.activation").set_value("relu")
    if query.get("activation") == "cell":
        test.run()  # σa² comes back
    test.sidebar.selectbox(key="explorer.data").set_value("mixture")
    test.sidebar.selectbox(key="explorer.family").set_value("leaky_relu")
    test.sidebar.slider(key="explorer.sigma_a2").set_value(0.2).run()
    assert not test.exception
    assert shown(test, "relative gap") == expected()


def test_a_bad_link_is_explained() -> None:
    test = opened(explorer, {**SMALL, "sigma_a2": "7", "nonsense": "![](http://example.org/x)"})
    told = [warning.value for warning in test.warning]
    assert len(told) == 2
    assert "number from 0 to 0" in told[0]
    assert shown(test, "relative gap") == expected()


def test_what_is_not_here_is_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    test = opened(explorer, {**SMALL, "data": "mnist"})
    (error,) = test.error
    assert "notsodeep data get mnist" in error.value.replace("\\", "")


def test_markdown_in_messages_is_shown_as_it_is() -> None:
    assert plain("![](http://x) __import__\n| $x$ :red[a]") == (
        r"\!\[\]\(http\:\/\/x\) \_\_import\_\_ \| \$x\$ \:red\[a\]"
    )


def test_the_script_is_there_and_the_server_keeps_to_itself() -> None:
    assert SCRIPT.is_file()
    options = options_of(8501)
    assert options["server_address"] == "localhost"
    assert options["browser_gatherUsageStats"] is False
    assert options["server_headless"] is True
    assert options["server_maxUploadSize"] == 20


def test_controls_need_neither_matplotlib_nor_compiled_kernels() -> None:
    """They are there first, while everything else is imported."""
    script = "import sys, notsodeep.explorer.explorer_page; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(output.stdout.split())
    assert "streamlit" in loaded
    assert not loaded & {"matplotlib", "numba", "torch", "pandas", "scipy.optimize"}


def trained() -> None:
    from notsodeep.explorer.trained_page import trained_page

    trained_page()


@pytest.mark.slow
def test_trained_networks_show_verdict_front_and_certified_share() -> None:
    test = opened(trained, {})
    headings = [heading.value for heading in test.subheader]
    assert headings[0].startswith("settles")
    tables = [element.value for element in test.markdown if "proved" in element.value]
    assert len(tables) == 1
    assert tables[0].count("\n") == 4  # a line for each of three layers
    assert tuple(test.selectbox("network").options) == zoo.names()

"""The explorer in a real browser: what a person does, checked against the library."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

import notsodeep as nsd
from browser import PATIENCE, at_rest, chromium, metric, served
from notsodeep.explorer.explorer_data import prepared
from notsodeep.explorer.shown import KnownData, view_of
from notsodeep.explorer.state import ExplorerState

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")
expect = playwright.expect
expect.set_options(timeout=PATIENCE)

SMALL = "samples=120&dimension=150&family=leaky_relu&width=64"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as url:
        yield url


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile"), accept_downloads=True) as browser:
        yield browser


def gap_of(state: ExplorerState, upload: tuple[str, bytes] | None = None) -> str:
    view = view_of(state, KnownData.of(prepared(state, upload)))
    assert view.certificate is not None
    return f"{view.certificate.matched.relative_gap:.3%}"


def state_for(**changes: Any) -> ExplorerState:
    small = {"samples": 120, "dimension": 150, "family": "leaky_relu", "width": 64}
    return ExplorerState(**{**small, **changes})


def shows(page: Any, label: str, text: str) -> None:
    """Wait for a number, and then for the rest of the page."""
    expect(metric(page, label)).to_have_text(text)
    at_rest(page)


def setting(page: Any, name: str) -> str:
    """Return a setting as the link in the address bar has it."""
    return parse_qs(urlsplit(page.url).query).get(name, ["the default"])[0]


def asked_of_others(page: Any) -> list[str]:
    """Return a list in which requests to other machines will be found."""
    asked: list[str] = []

    def note(request: Any) -> None:
        if request.url.startswith("http") and urlsplit(request.url).hostname != "localhost":
            asked.append(request.url)

    page.on("request", note)
    return asked


def test_sliders_and_links(address: str, context: Any) -> None:
    page = context.new_page()
    asked = asked_of_others(page)

    # A shared link opens the state it was made in.
    page.goto(f"{address}/?{SMALL}")
    shows(page, "relative gap", gap_of(state_for()))

    # A slider moves the numbers and the link.
    slider = page.get_by_role("slider", name="σa²")
    slider.press("ArrowRight")
    shows(page, "relative gap", gap_of(state_for(sigma_a2=0.21)))
    assert setting(page, "sigma_a2") == "0.21"
    link = page.url
    page.goto("about:blank")
    page.goto(link)  # a new session
    shows(page, "relative gap", gap_of(state_for(sigma_a2=0.21)))
    assert asked == []
    page.close()


@pytest.mark.slow
def test_formulas_uploads_and_downloads(address: str, context: Any, tmp_path: Path) -> None:
    page = context.new_page()
    asked = asked_of_others(page)

    # A formula that does not parse is explained, and the page goes on.
    page.goto(f"{address}/?{SMALL}&activation=formula&formula=__import__('os')&kinks=")
    expect(page.get_by_test_id("stAlert")).to_contain_text("Unknown function '__import__'")
    at_rest(page)
    page.get_by_role("textbox", name="formula in x").fill("tanh(2*x)")
    page.get_by_role("textbox", name="formula in x").press("Enter")
    formula = state_for(activation="formula", formula="tanh(2*x)", kinks="")
    shows(page, "relative gap", gap_of(formula))

    # A file of one's own.
    rng = np.random.default_rng(0)
    y = np.arange(140) % 2
    mine = tmp_path / "mine.npz"
    np.savez(mine, X=rng.standard_normal((140, 30)) + y[:, None], y=y)
    page.goto(f"{address}/?{SMALL}&data=upload&samples=60")
    expect(page.get_by_test_id("stAlert")).to_contain_text("No file is here yet")
    at_rest(page)
    page.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(mine)
    uploaded = state_for(data="upload", samples=60)
    shows(page, "relative gap", gap_of(uploaded, (mine.name, mine.read_bytes())))
    assert "upload=" in page.url

    # The network, built on request, is the matched one.
    page.get_by_role("button", name="Build the network").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Network (safetensors)").click()
    file = tmp_path / "network.safetensors"
    download.value.save_as(file)
    network = nsd.load(file)
    view = view_of(uploaded, KnownData.of(prepared(uploaded, (mine.name, mine.read_bytes()))))
    assert network.model == view.match.network
    assert (network.width, network.in_features, network.classes) == (64, 30, ("0", "1"))

    assert asked == []
    page.close()


def test_the_server_is_for_this_machine_alone(address: str) -> None:
    port = urlsplit(address).port
    own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for host in own - {"127.0.0.1"}:
        with socket.socket() as probe:
            probe.settimeout(2.0)
            assert probe.connect_ex((host, port)) != 0


@pytest.mark.slow
def test_going_back_restores_the_state(address: str, context: Any) -> None:
    first, second = gap_of(state_for()), gap_of(state_for(sigma_a2=0.19))
    assert first != second
    page = context.new_page()
    page.goto(f"{address}/?{SMALL}")
    shows(page, "relative gap", first)
    page.get_by_role("slider", name="σa²").press("ArrowLeft")
    shows(page, "relative gap", second)
    assert setting(page, "sigma_a2") == "0.19"
    page.go_back()
    shows(page, "relative gap", first)
    assert setting(page, "sigma_a2") == "the default"
    page.go_forward()
    shows(page, "relative gap", second)
    assert setting(page, "sigma_a2") == "0.19"
    page.get_by_role("link", name="Before training").click()
    expect(page.get_by_role("heading", name="Before training")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Equivalence").click()
    shows(page, "relative gap", second)
    page.close()


@pytest.mark.slow
def test_a_small_screen_shows_everything(address: str, context: Any) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{address}/?{SMALL}")
    shows(page, "relative gap", gap_of(state_for()))
    expect(page.get_by_role("button", name="Build the network")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for image in page.get_by_role("img").all():
        box = image.bounding_box()
        assert box is None or box["x"] + box["width"] <= 401
    page.close()

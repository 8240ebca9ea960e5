"""A server of the explorer, and a real browser to look at it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 180_000  # milliseconds; other work may keep the machine busy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(**environment: str) -> Iterator[str]:
    """Start `notsodeep explore` as a user would, and give its address."""
    port = free_port()
    command = [sys.executable, "-m", "notsodeep", "explore", "--no-browser", "--port", str(port)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    ) as process:
        try:
            _await(f"http://localhost:{port}/_stcore/health", process)
            yield f"http://localhost:{port}"
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE / 1000)


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < end:
        if process.poll() is not None:
            output = process.communicate()[0].decode()
            raise RuntimeError(f"the server ended with {process.returncode}: {output}")
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"no answer from {address}")


@contextlib.contextmanager
def chromium(profile: Path, **options: Any) -> Iterator[Any]:
    """Start Chromium without a window and with a fresh profile, or skip the test."""
    executable = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")
    with api.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            profile, executable_path=executable, headless=True, args=_FLAGS, timeout=PATIENCE,
            **options,
        )  # fmt: skip
        context.set_default_timeout(PATIENCE)
        try:
            yield context
        finally:
            context.close()


def at_rest(page: Any) -> None:
    """Wait until the server has sent the whole page."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def metric(page: Any, label: str) -> Any:
    """Return the place of a number on the page."""
    return page.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue")


def fits_any_screen(page: Path, profiles: Path) -> None:
    """Require a report no wider than its screen, whose dark reaches the figures.

    On a phone, tables that are wider say so by a shadow at their edge.
    """
    for width, scheme, ink in (
        (1280, "light", "rgb(0, 0, 0)"),
        (390, "dark", "rgb(232, 234, 238)"),
    ):
        options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        with chromium(profiles / scheme, **options) as browser:
            tab = browser.new_page()
            tab.goto(page.as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            wide = tab.evaluate(
                "[...document.querySelectorAll('table')].map(t => t.parentElement)"
                ".filter(e => e.scrollWidth > e.clientWidth)"
                ".map(e => getComputedStyle(e).overflowX + getComputedStyle(e).backgroundImage)"
            )
            assert width == 390 or not wide
            assert all(style.startswith("autolinear-gradient") for style in wide)
            inks = (
                "[...document.querySelectorAll('figure text')].map(t => getComputedStyle(t).fill)"
            )
            assert set(tab.evaluate(inks)) == {ink}

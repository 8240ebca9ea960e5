"""Shared fixtures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("fixed")

# Jobs in the background of a shell ignore Ctrl-C, and those of `nohup` the end of the terminal; and
# so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SLOW_SECONDS = 1800.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow slow tests more time than pyproject.toml allows the others."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages without what is in their figures, which takes most of the time of a small run.

    For tests that are about something else; those of tests/report draw every figure.
    """
    monkeypatch.setattr("notsodeep.report.report.svg_text", lambda _: "<svg></svg>")


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """Put `__main__` back: a page run by Streamlit's AppTest takes its place.

    Processes that a later test spawns would begin by running that page.
    """
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main

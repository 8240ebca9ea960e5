"""Pages run as Streamlit runs them, without a trace in other tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _main_module() -> Iterator[None]:
    """Put ``__main__`` back: the runner replaces it, and new processes would import the page."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before

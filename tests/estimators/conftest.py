from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that test modules can import `digit_split`

from digit_split import Split, split_digits


@pytest.fixture(scope="session")
def digits() -> Split:
    return split_digits()

from __future__ import annotations

import pytest

from digit_split import Split, split_digits


@pytest.fixture(scope="session")
def digits() -> Split:
    return split_digits()

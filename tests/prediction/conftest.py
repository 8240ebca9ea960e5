from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that test modules can import `risk_cases`


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)

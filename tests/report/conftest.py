"""Small networks with every head, trained once for the tests of pictures and pages."""

from __future__ import annotations

from typing import Any

import pytest

from notsodeep.head_names import FIVE_HEADS
from notsodeep.papers.collapse_settings import CollapseSettings
from notsodeep.papers.collapse_training import train_head

Record = dict[str, Any]


def _trained(imbalances: list[dict[str, Any]]) -> list[Record]:
    """Train five heads with two seeds for two epochs, on few digits."""
    return [
        train_head(
            CollapseSettings(
                head, samples=200, test_samples=50, width=12, epochs=2, seed=seed, **imbalance
            )
        )
        for imbalance in imbalances
        for seed in range(2)
        for head in FIVE_HEADS
    ]


@pytest.fixture(scope="session")
def balanced() -> list[Record]:
    """Records of one balanced setting."""
    return _trained([{}])


@pytest.fixture(scope="session")
def imbalanced() -> list[Record]:
    """Records of two ratios, five large and five small classes."""
    return _trained([{"num_majority": 5, "ratio": ratio} for ratio in (2.0, 5.0)])

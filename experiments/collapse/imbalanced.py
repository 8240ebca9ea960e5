"""Minority collapse of trained networks: a few classes with R times fewer samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.collapse.balanced import train_cell
from experiments.collapse.head_names import FIVE_HEADS, HeadKind
from experiments.collapse.settings import CollapseSettings
from experiments.collapse.training import kept
from experiments.runner import Cell, Experiment, Profile

_GRID = [(split, ratio) for ratio in (100.0, 10.0, 50.0) for split in (5, 3, 7)]
_SMOKE: dict[str, Any] = {
    "data": "digits",
    "samples": 500,
    "test_samples": 100,
    "width": 24,
    "epochs": 6,
}
_QUICK: dict[str, Any] = {
    "data": "digits",
    "samples": 1000,
    "test_samples": 330,
    "width": 64,
    "epochs": 30,
    "measure_every": 3,
}
# Weight decay is what limits the norms of features and classifier here; at 0.005 its time scale,
# (1 − momentum)/(rate · decay) = 400 steps, is shorter than the runs.
_IMAGES: dict[str, Any] = {
    "data": "cifar10",
    "samples": 5000,
    "test_samples": 1000,
    "backbone": "resnet18",
    "width": 8,
    "epochs": 16,
    "batch_size": 32,
    "measure_every": 2,
}
# The whole grid would take the ResNet hours; a smaller network goes through it.
_SMALL_IMAGES: dict[str, Any] = {
    "data": "fashion_mnist",
    "samples": 5000,
    "test_samples": 1000,
    "width": 64,
    "epochs": 30,
    "measure_every": 5,
}


def _cells(profile: Profile) -> list[Cell]:
    """List all heads of a setting and seed together, and what tells most first."""
    if profile == "smoke":
        return _with_heads(_SMOKE, [(5, 50.0)], range(2))
    if profile == "quick":
        return _with_heads(_QUICK, _GRID, range(2))
    images = [(5, 100.0), (5, 10.0)]
    return [
        *_with_heads(_SMALL_IMAGES, _GRID, range(3)),
        *_with_heads(_SMALL_IMAGES, _GRID, range(3), ("explicit_started", "explicit_inverse")),
        *(cell for point in images for cell in _with_heads(_IMAGES, [point], range(3))),
    ]


def _with_heads(
    place: dict[str, Any],
    imbalances: list[tuple[int, float]],
    seeds: range,
    heads: Sequence[HeadKind] = FIVE_HEADS,
) -> list[Cell]:
    return [
        CollapseSettings(head, **place, num_majority=split, ratio=ratio, seed=seed).to_dict()
        for seed in seeds
        for split, ratio in imbalances
        for head in heads
    ]


EXPERIMENT = Experiment(
    name="collapse-imbalanced",
    title="Minority collapse of trained heads, R times fewer samples in some classes",
    source="setting of arXiv 2410.23391, whose tables are not available",
    cells=_cells,
    compute=train_cell,
    kept=kept,
    results="collapse-heads",
)

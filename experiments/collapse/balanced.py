"""Neural collapse of trained networks on balanced classes, with every head."""

from __future__ import annotations

from typing import Any

from experiments.collapse.head_names import FIVE_HEADS
from experiments.collapse.settings import CollapseSettings
from experiments.collapse.training import kept, train_head
from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import data_directory

_SMOKE = {"data": "digits", "samples": 200, "test_samples": 100, "width": 24, "epochs": 6}
_QUICK = {"data": "digits", "samples": 1000, "test_samples": 330, "width": 64, "epochs": 40}
# The paper's rate, 1e-4, would need far more epochs.  With these a narrow ResNet fits 500 images of
# each class (training accuracy above 0.99) in three minutes of one core.
IMAGES: dict[str, Any] = {
    "data": "cifar10",
    "samples": 5000,
    "test_samples": 1000,
    "backbone": "resnet18",
    "width": 8,
    "epochs": 14,
    "batch_size": 32,
    "learning_rate": 0.05,
    "weight_decay": 1e-3,
    "measure_every": 2,
}


def _cells(profile: Profile) -> list[Cell]:
    """List all heads of a seed before the next seed: what is done first can be compared."""
    places: dict[str, list[Cell]] = {
        "smoke": [_SMOKE],
        "quick": [_QUICK],
        "paper": _image_sets(),
    }
    seeds = range(2 if profile == "smoke" else 3)
    return [
        CollapseSettings(head, **place, seed=seed).to_dict()
        for place in places[profile]
        for seed in seeds
        for head in FIVE_HEADS
    ]


def _image_sets() -> list[Cell]:
    """CIFAR-10; and, if it is on this machine, CIFAR-100, whose simplex needs 99 features."""
    larger = {**IMAGES, "data": "cifar100", "samples": 10000, "width": 16}
    return [IMAGES, *([larger] if (data_directory() / "cifar100.npz").exists() else [])]


def train_cell(cell: Cell, seed: int) -> Record:
    """Train one network; its seed is in the cell, so that heads are paired over seeds."""
    return {**train_head(CollapseSettings.from_dict(cell)), "seed_of_cell": seed}


EXPERIMENT = Experiment(
    name="collapse-balanced",
    title="Neural collapse of trained heads, balanced classes",
    source="setting of arXiv 2410.23391, whose tables are not available",
    cells=_cells,
    compute=train_cell,
    kept=kept,
    results="collapse-heads",
)

"""Collapse and minority collapse to training error zero: a perceptron on features of VGG-19.

The features are those after the last pooling of VGG-19, 512 numbers an image, in a file
``cifar10_vgg19.npz`` or ``cifar100_vgg19.npz`` of the data directory with the arrays X, y, X_test
and y_test.  A file that is not there is made on first use, from the images and weights of VGG-19 in
the same directory; see `experiments.accuracy.vgg19` for where weights come from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.accuracy.vgg19 import FILES, weights_file, with_features
from experiments.collapse.balanced import train_cell
from experiments.collapse.head_names import HeadKind
from experiments.collapse.settings import CollapseSettings
from experiments.collapse.training import kept
from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import data_directory, load

_HEADS: tuple[HeadKind, ...] = (
    "explicit",
    "explicit_matched",
    "explicit_started",
    "deq",
    "residual",
    "deq_truncated",
    "explicit_inverse",
)
_GAINS: tuple[HeadKind, ...] = ("explicit", "explicit_matched", "deq")
_NONLINEAR: tuple[HeadKind, ...] = (*_HEADS, "deq_monotone")
# 2000 images for 3200 steps: eight times the (1 − momentum)/(rate · decay) = 400 in which weight
# decay does its work.
_BED: dict[str, Any] = {
    "data": "cifar10_vgg19.npz",
    "samples": 2000,
    "test_samples": 1000,
    "width": 64,
    "batch_size": 500,
    "epochs": 800,
    "measure_every": 100,
}
# Two of these times: training error is small by then, and classes still draw together.
_SHORT: dict[str, Any] = {**_BED, "epochs": 200, "measure_every": 50}
# All images, of which a third is hard to fit.  Strong decay of the features' scale and of the
# classifier keeps the loss from vanishing, so that classes are drawn together to the end; the same
# decay in front of the normalisations would turn the layers by so much in a step that the last
# images are fitted only when the rate has nearly vanished.
_WHOLE: dict[str, Any] = {
    **_BED, "samples": None, "test_samples": None, "first_width": 1024, "epochs": 140,
    "learning_rate": 0.2, "weight_decay": 5e-2, "scale_free_decay": 5e-4, "measure_every": 10,
}  # fmt: skip
# Small classes do not bear so much: at 5e-2 they merge from R = 50 on, whatever the head.  A tenth
# of it, that of the runs on few images, leaves the thresholds of heads within the ratios.
_WHOLE_IMBALANCED: dict[str, Any] = {**_WHOLE, "epochs": 90, "weight_decay": 5e-3}
# Thirty images of each of a hundred classes, whose simplex needs 99 features: decay of their scales
# puts many of these out, and what is left has too few directions.
_FADING: dict[str, Any] = {
    **_BED, "data": "cifar100_vgg19.npz", "samples": 3000, "width": 128, "epochs": 200,
    "measure_every": 50,
}  # fmt: skip
# With a fixed scale all features stay, and a hundred images of each class collapse.
_HUNDRED: dict[str, Any] = {
    **_WHOLE, "data": "cifar100_vgg19.npz", "samples": 10_000, "width": 256, "first_width": 2048,
    "feature_scale": "fixed", "weight_decay": 1e-1, "epochs": 250, "measure_every": 25,
}  # fmt: skip
_HUNDRED_IMBALANCED: dict[str, Any] = {
    **_HUNDRED, "weight_decay": 3e-2, "epochs": 120, "measure_every": 20,
}  # fmt: skip
_SMOKE: dict[str, Any] = {**_BED, "data": "digits", "samples": 200, "test_samples": 50, "epochs": 2}
_RATIOS = (10.0, 100.0, 50.0)
_ENDING = "_vgg19.npz"


def _cells(profile: Profile) -> list[Cell]:
    """List runs on few images before those on all; in each, what tells most first."""
    match profile:
        case "smoke":
            return _trained(_HEADS[:2], range(2), _SMOKE, [None, (5, 10.0)])
        case "quick":
            return _trained(_HEADS[:4], range(2), _SHORT, [None, (5, 10.0)])
        case "paper":
            tens = [(split, ratio) for split in (5, 3, 7) for ratio in _RATIOS]
            hundreds = [(10 * split, ratio) for split, ratio in tens]
            halves = [imbalance for imbalance in hundreds if imbalance[0] == 50]
            return [
                *_sweep(range(3), _BED),
                *_trained(_NONLINEAR, range(3), {**_BED, "activation": "relu"}, [None]),
                *_trained(_NONLINEAR, range(3), {**_BED, "activation": "tanh"}, [None]),
                *_trained(_GAINS, range(3), _FADING, [None, (50, 10.0)]),
                *_trained(_GAINS, range(5), _WHOLE, [None]),
                *_trained(_GAINS, range(5), _WHOLE_IMBALANCED, tens),
                *_trained(_GAINS, range(5), _HUNDRED, [None]),
                *_trained(_GAINS, range(5), _HUNDRED_IMBALANCED, hundreds),
                # Whether it is the start that a DEQ is behind by.
                *_trained(("explicit_started",), range(3), _HUNDRED, [None]),
                *_trained(("explicit_started",), range(3), _HUNDRED_IMBALANCED, halves),
            ]


def _sweep(seeds: range, place: Cell) -> list[Cell]:
    """List balanced classes and equally many large and small ones first, four heads before all."""
    first = [None, *((5, ratio) for ratio in _RATIOS)]
    others = [(split, ratio) for split in (3, 7) for ratio in _RATIOS]
    return [
        *_trained(_HEADS[:4], seeds, place, first),
        *_trained(_HEADS[:4], seeds, place, others),
        *_trained(_HEADS[4:], seeds, place, [*first, *others]),
    ]


def _trained(
    heads: tuple[HeadKind, ...],
    seeds: range,
    place: Cell,
    imbalances: Sequence[tuple[int, float] | None],
) -> list[Cell]:
    cells = []
    for imbalance in imbalances:
        split, ratio = imbalance or (None, None)
        cells += [
            CollapseSettings(head, **place, num_majority=split, ratio=ratio, seed=seed).to_dict()
            for seed in seeds
            for head in heads
        ]
    return cells


def _train_on_features(cell: Cell, seed: int) -> Record:
    """Train on a file of the data directory; the record names the file alone."""
    name = cell["data"]
    place = str(_feature_file(name)) if name.endswith(_ENDING) else name
    record = train_cell({**cell, "data": place}, seed)
    return {**record, "settings": {**record["settings"], "data": name}}


def _feature_file(name: str) -> Path:
    """Return the path of a file of features, which is made if it is not there."""
    path = data_directory() / name
    if not path.is_file():
        images = load(name.removesuffix(_ENDING), preprocessing="none")
        weights = weights_file() or path.with_name(FILES[0])
        data = with_features(images, weights, pooled=True, scaled=False)
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as stream:
            np.savez(stream, X=data.X, y=data.y, X_test=data.X_test, y_test=data.y_test)
        part.replace(path)
    return path


EXPERIMENT = Experiment(
    name="collapse-features",
    title="Neural collapse of trained heads on features of VGG-19",
    source="setting of arXiv 2410.23391, whose tables are not available",
    cells=_cells,
    compute=_train_on_features,
    kept=kept,
    results="collapse-heads",
)

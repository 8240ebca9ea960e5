"""What is trained: balanced and imbalanced classes, causes of differences, features of VGG-19.

Heads of a setting and seed come together, and what tells most comes first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.accuracy.vgg19 import FILES, weights_file, with_features
from experiments.collapse.heads import ACTIVATIONS, FIVE_HEADS, KINDS
from experiments.collapse.train import head_cell, kept, train_cell
from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import data_directory, load

_SOURCE = "setting of arXiv 2410.23391, whose tables are not available"
_RATIOS = (10.0, 100.0, 50.0)
Imbalance = tuple[int, float] | None


def _trained(
    heads: Sequence[str],
    seeds: Iterable[int],
    place: Cell,
    imbalances: Sequence[Imbalance] = (None,),
) -> list[Cell]:
    """Return cells for each imbalance (K_A, R), in it for each seed, in it for each head."""
    return [
        head_cell(head, **{**place, **_imbalance(imbalance)}, seed=seed)
        for imbalance in imbalances
        for seed in seeds
        for head in heads
    ]


def _imbalance(imbalance: Imbalance) -> Cell:
    return {} if imbalance is None else {"num_majority": imbalance[0], "ratio": imbalance[1]}


# The paper's rate, 1e-4, would need far more epochs.  With these a narrow ResNet fits 500 images of
# each class (training accuracy above 0.99) in three minutes of one core.
IMAGES: Cell = {
    "data": "cifar10", "samples": 5000, "test_samples": 1000, "backbone": "resnet18", "width": 8,
    "epochs": 14, "batch_size": 32, "learning_rate": 0.05, "weight_decay": 1e-3, "measure_every": 2,
}  # fmt: skip
_DIGITS: Cell = {"samples": 1000, "test_samples": 330}


def _balanced(profile: Profile) -> list[Cell]:
    if profile == "smoke":
        small = {"samples": 200, "test_samples": 100, "width": 24, "epochs": 6}
        return _trained(FIVE_HEADS, range(2), small)
    if profile == "quick":
        return _trained(FIVE_HEADS, range(3), _DIGITS)
    # CIFAR-100, if it is on this machine, whose simplex needs 99 features.
    larger = {**IMAGES, "data": "cifar100", "samples": 10000, "width": 16}
    known = (data_directory() / "cifar100.npz").exists()
    places = [IMAGES, *([larger] if known else [])]
    return [cell for place in places for cell in _trained(FIVE_HEADS, range(3), place)]


def _imbalanced(profile: Profile) -> list[Cell]:
    grid = [(split, ratio) for ratio in (100.0, 10.0, 50.0) for split in (5, 3, 7)]

    def over_seeds(heads: Sequence[str], seeds: int, place: Cell, points: Any) -> list[Cell]:
        return [c for seed in range(seeds) for c in _trained(heads, [seed], place, points)]

    if profile == "smoke":
        small = {"samples": 500, "test_samples": 100, "width": 24, "epochs": 6}
        return over_seeds(FIVE_HEADS, 2, small, [(5, 50.0)])
    if profile == "quick":
        return over_seeds(FIVE_HEADS, 2, {**_DIGITS, "epochs": 30, "measure_every": 3}, grid)
    # Weight decay is what limits the norms of features and classifier here; at 0.005 its time
    # scale, (1 − momentum)/(rate · decay) = 400 steps, is shorter than the runs.
    images = {key: IMAGES[key] for key in IMAGES if key not in ("learning_rate", "weight_decay")}
    # The whole grid would take the ResNet hours; a smaller network goes through it.
    fashion = {
        "data": "fashion_mnist", "samples": 5000, "test_samples": 1000, "epochs": 30,
        "measure_every": 5,
    }  # fmt: skip
    return [
        *over_seeds(FIVE_HEADS, 3, fashion, grid),
        *over_seeds(("explicit_started", "explicit_inverse"), 3, fashion, grid),
        *_trained(FIVE_HEADS, range(3), {**images, "epochs": 16}, [(5, 100.0), (5, 10.0)]),
    ]


_LADDER = ("explicit", "explicit_matched", "explicit_started", "explicit_inverse", "deq")


def _causes(profile: Profile) -> list[Cell]:
    """Change rate, start, parametrisation and activation, one at a time.

    A perceptron on digits is at training error zero after a thousand steps, so that many runs fit
    into minutes; a narrow ResNet-18 on CIFAR-10 repeats the few runs that decide.  The optimum does
    not depend on the rate: what a rate changes is how much of the way is covered.
    """
    bed = {**_DIGITS, "batch_size": 100, "epochs": 100, "measure_every": 10, "learning_rate": 0.2}
    if profile == "smoke":
        small = {"samples": 200, "test_samples": 100, "width": 16, "epochs": 2}
        return _trained(_LADDER[-2:], range(2), {**bed, **small, "activation": "relu"})

    def each(heads: Sequence[str], seeds: range, places: list[Cell]) -> list[Cell]:
        return [cell for place in places for cell in _trained(heads, seeds, place)]

    if profile == "quick":
        return _trained(KINDS, range(3), bed)
    bent = [{**bed, "activation": name} for name in ("tanh", "relu")]
    step = {**bed, "num_majority": 5, "ratio": 10.0}
    # A full run of the ResNet takes two to three minutes of a core; at this length seeds differ
    # more than heads, so that it takes eight of them.
    images = {**IMAGES, "samples": 2000, "test_samples": 500, "epochs": 10, "measure_every": 5}
    return [
        *_trained(KINDS, range(3), bed),
        *each(_LADDER, range(3), [{**bed, "learning_rate": r} for r in (0.05, 0.8, 0.0125)]),
        *each(KINDS, range(3), bent),
        # With ReLU alone the DEQ may be ahead at equal gain, which three seeds do not decide.
        *_trained(_LADDER[1:], range(3, 8), bent[-1]),
        *_trained(_LADDER, range(3), {**bed, "epochs": 400, "measure_every": 40}),
        *each(KINDS, range(3), [{**step, "activation": name} for name in ACTIVATIONS]),
        *each(
            ("deq", "deq_monotone"),
            range(3),
            [{**bed, "activation": name, "solver": "strict"} for name in ACTIVATIONS],
        ),
        *each(_LADDER[1:], range(8), [images, {**images, "learning_rate": 0.0125}]),
    ]


_HEADS = (
    "explicit", "explicit_matched", "explicit_started", "deq", "residual", "deq_truncated",
    "explicit_inverse",
)  # fmt: skip
_GAINS = ("explicit", "explicit_matched", "deq")
_ENDING = "_vgg19.npz"
# 2000 images for 3200 steps: eight times the (1 − momentum)/(rate · decay) = 400 in which weight
# decay does its work.
_BED: Cell = {
    "data": "cifar10_vgg19.npz", "samples": 2000, "test_samples": 1000, "width": 64,
    "batch_size": 500, "epochs": 800, "measure_every": 100,
}  # fmt: skip
# All images, of which a third is hard to fit.  Strong decay of the features' scale and of the
# classifier keeps the loss from vanishing, so that classes are drawn together to the end; the same
# decay in front of the normalisations would turn the layers by so much in a step that the last
# images are fitted only when the rate has nearly vanished.
_WHOLE: Cell = {
    **_BED, "samples": None, "test_samples": None, "first_width": 1024, "epochs": 140,
    "learning_rate": 0.2, "weight_decay": 5e-2, "scale_free_decay": 5e-4, "measure_every": 10,
}  # fmt: skip
# Small classes do not bear so much: at 5e-2 they merge from R = 50 on, whatever the head.  A tenth
# of it, that of the runs on few images, leaves the thresholds of heads within the ratios.
_WHOLE_IMBALANCED: Cell = {**_WHOLE, "epochs": 90, "weight_decay": 5e-3}
# Thirty images of each of a hundred classes, whose simplex needs 99 features: decay of their scales
# puts many of these out, and what is left has too few directions.
_FADING: Cell = {
    **_BED, "data": "cifar100_vgg19.npz", "samples": 3000, "width": 128, "epochs": 200,
    "measure_every": 50,
}  # fmt: skip
# With a fixed scale all features stay, and a hundred images of each class collapse.
_HUNDRED: Cell = {
    **_WHOLE, "data": "cifar100_vgg19.npz", "samples": 10_000, "width": 256, "first_width": 2048,
    "feature_scale": "fixed", "weight_decay": 1e-1, "epochs": 250, "measure_every": 25,
}  # fmt: skip
_HUNDRED_IMBALANCED: Cell = {**_HUNDRED, "weight_decay": 3e-2, "epochs": 120, "measure_every": 20}


def _features(profile: Profile) -> list[Cell]:
    """List runs on few images before those on all; training error reaches zero."""
    if profile == "smoke":
        small = {**_BED, "data": "digits", "samples": 200, "test_samples": 50, "epochs": 2}
        return _trained(_HEADS[:2], range(2), small, [None, (5, 10.0)])
    if profile == "quick":  # training error is small by then, and classes still draw together
        short = {**_BED, "epochs": 200, "measure_every": 50}
        return _trained(_HEADS[:4], range(2), short, [None, (5, 10.0)])
    seeds, more = range(3), range(5)
    first = [None, *((5, ratio) for ratio in _RATIOS)]
    others = [(split, ratio) for split in (3, 7) for ratio in _RATIOS]
    tens = [(split, ratio) for split in (5, 3, 7) for ratio in _RATIOS]
    hundreds = [(10 * split, ratio) for split, ratio in tens]
    nonlinear = (*_HEADS, "deq_monotone")
    return [
        *_trained(_HEADS[:4], seeds, _BED, [*first, *others]),
        *_trained(_HEADS[4:], seeds, _BED, [*first, *others]),
        *_trained(nonlinear, seeds, {**_BED, "activation": "relu"}),
        *_trained(nonlinear, seeds, {**_BED, "activation": "tanh"}),
        *_trained(_GAINS, seeds, _FADING, [None, (50, 10.0)]),
        *_trained(_GAINS, more, _WHOLE),
        *_trained(_GAINS, more, _WHOLE_IMBALANCED, tens),
        *_trained(_GAINS, more, _HUNDRED),
        *_trained(_GAINS, more, _HUNDRED_IMBALANCED, hundreds),
        # Whether it is the start that a DEQ is behind by.
        *_trained(("explicit_started",), seeds, _HUNDRED),
        *_trained(("explicit_started",), seeds, _HUNDRED_IMBALANCED, hundreds[:3]),
    ]


def _train_on_features(cell: Cell, seed: int) -> Record:
    """Train on a file of the data directory; the record names the file alone."""
    name = cell["data"]
    place = str(feature_file(name)) if name.endswith(_ENDING) else name
    return {**train_cell({**cell, "data": place}, seed), "settings": cell}


def feature_file(name: str) -> Path:
    """Return the path of a file of 512 features an image, after the last pooling of VGG-19.

    A file that is not there is made, from images and weights in the same directory; see
    `experiments.accuracy.vgg19` for where weights come from.
    """
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


def _experiment(name: str, title: str, cells: Any, compute: Any = train_cell) -> Experiment:
    return Experiment(name, title, _SOURCE, cells, compute, kept=kept, results="collapse-heads")


EXPERIMENTS = {
    work.name: work
    for work in (
        _experiment(
            "collapse-balanced", "Neural collapse of trained heads, balanced classes", _balanced
        ),
        _experiment(
            "collapse-imbalanced",
            "Minority collapse of trained heads, R times fewer samples in some classes",
            _imbalanced,
        ),
        _experiment(
            "collapse-causes",
            "What makes heads of one gain differ: rate, start, parametrisation, activation",
            _causes,
        ),
        _experiment(
            "collapse-features",
            "Neural collapse of trained heads on features of VGG-19",
            _features,
            _train_on_features,
        ),
    )
}

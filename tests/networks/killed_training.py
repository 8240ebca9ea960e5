"""A training run for the tests of checkpoints to kill: ``python killed_training.py DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from torch import nn

import notsodeep as nsd
from notsodeep.networks.build import build
from notsodeep.networks.training import train
from notsodeep.networks.training_records import TrainingSettings


def run(directory: Path | str, checkpoint_seconds: float) -> nn.Module:
    """Train a small DEQ, or go on training it."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 10)), rng.integers(0, 3, 200)
    net = build(nsd.DeepEquilibrium("tanh", 0.2), 10, 24, 3, rng=0)
    settings = TrainingSettings(
        epochs=5, batch_size=8, optimiser="adam", learning_rate=1e-3, patience=5
    )
    train(
        net,
        X,
        y,
        settings,
        validation=(X[:40], y[:40]),
        checkpoint=directory,
        checkpoint_seconds=checkpoint_seconds,
    )
    return net


if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    run(sys.argv[1], 0.0)

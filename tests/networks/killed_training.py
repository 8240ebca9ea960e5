"""A training run for the tests of checkpoints to kill: ``python killed_training.py DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from torch import nn

import notsodeep as nsd
from notsodeep.networks.random import build
from notsodeep.networks.training import TrainingSettings, train


def run(directory: Path | str | None) -> nn.Module:
    """Train a small DEQ, or go on training it."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 10)), rng.integers(0, 3, 200)
    net = build(nsd.DeepEquilibrium("tanh", 0.2), 10, 24, 3, rng=0)
    settings = TrainingSettings(epochs=12, batch_size=8, optimiser="adam", learning_rate=1e-3)
    train(net, X, y, settings, checkpoint=directory)
    return net


if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    run(sys.argv[1])

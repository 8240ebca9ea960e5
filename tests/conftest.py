"""Shared fixtures."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that test modules can import `cases`

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("fixed")

# Jobs in the background of a shell ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


_EVERY_ROUTE = """
import numpy as np
import notsodeep as nsd
X = np.random.default_rng(0).standard_normal((40, 5))
models = [nsd.DeepEquilibrium(name, sigma_a2=0.2) for name in ("tanh", "relu", "hard_tanh")]
models += [models[1].centred(1.0), nsd.ExplicitNetwork(["relu"]), nsd.ExplicitNetwork(["tanh"])]
for model in models:
    nsd.kernel_pair(model, X)
    nsd.kernel_pair(model, X / np.linalg.norm(X, axis=1, keepdims=True))
    nsd.kernel_pair(model, X, X[:3])
A = nsd.KernelOperator(models[0], np.repeat(X, 30, axis=0), cache="float32")
A @ (A @ np.ones((1200, 2)))
"""


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels before any test process starts.

    What a process has compiled itself and what it loads from the cache may differ in the last bit;
    tests that compare two processes to the last bit need both to load it.
    """
    if not hasattr(config, "workerinput"):
        subprocess.run([sys.executable, "-c", _EVERY_ROUTE], check=True)

"""Cells that are recognised in the modules of described models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.models import DeepEquilibrium, Dense, MonotoneEquilibrium
from notsodeep.networks.affine import AffineDEQ

X = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.9]])
MODELS: dict[str, DeepEquilibrium | MonotoneEquilibrium] = {
    "ring": DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)]),
    "bias": DeepEquilibrium(cell=[Dense("tanh", 1.3, 0.9, 0.15)]),
    "no injection": DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6), Dense("relu", 0.5)]),
    "normalised": DeepEquilibrium(
        cell=[
            Dense("tanh", 0.5, 0.6, 0.1, "preactivation"),
            Dense("relu", 0.3, 0.3, 0.0, "feature"),
        ]
    ),
    "monotone": MonotoneEquilibrium("relu", 0.5, symmetric=0.5, skew=0.3, inject=1.0, bias=0.1),
    "monotone relu": MonotoneEquilibrium("relu", 0.5, symmetric=0.5, skew=0.3),
}


@pytest.mark.parametrize("name", MODELS)
def test_cells_are_recognised_in_their_modules(name: str) -> None:
    net = nsd.build(MODELS[name], 3, 20, 2, rng=0, bias=True, dtype=torch.float64)
    rows = torch.tensor(X)
    with torch.no_grad():
        net.readout_bias.copy_(torch.tensor([0.5, -1.0]))
        z, logits = math.sqrt(20) * net.features(rows).numpy(), net(rows).numpy()
    shift, scale = np.array([0.5, 0.0, -1.0]), 2.0
    found = nsd.EquilibriumCell.from_module(net, shift=shift, scale=scale)
    with torch.no_grad():
        state = torch.as_tensor(z)
        np.testing.assert_allclose(found.step(state, found.drive(scale * X + shift)), z, atol=1e-8)
        np.testing.assert_allclose(found.logits(state), logits, atol=1e-12)
    assert isinstance(found, AffineDEQ) is (name in ("bias", "monotone", "monotone relu"))


def test_a_monotone_network_settles_where_plain_steps_do_not() -> None:
    net = nsd.build(MonotoneEquilibrium("relu", 0.2, symmetric=4.0, skew=4.0), 3, 40, 2, rng=0)
    rows = torch.tensor(X, dtype=torch.float32)
    net(rows)
    assert net.record.converged
    cell = nsd.EquilibriumCell.from_module(net)
    z, drive = torch.zeros(3, 40, dtype=torch.float64), cell.drive(X)
    with torch.no_grad():
        for _ in range(100):
            z = cell.step(z, drive)
        assert (cell.step(z, drive) - z).abs().max() > 1.0
    diagnosis = nsd.diagnose(net, np.tile(X, (4, 1)), rng=0)
    assert diagnosis.margin.kind == "monotone"
    assert diagnosis.margin.value >= 0.2

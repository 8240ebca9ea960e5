"""Torch modules of general cells: their gradients, and kernels that tend to the exact ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import DeepEquilibrium, Dense
from notsodeep.networks.torch_draws import torch_draw

X = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.9]])
MODELS = {
    "ring": DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)]),
    "bias": DeepEquilibrium(cell=[Dense("tanh", 1.3, 0.9, 0.15)]),
    "no injection": DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6), Dense("relu", 0.5)]),
    "normalised": DeepEquilibrium(
        cell=[
            Dense("tanh", 0.5, 0.6, 0.1, "preactivation"),
            Dense("relu", 0.3, 0.3, 0.0, "feature"),
        ]
    ),
}


def test_gradients_are_those_of_the_fixed_point() -> None:
    net = nsd.build(
        MODELS["normalised"], 3, 12, 1, rng=0, dtype=torch.float64,
        solver={"name": "fixed_point", "tolerance": 1e-13, "max_steps": 2000},
    )  # fmt: skip
    rows = torch.tensor(X)
    net(rows).sum().backward()
    for name in net.hidden_names:
        weight = getattr(net, name)
        with torch.no_grad():
            weight[2, 0] += 1e-6
            up = net(rows).sum()
            weight[2, 0] -= 2e-6
            down = net(rows).sum()
            weight[2, 0] += 1e-6
        assert float(weight.grad[2, 0]) == pytest.approx(float(up - down) / 2e-6, abs=1e-6)


def test_modules_are_saved_and_loaded(tmp_path: Path) -> None:
    net = nsd.build(MODELS["ring"], 3, 12, 2, rng=0)
    nsd.save(net, tmp_path / "ring.safetensors")
    again = nsd.load(tmp_path / "ring.safetensors")
    rows = torch.tensor(X, dtype=torch.float32)
    assert torch.equal(again(rows), net(rows))
    assert again.description == MODELS["ring"]


@pytest.mark.parametrize("name", MODELS)
def test_exported_graphs_compute_the_same(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    net = nsd.build(MODELS[name], 3, 24, 2, rng=0)
    nsd.export_onnx(net, tmp_path / "cell.onnx")
    session = runtime.InferenceSession(tmp_path / "cell.onnx")
    logits, residual, steps = session.run(None, {"x": X.astype(np.float32)})
    expected = net(torch.tensor(X, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert residual <= 1e-6
    assert 3 < steps < 200


def test_a_cell_that_does_not_settle_is_not_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    net = nsd.build(DeepEquilibrium(cell=[Dense("tanh", 9.0, 0.1)]), 3, 24, 2, rng=0)
    with pytest.raises(NotConverged, match="plain steps"):
        nsd.export_onnx(net, tmp_path / "cell.onnx")


def test_a_readout_is_fitted_to_a_cell() -> None:
    net = nsd.build(MODELS["ring"], 3, 24, 1, rng=0, trainable="readout", dtype=torch.float64)
    y = X[:, :1]
    nsd.networks.fit_readout(net, X, y, ridge=1e-10)
    np.testing.assert_allclose(net(torch.tensor(X)).detach().numpy(), y, atol=1e-6)


def test_a_cell_of_one_layer_is_recognised() -> None:
    net = nsd.build(MODELS["bias"], 3, 20, 2, rng=0, dtype=torch.float64)
    found = nsd.EquilibriumCell.from_module(net)
    z = math.sqrt(20) * net.features(torch.tensor(X)).detach().numpy()
    field = z @ found.recurrent.T + X @ found.injection.T + found.bias
    np.testing.assert_allclose(found.activation(field), z, atol=1e-8)
    with pytest.raises(InvalidInput, match="one layer without normalisation"):
        nsd.EquilibriumCell.from_module(nsd.build(MODELS["ring"], 3, 20, 2, rng=0))


@pytest.mark.slow
def test_a_smooth_skip_has_a_torch_twin() -> None:
    psi = nsd.activations.with_skip("tanh", 0.5)
    twin = torch_twin(psi)
    x = torch.linspace(-3.0, 3.0, 31, dtype=torch.float64, requires_grad=True)
    np.testing.assert_allclose(twin(x).detach(), psi(x.detach().numpy()), atol=1e-15)
    assert torch.autograd.gradcheck(twin, x)
    assert torch.autograd.gradgradcheck(twin, x)
    model = DeepEquilibrium(cell=[Dense(psi, 0.3, 0.9, 0.1)])
    agree(model, 60, 6)


def agree(model: DeepEquilibrium, width: int, draws: int) -> None:
    draw = torch_draw(model, width, convention="feature", out_features=2)
    estimates = nsd.monte_carlo(draw, X, draws, rng=1)
    for name, estimate in estimates.items():
        exact = nsd.kernel(model, X, kind=name, convention="feature")
        error = np.abs(estimate.mean - exact)
        # The bias at finite width is O(1/m).
        assert (error <= 5 * estimate.standard_error + 3.0 / width * np.abs(exact).max()).all()


def test_kernels_of_modules_are_near_the_exact_ones() -> None:
    agree(MODELS["no injection"], 60, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_wide_modules_are_the_exact_ones(name: str) -> None:
    agree(MODELS[name], 512, 40)

"""Torch modules of general cells: their gradients, and kernels that tend to the exact ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import NotConverged
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


@pytest.mark.parametrize("name", ["normalised", "monotone"])
def test_gradients_are_those_of_the_fixed_point(name: str) -> None:
    net = nsd.build(
        MODELS[name], 3, 12, 1, rng=0, dtype=torch.float64,
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


@pytest.mark.parametrize("name", ["ring", "monotone"])
def test_modules_are_saved_and_loaded(name: str, tmp_path: Path) -> None:
    net = nsd.build(MODELS[name], 3, 12, 2, rng=0)
    nsd.save(net, tmp_path / "cell.safetensors")
    again = nsd.load(tmp_path / "cell.safetensors")
    rows = torch.tensor(X, dtype=torch.float32)
    assert torch.equal(again(rows), net(rows))
    assert again.description == MODELS[name]


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
    assert net.last_record.forward.converged
    cell = nsd.EquilibriumCell.from_module(net)
    z, drive = torch.zeros(3, 40, dtype=torch.float64), cell.drive(X)
    with torch.no_grad():
        for _ in range(100):
            z = cell.step(z, drive)
        assert (cell.step(z, drive) - z).abs().max() > 1.0
    diagnosis = nsd.diagnose(net, np.tile(X, (4, 1)), rng=0)
    assert diagnosis.margin.kind == "monotone"
    assert diagnosis.margin.value >= 0.2


@pytest.mark.slow
def test_a_smooth_skip_has_a_torch_twin() -> None:
    psi = nsd.activations.with_skip("tanh", 0.5)
    twin = torch_twin(psi)
    x = torch.linspace(-3.0, 3.0, 31, dtype=torch.float64, requires_grad=True)
    np.testing.assert_allclose(twin(x).detach(), psi(x.detach().numpy()), atol=1e-15)
    assert torch.autograd.gradcheck(twin, x)
    assert torch.autograd.gradgradcheck(twin, x)
    model = DeepEquilibrium(cell=[Dense(psi, 0.3, 0.9, 0.1)])
    agree(model, 60, 6, bias=0.05)


def agree(
    model: DeepEquilibrium | MonotoneEquilibrium, width: int, draws: int, bias: float = 0.0
) -> None:
    """Within five standard errors, and `bias` for what finite width moves the mean by, O(1/m)."""
    modules = [
        nsd.build(model, X.shape[1], width, 2, seed, dtype=torch.float64) for seed in range(draws)
    ]
    pairs = [nsd.empirical_kernels(module, X) for module in modules]
    for kind, name in (("ck", "ck"), ("ntk", "ntk")):
        exact = nsd.kernel(model, X, kind=kind, convention="feature")
        values = np.stack([np.asarray(getattr(pair, name)) for pair in pairs])
        standard_error = values.std(axis=0, ddof=1) / draws**0.5
        error = np.abs(values.mean(axis=0) - exact)
        # A normalised diagonal does not fluctuate.
        allowed = 5 * standard_error + bias * np.abs(exact).max() + 1e-10
        assert (error <= allowed).all(), (kind, error / standard_error)


@pytest.mark.parametrize("name", ["no injection", "monotone relu"])
def test_kernels_of_modules_are_near_the_exact_ones(name: str) -> None:
    agree(MODELS[name], 60, 6, bias=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_wide_modules_are_the_exact_ones(name: str) -> None:
    agree(MODELS[name], 512, 40)

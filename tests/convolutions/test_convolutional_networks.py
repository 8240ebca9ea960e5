"""Finite convolutional networks: the equation they solve, gradients, kernels of wide ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd
from brute_force import equilibrium, waves
from notsodeep.errors import InvalidInput, NotConverged

torch = pytest.importorskip("torch")


def test_state_solves_its_equation_written_with_torch_layers() -> None:
    """Windows of a strided injection begin where those of torch.nn.Conv2d do."""
    model = equilibrium("tanh", weight=0.2, image_shape=(8, 8, 2), stride=2, padding="zero")
    module = nsd.build(model, 128, 6, 1, rng=0, dtype=torch.float64)
    X = torch.from_numpy(waves(2, 8, 8, 2))
    z = module.states(X)
    recurrent = torch.nn.Conv2d(6, 6, 3, padding=1, bias=False, dtype=torch.float64)
    injected = torch.nn.Conv2d(2, 6, 3, padding=1, stride=2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        recurrent.weight.copy_(module.weight_1)
        injected.weight.copy_(module.injection_1)
        images = X.reshape(2, 8, 8, 2).permute(0, 3, 1, 2)
        h = math.sqrt(0.2) / 3 * recurrent(z) + math.sqrt(0.9) / 3 * injected(images)
        h = h + math.sqrt(0.15) * module.bias_1[:, None, None]
        assert torch.allclose(z, torch.tanh(h) / math.sqrt(6), atol=1e-6)


def test_implicit_gradient_is_that_of_the_unrolled_network() -> None:
    model = equilibrium("tanh", weight=0.2, image_shape=(4, 4, 1))
    module = nsd.build(
        model, 16, 5, 1, rng=1, dtype=torch.float64,
        solver={"name": "fixed_point", "tolerance": 1e-13},
    )  # fmt: skip
    X = torch.from_numpy(waves(2, 4, 4, 1))
    module(X).sum().backward()
    implicit = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    weights = dict(module.named_parameters())
    drives = module.drives(X, weights)
    h = drives[0]
    for _ in range(80):
        h = module.turn(h, drives, weights)[1]
    z = module.turn(h, drives, weights)[0].flatten(1) / 4.0
    (z @ module.readout.mT).sum().backward()
    for name, p in module.named_parameters():
        assert torch.allclose(implicit[name], p.grad, atol=1e-9), name


MODELS = [
    equilibrium(weight=0.2, image_shape=(4, 4, 1)),
    equilibrium("tanh", weight=0.2, image_shape=(4, 4, 1), padding="zero", pooling=2),
    equilibrium(weight=0.2, image_shape=(4, 4, 1), pooling="average"),
    nsd.ConvolutionalNetwork(["relu"], (4, 4, 1), pooling=3),
]


@pytest.mark.slow
@pytest.mark.parametrize("width", [24, 72])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_monte_carlo_over_finite_networks(model: object, width: int) -> None:
    """Empirical kernels of many draws have the exact ones as their mean, to 5 standard errors."""
    X = waves(2, 4, 4, 1)
    exact = nsd.kernel_pair(model, X, convention="feature")
    draws = []
    for seed in range(60):
        module = nsd.build(model, 16, width, 1, rng=seed, dtype=torch.float64)
        kernels = nsd.empirical_kernels(module, X)
        draws.append([kernels.ck, kernels.ntk])
    draws = np.asarray(draws)
    error = draws.std(axis=0, ddof=1) / math.sqrt(len(draws))
    for mean, s, expected in zip(draws.mean(axis=0), error, (exact.ck, exact.ntk), strict=True):
        assert (np.abs(mean - expected) <= 5.0 * s).all()


def test_wide_network_has_the_exact_kernel() -> None:
    model = equilibrium(weight=0.2, image_shape=(4, 4, 1))
    X = waves(2, 4, 4, 1)
    exact = nsd.conjugate_kernel(model, X, convention="feature")
    errors = {}
    for width in (16, 256):
        squares = []
        for seed in range(6):
            module = nsd.build(model, 16, width, 1, rng=seed, dtype=torch.float64)
            with torch.no_grad():
                z = module.features(torch.from_numpy(X))
            squares.append(((z @ z.mT).numpy() - exact) ** 2)
        errors[width] = math.sqrt(np.mean(squares))
    # Four times less for sixteen times the channels, give or take the luck of six draws.
    assert errors[256] < 0.5 * errors[16]
    assert errors[256] < 0.05


def test_wrong_number_of_features_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="in_features"):
        nsd.build(MODELS[0], 17, 4, 1, rng=0)


def test_a_body_that_is_not_trained_and_a_readout_in_closed_form(tmp_path: Path) -> None:
    data = nsd.data.load("digits", samples=200, test_samples=100, preprocessing="pixels", rng=0)
    model = equilibrium(weight=0.2, inject=0.8, bias=0.0, image_shape=(8, 8))
    module = nsd.build(model, 64, 8, 10, rng=0, trainable="readout", bias=True)
    assert {name for name, _ in module.named_parameters()} == {"readout", "readout_bias"}
    fit = nsd.networks.fit_readout(module, data.X, data.y, ridge=1e-3)
    assert fit.side == "samples"  # 512 features of 200 images
    assert fit.accuracy > 0.95
    X = torch.as_tensor(data.X_test, dtype=torch.float32)
    right = module.eval()(X).argmax(dim=1).numpy() == data.y_test
    assert right.mean() > 0.8
    place = tmp_path / "net.safetensors"
    nsd.save(module, place, preprocessing=data.preprocessing, classes=data.classes)
    again = nsd.load(place)
    assert again.description == model
    assert again.classes == data.classes
    assert torch.equal(again(X), module(X))


def test_all_weights_are_trained() -> None:
    data = nsd.data.load("digits", samples=120, preprocessing="pixels", rng=0)
    model = equilibrium("tanh", weight=0.2, inject=0.8, bias=0.0, image_shape=(8, 8), pooling=2)
    module = nsd.build(model, 64, 6, 10, rng=0, readout_start="zeros")
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    settings = nsd.networks.TrainingSettings(
        epochs=5, batch_size=40, learning_rate=4.0, optimiser="momentum"
    )
    run = nsd.networks.train(module, data.X, data.y, settings)
    assert run.history[-1].loss < 0.5 * run.history[0].loss
    assert run.history[-1].forward.failures == 0
    assert all((p - before[name]).abs().max() > 0.0 for name, p in module.named_parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"size": 5, "pooling": 3},
        {"padding": "zero", "pooling": 2, "stride": 2},
        {"padding": "zero"},
    ],
    ids=str,
)
def test_onnx_has_the_outputs_of_the_module(options: dict[str, object], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = nsd.ConvolutionalNetwork(["relu", "tanh"], (8, 10, 2), **options)
    module = nsd.build(model, 160, 5, 3, rng=0, bias=True)
    X = waves(4, 8, 10, 2)
    with torch.no_grad():
        module.readout_bias.fill_(0.25)
        expected = module(torch.as_tensor(X, dtype=torch.float32)).numpy()
    nsd.export_onnx(module, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (logits,) = session.run(None, {"x": X.astype(np.float32)})
    np.testing.assert_allclose(logits, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (equilibrium(), 3),
        (equilibrium("tanh", padding="zero", pooling=2, image_shape=(8, 6, 2), stride=2), 2),
        (
            nsd.ConvolutionalEquilibrium(
                [
                    nsd.Convolution("relu", weight=0.4, bias=0.1, size=1),
                    nsd.Convolution("erf", weight=0.5, inject=0.5, size=3),
                ],
                (4, 4, 2),
                pooling="average",
            ),
            2,
        ),
    ],
    ids=str,
)
def test_an_equilibrium_is_a_loop(
    model: nsd.ConvolutionalEquilibrium, outputs: int, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    module = nsd.build(model, model.features, 12, outputs, rng=0)
    X = waves(5, *model.image_shape)
    expected = module(torch.as_tensor(X, dtype=torch.float32)).detach().numpy()
    nsd.export_onnx(module, tmp_path / "deq.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "deq.onnx")
    logits, residual, steps = session.run(None, {"x": X.astype(np.float32)})
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert residual <= 1e-6
    assert 2 < steps < 100
    nsd.export_onnx(module, tmp_path / "deq.onnx", steps=1)
    session = onnxruntime.InferenceSession(tmp_path / "deq.onnx")
    short, residual, steps = session.run(None, {"x": X.astype(np.float32)})
    assert (steps, residual > 1e-3) == (1, True)
    assert np.abs(short - expected).max() > 1e-3


def test_an_equilibrium_that_repels_is_not_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    module = nsd.build(equilibrium(weight=0.9), 32, 4, 1, rng=0)
    with torch.no_grad():
        module.weight_1.mul_(4.0)
    with pytest.raises(NotConverged, match="steps="):
        nsd.export_onnx(module, tmp_path / "deq.onnx")
    assert not (tmp_path / "deq.onnx").exists()

"""The contract of finite networks: one table of models, and everything that holds for all."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import notsodeep as nsd
from brute_force import waves
from cases import CONTRACT, identifier
from notsodeep.activations import Activation
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import InvalidInput, NotConverged, NotConvergedWarning, UnknownName
from notsodeep.models import (
    Convolution,
    ConvolutionalEquilibrium,
    ConvolutionalNetwork,
    DeepEquilibrium,
    Dense,
    ExplicitNetwork,
    MonotoneEquilibrium,
)
from notsodeep.networks import Anderson, Network, Solver

P = 18
MODELS: dict[str, Any] = {
    "vanilla": DeepEquilibrium("tanh", 0.2),
    "vanilla relu": DeepEquilibrium("relu", 0.2),
    "ring": DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)]),
    "no injection": DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6), Dense("relu", 0.5)]),
    "late injection": DeepEquilibrium(cell=[Dense("tanh", 0.5, bias=0.1), Dense("relu", 0.5, 0.4)]),
    "normalised": DeepEquilibrium(
        cell=[
            Dense("tanh", 0.05, 0.9, 0.5, "preactivation"),
            Dense("relu", 0.2, 0.5, 0.3, "feature"),
        ]
    ),
    "explicit": ExplicitNetwork(["relu", "tanh"]),
    "monotone": MonotoneEquilibrium("relu", 0.5, symmetric=0.5, skew=0.3, inject=1.0, bias=0.1),
    "stiff monotone": MonotoneEquilibrium("relu", 0.2, symmetric=4.0, skew=4.0),
    "images": ConvolutionalEquilibrium([Convolution("tanh", 0.2, 0.8, 0.1)], (3, 3, 2), "average"),
    "ring of images": ConvolutionalEquilibrium(
        [
            Convolution("tanh", 0.2, 0.8),
            Convolution("relu", 0.3, 0.1, 0.1),
        ],
        (3, 3, 2),
        2,
        padding="zero",
    ),
    "explicit images": ConvolutionalNetwork(["relu", "tanh"], (3, 3, 2), pooling=2),
}
every = pytest.mark.parametrize("name", MODELS)
SOLVED = [name for name in MODELS if not name.startswith("explicit")]
DENSE = [name for name in MODELS if "images" not in name]


def network(name: str, width: int = 12, outputs: int = 2, **options: Any) -> Network:
    options = {"dtype": torch.float64, **options}
    return nsd.build(MODELS[name], P, width, outputs, rng=0, **options).eval()


def inputs(count: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    rows = np.random.default_rng(1).standard_normal((count, P)) / math.sqrt(P)
    return torch.as_tensor(rows, dtype=dtype)


def norm(units: np.ndarray) -> np.ndarray:
    return (units - units.mean(1, keepdims=True)) / units.std(1, keepdims=True)


@pytest.mark.parametrize("name", DENSE)
def test_features_solve_the_equation(name: str) -> None:
    """Once around the ring, written with NumPy and the activations of the kernels."""
    net, m, X = network(name, 30), 30, inputs().numpy()
    weights = {key: value.detach().numpy() for key, value in net.state_dict().items()}
    with torch.no_grad():
        found = math.sqrt(m) * net.features(inputs()).numpy()
    model = MODELS[name]
    if isinstance(model, MonotoneEquilibrium):
        A, B = weights["symmetric"], weights["skew"]
        W = (1 - model.monotonicity) * np.eye(m) - model.symmetric / m * A.T @ A
        W = W + math.sqrt(model.skew / m) * (B - B.T)
        h = found @ W.T + math.sqrt(model.inject) * X @ weights["injection_1"].T
        h = h + (math.sqrt(model.bias) * weights["bias_1"] if model.bias else 0.0)
        units = model.activation(h)
    else:
        explicit = isinstance(model, ExplicitNetwork)
        cell = [Dense(phi, 1.0) for phi in model.activations] if explicit else model.cell
        units = found
        for k, layer in enumerate(cell, start=1):
            if explicit and k == 1:
                h = X @ weights["injection_1"].T
            else:
                h = math.sqrt(layer.weight / m) * units @ weights[f"weight_{k}"].T
            if layer.inject:
                h = h + math.sqrt(layer.inject) * X @ weights[f"injection_{k}"].T
            if layer.bias:
                h = h + math.sqrt(layer.bias) * weights[f"bias_{k}"]
            units = layer.activation(norm(h) if layer.normalise == "preactivation" else h)
            units = norm(units) if layer.normalise == "feature" else units
    np.testing.assert_allclose(found, units, atol=1e-10)


@pytest.mark.parametrize(("stride", "padding"), [(2, "zero"), (1, "circular")])
def test_images_solve_the_equation_of_torch_layers(stride: int, padding: str) -> None:
    """Windows of a strided injection begin where those of torch.nn.Conv2d do."""
    layer = Convolution("tanh", weight=0.2, inject=0.9, bias=0.15)
    model = ConvolutionalEquilibrium([layer], (8, 8, 2), "flatten", padding=padding, stride=stride)
    net = nsd.build(model, 128, 6, 1, rng=0, dtype=torch.float64).eval()
    X = torch.from_numpy(waves(2, 8, 8, 2))
    mode = "zeros" if padding == "zero" else "circular"
    options: Any = {"padding": 1, "bias": False, "padding_mode": mode, "dtype": torch.float64}
    recurrent = nn.Conv2d(6, 6, 3, **options)
    injected = nn.Conv2d(2, 6, 3, stride=stride, **options)
    with torch.no_grad():
        z = net.features(X).reshape(2, 6, *model.grid) * math.sqrt(math.prod(model.grid))
        recurrent.weight.copy_(net.weight_1)
        injected.weight.copy_(net.injection_1)
        images = X.reshape(2, 8, 8, 2).permute(0, 3, 1, 2)
        h = math.sqrt(0.2) / 3 * recurrent(z) + math.sqrt(0.9) / 3 * injected(images)
        h = h + math.sqrt(0.15) * net.bias_1[:, None, None]
        torch.testing.assert_close(z, torch.tanh(h) / math.sqrt(6), rtol=1e-10, atol=1e-11)


@every
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    net = network(name, 7, 1, solver=Solver(1e-14, 3000))
    tensors = dict(net.named_parameters())

    def outputs(X: Tensor, *values: Tensor) -> Tensor:
        weights = dict(zip(tensors, values, strict=True))
        return torch.func.functional_call(net, weights, (X,))  # type: ignore[no-any-return]

    arguments = (
        inputs(2).requires_grad_(),
        *(p.detach().requires_grad_() for p in tensors.values()),
    )
    assert torch.autograd.gradcheck(outputs, arguments, atol=1e-6)


@every
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,), (2, 0)], ids=str)
def test_single_samples_and_extra_axes(name: str, shape: tuple[int, ...]) -> None:
    net = network(name)
    rows = inputs(max(1, math.prod(shape)))[: math.prod(shape)]
    found = net(rows.reshape(*shape, P))
    assert found.shape == (*shape, 2)
    torch.testing.assert_close(found.reshape(-1, 2), net(rows), rtol=1e-9, atol=1e-11)
    assert net.features(rows.reshape(*shape, P)).shape[:-1] == shape


@every
def test_precisions(name: str) -> None:
    wide, narrow = network(name), network(name, dtype=torch.float32)
    for key, weight in wide.state_dict().items():
        assert torch.equal(weight.float(), narrow.state_dict()[key])
    outputs = narrow(inputs(dtype=torch.float32))
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs.double(), wide(inputs()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(narrow.double()(inputs()), wide(inputs()), rtol=1e-5, atol=1e-5)


@every
def test_what_is_trained(name: str) -> None:
    both, readout = network(name, bias=True), network(name, trainable="readout", bias=True)
    assert {n for n, _ in readout.named_parameters()} == {"readout", "readout_bias"}
    assert [*readout.state_dict()].sort() == [*both.state_dict()].sort()
    assert torch.equal(readout(inputs()), both(inputs()))
    both(inputs()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in both.parameters())


@every
def test_weights_have_unit_variance_and_depend_on_rng_alone(name: str) -> None:
    net = network(name, 64)
    hidden = torch.cat([net.get_parameter(key).detach().flatten() for key in net.hidden_names])
    assert abs(float(hidden.mean())) < 5 / math.sqrt(len(hidden))
    assert abs(float(hidden.square().mean()) - 1.0) < 5 * math.sqrt(2 / len(hidden))
    again = nsd.build(MODELS[name], P, 64, 2, np.random.default_rng(0), dtype=torch.float64)
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@every
def test_copies_and_pickles(name: str) -> None:
    net = network(name)
    expected = net(inputs())
    expected.sum().backward()
    stream = io.BytesIO()
    torch.save(net.state_dict(), stream)
    stream.seek(0)
    fresh = Network(MODELS[name], P, 12, 2, dtype=torch.float64).eval()
    fresh.load_state_dict(torch.load(stream, weights_only=True))
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), fresh):
        assert torch.equal(again(inputs()), expected)
    with torch.no_grad():
        copy.deepcopy(net).readout.zero_()
    assert torch.equal(net(inputs()), expected)


@every
def test_saved_networks_are_the_same(name: str, tmp_path: Path) -> None:
    net = network(name, bias=True, trainable="readout", solver=Anderson(1e-9, 770, memory=3))
    net.backward, net.on_failure = 4, "warn"
    nsd.save(net, tmp_path / "net.safetensors", classes=("cat", 7))
    again = nsd.load(tmp_path / "net.safetensors")
    assert torch.equal(again(inputs()), net(inputs()))
    assert repr(again) == repr(net)
    assert (again.model, again.classes, again.training) == (MODELS[name], ("cat", 7), False)
    assert again.on_failure == "warn"
    assert {n for n, _ in again.named_parameters()} == {"readout", "readout_bias"}


@every
def test_onnx_is_torch(name: str, tmp_path: Path) -> None:
    net = network(name, 24, bias=True, dtype=torch.float32)
    with torch.no_grad():
        net.readout_bias.fill_(0.25)  # type: ignore[union-attr]
    nsd.export_onnx(net, tmp_path / "net.onnx")
    options = onnxruntime.SessionOptions()
    # The highest level has layouts of its own for images, which fail on an empty batch.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), options)
    rows = inputs(9, torch.float32)
    rows[2] = 0.0
    for scale, count in itertools.product((1e-30, 1e-3, 1.0, 30.0), (9, 1, 0)):
        batch = scale * rows[:count]
        (logits,) = session.run(None, {"x": batch.numpy()})
        expected = net(batch).detach().numpy()
        assert logits.shape == (count, 2)
        np.testing.assert_allclose(logits, expected, rtol=2e-4, atol=1e-5 * min(1.0, scale) + 3e-6)


def jacobian(net: Network, X: Tensor) -> Tensor:
    """All derivatives of the outputs in what requires gradients, (n, K, parameters)."""
    trained = [p for p in net.parameters() if p.requires_grad]
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(f, trained, retain_graph=True)])
        for f in net(X).flatten()
    ]
    return torch.stack(rows).reshape(len(X), net.out_features, -1)


@every
def test_kernels_are_those_of_jacobians_with_frozen_weights_too(name: str) -> None:
    net, X, Y = network(name, 10, 3, bias=True), inputs(4), inputs(7)[4:]
    z, z2 = (net.features(rows).detach() for rows in (X, Y))
    frozen_sets = [(), (net.hidden_names[0],), net.hidden_names, ("readout",), ("readout_bias",)]
    for frozen in frozen_sets:
        for key, parameter in net.named_parameters():
            parameter.requires_grad_(key not in frozen)
        J, J2 = jacobian(net, X), jacobian(net, Y)
        found = nsd.empirical_kernels(net, X, batch_size=3)
        np.testing.assert_allclose(found.ck, z @ z.mT, rtol=1e-9, atol=1e-12)
        expected = torch.einsum("ikp,jkp->ij", J, J) / 3
        np.testing.assert_allclose(found.ntk, expected, rtol=1e-8, atol=1e-10)
        assert (found.ntk == found.ntk.T).all()
        cross = nsd.empirical_kernels(net, X, Y, batch_size=3)
        np.testing.assert_allclose(cross.ck, z @ z2.mT, rtol=1e-9, atol=1e-12)
        expected = torch.einsum("ikp,jkp->ij", J, J2) / 3
        np.testing.assert_allclose(cross.ntk, expected, rtol=1e-8, atol=1e-10)


def deviations(name: str, width: int, draws: int, kind: Any) -> np.ndarray:
    """Kernels of many networks less the exact one, in units of its largest entry."""
    X = inputs(4)
    exact = nsd.kernel(MODELS[name], X.numpy(), kind=kind, convention="feature")
    nets = (nsd.build(MODELS[name], P, width, 2, k, dtype=torch.float64) for k in range(draws))
    kernels = [getattr(nsd.empirical_kernels(net, X), kind) for net in nets]
    return (np.stack(kernels) - exact) / np.abs(exact).max()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("ring", "images") else pytest.mark.slow)
        for name in MODELS
    ],
)
@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_kernels_tend_to_the_exact_ones(name: str, kind: str) -> None:
    """Errors fall like 1/√m or faster, three times for nine times the width; means are O(1/m)."""
    narrow, wide = (deviations(name, width, 10, kind) for width in (16, 144))
    ratio = math.sqrt(np.mean(narrow**2) / np.mean(wide**2))
    assert ratio > 1.8
    standard_error = wide.std(axis=0, ddof=1) / math.sqrt(len(wide))
    assert (np.abs(wide.mean(axis=0)) <= 5.0 * standard_error + 2.0 / 144).all()


def test_the_mean_can_fail() -> None:
    wide = deviations("vanilla", 144, 10, "ck")
    X = inputs(4).numpy()
    right, wrong = (
        nsd.kernel(DeepEquilibrium("tanh", sigma_a2), X, kind="ck", convention="feature")
        for sigma_a2 in (0.2, 0.6)
    )
    moved = wide.mean(axis=0) + (right - wrong) / np.abs(right).max()
    standard_error = wide.std(axis=0, ddof=1) / math.sqrt(len(wide))
    assert not (np.abs(moved) <= 5.0 * standard_error + 2.0 / 144).all()


@pytest.mark.parametrize("activation", CONTRACT, ids=identifier)
def test_every_activation(activation: Activation, tmp_path: Path) -> None:
    """In torch, in a file and as ONNX: one function, far from zero too."""
    net = nsd.build(ExplicitNetwork([activation, "tanh"]), P, 16, 3, rng=0).eval()
    rows = 3.0 * inputs(9, torch.float32)
    hidden = net.injection_1.detach().double().numpy() @ rows.double().numpy().T
    twin = torch_twin(activation)(torch.from_numpy(hidden)).numpy()
    np.testing.assert_allclose(twin, activation(hidden), rtol=1e-12, atol=1e-12)
    nsd.save(net, tmp_path / "net.safetensors")
    again = nsd.load(tmp_path / "net.safetensors")
    assert again.model == net.model
    assert torch.equal(again(rows), net(rows))
    nsd.export_onnx(net, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    for scale in (1.0, 30.0):
        (logits,) = session.run(None, {"x": (scale * rows).numpy()})
        np.testing.assert_allclose(logits, net(scale * rows).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalise", ["preactivation", "feature"])
@pytest.mark.parametrize("solver", ["plain", "anderson", "broyden"])
def test_a_blank_row_is_solved_and_spoils_no_other(normalise: Any, solver: str) -> None:
    model = DeepEquilibrium(cell=[Dense("tanh", 0.3, 0.7, normalise=normalise)])
    net = nsd.build(model, P, 64, 2, rng=0, solver=solver, dtype=torch.float64).train()
    rows = inputs(3)
    rows[1] = 0.0
    alone = net(rows[[0, 2]])
    for _ in range(2):
        outputs = net(rows)
        torch.testing.assert_close(outputs[[0, 2]], alone, rtol=1e-10, atol=1e-12)
        assert not outputs[1].any()
    outputs.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", ["normalised", "vanilla", "vanilla relu"])
@pytest.mark.parametrize("scale", [1e-30, 1e-23, 1e-10, 1e10])
def test_units_of_the_inputs_do_not_matter(name: str, scale: float) -> None:
    """Squares of 1e-23 are zero in float32, with which an iteration looks solved at once."""
    narrow, wide = network(name, 20, dtype=torch.float32), network(name, 20)
    rows = scale * inputs()
    found, expected = narrow(rows.float()), wide(rows)
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


def test_failures_raise_in_evaluation_and_warn_in_training() -> None:
    restless = nsd.activations.from_formula("tanh(4 * x)")
    net = nsd.build(DeepEquilibrium(restless, 0.9), P, 64, 2, rng=0, dtype=torch.float64)
    with pytest.warns(NotConvergedWarning, match="was not found"):
        outputs = net(inputs())
    with pytest.warns(NotConvergedWarning, match="gradient of the fixed point"):
        outputs.sum().backward()
    with pytest.raises(NotConverged, match="no convergence in 300 steps") as caught:
        net.eval()(inputs())
    assert caught.value.record.steps == 300
    net.on_failure = "ignore"
    net(inputs())
    assert not net.record.converged  # type: ignore[union-attr]
    # Kernels of states that are not found would be wrong in silence.
    net.on_failure = None
    with pytest.raises(NotConverged):
        nsd.empirical_kernels(net.train(), inputs())
    assert net.training


def test_onnx_takes_the_steps_it_is_told(tmp_path: Path) -> None:
    net = network("vanilla", 24, dtype=torch.float32)
    nsd.export_onnx(net, tmp_path / "net.onnx", steps=3)
    drive = math.sqrt(0.8) * inputs(4, torch.float32) @ net.injection_1.mT
    h = drive
    for _ in range(3):
        h = drive + math.sqrt(0.2 / 24) * torch.tanh(h) @ net.weight_1.mT
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    (logits,) = session.run(None, {"x": inputs(4).float().numpy()})
    expected = torch.tanh(h) @ net.readout.mT / math.sqrt(24)
    np.testing.assert_allclose(logits, expected.detach(), rtol=1e-5, atol=1e-6)


def test_a_network_that_plain_steps_do_not_solve_is_not_exported(tmp_path: Path) -> None:
    model = DeepEquilibrium(cell=[Dense("tanh", 9.0, 0.1)])
    net = nsd.build(model, P, 24, 2, rng=0)
    with pytest.raises(NotConverged, match="plain steps"):
        nsd.export_onnx(net, tmp_path / "net.onnx")
    nsd.export_onnx(net, tmp_path / "net.onnx", steps=5)


def test_onnx_of_a_normalised_network_has_no_nan_for_a_blank_row(tmp_path: Path) -> None:
    for normalise in ("preactivation", "feature"):
        model = DeepEquilibrium(cell=[Dense("tanh", 0.3, 0.7, normalise=normalise)])
        net = nsd.build(model, P, 32, 2, rng=0).eval()
        nsd.export_onnx(net, tmp_path / "net.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
        rows = math.sqrt(P) * inputs(3, torch.float32)
        rows[1] = 0.0
        (logits,) = session.run(None, {"x": rows.numpy()})
        np.testing.assert_allclose(logits, net(rows).detach(), rtol=1e-4, atol=1e-5)
        assert not logits[1].any()


@pytest.mark.parametrize("kind", ["theory", "unit_norm", "none"])
def test_preprocessing_goes_along(kind: Any, tmp_path: Path) -> None:
    raw = np.random.default_rng(2).uniform(0, 255, (50, P)).astype(np.float32)
    preprocessing = nsd.data.Preprocessing.fit(raw, kind)
    net = nsd.build(MODELS["explicit"], P, 24, 2, rng=0)
    nsd.save(net, tmp_path / "net.safetensors", preprocessing=preprocessing, classes=(1, "b"))
    again = nsd.load(tmp_path / "net.safetensors")
    nsd.export_onnx(again, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    (logits,) = session.run(None, {"x": raw})
    expected = net(torch.as_tensor(preprocessing.apply(raw, "float32"))).detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())
    assert session.get_modelmeta().custom_metadata_map["classes"] == '[1, "b"]'
    nsd.save(again, tmp_path / "again.safetensors")
    files = [tmp_path / name for name in ("net.safetensors", "again.safetensors")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: nsd.build("relu", 4, 4, 1, 0), InvalidInput, "model must be"),
        (lambda: nsd.build(MODELS["vanilla"], 4, 0, 1, 0), InvalidInput, "width"),
        (lambda: nsd.build(MODELS["images"], 16, 4, 1, 0), InvalidInput, "in_features must be 18"),
        (lambda: network("vanilla", trainable="none"), UnknownName, "trainable"),
        (lambda: network("vanilla", solver="newton"), UnknownName, "solver must be one of"),
        (lambda: network("vanilla", dtype=torch.float16), InvalidInput, "float32 or torch.float64"),
        (lambda: network("vanilla")(np.ones((2, P))), InvalidInput, "X must be a tensor"),
        (lambda: network("vanilla")(inputs().float()), InvalidInput, "tensor of torch.float64"),
        (lambda: network("images")(inputs()[:, :4]), InvalidInput, "18 features"),
        (lambda: nsd.empirical_kernels(nn.Linear(2, 2), inputs()), InvalidInput, "features"),
        (
            lambda: nsd.empirical_kernels(network("ring").requires_grad_(False), inputs()),
            InvalidInput,
            "requires gradients",
        ),
        (
            lambda: nsd.export_onnx(network("explicit"), "net.onnx", steps=3),
            InvalidInput,
            "steps must be None",
        ),
        (lambda: nsd.export_onnx(nn.Linear(2, 2), "net.onnx"), InvalidInput, "made by notsodeep"),
        (
            lambda: nsd.build(
                ExplicitNetwork([nsd.activations.from_function(np.tanh, name="mine")]), 4, 4, 1, 0
            ),
            nsd.errors.NoTorchTwin,
            "mine",
        ),
    ],
)
def test_arguments_are_checked(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_python_functions_have_no_onnx_form(tmp_path: Path) -> None:
    mine = nsd.activations.from_function(np.tanh, name="mine", torch=torch.tanh)
    net = nsd.build(ExplicitNetwork([mine]), P, 4, 1, 0)
    with pytest.raises(nsd.errors.NoOnnxForm, match="mine has no ONNX form"):
        nsd.export_onnx(net, tmp_path / "net.onnx")
    with pytest.raises(nsd.errors.NotSerialisable, match="mine"):
        nsd.save(net, tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())

"""Exported graphs compute what the modules compute, in another runtime."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import notsodeep as nsd
from cases import CONTRACT, identifier
from notsodeep.activations import Activation, from_function, polynomial
from notsodeep.data import Preprocessing
from notsodeep.errors import InvalidInput, NoOnnxForm, NotConverged
from notsodeep.networks.build import build
from notsodeep.networks.modules import EquilibriumNetwork
from notsodeep.networks.onnx_export import export_onnx
from notsodeep.networks.persistence import load, save

P, M, K = 12, 32, 4
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(9, P)) / np.sqrt(P)).astype(np.float32)
RAW = RNG.uniform(0, 255, size=(50, P)).astype(np.float32)
DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
NET = nsd.ExplicitNetwork(["relu", "tanh"])


def network(model: Any, **options: Any) -> Any:
    return build(model, P, M, K, rng=0, **options).eval()


def run(path: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": rows}), strict=True))


def outputs(module: Any, rows: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.as_tensor(rows, dtype=module.readout.dtype)).numpy()


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("activation", CONTRACT, ids=identifier)
def test_every_activation_in_an_explicit_network(activation: Activation, path: Path) -> None:
    net = network(nsd.ExplicitNetwork([activation, activation]))
    export_onnx(net, path)
    close(run(path, 3.0 * X)["logits"], outputs(net, 3.0 * X))


# A cubic grows faster than any contraction: its fixed point exists for small rows only.
TAME = [a for a in CONTRACT if a != polynomial((0.3, 1.0, -0.5, 0.25))]


@pytest.mark.parametrize("activation", TAME, ids=identifier)
def test_every_activation_in_a_loop(activation: Activation, path: Path) -> None:
    net = network(nsd.DeepEquilibrium(activation, sigma_a2=0.08))
    export_onnx(net, path)
    found = run(path, X)
    close(found["logits"], outputs(net, X))
    assert found["residual"] <= 1e-6
    assert abs(int(found["steps"]) - net.last_record.forward.steps) <= 1


def test_far_arguments_stay_exact(path: Path) -> None:
    """Rows a hundred times too long reach every branch of every activation."""
    for activation in ("softplus", "gelu", "swish", "elu", "hard_tanh", "erf", "arctan"):
        net = network(nsd.ExplicitNetwork([activation]))
        export_onnx(net, path)
        close(run(path, 100.0 * X)["logits"], outputs(net, 100.0 * X))


@pytest.mark.parametrize("model", [NET, DEQ], ids=str)
@pytest.mark.parametrize("opset", [13, 15, 18, 21])
def test_operator_sets(model: Any, opset: int, path: Path) -> None:
    net = network(model, bias=True)
    with torch.no_grad():
        net.readout_bias.copy_(torch.arange(K))
    export_onnx(net, path, opset=opset)
    assert onnx.load(path).opset_import[0].version == opset
    close(run(path, X)["logits"], outputs(net, X))


@pytest.mark.parametrize("kind", ["theory", "unit_norm", "none"])
@pytest.mark.parametrize("model", [NET, DEQ], ids=str)
def test_preprocessing_is_part_of_the_graph(model: Any, kind: str, path: Path) -> None:
    net = network(model)
    preprocessing = Preprocessing.fit(RAW, kind)
    rows = RAW if kind != "none" else X
    export_onnx(net, path, preprocessing=preprocessing)
    expected = outputs(net, preprocessing.apply(rows, "float32"))
    assert np.abs(run(path, rows)["logits"] - expected).max() <= 1e-5 * np.abs(expected).max()


def test_what_was_loaded_with_a_network_goes_along(path: Path, tmp_path: Path) -> None:
    preprocessing = Preprocessing.fit(RAW)
    save(network(NET), tmp_path / "n", preprocessing=preprocessing, classes=("a", "b", "c", 9))
    net = load(tmp_path / "n")
    export_onnx(net, path)
    close(run(path, RAW)["logits"], outputs(net, preprocessing.apply(RAW, "float32")))
    properties = {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props}
    assert properties == {"classes": ["a", "b", "c", 9], "description": NET.to_dict()}


@pytest.mark.parametrize("model", [NET, DEQ], ids=str)
def test_the_batch_axis_is_free(model: Any, path: Path) -> None:
    net = network(model)
    export_onnx(net, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,), taken = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape) == ("x", ["batch", P])
    assert (taken[0].name, taken[0].shape) == ("logits", ["batch", K])
    for size in (1, 2, 9):
        close(session.run(["logits"], {"x": X[:size]})[0], outputs(net, X[:size]))


def test_double_precision_modules_become_single_precision_graphs(path: Path) -> None:
    net = network(nsd.DeepEquilibrium("erf", 0.1), dtype=torch.float64)
    export_onnx(net, path)
    close(run(path, X)["logits"], outputs(net, X))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_the_tolerance_is_the_solvers(tolerance: float, path: Path) -> None:
    net = network(DEQ, solver={"name": "fixed_point", "tolerance": tolerance})
    export_onnx(net, path)
    found = run(path, X)
    assert 0.02 * tolerance < found["residual"] <= tolerance
    close(found["logits"], outputs(net, X))
    assert int(found["steps"]) == net.last_record.forward.steps


def test_another_solver_has_the_same_fixed_point(path: Path) -> None:
    net = network(DEQ, solver="anderson")
    export_onnx(net, path)
    close(run(path, X)["logits"], outputs(net, X))


def test_a_fixed_number_of_steps(path: Path) -> None:
    net = network(DEQ)
    with torch.no_grad():
        drive = 0.8**0.5 * torch.as_tensor(X) @ net.injection.T
        h = drive
        for _ in range(3):
            h = drive + (0.2 / M) ** 0.5 * torch.tanh(h) @ net.recurrent.T
        expected = (torch.tanh(h) @ net.readout.T / M**0.5).numpy()
    export_onnx(net, path, steps=3)
    found = run(path, X)
    close(found["logits"], expected)
    assert int(found["steps"]) == 3
    assert found["residual"] > 1e-4
    export_onnx(net, path, steps=40)
    close(run(path, X)["logits"], outputs(net, X))


def test_the_scale_of_the_inputs_is_part_of_the_graph(path: Path) -> None:
    net = EquilibriumNetwork(DEQ, P, M, K, input_scale=1.7).eval()
    net.load_state_dict(network(DEQ).state_dict())
    export_onnx(net, path)
    close(run(path, X)["logits"], outputs(net, X))


def test_a_row_of_zeros_is_solved(path: Path) -> None:
    net = network(DEQ)
    export_onnx(net, path)
    found = run(path, np.zeros((2, P), dtype=np.float32))
    assert not found["logits"].any()
    assert found["residual"] == 0.0


def test_a_loop_that_does_not_converge_is_refused(path: Path) -> None:
    slow = network(nsd.DeepEquilibrium("identity", 0.95), solver={"name": "anderson"})
    with pytest.raises(NotConverged, match=r"plain steps.*Pass steps=") as caught:
        export_onnx(slow, path)
    assert caught.value.record.steps > 1
    assert not path.exists()
    export_onnx(slow, path, steps=5)
    assert path.exists()


def test_python_functions_have_no_onnx_form(path: Path) -> None:
    mine = from_function(np.tanh, name="mine", torch=torch.tanh)
    with pytest.raises(NoOnnxForm, match=r"mine has no ONNX form.*from_formula"):
        export_onnx(network(nsd.ExplicitNetwork([mine])), path)
    with pytest.raises(NoOnnxForm, match="mine"):
        export_onnx(network(nsd.DeepEquilibrium(mine, 0.1)), path)
    assert not path.exists()


def test_arguments_are_checked(path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="opset of export_onnx must be an integer of at least 13"
    ):
        export_onnx(network(NET), path, opset=11)
    with pytest.raises(InvalidInput, match="Install a newer onnx"):
        export_onnx(network(NET), path, opset=999)
    with pytest.raises(InvalidInput, match="left out for an explicit network"):
        export_onnx(network(NET), path, steps=3)
    with pytest.raises(InvalidInput, match="steps of export_onnx"):
        export_onnx(network(DEQ), path, steps=0)
    with pytest.raises(InvalidInput, match="4 different names"):
        export_onnx(network(NET), path, classes=("a",))
    with pytest.raises(InvalidInput, match=r"made by notsodeep.build"):
        export_onnx(torch.nn.Linear(2, 2), path)
    assert not path.exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(nsd.errors.MissingPackage, match=r"needs the package onnx.*\[onnx\]'"):
        export_onnx(network(NET), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_torch_exports_the_explicit_network() -> None:
    net = network(NET)
    rows = torch.as_tensor(X)
    sizes = {"X": {0: torch.export.Dim("batch", min=1)}}
    program = torch.export.export(net, (rows,), dynamic_shapes=sizes)
    for size in (2, 9):
        torch.testing.assert_close(program.module()(rows[:size]), net(rows[:size]))

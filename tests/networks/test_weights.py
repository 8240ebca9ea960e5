"""Networks with given weights in files: ours come back, and what is no network is named."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput
from notsodeep.networks.weights import load_cell, save_cell

ARRAYS = {"W": 0.5 * torch.eye(3), "U": torch.ones(3, 2), "b": torch.ones(3)}


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("exploded"),))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"W": Bomb()}, tmp_path / "net.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"W": Bomb()}))
    (tmp_path / "cut.pt").write_bytes((tmp_path / "net.pt").read_bytes()[:100])
    for name in ("net", "plain", "cut"):
        with pytest.raises(DataCorrupted, match="tensors alone"):
            load_cell(tmp_path / f"{name}.pt", activation="relu")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"W": None}, "hold arrays W and U"),
        ({"extra": torch.ones(1)}, "no arrays but"),
        ({"c": torch.ones(4)}, "C with c"),
        ({"U": torch.ones(2, 3)}, r"shapes \(m, m\) and \(m, p\)"),
        ({"W": torch.full((3, 3), torch.nan)}, "finite"),
        ({"W": torch.eye(3) + 5j}, "real numbers, got torch.complex64"),
        ({"W": torch.eye(3).to_sparse()}, "dense array"),
        ({"W": torch.empty(3, 3, device="meta")}, "dense array"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_network(tmp_path: Path, change, words: str) -> None:
    tensors = {key: v for key, v in (ARRAYS | change).items() if v is not None}
    torch.save(tensors, tmp_path / "net.pt")
    with pytest.raises(InvalidInput, match=words):
        load_cell(tmp_path / "net.pt", activation="relu")


def test_a_small_file_does_not_ask_for_much(tmp_path: Path) -> None:
    wide = torch.zeros(1).expand(100_000, 100_000)
    torch.save({"W": wide, "U": wide[:, :3]}, tmp_path / "net.pt")
    with pytest.raises(DataCorrupted, match="more entries than the file has bytes"):
        load_cell(tmp_path / "net.pt", activation="relu")


def test_parameters_and_state_dicts_are_read(tmp_path: Path) -> None:
    torch.save({"state_dict": {k: torch.nn.Parameter(v) for k, v in ARRAYS.items()}},
               tmp_path / "net.pt")  # fmt: skip
    with pytest.raises(InvalidInput, match="name its activation"):
        load_cell(tmp_path / "net.pt")
    cell = load_cell(tmp_path / "net.pt", activation="relu", shift=0.5)
    assert torch.equal(cell.recurrent.detach(), ARRAYS["W"].double())
    assert "input_scale" not in cell.metadata  # nobody said it


def test_monotone_files(tmp_path: Path) -> None:
    A, B = torch.randn(2, 3), torch.randn(3, 3)
    torch.save({"A": A, "B": B, "m": torch.tensor(0.3), "U": ARRAYS["U"]}, tmp_path / "net.pt")
    cell = load_cell(tmp_path / "net.pt", activation="relu")
    W = 0.7 * torch.eye(3) - A.T @ A + B - B.T
    torch.testing.assert_close(cell.recurrent.detach(), W.double(), atol=1e-6, rtol=0.0)


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], words) -> Path:
    head, data = {}, b""
    for key, (kind, shape, raw) in tensors.items():
        head[key] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data + raw)]}
        data += raw
    text = json.dumps({**head, "__metadata__": words}).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_types_of_safetensors(tmp_path: Path) -> None:
    W, U = torch.eye(5) / 2, torch.ones(5, 3).double()
    second = ("F64", [5, 3], U.numpy().tobytes())
    half = ("BF16", [5, 5], W.bfloat16().view(torch.int16).numpy().tobytes())
    words = {"activation": "tanh"}
    cell = load_cell(safetensors(tmp_path / "a.safetensors", {"W": half, "U": second}, words))
    assert torch.equal(cell.recurrent.detach(), W.double())
    several = ("C64", [5, 5], (W + 5j).to(torch.complex64).numpy().tobytes())
    with pytest.raises(InvalidInput, match="real numbers"):
        load_cell(safetensors(tmp_path / "b.safetensors", {"W": several, "U": second}, words))
    words |= {"input_scale": "1" + "0" * 400}
    with pytest.raises(DataCorrupted, match="neither a number nor a list"):
        load_cell(safetensors(tmp_path / "c.safetensors", {"W": half, "U": second}, words))


def test_files_come_back_and_are_checked(tmp_path: Path) -> None:
    phi = nsd.activations.leaky_relu(1.1, 0.2)
    cell = nsd.EquilibriumCell.from_weights(
        ARRAYS["W"], ARRAYS["U"], None, phi, (np.ones((2, 3)), None), shift=[0.1, 0.2], scale=3.0
    )
    path = tmp_path / "net.safetensors"
    save_cell(cell, path, {"seed": 3})
    again = nsd.EquilibriumCell.from_file(path)
    assert again.activation == phi
    assert again.metadata["seed"] == "3"
    for name, values in cell.arrays().items():
        assert np.array_equal(values, again.arrays()[name])
    whole = bytearray(path.read_bytes())
    whole[-50] ^= 0x40
    path.write_bytes(whole)
    with pytest.raises(DataCorrupted, match="altered"):
        load_cell(path)
    path.write_bytes(b"broken")
    with pytest.raises(DataCorrupted):
        load_cell(path)
    with pytest.raises(DataNotFound):
        load_cell(tmp_path / "none.safetensors")


def test_cells_are_saved_and_loaded_as_all_networks_are(tmp_path: Path) -> None:
    cell = nsd.zoo.load("tanh-digits-64")
    nsd.save(cell, tmp_path / "cell.safetensors")
    again, X = nsd.load(tmp_path / "cell.safetensors"), torch.zeros(2, 64, dtype=torch.float64)
    assert torch.equal(again(X), cell(X))
    with pytest.raises(InvalidInput, match="must be None for a cell"):
        nsd.save(cell, tmp_path / "cell.safetensors", classes=("a",))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_explicit_layers_are_saved_loaded_and_exported(activation: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    W, U, C = (rng.standard_normal(shape) / 4 for shape in ((12, 12), (12, 5), (3, 12)))
    cell = nsd.EquilibriumCell.from_weights(W, U, activation=activation, readout=(C, None))
    X = rng.standard_normal((120, 5))
    network = nsd.compile(cell, X, X_test=X[:40], layers=2, progress=False).network
    nsd.save(network, tmp_path / "net.safetensors", classes=("a", "b", "c"))
    again, rows = nsd.load(tmp_path / "net.safetensors"), torch.as_tensor(X, dtype=torch.float32)
    assert torch.equal(again(rows), network(rows))
    assert again.classes == ("a", "b", "c")
    nsd.export_onnx(again, tmp_path / "net.onnx")
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"))
    (logits,) = session.run(None, {"x": rows.numpy()})
    np.testing.assert_allclose(logits, network(rows).detach(), rtol=1e-4, atol=1e-5)

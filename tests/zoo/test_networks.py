"""The networks that come with the package, and one that is fetched from a local server."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import http.server
import io
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import notsodeep as nsd
from experiments import zoo_recipes as recipes
from notsodeep.data import pixel_data
from notsodeep.data.download import RemoteFile
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput, UnknownName
from notsodeep.trained.files import load_cell, save_cell
from notsodeep.trained.margin import margin_of
from notsodeep.zoo import PUBLIC, public_networks

OURS = ("monotone-digits-64", "monotone-mnist-100", "tanh-digits-64", "tanh-mnist-100")
PUBLISHED = "mondeq-quant-mnist-100"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    directory = tmp_path / "served"
    directory.mkdir()
    handler = functools.partial(Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield directory, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def state_dict() -> dict[str, torch.Tensor]:
    """Tensors under the names, and of the shapes, of the published file; other numbers."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(*shape, generator=generator)

    return {
        "mon.core.A": draw(25, 100),
        "mon.core.S": draw(100, 100),
        "mon.core.m_raw": torch.tensor(-1.3),
        "mon.core.U": draw(100, 784),
        "mon.core.b": draw(100),
        "classifier.weight": draw(10, 100),
        "classifier.bias": draw(10),
    }


def publish(served: tuple[Path, str], content: bytes, monkeypatch) -> None:
    directory, base = served
    (directory / "net.pt").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    file = RemoteFile("net.pt", (f"{base}/net.pt",), digest, None)
    entry = dataclasses.replace(PUBLIC[PUBLISHED], file=file)
    monkeypatch.setitem(public_networks.PUBLIC, PUBLISHED, entry)


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def test_names() -> None:
    assert nsd.zoo.names() == (*OURS, PUBLISHED)
    assert set(recipes.RECIPES) == set(OURS)
    with pytest.raises(UnknownName, match="tanh-digits-64"):
        nsd.zoo.load("tanh-digit-64")


@pytest.mark.parametrize("name", OURS)
def test_ours_are_what_their_recipes_say(name: str) -> None:
    stored, recipe = nsd.zoo.load_stored(name), recipes.RECIPES[name]
    cell = stored.cell
    assert (cell.width, str(cell.activation)) == (recipe.width, recipe.activation)
    assert np.unique(cell.shift) == recipe.shift
    assert np.unique(cell.scale) == recipe.scale
    assert stored.scaling_known
    assert int(stored.metadata["seed"]) == recipe.seed
    if recipe.form == "contracting":
        assert np.linalg.norm(cell.recurrent, 2) == pytest.approx(recipe.bound, abs=1e-5)
    else:
        assert margin_of(cell).value == pytest.approx(recipe.bound, abs=1e-4)


@pytest.mark.parametrize("name", ["monotone-digits-64", "tanh-digits-64"])
def test_the_accuracy_in_the_file_is_that_of_the_network(name: str) -> None:
    stored, data = nsd.zoo.load_stored(name), pixel_data("digits")
    cell = stored.cell
    drive, z = cell.drive(data.X_test), np.zeros((len(data.X_test), cell.width))
    for _ in range(400):  # damped: the fixed points are the same
        z += 0.3 * (cell.step(z, drive) - z)
    assert np.abs(cell.step(z, drive) - z).max() < 1e-6
    accuracy = float((cell.logits(z).argmax(axis=1) == data.y_test).mean())
    assert accuracy == pytest.approx(float(stored.metadata["test_accuracy"]), abs=0.003)
    assert accuracy > 0.9


def test_a_recipe_is_reproducible_and_its_form_is_kept(tmp_path: Path, monkeypatch) -> None:
    for name in ("tanh-digits-64", "monotone-digits-64"):
        short = dataclasses.replace(recipes.RECIPES[name], epochs=1)
        (first, accuracy), (again, _) = (recipes.trained(short, progress=False) for _ in "ab")
        assert np.array_equal(first.recurrent, again.recurrent)
        assert margin_of(first).unique
        assert accuracy > 0.5  # chance is 0.1
    monkeypatch.setitem(recipes.RECIPES, name, short)
    recipes.main([name, "--out", str(tmp_path)])
    stored = load_cell(tmp_path / f"{name}.safetensors")
    assert np.allclose(stored.cell.recurrent, again.recurrent, atol=1e-6)
    assert float(stored.metadata["test_accuracy"]) == pytest.approx(accuracy, abs=1e-4)


def test_a_public_network_is_fetched_once_verified_and_converted(
    served: tuple[Path, str], tmp_path: Path, monkeypatch
) -> None:
    tensors = state_dict()
    publish(served, saved(tensors), monkeypatch)
    with pytest.raises(DataNotFound, match=r"MIT.*zoo\.fetch"):
        nsd.zoo.load(PUBLISHED, data_dir=tmp_path)
    path = nsd.zoo.fetch(PUBLISHED, data_dir=tmp_path)
    (served[0] / "net.pt").unlink()
    assert nsd.zoo.fetch(PUBLISHED, data_dir=tmp_path) == path
    cell = nsd.zoo.load(PUBLISHED, data_dir=tmp_path)
    m = np.log1p(np.exp(-1.3)) + 1e-4
    symmetric = np.eye(100) - (cell.recurrent + cell.recurrent.T) / 2
    A = tensors["mon.core.A"].double().numpy()
    assert np.allclose(symmetric, m * np.eye(100) + A.T @ A, atol=1e-6)
    assert np.unique(cell.shift) == 0.1307
    assert margin_of(cell).value == pytest.approx(m, abs=1e-5)  # A has rank 25
    path.write_bytes(b"altered")
    with pytest.raises(DataCorrupted, match="altered"):
        nsd.zoo.load(PUBLISHED, data_dir=tmp_path)


def test_another_file_at_the_address_is_rejected(
    served: tuple[Path, str], tmp_path: Path, monkeypatch
) -> None:
    publish(served, saved(state_dict()), monkeypatch)
    (served[0] / "net.pt").write_bytes(b"something else" * 100)
    with pytest.raises(DataCorrupted):
        nsd.zoo.fetch(PUBLISHED, data_dir=tmp_path)
    assert not (tmp_path / "zoo" / "net.pt").exists()


def test_a_public_file_of_another_form(
    served: tuple[Path, str], tmp_path: Path, monkeypatch
) -> None:
    tensors = state_dict()
    del tensors["mon.core.m_raw"]
    publish(served, saved(tensors), monkeypatch)
    nsd.zoo.fetch(PUBLISHED, data_dir=tmp_path)
    with pytest.raises(DataCorrupted, match="m_raw"):
        nsd.zoo.load(PUBLISHED, data_dir=tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("exploded"),))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.pt").write_bytes(saved({"W": Bomb()}))
    with pytest.raises(DataCorrupted, match="tensors alone"):
        load_cell(tmp_path / "net.pt", activation="relu")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"W": Bomb()}))
    with pytest.raises(DataCorrupted, match="tensors alone"):
        load_cell(tmp_path / "plain.pt", activation="relu")
    assert not (tmp_path / "exploded").exists()


ARRAYS = {"W": 0.5 * torch.eye(3), "U": torch.ones(3, 2), "b": torch.ones(3)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"W": None}, "hold arrays W and U"),
        ({"extra": torch.ones(1)}, "no arrays but"),
        ({"c": torch.ones(4)}, "C with c"),
        ({"U": torch.ones(2, 3)}, "3 rows"),
        ({"W": torch.full((3, 3), torch.nan)}, "finite"),
    ],
)
def test_files_that_hold_no_cell(tmp_path: Path, change, words: str) -> None:
    tensors = {key: v for key, v in (ARRAYS | change).items() if v is not None}
    torch.save(tensors, tmp_path / "net.pt")
    with pytest.raises(InvalidInput, match=words):
        load_cell(tmp_path / "net.pt", activation="relu")


def test_files_that_hold_one(tmp_path: Path) -> None:
    torch.save({"state_dict": ARRAYS}, tmp_path / "net.pt")
    with pytest.raises(InvalidInput, match="name its activation"):
        load_cell(tmp_path / "net.pt")
    stored = load_cell(tmp_path / "net.pt", activation="relu", shift=0.5)
    assert not stored.scaling_known  # the scale is missing
    phi = nsd.activations.leaky_relu(1.1, 0.2)
    cell = nsd.EquilibriumCell.from_weights(
        ARRAYS["W"], ARRAYS["U"], None, phi, (np.ones((2, 3)), None), shift=[0.1, 0.2], scale=3.0
    )
    save_cell(cell, tmp_path / "net.safetensors")
    again = nsd.EquilibriumCell.from_file(tmp_path / "net.safetensors")
    assert again.activation == phi
    assert again.shift.tolist() == [0.1, 0.2]
    assert np.array_equal(again.readout[0], cell.readout[0])
    (tmp_path / "net.safetensors").write_bytes(b"broken")
    with pytest.raises(DataCorrupted):
        load_cell(tmp_path / "net.safetensors")
    with pytest.raises(DataNotFound):
        load_cell(tmp_path / "none.safetensors")

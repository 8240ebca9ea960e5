"""Saved networks come back the same, or not at all."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import notsodeep as nsd
from notsodeep._files import read_tensors, write_tensors
from notsodeep.data import Preprocessing
from notsodeep.errors import (
    DataCorrupted,
    DataNotFound,
    InvalidInput,
    NotSoDeepError,
)
from notsodeep.networks.files import load, save
from notsodeep.networks.random import build

X = torch.as_tensor(np.random.default_rng(0).normal(size=(9, 5)) / 3, dtype=torch.float32)
RAW = np.random.default_rng(1).normal(3.0, 2.0, size=(30, 5))
DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
NET = nsd.ExplicitNetwork(["relu", "tanh"])


def network(model: Any = DEQ, **options: Any) -> Any:
    return build(model, 5, 8, 3, rng=0, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.safetensors"


def test_without_them_they_are_none(path: Path) -> None:
    save(network(), path)
    net: Any = load(path)
    assert net.preprocessing is None
    assert net.classes is None


def test_the_file_may_go_once_it_is_read(path: Path) -> None:
    net = network()
    save(net, path)
    again = load(path)
    path.write_bytes(b"")
    assert torch.equal(net(X), again(X))


def test_equal_networks_make_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(network(), tmp_path / name, classes=("x", "y", "z"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_flipped_bit_is_found_or_means_nothing(path: Path) -> None:
    net, preprocessing = network(), Preprocessing.fit(RAW)
    save(net, path, preprocessing=preprocessing, classes=("a", "b", "c"))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    found = 0
    for position in rng.integers(0, len(whole), 250):
        content = bytearray(whole)
        content[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            again: Any = load(path)
        except (DataCorrupted, InvalidInput):
            found += 1
            continue
        # White space, or the 17th digit of a number that is the same number all the same.
        assert again.model == net.model
        assert again.preprocessing == preprocessing
        assert again.classes == ("a", "b", "c")
        assert torch.equal(net(X), again(X))
    assert found >= 240


def test_a_changed_parameter_in_the_header_is_found(path: Path) -> None:
    save(network(), path)
    content = path.read_bytes()
    altered = content.replace(rb"\"weight\": 0.2", rb"\"weight\": 0.3")
    assert altered != content
    path.write_bytes(altered)
    with pytest.raises(DataCorrupted, match="has changed since"):
        load(path)


@pytest.mark.parametrize("kept", [0, 5, 8, 100, -1])
def test_a_truncated_file_is_refused(path: Path, kept: int) -> None:
    save(network(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataCorrupted, match="must be a file of notsodeep"):
        load(path)


@pytest.mark.parametrize("length", [200_000_000, 2**63 - 1, 2**64 - 1])
def test_a_huge_header_is_refused(path: Path, length: int) -> None:
    path.write_bytes(struct.pack("<Q", length) + b"{}" * 50)
    with pytest.raises(DataCorrupted, match="must be a file of notsodeep"):
        load(path)


def rewrite(path: Path, change: Any) -> None:
    """Alter what a file says and give it a digest that fits."""
    arrays, content = read_tensors(path)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    change(content, tensors)
    write_tensors(path, {name: tensor.numpy() for name, tensor in tensors.items()}, content)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c, t: None, None, ""),
        (lambda c, t: t.__delitem__("readout"), DataCorrupted, "readout .* missing"),
        (
            lambda c, t: t.update(extra=torch.ones(1)),
            DataCorrupted,
            "extra torch.float32 .* not expected",
        ),
        (
            lambda c, t: t.update(readout=torch.ones(3, 9)),
            DataCorrupted,
            r"readout torch.float32 \(3, 8\) missing",
        ),
        (lambda c, t: c["network"].update(width=10**9), DataCorrupted, "missing"),
        (lambda c, t: c["network"].update(width=-8), DataCorrupted, "does not describe"),
        (lambda c, t: c["network"].update(width="8"), DataCorrupted, "does not describe"),
        (lambda c, t: c["network"].update(surprise=1), DataCorrupted, "does not describe"),
        (lambda c, t: c["network"].pop("solver") and None, None, ""),
        (lambda c, t: c.pop("classes"), DataCorrupted, "does not describe"),
        (
            lambda c, t: c["network"]["model"].update(kind="transformer"),
            DataCorrupted,
            "does not describe",
        ),
        (
            lambda c, t: c["network"]["model"]["cell"][0].update(activation={"name": "nonsense"}),
            DataCorrupted,
            "nonsense",
        ),
    ],
)
def test_content_that_is_not_ours(
    path: Path, change: Any, error: type[Exception] | None, message: str
) -> None:
    save(network(), path)
    rewrite(path, change)
    if error is None:
        assert torch.equal(load(path)(X), network()(X))
        return
    with pytest.raises(error, match=message):
        load(path)


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(3)}, path)
    with pytest.raises(DataCorrupted, match="must be a file of notsodeep"):
        load(path)
    with pytest.raises(DataNotFound, match="There is no file"):
        load(tmp_path / "nowhere.safetensors")
    with pytest.raises(DataNotFound, match="There is no file"):
        load(tmp_path)
    safetensors.torch.save_file({"a": torch.ones(3)}, path, {"notsodeep": "[" * 100_000})
    with pytest.raises(NotSoDeepError, match="must be a file of notsodeep"):
        load(path)


def test_what_goes_with_a_network_must_fit(path: Path) -> None:
    with pytest.raises(InvalidInput, match="in_features = 5 numbers, got 4"):
        save(network(), path, preprocessing=Preprocessing.fit(RAW[:, :4]))
    for classes, message in (
        (("a", "b"), "3 different names, got"),
        (("a", "b", "a"), "3 different names"),
        ("abc", "sequence of names"),
        ((1.5, "a", "b"), "strings or integers, got 1.5"),
    ):
        with pytest.raises(InvalidInput, match=message):
            save(network(), path, classes=classes)
    with pytest.raises(InvalidInput, match="made by notsodeep, got Linear"):
        save(torch.nn.Linear(2, 2), path)
    assert not path.exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        save(network(), tmp_path / "file" / "net.safetensors")

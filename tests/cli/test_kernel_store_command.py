"""`notsodeep kernel` with a store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli.main import app
from notsodeep.errors import InvalidInput, StoreMismatch
from notsodeep.kernels.kernel_store import KernelStore


def kernel(out: Path, *options: str) -> dict[str, object]:
    arguments = ["kernel", "--activation", "tanh", "--samples", "50", "--json", "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, *options], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    record: dict[str, object] = json.loads(result.stdout)
    return record


def test_a_store_is_made_checked_mended_and_replaced(tmp_path: Path) -> None:
    out = tmp_path / "k.zarr"
    first = kernel(out)
    X = nsd.data.load("digits", samples=50, rng=0).X
    deq = nsd.DeepEquilibrium("tanh", 0.2).centred(float(np.sqrt(np.square(X).sum() / len(X))))
    expected = nsd.conjugate_kernel(deq, X, convention="feature")
    assert (KernelStore(out).to_dense() == expected).all()
    block = out / "c/0/0"
    block.write_bytes(block.read_bytes()[:-1] + b"x")
    assert kernel(out, "--verify")["sha256"] == first["sha256"]
    assert KernelStore(out).verify() == {}
    with pytest.raises(StoreMismatch, match="dtype there float64, here float32"):
        kernel(out, "--dtype", "float32")
    kernel(out, "--dtype", "float32", "--force")
    assert KernelStore(out).dtype == np.float32


@pytest.mark.parametrize("option", [("--cluster", "local"), ("--verify",)])
def test_what_only_a_store_can_do(tmp_path: Path, option: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"must come with a \.zarr store"):
        kernel(tmp_path / "k.npy", *option)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cluster_makes_the_same_store(tmp_path: Path) -> None:
    assert (
        kernel(tmp_path / "a.zarr", "--cluster", "local")["sha256"]
        == (kernel(tmp_path / "b.zarr")["sha256"])
    )

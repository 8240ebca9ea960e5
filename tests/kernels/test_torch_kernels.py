"""Kernels by tensor operations: equal to those of the compiled loops, and differentiable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernels.torch_kernels import tensor_kernel

MODELS = [
    nsd.DeepEquilibrium("relu", 0.3),
    nsd.DeepEquilibrium("relu", 0.2).centred(1.0),
    nsd.DeepEquilibrium("tanh", 0.5),
    nsd.DeepEquilibrium("swish", 0.0),
    nsd.ExplicitNetwork(["leaky_relu", "tanh"]),
]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 40)) / 40**0.5 * np.linspace(0.3, 2.0, 30)[:, None]
    X[4] = 0.0
    return X, rng.normal(size=(12, 40)) / 40**0.5


@pytest.mark.parametrize(
    ("kind", "convention", "dtype", "tolerance"),
    [
        ("ck", "preactivation", "float64", 1e-13),
        ("ck", "feature", "float64", 1e-13),
        ("ntk", "preactivation", "float64", 1e-13),
        ("ntk", "feature", "float64", 1e-13),
        ("ntk", "feature", "float32", 2e-6),
    ],
)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_equals_the_compiled_loops(
    model: Any, kind: Any, convention: Any, dtype: str, tolerance: float, rows: Any
) -> None:
    X, Y = rows
    for other in (None, Y):
        expected = nsd.kernel(model, X, other, kind=kind, convention=convention)
        left = torch.tensor(X, dtype=getattr(torch, dtype))
        right = None if other is None else torch.tensor(other, dtype=left.dtype)
        found = tensor_kernel(model, left, right, int(kind == "ntk"), convention)
        assert found.dtype == left.dtype
        assert np.abs(found.numpy() - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("convention", ["preactivation", "feature"])
@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_in_inputs(activation: str, kind: Any, convention: Any, rows: Any) -> None:
    X, Y = (torch.tensor(part[:2, :3], requires_grad=True) for part in rows)
    deq, choice = nsd.DeepEquilibrium(activation, 0.3), {"kind": kind, "convention": convention}
    assert torch.autograd.gradcheck(lambda x: nsd.kernel(deq, x, **choice), (X,), fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda x, y: nsd.kernel(deq, x, y, **choice), (X, Y), fast_mode=True
    )


def test_gradients_of_an_explicit_network(rows: Any) -> None:
    X = torch.tensor(rows[0][:3, :4], requires_grad=True)
    network = nsd.ExplicitNetwork(["relu", "tanh"])
    assert torch.autograd.gradcheck(
        lambda x: nsd.kernel(network, x, kind="ntk", convention="preactivation"), (X,)
    )


def test_which_way_a_tensor_goes(rows: Any) -> None:
    """Without gradients by the compiled loops, to the same bits; with them by tensors."""
    deq, X = nsd.DeepEquilibrium("tanh", 0.3), torch.tensor(rows[0])
    plain = nsd.kernel(deq, X, convention="preactivation")
    assert (plain.numpy() == nsd.kernel(deq, rows[0], convention="preactivation")).all()
    assert nsd.kernel(deq, X.float(), convention="preactivation").dtype == torch.float32
    assert nsd.kernel(deq, X.requires_grad_(), convention="preactivation").requires_grad
    with torch.no_grad():
        assert (nsd.kernel(deq, X, convention="preactivation") == plain).all()


def test_equal_rows_have_finite_gradients() -> None:
    X = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    nsd.kernel(nsd.DeepEquilibrium("relu", 0.3), X, convention="preactivation").sum().backward()
    assert torch.isfinite(X.grad).all()


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nsd.DeepEquilibrium("hard_tanh", 0.2), InvalidInput, "which has kinks"),
        (
            nsd.DeepEquilibrium(cell=[nsd.Dense("tanh", 0.5, inject=0.6, bias=0.1)]),
            InvalidInput,
            "of one layer without bias",
        ),
        (
            nsd.DeepEquilibrium(nsd.activations.from_formula("tanh(3*x)"), 0.9),
            NotConverged,
            "no stable equilibrium",
        ),
    ],
)
def test_what_is_not_covered(model: Any, error: Any, message: str) -> None:
    X = 0.3 * torch.eye(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(error, match=message):
        nsd.kernel(model, X)


def test_nearly_parallel_rows_of_large_norm() -> None:
    X = 30.0 * torch.ones(2, 2, dtype=torch.float64)
    X[0, 0] += 0.01
    with pytest.raises(NotConverged, match="nearly parallel"):
        tensor_kernel(nsd.DeepEquilibrium("tanh", 0.2), X, None, 0, "preactivation")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": np.float32}, "dtype of kernel must be None"),
        ({"out": np.empty((2, 2))}, "out of kernel must be None"),
    ],
)
def test_arguments_for_arrays(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        nsd.kernel(nsd.DeepEquilibrium("tanh", 0.2), torch.eye(2), **given)


def test_tensors_keep_their_floating_type() -> None:
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    assert nsd.kernel(deq, torch.eye(2, dtype=torch.float16)).dtype == torch.float16
    assert nsd.kernel(deq, torch.eye(2, dtype=torch.int64)).dtype == torch.float64
    pair = nsd.kernel(deq, torch.eye(2), kind="both")
    assert pair.ck.dtype == pair.ntk.dtype == torch.float32

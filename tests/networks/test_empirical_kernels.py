"""Kernels of finite modules: against Jacobians, and against the exact kernels as widths grow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory
from notsodeep.networks import build, empirical_kernels

Model = nsd.DeepEquilibrium | nsd.ExplicitNetwork
MODELS: list[Model] = [
    nsd.DeepEquilibrium("tanh", 0.2),
    nsd.DeepEquilibrium("relu", 0.2),
    nsd.ExplicitNetwork(["relu"]),
    nsd.ExplicitNetwork(["swish", "tanh"]),
]


class Foreign(nn.Module):
    """A module that hides where it comes from, so that Jacobians have to be formed."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def features(self, X: Tensor) -> Tensor:
        return self.inside.features(X)

    def forward(self, X: Tensor) -> Tensor:
        return self.inside(X)


def data(n: int, p: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, p)) / np.sqrt(p)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trainable", ["all", "readout"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_structure_equals_jacobians(model: Model, trainable: str, bias: bool) -> None:
    module = build(model, 5, 12, 3, rng=0, dtype=torch.float64, trainable=trainable, bias=bias)
    X, Y = data(7, 5), data(4, 5, seed=1)
    for other in (None, Y):
        fast = empirical_kernels(module, X, other, batch_size=3)
        slow = empirical_kernels(Foreign(module), X, other, batch_size=3)
        np.testing.assert_allclose(fast.ck, slow.ck, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(fast.ntk, slow.ntk, rtol=1e-10, atol=1e-12)
    # A third way: the definition, by a loop over samples and outputs.
    X_torch = torch.from_numpy(X)
    gradients = np.array(
        [
            [
                np.concatenate([g.numpy().ravel() for g in torch.autograd.grad(f, parameters)])
                for f, parameters in ((module(x)[k], list(module.parameters())) for k in range(3))
            ]
            for x in X_torch
        ]
    )
    expected = np.einsum("ikp,jkp->ij", gradients, gradients) / 3
    found = empirical_kernels(module, X).ntk
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_contract(model: Model) -> None:
    X = data(9, 5)
    module = build(model, 5, 30, 2, rng=0, dtype=torch.float64)
    module.train()
    whole = empirical_kernels(module, X)
    assert module.training
    for kernel in (whole.ck, whole.ntk):
        assert kernel.dtype == np.float64
        assert np.array_equal(kernel, kernel.T)
        assert np.linalg.eigvalsh(kernel).min() > -1e-12
    for size in (1, 4, 100):
        parts = empirical_kernels(module, X, batch_size=size)
        np.testing.assert_allclose(parts.ntk, whole.ntk, rtol=1e-10, atol=1e-12)
    cross = empirical_kernels(module, X[:4], X[4:])
    np.testing.assert_allclose(cross.ntk, whole.ntk[:4, 4:], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(cross.ck, whole.ck[:4, 4:], rtol=1e-10, atol=1e-12)
    tensors = empirical_kernels(module, torch.from_numpy(X).requires_grad_())
    assert np.array_equal(tensors.ntk, whole.ntk)
    assert all(p.grad is None for p in module.parameters())
    single = empirical_kernels(build(model, 5, 30, 2, rng=0), X)
    assert single.ntk.dtype == np.float32
    np.testing.assert_allclose(single.ntk, whole.ntk, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_trained_read_out_sees_the_conjugate_kernel(model: Model) -> None:
    X = data(5, 5)
    readout = empirical_kernels(build(model, 5, 30, 2, rng=0, trainable="readout"), X)
    assert np.array_equal(readout.ntk, readout.ck)
    zeros = build(model, 5, 30, 2, rng=0, readout_start="zeros")
    assert np.array_equal(empirical_kernels(zeros, X).ntk, readout.ck)


def gaps(model: Model, widths: list[int], draws: int, trainable: str) -> tuple[np.ndarray, ...]:
    """Root mean square over draws of the relative Frobenius distance to the exact kernels."""
    X = data(10, 30, seed=3) * np.linspace(0.6, 1.4, 10)[:, None]
    exact = nsd.kernel_pair(model, X, convention="feature")
    limit = exact.ck if trainable == "readout" else exact.ntk
    found = np.zeros((len(widths), 2))
    for row, width in enumerate(widths):
        for seed in range(draws):
            module = build(model, 30, width, 4, seed, dtype=torch.float64, trainable=trainable)
            pair = empirical_kernels(module, X)
            for column, (kernel, target) in enumerate(((pair.ck, exact.ck), (pair.ntk, limit))):
                gap = np.linalg.norm(kernel - target) / np.linalg.norm(target)
                found[row, column] += gap**2 / draws
    return np.sqrt(found[:, 0]), np.sqrt(found[:, 1])


def slope(widths: list[int], distances: np.ndarray) -> float:
    return float(np.polyfit(np.log(widths), np.log(distances), 1)[0])


@pytest.mark.parametrize("trainable", ["all", "readout"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_kernels_tend_to_the_exact_ones(model: Model, trainable: str) -> None:
    widths = [64, 192, 576]
    for distances in gaps(model, widths, 12, trainable):
        assert -0.65 < slope(widths, distances) < -0.35
        assert distances[-1] < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_kernels_tend_to_the_exact_ones_at_large_width(model: Model) -> None:
    widths = [128, 256, 512, 1024, 2048]
    for distances in gaps(model, widths, 20, "all"):
        assert -0.58 < slope(widths, distances) < -0.42
        assert distances[-1] < 0.1


def test_the_rate_can_fail() -> None:
    """Against the kernels of another model the distance stays."""
    X = data(10, 30, seed=3)
    right = MODELS[0]
    pair = empirical_kernels(build(right, 30, 1500, 10, rng=0, dtype=torch.float64), X)

    def distance(model: Model, **options: str) -> float:
        exact = nsd.kernel_pair(model, X, **{"convention": "feature", **options}).ntk
        return float(np.linalg.norm(pair.ntk - exact) / np.linalg.norm(exact))

    assert distance(right) < 0.05
    for wrong in (nsd.DeepEquilibrium("erf", 0.2), nsd.DeepEquilibrium("hard_tanh", 0.2)):
        assert distance(wrong) > 0.1
    assert distance(right, convention="preactivation") > 0.1


def test_a_solve_that_fails_is_an_error_even_in_training_mode() -> None:
    deq = nsd.DeepEquilibrium(nsd.activations.from_formula("tanh(4 * x)"), 0.9)
    module = build(deq, 5, 40, 2, rng=0)
    with pytest.raises(NotConverged):
        empirical_kernels(module, data(3, 5))
    assert module.training


def test_bad_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = build(MODELS[0], 5, 8, 2, rng=0)
    X = data(3, 5)
    cases = [
        (("tanh", X), "be a torch.nn.Module"),
        ((nn.Linear(5, 2), X), "have a method features"),
        ((module, X[0]), "reshape"),
        ((module, X, data(3, 4)), r"as many features as X \(5\)"),
        ((module, X * np.nan), "X of empirical_kernels must be finite"),
        ((module, data(3, 4)), "in_features = 5"),
    ]
    for arguments, words in cases:
        with pytest.raises(InvalidInput, match=words):
            empirical_kernels(*arguments)
    with pytest.raises(InvalidInput, match="batch_size"):
        empirical_kernels(module, X, batch_size=0)
    frozen = build(MODELS[0], 5, 8, 2, rng=0).requires_grad_(False)
    with pytest.raises(InvalidInput, match="parameter that requires gradients"):
        empirical_kernels(frozen, X)
    monkeypatch.setattr("notsodeep.checks.available_memory", lambda: 100)
    with pytest.raises(NotEnoughMemory, match="fewer samples at a time"):
        empirical_kernels(module, X)

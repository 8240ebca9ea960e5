"""Backbones: shapes, sizes, seeds, and the residual sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from experiments.collapse.backbones import Perceptron, ResidualBlock, ResNet18, draw_weights
from notsodeep.errors import InvalidInput, UnknownName

SHAPE = (3, 32, 32)


def test_the_standard_width_has_the_known_number_of_parameters() -> None:
    net = ResNet18(SHAPE, rng=0, device="meta")
    # 11,173,962 is the usual count with a classifier of ten classes and its bias.
    assert sum(p.numel() for p in net.parameters()) == 11_173_962 - 10 * 513
    assert net.num_features == 512


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_resnet_features(width: int) -> None:
    net = ResNet18(SHAPE, rng=0, width=width)
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 3072))).float()
    features = net(X)
    assert features.shape == (5, 8 * width)
    assert float(features.detach().min()) >= 0.0
    features.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_rows_are_images_with_channels_first() -> None:
    net = ResNet18(SHAPE, rng=0, width=2).eval()
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(2, *SHAPE))).float()
    maps = torch.relu(net.stem_norm(net.stem(images)))
    shapes = []
    for block in net.blocks:
        maps = block(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes[::2] == [(2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4)]
    expected = maps.mean(dim=(2, 3))
    torch.testing.assert_close(net(images.flatten(1)), expected, rtol=1e-4, atol=1e-5)


def test_a_block_without_its_branch_is_the_identity() -> None:
    block = ResidualBlock(4, 4, 1, dtype=torch.float32, device="cpu").eval()
    draw_weights(block, np.random.default_rng(0))
    nn.init.zeros_(block.second.weight)
    x = torch.rand(2, 4, 6, 6)
    torch.testing.assert_close(block(x), x)
    wider = ResidualBlock(4, 6, 2, dtype=torch.float32, device="cpu")
    draw_weights(wider, np.random.default_rng(0))
    assert wider(x).shape == (2, 6, 3, 3)


@pytest.mark.parametrize("net", [Perceptron(20, (12, 9, 5), rng=0), ResNet18(SHAPE, 0, width=2)])
def test_scale_free_parameters_have_no_scale(net: Any) -> None:
    net = net.double()
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(16, net.in_features)))
    names = net.scale_free_names
    before = net(X)
    with torch.no_grad():
        for name, weights in net.named_parameters():
            if name in names:
                weights *= 30.0
    torch.testing.assert_close(net(X), before, rtol=1e-3, atol=1e-3)  # but for BatchNorm's eps
    with torch.no_grad():
        for name, weights in net.named_parameters():
            if name not in names:
                weights *= 3.0
    assert float((net(X) - before).detach().abs().max()) > 1.0


def test_features_of_fixed_scale() -> None:
    net = Perceptron(20, (12, 5), rng=0, feature_scale="fixed")
    assert set(net.scale_free_names) == {name for name, _ in net.named_parameters()}
    X = np.random.default_rng(0).normal(size=(64, 20)).astype(np.float32)
    spread = net.layers[:-1](torch.from_numpy(X)).std(dim=0, unbiased=False)
    torch.testing.assert_close(spread, torch.ones(5), rtol=1e-3, atol=0.0)
    learned = Perceptron(20, (12, 5), rng=0)
    torch.testing.assert_close(net.layers[3].weight, learned.layers[3].weight)
    with pytest.raises(UnknownName, match="Did you mean 'fixed'"):
        Perceptron(20, (12, 5), rng=0, feature_scale="fixd")  # type: ignore[arg-type]


def make(kind: str, seed: int, **options: Any) -> nn.Module:
    if kind == "mlp":
        return Perceptron(20, (16, 8), rng=seed, **options)
    return ResNet18((1, 8, 8), rng=seed, width=2, **options)


@pytest.mark.parametrize("kind", ["mlp", "resnet18"])
def test_seeds_decide_the_weights_and_nothing_else_does(kind: str) -> None:
    state = torch.random.get_rng_state()
    first, second, other = make(kind, 0), make(kind, 0), make(kind, 1)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert any(
        not torch.equal(value, other.state_dict()[name])
        for name, value in first.state_dict().items()
    )
    other.load_state_dict(first.state_dict())
    X = torch.rand(3, 20 if kind == "mlp" else 64)
    assert torch.equal(first.eval()(X), other.eval()(X))
    wide = make(kind, 0, dtype=torch.float64).eval()
    torch.testing.assert_close(wide(X.double()).float(), first(X), rtol=1e-4, atol=1e-5)


def test_the_scale_is_kept_through_relu_layers() -> None:
    net = Perceptron(400, (400,), rng=0)
    weight = net.layers[0].weight
    assert float(weight.detach().var()) == pytest.approx(2 / 400, rel=0.02)


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: Perceptron(0, (3,), rng=0), "in_features"),
        (lambda: Perceptron(3, (), rng=0), "widths of Perceptron"),
        (lambda: Perceptron(3, (3, -1), rng=0), "widths of Perceptron"),
        (lambda: ResNet18((32, 32), rng=0), "three sizes"),
        (lambda: ResNet18(None, rng=0), "backbone 'mlp'"),
        (lambda: ResNet18(SHAPE, rng=0, width=0), "width of ResNet18"),
        (lambda: Perceptron(3, (2,), rng=0)(torch.zeros(2, 4)), "rows of 3 features"),
        (lambda: ResNet18(SHAPE, rng=0, width=1)(torch.zeros(2, 3)), "rows of 3072 features"),
    ],
)
def test_refusals(make_one: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_one()

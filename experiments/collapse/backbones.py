"""Backbones that a head sits on: a multilayer perceptron, and a ResNet-18 for small images.

Both take flattened rows (n, p) to non-negative features (n, d), as the last ReLU leaves them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from notsodeep import checks
from notsodeep.errors import InvalidInput

FeatureScale = Literal["learned", "fixed"]


class Perceptron(nn.Module):
    """Linear maps, each followed by batch normalisation and ReLU.

    Parameters
    ----------
    in_features : int
        p.
    widths : sequence of int
        Outputs of each layer; the last one is d.
    rng : int or numpy.random.Generator
        Seed of the weights.
    feature_scale : {"learned", "fixed"}
        Whether the last normalisation has a scale and a shift of its own for every feature, or
        none: all features then have the same variance before the last ReLU, and weight decay
        cannot put out any of them.
    dtype, device
        Of all weights.

    Attributes
    ----------
    in_features, num_features : int
        p and d.

    Examples
    --------
    >>> Perceptron(64, (100, 32), rng=0)(torch.zeros(5, 64)).shape
    torch.Size([5, 32])
    """

    def __init__(
        self,
        in_features: int,
        widths: Sequence[int],
        rng: int | np.random.Generator,
        *,
        feature_scale: FeatureScale = "learned",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        owner = "Perceptron"
        checks.known_name(feature_scale, get_args(FeatureScale), "feature_scale")
        self.in_features = checks.positive_integer(in_features, "in_features", owner)
        sizes = _layer_widths(widths, owner)
        self.num_features = sizes[-1]
        layers: list[nn.Module] = []
        for k, (before, after) in enumerate(itertools.pairwise((self.in_features, *sizes)), 1):
            linear = skip_init(nn.Linear, before, after, bias=False, dtype=dtype, device=device)  # type: ignore[no-untyped-call]
            affine = k < len(sizes) or feature_scale == "learned"
            norm = nn.BatchNorm1d(after, affine=affine, dtype=dtype, device=device)
            layers += [linear, norm, nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        draw_weights(self, checks.random_generator(rng, owner))

    @property
    def scale_free_names(self) -> tuple[str, ...]:
        """Names of all parameters in front of the last normalisation."""
        last = f"layers.{len(self.layers) - 2}."
        return tuple(name for name, _ in self.named_parameters() if not name.startswith(last))

    def forward(self, X: Tensor) -> Tensor:
        """Return the features, shape (n, d)."""
        checked_features(X, self.in_features)
        features: Tensor = self.layers(X)
        return features


class ResNet18(nn.Module):
    """ResNet-18 for 32 × 32 images: a 3 × 3 stem, four stages of two blocks, a global average.

    Stage i = 0 … 3 has width·2^i channels and halves the image, except for the first; d = 8·width.
    The layout follows He, Zhang, Ren, Sun, *Deep Residual Learning for Image Recognition*, CVPR
    2016, with the stem that is usual for small images: no stride and no pooling.  With width 64 and
    three channels there are 11,168,832 parameters; a width of 8 fits a CPU.

    Parameters
    ----------
    image_shape : tuple of int
        Channels, height and width of an image before it was flattened.
    rng : int or numpy.random.Generator
        Seed of the weights.
    width : int
        Channels of the first stage.
    dtype, device
        Of all weights.

    Attributes
    ----------
    in_features, num_features : int
        p and d.

    Examples
    --------
    >>> net = ResNet18((3, 32, 32), rng=0, width=8)
    >>> net(torch.zeros(2, 3072)).shape
    torch.Size([2, 64])
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        rng: int | np.random.Generator,
        *,
        width: int = 64,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        owner = "ResNet18"
        self.image_shape = _image_shape(image_shape, owner)
        self.in_features = math.prod(self.image_shape)
        self.width = checks.positive_integer(width, "width", owner)
        self.num_features = 8 * self.width
        self.stem = _convolution(self.image_shape[0], self.width, 3, 1, dtype, device)
        self.stem_norm = nn.BatchNorm2d(self.width, dtype=dtype, device=device)
        blocks: list[nn.Module] = []
        before = self.width
        for stage in range(4):
            after = self.width * 2**stage
            stride = 1 if stage == 0 else 2
            blocks += [
                ResidualBlock(before, after, stride, dtype=dtype, device=device),
                ResidualBlock(after, after, 1, dtype=dtype, device=device),
            ]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        draw_weights(self, checks.random_generator(rng, owner))

    @property
    def scale_free_names(self) -> tuple[str, ...]:
        """Names of the weights of all convolutions, each of which a normalisation follows."""
        return tuple(name for name, weight in self.named_parameters() if weight.ndim == 4)

    def forward(self, X: Tensor) -> Tensor:
        """Return the features, shape (n, d)."""
        checked_features(X, self.in_features)
        images = X.reshape(-1, *self.image_shape)
        # On a CPU this memory format makes a step of the narrow network almost twice as fast.
        images = images.contiguous(memory_format=torch.channels_last)
        maps = torch.relu(self.stem_norm(self.stem(images)))
        features: Tensor = self.blocks(maps).mean(dim=(2, 3))
        return features

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return f"image_shape={self.image_shape}, width={self.width}"


class ResidualBlock(nn.Module):
    """relu(x′ + BN(conv(relu(BN(conv(x)))))); x′ is x, or BN(1 × 1 conv(x)) if shapes change."""

    def __init__(
        self,
        before: int,
        after: int,
        stride: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.first = _convolution(before, after, 3, stride, dtype, device)
        self.first_norm = nn.BatchNorm2d(after, dtype=dtype, device=device)
        self.second = _convolution(after, after, 3, 1, dtype, device)
        self.second_norm = nn.BatchNorm2d(after, dtype=dtype, device=device)
        self.stride = stride
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                _convolution(before, after, 1, 1, dtype, device),
                nn.BatchNorm2d(after, dtype=dtype, device=device),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps of the block, shape (n, after, h/stride, w/stride)."""
        inner = torch.relu(self.first_norm(self.first(x)))
        # What a 1 × 1 convolution with a stride sees.  Torch's own, on a CPU with channels last in
        # memory and fewer than 8 of them, writes outside of its memory in the backward pass.
        seen = x[..., :: self.stride, :: self.stride]
        outer: Tensor = self.shortcut(seen) + self.second_norm(self.second(inner))
        return torch.relu(outer)


def draw_weights(module: nn.Module, generator: np.random.Generator) -> None:
    """Draw all linear and convolutional weights with variance 2/fan-in, which ReLU preserves."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                shape = tuple(layer.weight.shape)
                scale = math.sqrt(2.0 / math.prod(shape[1:]))
                layer.weight.copy_(torch.from_numpy(scale * generator.standard_normal(shape)))


def _convolution(
    before: int,
    after: int,
    size: int,
    stride: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> nn.Conv2d:
    """Make a convolution without bias, whose weights are still to be drawn."""
    layer: nn.Conv2d = skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d,
        before,
        after,
        size,
        stride=stride,
        padding=size // 2,
        bias=False,
        dtype=dtype,
        device=device,
    )
    return layer


def _layer_widths(widths: Sequence[int], owner: str) -> tuple[int, ...]:
    """Require at least one width, each an integer of at least one."""
    if isinstance(widths, str) or not isinstance(widths, Sequence) or not widths:
        raise checks.invalid("widths", owner, "be a sequence of at least one integer", repr(widths))
    return tuple(checks.positive_integer(width, "widths", owner) for width in widths)


def _image_shape(shape: Any, owner: str) -> tuple[int, int, int]:
    """Require the three sizes of an image; say what to do about data without any."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        remedy = "Use the backbone 'mlp' for data that are not colour images."
        raise checks.invalid("image_shape", owner, "have three sizes", repr(shape), remedy)
    channels, height, width = (
        checks.positive_integer(size, "image_shape", owner) for size in shape
    )
    return channels, height, width


def checked_features(X: Tensor, in_features: int) -> None:
    """Require rows of as many features as the first layer takes."""
    if X.shape[-1] != in_features:
        got = f"{in_features} features, got shape {tuple(X.shape)}"
        raise InvalidInput(f"X must have rows of {got}.")

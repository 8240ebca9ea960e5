"""Backbones that a head sits on: a multilayer perceptron, and a ResNet-18 for small images.

Both take flattened rows (n, p) to non-negative features (n, d), as the last ReLU leaves them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    """Linear maps to `widths`, each followed by batch normalisation and ReLU.

    With ``fixed_scale`` the last normalisation has no scale and shift of its own: all features then
    have the same variance before the last ReLU, and weight decay cannot put out any of them.
    """

    def __init__(
        self, p: int, widths: Sequence[int], rng: np.random.Generator, *, fixed_scale: bool = False
    ) -> None:
        super().__init__()
        self.num_features = widths[-1]
        layers: list[nn.Module] = []
        for k, (before, after) in enumerate(itertools.pairwise((p, *widths)), 1):
            affine = k < len(widths) or not fixed_scale
            linear = nn.utils.skip_init(nn.Linear, before, after, bias=False)
            layers += [linear, nn.BatchNorm1d(after, affine=affine), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        draw_weights(self, rng)

    @property
    def scale_free_names(self) -> tuple[str, ...]:
        """Names of all parameters in front of the last normalisation, which undoes their scale."""
        last = f"layers.{len(self.layers) - 2}."
        return tuple(name for name, _ in self.named_parameters() if not name.startswith(last))

    def forward(self, X: Tensor) -> Tensor:
        """Return the features, shape (n, d)."""
        return self.layers(X)


class ResNet18(nn.Module):
    """ResNet-18 for 32 × 32 images: a 3 × 3 stem, four stages of two blocks, a global average.

    Stage i = 0 … 3 has width·2^i channels and halves the image, except for the first; d = 8·width.
    The layout follows He, Zhang, Ren, Sun, *Deep Residual Learning for Image Recognition*, CVPR
    2016, with the stem that is usual for small images: no stride and no pooling.  With width 64 and
    three channels there are 11,168,832 parameters; a width of 8 fits a CPU.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], rng: np.random.Generator, *, width: int = 64
    ) -> None:
        super().__init__()
        self.image_shape, self.num_features = image_shape, 8 * width  # channels first
        self.stem = _convolution(image_shape[0], width, 3, 1)
        self.stem_norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        for before, after, stride in ((1, 1, 1), (1, 2, 2), (2, 4, 2), (4, 8, 2)):
            blocks.append(ResidualBlock(before * width, after * width, stride))
            blocks.append(ResidualBlock(after * width, after * width, 1))
        self.blocks = nn.Sequential(*blocks)
        self.to(memory_format=torch.channels_last)
        draw_weights(self, rng)

    @property
    def scale_free_names(self) -> tuple[str, ...]:
        """Names of the weights of all convolutions, each of which a normalisation follows."""
        return tuple(name for name, weight in self.named_parameters() if weight.ndim == 4)

    def forward(self, X: Tensor) -> Tensor:
        """Return the features, shape (n, d)."""
        images = X.reshape(-1, *self.image_shape)
        # On a CPU this memory format makes a step of the narrow network almost twice as fast.
        images = images.contiguous(memory_format=torch.channels_last)
        return self.blocks(torch.relu(self.stem_norm(self.stem(images)))).mean(dim=(2, 3))


class ResidualBlock(nn.Module):
    """relu(x′ + BN(conv(relu(BN(conv(x)))))); x′ is x, or BN(1 × 1 conv(x)) if shapes change."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(before, after, 3, stride), nn.BatchNorm2d(after)
        self.second, self.second_norm = _convolution(after, after, 3, 1), nn.BatchNorm2d(after)
        self.stride = stride
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(_convolution(before, after, 1, 1), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps of the block, shape (n, after, h/stride, w/stride)."""
        inner = torch.relu(self.first_norm(self.first(x)))
        # What a 1 × 1 convolution with a stride sees.  Torch's own, on a CPU with channels last in
        # memory and fewer than 8 of them, writes outside of its memory in the backward pass.
        seen = x[..., :: self.stride, :: self.stride]
        return torch.relu(self.shortcut(seen) + self.second_norm(self.second(inner)))


def draw_weights(module: nn.Module, rng: np.random.Generator) -> None:
    """Draw all linear and convolutional weights with variance 2/fan-in, which ReLU preserves."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                shape = tuple(layer.weight.shape)
                scale = math.sqrt(2.0 / math.prod(shape[1:]))
                layer.weight.copy_(torch.from_numpy(scale * rng.standard_normal(shape)))


def _convolution(before: int, after: int, size: int, stride: int) -> nn.Conv2d:
    """Make a convolution without bias, whose weights are still to be drawn."""
    options = {"stride": stride, "padding": size // 2, "bias": False}
    return nn.utils.skip_init(nn.Conv2d, before, after, size, **options)

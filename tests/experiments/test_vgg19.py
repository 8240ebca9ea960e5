"""The convolutional stack against a network built independently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from experiments.accuracy.vgg19 import features

CONFIGURATION = [64, 64, "M", 128, 128, "M", *[256] * 4, "M", *[512] * 4, "M", *[512] * 4, "M"]
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)


def reference(convolutions: int, *, normalised: bool = False) -> nn.Sequential:
    """The published architecture, truncated, with random weights of a sensible size."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    inputs, count = 3, 0
    for item in CONFIGURATION:
        if item == "M":
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layer = nn.Conv2d(inputs, item, 3, padding=1)
        nn.init.kaiming_normal_(layer.weight)
        nn.init.normal_(layer.bias)
        layers.append(layer)
        if normalised:
            batch_norm = nn.BatchNorm2d(item)
            for tensor in (batch_norm.weight, batch_norm.bias, batch_norm.running_mean):
                nn.init.normal_(tensor, 1.0, 0.3)
            nn.init.uniform_(batch_norm.running_var, 0.5, 2.0)
            layers.append(batch_norm)
        layers.append(nn.ReLU())
        inputs, count = item, count + 1
        if count == convolutions:
            break
    return nn.Sequential(*layers).eval()


def torchvision_state(network: nn.Sequential) -> dict[str, torch.Tensor]:
    state = {f"features.{key}": value.clone() for key, value in network.state_dict().items()}
    return {**state, "classifier.0.weight": torch.zeros(4, 8), "classifier.0.bias": torch.zeros(4)}


def expected(network: nn.Sequential, images: np.ndarray = IMAGES) -> np.ndarray:
    with torch.inference_mode():
        scaled = (torch.from_numpy(images).float() / 255.0 - MEAN) / STD
        return network(scaled).flatten(1).numpy()


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("normalised", [False, True])
def test_all_sixteen_convolutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, normalised: bool
) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    network, path = reference(16, normalised=normalised), tmp_path / "vgg19.pth"
    torch.save({"state_dict": torchvision_state(network)}, path)
    for _ in range(2):  # computed, and read again
        close(features(IMAGES, path), expected(network))
    pooled = nn.Sequential(*network, nn.MaxPool2d(2))
    close(features(IMAGES, path, pooled=True), expected(pooled))


def test_a_leading_colour_convolution_replaces_the_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    network, colour = reference(16), nn.Conv2d(3, 3, 1)
    with torch.no_grad():
        colour.weight.copy_(torch.diag(1.0 / STD.flatten()).reshape(3, 3, 1, 1))
        colour.bias.copy_(-(MEAN / STD).flatten())
    whole = nn.Sequential(colour, nn.Identity(), *network)
    save_file(whole.state_dict(), tmp_path / "vgg19.safetensors")
    close(features(IMAGES, tmp_path / "vgg19.safetensors"), expected(network))


def test_weights_of_another_network_are_rejected(tmp_path: Path) -> None:
    torch.save(torchvision_state(reference(4)), tmp_path / "vgg19.pth")
    with pytest.raises(ValueError, match="16 convolutions"):
        features(IMAGES, tmp_path / "vgg19.pth")

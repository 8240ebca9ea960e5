"""Finite convolutional networks, as torch modules in the theory's scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.models.convolutional import ConvolutionalModel
from notsodeep.networks import requirements
from notsodeep.networks.equilibrium_solvers import Solver, as_solver
from notsodeep.networks.gradient_choices import as_gradient
from notsodeep.networks.implicit_gradient import Gradient
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.modules import PRECISIONS
from notsodeep.networks.solve_records import ImplicitRecord, OnFailure
from notsodeep.networks.torch_activations import torch_twin


class ConvolutionalModule(nn.Module):
    """A convolutional model with m channels, and a linear read-out of its pooled states.

    Weights are kept at unit variance, with the factors of `notsodeep.Convolution` applied in
    `forward`: at large m the kernels are those of the description, convention "feature".

    Parameters
    ----------
    description : ConvolutionalEquilibrium or ConvolutionalNetwork
    width, out_features : int
        m and K.
    rng : int or numpy.random.Generator
        Seed, or generator, of all weights.
    solver, gradient, on_failure
        As for `notsodeep.build`; of equilibrium models only.
    dtype : torch.float32 or torch.float64
    device : torch.device or str, optional

    Attributes
    ----------
    weight_1, injection_1, bias_1, … : Parameter
        A_l of shape (m, m, k, k), U_l of shape (m, C, k, k) and β_l of shape (m,), as far as their
        variances are not zero.
    readout : Parameter of shape (K, pooled pixels · m)
    last_record : ImplicitRecord or None
        Of the last solve, gradients included.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("tanh", weight=0.2, inject=0.8)
    >>> model = nsd.ConvolutionalEquilibrium([layer], (6, 6), pooling="average")
    >>> module = nsd.build(model, 36, 16, 2, rng=0)
    >>> module(torch.ones(3, 36)).shape, module.last_record.forward.converged
    (torch.Size([3, 2]), True)
    """

    readout: nn.Parameter

    def __init__(
        self,
        description: ConvolutionalModel,
        width: int,
        out_features: int,
        rng: int | np.random.Generator,
        *,
        solver: str | Mapping[str, Any] | Solver = "fixed_point",
        gradient: str | Mapping[str, Any] | Gradient = "implicit",
        on_failure: OnFailure = "raise",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        generator = checks.random_generator(rng, owner)
        requirements.network_dtype(dtype, PRECISIONS, owner)
        self.description = description
        self.width = checks.positive_integer(width, "width", owner)
        self.in_features = description.features
        self.out_features = checks.positive_integer(out_features, "out_features", owner)
        self.solver, self.gradient = as_solver(solver), as_gradient(gradient)
        self.on_failure = on_failure
        self.last_record: ImplicitRecord | None = None
        self._twins = tuple(torch_twin(layer.activation) for layer in description.cell)

        def parameter(name: str, *shape: int) -> None:
            values = torch.from_numpy(generator.standard_normal(shape))
            self.register_parameter(name, nn.Parameter(values.to(dtype=dtype, device=device)))

        m, channels = width, description.image_shape[2]
        for number, layer in enumerate(description.cell, start=1):
            k = layer.size
            if layer.weight > 0.0:
                parameter(f"weight_{number}", m, m, k, k)
            if layer.inject > 0.0:
                parameter(f"injection_{number}", m, channels, k, k)
            if layer.bias > 0.0:
                parameter(f"bias_{number}", m)
        parameter("readout", out_features, self._pooled_pixels * m)

    @property
    def _pooled_pixels(self) -> int:
        height, width = self.description.grid
        pooling = self.description.pooling
        if pooling == "average":
            return 1
        if pooling == "flatten" or self.description.padding == "circular":
            return height * width
        return (height - int(pooling) + 1) * (width - int(pooling) + 1)

    def _convolve(self, values: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
        """Convolve (n, channels, height, width), and divide by k."""
        k = weight.shape[-1]
        reach = k // 2
        mode = "circular" if self.description.padding == "circular" else "constant"
        around = nn.functional.pad(values, (reach, reach, reach, reach), mode=mode)
        return nn.functional.conv2d(around, weight, stride=stride) / k

    def _drives(self, X: Tensor, weights: Mapping[str, Tensor]) -> list[Tensor]:
        """√u U ∗ x + √b β of every layer, each of shape (n, m, height, width)."""
        height, width, channels = self.description.image_shape
        images = X.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        if self.description.input_pooling > 1:
            images = nn.functional.avg_pool2d(images, self.description.input_pooling)
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

    def _turn(
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

    def states(self, X: Tensor) -> Tensor:
        """Return z = φ(h)/√m of the last layer, shape (n, m, height, width)."""
        requirements.input_features(X, self.in_features, self.readout.dtype, type(self).__name__)
        weights = {name: p for name, p in self.named_parameters() if name != "readout"}
        drives = self._drives(X, weights)
        if self.description.cell[0].weight == 0.0:
            return self._turn(drives[0], drives, weights)[0]
        shape = drives[0].shape
        recurrent = {name: p for name, p in weights.items() if name.startswith("weight_")}

        def around(flat: Tensor, *given: Tensor) -> Tensor:
            layers = [drive.reshape(-1, *shape[1:]) for drive in given[: len(drives)]]
            own = dict(zip(recurrent, given[len(drives) :], strict=True))
            return self._turn(flat.reshape(-1, *shape[1:]), layers, own)[1].reshape(flat.shape)

        flat = [drive.flatten(1) for drive in drives]
        h, self.last_record = implicit_layer(
            around,
            (*flat, *recurrent.values()),
            flat[0],
            solver=self.solver,
            gradient=self.gradient,
            on_failure=self.on_failure,
            subject=f"the fixed point of {self.description} with {self.width} channels",
        )
        return self._turn(h.reshape(shape), drives, weights)[0]

    def features(self, X: Tensor) -> Tensor:
        """Return the pooled states, flattened and divided by √(their pixels)."""
        states, pooling = self.states(X), self.description.pooling
        if pooling == "average":
            states = states.mean(dim=(2, 3), keepdim=True)
        elif pooling != "flatten":
            b = int(pooling)
            if self.description.padding == "circular":
                states = nn.functional.pad(states, (0, b - 1, 0, b - 1), mode="circular")
            states = nn.functional.avg_pool2d(states, b, stride=1)
        return states.flatten(1) / math.sqrt(self._pooled_pixels)

    def forward(self, X: Tensor) -> Tensor:
        """Return the outputs, shape (n, K)."""
        return nn.functional.linear(self.features(X), self.readout)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return f"{self.description}, width={self.width}, out_features={self.out_features}"

"""Finite convolutional networks, as torch modules in the theory's scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.models import ConvolutionalModel
from notsodeep.networks.equilibrium_solvers import Solver, as_solver
from notsodeep.networks.gradient_choices import as_gradient
from notsodeep.networks.implicit_gradient import Gradient
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.modules import FeatureNetwork, HiddenLayer, Trainable
from notsodeep.networks.solve_records import (
    FailureCount,
    ImplicitRecord,
    OnFailure,
    Report,
    report_for,
)


class ConvolutionalModule(FeatureNetwork):
    """A convolutional model with m channels, and a linear read-out of its pooled states.

    Weights are kept at unit variance, with the factors of `notsodeep.Convolution` applied in
    `forward`: at large m the kernels are those of the description, convention "feature".

    Attributes
    ----------
    weight_1, injection_1, bias_1, … : Parameter or buffer
        A_l of shape (m, m, k, k), U_l of shape (m, C, k, k) and β_l of shape (m,), as far as their
        variances are not zero.
    readout : Parameter of shape (K, pooled pixels · m)
    solver, gradient, on_failure, failures, last_record
        As in `EquilibriumNetwork`; of equilibrium models only.

    See `FeatureNetwork` for the other attributes, and `build` for the arguments.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("tanh", weight=0.2, inject=0.8)
    >>> model = nsd.ConvolutionalEquilibrium([layer], (6, 6), pooling="average")
    >>> module = nsd.build(model, 36, 16, 2, rng=0)
    >>> module(torch.ones(3, 36)).shape, module.last_record.forward.converged
    (torch.Size([3, 2]), True)
    """

    description: ConvolutionalModel

    def __init__(
        self,
        description: ConvolutionalModel,
        in_features: int,
        width: int,
        out_features: int,
        *,
        trainable: Trainable = "all",
        bias: bool = False,
        solver: str | Mapping[str, Any] | Solver = "fixed_point",
        gradient: str | Mapping[str, Any] | Gradient = "implicit",
        on_failure: OnFailure | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        if in_features != description.features:
            requirement = f"be {description.features}, the numbers in an image of {description}"
            raise checks.invalid("in_features", "build", requirement, in_features)
        shapes: dict[str, tuple[int, ...]] = {}
        for number, layer in enumerate(description.cell, start=1):
            window = (layer.size, layer.size)
            if layer.weight > 0.0:
                shapes[f"weight_{number}"] = (width, width, *window)
            if layer.inject > 0.0:
                shapes[f"injection_{number}"] = (width, description.image_shape[2], *window)
            if layer.bias > 0.0:
                shapes[f"bias_{number}"] = (width,)
        super().__init__(
            description,
            in_features,
            width,
            out_features,
            shapes,
            trainable=trainable,
            bias=bias,
            dtype=dtype,
            device=device,
            pixels=pooled_pixels(description),
        )
        self.solver, self.gradient = as_solver(solver), as_gradient(gradient)
        if on_failure is not None:
            checks.known_name(on_failure, get_args(OnFailure), "on_failure of ConvolutionalModule")
        self.on_failure = on_failure
        self.failures = FailureCount()
        self.last_record: ImplicitRecord | None = None
        self._twins = tuple(torch_twin(layer.activation) for layer in description.cell)

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
        h, self.last_record = implicit_layer(
            around,
            (*flat, *recurrent.values()),
            flat[0],
            solver=self.solver,
            gradient=self.gradient,
            on_failure=self._report(),
            subject=f"the fixed point of {self.description} with {self.width} channels",
        )
        return self.turn(h.reshape(shape), drives, given)[0]

    def hidden_pass(self, X: Tensor, *weights: Tensor) -> tuple[Tensor, tuple[HiddenLayer, ...]]:
        """Return the pooled states, flattened and divided by √(their pixels).

        Gradients of convolutions are no products δ ⊗ v, so that no layers are left behind.
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

    def _report(self) -> Report:
        others = as_solver(self.solver).others
        remedy = f"Use smaller weights, more channels, {others}, or more steps."
        if self.on_failure is not None:
            return report_for(self.on_failure, remedy)
        return self.failures.report(remedy) if self.training else report_for("raise", remedy)


def pooled_pixels(model: ConvolutionalModel) -> int:
    """Count the pixels that the read-out sees."""
    height, width = model.grid
    if model.pooling == "average":
        return 1
    if model.pooling == "flatten" or model.padding == "circular":
        return height * width
    return (height - int(model.pooling) + 1) * (width - int(model.pooling) + 1)

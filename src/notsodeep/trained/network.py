"""The explicit network of a given DEQ, as a torch module."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep.activations import Activation
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.records import Record
from notsodeep.trained.cell import AffineCell, Readout
from notsodeep.trained.explicit_layers import Layer, layer_activation

if TYPE_CHECKING:
    from notsodeep.networks.onnx_graph import GraphBuilder


@dataclasses.dataclass(frozen=True, repr=False)
class LayersDescription(Record):
    """What an explicit network of a given DEQ looks like.

    Attributes
    ----------
    widths : tuple of int
        Of the layers.
    activations : tuple of str
    """

    widths: tuple[int, ...]
    activations: tuple[str, ...]


class ExplicitLayers(nn.Module):
    """A plain feed-forward network: h = U(x − shift)/scale + b, dense layers, a read-out.

    Layer k reads [h, z_{k−1}, …, z_1].  The rows that it takes are those that the DEQ takes: their
    shift and scale are part of its first weights.

    Parameters
    ----------
    cell : AffineCell
    layers : sequence of Layer
    beta : float
        The largest slope of the cell's activation.
    readout : tuple of (C, c)
    dtype : torch.dtype, default float32
    """

    def __init__(
        self,
        cell: AffineCell,
        layers: Sequence[Layer],
        beta: float,
        readout: Readout,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.activations: list[Activation] = [layer_activation(cell, k, beta) for k in layers]
        self._twins = [torch_twin(activation) for activation in self.activations]
        self.in_features, self.out_features = cell.inputs, len(readout[1])
        stem = cell.injection / cell.scale

        def kept(values: FloatArray) -> nn.Parameter:
            return nn.Parameter(torch.tensor(values, dtype=dtype))

        self.stem = kept(stem)
        self.stem_bias = kept(cell.bias - stem @ cell.shift)
        self.weights = nn.ParameterList([kept(layer.weight) for layer in layers])
        self.biases = nn.ParameterList([kept(layer.bias) for layer in layers])
        self.readout = kept(readout[0])
        self.readout_bias = kept(readout[1])

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of rows, shape (n, K)."""
        return nn.functional.linear(self.features(x), self.readout, self.readout_bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the states of the last layer, shape (n, m)."""
        drive = nn.functional.linear(x.to(self.stem.dtype), self.stem, self.stem_bias)
        states: list[Tensor] = []
        for weight, bias, activation in zip(self.weights, self.biases, self._twins, strict=True):
            inputs = torch.cat([drive, *reversed(states)], dim=-1) if states else drive
            states.append(activation(nn.functional.linear(inputs, weight, bias)))
        return states[-1]

    @property
    def description(self) -> LayersDescription:
        """Widths and activations."""
        return LayersDescription(
            tuple(len(bias) for bias in self.biases), tuple(map(str, self.activations))
        )

    def append_to(self, graph: GraphBuilder, x: str) -> str:
        """Append the network to an ONNX graph; return the name of its logits."""
        from notsodeep.networks.onnx_graph import apply_activation

        def linear(value: str, weight: Tensor, bias: Tensor) -> str:
            matrix = np.ascontiguousarray(weight.detach().cpu().numpy().T.astype(np.float32))
            product = graph.apply("MatMul", value, graph.constant(matrix, "weight"))
            vector = bias.detach().cpu().numpy().astype(np.float32)
            return graph.apply("Add", product, graph.constant(vector, "bias"))

        drive = linear(x, self.stem, self.stem_bias)
        states: list[str] = []
        for weight, bias, phi in zip(self.weights, self.biases, self.activations, strict=True):
            inputs = graph.apply("Concat", drive, *reversed(states), axis=1) if states else drive
            states.append(apply_activation(graph, phi, linear(inputs, weight, bias)))
        return linear(states[-1], self.readout, self.readout_bias)

    def layers(self, originals: Sequence[Layer]) -> tuple[Layer, ...]:
        """Return the layers with the weights that the module has now."""
        return tuple(
            dataclasses.replace(layer, weight=_array(weight), bias=_array(bias))
            for layer, weight, bias in zip(originals, self.weights, self.biases, strict=True)
        )


def _array(tensor: Tensor) -> FloatArray:
    return np.asarray(tensor.detach().cpu().double().numpy())

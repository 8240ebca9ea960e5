"""Convolutional networks as ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from notsodeep.networks.convolutional import ConvolutionalModule, pooled_pixels
from notsodeep.networks.onnx_graph import GraphBuilder, apply_activation

Loop = Callable[[str, Callable[[GraphBuilder], str], int], tuple[str, str, str]]
"""From a start, a step of "h" and the numbers in a row to h, the residual and the steps taken."""


def append_images(
    graph: GraphBuilder, module: ConvolutionalModule, x: str, loop: Loop
) -> tuple[str, str, str]:
    """Append the map from flattened images to features, equilibrium or explicit.

    Returns the names of the features, the residual and the count; the latter are empty if the
    network is explicit.  In the loop h is flat, as everything that judges it takes rows.
    """
    model, width = module.description, module.width
    cell = model.cell
    shape = graph.constant(np.array([-1, *model.image_shape]), "image_shape")
    images = graph.apply("Transpose", graph.apply("Reshape", x, shape), perm=[0, 3, 1, 2])

    def values(name: str, variance: float, scale: float = 1.0) -> np.ndarray:
        array = getattr(module, name).detach().cpu().numpy()
        return np.asarray(math.sqrt(variance) * scale * array, dtype=np.float32)

    def convolved(
        g: GraphBuilder, of: str, weight: np.ndarray, bias: np.ndarray | None, stride: int
    ) -> str:
        reach = weight.shape[-1] // 2
        circular = model.padding == "circular"
        inputs = [_wrapped(g, of, reach, reach) if circular else of, g.constant(weight, "weight")]
        if bias is not None:
            inputs.append(g.constant(bias, "bias"))
        pads = [0 if circular else reach] * 4
        return g.apply("Conv", *inputs, pads=pads, strides=[stride, stride])

    drives: list[str | None] = []
    for number, layer in enumerate(cell, start=1):
        bias = values(f"bias_{number}", layer.bias) if layer.bias > 0.0 else None
        weight = np.zeros((width, model.image_shape[2], 1, 1), np.float32)
        if layer.inject > 0.0:
            weight = values(f"injection_{number}", layer.inject, 1.0 / layer.size)
        if layer.inject > 0.0 or bias is not None or number == 1:
            drives.append(convolved(graph, images, weight, bias, model.stride))
        else:
            drives.append(None)

    def read(g: GraphBuilder, units: str, index: int) -> str:
        layer, drive = cell[index], drives[index]
        weight = values(f"weight_{index + 1}", layer.weight, 1.0 / layer.size)
        field = convolved(g, units, weight, None, 1)
        return field if drive is None else g.apply("Add", field, drive)

    def through(g: GraphBuilder, field: str) -> str:
        """From h of the first layer to φ(h)/√m of the last."""
        for index, layer in enumerate(cell, start=1):
            units = g.apply("Mul", apply_activation(g, layer.activation, field), width**-0.5)
            if index < len(cell):
                field = read(g, units, index)
        return units

    def step(body: GraphBuilder) -> str:
        field = body.apply("Reshape", "h", grid)
        return body.apply("Flatten", read(body, through(body, field), 0), axis=1)

    assert drives[0] is not None
    field, residual, count = drives[0], "", ""
    if cell[0].weight > 0.0:
        grid = graph.constant(np.array([-1, width, *model.grid]), "grid")
        units = width * math.prod(model.grid)
        flat, residual, count = loop(graph.apply("Flatten", field, axis=1), step, units)
        field = graph.apply("Reshape", flat, grid)
    states = through(graph, field)
    if model.pooling == "average":
        states = graph.apply("GlobalAveragePool", states)
    elif model.pooling != "flatten":
        b = int(model.pooling)
        if model.padding == "circular":
            states = _wrapped(graph, states, 0, b - 1)
        states = graph.apply("AveragePool", states, kernel_shape=[b, b], strides=[1, 1])
    flat = graph.apply("Flatten", states, axis=1)
    return graph.apply("Mul", flat, pooled_pixels(model) ** -0.5), residual, count


def _wrapped(graph: GraphBuilder, values: str, before: int, after: int) -> str:
    """Put the last rows and columns before the first, and the first after the last."""
    for axis in (2, 3) if before + after else ():
        ends = []
        for start, stop in ((-before, 2**31 - 1), (0, after)):
            places = (np.array([number]) for number in (start, stop, axis))
            ends.append((values, *(graph.constant(place, "place") for place in places)))
        parts = [values]
        if before:
            parts.insert(0, graph.apply("Slice", *ends[0]))
        parts.append(graph.apply("Slice", *ends[1]))
        values = graph.apply("Concat", *parts, axis=axis)
    return values

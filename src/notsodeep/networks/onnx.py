"""Networks as ONNX files, built operator by operator, with the preprocessing inside."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import __version__, checks, extras
from notsodeep._files import atomic_write
from notsodeep.activations import (
    Activation,
    Centred,
    Custom,
    Elementary,
    PiecewiseLinear,
    Polynomial,
    Scaled,
)
from notsodeep.activations.formulas import Formula, evaluate
from notsodeep.data import Preprocessing
from notsodeep.errors import InvalidInput, NoOnnxForm, NotConverged
from notsodeep.models import ConvolutionalModel, MonotoneEquilibrium
from notsodeep.networks.files import attached
from notsodeep.networks.implicit import DEFAULT_TOLERANCE, Solver
from notsodeep.networks.random import Network, pooled_pixels

_OPERATORS = 17  # version of the operator set
_FILE_VERSION = 8  # the oldest of the file format that has these operators
_LARGEST_FILE = 2**31 - 2**20  # bytes of one protocol-buffers message
_PROBES = 16

Value = str | float
"""The name of a tensor in the graph, or a constant."""


def export_onnx(
    module: nn.Module,
    path: str | Path,
    *,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str | int] | None = None,
    steps: int | None = None,
) -> None:
    """Write a network as an ONNX file, atomically.

    The input ``x``, shape (batch, p) in float32, is a batch of raw rows if there is a
    preprocessing, which then is part of the graph; the output ``logits`` has shape (batch, K).
    The graph computes in float32 whatever the module's dtype.  Class names go into the metadata as
    JSON under ``classes``, the model under ``model``.

    A DEQ becomes a loop of a fixed number of plain steps, which all rows take.

    Parameters
    ----------
    module : Network
        As made by `build`; or the network of a compiled DEQ.
    path : path
    preprocessing : Preprocessing, optional
        By default the one that the module was loaded with, if any.
    classes : sequence of str or int, optional
        Names of the outputs; by default those that the module was loaded with.
    steps : int, optional
        Of a DEQ; by default as many as random rows of norm one, 0.01 and 100 need to the tolerance
        of its solver, but not below 1e-6.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd, onnxruntime
    >>> net = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 4, 32, 2, rng=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     nsd.export_onnx(net, f"{directory}/net.onnx")
    ...     session = onnxruntime.InferenceSession(f"{directory}/net.onnx")
    >>> (logits,) = session.run(None, {"x": np.ones((3, 4), np.float32)})
    >>> np.allclose(logits, net(torch.ones(3, 4)).detach().numpy(), atol=1e-5)
    True
    """
    network: Any = module
    if not isinstance(module, Network) and not hasattr(module, "append_to"):
        got = type(module).__name__
        raise InvalidInput(f"module must be a network made by notsodeep, got {got}.")
    preprocessing, names = attached(module, preprocessing, classes)
    if steps is not None:
        checks.positive_integer(steps, "steps", "export_onnx")
        if not (isinstance(module, Network) and module.closed):
            raise InvalidInput(f"steps must be None for an explicit network, got {steps}.")
    extras.require("export_onnx", "onnx")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = GraphBuilder()
    rows = _preprocessed(graph, preprocessing)
    if isinstance(module, Network):
        logits = _Translation(graph, module).logits(rows, steps)
    else:
        logits = network.append_to(graph, rows)
    size = sum(array.nbytes for array in graph.constants.values())
    if size >= _LARGEST_FILE:
        got = f"less than 2 GiB, the most of one ONNX file, got {size / 2**30:.1f} GiB"
        raise InvalidInput(f"module must have weights of {got}.")
    graph.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    shapes = {"x": network.in_features, "logits": network.out_features}
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", features])
        for name, features in shapes.items()
    )
    constants = [numpy_helper.from_array(value, name) for name, value in graph.constants.items()]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "network", [x], [y], constants),
        opset_imports=[helper.make_opsetid("", _OPERATORS)],
        ir_version=_FILE_VERSION,
        producer_name="notsodeep",
        producer_version=__version__,
    )
    metadata = {} if names is None else {"classes": json.dumps(names)}
    if isinstance(module, Network):
        metadata["model"] = json.dumps(module.model.to_dict())
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    with atomic_write(Path(path)) as stream:
        stream.write(model.SerializeToString())


class GraphBuilder:
    """Nodes in the order they run, and the constants they use, in float32."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._numbers: Iterator[int] = itertools.count()

    def loop_body(self) -> GraphBuilder:
        """Return the graph inside a loop: it sees all names here, and keeps its constants here."""
        body = GraphBuilder()
        body.constants, body._numbers = self.constants, self._numbers
        return body

    def constant(self, value: float | NDArray[Any] | Tensor, name: str = "constant") -> str:
        """Return the name of a constant; real numbers become float32."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if array.dtype.kind == "f" and name != "double":
            array = array.astype(np.float32)
        label = self._name(name)
        self.constants[label] = np.ascontiguousarray(array).reshape(array.shape)
        return label

    def apply(self, operator: str, *inputs: Value, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        from onnx import helper

        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        result = self._name(operator.lower())
        self.nodes.append(helper.make_node(operator, names, [result], **attributes))
        return result

    def linear(self, x: str, weight: Tensor) -> str:
        """Append x Wᵀ."""
        return self.apply("MatMul", x, self.constant(weight.mT, "weight"))

    def _name(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"


def _preprocessed(graph: GraphBuilder, preprocessing: Preprocessing | None) -> str:
    """Append the map of raw rows, in float64 as `Preprocessing.apply` computes it."""
    from onnx import TensorProto

    if preprocessing is None or preprocessing.kind == "none":
        return "x"
    x = graph.apply("Cast", "x", to=TensorProto.DOUBLE)
    if preprocessing.mean is not None:
        x = graph.apply("Sub", x, graph.constant(preprocessing.mean, "double"))
        divisor = graph.constant(np.array(preprocessing.scale), "double")
    else:
        divisor = graph.apply("ReduceL2", x, axes=[1], keepdims=1)
    return graph.apply("Cast", graph.apply("Div", x, divisor), to=TensorProto.FLOAT)


class _Translation:
    """A ring as ONNX operators, as `Network` computes it."""

    def __init__(self, graph: GraphBuilder, module: Network) -> None:
        self.graph, self.module, self.model = graph, module, module.model

    @torch.no_grad()
    def logits(self, x: str, steps: int | None) -> str:
        """Append the whole network, from rows to outputs."""
        graph, module = self.graph, self.module
        drives = self._drives(x)
        assert drives[0] is not None
        h = drives[0]
        if module.closed:
            h = self._loop(h, drives, _steps_needed(module) if steps is None else steps)
        units = graph.apply("Mul", self._units(graph, h, drives), module.width**-0.5)
        logits = graph.linear(self._pooled(units), module.readout)
        if module.readout_bias is None:
            return logits
        return graph.apply("Add", logits, graph.constant(module.readout_bias, "readout_bias"))

    def _applied(self, graph: GraphBuilder, weight: Tensor, values: str, stride: int = 1) -> str:
        if not isinstance(self.model, ConvolutionalModel):
            return graph.linear(values, weight)
        reach = weight.shape[-1] // 2
        circular = self.model.padding == "circular"
        values = _wrapped(graph, values, reach, reach) if circular else values
        pads = [0 if circular else reach] * 4
        kernel = graph.constant(weight, "weight")
        return graph.apply("Conv", values, kernel, pads=pads, strides=[stride, stride])

    def _drives(self, x: str) -> list[str | None]:
        """Append what the input adds to each layer; None where it adds nothing."""
        graph, module, stride = self.graph, self.module, 1
        channels = module.in_features
        if isinstance(self.model, ConvolutionalModel):
            shape = graph.constant(np.array([0, *self.model.image_shape]))  # 0: as it is
            x = graph.apply("Transpose", graph.apply("Reshape", x, shape), perm=[0, 3, 1, 2])
            stride, channels = self.model.stride, self.model.image_shape[2]
        drives: list[str | None] = []
        for k, layer in enumerate(module.layers, start=1):
            drive = None
            if layer.inject > 0.0:
                drive = self._applied(graph, module.scaled(f"injection_{k}"), x, stride)
            elif k == 1:  # h_1 has its shape
                nothing = torch.zeros(module.width, channels, *(2 * (1,) if module.images else ()))
                drive = self._applied(graph, nothing, x, stride)
            if layer.bias > 0.0:
                bias = module.scaled(f"bias_{k}")
                shift = graph.constant(bias[:, None, None] if module.images else bias, "bias")
                drive = shift if drive is None else graph.apply("Add", drive, shift)
            drives.append(drive)
        return drives

    def _units(self, graph: GraphBuilder, h: str, drives: Sequence[str | None]) -> str:
        """Append the way from h of the first layer to the units of the last."""
        units = ""
        for k, layer in enumerate(self.module.layers):
            if k:
                h = self._applied(graph, self.module.scaled(f"weight_{k + 1}"), units)
                drive = drives[k]
                h = h if drive is None else graph.apply("Add", h, drive)
            h = _normalised(graph, h) if layer.normalise == "preactivation" else h
            units = apply_activation(graph, layer.activation, h)
            units = _normalised(graph, units) if layer.normalise == "feature" else units
        return units

    def _step(self, body: GraphBuilder, drives: Sequence[str | None]) -> str:
        """Append one step of the solve, as in `Network.solved`."""
        assert drives[0] is not None
        units = self._units(body, "h", drives)
        if not isinstance(self.model, MonotoneEquilibrium):
            weight = self.module.scaled("weight_1")
            return body.apply("Add", self._applied(body, weight, units), drives[0])
        W = self.module.weights()[0].double()
        V = torch.linalg.inv(2.0 * torch.eye(len(W), dtype=W.dtype, device=W.device) - W)
        reflected = body.apply("Sub", body.apply("Add", units, units), "h")
        moved = body.linear(body.apply("Add", reflected, drives[0]), 2.0 * V)
        return body.apply("Sub", moved, reflected)

    def _loop(self, start: str, drives: Sequence[str | None], steps: int) -> str:
        """Append so many steps from a start."""
        from onnx import TensorProto, helper

        body = self.graph.loop_body()
        following, goes_on = self._step(body, drives), body.apply("Identity", "goes_on")
        grid = self.model.grid if isinstance(self.model, ConvolutionalModel) else ()
        hidden = ["batch", self.module.width, *grid]

        def state(h: str, condition: str) -> list[Any]:
            return [
                helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
                helper.make_tensor_value_info(h, TensorProto.FLOAT, hidden),
            ]

        count = helper.make_tensor_value_info("step", TensorProto.INT64, [])
        inputs, outputs = [count, *state("h", "goes_on")], state(following, goes_on)
        inside = helper.make_graph(body.nodes, "fixed_point_step", inputs, outputs)
        most = self.graph.constant(np.array(steps), "steps")
        return self.graph.apply(
            "Loop", most, self.graph.constant(np.array(True)), start, body=inside
        )

    def _pooled(self, units: str) -> str:
        """Append the pooling of images, and the flattening of what is left."""
        if not isinstance(self.model, ConvolutionalModel):
            return units
        graph, pooling = self.graph, self.model.pooling
        if pooling == "average":
            units = graph.apply("GlobalAveragePool", units)
        elif pooling != "flatten":
            b = int(pooling)
            if self.model.padding == "circular":
                units = _wrapped(graph, units, 0, b - 1)
            units = graph.apply("AveragePool", units, kernel_shape=[b, b], strides=[1, 1])
        return graph.apply(
            "Mul", graph.apply("Flatten", units, axis=1), pooled_pixels(self.model) ** -0.5
        )


def _steps_needed(module: Network) -> int:
    """Count the plain steps that random rows take in float32."""
    probe = copy.deepcopy(module).cpu().float().eval()
    tolerance = max(module.solver.tolerance or 0.0, DEFAULT_TOLERANCE[torch.float32])
    probe.solver = Solver(tolerance, module.solver.max_steps)
    probe.on_failure = "ignore"
    rows = np.random.default_rng(0).standard_normal((_PROBES, module.in_features))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    steps = []
    for norm in (1.0, 0.01, 100.0):
        probe.features(torch.as_tensor(norm * rows).float())
        record = probe.record
        assert record is not None
        # Rows of norm one have to converge; small rows of a normalised network need not.
        if norm == 1.0 and not record.converged:
            raise NotConverged(
                f"The loop of the ONNX graph takes plain steps, and on random rows of norm one "
                f"there was {record.reason}. Pass steps=… to take a fixed number of them all the "
                "same, or export the matched explicit network.",
                record,
            )
        steps += [record.steps] if record.converged else []
    return max(steps)


def _normalised(graph: GraphBuilder, units: str) -> str:
    """Append layer normalisation, as `notsodeep.networks.random.normalised`."""

    def mean(x: str) -> str:
        return graph.apply("ReduceMean", x, axes=[1], keepdims=1)

    def one_where(condition: str, x: str) -> str:
        return graph.apply("Where", condition, 1.0, x)

    largest = graph.apply("ReduceMax", graph.apply("Abs", units), axes=[1], keepdims=1)
    units = graph.apply("Div", units, one_where(graph.apply("Equal", largest, 0.0), largest))
    centred = graph.apply("Sub", units, mean(units))
    variance = mean(graph.apply("Mul", centred, centred))
    flat = graph.apply("LessOrEqual", variance, (8.0 * float(np.finfo(np.float32).eps)) ** 2)
    spread = graph.apply("Sqrt", one_where(flat, variance))
    return graph.apply("Where", flat, 0.0, graph.apply("Div", centred, spread))


def _wrapped(graph: GraphBuilder, values: str, before: int, after: int) -> str:
    """Put the last rows and columns before the first, and the first after the last."""
    for axis in (2, 3) if before + after else ():

        def part(start: int, stop: int, axis: int = axis, values: str = values) -> str:
            ends = (graph.constant(np.array([number])) for number in (start, stop, axis))
            return graph.apply("Slice", values, *ends)

        parts = [part(-before, 2**31 - 1)] if before else []
        values = graph.apply("Concat", *parts, values, part(0, after), axis=axis)
    return values


def apply_activation(graph: GraphBuilder, activation: Activation, x: str) -> str:
    """Append the nodes of φ(x), elementwise; return the name of the result.

    Raises
    ------
    NoOnnxForm
        The activation was made by `from_function`: its code cannot be translated.
    """
    match activation:
        case Centred(base=base, constant=constant):
            value = apply_activation(graph, base, x)
            return value if constant == 0.0 else graph.apply("Sub", value, constant)
        case Scaled(base=base, gain=gain, steepness=steepness):
            return _scaled(graph, apply_activation(graph, base, _scaled(graph, x, steepness)), gain)
        case PiecewiseLinear():
            return _piecewise_linear(graph, activation, x)
        case Elementary(name="elu", parameters=parameters):
            return graph.apply("Elu", x, **dict(parameters))
        case Elementary(name=name):
            return _OPERATIONS[name](graph, x)
        case Polynomial(coefficients=coefficients, scale=float(scale)):
            return _hermite_series(graph, graph.apply("Div", x, scale), coefficients)
        case Polynomial(coefficients=coefficients):
            return _horner(graph, x, coefficients)
        case Custom(function=Formula(expression=expression)):
            operations = {name: _bound(operation, graph) for name, operation in _OPERATIONS.items()}
            return str(evaluate(expression, x, operations))
        case _:
            raise NoOnnxForm(
                f"{activation} has no ONNX form: it was made from a Python function. Write it as "
                "a formula with notsodeep.activations.from_formula."
            )


Operation = Callable[..., str]


def _operator(name: str) -> Operation:
    return lambda graph, *inputs: graph.apply(name, *inputs)


def _swish(graph: GraphBuilder, x: Value) -> str:
    return graph.apply("Mul", x, graph.apply("Sigmoid", x))


def _gelu(graph: GraphBuilder, x: Value) -> str:
    """Append x Φ(x) = ½x(1 + erf(x/√2))."""
    erf = graph.apply("Erf", graph.apply("Mul", x, math.sqrt(0.5)))
    return graph.apply("Mul", graph.apply("Mul", x, 0.5), graph.apply("Add", erf, 1.0))


_OPERATIONS: dict[str, Operation] = {
    "abs": _operator("Abs"),
    "add": _operator("Add"),
    "arctan": _operator("Atan"),
    "cos": _operator("Cos"),
    "divide": _operator("Div"),
    "erf": _operator("Erf"),
    "exp": _operator("Exp"),
    "gelu": _gelu,
    "log": _operator("Log"),
    "max": _operator("Max"),
    "min": _operator("Min"),
    "multiply": _operator("Mul"),
    "negative": _operator("Neg"),
    "power": _operator("Pow"),
    "relu": _operator("Relu"),
    "sigmoid": _operator("Sigmoid"),
    "sin": _operator("Sin"),
    "softplus": _operator("Softplus"),
    "sqrt": _operator("Sqrt"),
    "subtract": _operator("Sub"),
    "swish": _swish,
    "tanh": _operator("Tanh"),
}
"""Elementary activations, and all that a formula is made of."""


def _bound(operation: Operation, graph: GraphBuilder) -> Callable[..., str]:
    return lambda *inputs: operation(graph, *inputs)


def _piecewise_linear(graph: GraphBuilder, activation: PiecewiseLinear, x: str) -> str:
    slopes, knots = activation.slopes, activation.knots
    through_zero = activation.value_at_zero == 0.0 and len(knots) == 2 and knots[0] <= 0 <= knots[1]
    if through_zero and slopes[0] == slopes[2] == 0.0:
        return _scaled(graph, graph.apply("Clip", x, knots[0], knots[1]), slopes[1])
    if activation.homogeneous and slopes[0] == 0.0:
        return _scaled(graph, graph.apply("Relu", x), slopes[-1])
    form = activation.hinge_form
    total = _scaled(graph, x, form.slope)
    if form.intercept != 0.0:
        total = graph.apply("Add", total, form.intercept)
    for knot, change in form.hinges:
        if knot < 0.0:  # opens to the left
            shifted = graph.apply("Neg", graph.apply("Sub", x, knot))
        else:
            shifted = x if knot == 0.0 else graph.apply("Sub", x, knot)
        total = graph.apply("Add", total, _scaled(graph, graph.apply("Relu", shifted), change))
    return total


def _scaled(graph: GraphBuilder, x: str, factor: float) -> str:
    return x if factor == 1.0 else graph.apply("Mul", x, factor)


def _horner(graph: GraphBuilder, x: str, coefficients: tuple[float, ...]) -> str:
    # The first product gives the shape of x to a polynomial of degree 0, too.
    total = graph.apply("Add", graph.apply("Mul", x, 0.0), coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = graph.apply("Add", graph.apply("Mul", total, x), coefficient)
    return total


def _hermite_series(graph: GraphBuilder, x: str, coefficients: tuple[float, ...]) -> str:
    """Append Σ_k c_k h_k(x), √(k+1) h_{k+1} = x h_k − √k h_{k−1}."""
    previous = graph.apply("Mul", x, 0.0)
    current = graph.apply("Add", previous, 1.0)
    total = previous
    for k, coefficient in enumerate(coefficients):
        total = graph.apply("Add", total, graph.apply("Mul", current, coefficient))
        if k + 1 < len(coefficients):
            lower = graph.apply("Mul", previous, math.sqrt(k))
            product = graph.apply("Mul", x, current)
            following = graph.apply("Div", graph.apply("Sub", product, lower), math.sqrt(k + 1))
            previous, current = current, following
    return total

"""ONNX graphs built node by node, and the activations in ONNX operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from notsodeep.errors import NoOnnxForm

Value = str | float
"""The name of a tensor in the graph, or a constant."""


class GraphBuilder:
    """Nodes in the order they run, and the constants they use.

    Parameters
    ----------
    opset : int
        Version of the operators.
    dtype : type
        Of numbers that are written as constants.

    Attributes
    ----------
    nodes : list of onnx.NodeProto
    constants : dict of str to ndarray
    """

    def __init__(self, opset: int, dtype: type[np.float32] | type[np.float64] = np.float32) -> None:
        self.opset, self.dtype = opset, dtype
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._numbers: Iterator[int] = itertools.count()

    def loop_body(self) -> GraphBuilder:
        """Return the graph inside a loop: it sees all names here, and keeps its constants here."""
        body = GraphBuilder(self.opset, self.dtype)
        body.constants, body._numbers = self.constants, self._numbers
        return body

    def constant(self, value: float | NDArray[Any], name: str = "constant") -> str:
        """Return the name of a constant: a scalar, or an array in its own dtype."""
        array = self.dtype(value) if isinstance(value, int | float) else value
        label = self._name(name)
        self.constants[label] = np.asarray(array)
        return label

    def apply(self, operator: str, *inputs: Value, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        return self.apply_many(operator, inputs, 1, **attributes)[0]

    def apply_many(
        self, operator: str, inputs: tuple[Value, ...], outputs: int, **attributes: Any
    ) -> list[str]:
        """Append a node with several outputs."""
        from onnx import helper

        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        results = [self._name(operator.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, names, results, **attributes))
        return results

    def reduce_rows(self, operator: str, x: str) -> str:
        """Append a reduction of (batch, m) along its rows, to shape (batch, 1)."""
        # Axes are an input since version 13 for sums, and since 18 for the rest.
        if operator == "ReduceSum" or self.opset >= 18:
            axis = self.constant(np.array([1]), "axis")
            return self.apply(operator, x, axis, keepdims=1)
        return self.apply(operator, x, axes=[1], keepdims=1)

    def _name(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"


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
        case Polynomial(coefficients=coefficients, scale=None):
            return _horner(graph, x, coefficients)
        case Polynomial(coefficients=coefficients, scale=float(scale)):
            return _hermite_series(graph, graph.apply("Div", x, scale), coefficients)
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

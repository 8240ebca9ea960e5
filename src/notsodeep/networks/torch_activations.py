"""Torch twins of the activations: the same functions on tensors, differentiable by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations import (
    Activation,
    Centred,
    Elementary,
    Elu,
    Formula,
    Function,
    HermiteSeries,
    PiecewiseLinear,
    Polynomial,
    Wave,
)
from notsodeep.activations.expressions import evaluate
from notsodeep.errors import NoTorchTwin

TensorFunction = Callable[[Tensor], Tensor]

_ELEMENTARY: dict[str, TensorFunction] = {
    "tanh": torch.tanh,
    "erf": torch.erf,
    "arctan": torch.arctan,
    "sin": torch.sin,
    "cos": torch.cos,
    "swish": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    # torch's softplus turns linear above a threshold; logaddexp does not.
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
}


def _with_tensors(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Let a two-argument torch function take a number in place of one of its tensors."""

    def wrapped(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        a, b = (torch.as_tensor(v, dtype=like.dtype, device=like.device) for v in (a, b))
        return function(a, b)

    return wrapped


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": lambda a, b: a**b,
    "negative": lambda a: -a,
    "abs": torch.abs,
    "arctan": torch.arctan,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "log": torch.log,
    "max": _with_tensors(torch.maximum),
    "min": _with_tensors(torch.minimum),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "softplus": _ELEMENTARY["softplus"],
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
}


def torch_twin(activation: Activation) -> TensorFunction:
    """Return φ as a function of tensors, of any dtype and device.

    Raises
    ------
    NoTorchTwin
        The activation was made by `from_function` without its ``torch`` argument.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> torch_twin(named("relu"))(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    match activation:
        case Centred(base=base, constant=constant):
            twin = torch_twin(base)
            return twin if constant == 0.0 else lambda x: twin(x) - constant
        case PiecewiseLinear():
            return _piecewise_linear(activation)
        case Elementary(name=name) | Wave(name=name):
            return _ELEMENTARY[name]
        case Elu(alpha=alpha):
            return lambda x: torch.nn.functional.elu(x, alpha=alpha)
        case Polynomial(coefficients=coefficients):
            return lambda x: _horner(x, coefficients)
        case HermiteSeries(coefficients=coefficients, scale=scale):
            return lambda x: _hermite_series(x / scale, coefficients)
        case Formula(expression=expression):
            return lambda x: evaluate(expression, x, _OPERATIONS)
        case Function(torch=twin_function) if twin_function is not None:
            return twin_function
        case _:
            raise NoTorchTwin(
                f"{activation} has no torch twin, so it cannot be built into a network. Pass "
                "torch=… to from_function, or write it as a formula with from_formula."
            )


def _piecewise_linear(activation: PiecewiseLinear) -> TensorFunction:
    slopes, knots = activation.slopes, activation.knots
    if activation.homogeneous:
        left, right = slopes[0], slopes[-1]
        if left == 0.0:
            return torch.relu if right == 1.0 else lambda x: right * torch.relu(x)
        return lambda x: torch.where(x > 0, right * x, left * x)
    if len(knots) == 2 and slopes[0] == slopes[2] == 0.0 and activation.value_at_zero == 0.0:
        low, high = knots
        return lambda x: slopes[1] * torch.clamp(x, low, high)
    changes = [b - a for a, b in pairwise(slopes)]
    intercept = activation.value_at_zero - sum(
        change * max(-knot, 0.0) for knot, change in zip(knots, changes, strict=True)
    )

    def hinges(x: Tensor) -> Tensor:
        total = intercept + slopes[0] * x
        for knot, change in zip(knots, changes, strict=True):
            total = total + change * torch.relu(x - knot)
        return total

    return hinges


def _horner(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _hermite_series(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    previous, current = torch.zeros_like(x), torch.ones_like(x)
    total = torch.zeros_like(x)
    for k, coefficient in enumerate(coefficients):
        total = total + coefficient * current
        following = (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
        previous, current = current, following
    return total

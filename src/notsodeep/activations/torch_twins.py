"""Torch twins of the activations: the same functions on tensors, differentiable by autograd.

A twin is a function of a module, or a `functools.partial` of one, never a closure: networks hold
twins, and with closures in them could be neither copied to another process nor pickled.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations.activation import Activation
from notsodeep.activations.catalogue import Elementary
from notsodeep.activations.closed_forms import HingeForm
from notsodeep.activations.custom import Custom
from notsodeep.activations.formulas import Expression, Formula, evaluate
from notsodeep.activations.piecewise_linear import PiecewiseLinear
from notsodeep.activations.polynomial import Polynomial
from notsodeep.activations.transformed import Centred, Scaled, WithSkip
from notsodeep.errors import NoTorchTwin

TensorFunction = Callable[[Tensor], Tensor]


def _softplus(x: Tensor) -> Tensor:
    """Return log(1 + eˣ); torch's own softplus turns linear above a threshold."""
    return torch.logaddexp(x, torch.zeros_like(x))


def _with_tensors(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Let a two-argument torch function take a number in place of one of its tensors."""

    def wrapped(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        a, b = (torch.as_tensor(v, dtype=like.dtype, device=like.device) for v in (a, b))
        return function(a, b)

    return wrapped


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "negative": operator.neg,
    "abs": torch.abs,
    "arctan": torch.arctan,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "log": torch.log,
    "max": _with_tensors(torch.maximum),
    "min": _with_tensors(torch.minimum),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "softplus": _softplus,
    "sqrt": torch.sqrt,
    "swish": torch.nn.functional.silu,
    "tanh": torch.tanh,
}
"""Elementary activations, and all that a formula is made of."""


def torch_twin(activation: Activation) -> TensorFunction:
    """Return φ as a function of tensors, of any dtype and device; it can be pickled.

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
            return twin if constant == 0.0 else partial(_shifted, twin=twin, constant=constant)
        case Scaled(base=base, gain=gain, steepness=steepness):
            return partial(_scaled, twin=torch_twin(base), gain=gain, steepness=steepness)
        case WithSkip(base=base):
            return partial(_skipped, twin=torch_twin(base), activation=activation)
        case PiecewiseLinear():
            return _piecewise_linear(activation)
        case Elementary(name="elu", parameters=parameters):
            return partial(torch.nn.functional.elu, **dict(parameters))
        case Elementary(name=name):
            return _OPERATIONS[name]
        case Polynomial(coefficients=coefficients, scale=None):
            return partial(_horner, coefficients=coefficients)
        case Polynomial(coefficients=coefficients, scale=float(scale)):
            return partial(_hermite_series, coefficients=coefficients, scale=scale)
        case Custom(function=Formula(expression=expression)):
            return partial(_formula, expression=expression)
        case Custom(torch=function) if function is not None:
            return function
        case _:
            raise NoTorchTwin(
                f"{activation} has no torch twin, so it cannot be built into a network. Pass "
                "torch=… to from_function, or write it as a formula with from_formula."
            )


def _skipped(x: Tensor, twin: TensorFunction, activation: WithSkip) -> Tensor:
    """Return ψ = φ(h), where h − αφ(h) = x."""
    h: Tensor = _SkipArgument.apply(x, twin, activation)  # type: ignore[no-untyped-call]
    return twin(h)


class _SkipArgument(torch.autograd.Function):
    """x ↦ h, found in NumPy; its slope is that of the equation, so there are all orders of it."""

    @staticmethod
    def forward(x: Tensor, twin: TensorFunction, activation: WithSkip) -> Tensor:
        h = activation.argument(x.detach().cpu().double().numpy())
        return torch.as_tensor(h, dtype=x.dtype, device=x.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.twin, ctx.activation = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (h,) = ctx.saved_tensors
        slope = torch.func.grad(lambda t: ctx.twin(t).sum())(h)
        return gradients[0] / (1.0 - ctx.activation.alpha * slope), None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], x: Tensor, twin: TensorFunction, activation: WithSkip
    ) -> tuple[Tensor, Any]:
        h: Tensor = _SkipArgument.apply(x, twin, activation)  # type: ignore[no-untyped-call]
        return h, dims[0]


def _piecewise_linear(activation: PiecewiseLinear) -> TensorFunction:
    slopes, knots = activation.slopes, activation.knots
    if activation.homogeneous:
        left, right = slopes[0], slopes[-1]
        if left == right:
            return partial(torch.mul, other=right)
        plain = left == 0.0 and right == 1.0
        return torch.relu if plain else partial(_two_slopes, left=left, right=right)
    if len(knots) == 2 and slopes[0] == slopes[2] == 0.0:
        low, high = knots
        start = min(max(0.0, low), high)  # where φ has its value at 0
        level = activation.value_at_zero
        return partial(_ramp, slope=slopes[1], low=low, high=high, start=start, level=level)
    return partial(_hinges, form=activation.hinge_form)


def _two_slopes(x: Tensor, *, left: float, right: float) -> Tensor:
    return torch.where(x > 0, right * x, left * x)


def _ramp(
    x: Tensor, *, slope: float, low: float, high: float, start: float, level: float
) -> Tensor:
    return level + slope * (torch.clamp(x, low, high) - start)


def _hinges(x: Tensor, *, form: HingeForm) -> Tensor:
    total = form.intercept + form.slope * x
    for knot, change in form.hinges:
        total = total + change * torch.relu(x - knot if knot >= 0.0 else knot - x)
    return total


def _shifted(x: Tensor, *, twin: TensorFunction, constant: float) -> Tensor:
    return twin(x) - constant


def _scaled(x: Tensor, *, twin: TensorFunction, gain: float, steepness: float) -> Tensor:
    return gain * twin(steepness * x)


def _formula(x: Tensor, *, expression: Expression) -> Tensor:
    value: Tensor = evaluate(expression, x, _OPERATIONS)
    return value


def _horner(x: Tensor, *, coefficients: tuple[float, ...]) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total if len(coefficients) > 1 else _with_gradient(total, x)


def _hermite_series(x: Tensor, *, coefficients: tuple[float, ...], scale: float) -> Tensor:
    x = x / scale
    previous, current = torch.zeros_like(x), torch.ones_like(x)
    total = torch.zeros_like(x)
    for k, coefficient in enumerate(coefficients):
        total = total + coefficient * current
        following = (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
        previous, current = current, following
    return total if len(coefficients) > 1 else _with_gradient(total, x)


def _with_gradient(constant: Tensor, x: Tensor) -> Tensor:
    """Let autograd know of x, on which a constant depends with derivative zero."""
    return constant + 0.0 * x

"""The activations known by name, and their JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from notsodeep import checks
from notsodeep.activations import piecewise_linear, polynomial, smooth
from notsodeep.activations.activation import Activation
from notsodeep.activations.centred import centred_by
from notsodeep.activations.custom import from_formula
from notsodeep.activations.scaled import scaled
from notsodeep.activations.with_skip import with_skip
from notsodeep.errors import InvalidInput


def _centred(activation: Mapping[str, Any], scale: float, constant: float) -> Activation:
    return centred_by(_read(activation), scale, constant)


def _scaled(activation: Mapping[str, Any], gain: float, steepness: float) -> Activation:
    return scaled(_read(activation), gain, steepness)


def _with_skip(activation: Mapping[str, Any], alpha: float) -> Activation:
    return with_skip(_read(activation), alpha)


_NAMED: dict[str, Callable[..., Activation]] = {
    "abs": piecewise_linear.absolute,
    "elu": smooth.elu,
    "hard_tanh": piecewise_linear.hard_tanh,
    "hermite": polynomial.hermite,
    "identity": piecewise_linear.identity,
    "leaky_relu": piecewise_linear.leaky_relu,
    "normalized_relu": piecewise_linear.normalized_relu,
    "piecewise_linear": piecewise_linear.piecewise_linear,
    "polynomial": polynomial.polynomial,
    "relu": piecewise_linear.relu,
    "cos": partial(smooth.wave, "cos"),
    "sin": partial(smooth.wave, "sin"),
    **{name: partial(smooth.elementary, name) for name in smooth.ELEMENTARY},
}
# Names that others use; the activations themselves go by one name.
_ALIASES = {
    "hardtanh": "hard_tanh",
    "leakyrelu": "leaky_relu",
    "linear": "identity",
    "normalised_relu": "normalized_relu",
    "silu": "swish",
}
_FORMULAS = {"mish": "x*tanh(softplus(x))", "sigmoid": "sigmoid(x)"}
_STORED: dict[str, Callable[..., Activation]] = {
    "formula": from_formula,
    "centred": _centred,
    "scaled": _scaled,
    "with_skip": _with_skip,
}


def names() -> list[str]:
    """List the names of the activations; `named` knows some of them by other names too.

    Examples
    --------
    >>> names()[:4]
    ['abs', 'arctan', 'cos', 'elu']
    """
    return sorted(_NAMED)


def named(name: str, **parameters: Any) -> Activation:
    """Return the activation of that name.

    Parameters
    ----------
    name : str
        One of `names`; or, in any case, one that PyTorch uses, such as "SiLU" for swish, "mish" or
        "sigmoid".
    **parameters
        Those of the function of the same name, such as ``positive_slope`` for ``leaky_relu``.

    Examples
    --------
    >>> str(named("hard_tanh", clip=2.0))
    'hard_tanh(scale=1, clip=2)'
    >>> str(named("SiLU")), str(named("mish"))
    ('swish', 'x*tanh(softplus(x))')
    """
    known = name
    if isinstance(name, str) and name not in _NAMED:
        lower = name.lower()
        if lower in _FORMULAS and not parameters:
            return from_formula(_FORMULAS[lower])
        known = _ALIASES.get(lower, lower if lower in _NAMED else name)
    return _make(_NAMED, known, parameters)


def from_dict(data: Mapping[str, Any]) -> Activation:
    """Turn the JSON form made by `Activation.to_dict` back into an activation.

    Examples
    --------
    >>> from_dict({"name": "leaky_relu", "parameters": {"negative_slope": 0.2}})
    <activation leaky_relu(positive_slope=1, negative_slope=0.2)>
    """
    # An activation may contain another, and so on: it is read, and later evaluated, by recursion.
    if not checks.shallow(data):
        raise InvalidInput(
            f"A stored activation must be nested at most {checks.DEEPEST} levels deep. Got more."
        )
    return _read(data)


def _read(data: Mapping[str, Any]) -> Activation:
    if not isinstance(data, Mapping) or not {"name"} <= set(data) <= {"name", "parameters"}:
        raise InvalidInput(
            f"An activation is stored as {{'name': …, 'parameters': {{…}}}}. Got {data!r}."
        )
    return _make(_NAMED | _STORED, data["name"], data.get("parameters", {}))


def as_activation(value: Any) -> Activation:
    """Accept a name, an activation, or a function or module of NumPy or PyTorch known by its name.

    Examples
    --------
    >>> as_activation("tanh"), as_activation(named("tanh"))
    (<activation tanh>, <activation tanh>)
    >>> import numpy as np, torch
    >>> as_activation(np.tanh), as_activation(torch.nn.LeakyReLU(0.2))
    (<activation tanh>, <activation leaky_relu(positive_slope=1, negative_slope=0.2)>)
    """
    if isinstance(value, Activation):
        return value
    if isinstance(value, str):
        return named(value)
    if (found := _of_library(value)) is not None:
        return found
    raise checks.refusal(
        "activation", "a model", "be a name or an Activation", repr(value),
        "For a Python function use notsodeep.activations.from_function.",
    )  # fmt: skip


def _of_library(value: Any) -> Activation | None:
    """Return the activation that a function or a module of NumPy or PyTorch computes, if known."""
    function = getattr(value, "__name__", None)
    home = str(getattr(value if function else type(value), "__module__", "")).split(".")[0]
    if home not in ("numpy", "torch"):
        return None
    name = (function or type(value).__name__).lower()
    parameters = {}
    match name:
        case "leakyrelu":
            parameters = {"negative_slope": value.negative_slope}
        case "elu":
            parameters = {} if function else {"alpha": value.alpha}
        case "gelu" if not function and value.approximate != "none":
            return None  # another function
        case "softplus" if not function and value.beta != 1:
            return None
        case "hardtanh" if not function and value.max_val != -value.min_val:
            return None
        case "hardtanh" if not function:
            parameters = {"clip": value.max_val}
        case "sin" | "cos" | "arctan" | "erf" | "tanh" | "relu" | "gelu" | "elu" | "softplus":
            pass
        case "silu" | "mish" | "sigmoid" | "identity" | "abs" | "absolute" | "hardtanh":
            name = "abs" if name == "absolute" else name
        case _:
            return None
    return named(name, **parameters)


def _make(
    table: Mapping[str, Callable[..., Activation]], name: str, parameters: Mapping[str, Any]
) -> Activation:
    factory = table[checks.known_name(name, table, "activation")]
    try:
        return factory(**parameters)
    except TypeError as error:
        # A missing or unknown parameter; the factory's own words name it.
        reason = str(error).split("() ", 1)[-1]
        raise InvalidInput(f"Activation {name!r}: {reason}.") from None

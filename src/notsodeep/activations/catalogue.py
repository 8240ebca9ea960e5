"""The activations known by name: elementary functions, all names, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.special import erf, expit, gammaln, ndtr

from notsodeep import checks
from notsodeep.activations import closed_forms, piecewise_linear, polynomial
from notsodeep.activations.activation import Activation, Parity
from notsodeep.activations.closed_forms import Pairs
from notsodeep.activations.custom import from_formula
from notsodeep.activations.transformed import centred_by, scaled, with_skip
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.numerics.quadrature import gaussian_density

_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _swish_slope(x: FloatArray) -> FloatArray:
    s = expit(x)
    return np.asarray(s * (1.0 + x * expit(-x)))


def _wave_moments(scales: FloatArray, odd: bool) -> FloatArray:
    """Moments of sin (odd) and cos: exp(−τ²/2) and exp(−2τ²) combined."""
    single, double = np.exp(-0.5 * scales**2), np.exp(-2.0 * scales**2)
    nothing = np.zeros_like(scales)
    # E sin² and E cos²; the first without cancellation at small scales.
    sin_square, cos_square = -0.5 * np.expm1(-2.0 * scales**2), 0.5 * (1.0 + double)
    if odd:
        return np.stack([nothing, single, nothing, sin_square, cos_square, 2.0 * double])
    return np.stack([single, nothing, -single, cos_square, sin_square, -2.0 * double])


def _wave_coefficients(scales: FloatArray, terms: int, first: int) -> FloatArray:
    """E[exp(iτξ) h_k(ξ)] = (iτ)^k exp(−τ²/2)/√k!, its imaginary (first = 1) or real part."""
    order = np.arange(terms)
    # In logarithms: τ^k and k! overflow long before their quotient does.
    logarithms = order * np.log(scales)[:, None] - 0.5 * gammaln(order + 1.0)
    signs = np.where(order % 2 == first, np.where((order - first) % 4 == 0, 1.0, -1.0), 0.0)
    return np.asarray(signs * np.exp(logarithms - 0.5 * scales[:, None] ** 2))


@dataclass(frozen=True)
class _Facts:
    """What is known of an elementary function."""

    value: Callable[..., FloatArray]
    derivative: Callable[..., FloatArray]
    lipschitz: float
    parity: Parity | None = None
    pairs: Callable[..., Pairs] | None = None
    moments: Callable[[FloatArray], FloatArray] | None = None
    coefficients: Callable[[FloatArray, int], FloatArray] | None = None


ELEMENTARY: dict[str, _Facts] = {
    # cosh² overflows at 355; 1 − tanh² loses its digits on the way to 19, and is zero from there
    # on.
    "tanh": _Facts(np.tanh, lambda x: 1.0 / np.cosh(np.clip(x, -350.0, 350.0)) ** 2, 1.0, "odd"),
    "erf": _Facts(
        erf,
        lambda x: _TWO_OVER_ROOT_PI * np.exp(-(x**2)),
        _TWO_OVER_ROOT_PI,
        "odd",
        pairs=closed_forms.erf_pairs,
    ),
    "arctan": _Facts(np.arctan, lambda x: 1.0 / (1.0 + x**2), 1.0, "odd"),
    # Largest slope where x·tanh(x/2) = 2, at x = 2.39936.
    "swish": _Facts(lambda x: x * expit(x), _swish_slope, 1.0998393194149106),
    # x Φ(x); largest slope Φ(√2) + √2 ϕ(√2), where ϕ(x)(2 − x²) vanishes.
    "gelu": _Facts(
        lambda x: x * ndtr(x),
        lambda x: ndtr(x) + x * gaussian_density(x),
        float(ndtr(math.sqrt(2.0)) + math.exp(-1.0) / math.sqrt(math.pi)),
    ),
    "softplus": _Facts(lambda x: np.logaddexp(0.0, x), expit, 1.0),
    "sin": _Facts(
        np.sin,
        np.cos,
        1.0,
        "odd",
        pairs=closed_forms.sin_pairs,
        moments=partial(_wave_moments, odd=True),
        coefficients=partial(_wave_coefficients, first=1),
    ),
    "cos": _Facts(
        np.cos,
        lambda x: -np.sin(x),
        1.0,
        "even",
        pairs=closed_forms.cos_pairs,
        moments=partial(_wave_moments, odd=False),
        coefficients=partial(_wave_coefficients, first=0),
    ),
    "elu": _Facts(
        lambda x, alpha: np.where(x > 0.0, x, alpha * np.expm1(np.minimum(x, 0.0))),
        lambda x, alpha: np.where(x > 0.0, 1.0, alpha * np.exp(np.minimum(x, 0.0))),
        1.0,
    ),
}


@dataclass(frozen=True, repr=False)
class Elementary(Activation):
    """One of the functions in `ELEMENTARY`."""

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x)."""
        return ELEMENTARY[self.name].value(x, **dict(self.parameters))

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x)."""
        return ELEMENTARY[self.name].derivative(x, **dict(self.parameters))

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> Pairs | None:
        """Return the closed forms of erf, sin and cos."""
        pairs = ELEMENTARY[self.name].pairs
        return None if pairs is None else pairs(scale1, scale2, rho, rest)

    def closed_form_moments(self, scales: FloatArray) -> FloatArray | None:
        """Return the closed forms of sin and cos."""
        moments = ELEMENTARY[self.name].moments
        return None if moments is None else moments(scales)

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        exact = ELEMENTARY[self.name].coefficients
        return (
            super()._hermite_coefficients(scales, terms) if exact is None else exact(scales, terms)
        )


def elementary(name: str) -> Elementary:
    """Return the elementary activation of that name."""
    facts = ELEMENTARY[name]
    return Elementary(name=name, parity=facts.parity, lipschitz=facts.lipschitz)


def elu(alpha: float = 1.0) -> Elementary:
    """Return x for x > 0, alpha·(exp(x) − 1) for x ≤ 0; at alpha = 1 only φ″ jumps.

    Examples
    --------
    >>> elu(2.0)([-1.0, 1.0]).round(6), elu(2.0).lipschitz
    (array([-1.264241,  1.      ]), 2.0)
    """
    a = checks.finite_number(alpha, "alpha", "elu")
    return Elementary(
        name="elu", parameters=(("alpha", a),), kinks=(0.0,), lipschitz=max(1.0, abs(a))
    )


_NAMED: dict[str, Callable[..., Activation]] = {
    **{name: cache(partial(elementary, name)) for name in ELEMENTARY},
    "abs": cache(piecewise_linear.absolute),
    "elu": elu,
    "hard_tanh": piecewise_linear.hard_tanh,
    "hermite": polynomial.hermite,
    "identity": cache(piecewise_linear.identity),
    "leaky_relu": piecewise_linear.leaky_relu,
    "normalized_relu": cache(piecewise_linear.normalized_relu),
    "piecewise_linear": piecewise_linear.piecewise_linear,
    "polynomial": polynomial.polynomial,
    "relu": cache(piecewise_linear.relu),
}
# Names that others use; the activations themselves go by one name.
_ALIASES = {
    "hardtanh": "hard_tanh",
    "leakyrelu": "leaky_relu",
    "linear": "identity",
    "normalised_relu": "normalized_relu",
    "silu": "swish",
}
_OF_LIBRARIES = (
    *("abs", "arctan", "cos", "elu", "erf", "gelu", "identity", "mish", "relu", "sigmoid"),
    *("silu", "sin", "softplus", "tanh"),
)
"""Functions and modules of NumPy and PyTorch that are one activation whatever their options."""

_FORMULAS = {"mish": "x*tanh(softplus(x))", "sigmoid": "sigmoid(x)"}
_COMPOUND: dict[str, Callable[..., Activation]] = {
    "centred": centred_by,
    "scaled": scaled,
    "with_skip": with_skip,
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
    name, parameters = data["name"], data.get("parameters", {})
    if name in _COMPOUND and isinstance(parameters, Mapping):
        parameters = {**parameters, "activation": _read(parameters.get("activation", {}))}
    return _make(_NAMED | _COMPOUND | {"formula": from_formula}, name, parameters)


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
    if (known := _of_library(value)) is not None:
        return known
    raise checks.invalid(
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
    if function is None:
        match name:
            case "leakyrelu":
                return named("leaky_relu", negative_slope=value.negative_slope)
            case "elu":
                return elu(value.alpha)
            case "hardtanh" if value.max_val == -value.min_val:
                return named("hard_tanh", clip=value.max_val)
            case "gelu" if value.approximate != "none":
                return None  # another function
            case "softplus" if value.beta != 1:
                return None
    known = {"absolute": "abs"}.get(name, name)
    return named(known) if known in _OF_LIBRARIES else None


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

"""Activation functions, their Gaussian moments and pair expectations."""

from notsodeep.activations.activation import Activation, Moments
from notsodeep.activations.catalogue import (
    Elementary,
    as_activation,
    elu,
    from_dict,
    named,
    names,
)
from notsodeep.activations.custom import Custom, from_formula, from_function
from notsodeep.activations.pairs import PairExpectations, pair_expectations
from notsodeep.activations.piecewise_linear import (
    PiecewiseLinear,
    hard_tanh,
    leaky_relu,
    piecewise_linear,
)
from notsodeep.activations.polynomial import Polynomial, hermite, polynomial
from notsodeep.activations.transformed import (
    Centred,
    Scaled,
    WithSkip,
    centre,
    scaled,
    with_skip,
)

__all__ = [
    "Activation",
    "Centred",
    "Custom",
    "Elementary",
    "Moments",
    "PairExpectations",
    "PiecewiseLinear",
    "Polynomial",
    "Scaled",
    "WithSkip",
    "as_activation",
    "centre",
    "elu",
    "from_dict",
    "from_formula",
    "from_function",
    "hard_tanh",
    "hermite",
    "leaky_relu",
    "named",
    "names",
    "pair_expectations",
    "piecewise_linear",
    "polynomial",
    "scaled",
    "with_skip",
]

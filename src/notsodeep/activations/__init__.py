"""Activation functions, their Gaussian moments and pair expectations."""

from notsodeep.activations.activation import Activation
from notsodeep.activations.catalogue import (
    Elementary,
    Elu,
    Wave,
    as_activation,
    elu,
    from_dict,
    named,
    names,
)
from notsodeep.activations.custom import Formula, Function, from_formula, from_function
from notsodeep.activations.gaussian_pairs import PairExpectations, pair_expectations
from notsodeep.activations.moments import Moments
from notsodeep.activations.piecewise_linear import (
    PiecewiseLinear,
    hard_tanh,
    leaky_relu,
    piecewise_linear,
)
from notsodeep.activations.polynomial import HermiteSeries, Polynomial, hermite, polynomial
from notsodeep.activations.transformed import (
    Centred,
    Scaled,
    WithSkip,
    centre,
    scaled,
    with_mean,
    with_skip,
)

__all__ = [
    "Activation",
    "Centred",
    "Elementary",
    "Elu",
    "Formula",
    "Function",
    "HermiteSeries",
    "Moments",
    "PairExpectations",
    "PiecewiseLinear",
    "Polynomial",
    "Scaled",
    "Wave",
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
    "with_mean",
    "with_skip",
]

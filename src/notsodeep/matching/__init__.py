"""Shallow networks that behave like a given DEQ, and certificates of how closely."""

from notsodeep.matching.certificate import Certificate, certificate_of_kernels
from notsodeep.matching.dual_family import Dual
from notsodeep.matching.families import FAMILIES, named
from notsodeep.matching.family import Family, Infeasible, MixtureFamily
from notsodeep.matching.kernel_series import KernelSeries
from notsodeep.matching.match import match
from notsodeep.matching.own_family import OwnFamily
from notsodeep.matching.piecewise_families import HardTanh, LeakyReLU, PiecewiseLinear
from notsodeep.matching.polynomial_families import Quadratic
from notsodeep.matching.problem import Problem
from notsodeep.matching.record import Match
from notsodeep.matching.refinement import Refinement
from notsodeep.matching.scaled_family import Plain, Scaled
from notsodeep.matching.two_kinks_family import TwoKinks

__all__ = [
    "FAMILIES",
    "Certificate",
    "Dual",
    "Family",
    "HardTanh",
    "Infeasible",
    "KernelSeries",
    "LeakyReLU",
    "Match",
    "MixtureFamily",
    "OwnFamily",
    "PiecewiseLinear",
    "Plain",
    "Problem",
    "Quadratic",
    "Refinement",
    "Scaled",
    "TwoKinks",
    "certificate_of_kernels",
    "match",
    "named",
]

"""Shallow networks that behave like a given DEQ, and certificates of how closely."""

from typing import Any

from notsodeep.matching.certificate import Certificate, certificate_of_kernels
from notsodeep.matching.convolutional import ConvolutionalMatch, match_convolution
from notsodeep.matching.dual_family import Dual
from notsodeep.matching.families import FAMILIES, named
from notsodeep.matching.family import Family, Infeasible, MixtureFamily
from notsodeep.matching.kernel_series import KernelSeries
from notsodeep.matching.match_record import Match
from notsodeep.matching.matching import match
from notsodeep.matching.own_family import OwnFamily
from notsodeep.matching.piecewise_families import HardTanh, LeakyReLU, PiecewiseLinear
from notsodeep.matching.polynomial_families import Cubic, Quadratic
from notsodeep.matching.problem import Problem
from notsodeep.matching.refinement import Refinement
from notsodeep.matching.scaled_family import Scaled
from notsodeep.matching.two_kinks_family import TwoKinks

__all__ = [
    "FAMILIES",
    "Certificate",
    "ConvolutionalMatch",
    "Cubic",
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
    "Problem",
    "Quadratic",
    "Refinement",
    "Scaled",
    "TwoKinks",
    "certificate_of_kernels",
    "match",
    "match_convolution",
    "named",
]


def __getattr__(name: str) -> Any:
    if name == "Candidate":
        import warnings

        message = "notsodeep.matching.Candidate is called Match now: candidates are matches."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return Match
    raise AttributeError(f"module 'notsodeep.matching' has no attribute {name!r}")

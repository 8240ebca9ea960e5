"""Shallow networks that behave like a given DEQ, and certificates of how closely."""

from notsodeep.matching.certificate import Certificate, certificate_of_kernels
from notsodeep.matching.dual_activation import KernelSeries
from notsodeep.matching.match_record import Candidate, Match
from notsodeep.matching.matching import FAMILIES, match
from notsodeep.matching.refinement import Refinement

__all__ = [
    "FAMILIES",
    "Candidate",
    "Certificate",
    "KernelSeries",
    "Match",
    "Refinement",
    "certificate_of_kernels",
    "match",
]

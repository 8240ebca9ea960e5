"""Shallow networks that behave like a given DEQ, and certificates of how closely."""

from notsodeep.matching.certificate import Certificate
from notsodeep.matching.family import Family
from notsodeep.matching.match import FAMILIES, match
from notsodeep.matching.record import Match

__all__ = ["FAMILIES", "Certificate", "Family", "Match", "match"]

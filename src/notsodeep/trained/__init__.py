"""What can be said about networks with given weights: margins, proofs, layers, diagnoses."""

from notsodeep.trained.certificate import Certifier, StateCertificate, certify_states
from notsodeep.trained.diagnosis import Diagnosis, diagnose
from notsodeep.trained.hybrid import HybridEquilibrium
from notsodeep.trained.margin import Margin, margin_of
from notsodeep.trained.regions import Robustness, certified_radius, certify

__all__ = [
    "Certifier",
    "Diagnosis",
    "HybridEquilibrium",
    "Margin",
    "Robustness",
    "StateCertificate",
    "certified_radius",
    "certify",
    "certify_states",
    "diagnose",
    "margin_of",
]

"""What can be said about networks with given weights: margins, proofs, layers, diagnoses."""

from notsodeep.trained.certificate import Certifier
from notsodeep.trained.diagnosis import Diagnosis, diagnose
from notsodeep.trained.hybrid import HybridEquilibrium
from notsodeep.trained.margin import Margin, margin_of

__all__ = ["Certifier", "Diagnosis", "HybridEquilibrium", "Margin", "diagnose", "margin_of"]

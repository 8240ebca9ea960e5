"""Learning curves and training curves before training, from the statistics of the data."""

from notsodeep.prediction.curves import LearningCurve, WidthCurve, learning_curve, width_curve
from notsodeep.prediction.pilot import PilotCurve, pilot_curve
from notsodeep.prediction.risk import BestSigma, RiskCurve, best_sigma_a2, predict_risk
from notsodeep.prediction.transfer import Transfer, transfer
from notsodeep.prediction.width import effective_neurons

__all__ = [
    "BestSigma",
    "LearningCurve",
    "PilotCurve",
    "RiskCurve",
    "Transfer",
    "WidthCurve",
    "best_sigma_a2",
    "effective_neurons",
    "learning_curve",
    "pilot_curve",
    "predict_risk",
    "transfer",
    "width_curve",
]

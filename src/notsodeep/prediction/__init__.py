"""Learning curves and training curves before training, from the statistics of the data."""

from notsodeep.prediction.curves import LearningCurve, WidthCurve, learning_curve, width_curve
from notsodeep.prediction.filters import Filter, gradient_descent, gradient_flow, ridge
from notsodeep.prediction.optima import (
    BestRecurrence,
    Optimum,
    best_ridge,
    best_sigma_a2,
    best_time,
)
from notsodeep.prediction.risk import RiskCurve, predict_risk
from notsodeep.prediction.width import effective_neurons

__all__ = [
    "BestRecurrence",
    "Filter",
    "LearningCurve",
    "Optimum",
    "RiskCurve",
    "WidthCurve",
    "best_ridge",
    "best_sigma_a2",
    "best_time",
    "effective_neurons",
    "gradient_descent",
    "gradient_flow",
    "learning_curve",
    "predict_risk",
    "ridge",
    "width_curve",
]

"""Learning curves and training curves before training, from the statistics of the data."""

from notsodeep.prediction.comparison import RiskComparison, compare_risks, shape_ratios
from notsodeep.prediction.curves import (
    LearningCurve,
    WidthCurve,
    learning_curve,
    width_curve,
    width_curve_on_rows,
)
from notsodeep.prediction.features import (
    PointRisk,
    estimated_mixture,
    predict_on_points,
    predict_readout,
)
from notsodeep.prediction.filters import Filter, gradient_descent, gradient_flow, ridge
from notsodeep.prediction.optima import (
    BestRecurrence,
    Optimum,
    best_ridge,
    best_sigma_a2,
    best_time,
)
from notsodeep.prediction.pilot import PilotCurve, pilot_curve
from notsodeep.prediction.risk import RiskCurve, predict_risk
from notsodeep.prediction.transfer import Transfer, Tuned, transfer_on_rows
from notsodeep.prediction.width import effective_neurons

__all__ = [
    "BestRecurrence",
    "Filter",
    "LearningCurve",
    "Optimum",
    "PilotCurve",
    "PointRisk",
    "RiskComparison",
    "RiskCurve",
    "Transfer",
    "Tuned",
    "WidthCurve",
    "best_ridge",
    "best_sigma_a2",
    "best_time",
    "compare_risks",
    "effective_neurons",
    "estimated_mixture",
    "gradient_descent",
    "gradient_flow",
    "learning_curve",
    "pilot_curve",
    "predict_on_points",
    "predict_readout",
    "predict_risk",
    "ridge",
    "shape_ratios",
    "transfer_on_rows",
    "width_curve",
    "width_curve_on_rows",
]

"""Neural collapse: measured on features and kernels, and solved in the layer-peeled model.

`CollapseMetrics` measures NC1 to NC4 over batches; `kernel_nc1` does so from a Gram matrix.
`simplex_etf`, `nearest_etf` and `seli` are the geometries that collapse leads to; `layer_peeled`
computes the optimum that a flexible backbone would be led to, with a certificate.
"""

from __future__ import annotations

from notsodeep.collapse.certificate import OptimalityCertificate, optimality_certificate
from notsodeep.collapse.class_statistics import ClassStatistics
from notsodeep.collapse.collapse_report import CollapseReport, CollapseSummary
from notsodeep.collapse.geometries import (
    NearestETF,
    SeliGeometry,
    majority_and_minority,
    nearest_etf,
    seli,
    simplex_etf,
)
from notsodeep.collapse.heads import head_gain
from notsodeep.collapse.kernel_collapse import kernel_nc1
from notsodeep.collapse.layer_peeled import LayerPeeledOptimum, balanced_loss, layer_peeled
from notsodeep.collapse.measures import NearestMeanMismatch
from notsodeep.collapse.metrics import CollapseMetrics
from notsodeep.collapse.minority_collapse import CollapseThreshold, minority_collapse_threshold

__all__ = [
    "ClassStatistics",
    "CollapseMetrics",
    "CollapseReport",
    "CollapseSummary",
    "CollapseThreshold",
    "LayerPeeledOptimum",
    "NearestETF",
    "NearestMeanMismatch",
    "OptimalityCertificate",
    "SeliGeometry",
    "balanced_loss",
    "head_gain",
    "kernel_nc1",
    "layer_peeled",
    "majority_and_minority",
    "minority_collapse_threshold",
    "nearest_etf",
    "optimality_certificate",
    "seli",
    "simplex_etf",
]

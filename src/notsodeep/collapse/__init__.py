"""Neural collapse: measured on features and kernels, and solved in the layer-peeled model.

`CollapseMetrics` measures NC1 to NC4 over batches; `kernel_collapse` does so from a Gram matrix.
`simplex_etf` and `nearest_etf` are the geometry that collapse leads to; `layer_peeled` computes the
optimum that a flexible backbone would be led to, with a certificate.
"""

from notsodeep.collapse.geometry import NearestETF, nearest_etf, simplex_etf
from notsodeep.collapse.kernel_collapse import kernel_collapse
from notsodeep.collapse.layer_peeled import (
    CollapseThreshold,
    LayerPeeledOptimum,
    head_gain,
    layer_peeled,
    minority_collapse_threshold,
)
from notsodeep.collapse.measures import CollapseReport
from notsodeep.collapse.metrics import CollapseMetrics

__all__ = [
    "CollapseMetrics",
    "CollapseReport",
    "CollapseThreshold",
    "LayerPeeledOptimum",
    "NearestETF",
    "head_gain",
    "kernel_collapse",
    "layer_peeled",
    "minority_collapse_threshold",
    "nearest_etf",
    "simplex_etf",
]

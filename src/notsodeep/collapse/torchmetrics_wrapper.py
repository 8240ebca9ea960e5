"""The collapse metrics as a torchmetrics metric; needs the extra ``torchmetrics``.

Not imported by `notsodeep.collapse`: write
``from notsodeep.collapse.torchmetrics_wrapper import NeuralCollapse``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from notsodeep import checks, extras

extras.require("notsodeep.collapse.torchmetrics_wrapper", "torch", "torchmetrics")

import torch
from torch import Tensor
from torchmetrics import Metric

from notsodeep.collapse.measures import CollapseReport
from notsodeep.collapse.metrics import (
    ClassStatistics,
    CollapseMetrics,
    ScatterKind,
    storage_shape,
)


class NeuralCollapse(Metric):
    """`CollapseMetrics` with torchmetrics' life cycle: reset, synchronise, merge, checkpoint.

    Its state is one float64 tensor, the storage of `ClassStatistics`, which is reduced across
    processes by Chan's update; no samples are kept or gathered.  Calling the metric on a batch
    updates it and returns None, as a batch alone need not have all classes.

    Parameters
    ----------
    num_classes, num_features : int
        K and d.
    classifier : callable, optional
        Returns (W, b), b a tensor or None, when the metrics are computed; for instance
        ``lambda: (linear.weight, linear.bias)``.
    scatter, groups, kwargs
        As in `CollapseMetrics` and `torchmetrics.Metric`.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    storage: Tensor

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        classifier: Callable[[], tuple[Tensor, Tensor | None]] | None = None,
        *,
        scatter: ScatterKind = "full",
        groups: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.options: dict[str, Any] = {
            "num_classes": num_classes,
            "scatter": scatter,
            "groups": groups,
        }
        CollapseMetrics(**self.options)  # rejects what cannot work, now rather than later
        self.num_features = checks.positive_integer(num_features, "num_features", "NeuralCollapse")
        self.classifier = classifier
        self.report: CollapseReport | None = None  # of the last `compute`
        shape = storage_shape(num_classes, self.num_features, scatter)
        self.add_state(
            "storage",
            default=torch.zeros(shape, dtype=torch.float64),
            dist_reduce_fx=partial(_merged, num_features=self.num_features, scatter=scatter),
            persistent=True,
        )

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Take in a batch, shapes (n, d) and (n,)."""
        metrics = self._metrics()
        metrics.update(features, labels)
        self.storage = torch.from_numpy(metrics.statistics.storage).to(self.storage.device)

    def forward(self, features: Tensor, labels: Tensor) -> None:
        """Take in a batch."""
        self.update(features, labels)

    def compute(self) -> dict[str, Tensor]:
        """Return every measure that is defined, those of a group as "minority/nc1" and so on.

        The full report, with notes on what is left out, is in `report`.
        """
        W, b = (None, None) if self.classifier is None else self.classifier()
        self.report = self._metrics().compute(W, b)
        measures = {"": self.report.overall, **self.report.groups}
        return {
            f"{prefix}/{name}".removeprefix("/"): torch.tensor(value, dtype=torch.float64)
            for prefix, values in measures.items()
            for name, value in values.items()
            if not math.isnan(value)
        }

    def _metrics(self) -> CollapseMetrics:
        """Return metrics that continue from the state, in place if it is in main memory."""
        metrics = CollapseMetrics(**self.options)
        storage = self.storage.detach().cpu().numpy()
        metrics.resume(
            ClassStatistics(len(storage), self.num_features, self.options["scatter"], storage)
        )
        return metrics


def _merged(stacked: Tensor, num_features: int, scatter: ScatterKind) -> Tensor:
    """Merge the states of several processes, stacked along the first axis."""
    first, *others = (
        ClassStatistics(len(storage), num_features, scatter, storage)
        for storage in stacked.detach().cpu().numpy().copy()
    )
    for other in others:
        first.merge(other)
    return torch.from_numpy(first.storage).to(stacked.device)

"""Rows of data as tensors that a module takes, and its features of many rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.networks.modules import FeatureNetwork
from notsodeep.networks.training_records import SolverSummary

CHUNK = 1024  # rows in one pass of a module that no gradient is taken of


def tensor_rows(X: Any, module: nn.Module, owner: str) -> Tensor:
    """Require finite rows, NumPy or torch; return them in the module's dtype, on its device."""
    like = next(module.parameters())
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    return as_tensor(checks.samples(array, "X", owner), like)


def as_tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    """Bring an array into the dtype and onto the device of a tensor, copied only if need be.

    torch takes no arrays that are read-only or run backwards.
    """
    usable = np.require(array, requirements=["C", "W"])
    return torch.as_tensor(usable, dtype=like.dtype, device=like.device)


def tensor_targets(
    y: Any, num_samples: int, num_outputs: int, like: Tensor, owner: str
) -> tuple[Tensor, bool]:
    """Require class labels (n,) or real targets (n, K).

    Returns
    -------
    Tensor, bool
        Labels as int64 and True, or targets in the dtype of `like` and False.
    """
    given = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
    array = checks.plain_array(given, "y", owner)
    if array.ndim == 2:
        targets = checks.matrix_of_shape(array, (num_samples, num_outputs), "y", owner)
        return as_tensor(targets, like), False
    labels = checks.class_labels(array, num_samples, owner, num_outputs)
    return torch.as_tensor(labels.copy(), device=like.device), True


def one_hot(targets: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
    """Return labels (n,) as rows of the identity matrix; real targets as they are."""
    if targets.is_floating_point():
        return targets
    return nn.functional.one_hot(targets, num_outputs).to(dtype)


def count_solves(
    module: nn.Module, forward: SolverSummary | None, backward: SolverSummary | None
) -> tuple[SolverSummary | None, SolverSummary | None]:
    """Add the solves of a module's last pass to the summaries; as they are if it has no solver."""
    record = getattr(module, "last_record", None)
    if record is None:
        return forward, backward
    if record.forward is not None:
        forward = _plus(forward, record.forward)
    for derivative in record.derivatives:
        backward = _plus(backward, derivative)
    return forward, backward


def _plus(summary: SolverSummary | None, solve: Any) -> SolverSummary:
    # A gradient that is an approximation by choice has no convergence to fail at.
    converged = solve.converged is not False
    return (summary or SolverSummary()).plus(solve.steps, solve.residual, converged)


@torch.no_grad()
def features_of(module: FeatureNetwork, X: Tensor) -> tuple[Tensor, SolverSummary | None]:
    """Return the features (n, m) of all rows, and what the solver did if there is one."""
    features: Tensor | None = None
    summary: SolverSummary | None = None
    for start in range(0, len(X), CHUNK):
        part = module.features(X[start : start + CHUNK])
        summary, _ = count_solves(module, summary, None)
        if features is None:
            features = part.new_empty((len(X), part.shape[1]))
        features[start : start + CHUNK] = part
    assert features is not None  # there is at least one row
    return features, summary

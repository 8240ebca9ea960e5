"""Features of a network for many rows, and read-outs fitted to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotEnoughMemory
from notsodeep.networks.modules import FeatureNetwork
from notsodeep.networks.training_records import SolverSummary
from notsodeep.numerics.ridge_fit import Side, fit_ridge

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


@dataclass(frozen=True)
class ReadoutFit:
    """How a read-out was fitted.

    Attributes
    ----------
    ridge : float
    side : {"samples", "features"}
        Which Gram matrix was factorised: F Fᵀ, (n, n), or Fᵀ F, (m, m); the smaller one.
    condition : float
        Estimated condition number of that matrix with the ridge added, in the 1-norm.
    residual : float
        ‖(G + ridge·I) S − R‖/‖R‖ of the linear system that was solved, Frobenius norms.
    squared_error : float
        Mean over the samples of ½‖f − t‖² after the fit.
    accuracy : float or None
        Share of samples whose largest output is their class; None without class labels.
    solver : SolverSummary or None
        What the equilibrium solver did for the features.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(20, 5, rng=0)
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 5, 30, 1, rng=0)
    >>> fit = fit_readout(net, X, X[:, :1], ridge=0.01)
    >>> fit.side, fit.accuracy, bool(fit.residual < 1e-10)
    ('samples', None, True)
    """

    ridge: float
    side: Side
    condition: float
    residual: float
    squared_error: float
    accuracy: float | None
    solver: SolverSummary | None


def fit_readout(
    module: FeatureNetwork, X: Any, y: Any, ridge: float, *, weights: FloatArray | None = None
) -> ReadoutFit:
    """Set the read-out to the ridge regression of the targets on the features, in place.

    Minimises Σ_i ‖a z_i − t_i‖² + ridge·‖a‖² over a, shape (K, m): a = Tᵀ F (Fᵀ F + ridge·I)⁻¹ =
    Tᵀ (F Fᵀ + ridge·I)⁻¹ F, where the rows of F, shape (n, m), are the features and those of T the
    targets.  By the second form it is kernel ridge regression with the module's conjugate kernel
    F Fᵀ.  A bias, if the module has one, is fitted too and not penalised.

    Parameters
    ----------
    module : FeatureNetwork
    X : array_like or Tensor of shape (n, p)
    y : array_like or Tensor
        Class labels, shape (n,), which become one-hot targets; or real targets, shape (n, K).
    ridge : float
        At least 0; 0 needs a Gram matrix that can be inverted in double precision.
    weights : ndarray of shape (n,), optional
        How much each sample counts; 1 if left out.

    Returns
    -------
    ReadoutFit

    Raises
    ------
    InvalidInput
        The Gram matrix is singular to double precision: the ridge is too small.
    NotConverged
        A DEQ's features were not found, or rounding errors decide the solution: the ridge is too
        small for these targets.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> data = nsd.data.load("digits", rng=0)
    >>> from notsodeep.networks.build import build
    >>> net = build(nsd.ExplicitNetwork(["relu"]), 64, 512, 10, rng=0)
    >>> fit = fit_readout(net, data.X, data.y, ridge=1e-3)
    >>> fit.side, fit.accuracy > 0.95
    ('features', True)
    """
    owner = "fit_readout"
    penalty = checks.at_least_zero(ridge, "ridge", owner)
    rows = tensor_rows(X, module, owner)
    targets, labelled = tensor_targets(y, len(rows), module.out_features, rows, owner)
    count = module.readout.shape[1]
    features_fit(len(rows) * count * rows.element_size(), len(rows), count)
    was_training = module.training
    try:
        features, summary = features_of(module.eval(), rows)
    finally:
        module.train(was_training)
    T = one_hot(targets, module.out_features, torch.float64).cpu().double()
    biased = module.readout_bias is not None
    F = features.cpu().numpy()
    fit = fit_ridge(F, T.numpy(), penalty, intercept=biased, owner=owner, weights=weights)
    _store(module, torch.from_numpy(fit.weights), torch.from_numpy(fit.intercept))
    outputs = torch.nn.functional.linear(features, module.readout, module.readout_bias).detach()
    errors = (outputs.cpu().double() - T).square().sum(dim=1)
    accuracy = float((outputs.argmax(dim=1) == targets).double().mean()) if labelled else None
    return ReadoutFit(
        penalty,
        fit.side,
        fit.condition,
        fit.residual,
        0.5 * float(errors.mean()),
        accuracy,
        summary,
    )


@torch.no_grad()
def _store(module: FeatureNetwork, weights: Tensor, bias: Tensor) -> None:
    module.readout.copy_(weights)
    if module.readout_bias is not None:
        module.readout_bias.copy_(bias)


def features_fit(needed: int, samples: int, width: int) -> None:
    """Reject features that are larger than the memory that is free now."""
    available = checks.available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The features of {samples} samples at width {width} need {needed / 2**30:.1f} GiB, "
            f"and {available / 2**30:.1f} GiB of memory are free. Use fewer samples or a smaller "
            "width, or TrainingSettings(cache_features=False), which computes them in every step."
        )

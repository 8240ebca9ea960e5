"""Rows and targets as tensors, features of many rows, and read-outs fitted to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.networks.random import Network
from notsodeep.numerics.ridge_fit import fit_ridge

CHUNK = 1024  # rows in one pass of a module that no gradient is taken of


def tensor_rows(X: Any, module: nn.Module, owner: str) -> Tensor:
    """Require finite rows, NumPy or torch; return them in the module's dtype, on its device."""
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    return as_tensor(checks.samples(array, "X", owner), next(module.parameters()))


def tensor_targets(y: Any, num_samples: int, num_outputs: int, like: Tensor, owner: str) -> Tensor:
    """Require class labels (n,), returned as int64, or real targets (n, K)."""
    array = checks.plain_array(y.detach().cpu().numpy() if isinstance(y, Tensor) else y, "y", owner)
    if array.ndim == 2:
        targets = checks.matrix_of_shape(array, (num_samples, num_outputs), "y", owner)
        return as_tensor(targets, like)
    labels = checks.class_labels(array, num_samples, owner, num_outputs)
    return torch.as_tensor(labels.copy(), device=like.device)


def as_tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    """Bring an array into the dtype and onto the device of a tensor."""
    # torch takes no arrays that are read-only or run backwards.
    usable = np.require(array, requirements=["C", "W"])
    return torch.as_tensor(usable, dtype=like.dtype, device=like.device)


@torch.no_grad()
def features_of(module: Network, X: Tensor) -> Tensor:
    """Return the features (n, m) of all rows, computed in evaluation mode."""
    count = module.readout.shape[1]
    needed = len(X) * count * X.element_size()
    what = f"A matrix of features, {len(X)} × {count},"
    checks.enough_memory(needed, what, "Use fewer samples or a smaller width.")
    was_training = module.training
    module.eval()
    try:
        features = X.new_empty(len(X), count)
        for start in range(0, len(X), CHUNK):
            features[start : start + CHUNK] = module.features(X[start : start + CHUNK])
    finally:
        module.train(was_training)
    return features


class ReadoutFit(NamedTuple):
    """How a read-out was fitted."""

    ridge: float
    condition: float  # estimated, of the smaller Gram matrix with the ridge added, in the 1-norm
    squared_error: float  # mean over the samples of ½‖f − t‖² after the fit
    accuracy: float | None  # share of samples whose largest output is their class; of labels only


def fit_readout(
    module: Network, X: Any, y: Any, ridge: float, *, weights: FloatArray | None = None
) -> ReadoutFit:
    """Set the read-out to the ridge regression of the targets on the features, in place.

    Minimises Σ_i w_i ‖a z_i − t_i‖² + ridge·‖a‖² over a, shape (K, m): kernel ridge regression with
    the module's conjugate kernel.  A bias, if the module has one, is fitted too and not penalised.

    Parameters
    ----------
    module : Network
    X : array_like or Tensor of shape (n, p)
    y : array_like or Tensor
        Class labels, shape (n,), which become one-hot targets; or real targets, shape (n, K).
    ridge : float
        At least 0; 0 needs a Gram matrix that can be inverted in double precision.
    weights : ndarray of shape (n,), optional
        w, 1 by default.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> data = nsd.data.load("digits", rng=0)
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 64, 512, 10, rng=0)
    >>> fit_readout(net, data.X, data.y, ridge=1e-3).accuracy > 0.95
    True
    """
    owner = "fit_readout"
    penalty = checks.at_least_zero(ridge, "ridge", owner)
    rows = tensor_rows(X, module, owner)
    targets = tensor_targets(y, len(rows), module.out_features, rows, owner)
    labelled = not targets.is_floating_point()
    features = features_of(module, rows)
    T = nn.functional.one_hot(targets, module.out_features) if labelled else targets
    T = T.cpu().double()
    biased = module.readout_bias is not None
    F = features.cpu().numpy()
    fit = fit_ridge(F, T.numpy(), penalty, intercept=biased, owner=owner, weights=weights)
    with torch.no_grad():
        module.readout.copy_(torch.from_numpy(fit.weights))
        if module.readout_bias is not None:
            module.readout_bias.copy_(torch.from_numpy(fit.intercept))
        outputs = nn.functional.linear(features, module.readout, module.readout_bias)
    errors = (outputs.cpu().double() - T).square().sum(dim=1)
    accuracy = float((outputs.argmax(dim=1) == targets).double().mean()) if labelled else None
    return ReadoutFit(penalty, fit.condition, 0.5 * float(errors.mean()), accuracy)

"""Random torch networks for the Monte Carlo estimate of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import torch

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, MonotoneEquilibrium
from notsodeep.networks.build import Initialisation, build
from notsodeep.networks.empirical_kernels import empirical_kernels

TorchDraw = Callable[[np.random.Generator, FloatArray], dict[str, FloatArray]]


def torch_draw(
    model: DeepEquilibrium | MonotoneEquilibrium | ExplicitNetwork,
    width: int,
    *,
    convention: Convention = "preactivation",
    out_features: int = 1,
    initialisation: Initialisation = "gaussian",
) -> TorchDraw:
    """Make random modules by `build`, in float64, and return both of their kernels.

    Parameters
    ----------
    model : DeepEquilibrium, MonotoneEquilibrium or ExplicitNetwork
    width : int
        m.
    convention : {"preactivation", "feature"}
        Concerns DEQs only.  "feature" gives the CK and the NTK of the module, call them Φ and Θ;
        "preactivation", of vanilla models only, σa² Φ + σb² X Xᵀ and σa² Θ + σb² X Xᵀ.
    out_features : int
        K.  The tangent kernel is a mean over the outputs, so it fluctuates less with more of them.
    initialisation : {"gaussian", "uniform", "rademacher"}

    Returns
    -------
    callable
        For `notsodeep.monte_carlo`; gives two kernels, "conjugate" and "tangent".

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("tanh", 0.2)
    >>> estimate = nsd.monte_carlo(torch_draw(deq, 100), np.eye(2), draws=20, rng=0)["tangent"]
    >>> exact = nsd.tangent_kernel(deq, np.eye(2))
    >>> bool((abs(estimate.mean - exact) < 5 * estimate.standard_error).all())
    True
    """
    checks.known_name(convention, get_args(Convention), "convention of torch_draw")
    shares = None
    if convention == "preactivation" and isinstance(model, MonotoneEquilibrium):
        requirement = "be 'feature' for draws of a monotone network"
        raise checks.invalid("convention", "torch_draw", requirement, convention)
    if convention == "preactivation" and isinstance(model, DeepEquilibrium):
        shares = model.sigma_a2, model.sigma_b2

    def draw(generator: np.random.Generator, X: FloatArray) -> dict[str, FloatArray]:
        module = build(
            model,
            X.shape[1],
            width,
            out_features,
            generator,
            initialisation=initialisation,
            dtype=torch.float64,
        )
        pair = empirical_kernels(module, X)
        kernels = {
            name: np.asarray(getattr(pair, name), dtype=np.float64)
            for name in ("conjugate", "tangent")
        }
        if shares is None:
            return kernels
        gram = shares[1] * (X @ X.T)
        return {name: shares[0] * kernel + gram for name, kernel in kernels.items()}

    return draw

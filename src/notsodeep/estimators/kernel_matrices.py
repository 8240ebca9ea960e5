"""The model behind the estimators' parameters, and its kernels by name."""

from __future__ import annotations

from typing import Any, cast, get_args

import numpy as np
from numpy.polynomial import chebyshev

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.kernels import KernelOperator, conjugate_kernel, tangent_kernel
from notsodeep.models import (
    Convention,
    ConvolutionalModel,
    DeepEquilibrium,
    KernelModel,
    KernelName,
    checked_choice,
    kernel_name,
)


def checked_model(
    activation: str | Activation, sigma_a2: float, kind: str, convention: str, owner: str
) -> DeepEquilibrium:
    """Make the DEQ that an estimator's parameters describe, and check the words beside it."""
    model = DeepEquilibrium(activation, sigma_a2)
    checked_choice(model, kind, convention, owner)
    return model


def given_model(
    model: object, kind: str, convention: str, centred: bool, owner: str
) -> KernelModel:
    """Check a model that was given instead of an activation and a variance."""
    if not isinstance(model, ConvolutionalModel):
        checked_choice(model, kind, convention, owner)
        return cast(KernelModel, model)
    kernel_name(kind, f"kernel of {owner}")
    checks.known_name(convention, get_args(Convention), f"convention of {owner}")
    if centred:
        requirement = "be False for a convolutional model, whose pixels have many scales"
        raise checks.invalid("centred", owner, requirement, True)
    return model


def root_mean_square_norm(X: FloatArray, weights: FloatArray | None = None) -> float:
    """Return √(mean ‖x_i‖²), the scale τ0 of centred data; by weights, if there are some."""
    if weights is None:
        return float(np.sqrt(np.einsum("ij,ij->", X, X) / len(X)))
    return float(np.sqrt(weights @ np.einsum("ij,ij->i", X, X) / weights.sum()))


def kernel_matrix(
    model: KernelModel,
    X: FloatArray,
    Y: FloatArray | None = None,
    *,
    kind: KernelName,
    convention: Convention,
) -> FloatArray:
    """Compute the exact kernel of that name, (n, n) or (n, m), in float64."""
    compute = tangent_kernel if kind == "ntk" else conjugate_kernel
    return np.asarray(compute(model, X, Y, convention=convention))


def kernel_diagonal(
    model: KernelModel, X: FloatArray, *, kind: KernelName, convention: Convention
) -> FloatArray:
    """Compute the kernel of every row with itself, (n,), without the rest of the matrix."""
    return np.asarray(KernelOperator(model, X, kind=kind, convention=convention).diagonal())


_POINTS = 7
_HALF_WIDTH = 0.05  # in θ, where σa² is small; less towards σa² = 1, which has to stay out of reach


def log_sigma_derivative(
    deq: DeepEquilibrium,
    X: FloatArray,
    Y: FloatArray | None = None,
    *,
    kind: KernelName,
    convention: Convention,
) -> FloatArray:
    """Compute σa² ∂K/∂σa² of a DEQ's exact kernel, shape (n, n) or (n, m).

    σb² = 1 − σa² changes along, and so do the variances q of the samples.

    Raises
    ------
    NotConverged
        There is no kernel at a σa² that is larger by a factor of exp((1 − σa²)/20).
    """
    sigma_a2 = _positive_variance(deq.sigma_a2)
    points, weights = differentiation_rule()
    half = _HALF_WIDTH * (1.0 - sigma_a2)
    total: Any = 0.0
    for node, weight in zip(sigma_a2 * np.exp(half * points), weights / half, strict=True):
        moved = DeepEquilibrium(deq.activation, float(node))
        total = total + weight * kernel_matrix(moved, X, Y, kind=kind, convention=convention)
    return np.asarray(total)


def differentiation_rule() -> tuple[FloatArray, FloatArray]:
    """Return points x_k in (−1, 1) and weights w_k with f′(0) ≈ Σ w_k f(x_k), without x = 0.

    Exact for polynomials of degree six; Σ w_k T_j(x_k) = T_j′(0) for the Chebyshev polynomials.
    """
    points = chebyshev.chebpts1(_POINTS)
    slopes = [chebyshev.chebval(0.0, chebyshev.chebder(unit)) for unit in np.eye(_POINTS)]
    weights = np.linalg.solve(chebyshev.chebvander(points, _POINTS - 1).T, np.array(slopes))
    used = points != points[_POINTS // 2]  # the middle one has no weight, by symmetry
    return points[used], np.asarray(weights[used], dtype=np.float64)


def _positive_variance(sigma_a2: float) -> float:
    """Require σa² > 0, for a derivative in its logarithm."""
    remedy = "At 0 set sigma_a2_bounds='fixed': it has no logarithm to search in."
    return checks.positive_number(sigma_a2, "sigma_a2", "a gradient", remedy)

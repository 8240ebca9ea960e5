"""The model behind the estimators' parameters, and its kernels by name."""

from __future__ import annotations

import numpy as np

from notsodeep.activations import Activation
from notsodeep.checks import FloatArray
from notsodeep.kernels import KernelOperator, conjugate_kernel, tangent_kernel
from notsodeep.models import Convention, DeepEquilibrium, KernelName, Model, checked_choice


def checked_model(
    activation: str | Activation, sigma_a2: float, kernel: str, convention: str, owner: str
) -> DeepEquilibrium:
    """Make the DEQ that an estimator's parameters describe, and check the words beside it."""
    model = DeepEquilibrium(activation, sigma_a2)
    checked_choice(model, kernel, convention, owner)
    return model


def root_mean_square_norm(X: FloatArray) -> float:
    """Return √(mean ‖x_i‖²), the scale τ0 of centred data."""
    return float(np.sqrt(np.einsum("ij,ij->", X, X) / len(X)))


def kernel_matrix(
    model: Model,
    X: FloatArray,
    Y: FloatArray | None = None,
    *,
    kernel: KernelName,
    convention: Convention,
) -> FloatArray:
    """Compute the exact kernel of that name, (n, n) or (n, m), in float64."""
    compute = tangent_kernel if kernel == "tangent" else conjugate_kernel
    return np.asarray(compute(model, X, Y, convention=convention))


def kernel_diagonal(
    model: Model, X: FloatArray, *, kernel: KernelName, convention: Convention
) -> FloatArray:
    """Compute the kernel of every row with itself, (n,), without the rest of the matrix."""
    return np.asarray(KernelOperator(model, X, kernel=kernel, convention=convention).diagonal())

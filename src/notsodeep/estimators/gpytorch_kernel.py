"""The exact kernel of a DEQ as a GPyTorch kernel; needs the extra ``gpytorch``.

Not imported by `notsodeep.estimators`: write
``from notsodeep.estimators.gpytorch_kernel import GPyTorchEquilibriumKernel``.
"""

from __future__ import annotations

import warnings
from typing import Any

from notsodeep import checks, extras

extras.require("notsodeep.estimators.gpytorch_kernel", "torch", "gpytorch")

import numpy as np
import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.estimators.kernel_matrices import (
    checked_model,
    kernel_diagonal,
    kernel_matrix,
    log_sigma_derivative,
)
from notsodeep.models import Convention, DeepEquilibrium, KernelName, kernel_name

with warnings.catch_warnings():
    # While it is imported it uses a part of torch that newer releases want to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from gpytorch.constraints import Interval
    from gpytorch.kernels import Kernel


class GPyTorchEquilibriumKernel(Kernel):  # type: ignore[misc]  # gpytorch has no types
    """The exact kernel of a DEQ, with σa² as a parameter that gradients reach.

    Kernels are computed by the compiled loops, on the CPU and in float64, and handed over in the
    dtype and on the device of the inputs.  There is no gradient in the inputs, and no batch of
    kernels.  For an amplitude wrap it in `gpytorch.kernels.ScaleKernel`.

    Parameters
    ----------
    activation : str or Activation, default "relu"
    sigma_a2 : float, default 0.2
        Where σa² starts; inside the bounds.
    kind : {"ntk", "ck"}
    convention : {"preactivation", "feature"}
    sigma_a2_bounds : pair of float
        Between which σa² stays.

    Examples
    --------
    >>> k = GPyTorchEquilibriumKernel("tanh", sigma_a2=0.3)
    >>> X = torch.eye(3, dtype=torch.float64)
    >>> total = k(X).to_dense().sum()
    >>> total.backward()
    >>> bool(k.raw_sigma_a2.grad != 0), round(k.sigma_a2.item(), 6)
    (True, 0.3)
    """

    has_lengthscale = False

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        kind: KernelName = "ntk",
        convention: Convention = "feature",
        sigma_a2_bounds: tuple[float, float] = (1e-5, 0.9),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        owner = type(self).__name__
        self._model = checked_model(activation, sigma_a2, kind, convention, owner)
        self._choice: dict[str, Any] = {
            "kind": kernel_name(kind, "kernel"),
            "convention": convention,
        }
        low, high = sigma_a2_bounds
        _strictly_between(sigma_a2, low, high, "sigma_a2", owner)
        self.register_parameter(
            "raw_sigma_a2", torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        )
        self.register_constraint("raw_sigma_a2", Interval(low, high))
        self.initialize(
            raw_sigma_a2=self.raw_sigma_a2_constraint.inverse_transform(
                torch.tensor(float(sigma_a2), dtype=torch.float64)
            )
        )

    @property
    def sigma_a2(self) -> Tensor:
        """σa², as a tensor that gradients go through."""
        value: Tensor = self.raw_sigma_a2_constraint.transform(self.raw_sigma_a2)
        return value

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """Compute the kernel of rows (n, p) and (m, p): (n, m), or (n,) of pairs with `diag`."""
        owner = type(self).__name__
        _plain_rows(x1, x2, owner)
        same = x1 is x2 or torch.equal(x1, x2)
        if diag and not same:
            raise checks.invalid("x2", owner, "be x1 for a diagonal", "other rows")
        left, right = x1.detach().cpu().numpy(), None if same else x2.detach().cpu().numpy()
        compute: Any = _Exact.apply
        result = compute(self.sigma_a2, self._model.activation, left, right, self._choice, diag)
        assert isinstance(result, Tensor)
        return result.to(x1)


class _Exact(torch.autograd.Function):
    """The kernel as a function of σa² alone."""

    @staticmethod
    def forward(
        ctx: Any,
        sigma_a2: Tensor,
        activation: Activation,
        X: np.ndarray[Any, Any],
        Y: np.ndarray[Any, Any] | None,
        choice: dict[str, Any],
        diag: bool,
    ) -> Tensor:
        """Compute the kernel, and keep what its derivative needs."""
        model = DeepEquilibrium(activation, float(sigma_a2))
        ctx.problem = (model, X, Y, choice, diag)
        if diag:
            return torch.from_numpy(kernel_diagonal(model, X, **choice))
        return torch.from_numpy(kernel_matrix(model, X, Y, **choice))

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        """Return Σ (∂loss/∂K)·∂K/∂σa²."""
        model, X, Y, choice, diag = ctx.problem
        slopes = log_sigma_derivative(model, X, Y, **choice) / model.sigma_a2
        inner = torch.from_numpy(np.diagonal(slopes).copy() if diag else slopes)
        return ((outer * inner).sum(), None, None, None, None, None)


def _strictly_between(value: float, low: float, high: float, parameter: str, owner: str) -> None:
    """Require low < value < high, and bounds that σa² can have."""
    if not 0.0 < low < high < 1.0:
        requirement = "satisfy 0 < low < high < 1"
        raise checks.invalid(f"{parameter}_bounds", owner, requirement, f"({low:g}, {high:g})")
    if not low < value < high:
        raise checks.invalid(
            parameter, owner, f"lie between its bounds {low:g} and {high:g}", value
        )


def _plain_rows(x1: Any, x2: Any, owner: str) -> None:
    """Require two matrices of rows that no gradient is wanted of."""
    for name, rows in (("x1", x1), ("x2", x2)):
        if rows.ndim != 2:
            requirement = "be a matrix of shape (n_samples, n_features), without batches"
            raise checks.invalid(name, owner, requirement, f"shape {tuple(rows.shape)}")
        if rows.requires_grad:
            remedy = "The exact kernel has no gradient in its inputs: use x.detach()."
            raise checks.invalid(name, owner, "not require gradients", "a tensor that does", remedy)

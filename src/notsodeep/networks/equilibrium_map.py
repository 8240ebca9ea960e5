"""The DEQ's own fixed-point problem, in its pre-activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.activations.torch_twins import TensorFunction
from notsodeep.networks.fixed_point_problems import Linearisation, Problem, pullback


@dataclass(frozen=True)
class EquilibriumMap(Problem):
    """h = d + s φ(h) Aᵀ: the pre-activations h of shape (..., m), samples being rows.

    The parameters are d = √σb² x Bᵀ, shape (..., m), and A, shape (m, m).  With s = √(σa²/m) the
    features are z* = φ(h)/√m.  Pre-activations are solved for instead of features because φ′(h),
    all that the derivatives need, then costs no product with A.

    Attributes
    ----------
    activation : callable
        φ on tensors.
    scale : float
        s.
    """

    activation: TensorFunction
    scale: float

    def name_of(self, index: int) -> str:
        """Return what messages call d and A."""
        return ("the input term √σb² B x", "recurrent")[index]

    def value(self, z: Tensor, *parameters: Tensor) -> Tensor:
        """Evaluate d + s φ(h) Aᵀ; one product with A."""
        drive, recurrent = parameters
        if z.ndim == 2:
            return torch.addmm(drive, self.activation(z), recurrent.mT, alpha=self.scale)
        return drive + self.scale * (self.activation(z) @ recurrent.mT)

    def linearise(self, z: Tensor, *parameters: Tensor) -> Linearisation:
        """Return the derivatives at h; each costs one product with A."""
        _, recurrent = parameters
        activated, slope_of = pullback(self.activation, z)
        slope = self.scale * slope_of(torch.ones_like(activated))[0]

        def pull_parameters(u: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
            m = u.shape[-1]
            rows = (self.scale * activated).reshape(-1, m)
            return u if needed[0] else None, u.reshape(-1, m).mT @ rows if needed[1] else None

        def push_parameters(tangents: Sequence[Tensor]) -> Tensor:
            pushed: Tensor = tangents[0] + self.scale * (activated @ tangents[1].mT)
            return pushed

        return Linearisation(
            lambda v: (slope * v) @ recurrent.mT,
            lambda u: slope * (u @ recurrent),
            push_parameters,
            pull_parameters,
        )

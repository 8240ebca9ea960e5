"""An explicit network for any f(z, x): a linear start by least squares, then a few steps of f.

Nothing is known of f but its values, so nothing is proved: what there is are statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from notsodeep.arrays import FloatArray
from notsodeep.trained.cell import FunctionCell


class UnrolledFunction(nn.Module):
    """z_0 = P x + q, then z_k = f(z_{k−1}, x); the read-out of the last.

    Parameters
    ----------
    cell : FunctionCell
    weight, bias : ndarray of shape (width, p) and (width,)
        Of the start, for flattened rows.
    steps : int
        Applications of f.
    dtype : torch.dtype
        In which f works.
    """

    def __init__(
        self,
        cell: FunctionCell,
        weight: FloatArray,
        bias: FloatArray,
        steps: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.cell, self.steps = cell, steps
        self.weight = nn.Parameter(torch.tensor(weight, dtype=dtype))
        self.bias = nn.Parameter(torch.tensor(bias, dtype=dtype))

    def features(self, x: Tensor) -> Tensor:
        """Return the state after all steps, shape (n, width)."""
        rows = x.to(self.weight.dtype)
        z = nn.functional.linear(rows.flatten(1), self.weight, self.bias)
        for _ in range(self.steps):
            z = self.cell.tensor_step(z, rows)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; of a cell without a read-out, the state."""
        z = self.features(x)
        return z if self.cell.readout is None else self.cell.tensor_logits(z)

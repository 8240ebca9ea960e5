"""An explicit network for any f(z, x): a linear start by least squares, then a few steps of f.

Nothing is known of f but its values, so nothing is proved: what there is are statistics.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.networks.equilibrium_solvers import SOLVERS, solve
from notsodeep.networks.solve_records import SolveRecord
from notsodeep.trained.cell import FunctionCell
from notsodeep.trained.fidelity import refitted

_MOST_STEPS = 2000
_TRIAL_ROWS = 64
_STATE_BYTES = 1 << 26  # of the states that are solved at once


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


def solve_function(
    cell: FunctionCell, drive: NDArray[np.floating], tolerance: float
) -> tuple[FloatArray, str, int]:
    """Solve z = f(z, x) by the first solver that does on a few rows; return z, its name and steps.

    Raises
    ------
    NotConverged
        None of them does.
    """
    x = torch.as_tensor(drive)
    batch = max(_TRIAL_ROWS, _STATE_BYTES // (8 * cell.width))
    failures = []
    for name in SOLVERS:
        found, steps = [], 0
        for rows in (x[:_TRIAL_ROWS], *torch.split(x, batch)):
            z, record = solve_tensors(cell, rows, name, tolerance)
            if not record.converged:
                failures.append(f"{name}: {record.reason}")
                break
            found.append(z.double().numpy())
            steps = max(steps, record.steps)
        else:
            return np.concatenate(found[1:]), name, steps
    raise NotConverged(
        f"No solver found the fixed points of f ({'; '.join(failures)}). Look at it with "
        "notsodeep.diagnose: it may be a loop of fixed length and no equilibrium."
    )


@torch.no_grad()
def solve_tensors(
    cell: FunctionCell, rows: Tensor, solver: str, tolerance: float
) -> tuple[Tensor, SolveRecord]:
    """Solve z = f(z, x) from zero by a solver of that name; the record says whether it was found.

    The tolerance is no smaller than `least_tolerance`.
    """
    made = SOLVERS[solver](
        tolerance=max(tolerance, least_tolerance(rows.dtype)), max_steps=_MOST_STEPS
    )
    start = torch.zeros(len(rows), cell.width, dtype=rows.dtype)
    return solve(lambda z: cell.tensor_step(z, rows), start, made)


def least_tolerance(dtype: torch.dtype) -> float:
    """Return what f can be solved to at best: in float32, a bit more than half of the digits."""
    return 1e-5 if dtype == torch.float32 else 0.0


def linear_start(
    rows: FloatArray, states: FloatArray, rows_apart: FloatArray, states_apart: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Fit z* by ridge regression on flattened rows."""
    flat, apart = (part.reshape(len(part), -1) for part in (rows, rows_apart))
    return refitted(flat, states, apart, states_apart)

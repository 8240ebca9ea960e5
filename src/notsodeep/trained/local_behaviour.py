"""A cell near its fixed points: local spectral radius, and what a one-step gradient leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from notsodeep.arrays import FloatArray
from notsodeep.networks.equilibrium_solvers import Anderson, solve
from notsodeep.networks.fixed_point_problems import directional_derivative, pullback
from notsodeep.trained.cell import EquilibriumCell

_BURN_IN, _MEASURED = 30, 30  # products of a power iteration
_SOLVE_STEPS = 300  # for an implicit gradient


@torch.no_grad()  # of the weights; torch.func still differentiates in the state
def local_radii(
    cell: EquilibriumCell, z: FloatArray, drive: NDArray[Any], rng: np.random.Generator
) -> FloatArray:
    """Return the spectral radius of ∂f/∂z at each row's state, shape (n,).

    Power iteration with Jacobian-vector products.  The largest eigenvalues may be a complex pair,
    under which the length of a vector oscillates: the radius is the geometric mean of its growth
    over many products.
    """
    state, h = _tensors(z, drive)
    v = torch.as_tensor(rng.standard_normal(z.shape), dtype=h.dtype)
    v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
    total = torch.zeros(len(v), dtype=h.dtype)
    for k in range(_BURN_IN + _MEASURED):
        v = directional_derivative(lambda s: cell.tensor_step(s, h), (state,), (v,))
        length = torch.linalg.vector_norm(v, dim=1)
        if k >= _BURN_IN:
            total += torch.log(length)
        v = v / torch.where(length > 0.0, length, 1.0)[:, None]
    return np.asarray(torch.exp(total / _MEASURED).double().numpy())


@torch.no_grad()
def one_step_gradient(
    cell: EquilibriumCell, z: FloatArray, drive: NDArray[Any], rng: np.random.Generator
) -> tuple[float, float] | None:
    """Compare the gradient through one step of the cell with the implicit one.

    With J = ∂f/∂z and D = ∂f/∂h at the fixed point, a gradient g in z* becomes Dᵀ(I − Jᵀ)⁻¹g in
    the drive h; the one-step, or Jacobian-free, gradient is Dᵀg.  g is that of the largest logit,
    or drawn at random for a cell without read-out.

    Returns
    -------
    tuple of (relative error, cosine), or None
        Medians over the rows; None if the implicit gradient was not found.
    """
    state, h = _tensors(z, drive)
    if cell.readout is None:
        g = torch.as_tensor(rng.standard_normal(z.shape), dtype=h.dtype)
    else:
        logits, pull_logits = pullback(cell.tensor_logits, state)
        chosen = torch.nn.functional.one_hot(logits.argmax(dim=1), logits.shape[1])
        (g,) = pull_logits(chosen.to(logits.dtype))
    _, pull = pullback(lambda s: cell.tensor_step(s, h), state)
    _, pull_drive = pullback(lambda d: cell.tensor_step(state, d), h)
    solver = Anderson(tolerance=1e-5, max_steps=_SOLVE_STEPS, memory=10)
    u, record = solve(lambda u: g + pull(u)[0], g, solver, direction="backward")
    if not record.converged:
        return None
    exact, short = (pull_drive(v)[0].flatten(1) for v in (u, g))
    lengths = torch.linalg.vector_norm(exact, dim=1)
    used = lengths > 0.0  # a row whose units are all dead has no gradient to compare
    if not used.any():
        return None
    exact, short, lengths = exact[used], short[used], lengths[used]
    errors = torch.linalg.vector_norm(exact - short, dim=1) / lengths
    cosines = torch.nn.functional.cosine_similarity(exact, short, dim=1)
    return float(errors.median()), float(cosines.median())


def _tensors(z: FloatArray, drive: NDArray[Any]) -> tuple[Tensor, Tensor]:
    h = torch.as_tensor(np.array(drive))
    return torch.as_tensor(z, dtype=h.dtype), h

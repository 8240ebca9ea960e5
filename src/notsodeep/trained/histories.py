"""What an iteration does to each of many rows, and to states near its fixed points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from notsodeep.arrays import FloatArray
from notsodeep.networks.equilibrium_solvers import Anderson, solve
from notsodeep.networks.fixed_point_problems import directional_derivative, pullback
from notsodeep.trained.cell import EquilibriumCell

BoolArray = NDArray[np.bool_]
RowStep = Callable[[FloatArray, NDArray[np.int64]], FloatArray]
"""Takes states of some rows, and which rows they are, to their next states."""

STAYS = 1e-3
"""Relative residual at and above which a row that no longer falls has no limit."""

_LEAST_FALL = 1e-6  # of log residual over the second half; rounding makes less
_FIT_STEPS = 12  # of the last residuals, for the asymptotic rate


@dataclass(frozen=True, eq=False)
class RowHistories:
    """How the residuals of n rows went.

    The residual of a row is ‖f(z) − z‖ over the largest ‖f(z)‖ that the row has had: what contracts
    to zero falls, and what grows does not.

    Attributes
    ----------
    residuals : ndarray of shape (steps, n)
        NaN once a row has settled or left the finite numbers.
    last : ndarray of shape (n,)
        Each row's last residual; infinite for a row that is no longer finite.
    sizes : ndarray of shape (n,)
        The largest ‖f(z)‖ that each row has had, the unit of its residuals.
    states : ndarray of shape (n, width)
    settled, falling : ndarray of bool, shape (n,)
        Within the tolerance, or below `STAYS` and at rest there (the precision of f); or not, and
        still falling when the budget ended.  A row that is neither is lost.
    """

    residuals: FloatArray
    last: FloatArray
    sizes: FloatArray
    states: FloatArray
    settled: BoolArray
    falling: BoolArray

    @property
    def lost(self) -> BoolArray:
        """Rows that cycle, wander or grow."""
        return ~(self.settled | self.falling)

    @property
    def rates(self) -> FloatArray:
        """Asymptotic ratio of successive residuals of every row, by the last few; NaN if one."""
        found = np.full(self.residuals.shape[1], np.nan)
        for row, column in enumerate(self.residuals.T):
            known = column[np.isfinite(column) & (column > 0.0)]
            # The last residuals of a row that has settled may be rounding errors.
            above = known[known > 10.0 * known.min()] if self.settled[row] and len(known) else known
            tail = (above if len(above) > 1 else known)[-_FIT_STEPS:]
            if len(tail) > 1:
                found[row] = (tail[-1] / tail[0]) ** (1.0 / (len(tail) - 1))
        return found

    @property
    def errors(self) -> FloatArray:
        """Estimated distance to the limit: the last step over 1 − ρ, ρ being the rate."""
        rate = np.clip(np.nan_to_num(self.rates, nan=0.5), 0.0, 1.0 - 1e-9)
        finite = np.isfinite(self.last) & np.isfinite(self.sizes)
        step = np.where(finite, self.last, np.inf) * np.where(finite, self.sizes, 1.0)
        return np.asarray(step / (1.0 - rate))

    def medians(self, steps: int) -> FloatArray:
        """Return the median residual of every step; a row that has settled keeps its last one."""
        filled = np.where(np.isfinite(self.residuals), self.residuals, self.last)
        curve = np.median(filled, axis=1)
        return np.concatenate([curve, np.full(steps - len(curve), curve[-1])])

    def steps_within(self, tolerance: float, share: float) -> int | None:
        """Return the first step from which on a share of the rows stays within a tolerance."""
        filled = np.where(np.isfinite(self.residuals), self.residuals, self.last)
        within = (filled <= tolerance).mean(axis=1) >= share
        if not within[-1]:
            return None
        outside = np.flatnonzero(~within)
        return int(outside[-1]) + 2 if len(outside) else 1


def follow(
    step: RowStep,
    start: FloatArray,
    *,
    max_steps: int,
    tolerance: float,
    stop: float | None = None,
    after_step: Callable[[], bool] = lambda: False,
) -> RowHistories:
    """Iterate z ← f(z) from `start`, each row until it settles, is not finite, or time is up.

    Parameters
    ----------
    step : callable
        ``step(states, rows)``.
    start : ndarray of shape (n, width)
    max_steps : int
    tolerance : float
        Of the residual; see `RowHistories`.
    stop : float, optional
        Residual at which a row is left alone, at most `tolerance`, which it is without.
    after_step : callable
        Called after every step; ends the iteration by returning True.

    Examples
    --------
    >>> found = follow(lambda z, rows: np.cos(z), np.zeros((1, 1)), max_steps=99, tolerance=1e-9)
    >>> bool(found.settled[0]), found.states.round(6), round(float(found.rates[0]), 3)
    (True, array([[0.739085]]), 0.674)
    """
    z = np.array(start, dtype=np.float64)
    stop = tolerance if stop is None else stop
    count = len(z)
    residuals = np.full((max_steps, count), np.nan)
    last, size = np.zeros(count), np.zeros(count)
    active = np.arange(count)
    with np.errstate(all="ignore"):  # what grows is allowed to, and reported
        for k in range(max_steps):
            image = step(z[active], active)
            length = np.linalg.norm(image, axis=1)
            change = np.linalg.norm(image - z[active], axis=1)
            # Relative to the largest state so far: one that decays to zero settles too.
            size[active] = np.maximum(size[active], length)
            r = np.where(change == 0.0, 0.0, change / size[active])
            r[~np.isfinite(length) | ~np.isfinite(r)] = np.inf
            z[active], last[active] = image, r
            residuals[k, active] = np.where(np.isfinite(r), r, np.nan)
            active = active[(r > stop) & np.isfinite(r)]
            if after_step() or not len(active):
                residuals = residuals[: k + 1]
                break
    falling = np.zeros(count, dtype=bool)
    if len(active):
        falling[active] = _falls(residuals[len(residuals) // 2 :, active])
    settled = (last <= tolerance) | ((last < STAYS) & ~falling)
    return RowHistories(residuals, last, size, z, settled, falling & ~settled)


def _falls(residuals: FloatArray) -> BoolArray:
    """Say which columns fall: the slope of log r over steps is negative, its 95 % interval too.

    The noise of a chaotic iteration is correlated from step to step; the interval counts as many
    independent points as an autoregression of order one has.
    """
    y = np.log(np.maximum(residuals, np.finfo(float).tiny))
    count = len(y)
    if count < 4:
        return np.zeros(y.shape[1], dtype=bool)
    x = np.arange(count) - (count - 1) / 2.0
    slope = x @ y / (x @ x)
    rest = y - y.mean(axis=0) - x[:, None] * slope
    variance = (rest**2).sum(axis=0) / (count - 2)
    power = (rest**2).sum(axis=0)
    lag = (rest[1:] * rest[:-1]).sum(axis=0) / np.where(power > 0.0, power, 1.0)
    independent = np.clip(count * (1.0 - lag) / (1.0 + lag), 2.0, count)
    deviation = np.sqrt(variance * count / independent / (x @ x))
    return np.asarray((slope + 1.96 * deviation) * count < -_LEAST_FALL)


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

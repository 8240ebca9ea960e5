"""Least squares on the four coefficients, for families without a closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import least_squares

from notsodeep.activations import Moments
from notsodeep.checks import FloatArray
from notsodeep.equivalents import Coefficients
from notsodeep.errors import NotSoDeepError
from notsodeep.matching.family import MixtureTask, Solution
from notsodeep.models import ExplicitNetwork

MET = 1e-9
"""A coefficient is met if its difference, in units of the target's diagonal, is at most this."""

NAMES = ("linear", "norm_fluctuation", "covariance_overlap", "scale2")
_ALL = (0, 1, 2, 3)
_IMPOSSIBLE = 1e3  # stands for the mismatch of parameters that give no network


def fit_coefficients(
    task: MixtureTask,
    build: Callable[[FloatArray, float], ExplicitNetwork],
    starts: Iterable[FloatArray],
    *,
    moments: Callable[[FloatArray, float], Iterable[Moments]] | None = None,
    promised: tuple[int, ...] = _ALL,
    nearest: bool = False,
) -> Solution:
    """Fit parameters to the coefficients named by `promised`, from several starts.

    Parameters
    ----------
    task : MixtureTask
    build : callable
        (parameters, tau0) ↦ network.
    starts : iterable of ndarray
        The best end of all starts is taken; ties go to the earlier one.
    moments : callable, optional
        (parameters, tau0) ↦ moments of the layers in closed form, which make the search quick.  The
        end is judged by the network itself.
    promised : tuple of int
        Which of (linear, norm_fluctuation, covariance_overlap, scale2) to meet.
    nearest : bool
        There are more parameters than equations: move as little as possible from the start.
    """
    chosen = list(promised)

    impossible = np.full(len(chosen), _IMPOSSIBLE)

    def reached(x: FloatArray) -> Coefficients:
        if moments is None:
            return task.achieved(build(x, task.tau0))
        return task.achieved_by(moments(x, task.tau0))

    def mismatch(x: FloatArray) -> FloatArray:
        try:
            with np.errstate(all="ignore"):
                result = task.mismatch(reached(x))[chosen]
        except (NotSoDeepError, ArithmeticError):
            return impossible
        return result if np.isfinite(result).all() else impossible

    best: tuple[float, FloatArray] | None = None
    for start in starts:
        x = _nearest_root(mismatch, start) if nearest else _least_squares(mismatch, start)
        size = float(np.abs(mismatch(x)).max())
        if best is None or size < 0.5 * best[0] - 1e-13:
            best = (size, x)
        if size <= 1e-12:
            break
    if best is None or best[0] >= _IMPOSSIBLE:
        return Solution(None, False, "no parameters give a network with finite moments")
    return described(task, build(best[1], task.tau0), best[1], promised)


def described(
    task: MixtureTask, network: ExplicitNetwork, parameters: FloatArray, promised: tuple[int, ...]
) -> Solution:
    """Say which of the promised coefficients are met, and by how much the others are missed."""
    reached = task.achieved(network)
    mismatch = task.mismatch(reached)
    names = ", ".join(NAMES[k] for k in promised)
    missed = [k for k in promised if not abs(mismatch[k]) <= MET]
    if not missed:
        return Solution(parameters, True, f"meets {names}")
    shortfalls = ", ".join(
        f"{NAMES[k]} is {reached.four[k]:.6g} and should be {task.target.four[k]:.6g}"
        for k in missed
    )
    return Solution(parameters, False, f"cannot meet {names} together: at best {shortfalls}")


def _least_squares(mismatch: Callable[[FloatArray], FloatArray], start: FloatArray) -> FloatArray:
    result = least_squares(mismatch, start, xtol=1e-12, ftol=1e-14, gtol=1e-14, max_nfev=60)
    return np.asarray(result.x, dtype=np.float64)


def _nearest_root(mismatch: Callable[[FloatArray], FloatArray], start: FloatArray) -> FloatArray:
    """Damped Gauss–Newton with minimum-norm steps, for fewer equations than parameters."""
    x = np.array(start, dtype=np.float64)
    value = mismatch(x)
    for _ in range(40):
        if np.abs(value).max() <= 1e-14:
            break
        step = np.linalg.pinv(_jacobian(mismatch, x), rcond=1e-8) @ value
        for damping in 0.5 ** np.arange(7):
            trial = mismatch(x - damping * step)
            if np.abs(trial).max() < np.abs(value).max():
                x, value = x - damping * step, trial
                break
        else:
            break
    return x


def _jacobian(mismatch: Callable[[FloatArray], FloatArray], x: FloatArray) -> FloatArray:
    columns = []
    for k, entry in enumerate(x):
        h = 1e-5 * max(1.0, abs(entry))
        forward, backward = x.copy(), x.copy()
        forward[k] += h
        backward[k] -= h
        columns.append((mismatch(forward) - mismatch(backward)) / (2.0 * h))
    return np.stack(columns, axis=1)

"""Least squares on the coefficients, for families without a closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import least_squares

from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Expansion
from notsodeep.errors import NotSoDeepError
from notsodeep.matching.family import Infeasible
from notsodeep.matching.problem import Four, Problem

_ALL = (0, 1, 2, 3)
_IMPOSSIBLE = 1e3  # stands for the mismatch of parameters that give no network


def fit_coefficients(
    problem: Problem,
    reached: Callable[[FloatArray], Four | Expansion],
    starts: Iterable[FloatArray],
    *,
    promised: tuple[int, ...] = _ALL,
    nearest: bool = False,
    slopes: Callable[[FloatArray], FloatArray] | None = None,
) -> FloatArray:
    """Fit parameters to the coefficients named by `promised`, from several starts.

    Parameters
    ----------
    problem : Problem
    reached : callable
        Parameters ↦ the coefficients that they reach: of the network itself, or from moments in
        closed form, which make the search quick.
    starts : iterable of ndarray
        The best end of all starts is taken; ties go to the earlier one.
    promised : tuple of int
        Which of (linear, norm_fluctuation, covariance_overlap, scale2) to meet, or of the eight of
        `Expansion`.
    nearest : bool
        There are more parameters than equations: move as little as possible from the start.
    slopes : callable, optional
        Parameters ↦ derivatives of the mismatch of all coefficients, (coefficients, parameters),
        for `nearest`.  Differences if left out.

    Raises
    ------
    Infeasible
        No start leads to parameters that give a network.
    """
    chosen = list(promised)
    impossible = np.full(len(chosen), _IMPOSSIBLE)

    def mismatch(x: FloatArray) -> FloatArray:
        try:
            with np.errstate(all="ignore"):
                result = problem.mismatch(reached(x))[chosen]
        except (NotSoDeepError, ArithmeticError):
            return impossible
        return result if np.isfinite(result).all() else impossible

    def jacobian(x: FloatArray) -> FloatArray:
        return _differences(mismatch, x) if slopes is None else slopes(x)[chosen]

    best: tuple[float, FloatArray] | None = None
    for start in starts:
        x = _nearest_root(mismatch, jacobian, start) if nearest else _least_squares(mismatch, start)
        size = float(np.abs(mismatch(x)).max())
        # A later start has to halve the mismatch: callers give the preferred shape first.
        if best is None or size < 0.5 * best[0] - 1e-13:
            best = (size, x)
        if size <= 1e-12:
            break
    if best is None or best[0] >= _IMPOSSIBLE:
        raise Infeasible("no parameters give a network with finite moments")
    return best[1]


def _least_squares(mismatch: Callable[[FloatArray], FloatArray], start: FloatArray) -> FloatArray:
    result = least_squares(mismatch, start, xtol=1e-12, ftol=1e-14, gtol=1e-14, max_nfev=60)
    return np.asarray(result.x, dtype=np.float64)


def _nearest_root(
    mismatch: Callable[[FloatArray], FloatArray],
    jacobian: Callable[[FloatArray], FloatArray],
    start: FloatArray,
) -> FloatArray:
    """Damped Gauss–Newton with minimum-norm steps, for fewer equations than parameters."""
    x = np.array(start, dtype=np.float64)
    value = mismatch(x)
    for _ in range(40):
        if np.abs(value).max() <= 1e-14:
            break
        # Singular values near 1e-10, the error of differences, are not to be divided by.
        step = np.linalg.pinv(jacobian(x), rcond=1e-8) @ value
        # In the largest residual, the measure by which a match is judged; not in the sum of
        # squares.
        for damping in 0.5 ** np.arange(7):
            trial = mismatch(x - damping * step)
            if np.abs(trial).max() < np.abs(value).max():
                x, value = x - damping * step, trial
                break
        else:
            break
    return x


def _differences(mismatch: Callable[[FloatArray], FloatArray], x: FloatArray) -> FloatArray:
    columns = []
    for k, entry in enumerate(x):
        # Near eps^{1/3}, where the error of central differences, h², meets that of rounding, eps/h.
        h = 1e-5 * max(1.0, abs(entry))
        forward, backward = x.copy(), x.copy()
        forward[k] += h
        backward[k] -= h
        columns.append((mismatch(forward) - mismatch(backward)) / (2.0 * h))
    return np.stack(columns, axis=1)

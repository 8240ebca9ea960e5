"""Fixed points x = f(x) of scalar maps, many at a time, with a record as the answer.

One loop and one stopping rule: it ends when |error| ≤ atol + rtol·|x| for every component, where
the error is the step about to be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.records import Record

# Slopes from which on plain steps are taken.  The secant slope carries an error of about (rounding
# of f)/(last move), so 1 − s must stay well above it: 1e-4 leaves room for it down to moves of
# 1e-12 x.
_MAX_SECANT_SLOPE = 0.9999


@dataclass(frozen=True, repr=False)
class FixedPoint(Record):
    """Outcome of a fixed-point solve."""

    value: FloatArray  # the last iterate, in the shape of the start
    converged: bool
    residual: float  # largest |f(x) − x| at `value`
    steps: int  # evaluations of f
    reason: str  # why the iteration ended, as a sentence


def solve_fixed_point(
    function: Callable[[FloatArray], FloatArray],
    start: ArrayLike,
    *,
    rtol: float = 1e-14,
    atol: float = 1e-300,
    max_steps: int = 500,
    name: str = "the fixed point",
    remedy: str = "",
) -> FixedPoint:
    """Solve x = f(x) component by component; raise `NotConverged` where that fails.

    Each component takes secant steps on f(x) − x while the secant slope s of f is below one, which
    makes the step (f(x) − x)/(1 − s), and plain steps x ← f(x) otherwise.  From a start below the
    smallest fixed point of an increasing map both lead to that fixed point.

    Parameters
    ----------
    function : callable
        Vectorised; component i of the result depends on component i of the argument alone.
    start : array_like
    rtol, atol : float
        The step of every component must be within ``atol + rtol·|x|``.
    max_steps : int
        Most evaluations of `function`.
    name, remedy : str
        What the message calls the solution, and what it advises.

    Examples
    --------
    >>> solution = solve_fixed_point(np.cos, 1.0)
    >>> float(solution.value), solution.converged
    (0.7390851332151607, True)
    """
    x = np.array(start, dtype=np.float64)
    previous: tuple[FloatArray, FloatArray] | None = None
    reason = f"no convergence in {max_steps} steps"
    residual = np.inf
    for steps in range(1, max_steps + 1):
        with np.errstate(over="ignore", invalid="ignore"):
            image = np.asarray(function(x), dtype=np.float64)
        if not np.isfinite(image).all():
            reason = "the iterates grow without bound: there may be no fixed point"
            break
        gap = image - x
        residual = float(np.abs(gap).max(initial=0.0))
        step = gap
        if previous is not None:
            move, change = x - previous[0], image - previous[1]
            slope = np.divide(change, move, out=np.zeros_like(x), where=move != 0.0)
            # Near slope one the secant step is a quotient of two rounding errors: a map that
            # contracts by less than 1e-4 a step takes plain steps.
            secant = gap / (1.0 - np.minimum(slope, _MAX_SECANT_SLOPE))
            step = np.where(slope < _MAX_SECANT_SLOPE, secant, gap)
        # The test is on the step to be taken, not on the gap: with slope s it is larger by 1/(1 −
        # s), and estimates the error of x itself.
        if (np.abs(step) <= atol + rtol * np.abs(x)).all():
            return FixedPoint(x + step, True, residual, steps, "converged")
        previous, x = (x, image), x + step
    raise NotConverged(
        f"{name} was not found: {reason} (residual {residual:.3g} after {steps} steps). "
        f"The map may have no fixed point or contract too slowly. {remedy}".rstrip(),
        FixedPoint(x, False, residual, steps, reason),
    )

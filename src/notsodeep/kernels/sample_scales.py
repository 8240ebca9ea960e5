"""What each sample brings to every pair: the scale of its pre-activations, and what φ is there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation
from notsodeep.activations.gaussian_pairs import LEAST_SCALE
from notsodeep.errors import NotConverged, NotIntegrable
from notsodeep.models import DeepEquilibrium
from notsodeep.numerics.fixed_point import solve_fixed_point
from notsodeep.numerics.hermite import LEAST_SQUARE
from notsodeep.numerics.scale_table import ScaleFunction, at_many_scales, tabulated

FloatArray = NDArray[np.float64]

_ORDINARY = 1e-8  # scales below this share of the largest are treated one by one
_MARGIN = 1e-8  # rounding errors are multiplied by 1/(1 − gain): eight digits are left
_FEW = 48  # different norms up to which nothing is tabulated


def equilibrium_scales(deq: DeepEquilibrium, squared_norms: FloatArray) -> FloatArray:
    """Solve q = σa² E φ²(√q ξ) + σb² ‖x‖² for every sample; return √q, shape (n,).

    Raises
    ------
    NotConverged
        There is no solution for some norm; the message names the largest one tried.
    """
    sigma_a2, activation = deq.sigma_a2, deq.activation
    drive = deq.sigma_b2 * squared_norms
    if activation.homogeneous:
        gain = sigma_a2 * float(activation.moments(1.0).square)
        if gain >= 1.0 - _MARGIN:
            raise NotConverged(
                f"The {activation} DEQ with sigma_a2 = {sigma_a2:.12g} has no finite variance, or "
                f"one that rounding errors decide: σa² E φ²(ξ) = {gain:.12g} must be below 1 by "
                f"{_MARGIN:.0e}. Use a smaller sigma_a2."
            )
        return np.maximum(np.sqrt(drive / (1.0 - gain)), LEAST_SCALE)
    different, place = np.unique(drive, return_inverse=True)
    if different.size == 1:
        return np.full(len(drive), _single_scale(deq, float(different[0])))
    if different.size <= _FEW:
        return _solve_scales(deq, different)[place]
    # Tiny or zero rows apart, the scales are between those of the smallest and the largest norm.
    ordinary = different >= _ORDINARY**2 * different[-1]
    low, high = _solve_scales(deq, different[ordinary][[0, -1]])
    table = tabulated(
        lambda tau: activation.log_growth(_squares(activation, tau), tau)[:, None],
        0.999 * low,
        1.001 * high,
        int(ordinary.sum()),
    )
    scales = np.empty_like(different)
    scales[ordinary] = _solve_scales(
        deq,
        different[ordinary],
        lambda tau: activation.from_log_growth(table(tau)[:, 0], tau),
    )
    if not ordinary.all():
        scales[~ordinary] = _solve_scales(deq, different[~ordinary])
    return scales[place]


def _squares(activation: Activation, scales: FloatArray) -> FloatArray:
    try:
        return np.asarray(activation.moments(scales).square)
    except NotIntegrable:  # the iterates have run away
        return np.full_like(scales, np.inf)


def _solve_scales(
    deq: DeepEquilibrium, drive: FloatArray, squares: ScaleFunction | None = None
) -> FloatArray:
    """Solve q = σa² E φ²(√q ξ) + drive; `squares` may stand in for τ ↦ E φ²(τξ)."""
    evaluate = squares or partial(_squares, deq.activation)
    solution = solve_fixed_point(
        lambda q: deq.sigma_a2 * evaluate(np.sqrt(np.maximum(q, LEAST_SCALE**2))) + drive,
        drive,
        name=f"the variance q of the {deq}",
    )
    return np.maximum(np.sqrt(solution.value), LEAST_SCALE)


@lru_cache(maxsize=64)
def _single_scale(deq: DeepEquilibrium, drive: float) -> float:
    return float(_solve_scales(deq, np.array([drive]))[0])


@dataclass(frozen=True)
class SampleColumns:
    """What an activation is at the scale of each of n samples.

    Attributes
    ----------
    scales, mean, square, slope_square : ndarray of shape (n,)
        τ, E φ(τξ), E φ²(τξ), E φ′(τξ)².
    """

    scales: FloatArray
    mean: FloatArray
    square: FloatArray
    slope_square: FloatArray

    def take(self, rows: slice | NDArray[Any]) -> SampleColumns:
        """Return the columns of some of the samples."""
        columns = (self.scales, self.mean, self.square, self.slope_square)
        return SampleColumns(*(column[rows] for column in columns))


def sample_columns(activation: Activation, scales: FloatArray) -> SampleColumns:
    """Work out the moments of φ at every sample's scale."""

    def sample(tau: FloatArray) -> FloatArray:
        moments = activation.moments(tau)
        root = np.sqrt(np.maximum(moments.square, LEAST_SQUARE))
        growth = activation.log_growth(moments.square, tau)
        steepness = np.log(np.maximum(moments.slope_square, LEAST_SQUARE))
        return np.column_stack([moments.mean / root, growth, steepness])

    relative_mean, growth, steepness = at_many_scales(sample, scales).T
    square = activation.from_log_growth(growth, scales)
    return SampleColumns(scales, relative_mean * np.sqrt(square), square, np.exp(steepness))

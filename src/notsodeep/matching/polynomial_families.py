"""Families of polynomial networks: quadratic and cubic."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from notsodeep.activations import Moments, hermite
from notsodeep.activations.polynomial import moments_of_series
from notsodeep.checks import FloatArray
from notsodeep.matching.coefficient_fit import described, fit_coefficients
from notsodeep.matching.family import Family, MixtureTask, Solution
from notsodeep.models import ExplicitNetwork


def _layers(table: FloatArray, tau0: float) -> ExplicitNetwork:
    """Layers Σ_k c_k h_k(x/τ), k ≥ 1, from rows (c_1, c_2, …); τ² is Σ c_k² of the layer before."""
    layers, scale = [], tau0
    for row in table:
        layers.append(hermite((0.0, *map(float, row)), scale))
        scale = math.sqrt(float(row @ row))
    return ExplicitNetwork(layers).centred(tau0)


def _moments(table: FloatArray, tau0: float) -> Iterator[Moments]:
    """Moments of the layers that `_layers` makes, each at its own scale."""
    scale = tau0
    for row in table:
        # Of c_0 there is nothing, and two zeros end the series.
        series = np.concatenate([[0.0], row, [0.0, 0.0]])
        yield Moments(scale, *moments_of_series(series[None], np.array([scale]))[:, 0].tolist())
        scale = math.sqrt(float(row @ row))


def _quadratic_table(x: FloatArray, tau0: float) -> FloatArray:
    """Rows (c_1, c_2) of the layers a_l(x² − τ²) + b_l x, from (a_1, b_1, a_2, b_2)."""
    table, scale = [], tau0
    for a, b in x.reshape(-1, 2):
        table.append([scale * b, math.sqrt(2.0) * scale**2 * a])
        scale = math.hypot(*table[-1])
    return np.array(table)


def _build_quadratic(x: FloatArray, tau0: float) -> ExplicitNetwork:
    return _layers(_quadratic_table(x, tau0), tau0)


def _solve_quadratic(task: MixtureTask) -> Solution:
    """Least squares: rescaling layer 1 against layer 2 leaves three unknowns for four targets."""
    if task.target.covariance_overlap <= 1e-14 * task.target.scale2:
        return Solution(
            None,
            False,
            "covariance_overlap is 0 for an odd φ, which forces a quadratic network to be linear, "
            f"with scale2 = τ0²·linear = {task.tau0**2 * task.target.linear:.6g}; it should be "
            f"{task.target.scale2:.6g}",
        )
    gain = max(task.target.linear, 1e-6) ** 0.25

    def table(x: FloatArray, tau0: float) -> FloatArray:
        # Layer 1 has b_1 = 1: the free scale.
        return _quadratic_table(np.array([x[0], 1.0, x[1], x[2]]), tau0)

    starts = [np.array([s, t, gain**2]) for s, t in ((0.1, 0.1), (0.3, 0.2), (-0.2, 0.2))]
    found = fit_coefficients(
        task,
        lambda x, tau0: _layers(table(x, tau0), tau0),
        starts,
        moments=lambda x, tau0: _moments(table(x, tau0), tau0),
    )
    if found.parameters is None:
        return found
    a1, a2, b2 = found.parameters
    return Solution(np.array([a1, 1.0, a2, b2]), found.feasible, found.reason)


def _build_cubic(x: FloatArray, tau0: float) -> ExplicitNetwork:
    return _layers(x.reshape(-1, 3), tau0)


def _solve_cubic(task: MixtureTask) -> Solution:
    """One layer: c1, c2, c3 from A1, A3 and T2.

    CK: c1² = τ0²A1, c2² = τ0⁴A3, c3² = T2 − c1² − c2².
    NTK: c1² = τ0²A1/2, c2² = τ0⁴A3/3, c3² = (T2 − 2c1² − 3c2²)/4.
    """
    linear, _, overlap, scale2 = task.target.four
    tangent = task.kernel == "tangent"
    first, second, third = (2.0, 3.0, 4.0) if tangent else (1.0, 1.0, 1.0)
    c1, c2 = task.tau0**2 * linear / first, task.tau0**4 * overlap / second
    rest = (scale2 - first * c1 - second * c2) / third
    if rest < -1e-12 * scale2:
        sign = "2c1² − 3c2²" if tangent else "c1² − c2²"
        reason = f"c3² = scale2 − {sign} would be {third * rest:.6g} and must not be negative"
        return Solution(None, False, reason)
    x = np.sqrt(np.array([c1, c2, max(rest, 0.0)]))
    return described(task, _build_cubic(x, task.tau0), x, (0, 2, 3))


def _solve_two_cubic(task: MixtureTask) -> Solution:
    """Two layers meet all four coefficients: five free numbers, the solution nearest the start.

    Layer 1 has unit output, which removes the free scale between the layers.
    """

    def split(x: FloatArray) -> FloatArray:
        inner = np.array([1.0, x[0], x[1]])
        return np.concatenate([inner / np.linalg.norm(inner), x[2:]])

    def table(x: FloatArray) -> FloatArray:
        return split(x).reshape(-1, 3)

    one = _solve_cubic(task).parameters
    size = math.sqrt(task.target.scale2)
    outer = one if one is not None else np.array([0.8 * size, 0.2 * size, 0.3 * size])
    starts = [
        np.array([s, t, *outer * np.array([1.0, u, 1.0])])
        for s, t, u in ((0.1, 0.0, 1.0), (0.3, 0.2, 0.5), (0.1, 0.2, 1.0), (-0.1, 0.0, 1.0))
    ]
    found = fit_coefficients(
        task,
        lambda x, tau0: _layers(table(x), tau0),
        starts,
        moments=lambda x, tau0: _moments(table(x), tau0),
        nearest=True,
    )
    parameters = None if found.parameters is None else split(found.parameters)
    return Solution(parameters, found.feasible, found.reason)


QUADRATIC = Family("quadratic", ("a1", "b1", "a2", "b2"), _build_quadratic, _solve_quadratic, False)
CUBIC = Family("cubic", ("c1", "c2", "c3"), _build_cubic, _solve_cubic, False)
TWO_CUBIC = Family(
    "cubic", ("c11", "c12", "c13", "c21", "c22", "c23"), _build_cubic, _solve_two_cubic, False
)

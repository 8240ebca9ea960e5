"""The exact dual: a one-hidden-layer network with the DEQ's own kernel on unit-norm data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from notsodeep.activations import Polynomial, hermite
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.expansion import power_series
from notsodeep.matching.family import Family, Problem
from notsodeep.matching.record import KernelSeries, Match
from notsodeep.models import ExplicitNetwork, KernelName
from notsodeep.numerics.quadrature import hermite_polynomials

_MAX_DEGREE = 32
_REMAINDER = 1e-10  # share of the diagonal that may be left to the last coefficient
_SIGNED = 10  # leading signs that are tried in all combinations


@dataclass(frozen=True, eq=False)
class _Dual(Family):
    """σ = Σ ±c_k h_k with c_k² = g_k (CK) or g_k/(k + 1) (NTK), of one layer.

    g_k are the Taylor coefficients of the kernel in t = x·y (Simon, Anand, DeWeese, arXiv
    2106.03186), as many as needed, at most 33: not four coefficients, all of the kernel.
    """

    def applies(self, problem: Problem) -> bool:
        """To unit-norm data."""
        return problem.unit or problem.tau0 is None

    def answer(self, problem: Problem) -> Match:
        """Cut the power series of the kernel, and take roots of its coefficients."""
        model, kind = problem.model, problem.kind
        whole = KernelSeries(*power_series(model, _MAX_DEGREE, kind, problem.convention))
        series = _short_enough(whole)
        size = len(series.coefficients)
        natural = model.cell[-1].activation.hermite_coefficients(np.ones(1), size)[0]
        activation = dual_activation(series, kind, natural)
        worst = f"an entry is off by at most {series.error_bound(1.0):.2g}"
        if problem.rows is not None:
            cosine = _largest_cosine(problem.rows)
            bound = series.error_bound(cosine)
            among = f"{len(problem.rows)} rows of the data"
            worst += f", {bound:.2g} for |x·y| ≤ {cosine:.3g} as among {among}"
        return problem.answer(
            self.name,
            f"the same power series up to degree {size - 1}: {worst}",
            fitted=ExplicitNetwork([activation]),
            parameters={f"c{k}": c for k, c in enumerate(activation.coefficients)},
            target=whole,
            achieved=series,
            residuals={"remainder": series.remainder},
            feasible=True,
            tau0=1.0,
        )

    def refined(self, problem: Problem, found: Match) -> Match:
        """There is nothing to refine."""
        return found


DUAL = _Dual("dual", (), lambda x, problem: [], starts=())


def _short_enough(series: KernelSeries) -> KernelSeries:
    """Cut at the smallest degree with a negligible remainder, if there is one."""
    tails = series.scale2 - np.cumsum(series.coefficients)
    enough = np.flatnonzero(tails <= _REMAINDER * series.scale2)
    degree = int(enough[0]) if enough.size else len(series.coefficients) - 1
    return KernelSeries(series.coefficients[: max(degree, 1) + 1], series.scale2)


def _largest_cosine(rows: FloatArray) -> float:
    cosines = np.abs(rows @ rows.T)
    np.fill_diagonal(cosines, 0.0)
    return float(min(cosines.max(), 1.0))


def dual_activation(series: KernelSeries, kind: KernelName, natural: FloatArray) -> Polynomial:
    """Build σ, whose network has this kernel; `natural` are the DEQ's own Hermite coefficients.

    What is beyond the degree goes into the last coefficient, so that the diagonal is exact.  Signs
    are free: they are chosen to keep |σ(x)|, weighted by the Gaussian density, small where inputs
    fall.
    """
    squares = series.coefficients.copy()
    squares[-1] += series.remainder
    if kind == "ntk":
        squares /= np.arange(1, len(squares) + 1)
    magnitudes = np.sqrt(squares)
    signs = _tame_signs(magnitudes, natural[: len(magnitudes)])
    return hermite(tuple(float(c) for c in signs * magnitudes))


def _tame_signs(magnitudes: FloatArray, natural: FloatArray) -> FloatArray:
    """Signs that make sup |σ(x)|e^{−x²/4} over |x| ≤ 5 small.

    All combinations of the leading signs are tried, the others are chosen one by one.
    """
    # A Gaussian is beyond 5 with a probability of 6e-7.
    x = np.linspace(-5.0, 5.0, 201)
    # No term is above its magnitude, since e^{x²/4} bounds |h_k(x)| for every k.
    table = hermite_polynomials(x, len(magnitudes)) * np.exp(-0.25 * x**2)
    terms = magnitudes[:, None] * table
    used = np.flatnonzero(magnitudes > 1e-12 * magnitudes.max())
    lead, rest = used[:_SIGNED], used[_SIGNED:]
    candidates = np.array(list(itertools.product((1.0, -1.0), repeat=max(len(lead) - 1, 0))))
    # The first sign is free: −σ has the kernel of σ.  2⁹ combinations are left to try.
    candidates = np.column_stack([np.ones(len(candidates)), candidates])
    own = np.where(natural[lead] < 0.0, -1.0, 1.0)
    candidates = np.concatenate([own[None], candidates])
    heights = np.abs(candidates @ terms[lead]).max(axis=1)
    signs = np.ones(len(magnitudes))
    # The DEQ's own signs, unless others are clearly tamer.
    best = int(heights.argmin())
    signs[lead] = candidates[best if heights[best] < 0.95 * heights[0] else 0]
    total = signs[lead] @ terms[lead]
    for k in rest:
        if np.abs(total - terms[k]).max() < np.abs(total + terms[k]).max():
            signs[k] = -1.0
        total = total + signs[k] * terms[k]
    return signs

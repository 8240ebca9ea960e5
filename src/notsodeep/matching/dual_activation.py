"""The exact dual: a one-hidden-layer network with the DEQ's own kernel on unit-norm data."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from notsodeep.activations import hermite
from notsodeep.activations.polynomial import HermiteSeries
from notsodeep.checks import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.models import Convention, DeepEquilibrium, KernelName
from notsodeep.numerics.hermite import hermite_polynomials

_RADIUS = 0.9
_NODES = 512
_TERMS = 320
_DEGREE = 32  # of a dual activation, unless another one is asked for
_REMAINDER = 1e-10  # share of the diagonal that may be left to the last coefficient
_SIGNED = 10  # leading signs that are tried in all combinations


@dataclass(frozen=True, eq=False)
class KernelSeries:
    """A kernel on the unit sphere as a power series Σ_k g_k tᵏ in t = x·y, g_k ≥ 0.

    Attributes
    ----------
    coefficients : ndarray of shape (degree + 1,)
        g_0 … g_degree.
    total : float
        g(1), the kernel's diagonal.
    """

    coefficients: FloatArray
    total: float

    @property
    def remainder(self) -> float:
        """Σ_{k > degree} g_k: the share of the diagonal in higher powers."""
        return max(0.0, self.total - float(self.coefficients.sum()))

    @property
    def size(self) -> float:
        """The unit in which residuals are judged: the kernel's diagonal."""
        return self.total

    def cut(self, degree: int) -> KernelSeries:
        """Keep powers up to `degree`."""
        return KernelSeries(self.coefficients[: degree + 1], self.total)

    def error_bound(self, cosine: float) -> float:
        """Bound the error of an entry with |t| ≤ cosine, the rest being carried by the last term.

        |Σ_{k>K} g_k (t^K − t^k)| ≤ 2·remainder·|t|^K, and ≤ remainder·t^K for t ≥ 0.
        """
        return 2.0 * self.remainder * abs(cosine) ** (len(self.coefficients) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {
            "taylor": [float(g) for g in self.coefficients],
            "total": self.total,
            "remainder": self.remainder,
        }

    def __str__(self) -> str:
        return (
            f"power series of degree {len(self.coefficients) - 1}, diagonal {self.total:.6g}, "
            f"remainder {self.remainder:.3g}"
        )


def kernel_series(
    deq: DeepEquilibrium, *, kernel: KernelName, convention: Convention, degree: int
) -> KernelSeries:
    """Compute the power series of a DEQ's kernel on the unit sphere.

    g solves g = σa² f(g) + σb² t with f(G) = Σ a_k² (G/q)ᵏ; the NTK is g/(1 − σa² f′(g)).  The
    fixed point is found for complex t on a circle of radius 0.9 by Newton's method, and one FFT
    gives the coefficients.

    Raises
    ------
    NotConverged
        There is no fixed point on the circle, or the tangent kernel is infinite.
    """
    back, forth = deq.sigma_a2, deq.sigma_b2
    variance = deq.preactivation_variance(1.0)
    moments = deq.activation.moments(math.sqrt(variance))
    powers = deq.activation.hermite_coefficients(np.array([math.sqrt(variance)]), _TERMS)[0] ** 2
    slopes = powers[1:] * np.arange(1, _TERMS)

    def dual(G: Any) -> tuple[Any, Any]:
        rho = G / variance
        polyval = np.polynomial.polynomial.polyval
        return polyval(rho, powers), polyval(rho, slopes) / variance

    t = _RADIUS * np.exp(2j * np.pi * np.arange(_NODES) / _NODES)
    G = forth * t
    for _ in range(60):
        value, slope = dual(G)
        step = (G - back * value - forth * t) / (1.0 - back * slope)
        G = G - step
        if np.abs(step).max() <= 1e-15 * variance:
            break
    value, slope = dual(G)
    if not np.abs(G - back * value - forth * t).max() <= 1e-12 * variance:
        raise NotConverged(
            f"The kernel of the {deq} has no power series: no fixed point on |t| = 0.9."
        )
    features, end = value, float(moments.square)
    if kernel == "tangent":
        if not back * moments.slope_square < 1.0:
            raise NotConverged(
                f"The tangent kernel of the {deq} is infinite: σa² E φ′(√q ξ)² = "
                f"{back * moments.slope_square:.4g} must stay below 1. Use a smaller sigma_a2."
            )
        features = value + G * slope / (1.0 - back * slope)
        end += variance * float(moments.slope_square) / (1.0 - back * float(moments.slope_square))
    taylor = (np.fft.fft(features)[: degree + 1] / _NODES).real / _RADIUS ** np.arange(degree + 1)
    # Coefficients are at least zero; what the FFT puts below is rounding.
    taylor = np.maximum(taylor, 0.0)
    if convention == "preactivation":
        taylor, end = back * taylor, back * end + forth
        taylor[1] += forth
    return KernelSeries(taylor, end)


@dataclass(frozen=True)
class Dual(Family):
    """One layer with the DEQ's own kernel on unit-norm data: not four coefficients, all of it.

    σ = Σ ±c_k h_k with c_k² = g_k (CK) or g_k/(k + 1) (NTK), g_k the Taylor coefficients of the
    kernel in t = x·y (Simon, Anand, DeWeese, arXiv 2106.03186).

    Attributes
    ----------
    degree : int, optional
        Of σ; as large as needed, at most 32, if left out.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> m = nsd.match(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), family=Dual(degree=9))
    >>> len(m.parameters), m.residuals["remainder"] < 1e-4
    (10, True)
    """

    degree: int | None = None
    name = "dual"
    lipschitz = False

    def __post_init__(self) -> None:
        if self.degree is not None:
            checks.integer_at_least(self.degree, 1, "degree", "match")

    def for_auto(self, problem: Problem) -> Family | None:
        """Apply to unit-norm data only."""
        return self if problem.unit or problem.tau0 is None else None

    def answer(self, problem: Problem) -> Match:
        """Cut the power series of the kernel, and take roots of its coefficients."""
        most = _DEGREE if self.degree is None else self.degree
        whole = kernel_series(problem.deq, degree=most, **problem.which)
        series = _short_enough(whole) if self.degree is None else whole
        size = len(series.coefficients)
        natural = problem.deq.activation.hermite_coefficients(np.ones(1), size)[0]
        activation = dual_activation(series, problem.kernel, natural)
        worst = f"an entry is off by at most {series.error_bound(1.0):.2g}"
        if problem.rows is not None:
            cosine = _largest_cosine(problem.rows)
            bound = series.error_bound(cosine)
            among = f"{len(problem.rows)} rows of the data"
            worst += f", {bound:.2g} for |x·y| ≤ {cosine:.3g} as among {among}"
        return problem.answer(
            self.name,
            problem.deq,
            1.0,
            whole,
            f"the same power series up to degree {size - 1}: {worst}",
            network=ExplicitNetwork([activation]),
            parameters={f"c{k}": c for k, c in enumerate(activation.coefficients)},
            achieved=series,
            residuals={"remainder": series.remainder},
            feasible=True,
        )


def _short_enough(series: KernelSeries) -> KernelSeries:
    """Cut at the smallest degree with a negligible remainder, if there is one."""
    tails = series.total - np.cumsum(series.coefficients)
    enough = np.flatnonzero(tails <= _REMAINDER * series.total)
    degree = int(enough[0]) if enough.size else len(series.coefficients) - 1
    return series.cut(max(degree, 1))


def _largest_cosine(rows: FloatArray) -> float:
    cosines = np.abs(rows @ rows.T)
    np.fill_diagonal(cosines, 0.0)
    return float(min(cosines.max(), 1.0))


def dual_activation(series: KernelSeries, kernel: KernelName, natural: FloatArray) -> HermiteSeries:
    """Build σ = Σ ±c_k h_k, c_k² = g_k (CK) or g_k/(k + 1) (NTK): its network has this kernel.

    What is beyond the degree goes into the last coefficient, so that the diagonal is exact.  Signs
    are free: they are chosen to keep |σ(x)|, weighted by the Gaussian density, small where inputs
    fall.

    Parameters
    ----------
    series : KernelSeries
    kernel : {"conjugate", "tangent"}
    natural : ndarray
        Signs to begin with: those of the DEQ's own Hermite coefficients.
    """
    squares = series.coefficients.copy()
    squares[-1] += series.remainder
    if kernel == "tangent":
        squares /= np.arange(1, len(squares) + 1)
    magnitudes = np.sqrt(squares)
    signs = _tame_signs(magnitudes, natural[: len(magnitudes)])
    return hermite(tuple(float(c) for c in signs * magnitudes))


def _tame_signs(magnitudes: FloatArray, natural: FloatArray) -> FloatArray:
    """Signs that make sup |σ(x)|e^{−x²/4} over |x| ≤ 5 small.

    All combinations of the leading signs are tried, the others are chosen one by one.
    """
    x = np.linspace(-5.0, 5.0, 201)
    table = hermite_polynomials(x, len(magnitudes)) * np.exp(-0.25 * x**2)
    terms = magnitudes[:, None] * table
    used = np.flatnonzero(magnitudes > 1e-12 * magnitudes.max())
    lead, rest = used[:_SIGNED], used[_SIGNED:]
    candidates = np.array(list(itertools.product((1.0, -1.0), repeat=max(len(lead) - 1, 0))))
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

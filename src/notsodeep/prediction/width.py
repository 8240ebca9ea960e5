"""A read-out on finitely many random features, from the kernel of infinitely many.

Given the data, the Gram matrix of m features with kernel K is K^½ N Σ Nᵀ K^½/m, N Gaussian and Σ
the covariance between neurons.  Those of a hidden layer are independent, Σ = I.  The neurons of a
DEQ are mixed by (I − √q A)⁻¹, A with i.i.d. entries of variance 1/m and q = σa² E[φ′(τ*ξ)]²: Σ =
(1 − q)[(I − √q A)(I − √q A)ᵀ]⁻¹.  The fit is that of the kernel with a larger ridge, and every
score has an additional variance that falls with an effective width; for m ≫ n it is m(1 − q)².
The law of Σ linearises the DEQ about its Gaussian limit: heuristic, and checked by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotConverged
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.prediction.evaluation import Scores
from notsodeep.prediction.problem import Problem
from notsodeep.prediction.resolvent import Ensemble

_ROOT = 1e-10  # of the equation for the effective ridge, relative


def effective_neurons(model: object, width: int, tau0: float = 1.0) -> float:
    """Return m(1 − q)²: how many independent neurons a wide layer of m counts for.

    Of an explicit network it is m itself.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
        Vanilla; a network has one hidden layer.
    width : int
        m, much larger than the number of samples.
    tau0 : float
        √(tr C°/p), the scale of the data.

    Examples
    --------
    >>> round(effective_neurons(DeepEquilibrium("relu", sigma_a2=0.8).centred(1.0), 1000))
    640
    """
    m = checks.positive_integer(width, "width", "effective_neurons")
    return m * (1.0 - recurrence(model, tau0, "effective_neurons")) ** 2


def recurrence(model: object, tau0: float, owner: str) -> float:
    """Return q = σa² E[φ′(τ*ξ)]² of a DEQ, 0 of an explicit network of one hidden layer."""
    if isinstance(model, ExplicitNetwork):
        if model.depth == 1:
            return 0.0
        requirement = "have one hidden layer for a finite width"
        raise checks.invalid("model", owner, requirement, str(model))
    if isinstance(model, DeepEquilibrium):
        tau = math.sqrt(model.preactivation_variance(tau0**2))
        return float(model.sigma_a2 * model.activation.moments(tau).slope ** 2)
    requirement = "be a DeepEquilibrium or an ExplicitNetwork for a finite width"
    raise checks.invalid("model", owner, requirement, type(model).__name__)


def shifted_ginibre(x: FloatArray, q: float) -> tuple[FloatArray, FloatArray]:
    """Return g(−x) = lim (1/m) tr(M + x)⁻¹ and dg/dx, M = (I − √q A)(I − √q A)ᵀ, A Ginibre.

    g solves g/u + g u x = 1, u = 1 + q g.

    Examples
    --------
    >>> g, slope = shifted_ginibre(np.array(0.0), 0.5)
    >>> float(g), float(slope)
    (2.0, -16.0)
    """
    # The root at x = 0, the largest: g falls with x.  At most nine tenths of g go in one step, so
    # that it stays positive.
    g = np.full(np.shape(x), 1.0 / (1.0 - q))
    for _ in range(200):
        u = 1.0 + q * g
        step = (g / u + g * u * x - 1.0) / (1.0 / u**2 + x * (u + q * g))
        g = np.maximum(g - step, 0.1 * g)
        if (np.abs(step) <= 1e-14 * g).all():
            break
    else:
        raise NotConverged(f"The law of the neurons' covariance was not solved for q = {q:g}.")
    u = 1.0 + q * g
    return g, np.asarray(-g * u / (1.0 / u**2 + x * (u + q * g)))


@dataclass(frozen=True, eq=False)
class WidthScores:
    """Scores of ridge regression on m features, for R ridges.

    Attributes
    ----------
    scores : Scores
        Of new samples; parts about training samples are those of the kernel.
    train_mse, effective_ridge, effective_width : ndarray of shape (R,)
    """

    scores: Scores
    train_mse: FloatArray
    effective_ridge: FloatArray
    effective_width: FloatArray


def width_scores(
    ensemble: Ensemble,
    problem: Problem,
    ridges: FloatArray,
    width: int | IntArray,
    q_recurrent: float,
) -> WidthScores:
    """Predict ridge regression on `width` features; one width for all ridges, or one for each.

    The ridge becomes x = λ/ζ(e) with ζ(e) = (1/m) tr Σ(1 + eΣ)⁻¹ and e = df₁(x)/(ζm), where
    df₁(x) = tr K(K + x)⁻¹; a score of class b gains the variance (1/q_b + x q_b′/q_b²) YᵀK(K+x)⁻²Y
    /(m_e − df₂), m_e = m ζ²/(−ζ′).
    """
    counts, shares, n = problem.counts, problem.shares, float(problem.counts.sum())

    def freedom(x: FloatArray) -> FloatArray:
        return np.asarray(n - x * (ensemble.resolvent(-x).q @ counts))

    x, zeta, zeta_slope = _effective_ridge(freedom, ridges, width, q_recurrent)
    effective = width * zeta**2 / -zeta_slope
    resolvent = ensemble.resolvent(-x)
    q, slope = resolvent.q, resolvent.slope()
    fit = resolvent.fitted(problem.given)
    noise = problem.noise_covariance
    V = fit.covariance(noise)
    second = fit.residual[..., :, None] * fit.residual[..., None, :] + V + noise
    # tr K²Q² = tr (I − xQ)², and tr Q² = −d tr Q/dx.
    df2 = n - 2.0 * x * (q @ counts) - x**2 * (slope @ counts)
    # YᵀQY/n, YᵀQ²Y/n and YᵀKQ²Y, Q = (K + x)⁻¹
    once = np.einsum("ra,ak,ral->rkl", shares * q, problem.given, fit.residual)
    once = once + np.einsum("ra,akl->rkl", shares * q, noise)
    twice = np.einsum("ra,rakl->rkl", shares * q**2, second)
    energy = n * (once - x[:, None, None] * twice)
    energy = 0.5 * (energy + np.swapaxes(energy, -1, -2))
    room = effective - df2
    lifted = 1.0 / q + x[:, None] * slope / q**2
    covariance = V + (lifted / room[:, None])[..., None, None] * energy[:, None]
    trace = q @ counts + x * (slope @ counts)  # tr QKQ
    total = np.trace(energy, axis1=-2, axis2=-1) / n
    train = x**2 * (np.trace(twice, axis1=-2, axis2=-1) + trace / room * total)
    means = problem.given - fit.residual
    kept = x[:, None] * q
    spread = np.square(kept)[..., None, None] * V
    scores = Scores(means, covariance, kept, kept[..., None] * means, spread)
    return WidthScores(scores, train, x, effective)


def row_width_scores(
    rows: RowKernel, ridge: float, width: int, q_recurrent: float
) -> tuple[FloatArray, FloatArray, float]:
    """Predict ridge regression on `width` features for given rows, from their exact kernel.

    The law of `width_scores` with sums over the rows for the equivalents: a score of z has the
    variance (k_zz − kᵀ(Q + xQ²)k) YᵀK(K+x)⁻²Y/(m_e − df₂).

    Returns
    -------
    means, covariances : ndarray of shape (N, k) and (N, k, k)
        Of the scores of new rows, over draws of the network.
    effective_width : float
        m_e.
    """
    s, turned, along = rows.eigenvalues, rows.targets, rows.cross

    def freedom(x: FloatArray) -> FloatArray:
        return np.asarray((s / (s + x[:, None])).sum(axis=1))

    solved = _effective_ridge(freedom, np.array([ridge]), width, q_recurrent)
    x, zeta, slope = (float(part[0]) for part in solved)
    effective = width * zeta**2 / -slope
    inverse = 1.0 / (s + x)
    room = effective - float(np.square(s * inverse).sum())
    energy = turned.T @ ((s * inverse**2)[:, None] * turned)
    # A posterior variance, positive but for rounding.
    lifted = rows.diagonal - np.square(along) @ (inverse + x * inverse**2)
    spread = np.multiply.outer(np.maximum(lifted, 0.0) / room, energy)
    return along @ (inverse[:, None] * turned), spread, effective


@dataclass(frozen=True, eq=False)
class RowKernel:
    """The exact kernel of training rows and new ones, in the basis of its eigenvectors V.

    Attributes
    ----------
    eigenvalues : ndarray of shape (n,)
    targets : ndarray of shape (n, k)
        VᵀY.
    cross : ndarray of shape (N, n)
        The kernel of new rows with training rows, times V.
    diagonal : ndarray of shape (N,)
        k_zz of new rows.
    """

    eigenvalues: FloatArray
    targets: FloatArray
    cross: FloatArray
    diagonal: FloatArray

    @classmethod
    def of(cls, K: FloatArray, Y: FloatArray) -> RowKernel:
        """Take the kernel of training rows, n of them as Y has, with new rows below."""
        n = len(Y)
        values, vectors = np.linalg.eigh(K[:n, :n])
        return cls(np.maximum(values, 0.0), vectors.T @ Y, K[n:, :n] @ vectors, np.diag(K)[n:])

    def limit(self, ridge: float) -> FloatArray:
        """Return the scores of new rows at infinite width, shape (N, k)."""
        return np.asarray(self.cross @ (self.targets / (self.eigenvalues + ridge)[:, None]))


def _effective_ridge(
    freedom: Callable[[FloatArray], FloatArray],
    ridges: FloatArray,
    width: int | IntArray,
    q_recurrent: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x, ζ and dζ/de: the root of log ζ(df₁(x)·x/(λm)) + log x − log λ, which grows with x.

    By regula falsi in log x; the side that stays is halved (Illinois).  `freedom` is
    df₁(x) = tr K(K + x)⁻¹.
    """
    rest = 1.0 - q_recurrent

    def neurons(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        g, slope = shifted_ginibre(freedom(x) * x / (ridges * width) * rest, q_recurrent)
        return rest * g, rest**2 * slope

    def gap(at: FloatArray) -> FloatArray:
        return np.asarray(np.log(neurons(np.exp(at))[0] / ridges) + at)

    # At x = λ the gap is log ζ ≤ 0, since ζ falls from ζ(0) = tr Σ/m = 1.
    low, high = np.log(ridges), np.log(ridges) + 1.0
    below, above = gap(low), gap(high)
    for _ in range(100):
        short = above < 0.0
        if not short.any():
            break
        low, below = np.where(short, high, low), np.where(short, above, below)
        high = np.where(short, high + 2.0, high)
        above = gap(high)
    for _ in range(60):
        share = -below / np.maximum(above - below, 1e-300)
        middle = low + np.clip(share, 0.0, 1.0) * (high - low)
        here = gap(middle)
        if (np.abs(here) < _ROOT).all():
            break
        under = here < 0.0
        above = np.where(under, 0.5 * above, here)
        below = np.where(under, here, 0.5 * below)
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    else:
        raise NotConverged(
            "The effective ridge of a finite width was not found: the equation is off by "
            f"{np.abs(here).max():.2g} after 60 steps. Use a larger ridge or width."
        )
    x = np.exp(middle)
    return x, *neurons(x)

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
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.prediction.resolvent import Ensemble
from notsodeep.prediction.scores import Scores, Task

RIDGE_TOL = 1e-10
"""Of the equation for the effective ridge, relative."""


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
    return m * (1.0 - mixing(model, tau0)) ** 2


def mixing(model: object, tau0: float) -> float:
    """Return q = σa² E[φ′(τ*ξ)]² of a vanilla DEQ, 0 of a network of one hidden layer."""
    if isinstance(model, ExplicitNetwork) and model.depth == 1:
        return 0.0
    if isinstance(model, DeepEquilibrium) and model.is_vanilla:
        tau = math.sqrt(model.preactivation_variance(tau0**2))
        return float(model.sigma_a2 * model.activation.moments(tau).slope ** 2)
    raise InvalidInput(
        "model must be a vanilla DeepEquilibrium or an ExplicitNetwork of one hidden layer for a "
        f"finite width, got {model}."
    )


def shifted_ginibre(x: FloatArray, q: float) -> tuple[FloatArray, FloatArray]:
    """Return g(−x) = lim (1/m) tr(M + x)⁻¹ and dg/dx, M = (I − √q A)(I − √q A)ᵀ, A Ginibre.

    g solves g/u + g u x = 1, u = 1 + q g.
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


def width_scores(
    ensemble: Ensemble, task: Task, ridges: FloatArray, width: int | IntArray, q_mixing: float
) -> tuple[Scores, FloatArray]:
    """Predict ridge regression on `width` features; one width for all ridges, or one for each.

    The ridge becomes x = λ/ζ(e) with ζ(e) = (1/m) tr Σ(1 + eΣ)⁻¹ and e = df₁(x)/(ζm), where
    df₁(x) = tr K(K + x)⁻¹; a score of class b gains the variance (1/q_b + x q_b′/q_b²) YᵀK(K+x)⁻²Y
    /(m_e − df₂), m_e = m ζ²/(−ζ′).  Returns the scores, without those of training samples, and m_e.
    """
    counts, shares, n = task.counts, task.shares, float(task.counts.sum())

    def freedom(x: FloatArray) -> FloatArray:
        return np.asarray(n - x * (ensemble.resolvent(-x).q @ counts))

    x, zeta, zeta_slope = _effective_ridge(freedom, ridges, width, q_mixing)
    effective = width * zeta**2 / -zeta_slope
    resolvent = ensemble.resolvent(-x)
    q, slope = resolvent.q, resolvent.slope()
    fit = resolvent.fitted(task.targets)
    V = fit.covariance(task.noise_covariance)
    second = fit.residual[..., :, None] * fit.residual[..., None, :] + V + task.noise_covariance
    # tr K²Q² = tr (I − xQ)², and tr Q² = −d tr Q/dx.
    df2 = n - 2.0 * x * (q @ counts) - x**2 * (slope @ counts)
    # YᵀQY/n, YᵀQ²Y/n and YᵀKQ²Y, Q = (K + x)⁻¹
    once = np.einsum("ra,ak,ral->rkl", shares * q, task.targets, fit.residual)
    once = once + (q @ shares)[:, None, None] * task.noise_covariance
    twice = np.einsum("ra,rakl->rkl", shares * q**2, second)
    energy = n * (once - x[:, None, None] * twice)
    energy = 0.5 * (energy + np.swapaxes(energy, -1, -2))
    lifted = (1.0 / q + x[:, None] * slope / q**2) / (effective - df2)[:, None]
    covariance = V + lifted[..., None, None] * energy[:, None]
    trace = (q @ counts + x * (slope @ counts)) / (effective - df2)  # tr QKQ
    train = np.trace(twice, axis1=-2, axis2=-1) + trace * np.trace(energy, axis1=1, axis2=2) / n
    return Scores(task.targets - fit.residual, covariance, x**2 * train, None), effective


@dataclass(frozen=True, eq=False)
class RowKernel:
    """The exact kernel of training rows and new ones, in the basis of its eigenvectors V."""

    eigenvalues: FloatArray  # (n,)
    targets: FloatArray  # (n, k): VᵀY
    cross: FloatArray  # (N, n): the kernel of new rows with training rows, times V

    @classmethod
    def of(cls, K: FloatArray, Y: FloatArray) -> RowKernel:
        """Take the kernel of all rows with the n training rows, which come first."""
        n = len(Y)
        values, vectors = np.linalg.eigh(K[:n, :n])
        return cls(np.maximum(values, 0.0), vectors.T @ Y, K[n:, :n] @ vectors)

    def limit(self, ridge: float) -> FloatArray:
        """Return the scores of new rows at infinite width, shape (N, k)."""
        return np.asarray(self.cross @ (self.targets / (self.eigenvalues + ridge)[:, None]))

    def width_scores(
        self, diagonal: FloatArray, ridge: float, width: int, q_mixing: float
    ) -> tuple[FloatArray, FloatArray, float]:
        """Predict ridge regression on `width` features: the law above, with sums over the rows.

        A score of z has the variance (k_zz − kᵀ(Q + xQ²)k) YᵀK(K+x)⁻²Y/(m_e − df₂); `diagonal`
        holds k_zz.  Returns means (N, k) and covariances (N, k, k) over draws of the network, m_e.
        """
        s = self.eigenvalues

        def freedom(x: FloatArray) -> FloatArray:
            return np.asarray((s / (s + x[:, None])).sum(axis=1))

        solved = _effective_ridge(freedom, np.array([ridge]), width, q_mixing)
        x, zeta, slope = (float(part[0]) for part in solved)
        effective = width * zeta**2 / -slope
        inverse = 1.0 / (s + x)
        energy = self.targets.T @ ((s * inverse**2)[:, None] * self.targets)
        energy /= effective - np.square(s * inverse).sum()
        # A posterior variance, positive but for rounding.
        lifted = diagonal - np.square(self.cross) @ (inverse + x * inverse**2)
        spread = np.multiply.outer(np.maximum(lifted, 0.0), energy)
        return self.cross @ (inverse[:, None] * self.targets), spread, effective


def _effective_ridge(
    freedom: Callable[[FloatArray], FloatArray],
    ridges: FloatArray,
    width: int | IntArray,
    q_mixing: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x, ζ and dζ/de: the root of log ζ(df₁(x)·x/(λm)) + log x − log λ, which grows with x.

    By the Illinois variant of regula falsi in log x.  `freedom` is df₁(x) = tr K(K + x)⁻¹.
    """
    rest = 1.0 - q_mixing

    def neurons(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        g, slope = shifted_ginibre(freedom(x) * x / (ridges * width) * rest, q_mixing)
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
        if (np.abs(here) < RIDGE_TOL).all():
            break
        under = here < 0.0
        above = np.where(under, 0.5 * above, here)
        below = np.where(under, here, 0.5 * below)
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    else:
        raise NotConverged(
            f"The effective ridge of width {width} is off by {np.abs(here).max():.2g} after 60 "
            "steps. Use a larger ridge or width."
        )
    x = np.exp(middle)
    return x, *neurons(x)

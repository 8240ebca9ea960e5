"""The layer-peeled problems that are not convex: minimisation over the factors from several starts.

Variables are the classifier W, the features Y = D H (rows) and, under a Frobenius budget, the
matrix of the head.  Each enters through its direction only, scaled to its budget: at an optimum
every budget is used up.  Features that must not be negative are squares of free variables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from notsodeep.arrays import FloatArray
from notsodeep.collapse.certificate import logit_loss
from notsodeep.collapse.heads import Head, head_operator

CONVERGED = 1e-5
"""Residual at which a start counts as converged."""

OPTIONS = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 40, "ftol": 1e-14, "gtol": 1e-10}
"""Of L-BFGS: on until the loss no longer changes."""


@dataclass(frozen=True, eq=False)
class FactoredProblem:
    """Minimise log f(H Gᵀ Wᵀ) over W, H and G.

    Attributes
    ----------
    shares, scales : ndarray of shape (K,)
        n_k/N, and the diagonal of D.
    budget : float
        √(E_W E_H); both norms are √(K·budget).
    head : Head
    frobenius : float or None
        Bound on ‖M‖_F or ‖A‖_F; None if the head only multiplies by `gain`.
    gain : float
    nonnegative : bool
        H ≥ 0.
    """

    shares: FloatArray
    scales: FloatArray
    budget: float
    head: Head
    frobenius: float | None
    gain: float
    nonnegative: bool

    def assemble(self, x: FloatArray) -> Factors:
        """Turn free variables into factors that use up their budgets."""
        K = len(self.shares)
        raw_W, raw_Y, raw_A = x.reshape(3, K, K)
        raw_Y = np.square(raw_Y) if self.nonnegative else raw_Y
        norm = np.sqrt(K * self.budget)
        W, Y = (norm * raw / np.linalg.norm(raw) for raw in (raw_W, raw_Y))
        if self.frobenius is None:
            return Factors(W, Y, Y / self.scales[:, None], None, self.gain * np.eye(K))
        A = self.frobenius * raw_A / np.linalg.norm(raw_A)
        return Factors(W, Y, Y / self.scales[:, None], A, head_operator(self.head, A))

    def evaluate(self, factors: Factors) -> tuple[float, FloatArray, FloatArray, FloatArray]:
        """Return log f and its gradients in W, Y and A."""
        W, H, G = factors.W, factors.H, factors.G
        Z = H @ G.T
        value, slope = logit_loss(Z @ W.T, self.shares)
        slope_Z = slope @ W
        slope_G = slope_Z.T @ H
        if factors.A is None:
            slope_A = np.zeros_like(G)
        elif self.head == "deq":
            slope_A = G.T @ slope_G @ G.T
        else:
            slope_A = slope_G
        return value, slope.T @ Z, slope_Z @ G / self.scales[:, None], slope_A

    def objective(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Return log f and its gradient in the free variables."""
        factors = self.assemble(x)
        value, slope_W, slope_Y, slope_A = self.evaluate(factors)
        raw_W, raw_Y, raw_A = x.reshape(3, *factors.W.shape)
        gradient_Y = _through_scaling(
            slope_Y, factors.Y, np.square(raw_Y) if self.nonnegative else raw_Y
        )
        if self.nonnegative:
            gradient_Y = 2.0 * raw_Y * gradient_Y
        gradients = [_through_scaling(slope_W, factors.W, raw_W), gradient_Y]
        if factors.A is None:
            gradients.append(np.zeros_like(raw_A))
        else:
            gradients.append(_through_scaling(slope_A, factors.A, raw_A))
        return value, np.concatenate([g.ravel() for g in gradients])

    def residual(self, factors: Factors) -> float:
        """Largest violation of the stationarity conditions, relative to the multipliers."""
        _, slope_W, slope_Y, slope_A = self.evaluate(factors)
        residuals = [
            stationarity(factors.W, slope_W, nonnegative=False),
            stationarity(factors.Y, slope_Y, self.nonnegative),
        ]
        if factors.A is not None:
            residuals.append(stationarity(factors.A, slope_A, nonnegative=False))
        return max(residuals)


@dataclass(frozen=True, eq=False)
class Factors:
    """W (K, d), Y = D H, H (K, d), the head's matrix A or None, and its operator G (d, d)."""

    W: FloatArray
    Y: FloatArray
    H: FloatArray
    A: FloatArray | None
    G: FloatArray


@dataclass(frozen=True, eq=False)
class BestOfStarts:
    """The best stationary point found.

    Attributes
    ----------
    factors : Factors
    log_value : float
    residual : float
        Largest violation of the stationarity conditions.
    converged : bool
    steps : int
        Evaluations of the loss, all starts together.
    reason : str
        How many starts there were, and how many ended at this loss.
    """

    factors: Factors
    log_value: float
    residual: float
    converged: bool
    steps: int
    reason: str


def best_of_starts(
    problem: FactoredProblem, starts: int, generator: np.random.Generator
) -> BestOfStarts:
    """Run L-BFGS from several starts and keep the best outcome.

    The first start is a simplex with every class on an axis of its own; the others are random.
    """
    K = len(problem.shares)
    axes = np.stack([np.eye(K) - 1.0 / K, np.eye(K), np.eye(K)]).ravel()
    noise = generator.standard_normal((starts, 3 * K * K))
    # Off the exact simplex, which may be a saddle that gradients do not leave.
    points = [axes + 0.1 * noise[0], *noise[1:]]
    outcomes = [
        minimize(problem.objective, point, jac=True, method="L-BFGS-B", options=OPTIONS)
        for point in points
    ]
    values = np.array([float(outcome.fun) for outcome in outcomes])
    best = outcomes[int(values.argmin())]
    equal = int((values <= values.min() + 1e-8).sum())
    factors = problem.assemble(best.x)
    residual = problem.residual(factors)
    reason = (
        f"best of {starts} starts, {equal} of which ended at this loss; residual {residual:.1e}"
    )
    return BestOfStarts(
        factors,
        float(best.fun),
        residual,
        residual <= CONVERGED,
        sum(int(outcome.nfev) for outcome in outcomes),
        reason,
    )


def _through_scaling(slope: FloatArray, scaled: FloatArray, raw: FloatArray) -> FloatArray:
    """Gradient in `raw` of a function of scaled = norm·raw/‖raw‖."""
    unit = raw / np.linalg.norm(raw)
    ratio = float(np.linalg.norm(scaled)) / float(np.linalg.norm(raw))
    return np.asarray(ratio * (slope - np.vdot(slope, unit) * unit))


def stationarity(factor: FloatArray, slope: FloatArray, nonnegative: bool) -> float:
    """Norm of the gradient on the sphere of a factor, relative to the multiplier of its budget.

    A zero entry that must not be negative may have a positive slope; it must not want to grow.
    """
    unit = factor / np.linalg.norm(factor)
    multiplier = float(np.vdot(slope, unit))
    if multiplier == 0.0:  # more of this factor would change nothing: no optimum
        return math.inf
    tangent = (slope - multiplier * unit) / abs(multiplier)
    if nonnegative:
        tangent = unit - np.maximum(unit - tangent, 0.0)
    return float(np.linalg.norm(tangent))

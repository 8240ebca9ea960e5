"""Certificates of global optimality for the layer-peeled model, and its loss.

At a large budget the loss falls below 1e-300.  Its logarithm does not, and has the same minimisers:
everything here is about log f and ∇f/f, computed without subtraction of nearly equal numbers.

A class (or a group of interchangeable classes) g with share ω_g of the samples has exponents T_gh =
log(number of wrong classes of kind h) + (their logit − own logit); −∞ where there are none.  Then

    S_g = Σ_h exp T_gh,   f = Σ_g ω_g log(1 + S_g).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.collapse.geometry import host_array
from notsodeep.errors import InvalidInput
from notsodeep.records import Record


@dataclass(frozen=True, eq=False)
class LogLoss:
    """log f at a matrix of exponents."""

    value: float  # log f
    probabilities: FloatArray  # (m, m): p_gh, softmax of all wrong classes of kind h
    slopes: FloatArray  # (m, m): ∂ log f/∂T_gh = ω_g p_gh/f

    def change_of_slopes(self, direction: FloatArray) -> FloatArray:
        """Differentiate `slopes` along a direction in T: the Hessian of log f times it."""
        p, q = self.probabilities, self.slopes
        own = np.einsum("gh,gh->g", p, direction)
        return np.asarray(q * (direction - own[:, None] - np.vdot(q, direction)))


def log_loss(exponents: FloatArray, log_shares: FloatArray) -> LogLoss:
    """Evaluate log f and its slopes; shapes (m, m) and (m,)."""
    totals = _log_sum_exp(exponents)  # log S_g
    softplus = np.logaddexp(0.0, totals)
    # log log(1 + S) is log S to the last digit where S < 1e-16.
    log_losses = np.where(totals < -37.0, totals, np.log(np.logaddexp(0.0, totals.clip(-37.0))))
    value = float(_log_sum_exp(log_shares + log_losses))
    log_probabilities = exponents - softplus[:, None]
    return LogLoss(
        value,
        np.exp(log_probabilities),
        np.exp(log_shares[:, None] + log_probabilities - value),
    )


def logit_loss(logits: FloatArray, shares: FloatArray) -> tuple[float, FloatArray]:
    """Return log f and ∇f/f for logits of shape (K, K), row k those of a sample of class k."""
    exponents = logits - np.diag(logits)[:, None]
    np.fill_diagonal(exponents, -np.inf)
    loss = log_loss(exponents, np.log(shares))
    gradient = loss.slopes
    np.fill_diagonal(gradient, -gradient.sum(axis=1))
    return loss.value, gradient


def _log_sum_exp(exponents: FloatArray) -> FloatArray:
    """Sum over the last axis; SciPy's takes ten times as long on matrices this small."""
    largest = exponents.max(axis=-1, keepdims=True)
    total = np.exp(exponents - largest).sum(axis=-1)
    return np.asarray(largest[..., 0] + np.log(total))


FeatureBudget = Literal["class", "sample"]

GAP_TOL = 1e-8
"""Relative gap at which an optimum counts as certified, in the loss or in its logarithm."""


@dataclass(frozen=True, repr=False)
class OptimalityCertificate(Record):
    """How far a loss can be from the optimum."""

    # Whether the point is admissible, and its loss proved to be within 1e-8 of the optimum:
    # relatively, or in the logarithm where that is larger than one.
    certified: bool
    lower_bound: float  # no admissible classifier and features have a smaller loss
    gap: float  # loss − lower_bound
    relative_gap: float  # gap/loss; it keeps its meaning when the loss underflows
    norm_excess: float  # weighted nuclear norm over K C, minus one: above zero not admissible
    # ‖UᵀΓV/‖Γ‖₂ − I‖₂ on the active subspace, X = U Σ Vᵀ: zero iff the spectral norm of the
    # gradient is attained there.
    spectral_residual: float
    statement: str  # all this in words

    def __str__(self) -> str:
        return self.statement


def class_counts(counts: object) -> FloatArray:
    """Require K ≥ 2 positive class sizes; only their proportions matter."""
    array = checks.real_array(host_array(counts), "counts", "layer_peeled")
    if array.ndim != 1 or len(array) < 2 or not (array > 0.0).all():
        raise InvalidInput(
            f"counts must hold the positive sizes of at least two classes, got {array.tolist()}."
        )
    return array


def feature_scales(shares: FloatArray, feature_budget: FeatureBudget) -> FloatArray:
    """Diagonal of D: ones for the class budget, √(K n_k/N) for the sample budget."""
    if feature_budget == "class":
        return np.ones_like(shares)
    return np.asarray(np.sqrt(len(shares) * shares))


def optimality_certificate(
    logits: object, counts: object, *, budget: float, feature_budget: FeatureBudget = "class"
) -> OptimalityCertificate:
    """Certify class logits of the convex layer-peeled problem min f(L), ‖D L‖_* ≤ K C.

    f is convex, so that for every admissible L, with Γ = −D⁻¹∇f(L),

        f(L) − min f ≤ K C ‖Γ‖₂ − ⟨Γ, D L⟩,

    the duality gap of Frank and Wolfe.  It vanishes iff ‖D L‖_* = K C and Γ attains its spectral
    norm on the singular vectors of D L.  How the logits were found does not matter.

    Row k of `logits`, (K, K), holds those of a sample of class k; `budget` is C.

    Examples
    --------
    >>> simplex = np.eye(3) - 1 / 3
    >>> optimality_certificate(1.5 * simplex, [5, 5, 5], budget=1.0).certified
    True
    >>> optimality_certificate(1.4 * simplex, [5, 5, 5], budget=1.0).certified
    False
    """
    sizes = class_counts(counts)
    K = len(sizes)
    L = checks.matrix_of_shape(logits, (K, K), "logits", "optimality_certificate")
    radius = K * budget
    shares = sizes / sizes.sum()
    scales = feature_scales(shares, feature_budget)[:, None]
    log_value, slope = logit_loss(L, shares)  # slope is ∇f/f
    descent = -slope / scales
    X = scales * L
    left, singular, right = np.linalg.svd(X)
    norm_excess = float(singular.sum()) / radius - 1.0
    steepest = float(np.linalg.norm(descent, 2))
    # Slopes are of log f, so that the gap is in units of the loss and survives its underflow.
    relative_gap = max(radius * steepest - float(np.vdot(descent, X)), 0.0)
    active = int((singular > 1e-10 * singular[0]).sum()) if singular[0] > 0.0 else 0
    core = left[:, :active].T @ descent @ right[:active].T / steepest
    residual = float(np.linalg.norm(core - np.eye(active), 2)) if active else 1.0
    loss = float(np.exp(log_value))
    feasible = norm_excess <= 1e-9
    # Logits of size K C are rounded to K C·ε, and so is log f.
    certified = feasible and relative_gap <= GAP_TOL * max(1.0, abs(log_value))
    if not feasible:
        statement = f"not admissible: the nuclear norm exceeds K C by {norm_excess:.1e} of it"
    elif certified:
        statement = f"globally optimal, up to {relative_gap:.1e} of the loss"
    else:
        statement = (
            f"not proved optimal: the optimum may be lower by up to {relative_gap:.1e} of the loss"
        )
    return OptimalityCertificate(
        certified,
        max(loss * (1.0 - relative_gap), 0.0),
        min(loss * relative_gap, loss),
        relative_gap,
        norm_excess,
        residual,
        statement,
    )

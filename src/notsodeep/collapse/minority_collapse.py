"""The imbalance at which minority classifiers merge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
from scipy.optimize import brentq

from notsodeep import checks
from notsodeep.collapse.certificate import FeatureBudget
from notsodeep.collapse.heads import Head, head_gain
from notsodeep.collapse.sphere_newton import minimise_on_sphere
from notsodeep.collapse.symmetric_problem import SymmetricProblem
from notsodeep.errors import NotConverged
from notsodeep.records import Record

# Class shares are of the order of exp(−log R): beyond this they leave the range of floats.
_LARGEST_LOG_RATIO = 600.0


@dataclass(frozen=True, repr=False)
class CollapseThreshold(Record):
    """The threshold R* of minority collapse.  ``float(…)`` gives the ratio.

    Attributes
    ----------
    ratio : float
        R*: minority classifiers coincide iff n_A/n_B ≥ R*.
    log_ratio : float
    own_probability, other_probability : float
        P_own and P_other at the threshold: what a majority sample gives its own class, and one
        other majority class (0 if there is none).
    shortfall : float
        1 − P_own + P_other, without the cancellation.
    effective_budget : float
        C = gain·√(E_W E_H).
    residual : float
        |log(w_B/(D_B λ))| at the ratio, zero at the threshold: how well the equation holds.
    steps : int
        Collapsed optima computed by the bisection.

    Examples
    --------
    >>> threshold = minority_collapse_threshold(num_majority=2, num_minority=2, budget=1.0)
    >>> round(threshold.ratio, 3), bool(threshold.residual < 1e-8)
    (3.38, True)
    >>> bool(abs(threshold.ratio * threshold.shortfall - 1) < 1e-8)  # R* = 1/(1 − P_own + P_other)
    True
    """

    ratio: float
    log_ratio: float
    own_probability: float
    other_probability: float
    shortfall: float
    effective_budget: float
    residual: float
    steps: int

    def __float__(self) -> float:
        return self.ratio


def minority_collapse_threshold(
    *,
    num_majority: int,
    num_minority: int,
    budget: float,
    feature_budget: FeatureBudget = "class",
    head: Head = "plain",
    spectral_budget: float | None = None,
    solver_steps: int | None = None,
) -> CollapseThreshold:
    """Find the ratio R* = n_A/n_B from which on the minority classifiers coincide.

    At the optimum with merged minority classifiers, differences of minority classes are an inactive
    direction, in which the gradient has the singular value w_B/D_B.  It is an optimum of the whole
    problem iff that is at most the multiplier λ, for K_A ≥ 2 w_A(1 − P_own + P_other)/D_A.  So

        R* = 1/(1 − P_own + P_other)   (class budget; its square for the sample budget),

    with probabilities that depend on R* in turn.  Solved in log R, by Brent's method in a bracket
    that is approached from above, where the collapsed optimum is best conditioned.

    Parameters
    ----------
    num_majority, num_minority : int
        K_A ≥ 1 classes with n_A samples each, and K_B ≥ 2 with n_B.
    budget : float
        √(E_W E_H).
    feature_budget : {"class", "sample"}
    head, spectral_budget, solver_steps
        As in `layer_peeled`, under a spectral budget.

    Examples
    --------
    >>> round(float(minority_collapse_threshold(num_majority=2, num_minority=2, budget=2.0)), 2)
    27.74
    """
    owner = "minority_collapse_threshold"
    K_A = checks.positive_integer(num_majority, "num_majority", owner)
    remedy = "A single minority class has none to merge with."
    K_B = checks.integer_at_least(num_minority, 2, "num_minority", owner, remedy)
    checks.known_name(feature_budget, get_args(FeatureBudget), "feature budget")
    gain = head_gain(head, spectral_budget, solver_steps)
    C = gain * checks.positive_number(budget, "budget", owner)
    steps = 0

    def collapsed(log_ratio: float) -> _Collapsed:
        nonlocal steps
        steps += 1
        return _collapsed_optimum(K_A, K_B, C, log_ratio, feature_budget)

    far = collapsed(_LARGEST_LOG_RATIO).excess
    if far > 0.0:
        raise NotConverged(
            f"The threshold of minority collapse for K_A = {K_A}, K_B = {K_B} and C = {C:g} is "
            f"above exp({_LARGEST_LOG_RATIO:g}), beyond what floats can follow."
        )
    # Far above the root the probabilities no longer depend on R, and the excess falls at this rate.
    rate = 1.0 if feature_budget == "class" else 0.5
    low = high = max(_LARGEST_LOG_RATIO + far / rate, 0.0)
    width = 0.25
    while collapsed(low).excess < 0.0:  # positive at R = 1, where the classes are balanced
        low, width = max(low - width, 0.0), 2.0 * width
    width = 0.25
    while collapsed(high).excess > 0.0:
        high, width = min(high + width, _LARGEST_LOG_RATIO), 2.0 * width
    root = float(brentq(lambda log_ratio: collapsed(log_ratio).excess, low, high, xtol=1e-12))
    at = collapsed(root)
    return CollapseThreshold(
        ratio=math.exp(root),
        log_ratio=root,
        own_probability=1.0 - at.wrong,
        other_probability=at.other,
        shortfall=at.wrong + at.other,
        effective_budget=C,
        residual=abs(at.excess),
        steps=steps,
    )


class _Collapsed(NamedTuple):
    """log(w_B/(D_B λ)), 1 − P_own and P_other at the optimum with merged minority classifiers."""

    excess: float
    wrong: float
    other: float


def _collapsed_optimum(
    K_A: int, K_B: int, C: float, log_ratio: float, feature_budget: FeatureBudget
) -> _Collapsed:
    sizes = np.array([K_A, K_B])
    relative = np.array([1.0, math.exp(-log_ratio)])
    shares = relative / (sizes @ relative)
    scales = np.ones(2) if feature_budget == "class" else np.sqrt((K_A + K_B) * shares)
    separable = np.array([K_A > 1, False])
    problem = SymmetricProblem(sizes, shares, scales, C, separable)
    solution = minimise_on_sphere(problem.model, problem.start())
    if not solution.converged:
        raise NotConverged(
            f"The collapsed optimum at log R = {log_ratio:g} was not found: {solution.reason}.",
            solution,
        )
    here = problem.model(solution.point)
    slope_within, _ = problem.adjoint(here.loss.slopes)
    # ½‖y‖² is the nuclear norm, so that the multiplier in y is the one in X.
    # The slope in a_g is that of (K_g − 1) equal singular values together.
    descent = -float(slope_within[1]) / (K_B - 1)
    same_group, minority = map(float, here.loss.probabilities[0])
    other = same_group / (K_A - 1) if K_A > 1 else 0.0
    return _Collapsed(math.log(descent / solution.multiplier), same_group + minority, other)

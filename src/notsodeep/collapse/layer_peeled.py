"""The layer-peeled model with plain, explicit, residual and DEQ heads, and minority collapse.

Under a spectral budget on the head the model is one convex problem in the class logits L,
‖D L‖_* ≤ K C with C = g √(E_W E_H), in which the head is but its gain g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.optimize import brentq

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.collapse.certificate import (
    FeatureBudget,
    OptimalityCertificate,
    class_counts,
    feature_scales,
    logit_loss,
    optimality_certificate,
)
from notsodeep.collapse.measures import angles, cosine_matrix, majority_and_minority
from notsodeep.collapse.sphere_newton import minimise_on_sphere
from notsodeep.collapse.symmetric_problem import SymmetricProblem
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.records import Plotted, Record

Head = Literal["plain", "explicit", "residual", "deq"]

MAX_LOG_RATIO = 600.0
"""Class shares are of the order of exp(−log R): beyond this they leave the range of floats."""


@dataclass(frozen=True, eq=False, repr=False)
class LayerPeeledOptimum(Plotted):
    """An optimum of the layer-peeled model, in d = K feature dimensions.  Rows are classes."""

    _drawing = "layer_peeled"

    head: Head
    spectral_budget: float | None
    budget: float
    feature_budget: FeatureBudget
    solver_steps: int | None
    counts: FloatArray  # (K,)
    gain: float  # largest gain the head may have: sup ‖G‖₂ under its budget
    loss: float  # mean cross-entropy
    log_loss: float  # which does not underflow
    logits: FloatArray  # (K, K): row k holds the logits W G h of a sample of class k
    classifier: FloatArray  # (K, d): W, with ‖W‖²/K = E_W = budget
    features: FloatArray  # (K, d): h, what enters the head; its mean square is E_H = budget
    head_output: FloatArray  # (K, d): z = G h
    # (d, d): M of an explicit or residual head, A of a DEQ, I of a plain head.  An explicit head
    # may also turn its output; of all optima this is the one that does not.
    head_matrix: FloatArray
    rank: int  # of the logits
    certificate: OptimalityCertificate
    minority_cosine: float  # mean cosine between minority classifiers; NaN if sizes are equal
    converged: bool
    steps: int  # of Newton's method
    reason: str

    @property
    def effective_budget(self) -> float:
        """C = gain·√(E_W E_H)."""
        return self.gain * self.budget

    def __str__(self) -> str:
        bound = "" if self.spectral_budget is None else f" ({self.spectral_budget:g})"
        return "\n".join(
            [
                f"{len(self.counts)} classes, {self.head} head{bound}, "
                f"{self.feature_budget} budget of {self.budget:g}",
                f"  gain {self.gain:.4g}, C = {self.effective_budget:.4g}",
                f"  loss {self.loss:.6g}, rank {self.rank}",
                f"  minority cosine {self.minority_cosine:.4f}",
                f"  {self.certificate}",
            ]
        )


def layer_peeled(
    counts: object,
    *,
    budget: float,
    head: Head = "plain",
    spectral_budget: float | None = None,
    feature_budget: FeatureBudget = "class",
    solver_steps: int | None = None,
    raises: bool = True,
) -> LayerPeeledOptimum:
    """Minimise the mean cross-entropy of W G h over classifier, features and head.

    Subject to ‖W‖²/K ≤ E_W, and (1/K) Σ_k ‖h_k‖² ≤ E_H (class budget) or Σ_k (n_k/N) ‖h_k‖² ≤ E_H
    (sample budget).  With a spectral budget on the head this is one convex problem in the class
    logits L, ‖D L‖_* ≤ K C with C = g √(E_W E_H); the answer is certified by its duality gap.

    Parameters
    ----------
    counts : array-like of shape (K,)
        Class sizes, K ≥ 2; only their proportions matter.
    budget : float
        √(E_W E_H); E_W = E_H = budget in the answer.
    head : {"plain", "explicit", "residual", "deq"}
        G = I, M, I + M or (I − A)⁻¹; see `head_gain`.
    spectral_budget : float, optional
        Bound on the spectral norm of M or A.
    feature_budget : {"class", "sample"}
    solver_steps : int, optional
        Fixed-point steps of the DEQ, from zero; by default its equilibrium.
    raises : bool
        Raise `NotConverged` rather than return a record that says so.

    Examples
    --------
    >>> optimum = layer_peeled([100, 100, 1, 1], budget=2.0, head="deq", spectral_budget=0.5)
    >>> optimum.certificate.certified, round(optimum.minority_cosine, 2)
    (True, 0.04)
    >>> round(layer_peeled([100, 100, 1, 1], budget=2.0).minority_cosine, 6)
    1.0
    """
    sizes = class_counts(counts)
    root_budget = checks.positive_number(budget, "budget", "layer_peeled")
    checks.known_name(feature_budget, ("class", "sample"), "feature budget")
    gain = head_gain(head, spectral_budget, solver_steps)
    shares = sizes / sizes.sum()
    scales = feature_scales(shares, feature_budget)
    _, group, members = np.unique(sizes, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")  # classes of equal size next to each other
    first = order[np.cumsum(members) - 1]  # one class of each group
    problem = SymmetricProblem(members, shares[first], scales[first], gain * root_budget)
    minimum = minimise_on_sphere(problem.model, problem.start())
    X = np.empty((len(sizes), len(sizes)))
    X[np.ix_(order, order)] = problem.logit_matrix(minimum.point)
    left, singular, right = np.linalg.svd(X)
    # ‖X‖_* is the least ½(‖U‖² + ‖V‖²) over X = UVᵀ, attained by an even split of the singular
    # values; the gain g is shared so that ‖W‖ and ‖D H‖ have the same norm, √(K·budget).
    root = np.sqrt(np.where(singular > 1e-10 * singular[0], singular, 0.0))
    outputs = left * (root * math.sqrt(gain)) / scales[:, None]
    W = right.T * (root / math.sqrt(gain))
    logits = outputs @ W.T
    certificate = optimality_certificate(
        logits, sizes, budget=gain * root_budget, feature_budget=feature_budget
    )
    log_loss = logit_loss(logits, shares)[0]
    minority = majority_and_minority(sizes).get("minority", np.empty(0, np.int64))
    # Classifiers of inactive classes are zero up to the accuracy of the solver.
    cosines = cosine_matrix(W @ W.T, 1e-8 * float(np.linalg.norm(W, axis=1).max()))
    optimum = LayerPeeledOptimum(
        head=head,
        spectral_budget=spectral_budget,
        budget=root_budget,
        feature_budget=feature_budget,
        solver_steps=solver_steps,
        counts=sizes,
        gain=gain,
        loss=math.exp(log_loss),
        log_loss=log_loss,
        logits=logits,
        classifier=W,
        features=outputs / gain,
        head_output=outputs,
        head_matrix=attaining_matrix(spectral_budget, outputs),
        rank=int(np.linalg.matrix_rank(logits, rtol=1e-8)),
        certificate=certificate,
        minority_cosine=angles(cosines, minority)[0],
        converged=certificate.certified,
        steps=minimum.steps,
        reason=minimum.reason,
    )
    if raises and not optimum.converged:
        raise NotConverged(
            f"layer_peeled did not converge: {optimum.reason}; {optimum.certificate}.", optimum
        )
    return optimum


def head_gain(
    head: Head, spectral_budget: float | None = None, solver_steps: int | None = None
) -> float:
    """Return the gain g = sup ‖G‖₂ of a head z = G h.

    ========  ==========  ===========  ========================
    head      G           constraint   gain
    ========  ==========  ===========  ========================
    plain     I                        1
    explicit  M           ‖M‖₂ ≤ s     s
    residual  I + M       ‖M‖₂ ≤ s     1 + s
    deq       (I − A)⁻¹   ‖A‖₂ ≤ ρ     1/(1 − ρ)
    ========  ==========  ===========  ========================

    Parameters
    ----------
    head : {"plain", "explicit", "residual", "deq"}
    spectral_budget : float, optional
        s, or ρ in [0, 1) of a DEQ; none for the plain head.
    solver_steps : int, optional
        T ≥ 1 steps z ← A z + h from z = 0 in place of the equilibrium of the DEQ, so that
        G = I + A + … + A^{T−1} and the gain is (1 − ρ^T)/(1 − ρ) ≤ T.

    Examples
    --------
    >>> head_gain("deq", 0.5), head_gain("deq", 0.5, solver_steps=2)
    (2.0, 1.5)
    """
    checks.known_name(head, get_args(Head), "head")
    bound = checks.head_budget(head, spectral_budget, "head_gain")
    if solver_steps is not None and head != "deq":
        raise InvalidInput(f"solver_steps must be None unless head='deq', got {solver_steps}.")
    if head == "explicit":
        return bound
    if head == "residual":
        return 1.0 + bound
    if solver_steps is None:
        return 1.0 / (1.0 - bound)  # the plain head has bound 0
    steps = checks.positive_integer(solver_steps, "solver_steps", "head_gain")
    return -float(np.expm1(steps * np.log(bound))) / (1.0 - bound) if bound else 1.0


def attaining_matrix(spectral_budget: float | None, features: FloatArray) -> FloatArray:
    """Return the least matrix that attains the gain on the span of the rows of `features`.

    It is the spectral budget times the projection onto the span: M of an explicit or residual head,
    A of a DEQ (so that A z = ρ z); the identity for the plain head, which has no budget.
    """
    if spectral_budget is None:
        return np.eye(features.shape[1])
    _, singular, right = np.linalg.svd(features)
    span = right[: int((singular > 1e-10 * singular[0]).sum())]
    return np.asarray(spectral_budget * span.T @ span)


@dataclass(frozen=True, repr=False)
class CollapseThreshold(Record):
    """The threshold R* of minority collapse.  ``float(…)`` gives the ratio."""

    ratio: float  # R*: minority classifiers coincide iff n_A/n_B ≥ R*
    log_ratio: float
    own_probability: float  # at the threshold: what a majority sample gives its class
    other_probability: float  # and one other majority class (0 if there is none)
    shortfall: float  # 1 − P_own + P_other, without the cancellation
    effective_budget: float  # C = gain·√(E_W E_H)
    residual: float  # |log(w_B/(D_B λ))| at the ratio, zero at the threshold
    steps: int  # collapsed optima computed

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
    checks.known_name(feature_budget, ("class", "sample"), "feature budget")
    gain = head_gain(head, spectral_budget, solver_steps)
    C = gain * checks.positive_number(budget, "budget", owner)
    steps = 0

    def collapsed(log_ratio: float) -> _Collapsed:
        nonlocal steps
        steps += 1
        return _collapsed_optimum(K_A, K_B, C, log_ratio, feature_budget)

    far = collapsed(MAX_LOG_RATIO).excess
    if far > 0.0:
        raise NotConverged(
            f"The threshold of minority collapse for K_A = {K_A}, K_B = {K_B} and C = {C:g} is "
            f"above exp({MAX_LOG_RATIO:g}), beyond what floats can follow."
        )
    # Far above the root the probabilities no longer depend on R, and the excess falls at this rate.
    rate = 1.0 if feature_budget == "class" else 0.5
    low = high = max(MAX_LOG_RATIO + far / rate, 0.0)
    width = 0.25
    while collapsed(low).excess < 0.0:  # positive at R = 1, where the classes are balanced
        low, width = max(low - width, 0.0), 2.0 * width
    width = 0.25
    while collapsed(high).excess > 0.0:
        high, width = min(high + width, MAX_LOG_RATIO), 2.0 * width
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

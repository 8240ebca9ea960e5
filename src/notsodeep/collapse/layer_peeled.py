"""The layer-peeled model with plain, explicit, residual and DEQ heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import requirements
from notsodeep.collapse.certificate import (
    FeatureBudget,
    OptimalityCertificate,
    feature_scales,
    logit_loss,
    optimality_certificate,
    relaxation_certificate,
)
from notsodeep.collapse.geometries import cosine_matrix, majority_and_minority
from notsodeep.collapse.heads import Head, attaining_matrix, head_gain
from notsodeep.collapse.measures import angles
from notsodeep.collapse.several_starts import FactoredProblem, best_of_starts
from notsodeep.collapse.sphere_newton import minimise_on_sphere
from notsodeep.collapse.symmetric_problem import SymmetricProblem
from notsodeep.errors import NotConverged
from notsodeep.records import Plotted

Constraint = Literal["spectral", "frobenius"]


@dataclass(frozen=True, eq=False, repr=False)
class LayerPeeledOptimum(Plotted):
    """An optimum of the layer-peeled model, in d = K feature dimensions.  Rows are classes.

    Attributes
    ----------
    head, spectral_budget, budget, feature_budget, constraint, nonnegative, solver_steps
        The problem, as asked.
    counts : ndarray of shape (K,)
    gain : float
        Largest gain the head may have: sup ‖G‖₂ under its budget.
    loss, log_loss : float
        Mean cross-entropy, and its logarithm, which does not underflow.
    logits : ndarray of shape (K, K)
        Row k: the logits W G h of a sample of class k.
    classifier : ndarray of shape (K, d)
        W, with ‖W‖²/K = E_W = budget.
    features : ndarray of shape (K, d)
        h, what enters the head; all samples of a class share it.  Its mean square is E_H = budget.
    head_output : ndarray of shape (K, d)
        z = G h.
    head_matrix : ndarray of shape (d, d)
        M of an explicit or residual head, A of a DEQ, I of a plain head.  Under a spectral budget
        an explicit head may also turn its output; of all optima this is the one that does not.
    rank : int
        Numerical rank of the logits.
    certificate : OptimalityCertificate
    minority_cosine : float or None
        Mean cosine between the classifiers of minority classes; None with an entry in `reasons`.
    converged : bool
    steps : int
        Newton steps, or evaluations of the loss in all starts of a problem that is not convex.
    reason : str
        Why the solver ended.
    reasons : dict of str to str
        Why a number is missing.

    Examples
    --------
    >>> from notsodeep.collapse import layer_peeled
    >>> optimum = layer_peeled([10, 10, 1, 1], budget=1.0, head="deq", spectral_budget=0.5)
    >>> optimum.gain, optimum.logits.shape, optimum.certificate.certified
    (2.0, (4, 4), True)
    """

    _drawing = "layer_peeled"

    head: Head
    spectral_budget: float | None
    budget: float
    feature_budget: FeatureBudget
    constraint: Constraint
    nonnegative: bool
    solver_steps: int | None
    counts: FloatArray
    gain: float
    loss: float
    log_loss: float
    logits: FloatArray
    classifier: FloatArray
    features: FloatArray
    head_output: FloatArray
    head_matrix: FloatArray
    rank: int
    certificate: OptimalityCertificate
    minority_cosine: float | None
    converged: bool
    steps: int
    reason: str
    reasons: dict[str, str]

    @property
    def effective_budget(self) -> float:
        """C = gain·√(E_W E_H)."""
        return self.gain * self.budget

    def __str__(self) -> str:
        bound = "" if self.spectral_budget is None else f" ({self.spectral_budget:g})"
        cosine = self.reasons.get("minority_cosine", "")
        if self.minority_cosine is not None:
            cosine = f"{self.minority_cosine:.4f}"
        return "\n".join(
            [
                f"{len(self.counts)} classes, {self.head} head{bound}, "
                f"{self.feature_budget} budget of {self.budget:g}",
                f"  gain {self.gain:.4g}, C = {self.effective_budget:.4g}",
                f"  loss {self.loss:.6g}, rank {self.rank}",
                f"  minority cosine {cosine}",
                f"  {self.certificate}",
            ]
        )


def balanced_loss(num_classes: int, budget: float) -> float:
    """Return the optimal loss for balanced classes: log(1 + (K − 1) exp(−K C/(K − 1))).

    It is attained by a simplex ETF, with any head; C = `budget` is the gain times √(E_W E_H).

    Examples
    --------
    >>> optimum = layer_peeled([5, 5, 5], budget=2.0)
    >>> round(balanced_loss(3, budget=2.0), 6), round(optimum.loss, 6)
    (0.094923, 0.094923)
    """
    K = requirements.num_classes_of_simplex(num_classes, "balanced_loss")
    C = checks.positive_number(budget, "budget", "balanced_loss")
    return math.log1p((K - 1) * math.exp(-K * C / (K - 1)))


def layer_peeled(
    counts: object,
    *,
    budget: float,
    head: Head = "plain",
    spectral_budget: float | None = None,
    feature_budget: FeatureBudget = "class",
    constraint: Constraint = "spectral",
    nonnegative: bool = False,
    solver_steps: int | None = None,
    minority: object = None,
    starts: int = 8,
    rng: int | np.random.Generator = 0,
    raises: bool = True,
) -> LayerPeeledOptimum:
    """Minimise the mean cross-entropy of W G h over classifier, features and head.

    Subject to ‖W‖²/K ≤ E_W, and (1/K) Σ_k ‖h_k‖² ≤ E_H (class budget) or Σ_k (n_k/N) ‖h_k‖² ≤ E_H
    (sample budget).  With a spectral budget on the head and features of any sign this is one convex
    problem in the class logits L, ‖D L‖_* ≤ K C with C = g √(E_W E_H), in which the head is but its
    gain g; the answer is certified by its duality gap.  Otherwise it is the best of several
    starts, and the certificate compares it with the convex problem.

    Parameters
    ----------
    counts : array-like of shape (K,)
        Class sizes, K ≥ 2; only their proportions matter.
    budget : float
        √(E_W E_H); E_W = E_H = budget in the answer.
    head : {"plain", "explicit", "residual", "deq"}
        G = I, M, I + M or (I − A)⁻¹; see `head_gain`.
    spectral_budget : float, optional
        Bound on the norm of M or A, which `constraint` names.
    feature_budget : {"class", "sample"}
    constraint : {"spectral", "frobenius"}
        Norm of M or A.
    nonnegative : bool
        Require h ≥ 0, as after a ReLU.
    solver_steps : int, optional
        Fixed-point steps of the DEQ, from zero; by default its equilibrium.
    minority : list of int, optional
        Classes of `minority_cosine`; by default those smaller than the average class.
    starts, rng
        Of a problem that is not convex.
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
    owner = "layer_peeled"
    sizes = requirements.class_counts(counts, owner)
    root_budget = checks.positive_number(budget, "budget", owner)
    checks.known_name(head, get_args(Head), "head")
    checks.known_name(feature_budget, get_args(FeatureBudget), "feature budget")
    checks.known_name(constraint, get_args(Constraint), "constraint")
    requirements.head_options(head, constraint, solver_steps, owner)
    gain = head_gain(head, spectral_budget, solver_steps)
    chosen = majority_and_minority(sizes).get("minority")
    if minority is not None:
        chosen = requirements.class_indices(minority, len(sizes), "minority", owner)
    number_of_starts = checks.positive_integer(starts, "starts", owner)
    generator = checks.random_generator(rng, owner)

    shares = sizes / sizes.sum()
    scales = feature_scales(shares, feature_budget)
    solution = _convex(sizes, scales, gain, root_budget, feature_budget, spectral_budget)
    if constraint == "frobenius" or nonnegative:
        # The convex solution is kept as the lower bound: ‖A‖₂ ≤ ‖A‖_F, and signs are free there.
        bound = spectral_budget if constraint == "frobenius" else None
        problem = FactoredProblem(shares, scales, root_budget, head, bound, gain, nonnegative)
        solution = _several_starts(problem, solution, spectral_budget, number_of_starts, generator)
    logits = solution.outputs @ solution.classifier.T
    cosine, why = _minority_cosine(solution.classifier, chosen)
    optimum = LayerPeeledOptimum(
        head=head,
        spectral_budget=spectral_budget,
        budget=root_budget,
        feature_budget=feature_budget,
        constraint=constraint,
        nonnegative=nonnegative,
        solver_steps=solver_steps,
        counts=sizes,
        gain=gain,
        loss=math.exp(solution.log_loss),
        log_loss=solution.log_loss,
        logits=logits,
        classifier=solution.classifier,
        features=solution.features,
        head_output=solution.outputs,
        head_matrix=solution.head_matrix,
        rank=int(np.linalg.matrix_rank(logits, rtol=1e-8)),
        certificate=solution.certificate,
        minority_cosine=cosine,
        converged=solution.converged,
        steps=solution.steps,
        reason=solution.reason,
        reasons={"minority_cosine": why} if why else {},
    )
    if raises and not optimum.converged:
        raise NotConverged(
            f"layer_peeled did not converge: {optimum.reason}; {optimum.certificate}.", optimum
        )
    return optimum


@dataclass(frozen=True, eq=False)
class _Solution:
    log_loss: float
    classifier: FloatArray
    features: FloatArray
    outputs: FloatArray
    head_matrix: FloatArray
    certificate: OptimalityCertificate
    converged: bool
    steps: int
    reason: str


def _convex(
    sizes: FloatArray,
    scales: FloatArray,
    gain: float,
    budget: float,
    feature_budget: FeatureBudget,
    spectral_budget: float | None,
) -> _Solution:
    """Solve the convex problem, and split its logits evenly between classifier and features."""
    _, group, members = np.unique(sizes, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")  # classes of equal size side by side
    first = order[np.cumsum(members) - 1]  # one class of each group
    shares = sizes / sizes.sum()
    problem = SymmetricProblem(members, shares[first], scales[first], gain * budget)
    minimum = minimise_on_sphere(problem.model, problem.start())
    X = np.empty((len(sizes), len(sizes)))
    X[np.ix_(order, order)] = problem.logit_matrix(minimum.point)
    left, singular, right = np.linalg.svd(X)
    # ‖X‖_* is the least ½(‖U‖² + ‖V‖²) over X = UVᵀ, attained by an even split of the singular
    # values; the gain g is shared so that ‖W‖ and ‖D H‖ have the same norm, √(K·budget).
    root = np.sqrt(np.where(singular > 1e-10 * singular[0], singular, 0.0))
    outputs = left * (root * math.sqrt(gain)) / scales[:, None]
    classifier = right.T * (root / math.sqrt(gain))
    logits = outputs @ classifier.T
    certificate = optimality_certificate(
        logits, sizes, budget=gain * budget, feature_budget=feature_budget
    )
    return _Solution(
        log_loss=logit_loss(logits, shares)[0],
        classifier=classifier,
        features=outputs / gain,
        outputs=outputs,
        head_matrix=attaining_matrix(spectral_budget, outputs),
        certificate=certificate,
        converged=certificate.certified,
        steps=minimum.steps,
        reason=minimum.reason,
    )


def _several_starts(
    problem: FactoredProblem,
    relaxed: _Solution,
    spectral_budget: float | None,
    starts: int,
    generator: np.random.Generator,
) -> _Solution:
    """Solve a problem that is not convex; its convex relaxation bounds it from below."""
    best = best_of_starts(problem, starts, generator)
    matrix = best.factors.A
    if matrix is None:
        matrix = np.eye(len(problem.shares)) * (1.0 if spectral_budget is None else spectral_budget)
    return _Solution(
        log_loss=best.log_value,
        classifier=best.factors.W,
        features=best.factors.H,
        outputs=best.factors.H @ best.factors.G.T,
        head_matrix=matrix,
        certificate=relaxation_certificate(best.log_value, relaxed.log_loss, relaxed.certificate),
        converged=best.converged and relaxed.converged,
        steps=best.steps,
        reason=best.reason,
    )


def _minority_cosine(W: FloatArray, minority: IntArray | None) -> tuple[float | None, str]:
    if minority is None:
        return None, "all classes have the same size"
    gram = W @ W.T
    # Classifiers of inactive classes are zero up to the accuracy of the solver.
    cosines = cosine_matrix(gram, 1e-8 * math.sqrt(float(np.diag(gram).max())))
    mean, _, _ = angles(cosines, minority)
    return mean.value, mean.reason

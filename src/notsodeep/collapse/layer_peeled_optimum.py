"""The answer of the layer-peeled model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from notsodeep.arrays import FloatArray
from notsodeep.collapse.certificate import FeatureBudget, OptimalityCertificate
from notsodeep.collapse.heads import Head
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

"""Trainable heads z = φ(G h) between a backbone and a classifier, each with one bounded matrix.

================  ==============================  ==================  =================
head              z                               constraint          gain
================  ==============================  ==================  =================
explicit          φ(M h)                          ‖M‖₂ ≤ s            s
residual          φ(h + M h)                      ‖M‖₂ ≤ s            1 + s
deq               z = φ(A z + h), solved for      ‖A‖₂ ≤ ρ            1/(1 − ρ)
deq_monotone      z = φ(A z + h), solved for      (A + Aᵀ)/2 ≤ ρ I    1/(1 − ρ)
deq_truncated     T steps z ← φ(A z + h) from 0   ‖A‖₂ ≤ ρ            (1 − ρ^T)/(1 − ρ)
explicit_matched  φ(M h)                          ‖M‖₂ ≤ 1/(1 − ρ)    1/(1 − ρ)
explicit_started  φ(M h), from (I − ρQ)⁻¹ on      ‖M‖₂ ≤ 1/(1 − ρ)    1/(1 − ρ)
explicit_inverse  φ(B⁻¹ h), from I − ρQ on        ‖B⁻¹‖₂ ≤ 1/(1 − ρ)  1/(1 − ρ)
================  ==============================  ==================  =================

φ is the identity, tanh or ReLU: 1-Lipschitz, φ(0) = 0, and the proximal operator of a convex
function.  The gain is the largest Lipschitz constant of h ↦ z that the constraint allows; with the
identity that is sup ‖G‖₂.  For the monotone head it follows from (I − A)z − h + ∂f(z) ∋ 0, φ =
prox_f, being strongly monotone with constant 1 − ρ (Winston, Kolter, *Monotone operator equilibrium
networks*, NeurIPS 2020).

All have d² parameters and start from one orthogonal Q, elsewhere times their bound.  A step of an
optimiser may leave the set of matrices; `constrain` goes to the nearest point of it, so that
training is projected gradient descent.  Explicit, inverse and equilibrium heads of one gain make a
ladder on which one thing changes at a time: the start, then the parametrisation (gradients reach
G = B⁻¹ as in a DEQ, dG = −G dB G), then the bound, which is on A = I − B in place of G.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep.networks.implicit import Anderson, Solver, SolveRecord, implicit_layer

LABELS = {
    "explicit": "explicit",
    "plain": "plain",  # z = h, of the layer-peeled model alone
    "residual": "residual",
    "deq_truncated": "truncated DEQ",
    "deq": "DEQ",
    "deq_monotone": "monotone DEQ",
    "explicit_matched": "explicit, gain of the DEQ",
    "explicit_started": "explicit, gain and start of the DEQ",
    "explicit_inverse": "inverse, gain and start of the DEQ",
}
"""In the order of tables and legends."""
FIVE_HEADS = ("explicit", "residual", "deq_truncated", "deq", "explicit_matched")
"""The DEQ, its truncation, and the controls of budget and gain."""
KINDS = (
    *FIVE_HEADS[:4], "deq_monotone", "explicit_matched", "explicit_started", "explicit_inverse",
)  # fmt: skip
ACTIVATIONS = {"identity": lambda x: x, "tanh": torch.tanh, "relu": torch.relu}
TOLERANCE, MOST_STEPS = 1e-3, 20  # of Sun, Shi, arXiv 2410.23391


# Matrices on their bound have many singular values that are equal but for rounding.  In single
# precision LAPACK's divide and conquer then fails now and then: with an error, with vectors that
# are not numbers, or, once in four thousand steps of 256 features, silently, with vectors that are
# not orthogonal and a matrix that is lost.  All bounds are therefore kept in double precision,
# where a rounding of 1e-7 is no tie.


@torch.no_grad()
def cut_singular_values(matrix: Tensor, budget: float) -> None:
    """Replace a matrix, in place, by the nearest one with ‖M‖₂ ≤ budget.

    M = U S Vᵀ becomes U min(S, budget) Vᵀ = M − M V (1 − budget/S)₊ Vᵀ, for which the eigenvectors
    V of MᵀM suffice: they are accurate where S is large, and elsewhere M stays as it is.
    """
    if not matrix.isfinite().all():
        return  # the next loss is not finite either, and ends the training with a message
    M = matrix.double()
    squares, vectors = torch.linalg.eigh(M.mT @ M)
    above = squares > budget**2
    if above.any():
        V = vectors[:, above]
        matrix.copy_(M - (M @ V * (1.0 - budget / squares[above].sqrt())) @ V.mT)


class Head(nn.Module):
    """A map of features that depends on one bounded matrix; see the top of this module.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    d : int
    rho : float
        s = ρ in (0, 1).
    rng : int or Generator
    activation : {"identity", "tanh", "relu"}
    steps : int
        T of the truncated DEQ.
    strict : bool
        Solve equilibria to the default tolerance instead of 1e-3, in at most 300 steps.
    dtype : torch.dtype

    Attributes
    ----------
    gain_bound : float
    matrix : Parameter of shape (d, d)
        M, A or B.
    record : SolveRecord or None
        Of the last pass of an equilibrium.
    """

    def __init__(
        self,
        kind: str,
        d: int,
        rho: float,
        rng: int | np.random.Generator,
        *,
        activation: str = "identity",
        steps: int = 3,
        strict: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        gain = 1.0 / (1.0 - rho)
        basis, triangle = np.linalg.qr(np.random.default_rng(rng).standard_normal((d, d)))
        Q = basis * np.sign(np.diag(triangle))
        starts = {
            "explicit_matched": gain * Q,
            "explicit_started": np.linalg.inv(np.eye(d) - rho * Q),
            "explicit_inverse": np.eye(d) - rho * Q,
        }
        gains = {"explicit": rho, "residual": 1.0 + rho, "deq_truncated": gain * (1 - rho**steps)}
        self.kind, self.rho, self.phi, self.steps = kind, rho, ACTIVATIONS[activation], steps
        self.budget = gain if kind in ("explicit_matched", "explicit_started") else rho
        self.gain_bound = gains.get(kind, gain)
        self.matrix = nn.Parameter(torch.from_numpy(starts.get(kind, rho * Q)).to(dtype))
        self.record: SolveRecord | None = None
        # Residuals of step k of plain iteration are below ρ^k(1 + ρ).
        needed = math.ceil(math.log(TOLERANCE / (1.0 + rho)) / math.log(rho))
        if kind == "deq_monotone":  # which plain iteration need not solve
            self.solver = Anderson() if strict else Anderson(TOLERANCE, 5 * MOST_STEPS)
        else:
            self.solver = Solver() if strict else Solver(TOLERANCE, max(MOST_STEPS, needed))

    def forward(self, h: Tensor) -> Tensor:
        """Return z for rows h, shape (n, d)."""
        M, linear = self.matrix, nn.functional.linear
        if self.kind == "residual":
            return self.phi(h + linear(h, M))
        if self.kind == "explicit_inverse":
            return self.phi(torch.linalg.solve(M.mT, h, left=False))
        if self.kind == "deq_truncated":
            z = self.phi(h)
            for _ in range(self.steps - 1):
                z = self.phi(h + linear(z, M))
            return z
        if not self.kind.startswith("deq"):
            return self.phi(linear(h, M))
        preactivations, self.record = implicit_layer(
            lambda p, h, A: linear(self.phi(p), A) + h,
            (h, M),
            h,
            solver=self.solver,
            on_failure="warn" if self.training else "raise",
        )
        return self.phi(preactivations)

    def operator(self) -> Tensor:
        """Return G, shape (d, d): z = G h where φ is the identity, or its slope is one."""
        M, identity = self.matrix, torch.eye(len(self.matrix), dtype=self.matrix.dtype)
        if self.kind == "residual":
            return identity + M
        if self.kind == "explicit_inverse":
            return torch.linalg.inv(M)
        if self.kind == "deq_truncated":
            return sum((torch.linalg.matrix_power(M, k) for k in range(1, self.steps)), identity)
        return torch.linalg.inv(identity - M) if self.kind.startswith("deq") else M

    @torch.no_grad()
    def constrain(self) -> None:
        """Go to the nearest matrix within the budget."""
        M = self.matrix.double()
        if not M.isfinite().all():
            return  # the next loss is not finite either, and ends the training with a message
        if self.kind == "explicit_inverse":  # no singular value below 1 − ρ
            left, singular, right = torch.linalg.svd(M)
            if float(singular[-1]) < 1.0 - self.rho:
                self.matrix.copy_((left * singular.clamp(min=1.0 - self.rho)) @ right)
        elif self.kind == "deq_monotone":
            # In Frobenius norm the skew part is orthogonal to the symmetric one, and stays.
            values, vectors = torch.linalg.eigh(0.5 * (M + M.mT))
            excess = (values - self.rho).clamp(min=0.0)
            if float(excess[-1]) > 0.0:
                self.matrix.copy_(M - (vectors * excess) @ vectors.mT)
        else:
            cut_singular_values(self.matrix, self.budget)


class HeadedNetwork(nn.Module):
    """f(x) = W z with z = head(h), h = backbone(x).

    The head's matrix goes back into its ball after every step, in place of weight decay, which
    would pull it inside and change what the bound means.
    """

    def __init__(self, backbone: Any, head: Head, classifier: nn.Linear) -> None:
        super().__init__()
        self.backbone, self.head, self.classifier = backbone, head, classifier

    @property
    def record(self) -> SolveRecord | None:
        """The solve of the last pass; None if the head has no solver."""
        return self.head.record

    def decays(self, scale_free_decay: float | None) -> dict[str, float]:
        """Return the weight decays of single parameters: that of others is in the settings."""
        names = (f"backbone.{name}" for name in self.backbone.scale_free_names)
        other = {} if scale_free_decay is None else dict.fromkeys(names, scale_free_decay)
        return {"head.matrix": 0.0, **other}

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        return self.classifier(self.head(self.backbone(X)))

"""Trainable heads z = φ(G h) between a backbone and a classifier, each with one bounded matrix.

===========  ==============================  ==================  =================
head         z                               constraint          gain
===========  ==============================  ==================  =================
explicit     φ(M h)                          ‖M‖₂ ≤ s            s
residual     φ(h + M h)                      ‖M‖₂ ≤ s            1 + s
equilibrium  z = φ(A z + h), solved for      ‖A‖₂ ≤ ρ            1/(1 − ρ)
monotone     z = φ(A z + h), solved for      (A + Aᵀ)/2 ≤ ρ I    1/(1 − ρ)
truncated    T steps z ← φ(A z + h) from 0   ‖A‖₂ ≤ ρ            (1 − ρ^T)/(1 − ρ)
inverse      φ(B⁻¹ h)                        ‖B⁻¹‖₂ ≤ 1/(1 − ρ)  1/(1 − ρ)
===========  ==============================  ==================  =================

φ is the identity, tanh or ReLU: 1-Lipschitz, φ(0) = 0, and the proximal operator of a convex
function.  The gain is the largest Lipschitz constant of h ↦ z that the constraint allows; with the
identity that is sup ‖G‖₂.  For the monotone head it follows from (I − A)z − h + ∂f(z) ∋ 0, φ =
prox_f, being strongly monotone with constant 1 − ρ (Winston, Kolter, *Monotone operator equilibrium
networks*, NeurIPS 2020).

All have d² parameters.  A step of an optimiser may leave the set of matrices; `constrain` goes to
the nearest point of it, so that training is projected gradient descent.

Explicit, inverse and equilibrium heads of one gain make a ladder on which one thing changes at a
time.  An explicit head may start as an orthogonal matrix times its budget, or at the DEQ's own
start (I − ρQ)⁻¹.  The inverse head has the same maps as the explicit one, but gradients reach G =
B⁻¹ as in a DEQ, dG = −G dB G.  The DEQ bounds A = I − B in place of G.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from experiments.collapse.head_names import (
    HEAD_ACTIVATIONS,
    HEAD_KINDS,
    HEAD_SOLVERS,
    HeadActivation,
    HeadKind,
    HeadSolver,
)
from notsodeep import checks
from notsodeep.activations import named
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.networks.implicit import (
    DEFAULT_TOLERANCE,
    Anderson,
    Solver,
    SolveRecord,
    as_solver,
    implicit_layer,
)

Start = Literal["orthogonal", "equilibrium"]

TOLERANCE, MOST_STEPS = 1e-3, 20  # of Sun, Shi, arXiv 2410.23391


# Matrices on their bound have many singular values that are equal but for rounding.  In single
# precision LAPACK's divide and conquer then fails now and then: with an error, with vectors that
# are not numbers, or, seen once in four thousand steps of 256 features, silently, with vectors that
# are not orthogonal and a matrix that is lost.  All bounds are therefore kept in double precision,
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


class BoundedHead(nn.Module, ABC):
    """A map of features that depends on one bounded matrix; see the top of this module.

    M or A starts as the spectral budget times an orthogonal matrix Q, the same one for every head
    with the same seed.

    Attributes
    ----------
    num_features : int
        d.
    spectral_budget : float
        s or ρ.
    activation : {"identity", "tanh", "relu"}
        φ.
    matrix : Parameter of shape (d, d)
        M, A or B.
    """

    matrix: nn.Parameter
    _budget_of: ClassVar[str]  # which bound its matrix has

    def __init__(
        self,
        num_features: int,
        spectral_budget: float,
        rng: int | np.random.Generator,
        *,
        activation: HeadActivation = "identity",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        if dtype not in DEFAULT_TOLERANCE:
            raise InvalidInput(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        self.num_features = checks.positive_integer(num_features, "num_features", owner)
        self.spectral_budget = checks.head_budget(self._budget_of, spectral_budget, owner)
        self.activation = checks.known_name(activation, HEAD_ACTIVATIONS, f"activation of {owner}")
        self._phi = torch_twin(named(self.activation))
        orthogonal = _orthogonal(self.num_features, checks.random_generator(rng, owner))
        self.matrix = nn.Parameter(torch.from_numpy(self._start(orthogonal)).to(device, dtype))

    def _start(self, orthogonal: FloatArray) -> FloatArray:
        return self.spectral_budget * orthogonal

    @property
    @abstractmethod
    def gain_bound(self) -> float:
        """The largest gain that the spectral budget allows."""

    @abstractmethod
    def operator(self) -> Tensor:
        """Return G, shape (d, d): z = G h where φ is the identity, or its slope is one."""

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor:
        """Return z for rows h, shape (n, d)."""

    @torch.no_grad()
    def gain(self) -> float:
        """‖G‖₂ of the matrix as it is now."""
        return float(torch.linalg.matrix_norm(self.operator().double(), 2))

    @torch.no_grad()
    def spectral_norm(self) -> float:
        """‖M‖₂, ‖A‖₂ or ‖B‖₂ of the matrix as it is now."""
        return float(torch.linalg.matrix_norm(self.matrix.double(), 2))

    @torch.no_grad()
    def constrain(self) -> None:
        """Go to the nearest matrix within the budget."""
        cut_singular_values(self.matrix, self.spectral_budget)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        sizes = f"num_features={self.num_features}, spectral_budget={self.spectral_budget:g}"
        return sizes if self.activation == "identity" else f"{sizes}, activation={self.activation}"


class ExplicitHead(BoundedHead):
    """z = φ(M h), ‖M‖₂ ≤ s; see `BoundedHead`.

    Parameters
    ----------
    num_features, spectral_budget, rng, activation, dtype, device
        As for every head.
    start : {"orthogonal", "equilibrium"}
        M = s Q; or (I − ρQ)⁻¹ with 1/(1 − ρ) = s, where the DEQ of this gain starts: s > 1.
    """

    _budget_of = "explicit"

    def __init__(
        self,
        num_features: int,
        spectral_budget: float,
        rng: int | np.random.Generator,
        *,
        start: Start = "orthogonal",
        **options: Any,
    ) -> None:
        self._start_of = checks.known_name(start, get_args(Start), "start of ExplicitHead")
        super().__init__(num_features, spectral_budget, rng, **options)

    def _start(self, orthogonal: FloatArray) -> FloatArray:
        if self._start_of == "orthogonal":
            return super()._start(orthogonal)
        if self.spectral_budget <= 1.0:
            remedy = "A DEQ has at least gain one. Use start='orthogonal'."
            requirement = "be above 1 for start='equilibrium'"
            raise checks.invalid(
                "spectral_budget", "ExplicitHead", requirement, self.spectral_budget, remedy
            )
        rho = 1.0 - 1.0 / self.spectral_budget
        return np.asarray(np.linalg.inv(np.eye(len(orthogonal)) - rho * orthogonal), np.float64)

    @property
    def gain_bound(self) -> float:
        """Gain s."""
        return self.spectral_budget

    def operator(self) -> Tensor:
        """Return M."""
        return self.matrix

    def forward(self, h: Tensor) -> Tensor:
        """Return φ(M h) for every row."""
        return self._phi(nn.functional.linear(h, self.matrix))


class InverseHead(BoundedHead):
    """z = φ(B⁻¹ h), ‖B⁻¹‖₂ ≤ 1/(1 − ρ), from B = I − ρQ on; see `BoundedHead`."""

    _budget_of = "deq"

    def _start(self, orthogonal: FloatArray) -> FloatArray:
        return np.asarray(np.eye(len(orthogonal)) - super()._start(orthogonal))

    @property
    def gain_bound(self) -> float:
        """Gain 1/(1 − ρ)."""
        return 1.0 / (1.0 - self.spectral_budget)

    def operator(self) -> Tensor:
        """Return B⁻¹."""
        inverse: Tensor = torch.linalg.inv(self.matrix)
        return inverse

    def forward(self, h: Tensor) -> Tensor:
        """Return φ(B⁻¹ h) for every row."""
        return self._phi(torch.linalg.solve(self.matrix.mT, h, left=False))

    @torch.no_grad()
    def constrain(self) -> None:
        """Go to the nearest matrix with no singular value below 1 − ρ."""
        if self.matrix.isfinite().all():
            left, singular, right = torch.linalg.svd(self.matrix.double())
            least = 1.0 - self.spectral_budget
            if float(singular[-1]) < least:
                self.matrix.copy_((left * singular.clamp(min=least)) @ right)


class ResidualHead(BoundedHead):
    """z = φ(h + M h), ‖M‖₂ ≤ s; see `BoundedHead`."""

    _budget_of = "residual"

    @property
    def gain_bound(self) -> float:
        """Gain 1 + s."""
        return 1.0 + self.spectral_budget

    def operator(self) -> Tensor:
        """Return I + M."""
        return _identity(self.matrix) + self.matrix

    def forward(self, h: Tensor) -> Tensor:
        """Return φ(h + M h) for every row."""
        return self._phi(h + nn.functional.linear(h, self.matrix))


class EquilibriumHead(BoundedHead):
    """The DEQ head: z = φ(A z + h) is solved for, ‖A‖₂ ≤ ρ < 1; see `BoundedHead`.

    The unknowns are the pre-activations p = A φ(p) + h.

    Parameters
    ----------
    num_features, spectral_budget, rng, activation, dtype, device
        As for every head.
    solver : str, dict or Solver, optional
        Of the equilibrium and of its gradient.  By default plain iteration to a relative residual
        of 1e-3 in at most 20 steps, or more where ρ > 0.69 may need more: residuals of step k are
        below ρ^k(1 + ρ).

    Attributes
    ----------
    record : SolveRecord or None
        Of the last pass.  A solve that fails warns in training, and raises in evaluation.
    """

    _budget_of = "deq"

    def __init__(
        self,
        num_features: int,
        spectral_budget: float,
        rng: int | np.random.Generator,
        *,
        solver: str | Mapping[str, Any] | Solver | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_features, spectral_budget, rng, **options)
        self.solver = self._usual_solver() if solver is None else as_solver(solver)
        self.record: SolveRecord | None = None

    def _usual_solver(self) -> Solver:
        rho = self.spectral_budget
        needed = math.log(TOLERANCE / (1.0 + rho)) / math.log(rho) if rho > 0.0 else 1.0
        return Solver(TOLERANCE, max(MOST_STEPS, math.ceil(needed)))

    @property
    def gain_bound(self) -> float:
        """Gain 1/(1 − ρ)."""
        return 1.0 / (1.0 - self.spectral_budget)

    def operator(self) -> Tensor:
        """Return (I − A)⁻¹."""
        inverse: Tensor = torch.linalg.inv(_identity(self.matrix) - self.matrix)
        return inverse

    def forward(self, h: Tensor) -> Tensor:
        """Return the equilibrium z of every row."""
        preactivations, self.record = implicit_layer(
            lambda p, h, A: nn.functional.linear(self._phi(p), A) + h,
            (h, self.matrix),
            h,
            solver=self.solver,
            on_failure="warn" if self.training else "raise",
        )
        return self._phi(preactivations)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return f"{super().extra_repr()}, solver={self.solver}"


class MonotoneHead(EquilibriumHead):
    """The DEQ head with (A + Aᵀ)/2 ≤ ρ I in place of ‖A‖₂ ≤ ρ; see `EquilibriumHead`.

    The equilibrium exists and is unique, but plain iteration need not find it: the usual solver is
    Anderson's, to a relative residual of 1e-3 in at most 100 steps.
    """

    def _usual_solver(self) -> Solver:
        return Anderson(TOLERANCE, 5 * MOST_STEPS)

    @torch.no_grad()
    def constrain(self) -> None:
        """Go to the nearest matrix whose symmetric part has no eigenvalue above ρ."""
        if not self.matrix.isfinite().all():
            return  # as in `cut_singular_values`
        # In Frobenius norm the skew part is orthogonal to the symmetric one, and stays as it is.
        A = self.matrix.double()
        values, vectors = torch.linalg.eigh(0.5 * (A + A.mT))
        excess = (values - self.spectral_budget).clamp(min=0.0)
        if float(excess[-1]) > 0.0:
            self.matrix.copy_(A - (vectors * excess) @ vectors.mT)


class TruncatedHead(BoundedHead):
    """T steps z ← φ(A z + h) from z = 0, differentiated as they are; see `BoundedHead`.

    Parameters
    ----------
    num_features, spectral_budget, rng, activation, dtype, device
        As for every head.
    steps : int
        T; one step is φ.
    """

    _budget_of = "deq"

    def __init__(
        self,
        num_features: int,
        spectral_budget: float,
        rng: int | np.random.Generator,
        *,
        steps: int,
        **options: Any,
    ) -> None:
        super().__init__(num_features, spectral_budget, rng, **options)
        self.steps = checks.positive_integer(steps, "steps", "TruncatedHead")

    @property
    def gain_bound(self) -> float:
        """Gain 1 + ρ + … + ρ^{T−1}."""
        return sum(self.spectral_budget**k for k in range(self.steps))

    def operator(self) -> Tensor:
        """Return I + A + … + A^{T−1}."""
        identity = _identity(self.matrix)
        total = identity
        for _ in range(self.steps - 1):
            total = identity + self.matrix @ total
        return total

    def forward(self, h: Tensor) -> Tensor:
        """Return the last iterate for every row."""
        z = self._phi(h)
        for _ in range(self.steps - 1):
            z = self._phi(h + nn.functional.linear(z, self.matrix))
        return z

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return f"{super().extra_repr()}, steps={self.steps}"


def make_head(
    kind: HeadKind,
    num_features: int,
    spectral_budget: float,
    rng: int | np.random.Generator,
    *,
    activation: HeadActivation = "identity",
    truncated_steps: int = 3,
    solver: HeadSolver = "paper",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> BoundedHead:
    """Make one of the heads that are compared at one spectral budget.

    Parameters
    ----------
    kind : str
        One of `HEAD_KINDS`; those that begin with ``explicit_`` have the gain of the DEQ.
    num_features : int
        d.
    spectral_budget : float
        s = ρ, in (0, 1).
    rng : int or numpy.random.Generator
        Seed of the matrix.
    activation : {"identity", "tanh", "relu"}
        φ.
    truncated_steps : int
        T of "deq_truncated".
    solver : {"paper", "strict"}
        Of "deq" and "deq_monotone": to a relative residual of 1e-3; or to 1e-6 in float32 and
        1e-12 in float64, in at most 300 steps.
    dtype, device
        Of the matrix.

    Examples
    --------
    >>> {kind: make_head(kind, 16, 0.5, rng=0).gain_bound for kind in HEAD_KINDS[:4]}
    {'explicit': 0.5, 'residual': 1.5, 'deq_truncated': 1.75, 'deq': 2.0}
    >>> {make_head(kind, 16, 0.5, rng=0).gain_bound for kind in HEAD_KINDS[3:]}
    {2.0}
    """
    checks.known_name(kind, HEAD_KINDS, "head")
    strict = checks.known_name(solver, HEAD_SOLVERS, "solver of a head") == "strict"
    options: dict[str, Any] = {"activation": activation, "dtype": dtype, "device": device}
    match kind:
        case "explicit":
            return ExplicitHead(num_features, spectral_budget, rng, **options)
        case "residual":
            return ResidualHead(num_features, spectral_budget, rng, **options)
        case "deq":
            options["solver"] = Solver() if strict else None
            return EquilibriumHead(num_features, spectral_budget, rng, **options)
        case "deq_monotone":
            options["solver"] = Anderson() if strict else None
            return MonotoneHead(num_features, spectral_budget, rng, **options)
        case "deq_truncated":
            options["steps"] = truncated_steps
            return TruncatedHead(num_features, spectral_budget, rng, **options)
        case "explicit_inverse":
            return InverseHead(num_features, spectral_budget, rng, **options)
        case "explicit_matched" | "explicit_started":
            gain = 1.0 / (1.0 - checks.head_budget("deq", spectral_budget, "make_head"))
            options["start"] = "orthogonal" if kind == "explicit_matched" else "equilibrium"
            return ExplicitHead(num_features, gain, rng, **options)


def _orthogonal(size: int, generator: np.random.Generator) -> FloatArray:
    """Draw an orthogonal matrix, uniform among all."""
    basis, triangle = np.linalg.qr(generator.standard_normal((size, size)))
    return np.asarray(basis * np.sign(np.diag(triangle)))


def _identity(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype, device=like.device)

"""Monotone equilibrium networks at random initialisation.

A monDEQ (Winston and Kolter) is z = φ(W z + U x) with W = (1 − μ)I − AᵀA + B − Bᵀ, which makes its
fixed point unique whatever A and B are.  W is not a matrix of independent entries: A and Aᵀ, B and
−Bᵀ react on themselves.  The limit below is that of the cavity method, confirmed by simulation; no
published theorem covers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.optimize import brentq

from notsodeep import checks
from notsodeep.activations import Activation, as_activation, with_skip
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.records import Record


class Response(NamedTuple):
    """A unit of a monotone network in a Gaussian field of standard deviation one."""

    activation: Activation  # g ↦ y, the solution of y = φ(ωy + g)
    feedback: float  # ω
    susceptibility: float  # χ = E ∂y/∂g
    coupling: float  # r = a²/(1 + a²χ): r² is what AᵀA adds to the weight of a pair


@dataclass(frozen=True, repr=False)
class MonotoneEquilibrium(Record):
    """A monotone equilibrium network z = φ(W z + √inject·U x + √bias·β), W monotone.

    W = (1 − μ)I − AᵀA + B − Bᵀ, the entries of A and B independent with variances symmetric/m and
    skew/m, m the width.  A unit reacts on itself through A and B, so that in the limit of large
    width y = φ(ωy + g) with g Gaussian, ω = 1 − μ − 2b²χ − a²/(1 + a²χ) and χ = E ∂y/∂g.  For a φ
    of the ReLU family χ does not depend on the scale of g, so that all samples share one ω.

    Parameters
    ----------
    activation : str or Activation
        φ, ReLU or a leaky ReLU with slopes from 0 to 1.
    monotonicity : float, default 1
        μ > 0.
    symmetric, skew : float
        a² and b², m times the variances of the entries of A and B.  The default initialisation of
        torch.nn.Linear makes both 1/3.
    inject, bias : float
        Variances of the entries of U and β.

    Examples
    --------
    >>> model = MonotoneEquilibrium("relu", monotonicity=1.0)
    >>> print(model)
    monotone DEQ(relu, μ = 1, a² = 0.333333, b² = 0.333333)
    >>> round(model.response.feedback, 4)
    -0.5197
    """

    _derived: ClassVar[tuple[str, ...]] = ("kind",)
    kind: ClassVar[str] = "monotone_equilibrium"

    activation: Activation
    monotonicity: float = 1.0
    symmetric: float = 1.0 / 3.0
    skew: float = 1.0 / 3.0
    inject: float = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        owner = "MonotoneEquilibrium"
        phi = as_activation(self.activation)
        object.__setattr__(self, "activation", phi)
        checks.positive_number(self.monotonicity, "monotonicity", owner)
        for name in ("symmetric", "skew", "bias"):
            checks.at_least_zero(getattr(self, name), name, owner, "It is a variance.")
        checks.positive_number(self.inject, "inject", owner, "Nothing of x would enter.")
        slopes = None if phi.shift else phi.hinge
        if slopes is None or not (min(slopes) >= 0.0 and 0.0 < max(slopes) <= 1.0):
            raise checks.invalid(
                "activation",
                owner,
                "be of the ReLU family, with slopes from 0 to 1",
                str(phi),
                "Of other activations each sample has a unit of its own, and no kernel here.",
            )

    @cached_property
    def response(self) -> Response:
        """How a unit responds to a Gaussian field: ω, χ and r, the same at every scale."""
        a2, b2 = self.symmetric, self.skew

        def at(chi: float) -> tuple[Activation, float]:
            # The diagonal of W, and Onsager's reaction of a unit to itself through B and A:
            # docs/theory/cells.md, "Monotone networks".
            omega = 1.0 - self.monotonicity - 2.0 * b2 * chi - a2 / (1.0 + a2 * chi)
            return with_skip(self.activation, omega), omega

        # y′ = φ′/(1 − ωφ′) ≤ 1/μ for slopes of at most one, since ω ≤ 1 − μ; slopes are positive at
        # χ = 0, so that there is a change of sign.
        chi = float(
            brentq(
                lambda chi: float(at(chi)[0].moments(1.0).slope) - chi,
                0.0,
                1.0 / self.monotonicity + 1e-9,
                xtol=1e-16,
                rtol=4.0 * np.finfo(float).eps,
            )
        )
        activation, omega = at(chi)
        return Response(activation, omega, chi, a2 / (1.0 + a2 * chi))

    @property
    def unit(self) -> Activation:
        """What a unit does to its field."""
        return self.response.activation

    def scales(self, squared_norms: FloatArray) -> FloatArray:
        """Return √q of every sample, where q = (2b² + r²) E y² + u‖x‖² + c and E y² ∝ q."""
        gain = (2.0 * self.skew + self.response.coupling**2) * self.unit.moments(1.0).square
        if not gain < 1.0:
            raise NotConverged(
                f"The variance of the {self} has no solution: it grows by {gain:.4g} in each step. "
                "Use a larger monotonicity or smaller variances."
            )
        q = (self.inject * squared_norms + self.bias) / (1.0 - gain)
        return np.asarray(np.maximum(np.sqrt(q), LEAST_SCALE))

    def __str__(self) -> str:
        return (
            f"monotone DEQ({self.activation}, μ = {self.monotonicity:g}, a² = {self.symmetric:g}, "
            f"b² = {self.skew:g})"
        )

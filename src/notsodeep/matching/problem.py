"""What every family is asked: the kernel of a DEQ, on data of some scale or on given rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from notsodeep.activations import Moments
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Expansion, expansion
from notsodeep.equivalents.distances import frobenius_scale, operator_norm, without_constant
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.kernels.fixed_pairs import FixedPairs
from notsodeep.matching.certificate import CLOSE
from notsodeep.matching.record import Match, Target
from notsodeep.models import (
    Conditions,
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    conditions,
)

NAMES = ("linear", "norm_fluctuation", "covariance_overlap", "scale2")
"""The four coefficients, in the order of `Expansion.four`."""

EIGHT = (
    "constant",
    "linear",
    "norm_shift",
    "norm_curvature",
    "norm_fluctuation",
    "covariance_overlap",
    "rescaling",
    "scale2",
)
"""Those of `Expansion`: seven that an equivalent needs, and `rescaling`, which sharpens it."""

_POWERS = {"constant": 0, "linear": 2, "norm_shift": 2, "scale2": 0}  # of τ0; 4 for the others

SAMPLE = 300
"""Rows on which networks are compared and refined, at most."""


class Four(NamedTuple):
    """What a centred kernel has; see `Expansion.four`."""

    linear: float
    norm_fluctuation: float
    covariance_overlap: float
    scale2: float


def four_of_layers(layers: Iterable[Moments], tau0: float, kind: KernelName) -> Four:
    """Return the coefficients of centred layers from their moments (arXiv 2403.00258)."""
    a1, a2, a3, a4 = 1.0, 0.0, 0.0, 1.0
    b1, b2, b3 = 1.0, 0.0, 0.0
    square = tangent = tau0**2
    for m in layers:
        gain, bend = float(m.slope) ** 2, float(m.curvature) ** 2
        b3 = gain * a3 + 0.5 * bend * a1**2 + gain * b3 + bend * b1 * a1
        # a4 = ∂τ_l²/∂‖x‖² is how fast the scale itself follows the norm.
        b2 = gain * a2 + 0.25 * bend * a4**2 + gain * b2
        b1 = gain * a1 + gain * b1
        a3 = gain * a3 + 0.5 * bend * a1**2
        a2 = gain * a2 + 0.25 * bend * a4**2
        a1, a4 = gain * a1, 0.5 * float(m.square_curvature) * a4
        square = float(m.square)
        tangent = square + float(m.slope_square) * tangent
    return Four(b1, b2, b3, tangent) if kind == "ntk" else Four(a1, a2, a3, square)


@dataclass(frozen=True, eq=False)
class Problem:
    """Find a network whose kernel is that of a DEQ.

    Attributes
    ----------
    model : DeepEquilibrium
    tau0 : float or None
        Scale of the data; None if only the sphere is spoken of.
    kind : {"ck", "ntk"}
    convention : {"preactivation", "feature"}
    X : ndarray of shape (n, p) or None
        The data.
    rows : ndarray or None
        Some of them in random order, so that the first ones are as good as any.
    dimension : int or None
        Of the data.
    unit : bool
        Whether the data has norm one.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> problem = Problem(nsd.DeepEquilibrium("relu", sigma_a2=0.2), tau0=1.0)
    >>> [round(value, 4) for value in problem.target]
    [0.2105, 0.0359, 0.0692, 0.2926]
    """

    model: DeepEquilibrium
    tau0: float | None = None
    kind: KernelName = "ck"
    convention: Convention = "feature"
    X: FloatArray | None = None
    rows: FloatArray | None = None
    dimension: int | None = None
    unit: bool = False

    @property
    def scale(self) -> float:
        """tau0, where it is known to be given."""
        assert self.tau0 is not None
        return self.tau0

    @cached_property
    def is_centred(self) -> bool:
        """Whether four coefficients are all that the kernel depends on."""
        e = self.expansion
        return abs(e.constant) <= 1e-14 * e.scale2 and abs(e.norm_shift) <= 1e-14 * e.scale2

    @property
    def which(self) -> dict[str, Any]:
        """The kernel and its convention, as keywords."""
        return {"kind": self.kind, "convention": self.convention}

    # Coefficients of the mixture theory ----------------------------------------------------------

    @cached_property
    def target(self) -> Four:
        """The four coefficients that are left for a network of mean zero.

        A mean of √constant in its last layer adds `constant` to its kernel.
        """
        return Four(*self.expansion.four)

    @cached_property
    def expansion(self) -> Expansion:
        """The coefficients of the DEQ's kernel."""
        return expansion(self.model, self.scale, **self.which)

    def achieved(self, network: ExplicitNetwork) -> Four:
        """Coefficients of a network that is centred at tau0."""
        return Four(*expansion(network, self.scale, kind=self.kind).four)

    def achieved_by(self, layers: Iterable[Moments]) -> Four:
        """Coefficients of a network that is given by the moments of its layers."""
        return four_of_layers(layers, self.scale, self.kind)

    def mismatch(self, reached: Four | Expansion) -> FloatArray:
        """Return the differences of all coefficients in units of the target's diagonal.

        (Δlinear·τ0², Δnorm_fluctuation·τ0⁴, Δcovariance_overlap·τ0⁴, Δscale2)/scale2, and so on.
        """
        target = self.expansion if isinstance(reached, Expansion) else self.target
        names = numbers_of(reached)
        got, wanted = (np.array([getattr(each, n) for n in names]) for each in (reached, target))
        return np.asarray((got - wanted) * self.units(names) / target.scale2)

    def units(self, names: Iterable[str]) -> FloatArray:
        """Return the powers of τ0 that make coefficients comparable to the diagonal."""
        return np.array([self.scale ** _POWERS.get(name, 4) for name in names])

    # Exact kernels on rows -----------------------------------------------------------------------

    def wanted(self, X: FloatArray) -> FloatArray:
        """Return the kernel to match on rows X."""
        return np.asarray(exact_kernel(self.model, X, kind=self.kind, convention=self.convention))

    @property
    def judged_rows(self) -> int:
        """Number of rows on which networks are compared; 0 without data."""
        return 0 if self.rows is None else len(self.rows[:SAMPLE])

    def scored(self, found: Match) -> Match:
        """Return the answer with its score: how far its kernel is, as certificates see it.

        On rows the larger of two relative gaps, of the kernels as they are, and without their
        constant part at the best scale: what a tuned read-out with a bias sees.  Without rows the
        largest residual over the diagonal.
        """
        if found.fitted is None:
            return found
        if self.rows is None:
            largest = max((abs(value) for value in found.residuals.values()), default=0.0)
            assert found.target is not None
            return replace(found, score=largest / found.target.scale2)
        K = self.sample.matrix(self.sample.kernel(found.network, self.kind, "feature"))
        raw = operator_norm(self._sampled - K) / self._norms[0]
        centred = without_constant(K)
        scale = frobenius_scale(self._centred, centred)
        free = operator_norm(self._centred - scale * centred) / self._norms[1]
        return replace(found, score=max(raw, free))

    @cached_property
    def sample(self) -> FixedPairs:
        """The rows by which networks are compared."""
        assert self.rows is not None
        return FixedPairs(self.rows[:SAMPLE])

    def is_close(self, found: Match) -> bool:
        """Whether a deeper network is not worth its cost."""
        return self.rows is not None and found.score <= CLOSE

    @cached_property
    def _sampled(self) -> FloatArray:
        """The DEQ's kernel on the rows by which networks are compared."""
        return self.sample.matrix(self.sample.kernel(self.model, self.kind, self.convention))

    @cached_property
    def _centred(self) -> FloatArray:
        return without_constant(self._sampled)

    @cached_property
    def _norms(self) -> tuple[float, float]:
        return operator_norm(self._sampled), max(operator_norm(self._centred), 1e-300)

    @cached_property
    def _conditions(self) -> dict[float, Conditions]:
        return {}

    # The record of an answer ---------------------------------------------------------------------

    def answer(
        self,
        family: str,
        tau0: float,
        target: Target,
        reason: str,
        *,
        network: ExplicitNetwork | None = None,
        parameters: dict[str, float] | None = None,
        achieved: Target | None = None,
        residuals: dict[str, float] | None = None,
        feasible: bool = False,
    ) -> Match:
        """Put what a family found, or why it found nothing, on record.  As `Match` has them."""
        if tau0 not in self._conditions:
            self._conditions[tau0] = conditions(self.model, self.X, tau0=tau0)
        return Match(
            family=family,
            model=self.model,
            fitted=network,
            parameters=parameters or {},
            target=target,
            achieved=achieved,
            residuals=residuals or {},
            feasible=feasible,
            reason=reason,
            conditions=self._conditions[tau0],
            kind=self.kind,
            convention=self.convention,
            tau0=tau0,
        )


def numbers_of(coefficients: Four | Expansion) -> tuple[str, ...]:
    """Return the names of the coefficients that a match compares."""
    return EIGHT if isinstance(coefficients, Expansion) else NAMES

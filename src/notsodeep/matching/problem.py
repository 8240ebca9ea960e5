"""What every family is asked: the kernel of a DEQ, on data of some scale or on given rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from notsodeep.activations import Moments
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Coefficients, Expansion, coefficients, conditions, expansion
from notsodeep.equivalents.distances import centred_norm, operator_norm
from notsodeep.equivalents.mixture_coefficients import coefficients_of_layers
from notsodeep.kernels.plan import FixedPairs
from notsodeep.matching.match_record import Match, Target
from notsodeep.matching.refinement import MeasuredKernel, wanted_kernel
from notsodeep.models import Conditions, Convention, DeepEquilibrium, ExplicitNetwork, KernelName

NAMES = ("linear", "norm_fluctuation", "covariance_overlap", "scale2")
"""The four coefficients, in the order of `Coefficients.four`."""

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

CLOSE = 0.01
"""Relative gap below which the network with fewer layers is taken."""

SAMPLE = 300
"""Rows on which networks are compared and refined, at most."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Find a network whose kernel is that of a DEQ.

    Attributes
    ----------
    deq : DeepEquilibrium
        As it was given; `centred` is what the theory of four coefficients is about.
    tau0 : float or None
        Scale of the data; None if only the sphere is spoken of.
    kernel : {"conjugate", "tangent"}
    convention : {"preactivation", "feature"}
    X : ndarray of shape (n, p) or None
        The data.
    rows : ndarray or None
        Some of them in random order, so that the first ones are as good as any.
    dimension : int or None
        Of the data.
    unit : bool
        Whether the data has norm one.
    measured : callable or None
        Rows ↦ the kernel to match on data, in place of the exact one of the DEQ.
    centre : bool
        Whether the centred DEQ is matched in place of the one that was given.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> problem = Problem(nsd.DeepEquilibrium("relu", sigma_a2=0.2), tau0=1.0)
    >>> [round(value, 4) for value in problem.target.four]
    [0.2105, 0.036, 0.0692, 0.2926]
    """

    deq: DeepEquilibrium
    tau0: float | None = None
    kernel: KernelName = "conjugate"
    convention: Convention = "feature"
    X: FloatArray | None = None
    rows: FloatArray | None = None
    dimension: int | None = None
    unit: bool = False
    measured: MeasuredKernel | None = None
    centre: bool = True
    _on_sample: dict[DeepEquilibrium, FloatArray] = field(default_factory=dict, init=False)
    _sizes: dict[DeepEquilibrium, float] = field(default_factory=dict, init=False)
    _conditions: dict[DeepEquilibrium, Conditions] = field(default_factory=dict, init=False)

    @property
    def scale(self) -> float:
        """tau0, where it is known to be given."""
        assert self.tau0 is not None
        return self.tau0

    @cached_property
    def centred(self) -> DeepEquilibrium:
        """The DEQ centred at tau0."""
        return self.deq.centred(self.scale)

    @property
    def subject(self) -> DeepEquilibrium:
        """The DEQ that is to be matched."""
        return self.centred if self.centre else self.deq

    @property
    def which(self) -> dict[str, Any]:
        """The kernel and its convention, as keywords."""
        return {"kernel": self.kernel, "convention": self.convention}

    # Coefficients of the mixture theory ----------------------------------------------------------

    @cached_property
    def target(self) -> Coefficients:
        """The four coefficients of the DEQ's kernel.

        Of a DEQ that is not centred they are those that are left for a network of mean zero: one
        layer of mean √constant adds `constant` to the kernel of the same layer without its mean.
        """
        if self.centre:
            return coefficients(self.centred, self.scale, **self.which)
        e = self.expansion
        rest = e.scale2 - e.constant
        four = (e.linear, e.norm_fluctuation, e.covariance_overlap, rest)
        return Coefficients(*four, tau0=self.scale)

    @cached_property
    def expansion(self) -> Expansion:
        """The coefficients of the kernel of `subject`, centred or not."""
        return expansion(self.subject, self.scale, **self.which)

    def achieved(self, network: ExplicitNetwork) -> Coefficients:
        """Coefficients of a network that is centred at tau0."""
        return coefficients(network, self.scale, kernel=self.kernel)

    def achieved_by(self, layers: Iterable[Moments]) -> Coefficients:
        """Coefficients of a network that is given by the moments of its layers."""
        return coefficients_of_layers(layers, self.scale, self.kernel)

    def mismatch(self, reached: Coefficients | Expansion) -> FloatArray:
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

    def wanted(self, deq: DeepEquilibrium, X: FloatArray) -> FloatArray:
        """Return the kernel to match on rows X: the measured one, or the exact one of the DEQ."""
        return wanted_kernel(deq, X, self.kernel, self.convention, self.measured)

    @property
    def judged_rows(self) -> int:
        """Number of rows on which networks are compared; 0 without data."""
        return 0 if self.rows is None else len(self.rows[:SAMPLE])

    def score(self, found: Match) -> float:
        """Return the exact-kernel gap on rows, or the largest residual over the diagonal."""
        if found.fitted is None:
            return math.nan
        if self.rows is None:
            largest = max((abs(value) for value in found.residuals.values()), default=0.0)
            return largest / found.target.size
        reached = self.sample.kernel(found.fitted, self.kernel, "feature")
        return operator_norm(self._sampled(found.deq) - self.sample.matrix(reached))

    @cached_property
    def sample(self) -> FixedPairs:
        """The rows by which networks are compared."""
        assert self.rows is not None
        return FixedPairs(self.rows[:SAMPLE])

    def is_close(self, found: Match) -> bool:
        """Whether the gap on rows is so small that a deeper network is not worth its cost.

        A hundredth of the DEQ's kernel without its constant part, which would make any gap small.
        """
        if self.rows is None or found.fitted is None:
            return False
        if found.deq not in self._sizes:
            self._sizes[found.deq] = centred_norm(self._sampled(found.deq))
        return found.score <= CLOSE * self._sizes[found.deq]

    def _sampled(self, deq: DeepEquilibrium) -> FloatArray:
        """Return the DEQ's kernel on the rows by which networks are compared."""
        if deq not in self._on_sample:  # most families have it in common
            assert self.rows is not None
            if self.measured is None:
                entries = self.sample.kernel(deq, self.kernel, self.convention)
                self._on_sample[deq] = self.sample.matrix(entries)
            else:
                self._on_sample[deq] = self.wanted(deq, self.rows[:SAMPLE])
        return self._on_sample[deq]

    # The record of an answer ---------------------------------------------------------------------

    def answer(
        self,
        family: str,
        deq: DeepEquilibrium,
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
        if deq not in self._conditions:
            self._conditions[deq] = conditions(deq, self.X, tau0=tau0)
        return Match(
            family=family,
            deq=deq,
            fitted=network,
            parameters=parameters or {},
            target=target,
            achieved=achieved,
            residuals=residuals or {},
            feasible=feasible,
            reason=reason,
            conditions=self._conditions[deq],
            kernel=self.kernel,
            convention=self.convention,
            tau0=tau0,
            measured=self.measured,
        )


def numbers_of(coefficients: Coefficients | Expansion) -> tuple[str, ...]:
    """Return the names of the coefficients that a match compares."""
    return EIGHT if isinstance(coefficients, Expansion) else NAMES

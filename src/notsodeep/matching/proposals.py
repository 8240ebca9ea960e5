"""What each family proposes for a DEQ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.checks import FloatArray
from notsodeep.equivalents import coefficients, sphere_coefficients
from notsodeep.matching.coefficient_fit import NAMES
from notsodeep.matching.dual_activation import KernelSeries, dual_activation, kernel_series
from notsodeep.matching.family import Family, MixtureTask, Solution
from notsodeep.matching.match_record import Target
from notsodeep.matching.piecewise_families import (
    HARD_TANH,
    LEAKY_RELU,
    PIECEWISE_LINEAR,
    TWO_LEAKY_RELU,
)
from notsodeep.matching.polynomial_families import CUBIC, QUADRATIC, TWO_CUBIC
from notsodeep.matching.refinement import (
    MeasuredKernel,
    Refinement,
    exact_kernel,
    refined,
    wanted_kernel,
)
from notsodeep.matching.sphere_quadratic import quadratic_network, solve_sphere_quadratic
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, KernelName
from notsodeep.numerics.matrix_norms import operator_norm

_FAMILIES: dict[tuple[str, int], Family] = {
    ("leaky_relu", 1): LEAKY_RELU,
    ("leaky_relu", 2): TWO_LEAKY_RELU,
    ("hard_tanh", 1): HARD_TANH,
    ("piecewise_linear", 1): PIECEWISE_LINEAR,
    ("quadratic", 2): QUADRATIC,
    ("cubic", 1): CUBIC,
    ("cubic", 2): TWO_CUBIC,
}
_DEFAULT_LAYERS = {"quadratic": 2}
DRAWN = 2000
"""Rows of the data that are looked at, at most."""
_SAMPLE = 300  # of them, on which proposals are compared and refined
_DUAL_REMAINDER = 1e-10
_DUAL_DEGREE = 32


@dataclass(frozen=True, eq=False)
class Proposal:
    """A network of one family, and how well it meets its target.

    Attributes are those of `Match`; `source` is the family it can be refined in.
    """

    family: str
    deq: DeepEquilibrium
    network: ExplicitNetwork | None
    parameters: dict[str, float]
    target: Target
    achieved: Target | None
    residuals: dict[str, float]
    feasible: bool
    reason: str
    tau0: float
    lipschitz: bool = False
    source: Family | None = None
    refinement: Refinement | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """What every family is asked.

    Attributes
    ----------
    deq : DeepEquilibrium
    tau0 : float or None
        None if only the sphere is spoken of.
    rows : ndarray or None
        Rows of the data in random order, so that the first ones are as good as any.
    dimension : int or None
        Of the data.
    unit : bool
        Whether the data has norm one.
    kernel, convention : str
    degree : int or None
        Of the dual activation.
    measured : callable or None
        Rows ↦ the kernel to match on data, in place of the exact one of the DEQ.
    """

    deq: DeepEquilibrium
    tau0: float | None
    rows: FloatArray | None
    dimension: int | None
    unit: bool
    kernel: KernelName
    convention: Convention
    degree: int | None
    measured: MeasuredKernel | None
    _on_sample: dict[DeepEquilibrium, FloatArray] = field(default_factory=dict, init=False)

    def wanted(self, deq: DeepEquilibrium, X: FloatArray) -> FloatArray:
        """Return the kernel to match on rows X: the measured one, or the exact one of the DEQ."""
        return wanted_kernel(deq, X, self.kernel, self.convention, self.measured)

    def _wanted_on_sample(self, deq: DeepEquilibrium) -> FloatArray:
        """Return the kernel to match where proposals are compared; most have the DEQ in common."""
        if deq not in self._on_sample:
            self._on_sample[deq] = self.wanted(deq, self._sample)
        return self._on_sample[deq]

    @property
    def _sample(self) -> FloatArray:
        assert self.rows is not None
        return self.rows[:_SAMPLE]

    @property
    def judged_rows(self) -> int:
        """Number of rows on which proposals are compared; 0 without data."""
        return 0 if self.rows is None else len(self._sample)

    def ask_all(self) -> list[Proposal]:
        """Ask every family that applies, the simplest first."""
        if self.tau0 is None:
            return [self.ask("dual", None), self.ask("quadratic", None)]
        names = ["leaky_relu", "hard_tanh", "piecewise_linear"]
        proposals = [self.ask(name, None) for name in names]
        proposals += [self.ask_family(QUADRATIC), self.ask("cubic", None)]
        return [self.ask("dual", None), *proposals] if self.unit else proposals

    def ask(self, name: str, layers: int | None) -> Proposal:
        """Ask one family by name."""
        if name == "dual":
            return self._dual()
        if name == "quadratic" and self.unit and layers in (None, 1):
            return self._sphere_quadratic()
        depth = layers if layers is not None else _DEFAULT_LAYERS.get(name, 1)
        if (name, depth) not in _FAMILIES:
            allowed = sorted(d for n, d in _FAMILIES if n == name)
            remedy = "One quadratic layer is for the sphere." if name == "quadratic" else ""
            requirement = f"be one of {allowed} for {name}"
            raise checks.refusal("layers", "match", requirement, repr(layers), remedy)
        if self.tau0 is None:
            remedy = "Pass X or tau0=…; sphere=… serves 'quadratic' and 'dual' only."
            raise checks.refusal("tau0", "match", f"be given for {name}", None, remedy)
        return self.ask_family(_FAMILIES[name, depth])

    def ask_family(self, family: Family) -> Proposal:
        """Ask a family that meets the coefficients of the mixture theory."""
        task = self._task
        return _on_mixtures(task, family, family.solve(task))

    @cached_property
    def _task(self) -> MixtureTask:
        assert self.tau0 is not None
        deq = self.deq.centred(self.tau0)
        target = coefficients(deq, self.tau0, kernel=self.kernel, convention=self.convention)
        return MixtureTask(deq, self.tau0, self.kernel, self.convention, target)

    @property
    def _which(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "convention": self.convention}

    def _sphere_quadratic(self) -> Proposal:
        assert self.dimension is not None
        target = sphere_coefficients(self.deq, self.dimension, **self._which)
        solution = solve_sphere_quadratic(target, self.dimension, self.kernel)
        proposal = Proposal(
            family="quadratic",
            deq=self.deq,
            network=None,
            parameters={},
            target=target,
            achieved=None,
            residuals={},
            feasible=solution.feasible,
            reason=solution.reason,
            tau0=1.0,
        )
        if solution.parameters is None:
            return proposal
        a2, a1, a0 = (float(value) for value in solution.parameters)
        network = quadratic_network((a2, a1, a0))
        achieved = sphere_coefficients(network, self.dimension, kernel=self.kernel)
        met = ("constant", "linear", "diagonal")
        return replace(
            proposal,
            network=network,
            parameters={"a2": a2, "a1": a1, "a0": a0},
            achieved=achieved,
            residuals={name: getattr(achieved, name) - getattr(target, name) for name in met},
        )

    def _dual(self) -> Proposal:
        most = self.degree if self.degree is not None else _DUAL_DEGREE
        whole = kernel_series(self.deq, degree=most, **self._which)
        series = whole if self.degree is not None else _short_enough(whole)
        size = len(series.coefficients)
        natural = self.deq.activation.hermite_coefficients(np.ones(1), size)[0]
        activation = dual_activation(series, self.kernel, natural)
        worst = f"an entry is off by at most {series.error_bound(1.0):.2g}"
        if self.rows is not None:
            cosine = _largest_cosine(self.rows)
            bound = series.error_bound(cosine)
            among = f"{len(self.rows)} rows of the data"
            worst += f", {bound:.2g} for |x·y| ≤ {cosine:.3g} as among {among}"
        return Proposal(
            family="dual",
            deq=self.deq,
            network=ExplicitNetwork([activation]),
            parameters={f"c{k}": c for k, c in enumerate(activation.coefficients)},
            target=whole,
            achieved=series,
            residuals={"remainder": series.remainder},
            feasible=True,
            reason=f"the same power series up to degree {size - 1}: {worst}",
            tau0=1.0,
        )

    def score(self, proposal: Proposal) -> float:
        """Return the exact-kernel gap on rows, or the largest residual over the diagonal."""
        if proposal.network is None:
            return math.nan
        if self.rows is not None:
            reached = exact_kernel(proposal.network, self._sample, self.kernel, "feature")
            return operator_norm(self._wanted_on_sample(proposal.deq) - reached)
        largest = max((abs(value) for value in proposal.residuals.values()), default=0.0)
        return largest / proposal.target.size

    def refine(self, proposal: Proposal) -> Proposal:
        """Refine the parameters on the data; what has none to refine is returned as it is."""
        family = proposal.source
        if family is None or self.rows is None or proposal.network is None:
            return proposal
        task = self._task
        middle = min(_SAMPLE, len(self.rows) // 2)
        parameters, record = refined(
            lambda X: self.wanted(task.deq, X),
            lambda x: family.build(x, task.tau0),
            np.array(list(proposal.parameters.values())),
            self.rows[:middle],
            self.rows[middle : 3 * middle],
            self.kernel,
            family.bounds,
        )
        if not record.kept:
            return replace(proposal, refinement=record)
        reason = f"{proposal.reason} before it was refined on {record.rows} rows"
        solution = Solution(parameters, proposal.feasible, reason)
        return replace(_on_mixtures(task, family, solution), refinement=record)


def _on_mixtures(task: MixtureTask, family: Family, solution: Solution) -> Proposal:
    """Put a family's solution beside its target."""
    proposal = Proposal(
        family=family.name,
        deq=task.deq,
        network=None,
        parameters={},
        target=task.target,
        achieved=None,
        residuals={},
        feasible=solution.feasible,
        reason=solution.reason,
        tau0=task.tau0,
        lipschitz=family.lipschitz,
        source=family,
    )
    if solution.parameters is None:
        return proposal
    network = family.build(solution.parameters, task.tau0)
    achieved = task.achieved(network)
    return replace(
        proposal,
        network=network,
        parameters=_named(family.parameter_names, solution.parameters),
        achieved=achieved,
        residuals=_named(NAMES, np.subtract(achieved.four, task.target.four)),
    )


def _named(names: Sequence[str], values: ArrayLike) -> dict[str, float]:
    return {name: float(v) for name, v in zip(names, np.asarray(values), strict=True)}


def _short_enough(series: KernelSeries) -> KernelSeries:
    """Cut at the smallest degree with a negligible remainder, if there is one."""
    tails = series.total - np.cumsum(series.coefficients)
    enough = np.flatnonzero(tails <= _DUAL_REMAINDER * series.total)
    degree = int(enough[0]) if enough.size else len(series.coefficients) - 1
    return series.cut(max(degree, 1))


def _largest_cosine(rows: FloatArray) -> float:
    cosines = np.abs(rows @ rows.T)
    np.fill_diagonal(cosines, 0.0)
    return float(min(cosines.max(), 1.0))

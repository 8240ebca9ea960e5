"""What a family of networks is, and how those of the mixture theory come to an answer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import with_mean
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import expansion
from notsodeep.errors import NotSoDeepError
from notsodeep.matching.problem import NAMES, SAMPLE, Problem, numbers_of
from notsodeep.matching.record import Match
from notsodeep.matching.refinement import refined
from notsodeep.models import ExplicitNetwork

MET = 1e-9
"""A coefficient is met if its difference, in units of the target's diagonal, is at most this."""

LINEAR, OVERLAP, SCALE = 0, 2, 3  # places in `NAMES`


class Infeasible(NotSoDeepError, ValueError):
    """A family has no parameters for a problem.  Raised by `solve`; the message says why."""


class Family(ABC):
    """Shallow networks of one kind, with the options of the search among them.

    Derive a frozen dataclass from it, or from `MixtureFamily`; its fields are the options.

    Attributes
    ----------
    name : str
        By which `match` knows the family.
    lipschitz : bool
        Whether every activation of the family is Lipschitz; polynomials are not.
    has_means : bool
        Whether its own parameters set the means of its layers.
    """

    name: ClassVar[str]
    lipschitz: ClassVar[bool] = True
    has_means: ClassVar[bool] = False

    @abstractmethod
    def answer(self, problem: Problem) -> Match:
        """Find the network, or say why there is none."""

    def refined(self, problem: Problem, found: Match) -> Match:
        """Refine the answer on data; what has nothing to refine is returned as it is."""
        return found

    def for_auto(self, problem: Problem) -> Family | None:
        """Return the family that ``family="auto"`` asks, or None if it does not apply."""
        return self


class MixtureFamily(Family):
    """Networks given by a few parameters, which are to meet coefficients of the mixture theory.

    The parameters are followed by ``"mean"``, the mean of the last layer's features, which meets
    `constant`.

    Attributes
    ----------
    promised : tuple of int
        Which of (linear, norm_fluctuation, covariance_overlap, scale2) it undertakes to meet.
    bounds : pair
        Smallest and largest parameters that refining on data may reach.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Linear(MixtureFamily):
    ...     name = "linear"
    ...     parameter_names = ("slope",)
    ...     promised = (0,)
    ...
    ...     def network(self, parameters, problem):
    ...         layer = nsd.activations.leaky_relu(parameters[0], parameters[0])
    ...         return nsd.ExplicitNetwork([layer]).centred(problem.scale)
    ...
    ...     def solve(self, problem):
    ...         return np.array([problem.target.linear**0.5])
    >>> m = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0, family=Linear())
    >>> m.feasible, m.reason
    (True, 'meets constant, linear')
    """

    promised: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    bounds: ClassVar[tuple[ArrayLike, ArrayLike]] = (-np.inf, np.inf)

    @property
    @abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """What the entries of a parameter vector are called."""

    @abstractmethod
    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build the network, with every layer centred at the scale that it sees."""

    @abstractmethod
    def solve(self, problem: Problem) -> FloatArray:
        """Find parameters.

        Raises
        ------
        Infeasible
            There are none.
        """

    def for_auto(self, problem: Problem) -> Family | None:
        """Apply where the scale of the data is known."""
        return self if problem.tau0 is not None else None

    def undertaken(self, problem: Problem) -> tuple[str, ...]:
        """Return the names of the coefficients that it undertakes to meet."""
        names = tuple(NAMES[k] for k in self.promised)
        return ("constant", *names)

    def built(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build the network with its mean."""
        if self.has_means:
            return self.network(parameters, problem)
        network = self.network(parameters[:-1], problem)
        *first, last = network.activations
        scale = float(network.scales(problem.scale)[-2])
        return ExplicitNetwork([*first, with_mean(last, scale, float(parameters[-1]))])

    def _solved(self, problem: Problem) -> FloatArray:
        parameters = self.solve(problem)
        if self.has_means:
            return parameters
        network = self.network(parameters, problem)
        scale = float(network.scales(problem.scale)[-2])
        # The mean is ±√constant; norm_shift has the sign of the mean times E σ″.
        curvature = network.activations[-1].moments(scale).curvature
        side = problem.expansion.norm_shift * float(curvature)
        mean = math.copysign(math.sqrt(max(problem.expansion.constant, 0.0)), side)
        return np.append(parameters, mean)

    def limits(self) -> tuple[ArrayLike, ArrayLike]:
        """Return `bounds` with those of the mean."""
        if self.has_means:
            return self.bounds
        low, high = (np.broadcast_to(edge, len(self.parameter_names)) for edge in self.bounds)
        return np.append(low, -np.inf), np.append(high, np.inf)

    def answer(self, problem: Problem) -> Match:
        """Solve, and compare the coefficients that are reached with those that were promised."""
        if problem.tau0 is None:
            remedy = "Pass X or tau0=…; sphere=… serves 'quadratic' and 'dual' only."
            raise checks.invalid("tau0", "match", f"be given for {self.name}", None, remedy)
        try:
            parameters = self._solved(problem)
        except Infeasible as failure:
            return problem.answer(self.name, problem.tau0, problem.expansion, str(failure))
        return self._at(problem, parameters)

    def refined(self, problem: Problem, found: Match) -> Match:
        """Minimise the distance of exact kernels on some rows; keep what is better on others."""
        if problem.rows is None or found.fitted is None:
            return found
        middle = min(SAMPLE, len(problem.rows) // 2)
        parameters, record = refined(
            problem.wanted,
            lambda x: self.built(x, problem),
            np.array(list(found.parameters.values())),
            problem.rows[:middle],
            problem.rows[middle : 3 * middle],
            problem.kind,
            self.limits(),
        )
        if not record.kept:
            return replace(found, refinement=record)
        reason = f"{found.reason} before it was refined on {record.rows} rows"
        # Feasible is what the equations were, not what the data made of the parameters.
        return replace(
            self._at(problem, parameters),
            feasible=found.feasible,
            reason=reason,
            refinement=record,
        )

    def _at(self, problem: Problem, parameters: FloatArray) -> Match:
        """Put a parameter vector on record, and say which coefficients it meets or misses."""
        network = self.built(parameters, problem)
        parameter_names = (*self.parameter_names, *("mean",) * (not self.has_means))
        target = problem.expansion
        achieved = expansion(network, problem.scale, kind=problem.kind, convention="preactivation")
        places = numbers_of(target)
        mismatch = dict(zip(places, problem.mismatch(achieved), strict=True))
        undertaken = self.undertaken(problem)
        missed = [name for name in undertaken if not abs(mismatch[name]) <= MET]
        names = ", ".join(undertaken)
        reason = f"meets {names}"
        if missed:
            shortfalls = ", ".join(
                f"{name} is {getattr(achieved, name):.6g} and should be {getattr(target, name):.6g}"
                for name in missed
            )
            reason = f"cannot meet {names} together: at best {shortfalls}"
        return problem.answer(
            self.name,
            problem.scale,
            target,
            reason,
            network=network,
            parameters=_named(parameter_names, parameters),
            achieved=achieved,
            residuals={name: getattr(achieved, name) - getattr(target, name) for name in places},
            feasible=not missed,
        )


def _named(names: Sequence[str], values: ArrayLike) -> dict[str, float]:
    return {name: float(v) for name, v in zip(names, np.asarray(values), strict=True)}


def checked_layers(family: str, layers: object, allowed: tuple[int, ...], remedy: str = "") -> None:
    """Require one of the depths that a family has."""
    if isinstance(layers, bool) or layers not in allowed:
        requirement = f"be one of {list(allowed)} for {family}"
        raise checks.invalid("layers", "match", requirement, repr(layers), remedy)

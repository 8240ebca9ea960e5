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
from notsodeep.activations import Centred, with_mean
from notsodeep.activations.moments import Changes
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Coefficients, Expansion, expansion
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels.plan import ChangesAt
from notsodeep.matching.match_record import Match
from notsodeep.matching.problem import NAMES, SAMPLE, Problem, numbers_of
from notsodeep.matching.refinement import refined
from notsodeep.models import DeepEquilibrium, ExplicitNetwork

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
    as_given : bool
        Whether it can match a DEQ that is not centred, on data of any norm.
    has_means : bool
        Whether its own parameters set the means of its layers: what it meets is then the same for
        DEQs that are centred and for others.
    """

    name: ClassVar[str]
    lipschitz: ClassVar[bool] = True
    as_given: ClassVar[bool] = False
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

    Attributes
    ----------
    promised : tuple of int
        Which of (linear, norm_fluctuation, covariance_overlap, scale2) it undertakes to meet.
    as_given : bool
        Whether it has one layer, so that a DEQ that is not centred is matched by the same layer
        with a mean: its parameters are followed by ``"mean"``, and `constant` is met too.
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
    (True, 'meets linear')
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
        """Apply where the scale of the data is known, and the DEQ can be taken as it is meant."""
        fits = problem.centre or self.as_given
        return self if problem.tau0 is not None and fits else None

    def undertaken(self, problem: Problem) -> tuple[str, ...]:
        """Return the names of the coefficients that it undertakes to meet."""
        names = tuple(NAMES[k] for k in self.promised)
        return names if problem.centre else ("constant", *names)

    def subject(self, problem: Problem) -> tuple[DeepEquilibrium, Coefficients | Expansion]:
        """Return what is matched, centred or not, and its coefficients."""
        return problem.subject, problem.target if problem.centre else problem.expansion

    def achieved(self, network: ExplicitNetwork, problem: Problem) -> Coefficients | Expansion:
        """Return the coefficients of a network."""
        if problem.centre:
            return problem.achieved(network)
        return expansion(network, problem.scale, kernel=problem.kernel)

    # A single layer for a DEQ that is not centred: the same, with a mean as one more parameter ----

    def _adds_mean(self, problem: Problem) -> bool:
        return not (problem.centre or self.has_means)

    def _built(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        if not self._adds_mean(problem):
            return self.network(parameters, problem)
        (layer,) = self.network(parameters[:-1], problem).activations
        return ExplicitNetwork([with_mean(layer, problem.scale, float(parameters[-1]))])

    def _solved(self, problem: Problem) -> FloatArray:
        parameters = self.solve(problem)
        if not self._adds_mean(problem):
            return parameters
        (layer,) = self.network(parameters, problem).activations
        # The mean is ±√constant; norm_shift has the sign of the mean times E σ″.
        side = problem.expansion.norm_shift * layer.moments(problem.scale).curvature
        mean = math.copysign(math.sqrt(max(problem.expansion.constant, 0.0)), side)
        return np.append(parameters, mean)

    def _limits(self, problem: Problem) -> tuple[ArrayLike, ArrayLike]:
        if not self._adds_mean(problem):
            return self.bounds
        low, high = (np.broadcast_to(edge, len(self.parameter_names)) for edge in self.bounds)
        return np.append(low, -np.inf), np.append(high, np.inf)

    def changes(
        self, parameters: FloatArray, problem: Problem, scales: FloatArray, terms: int
    ) -> Changes | None:
        """Differentiate the only layer, before its mean is set, in the parameters.

        None if that is not known: refining then takes differences of kernels.
        """
        return None

    def _changes(self, parameters: FloatArray, problem: Problem) -> ChangesAt | None:
        """Return derivatives of the layer as built, with the mean that it has at tau0."""
        adds = self._adds_mean(problem)
        own = parameters[:-1] if adds else parameters
        if self.changes(own, problem, np.array([problem.scale]), 2) is None:
            return None
        (layer,) = self._built(parameters, problem).activations
        assert isinstance(layer, Centred)

        def at(scales: FloatArray, terms: int) -> Changes:
            found = self.changes(own, problem, np.append(scales, problem.scale), terms)
            assert found is not None
            series, square, slope_square = found
            # Taken off φ: its mean at tau0, which moves with the parameters, less the mean kept.
            constant = series[:, -1, 0].copy()
            series, square, slope_square = series[:, :-1], square[:, :-1], slope_square[:, :-1]
            if adds:
                constant = np.append(constant, -1.0)
                one = (1, len(scales))
                series = np.concatenate([series, np.zeros((*one, terms))])
                square = np.concatenate([square, np.zeros(one)])
                slope_square = np.concatenate([slope_square, np.zeros(one)])
            mean = layer.base.moments(scales).mean - layer.constant
            square = square - 2.0 * (layer.constant * series[:, :, 0] + np.outer(constant, mean))
            series[:, :, 0] -= constant[:, None]
            return Changes(series, square, slope_square)

        return at

    def answer(self, problem: Problem) -> Match:
        """Solve, and compare the coefficients that are reached with those that were promised."""
        if problem.tau0 is None:
            remedy = "Pass X or tau0=…; sphere=… serves 'quadratic' and 'dual' only."
            raise checks.invalid("tau0", "match", f"be given for {self.name}", None, remedy)
        if not (problem.centre or self.as_given):
            requirement = "be one for models that are not centred, with centre=False"
            remedy = "Use family='auto', or leave out centre=False."
            raise checks.invalid("family", "match", requirement, self.name, remedy)
        try:
            parameters = self._solved(problem)
        except Infeasible as failure:
            deq, target = self.subject(problem)
            return problem.answer(self.name, deq, problem.tau0, target, str(failure))
        return self._at(problem, parameters)

    def refined(self, problem: Problem, found: Match) -> Match:
        """Minimise the distance of exact kernels on some rows; keep what is better on others."""
        if problem.rows is None or found.fitted is None:
            return found
        middle = min(SAMPLE, len(problem.rows) // 2)
        parameters, record = refined(
            lambda X: problem.wanted(found.deq, X),
            lambda x: self._built(x, problem),
            np.array(list(found.parameters.values())),
            problem.rows[:middle],
            problem.rows[middle : 3 * middle],
            problem.kernel,
            self._limits(problem),
            lambda x: self._changes(x, problem),
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
        network = self._built(parameters, problem)
        parameter_names = (*self.parameter_names, *("mean",) * self._adds_mean(problem))
        deq, target = self.subject(problem)
        achieved = self.achieved(network, problem)
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
            deq,
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

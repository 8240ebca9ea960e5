"""A family of one's own: a function from parameters to an activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation, centre
from notsodeep.arrays import FloatArray
from notsodeep.matching.coefficient_fit import fit_coefficients
from notsodeep.matching.family import MixtureFamily
from notsodeep.matching.problem import Problem
from notsodeep.models import ExplicitNetwork


@dataclass(frozen=True)
class OwnFamily(MixtureFamily):
    """One layer with an activation of one's own, centred and fitted to the four coefficients.

    Attributes
    ----------
    function : callable
        From a parameter vector to an activation.
    start : tuple of float
        Parameters to begin with, which give a usable activation.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> def steep_erf(x):
    ...     return nsd.activations.from_formula(f"{x[0]} * erf({x[1]} * x)")
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> m = nsd.match(deq, tau0=1.0, family=OwnFamily(steep_erf, start=(1.0, 0.7)))
    >>> m.family, m.feasible
    ('steep_erf', True)
    """

    function: Callable[[FloatArray], Activation]
    start: tuple[float, ...]

    def __post_init__(self) -> None:
        if not callable(self.function):
            requirement = "be a function from parameters to an activation"
            raise checks.invalid("function", "OwnFamily", requirement, repr(self.function))
        start = checks.real_array(self.start, "start", "OwnFamily").reshape(-1)
        object.__setattr__(self, "start", tuple(start.tolist()))

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of the function."""
        return getattr(self.function, "__name__", "own")

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Numbers, since a vector has no names."""
        return tuple(f"parameter_{k}" for k in range(len(self.start)))

    def network(self, parameters: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build it from the function's activation."""
        return ExplicitNetwork([centre(self.function(parameters), problem.scale)])

    def solve(self, problem: Problem) -> FloatArray:
        """Least squares on all four coefficients."""
        begin = np.array(self.start)
        problem.achieved(self.network(begin, problem))  # an error of the function itself is shown
        return fit_coefficients(
            problem, lambda x: problem.achieved(self.network(x, problem)), [begin]
        )

"""What a family of networks is, what it is asked, and how it comes to its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from notsodeep import checks
from notsodeep.activations import Activation, centre
from notsodeep.activations.transformed import centred_by
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Expansion, expansion
from notsodeep.equivalents.distances import frobenius_scale, operator_norm, without_constant
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.kernels.fixed_pairs import FixedPairs
from notsodeep.matching.certificate import CLOSE
from notsodeep.matching.record import Match
from notsodeep.matching.refinement import refined
from notsodeep.models import (
    Conditions,
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    conditions,
)

FOUR = ("linear", "norm_fluctuation", "covariance_overlap", "scale2")
"""The four coefficients of a kernel without its constant part; see `Expansion.four`."""

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

COEFFICIENT_TOL = 1e-9
"""A coefficient is met if its difference, in units of the target's diagonal, is at most this."""

SCORE_ROWS = 300
"""Rows on which networks are compared and refined, at most."""

_IMPOSSIBLE = 1e3  # stands for the mismatch of parameters that give no network


class Infeasible(NotSoDeepError, ValueError):
    """A family has no parameters for a problem; the message says why."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Find a network whose kernel is that of a DEQ, on data of some scale or on given rows."""

    model: DeepEquilibrium
    tau0: float | None = None  # scale of the data; None if only the sphere is spoken of
    kind: KernelName = "ck"
    convention: Convention = "feature"
    X: FloatArray | None = None
    rows: FloatArray | None = None  # some of X in random order: the first are as good as any
    dimension: int | None = None
    unit: bool = False  # whether the data has norm one

    @property
    def scale(self) -> float:
        """tau0, where it is known to be given."""
        assert self.tau0 is not None
        return self.tau0

    @cached_property
    def target(self) -> Expansion:
        """The coefficients of the DEQ's kernel."""
        return expansion(self.model, self.scale, kind=self.kind, convention=self.convention)

    @property
    def activation(self) -> Activation:
        """φ of the (last) layer of the DEQ, without its centring."""
        return self.model.cell[-1].activation.uncentred

    def expanded(self, network: ExplicitNetwork) -> Expansion:
        """Return the coefficients of a network's kernel."""
        return expansion(network, self.scale, kind=self.kind)

    def kernel(self, X: FloatArray) -> FloatArray:
        """Return the exact kernel of the DEQ on rows X."""
        return np.asarray(exact_kernel(self.model, X, kind=self.kind, convention=self.convention))

    def scored(self, found: Match) -> Match:
        """Return the answer with its gaps on rows, as certificates have them.

        As score the relative gap, and that with scale and constant free: what a tuned read-out with
        a bias sees.  Without rows the score is the largest residual over the diagonal.
        """
        if found.fitted is None:
            return found
        if self.rows is None:
            assert found.target is not None
            largest = max((abs(value) for value in found.residuals.values()), default=0.0)
            return replace(found, score=largest / found.target.scale2)
        K = self._pairs.matrix(self._pairs.kernel(found.network, self.kind, "feature"))
        raw = operator_norm(self._sampled - K) / self._norms[0]
        centred = without_constant(K)
        scale = frobenius_scale(self._centred, centred)
        free = operator_norm(self._centred - scale * centred) / self._norms[1]
        return replace(found, score=raw, readout_gap=free)

    def is_close(self, found: Match) -> bool:
        """Whether a deeper network is not worth its cost.

        A constant part would make any gap small: it is compared with the kernel without.
        """
        if self.rows is None or found.fitted is None:
            return False
        return found.score * self._norms[0] <= CLOSE * self._norms[1]

    @cached_property
    def _pairs(self) -> FixedPairs:
        assert self.rows is not None
        return FixedPairs(self.rows[:SCORE_ROWS])

    @cached_property
    def _sampled(self) -> FloatArray:
        return self._pairs.matrix(self._pairs.kernel(self.model, self.kind, self.convention))

    @cached_property
    def _centred(self) -> FloatArray:
        return without_constant(self._sampled)

    @cached_property
    def _norms(self) -> tuple[float, float]:
        return operator_norm(self._sampled), max(operator_norm(self._centred), 1e-300)

    @cached_property
    def _conditions(self) -> Conditions:
        return conditions(self.model, self.X, tau0=1.0 if self.tau0 is None else self.tau0)

    def answer(self, family: str, reason: str, **fields: Any) -> Match:
        """Put what a family found, or why it found nothing, on record, by fields of Match."""
        found = Match(
            family=family,
            model=self.model,
            fitted=None,
            parameters={},
            target=None if self.tau0 is None else self.target,
            achieved=None,
            residuals={},
            feasible=False,
            reason=reason,
            conditions=self._conditions,
            kind=self.kind,
            convention=self.convention,
            tau0=1.0 if self.tau0 is None else self.tau0,
        )
        return replace(found, **fields)


@dataclass(frozen=True, eq=False)
class Family:
    """Networks given by a few parameters, which are to meet coefficients of the DEQ's kernel.

    The parameters are followed by "mean", the mean of the last layer's features, which meets
    `constant`; unless the layers have means of their own.

    Parameters
    ----------
    name : str
    parameters : tuple of str
    layers : callable
        (parameters, problem) ↦ list of activations; `problem.scale` is the scale of the data.
    starts : sequence or callable
        Parameter vectors to begin with, the preferred first, or problem ↦ such.  Those in closed
        form are ends too.  May raise `Infeasible`.
    meets : tuple of str
        Which of linear, norm_fluctuation, covariance_overlap and scale2 to meet.
    bounds : pair of array_like
        Smallest and largest parameters that refining on data may reach.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> def steep_erf(x, problem):
    ...     return [nsd.activations.from_formula(f"{x[0]} * erf({x[1]} * x)")]
    >>> erf = Family("steep_erf", ("gain", "steepness"), steep_erf, starts=[(1.0, 0.7)])
    >>> m = nsd.match(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), tau0=1.0, family=erf)
    >>> m.feasible, m.reason
    (True, 'meets constant, linear, norm_fluctuation, covariance_overlap, scale2')
    """

    name: str
    parameters: tuple[str, ...]
    layers: Callable[[FloatArray, Problem], Sequence[Activation]]
    starts: Sequence[ArrayLike] | Callable[[Problem], Iterable[ArrayLike]]
    meets: tuple[str, ...] = FOUR
    bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf)
    has_means: bool = False
    # Quicker ways to the coefficients (of the layers without their mean), and to the parameters.
    reach: Callable[[FloatArray, Problem], Sequence[float]] | None = None
    solve: Callable[[Problem], FloatArray] | None = None
    in_auto: Callable[[Problem], bool] = lambda problem: True

    @property
    def all_parameters(self) -> tuple[str, ...]:
        """With the mean."""
        return self.parameters if self.has_means else (*self.parameters, "mean")

    @property
    def all_bounds(self) -> tuple[FloatArray, FloatArray]:
        """With those of the mean."""
        low, high = (np.broadcast_to(edge, len(self.parameters)) for edge in self.bounds)
        free = [] if self.has_means else [np.inf]
        return np.append(low, np.negative(free)), np.append(high, free)

    def applies(self, problem: Problem) -> bool:
        """Whether ``family="auto"`` asks it."""
        return problem.tau0 is not None and self.in_auto(problem)

    def network(self, x: FloatArray, problem: Problem) -> ExplicitNetwork:
        """Build the network; without a mean in x that of the last layer is zero."""
        own = np.asarray(x, dtype=np.float64)[: len(self.parameters)]
        network = ExplicitNetwork(list(self.layers(own, problem)))
        if self.has_means:
            return network
        *first, last = network.activations
        scale = float(network.scales(problem.scale)[-2])
        mean = float(x[-1]) if len(x) > len(self.parameters) else 0.0
        shifted = centre(last, scale)
        if mean != 0.0:
            shifted = centred_by(shifted.base, shifted.scale, shifted.constant - mean)
        return ExplicitNetwork([*first, shifted])

    def answer(self, problem: Problem) -> Match:
        """Solve, and compare the coefficients that are reached with those that were promised."""
        if problem.tau0 is None:
            remedy = "Pass X or tau0=…; sphere=… serves 'quadratic' and 'dual' only."
            raise checks.invalid("tau0", "match", f"be given for {self.name}", None, remedy)
        try:
            x = self.solve(problem) if self.solve is not None else self._fitted(problem)
        except Infeasible as failure:
            return problem.answer(self.name, str(failure))
        if not self.has_means:
            network = self.network(x, problem)
            scale = float(network.scales(problem.scale)[-2])
            # The mean is ±√constant; norm_shift has the sign of the mean times E σ″.
            curvature = float(network.activations[-1].moments(scale).curvature)
            side = problem.target.norm_shift * curvature
            mean = math.copysign(math.sqrt(max(problem.target.constant, 0.0)), side)
            x = np.append(x, mean)
        return self._at(problem, x)

    def refined(self, problem: Problem, found: Match) -> Match:
        """Minimise the distance of exact kernels on some rows; keep what is better on others."""
        if problem.rows is None or found.fitted is None:
            return found
        # Pairs of two layers cost several times as much: half the rows did as well on others.
        most = SCORE_ROWS if found.network.depth == 1 else SCORE_ROWS // 2
        middle = min(most, len(problem.rows) // 2)
        x, record = refined(
            problem.kernel,
            lambda x: self.network(x, problem),
            np.array(list(found.parameters.values())),
            problem.rows[:middle],
            problem.rows[middle : 3 * middle],
            problem.kind,
            self.all_bounds,
        )
        if not record.kept:
            return replace(found, refinement=record)
        reason = f"{found.reason} before it was refined on {record.rows} rows"
        # Feasible is what the equations were, not what the data made of the parameters.
        return replace(
            self._at(problem, x), feasible=found.feasible, reason=reason, refinement=record
        )

    def _at(self, problem: Problem, x: FloatArray) -> Match:
        """Put a parameter vector on record, and say which coefficients it meets or misses."""
        network = self.network(x, problem)
        target, achieved = problem.target, problem.expanded(network)
        residuals = {name: getattr(achieved, name) - getattr(target, name) for name in EIGHT}
        names = self.meets if self.has_means else ("constant", *self.meets)
        sizes = dict(zip(EIGHT, units(EIGHT, problem.scale) / target.scale2, strict=True))
        missed = [n for n in names if not abs(residuals[n] * sizes[n]) <= COEFFICIENT_TOL]
        listed = ", ".join(names)
        reason = f"meets {listed}"
        if missed:
            shortfalls = ", ".join(
                f"{name} is {getattr(achieved, name):.6g} and should be {getattr(target, name):.6g}"
                for name in missed
            )
            reason = f"cannot meet {listed} together: at best {shortfalls}"
        return problem.answer(
            self.name,
            reason,
            fitted=network,
            parameters=dict(zip(self.all_parameters, map(float, x), strict=True)),
            achieved=achieved,
            residuals=residuals,
            feasible=not missed,
        )

    def _fitted(self, problem: Problem) -> FloatArray:
        """Fit to the four coefficients of a kernel without its constant part."""
        starts = self.starts(problem) if callable(self.starts) else self.starts
        places = [FOUR.index(name) for name in self.meets]
        scales = units(FOUR, problem.scale) / problem.target.four[-1]
        wanted = np.array(problem.target.four)

        def mismatch(x: FloatArray) -> FloatArray:
            reached = (
                problem.expanded(self.network(x, problem)).four
                if self.reach is None
                else self.reach(x, problem)
            )
            return np.asarray(((reached - wanted) * scales)[places])

        begin = [np.array(start, dtype=np.float64) for start in starts]
        if self.reach is None:
            mismatch(begin[0])  # an error of the function itself is shown
        return fit(mismatch, begin, len(places))


def units(names: Sequence[str], tau0: float) -> FloatArray:
    """Return the powers of τ0 that make coefficients comparable to the diagonal."""
    powers = {"constant": 0, "linear": 2, "norm_shift": 2, "scale2": 0}
    return np.array([tau0 ** powers.get(name, 4) for name in names])


def fit(
    mismatch: Callable[[FloatArray], FloatArray],
    starts: Iterable[FloatArray],
    equations: int,
    jacobian: Callable[[FloatArray], FloatArray] | None = None,
) -> FloatArray:
    """Make a mismatch zero, or as small as it gets, from several starts, the preferred first.

    With as many parameters as equations, or more, or a jacobian, the root that is nearest to the
    start is taken; with fewer the least squares.
    """

    def guarded(x: FloatArray) -> FloatArray:
        try:
            with np.errstate(all="ignore"):
                result = mismatch(x)
        except (NotSoDeepError, ArithmeticError):
            return np.full(equations, _IMPOSSIBLE)
        return result if np.isfinite(result).all() else np.full(equations, _IMPOSSIBLE)

    best: tuple[float, FloatArray] | None = None
    for start in starts:
        if len(start) < equations and jacobian is None:
            x = np.asarray(
                least_squares(guarded, start, xtol=1e-12, ftol=1e-14, gtol=1e-14, max_nfev=60).x
            )
        else:
            x = _nearest_root(guarded, jacobian or (lambda x: _differences(guarded, x)), start)
        size = float(np.abs(guarded(x)).max())
        # A later start has to halve the mismatch: callers give the preferred shape first.
        if best is None or size < 0.5 * best[0] - 1e-13:
            best = (size, x)
        if size <= 1e-12:
            break
    if best is None or best[0] >= _IMPOSSIBLE:
        raise Infeasible("no parameters give a network with finite moments")
    return best[1]


def _nearest_root(
    mismatch: Callable[[FloatArray], FloatArray],
    jacobian: Callable[[FloatArray], FloatArray],
    start: FloatArray,
) -> FloatArray:
    """Damped Gauss–Newton with minimum-norm steps."""
    x, value = start, mismatch(start)
    for _ in range(40):
        if np.abs(value).max() <= 1e-14:
            break
        # Singular values near 1e-10, the error of differences, are not to be divided by.
        step = np.linalg.pinv(jacobian(x), rcond=1e-8) @ value
        # In the largest residual, the measure by which a match is judged.
        for damping in 0.5 ** np.arange(7):
            trial = mismatch(x - damping * step)
            if np.abs(trial).max() < np.abs(value).max():
                x, value = x - damping * step, trial
                break
        else:
            break
    return x


def _differences(mismatch: Callable[[FloatArray], FloatArray], x: FloatArray) -> FloatArray:
    columns = []
    for k, entry in enumerate(x):
        # Near eps^{1/3}, where the error of central differences, h², meets that of rounding, eps/h.
        step = 1e-5 * max(1.0, abs(entry)) * np.eye(len(x))[k]
        columns.append((mismatch(x + step) - mismatch(x - step)) / (2.0 * float(step[k])))
    return np.stack(columns, axis=1)

"""`match`: ask the families, choose, and say why."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation, centre
from notsodeep.checks import FloatArray
from notsodeep.data import draw_rows
from notsodeep.equivalents import conditions
from notsodeep.matching.coefficient_fit import fit_coefficients
from notsodeep.matching.family import Family, MixtureTask, Solution
from notsodeep.matching.match_record import Candidate, Match
from notsodeep.matching.proposals import DRAWN, Proposal, Question
from notsodeep.matching.refinement import MeasuredKernel
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    checked_choice,
    require_varying,
)

FAMILIES = ("auto", "leaky_relu", "hard_tanh", "piecewise_linear", "quadratic", "cubic", "dual")

_WORTH_REFINING = 20.0

OwnFamily = Callable[[FloatArray], Activation]


def match(
    deq: DeepEquilibrium,
    X: ArrayLike | None = None,
    *,
    tau0: float | None = None,
    sphere: int | None = None,
    family: str | OwnFamily = "auto",
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    layers: int | None = None,
    refine: bool = False,
    start: Sequence[float] | None = None,
    degree: int | None = None,
    measured: MeasuredKernel | None = None,
    rng: int | np.random.Generator = 0,
    data: ArrayLike | None = None,
) -> Match:
    """Find a shallow network whose kernel is that of a DEQ.

    For data of scale tau0 the DEQ is centred, and the network is asked to have the DEQ's four
    coefficients (linear, norm_fluctuation, covariance_overlap, scale2), on which the kernel of a
    Gaussian mixture depends in high dimension (mixture paper, arXiv 2402.02697).  For data of
    norm one the families "quadratic" (sphere paper, arXiv 2308.16425) and "dual" (the same kernel
    exactly) match the DEQ as it is.

    Parameters
    ----------
    deq : DeepEquilibrium
    X : array_like of shape (n, p), optional
        Samples: tau0 is their root mean squared norm, candidates are compared by their exact
        kernels on up to 300 of them, and `refine` uses them.  Rows that all have norm one allow
        the families of the sphere.  The order of the rows does not matter.
    tau0 : float, optional
        √(tr C°/p), the scale of the data, instead of X.
    sphere : int, optional
        Dimension d of the unit sphere that the data lies on, instead of X or tau0.
    family : str or callable
        One of "leaky_relu", "hard_tanh", "piecewise_linear", "quadratic", "cubic", "dual", or
        "auto", which tries those that apply and takes the best.  A function from a parameter
        vector to an activation is a family of one's own; it needs `start`.
    kernel : {"conjugate", "tangent"}
    convention : {"feature", "preactivation"}
        Of the DEQ's kernel; "feature" is what a trained read-out sees.
    layers : int, optional
        Hidden layers: 1, or 2 for "leaky_relu", "cubic" and (its default) "quadratic".
    refine : bool
        Minimise the exact-kernel distance on up to 300 rows of the data over the family's
        parameters, and keep the result if it is better on up to 600 others.
    start : sequence of float
        Parameters to begin with, for a family of one's own.
    degree : int, optional
        Of the dual activation; as large as needed, at most 32, if left out.
    measured : callable, optional
        A function from rows (n, p) to a kernel (n, n) that stands for the DEQ's where families are
        compared, refined and certified on data: for a DEQ with weights of its own,
        ``lambda X: empirical_kernels(module, X).conjugate``.
    rng : int or Generator
        Draws the rows of the data on which families are compared and refined.
    data : array_like of shape (n, p), optional
        The former name of X.

    Returns
    -------
    Match
        Check ``feasible`` and ``residuals``; ``certify`` compares kernels on data.

    Raises
    ------
    ConstantActivation
        The DEQ's activation is constant, and its features know nothing of the data.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
    >>> m = nsd.match(deq, tau0=1.0, family="leaky_relu")
    >>> {name: round(value, 4) for name, value in m.parameters.items()}
    {'positive_slope': 0.9341, 'negative_slope': -0.0165}
    """
    owner = "match"
    if not isinstance(deq, DeepEquilibrium):
        raise checks.refusal("deq", owner, "be a DeepEquilibrium", repr(deq))
    checked_choice(deq, kernel, convention, owner)
    if not callable(family):
        checks.known_name(family, FAMILIES, "family")
    X, tau0 = _former_arguments(X, tau0, data)
    _require_one_place(X, tau0, sphere, optional=family == "dual")
    generator = checks.random_generator(rng, owner)
    rows = None if X is None else _checked_rows(X)
    if refine and rows is None:
        remedy = "Pass a few hundred rows or more: match(deq, X, refine=True)."
        raise checks.refusal("X", owner, "be given for refine=True", None, remedy)
    if degree is not None:
        checks.integer_at_least(degree, 1, "degree", owner)
    if rows is not None:
        tau0 = float(np.sqrt(np.einsum("ij,ij->", rows, rows) / len(rows)))
    require_varying(deq.activation, 1.0 if tau0 is None else tau0, owner)
    question = Question(
        deq=deq,
        tau0=tau0,
        rows=None if rows is None else rows[draw_rows(rows, DRAWN, generator)],
        dimension=sphere if rows is None else rows.shape[1],
        unit=sphere is not None or (rows is not None and _unit_norm(rows)),
        kernel=kernel,
        convention=convention,
        degree=degree,
        measured=measured,
    )
    if callable(family):
        proposals = [question.ask_family(_own_family(family, start))]
    elif family == "auto":
        proposals = question.ask_all()
    else:
        proposals = [question.ask(family, layers)]
    scores = [question.score(proposal) for proposal in proposals]
    if refine:
        # Refining gains a factor of ten or so; what is further behind cannot win.
        reach = _WORTH_REFINING * min((x for x in scores if not math.isnan(x)), default=0.0)
        for k, proposal in enumerate(proposals):
            if scores[k] <= reach:
                proposals[k] = question.refine(proposal)
                scores[k] = question.score(proposals[k])
    best, why = _choose(proposals, scores, question.judged_rows)
    chosen = proposals[best]
    return Match(
        family=chosen.family,
        deq=chosen.deq,
        fitted=chosen.network,
        parameters=chosen.parameters,
        target=chosen.target,
        achieved=chosen.achieved,
        residuals=chosen.residuals,
        feasible=chosen.feasible,
        reason=chosen.reason + why,
        conditions=conditions(chosen.deq, chosen.tau0, X=rows),
        kernel=kernel,
        convention=convention,
        tau0=chosen.tau0,
        candidates=tuple(
            Candidate(proposal.family, proposal.feasible, score, proposal.reason)
            for proposal, score in zip(proposals, scores, strict=True)
        ),
        refinement=chosen.refinement,
        measured=measured,
    )


def _choose(proposals: list[Proposal], scores: list[float], judged_rows: int) -> tuple[int, str]:
    """Return the index of the best proposal, and why it is, for the reader."""
    usable = [k for k, proposal in enumerate(proposals) if proposal.network is not None]
    if len(proposals) == 1 or not usable:
        return 0, ""
    if not judged_rows:
        # Residuals say nothing about how a polynomial behaves at finite p: Lipschitz ones first.
        tame = [k for k in usable if proposals[k].lipschitz and proposals[k].feasible]
        usable = tame or usable
    # Within a hundredth the earlier, simpler family wins.
    least = min(scores[k] for k in usable)
    best = next(k for k in usable if scores[k] <= 1.01 * least + 1e-9)
    what = "residual of those that apply"
    if judged_rows:
        what = f"exact-kernel gap on the data ({judged_rows} rows)"
    others = ", ".join(
        f"{proposal.family} {score:.3g}"
        for k, (proposal, score) in enumerate(zip(proposals, scores, strict=True))
        if k != best and not math.isnan(score)
    )
    return best, f"; chosen for the smallest {what}, {scores[best]:.3g} (others: {others})"


def _former_arguments(
    X: ArrayLike | None, tau0: float | None, data: ArrayLike | None
) -> tuple[ArrayLike | None, float | None]:
    """Return X and tau0 where they stood in version 0.1: `match(deq, tau0)`, `data=X`."""
    if isinstance(X, numbers.Real) and tau0 is None:
        _warn_of("match(deq, tau0)", "match(deq, tau0=…)")
        X, tau0 = None, float(X)
    if data is not None:
        _warn_of("match(deq, data=X)", "match(deq, X)")
        if X is not None:
            raise checks.refusal("data", "match", "be left out beside X, its new name", "both")
        X = data
    return X, tau0


def _warn_of(former: str, present: str) -> None:
    warnings.warn(f"{former} is written {present} now.", DeprecationWarning, stacklevel=4)


def _require_one_place(
    X: ArrayLike | None, tau0: float | None, sphere: int | None, *, optional: bool
) -> None:
    places = {"X": X, "tau0": tau0, "sphere": sphere}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1 or not (given or optional):
        requirement = "tell the scale of the data by exactly one of X, tau0 and sphere"
        got = " and ".join(given) or "none of them"
        raise checks.refusal("the arguments", "match", requirement, got)
    if tau0 is not None:
        checks.data_scale(tau0, "tau0", "match")
    if sphere is not None:
        checks.integer_at_least(sphere, 2, "sphere", "match", "It is the dimension d of the data.")


def _checked_rows(X: ArrayLike) -> FloatArray:
    rows = checks.samples(X, "X", "match")
    if len(rows) < 8:
        raise checks.refusal("X", "match", "have at least eight rows", len(rows))
    if not rows.any():
        raise checks.refusal("X", "match", "not be zero everywhere", "zeros")
    checks.powers_nonzero(rows, "X", "match")
    return rows


def _own_family(function: OwnFamily, start: Sequence[float] | None) -> Family:
    if start is None:
        remedy = "Pass start=(…), parameters that give a usable activation."
        raise checks.refusal("start", "match", "be given for a family of your own", None, remedy)
    begin = checks.real_array(start, "start", "match").reshape(-1)

    def build(x: FloatArray, tau0: float) -> ExplicitNetwork:
        return ExplicitNetwork([centre(function(x), tau0)])

    def solve(task: MixtureTask) -> Solution:
        task.achieved(build(begin, task.tau0))  # an error of the function itself is shown
        return fit_coefficients(task, build, [begin])

    names = tuple(f"parameter_{k}" for k in range(len(begin)))
    return Family(getattr(function, "__name__", "own"), names, build, solve)


def _unit_norm(rows: FloatArray) -> bool:
    squares = np.einsum("ij,ij->i", rows, rows)
    return bool(np.abs(squares - 1.0).max() <= 2e-8)

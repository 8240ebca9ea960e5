"""`match`: ask the families, refine, choose, and say why."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data import draw_rows
from notsodeep.matching.convolutional import FAST_FAMILIES, match_convolution
from notsodeep.matching.family import SCORE_ROWS, Family, Problem
from notsodeep.matching.piecewise import HARD_TANH, LEAKY_RELU, PIECEWISE_LINEAR, TWO_KINKS
from notsodeep.matching.quadratic import QUADRATIC
from notsodeep.matching.record import Match
from notsodeep.matching.scaled import PLAIN, SCALED
from notsodeep.matching.sphere import DUAL
from notsodeep.models import (
    GIVEN_WEIGHTS,
    Convention,
    ConvolutionalEquilibrium,
    DeepEquilibrium,
    KernelName,
    checked_choice,
    kernel_name,
    require_varying,
)
from notsodeep.threads import single_blas_thread

_KNOWN = {
    family.name: family
    for family in (
        PLAIN, DUAL, LEAKY_RELU, HARD_TANH, SCALED, PIECEWISE_LINEAR, TWO_KINKS, QUADRATIC,
    )
}  # fmt: skip

FAMILIES = ("auto", *_KNOWN)
"""Names of families, in the order in which "auto" prefers them where they do equally well."""

MAX_ROWS = 2000
"""Rows of the data that are looked at, at most."""

# How far behind the best a start may be.  On digits and on the mixture of the theory (φ tanh, relu,
# gelu, swish, both kernels) refining gained up to a factor of 17 for starts within 20 of the best;
# starts further behind, by 24 to 550, gained at most 40, and none of them won.
_WORTH_REFINING = 20.0
_REFINED = 4  # families of one depth, the nearest
# Relative gaps within 4 % of each other, or 0.08 % of the kernel, are as good; of these the one
# that is nearest with scale and constant free is taken, of those within a quarter the simplest.
_EVEN = 1.04
_EVEN_SHARE = 8e-4
_EVEN_READOUT = 1.25


def match(
    model: DeepEquilibrium | ConvolutionalEquilibrium,
    X: ArrayLike | None = None,
    *,
    tau0: float | None = None,
    sphere: int | None = None,
    family: str | Family = "auto",
    kind: KernelName = "ck",
    convention: Convention = "feature",
    refine: bool = True,
    rng: int | np.random.Generator = 0,
) -> Match:
    """Find a shallow network whose kernel is that of a DEQ, as the DEQ is given.

    A Gaussian mixture in high dimension sees a kernel through seven coefficients (see `Expansion`;
    four of a centred model, mixture paper, arXiv 2402.02697).  Each family solves for those that it
    can meet; on data its parameters are then refined by the exact kernels.  "auto" takes the family
    that is nearest on the data; fewer layers where they are close (within 1 %), and a plain layer
    a·φ + b where it is as good.  For data of norm one "quadratic" (sphere paper, arXiv 2308.16425)
    and "dual" (the same kernel exactly) apply too.

    Parameters
    ----------
    model : DeepEquilibrium or ConvolutionalEquilibrium
        A convolution is matched on X, images as rows.
    X : array_like of shape (n, p), optional
        Samples: tau0 is their root mean squared norm, networks are compared by their exact kernels
        on up to 300 of them.  Rows that all have norm one allow the families of the sphere.  The
        order of the rows does not matter.
    tau0 : float, optional
        √(tr C°/p), the scale of the data, in place of X.
    sphere : int, optional
        Dimension d of the unit sphere that the data lies on, in place of X or tau0.
    family : str or Family
        A name of `FAMILIES`, "auto", or a `Family` of your own.
    kind : {"ck", "ntk"}
    convention : {"feature", "preactivation"}
        Of the DEQ's kernel; "feature" is what a trained read-out sees.
    refine : bool
        Minimise the exact-kernel distance on up to 300 rows of X over the family's parameters, and
        keep the result if it is better on up to 600 others.  Without X there is nothing to refine.
    rng : int or Generator
        Draws the rows.

    Returns
    -------
    Match
        Check ``feasible`` and ``residuals``; ``certify`` compares exact kernels on new rows.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
    >>> m = nsd.match(deq, tau0=1.0, family="leaky_relu")
    >>> {name: round(value, 4) for name, value in m.parameters.items()}
    {'positive_slope': 0.9337, 'negative_slope': -0.0058, 'mean': 0.386}
    >>> m.model == deq, m.reason
    (True, 'meets constant, linear, scale2')
    """
    owner = "match"
    kind = kernel_name(kind, f"kernel of {owner}")
    if isinstance(family, str):
        checks.known_name(family, FAMILIES, "family")
    elif not isinstance(family, Family):
        raise checks.invalid("family", owner, "be a name or a Family", repr(family))
    if isinstance(model, ConvolutionalEquilibrium):
        if X is None or tau0 is not None or sphere is not None:
            requirement = "be X alone for a convolution"
            raise checks.invalid("the data", owner, requirement, "others")
        names = FAST_FAMILIES if family == "auto" else (family,)
        families = [_KNOWN[each] if isinstance(each, str) else each for each in names]
        return match_convolution(model, X, families, kind, convention, rng)
    if not isinstance(model, DeepEquilibrium):
        raise checks.invalid("model", owner, "be a DeepEquilibrium", repr(model), GIVEN_WEIGHTS)
    checked_choice(model, kind, convention, owner)
    choice = None if family == "auto" else _KNOWN[family] if isinstance(family, str) else family
    problem = _problem(model, X, tau0, sphere, choice, kind, convention, rng)
    # What is small here is slower on several threads.  Densities far out are zero.
    with single_blas_thread(), np.errstate(under="ignore", over="ignore"):
        return _answered(problem, choice, refine=refine and problem.X is not None)


def _problem(
    model: DeepEquilibrium,
    X: ArrayLike | None,
    tau0: float | None,
    sphere: int | None,
    choice: Family | None,
    kind: KernelName,
    convention: Convention,
    rng: int | np.random.Generator,
) -> Problem:
    places = {"X": X, "tau0": tau0, "sphere": sphere}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1 or not (given or (choice is not None and choice.name == "dual")):
        requirement = "tell the scale of the data by exactly one of X, tau0 and sphere"
        raise checks.invalid("the arguments", "match", requirement, " and ".join(given) or "none")
    generator = checks.random_generator(rng, "match")
    if tau0 is not None:
        tau0 = checks.data_scale(tau0, "tau0", "match")
    if sphere is not None:
        checks.integer_at_least(sphere, 2, "sphere", "match", "It is the dimension d of the data.")
    rows, unit = None, sphere is not None
    if X is not None:
        rows = _checked_rows(X)
        squares = np.einsum("ij,ij->i", rows, rows)
        tau0 = float(np.sqrt(squares.mean()))
        unit = bool(np.abs(squares - 1.0).max() <= 2e-8)
        sphere = rows.shape[1]
    for layer in model.cell:
        require_varying(layer.activation, 1.0 if tau0 is None else tau0, "match")
    return Problem(
        model=model,
        tau0=tau0,
        kind=kind,
        convention=convention,
        X=rows,
        rows=None if rows is None else rows[draw_rows(rows, MAX_ROWS, generator)],
        dimension=sphere,
        unit=unit,
    )


def _checked_rows(X: ArrayLike) -> FloatArray:
    rows = checks.samples(X, "X", "match")
    if len(rows) < 8:
        raise checks.invalid("X", "match", "have at least eight rows", len(rows))
    if not rows.any():
        raise checks.invalid("X", "match", "not be zero everywhere", "zeros")
    checks.powers_nonzero(rows, "X", "match")
    return rows


def _answered(problem: Problem, choice: Family | None, *, refine: bool) -> Match:
    families = [each for each in _KNOWN.values() if each.applies(problem)]
    if choice is not None:
        families = [choice]
    answers = [problem.scored(each.answer(problem)) for each in families]
    if refine:
        answers = _refined(problem, families, answers)
    best, why = _choose(problem, answers)
    return replace(answers[best], reason=answers[best].reason + why, candidates=tuple(answers))


def _refined(problem: Problem, families: list[Family], answers: list[Match]) -> list[Match]:
    """Refine what may win, networks of few layers first, until those of one depth are close."""
    answers = list(answers)
    reach = _WORTH_REFINING * min((m.score for m in answers if m.fitted), default=0.0)
    worth = [k for k, m in enumerate(answers) if m.score <= reach]
    for depth in sorted({answers[k].network.depth for k in worth}):
        same = [k for k in worth if answers[k].network.depth == depth]
        nearest = sorted(same, key=lambda k: answers[k].score)[:_REFINED]
        for k in same:
            if k in nearest or answers[k].family == "plain":
                answers[k] = problem.scored(families[k].refined(problem, answers[k]))
        if any(problem.is_close(answers[k]) for k in same):
            break
    return answers


def _choose(problem: Problem, answers: list[Match]) -> tuple[int, str]:
    """Return the index of the best answer, and why it is, for the reader."""
    usable = [k for k, m in enumerate(answers) if m.fitted is not None]
    if len(answers) == 1 or not usable:
        return 0, ""
    close = [k for k in usable if problem.is_close(answers[k])]
    if close:
        depth = min(answers[k].network.depth for k in close)
        usable = [k for k in close if answers[k].network.depth == depth]
    least = min(answers[k].score for k in usable)
    if problem.rows is None:  # rounding, of coefficients that are met
        best = next(k for k in usable if answers[k].score <= 1.01 * least + 1e-9)
        what = "residual, in units of the diagonal"
    else:
        even = max(_EVEN * least, least + _EVEN_SHARE)
        usable = [k for k in usable if answers[k].score <= even]
        free = min(answers[k].readout_gap for k in usable)
        even = max(_EVEN_READOUT * free, free + _EVEN_SHARE)
        best = next(k for k in usable if answers[k].readout_gap <= even)  # simpler ones come first
        what = f"exact-kernel gap on {len(problem.rows[:SCORE_ROWS])} rows"
    others = ", ".join(
        f"{m.family} {m.score:.2%}"
        for k, m in enumerate(answers)
        if k != best and not math.isnan(m.score)
    )
    why = f"; chosen by its {what}: {answers[best].score:.2%} (others: {others})"
    return best, why + ("; a plain layer does as well" if answers[best].family == "plain" else "")

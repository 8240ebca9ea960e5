"""`match`: ask the families, choose, and say why."""

from __future__ import annotations

import contextlib
import math
import numbers
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data import draw_rows
from notsodeep.equivalents.mixture_equivalent import is_centred
from notsodeep.matching.convolutional import match_convolution
from notsodeep.matching.dual_family import Dual
from notsodeep.matching.families import FAMILIES, named, those_that_apply
from notsodeep.matching.family import Family
from notsodeep.matching.match_record import Match
from notsodeep.matching.own_family import OwnFamily
from notsodeep.matching.problem import Problem
from notsodeep.matching.refinement import MeasuredKernel
from notsodeep.models import (
    Convention,
    ConvolutionalEquilibrium,
    DeepEquilibrium,
    KernelName,
    checked_choice,
    kernel_name,
    require_varying,
)
from notsodeep.models.kernel_kind import GIVEN_WEIGHTS
from notsodeep.threads import single_blas_thread

_DRAWN = 2000  # rows of the data that are looked at, at most
# How far behind the best a start may be.  On digits and on the mixture of the theory (φ tanh, relu,
# gelu, swish, both kernels) refining gained up to a factor of 17 for starts within 20 of the best;
# starts further behind, by 24 to 550, gained at most 40, and none of them won.
_WORTH_REFINING = 20.0


def match(
    deq: DeepEquilibrium | ConvolutionalEquilibrium,
    X: ArrayLike | None = None,
    *,
    tau0: float | None = None,
    sphere: int | None = None,
    family: str | Family | Callable[[FloatArray], Activation] = "auto",
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    refine: bool = False,
    centre: bool | None = None,
    measured: MeasuredKernel | None = None,
    rng: int | np.random.Generator = 0,
    data: ArrayLike | None = None,
    layers: int | None = None,
    degree: int | None = None,
    start: Sequence[float] | None = None,
) -> Match:
    """Find a shallow network whose kernel is that of a DEQ.

    For data of scale tau0 the network is asked to have the coefficients of the DEQ on which the
    kernel of a Gaussian mixture depends in high dimension: four of a centred one, such as tanh
    (linear, norm_fluctuation, covariance_overlap, scale2; mixture paper, arXiv 2402.02697), seven
    of any other, such as ReLU or a cell with biases (see `Expansion`).  "auto" matches the model as
    it is given: by "two_kinks", two layers that meet all seven, or, on data, by one layer with a
    mean if its kernel is within 1 % of the DEQ's there; a second layer costs a product with an
    m × m matrix.  One layer alone meets constant, linear, scale2 and at most covariance_overlap.
    The other families by name are about the four, and so match the centred DEQ, φ − E φ(τ*ξ), in
    place of the given one: ``deq`` of the answer is what was matched.  For data of norm one the
    families "quadratic" (sphere paper, arXiv 2308.16425) and "dual" (the same kernel exactly) match
    the DEQ as it is.

    Parameters
    ----------
    deq : DeepEquilibrium or ConvolutionalEquilibrium
        A convolution is always matched on X, images as rows, and refined; tau0, sphere, measured
        and the former arguments are left out.
    X : array_like of shape (n, p), optional
        Samples: tau0 is their root mean squared norm, candidates are compared by their exact
        kernels on up to 300 of them, and `refine` uses them.  Rows that all have norm one allow
        the families of the sphere.  The order of the rows does not matter.
    tau0 : float, optional
        √(tr C°/p), the scale of the data, instead of X.
    sphere : int, optional
        Dimension d of the unit sphere that the data lies on, instead of X or tau0.
    family : str or Family
        A family with its options, such as ``LeakyReLU(layers=2)``, or the name of one: those of
        `FAMILIES`.  "auto" tries all that apply and takes the best.  `OwnFamily` makes one from a
        function.
    kernel : {"conjugate", "tangent"}
    convention : {"feature", "preactivation"}
        Of the DEQ's kernel; "feature" is what a trained read-out sees.
    refine : bool
        Minimise the exact-kernel distance on up to 300 rows of the data over the family's
        parameters, and keep the result if it is better on up to 600 others.
    centre : bool, optional
        True to match the centred DEQ in place of the given one, False to match it as it is.  If
        left out, "auto" and "two_kinks" match it as it is, unless they cannot, and others centre
        it, unless that is not defined.
    measured : callable, optional
        A function from rows (n, p) to a kernel (n, n) that stands for the DEQ's where families are
        compared, refined and certified on data: for a DEQ with weights of its own,
        ``lambda X: empirical_kernels(module, X).conjugate``.
    rng : int or Generator
        Draws the rows of the data on which families are compared and refined.
    data, layers, degree, start
        Former arguments: `data` is X, and the others are options of families.

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
    >>> m.deq == deq.centred(1.0), nsd.match(deq, tau0=1.0).deq == deq
    (True, True)
    """
    owner = "match"
    kernel = kernel_name(kernel, f"kernel of {owner}")
    if isinstance(deq, ConvolutionalEquilibrium):
        others = (tau0, sphere, measured, data, layers, degree, start, centre)
        if X is None or any(value is not None for value in others):
            requirement = "be X, family, kernel, convention and rng for a convolution"
            raise checks.invalid("the arguments", owner, requirement, "others")
        if callable(family):
            raise checks.invalid("family", owner, "be a name or a Family", repr(family))
        options = {"family": family, "kernel": kernel, "convention": convention, "rng": rng}
        return match_convolution(deq, X, **options)  # type: ignore[arg-type]
    if not isinstance(deq, DeepEquilibrium):
        raise checks.invalid("deq", owner, "be a DeepEquilibrium", repr(deq), GIVEN_WEIGHTS)
    checked_choice(deq, kernel, convention, owner)
    X, tau0 = _former_arguments(X, tau0, data)
    choice = _former_family(family, layers, degree, start)
    _require_one_place(X, tau0, sphere, optional=isinstance(choice, Dual))
    generator = checks.random_generator(rng, owner)
    rows = None if X is None else _checked_rows(X)
    if refine and rows is None:
        remedy = "Pass a few hundred rows or more: match(deq, X, refine=True)."
        raise checks.invalid("X", owner, "be given for refine=True", None, remedy)
    if rows is not None:
        tau0 = float(np.sqrt(np.einsum("ij,ij->", rows, rows) / len(rows)))
    for layer in deq.cell:
        require_varying(layer.activation, 1.0 if tau0 is None else tau0, owner)
    question = Problem(
        deq=deq,
        tau0=tau0,
        kernel=kernel,
        convention=convention,
        X=rows,
        rows=None if rows is None else rows[draw_rows(rows, _DRAWN, generator)],
        dimension=sphere if rows is None else rows.shape[1],
        unit=sphere is not None or (rows is not None and _unit_norm(rows)),
        measured=measured,
    )
    # What is small here is slower on several threads; a measured kernel may be worth them.
    one_thread = single_blas_thread() if measured is None else contextlib.nullcontext()
    # Densities far out are zero, whatever the caller's program does about underflow.
    with one_thread, np.errstate(under="ignore"):
        return _answered(question, choice, centre, degree, refine=refine)


def _answered(
    question: Problem,
    choice: Family | None,
    centre: bool | None,
    degree: int | None,
    *,
    refine: bool,
) -> Match:
    for centred in _whether_to_centre(question, choice, centre):
        problem = replace(question, centre=centred)
        families = those_that_apply(problem) if choice is None else [choice]
        if degree is not None:
            families = [Dual(degree) if isinstance(each, Dual) else each for each in families]
        if not families:
            remedy = "Rows of norm one, or sphere=…, allow family='dual'."
            requirement = "have coefficients of the mixture theory"
            raise checks.invalid("deq", "match", requirement, str(question.deq), remedy)
        found = [_scored(problem, each.answer(problem)) for each in families]
        # The DEQ as given comes first; its centred sibling is the answer only if no family has it.
        if any(_is_met(problem, *pair) for pair in zip(families, found, strict=True)):
            break
    if refine:
        found = _refined(problem, families, found)
    best, why = _choose(families, found, problem)
    return replace(found[best], reason=found[best].reason + why, candidates=tuple(found))


def _whether_to_centre(
    problem: Problem, choice: Family | None, centre: bool | None
) -> tuple[bool, ...]:
    """Return what to try in turn: to match the centred DEQ (True), or the one that was given."""
    if centre is not None:
        return (centre,)
    deq = problem.deq
    if problem.tau0 is None or is_centred(deq, problem.tau0):
        return (True,)
    fixed = any(layer.bias > 0.0 or layer.normalise != "none" for layer in deq.cell)
    if fixed and (choice is None or choice.as_given):
        return (False,)
    return (False, True) if choice is None or choice.has_means else (True,)


def _is_met(problem: Problem, family: Family, found: Match) -> bool:
    """Whether a network has all that the kernel depends on, or is close to it on data."""
    complete = problem.centre or family.has_means or not family.as_given
    return (found.feasible and complete) or problem.is_close(found)


def _scored(problem: Problem, found: Match) -> Match:
    return replace(found, score=problem.score(found))


def _refined(problem: Problem, families: list[Family], found: list[Match]) -> list[Match]:
    """Refine what may win, networks of few layers first, until those of one depth are close."""
    found = list(found)
    reach = _WORTH_REFINING * min((m.score for m in found if m.fitted), default=0.0)
    worth = [k for k, m in enumerate(found) if m.score <= reach]
    for depth in sorted({found[k].network.depth for k in worth}):
        those = [k for k in worth if found[k].network.depth == depth]
        for k in those:
            found[k] = _scored(problem, families[k].refined(problem, found[k]))
        if any(problem.is_close(found[k]) for k in those):
            break
    return found


def _choose(families: list[Family], found: list[Match], problem: Problem) -> tuple[int, str]:
    """Return the index of the best answer, and why it is, for the reader."""
    usable = [k for k, m in enumerate(found) if m.fitted is not None]
    if len(found) == 1 or not usable:
        return 0, ""
    close = [k for k in usable if problem.is_close(found[k])]
    if close:
        depth = min(found[k].network.depth for k in close)
        usable = [k for k in close if found[k].network.depth == depth]
    judged_rows = problem.judged_rows
    if not judged_rows:
        # Residuals say nothing about how a polynomial behaves at finite p: Lipschitz ones first.
        tame = [k for k in usable if families[k].lipschitz and found[k].feasible]
        usable = tame or usable
    # Within a hundredth the earlier, simpler family wins; among close ones, within a quarter.
    # 1e-9 is `MET`: residuals of families that meet all their coefficients are rounding errors, and
    # the smaller of two says nothing.
    least = (1.25 if close else 1.01) * min(found[k].score for k in usable) + 1e-9
    best = next(k for k in usable if found[k].score <= least)
    what = "residual of those that apply"
    if judged_rows:
        what = f"exact-kernel gap on the data ({judged_rows} rows)"
    others = ", ".join(
        f"{m.family} {m.score:.3g}"
        for k, m in enumerate(found)
        if k != best and not math.isnan(m.score)
    )
    depth = found[best].network.depth
    why = "for the smallest"
    if close:
        why = f"as the simplest of {depth} layer{'s' * (depth > 1)} that is close, by its"
    return best, f"; chosen {why} {what}, {found[best].score:.3g} (others: {others})"


def _former_family(
    family: str | Family | Callable[[FloatArray], Activation],
    layers: int | None,
    degree: int | None,
    start: Sequence[float] | None,
) -> Family | None:
    """Return the family, None for "auto", with the options of version 0.1 put where they belong."""
    if isinstance(family, Family):
        for option, value in (("layers", layers), ("degree", degree), ("start", start)):
            if value is not None:
                requirement = "be left out beside a family, which has its own options"
                raise checks.invalid(option, "match", requirement, repr(value))
        return family
    if callable(family):
        _warn_of("match(deq, family=f, start=…)", "family=nsd.matching.OwnFamily(f, start=…)")
        if start is None:
            remedy = "Use family=nsd.matching.OwnFamily(function, start=(…))."
            requirement = "be given for a family of your own"
            raise checks.invalid("start", "match", requirement, None, remedy)
        return OwnFamily(family, tuple(start))
    checks.known_name(family, FAMILIES, "family")
    for option, value in (("layers", layers), ("degree", degree)):
        if value is not None:
            _warn_of(f"match(…, {option}=…)", f"family=nsd.matching.named(name, {option}=…)")
    if degree is not None:
        checks.integer_at_least(degree, 1, "degree", "match")
    if family == "auto":
        return None
    return named(family, layers=None if family == "dual" else layers)


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
            raise checks.invalid("data", "match", "be left out beside X, its new name", "both")
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
        raise checks.invalid("the arguments", "match", requirement, got)
    if tau0 is not None:
        checks.data_scale(tau0, "tau0", "match")
    if sphere is not None:
        checks.integer_at_least(sphere, 2, "sphere", "match", "It is the dimension d of the data.")


def _checked_rows(X: ArrayLike) -> FloatArray:
    rows = checks.samples(X, "X", "match")
    if len(rows) < 8:
        raise checks.invalid("X", "match", "have at least eight rows", len(rows))
    if not rows.any():
        raise checks.invalid("X", "match", "not be zero everywhere", "zeros")
    checks.powers_nonzero(rows, "X", "match")
    return rows


def _unit_norm(rows: FloatArray) -> bool:
    squares = np.einsum("ij,ij->i", rows, rows)
    return bool(np.abs(squares - 1.0).max() <= 2e-8)

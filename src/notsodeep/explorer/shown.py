"""From a state to everything that the first page shows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, cast

from notsodeep import checks
from notsodeep.activations import from_formula, named
from notsodeep.equivalents import LimitingSpectrum
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.limiting_laws import KnownData
from notsodeep.explorer.state import FORMULA, ExplorerState
from notsodeep.matching import Certificate, Match, match
from notsodeep.models import Conditions, Convention, DeepEquilibrium, KernelName

CLOSE = 0.05
"""Relative gap up to which the kernels are called close, as in `notsodeep compile`."""


@dataclass(frozen=True, eq=False)
class View:
    """A match, and the evidence for it on held-out rows.

    Attributes
    ----------
    match : Match
    certificate : Certificate or None
        None if the family has no network.
    law : LimitingSpectrum or None
        Of the DEQ's kernel.
    law_note : str
        Where the law comes from, or why there is none.
    """

    match: Match
    certificate: Certificate | None
    law: LimitingSpectrum | None
    law_note: str

    @property
    def conditions(self) -> Conditions:
        """The theory's assumptions on the DEQ and, if there is a network, on the data."""
        shown = self.match if self.certificate is None else self.certificate
        return shown.conditions


def deq_of(state: ExplorerState) -> DeepEquilibrium:
    """Make the DEQ; a formula goes through the library's parser and is never run."""
    if state.activation == FORMULA:
        formula = from_formula(state.formula, kinks=state.kink_points)
        return DeepEquilibrium(formula, state.sigma_a2)
    return DeepEquilibrium(named(state.activation), state.sigma_a2)


def view_of(state: ExplorerState, data: KnownData) -> View:
    """Match on the rows of the data, and certify on those that were held out.

    Raises
    ------
    NotSoDeepError
        Something cannot be computed; the message says what and why.
    """
    kernel, convention = cast(KernelName, state.kernel), cast(Convention, state.convention)
    rows = data.rows
    if state.family == "dual" and not data.on_sphere:
        requirement = "be another one for these data: its network is for rows of norm one"
        remedy = "Choose the unit sphere, or the family auto."
        raise checks.refusal("family", "the explorer", requirement, "dual", remedy)
    with warnings.catch_warnings():
        # What they warn of is shown on the page as a verdict or a residual.
        warnings.simplefilter("ignore", UserWarning)
        found = match(
            deq_of(state),
            rows.X,
            family=state.family,
            kernel=kernel,
            convention=convention,
            refine=state.refine,
        )
        if found.fitted is None:
            return View(found, None, None, "there is no network to compare with")
        if len(rows.classes) > 1:
            certificate = found.certify(rows.X_test, rows.y_test, stats=data.estimated)
        else:
            certificate = found.certify(rows.X_test)
        try:
            shown = found.deq if data.on_sphere else deq_of(state)
            law = data.limiting_spectrum(shown, kernel, convention)
        except NotSoDeepError as error:
            return View(found, certificate, None, str(error))
    return View(found, certificate, law, law.origin)


def headline(view: View) -> tuple[str, str]:
    """Say in one sentence what the page shows, and whether it is good, bad or open news."""
    family = view.match.family.replace("_", " ")
    if view.certificate is None:
        return f"The {family} family has no network for this DEQ: {view.match.reason}.", "bad"
    gap, other = view.certificate.matched.relative_gap, view.certificate.unmatched.relative_gap
    depth = {1: "one hidden layer", 2: "two hidden layers"}[view.match.network.depth]
    said = (
        f"On held-out rows the kernel of a {family} network with {depth} is within {gap:.2%} of "
        f"the DEQ's; an unmatched network is {other:.2%} off."
    )
    if gap > CLOSE:
        return f"{said} That is not close.", "bad"
    if not view.match.feasible:
        return f"{said} Not every equation of the family is met.", "open"
    return said, "good"


def coefficient_rows(found: Match) -> list[dict[str, str]]:
    """Tabulate target and achieved coefficients."""
    target, achieved = found.target.to_dict(), _numbers(found.achieved)
    return [
        {
            "coefficient": name.replace("_", " "),
            "target": f"{target[name]:.6f}",
            "achieved": f"{achieved[name]:.6f}",
            "difference": f"{residual:+.1e}",
        }
        for name, residual in found.residuals.items()
        if isinstance(target.get(name), float) and isinstance(achieved.get(name), float)
    ]


def _numbers(record: Any) -> dict[str, Any]:
    return {} if record is None else dict(record.to_dict())


def condition_rows(view: View) -> list[dict[str, str]]:
    """Tabulate the conditions with their numbers and what they are good for."""
    words = {True: "✓\u00a0holds", False: "✗\u00a0fails", None: "?\u00a0undecided"}
    return [
        {
            "condition": verdict.name,
            "verdict": words[verdict.holds],
            "measured": f"{verdict.value:.4g}",
            "bound": f"{verdict.bound:.4g}",
            "what it is good for": verdict.meaning,
        }
        for verdict in view.conditions
    ]


def candidate_rows(found: Match) -> list[dict[str, str]]:
    """Tabulate the families that were tried."""
    return [
        {
            "family": candidate.family.replace("_", " "),
            "gap on the rows it was matched on": f"{candidate.score:.4g}",
            "why": candidate.reason,
        }
        for candidate in found.candidates
    ]

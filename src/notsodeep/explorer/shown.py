"""From a state to everything that the first page shows: laws, matches, counted costs.

The bulk of the noise and the population behind it are most of the work of
`notsodeep.limiting_spectrum`, and the statistics of held-out rows are part of every certificate.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from notsodeep import checks
from notsodeep.activations import from_formula, named
from notsodeep.data import Dataset
from notsodeep.equivalents import (
    LimitingSpectrum,
    equivalent,
    limiting_spectrum,
    sphere_equivalent,
)
from notsodeep.errors import InvalidInput, NotConverged, NotSoDeepError
from notsodeep.explorer.state import CELL, FORMULA, ExplorerState
from notsodeep.matching import Certificate, Match, match
from notsodeep.models import (
    Conditions,
    Convention,
    DeepEquilibrium,
    Dense,
    ExplicitNetwork,
    KernelName,
)
from notsodeep.models.layers import solve_variances, stability

_ANY_MODEL = DeepEquilibrium("identity", 0.0)


@dataclass(frozen=True, eq=False)
class KnownData:
    """A data set, with the limiting law of one kernel on its held-out rows, or why there is none.

    The bulk of that law, most of the work, serves all kernels on these rows.
    """

    rows: Dataset
    law: LimitingSpectrum | None
    reason: str

    @property
    def on_sphere(self) -> bool:
        """Whether the rows are uniform on the unit sphere."""
        return self.rows.provenance.name == "sphere"

    @classmethod
    def of(cls, rows: Dataset, before: KnownData | None = None) -> KnownData:
        """Compute the law; a failure is a reason, not an error.

        What was known of other data is taken over where it is the same.
        """
        bare = cls(rows, None, "a class has fewer than four held-out rows")
        known = bare.on_sphere or rows.population is not None
        if not known and np.unique(rows.y_test, return_counts=True)[1].min() < 4:
            return bare
        try:
            like = None if before is None else before.law
            return cls(rows, bare._law(_ANY_MODEL, "ck", "feature", like), "")
        except (InvalidInput, NotConverged) as error:
            return cls(rows, None, str(error))

    def limiting_spectrum(
        self, deq: DeepEquilibrium, kind: KernelName, convention: Convention
    ) -> LimitingSpectrum:
        """Return the law of a DEQ's kernel on the held-out rows."""
        if self.law is None:
            raise InvalidInput(self.reason)
        return self._law(deq, kind, convention, self.law)

    def _law(
        self,
        deq: DeepEquilibrium,
        kind: KernelName,
        convention: Convention,
        like: LimitingSpectrum | None,
    ) -> LimitingSpectrum:
        X, y, mixture = self.rows.X_test, self.rows.y_test, self.rows.population
        if self.on_sphere:
            eq = sphere_equivalent(deq, X, kind=kind, convention=convention)
        else:
            eq = equivalent(deq, X, y, mixture, kind=kind, convention=convention)
        known = self.on_sphere or mixture is not None
        return limiting_spectrum(eq, population=None if known else "deconvolved", like=like)


TOLERANCE = 1e-5
"""Relative, of the DEQ's fixed point."""
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Cost:
    """Multiplications for one sample.

    Attributes
    ----------
    rate : float
        Factor by which a step of the DEQ shrinks the distance from its fixed point.
    steps : int or None
        Steps to the tolerance; None if they do not get there.
    deq : int or None
    network : int
    """

    rate: float
    steps: int | None
    deq: int | None
    network: int

    @property
    def ratio(self) -> float | None:
        """How many times as much the DEQ costs."""
        return None if self.deq is None else self.deq / self.network


def inference_cost(
    deq: DeepEquilibrium,
    network: ExplicitNetwork,
    *,
    tau0: float,
    in_features: int,
    width: int,
    out_features: int,
) -> Cost:
    """Count the multiplications of both networks for one row.

    A step z ← φ(√σa² A z + √σb² B x)/√m multiplies by A, m² times, and so does each layer of a
    cell; B x, m p times, is computed once, for every layer that x enters.  At large width a small
    change of z shrinks in a step by √(Π_l w_l E φ_l′(√q_l ξ)²), with q_l the variances of the
    pre-activations, so that T steps leave rate^T.  An explicit network takes one product for each
    layer.

    Parameters
    ----------
    deq : DeepEquilibrium
        As it is matched: centred, if the match centred it.
    network : ExplicitNetwork
    tau0 : float
        Scale of the data.
    in_features, width, out_features : int
        p, m and K.
    """
    owner = "inference_cost"
    p, m, K = (
        checks.positive_integer(value, name, owner)
        for name, value in (("in_features", in_features), ("width", width), ("out", out_features))
    )
    squared = np.array([checks.positive_number(tau0, "tau0", owner) ** 2])
    variances, _ = solve_variances(deq.cell, squared)
    rate = math.sqrt(float(stability(deq.cell, variances)[0]))
    steps = _steps(rate)
    entries = sum(layer.inject > 0.0 for layer in deq.cell)
    explicit = m * p + m * K + (network.depth - 1) * m * m
    turns = None if steps is None else steps * len(deq.cell) * m * m
    return Cost(rate, steps, None if turns is None else entries * m * p + m * K + turns, explicit)


def _steps(rate: float) -> int | None:
    if rate == 0.0:
        return 1
    if rate >= 1.0:
        return None
    steps = math.ceil(math.log(TOLERANCE) / math.log(rate))
    return steps if steps <= _MOST_STEPS else None


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
    if state.activation == CELL:
        return DeepEquilibrium(cell=[Dense.from_text(text) for text in state.layer_texts])
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
    kind, convention = cast(KernelName, state.kind), cast(Convention, state.convention)
    rows = data.rows
    if state.family == "dual" and not data.on_sphere:
        requirement = "be another one for these data: its network is for rows of norm one"
        remedy = "Choose the unit sphere, or the family auto."
        raise checks.invalid("family", "the explorer", requirement, "dual", remedy)
    with warnings.catch_warnings():
        # What they warn of is shown on the page as a verdict or a residual.
        warnings.simplefilter("ignore", UserWarning)
        found = match(
            deq_of(state),
            rows.X,
            family=state.family,
            kind=kind,
            convention=convention,
            refine=state.refine,
        )
        if found.fitted is None:
            return View(found, None, None, "there is no network to compare with")
        if len(rows.classes) > 1:
            certificate = found.certify(rows.X_test, rows.y_test)
        else:
            certificate = found.certify(rows.X_test)
        try:
            law = data.limiting_spectrum(deq_of(state), kind, convention)
        except NotSoDeepError as error:
            return View(found, certificate, None, str(error))
    return View(found, certificate, law, law.origin)


def headline(view: View) -> tuple[str, str]:
    """Say in one sentence what the page shows, and whether it is good, bad or open news."""
    family = view.match.family.replace("_", " ")
    if view.certificate is None:
        return f"The {family} family has no network for this DEQ: {view.match.reason}.", "bad"
    gap, other = view.certificate.matched.readout_gap, view.certificate.unmatched.readout_gap
    depth = {1: "one hidden layer", 2: "two hidden layers"}[view.match.network.depth]
    said = (
        f"On held-out rows, with scale and constant free, the kernel of a {family} network with "
        f"{depth} is within {gap:.2%} of the DEQ's; an unmatched network is {other:.2%} off."
    )
    if gap > CLOSE:
        return f"{said} That is not close.", "bad"
    if view.certificate.plain_suffices:
        said += " A plain layer does as well."
    if not view.match.feasible:
        return f"{said} Not every equation of the family is met.", "open"
    return said, "good"


def coefficient_rows(found: Match) -> list[dict[str, str]]:
    """Tabulate target and achieved coefficients."""
    target, achieved = _numbers(found.target), _numbers(found.achieved)
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

"""What an equilibrium network does when it is iterated: does it settle, where, and how soon."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks, extras
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted
from notsodeep.trained.cell import AffineCell, EquilibriumCell
from notsodeep.trained.histories import STAYS, BoolArray, RowHistories, RowStep, follow
from notsodeep.trained.margin import Margin, margin_of

if TYPE_CHECKING:
    from torch import nn

    from notsodeep.models import DeepEquilibrium

Verdict = Literal["shallow", "iterative", "multi-stable", "no fixed point", "undecided"]

TOLERANCES = ("1e-2", "1e-3", "1e-6")
"""Relative residuals whose steps are counted."""

_LOST_SHARE, _SLOW_SHARE, _SEVERAL_SHARE = 0.05, 0.05, 0.01
_AGREEMENT, _SHALLOW_DEPTH = 0.995, 3
_APART = 100.0  # times the tolerance
_SETTLED_SHARE = 0.95  # of the rows, in counts of steps
_STATE_BYTES = 1 << 26  # of the states of all rows; fewer rows are looked at if need be
_FEWEST_ROWS, _LOCAL_ROWS = 16, 64
_LARGEST_SPECTRUM = 2048  # width above which W is not looked at: its eigenvalues take a minute
STATE_ERROR = 1e-2
"""Relative error within which a state agrees with another, where there are no classes."""

_SIZES = (0.1, 1.0, 10.0)  # of random starts, in units of the states f(0, x)

_RULE = f"""\
undecided: the seconds given ended first
no fixed point: on more than {_LOST_SHARE:.0%} of the rows the relative residual is above \
{STAYS:g} and has not fallen in the second half of the budget, or is no longer finite
undecided: on more than {_SLOW_SHARE:.0%} of the rows it still falls, with 95 % confidence, when \
the budget ends; from other starts too, unless a margin proves that there is one limit
multi-stable: on more than {_SEVERAL_SHARE:.0%} of the rows starts end further apart than \
{_APART:g} tolerances and the estimated errors of both, or some settle and others do not
shallow: {_SHALLOW_DEPTH} steps agree with the limit on at least {_AGREEMENT:.1%} of the rows
iterative: it settles, but needs more steps than that"""

_MEANING: dict[Verdict, str] = {
    "shallow": "A few steps do what the whole iteration does: compile it.",
    "iterative": "It has one limit and needs its depth; explicit layers may still follow it.",
    "multi-stable": "It has several limits: no map of the input alone can follow it.",
    "no fixed point": "What was trained is a loop of fixed length, not an equilibrium.",
    "undecided": "The budget ended first; ask again with a larger max_steps or max_seconds.",
}


@dataclass(frozen=True, repr=False)
class Diagnosis(Plotted):
    """What was found by `diagnose`.

    Attributes
    ----------
    verdict : {"shallow", "iterative", "multi-stable", "no fixed point", "undecided"}
        By `rule`.
    reason : str
        The numbers that decided.
    method : str
        The iteration that steps and depths are of: the network's own, z ← f(z, x), or a splitting
        where that does not settle and a margin proves that there is a fixed point.
    rows, width, max_steps, tolerance
        How many rows were looked at, the size of a state, the budget and what counts as settled.
    settled, falling, lost : float
        Shares of the rows under the network's own iteration, started from zero.
    limits : int
        The largest number of distinct limits that starts of one row ended in; 0 if none did.
    several : float
        Share of the rows with more than one.
    rate : float or None
        Median over the rows of the asymptotic ratio of successive residuals of `method`.
    local_radius : float or None
        Median over the rows of the spectral radius of ∂f/∂z at the limit.
    steps : dict of str to int or None
        Steps of `method` after which 95 % of the rows stay within a relative residual of "1e-2",
        "1e-3" and "1e-6"; None if that did not happen.
    effective_depth : int or None
        The fewest steps from which on the truncation agrees with the limit on at least 99.5 % of
        the rows; None without a limit.
    agreement : ndarray of shape (k,)
        Share of the rows on which 1, 2, … steps agree with the limit.
    agreement_kind : {"class", "state"}
        The same largest logit; without a read-out, a relative error of the state within 1 %.
    gradient_error, gradient_cosine : float or None
        Of the one-step gradient against the implicit one, relative to the latter; medians.
    margin : Margin or None
        Of an affine cell.
    spectral_radius : float or None
        Of W.
    starts : tuple of str
    residuals : ndarray of shape (number of starts, steps)
        Median relative residual of the network's own iteration from each start.
    solver_residuals : ndarray of shape (steps,)
        That of `method`, if it is a splitting; empty otherwise.
    spectrum : ndarray of shape (m, 2)
        Real and imaginary parts of the eigenvalues of W; empty if it is not known.
    local_radii : ndarray of shape (n,)
        Spectral radius of ∂f/∂z at the limits of some rows.
    notes : tuple of str
        What else a reader should know.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0]], activation="tanh")
    >>> found = nsd.diagnose(cell, [[0.1], [0.7]])
    >>> print(str(found).splitlines()[0])
    iterative: 3 steps agree with the limit on 50.0% of the rows. It has one limit and needs its...
    >>> found.steps
    {'1e-2': 7, '1e-3': 10, '1e-6': 20}
    """

    _drawing: ClassVar[str] = "diagnosis"
    _derived: ClassVar[tuple[str, ...]] = ("rule",)

    verdict: Verdict
    reason: str
    method: str
    rows: int
    width: int
    max_steps: int
    tolerance: float
    settled: float
    falling: float
    lost: float
    limits: int
    several: float
    rate: float | None
    local_radius: float | None
    steps: dict[str, int | None]
    effective_depth: int | None
    agreement: FloatArray
    agreement_kind: Literal["class", "state"]
    gradient_error: float | None
    gradient_cosine: float | None
    margin: Margin | None
    spectral_radius: float | None
    starts: tuple[str, ...]
    residuals: FloatArray
    solver_residuals: FloatArray
    spectrum: FloatArray
    local_radii: FloatArray
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """By which the verdict was found; the first line that applies counts."""
        return _RULE

    @property
    def table(self) -> tuple[tuple[str, str], ...]:
        """The numbers, in words."""
        lines = [
            ("rows, width of the state", f"{self.rows}, {self.width}"),
            (
                "settled, still falling, lost",
                f"{self.settled:.1%}, {self.falling:.1%}, {self.lost:.1%}",
            ),
            ("iteration", self.method),
            ("limits of one row, at most", f"{self.limits} ({self.several:.1%} have several)"),
            ("rate", _number(self.rate)),
            ("local spectral radius", _number(self.local_radius)),
            *((f"steps to {k}", _number(v)) for k, v in self.steps.items()),
            (f"effective depth (by {self.agreement_kind})", _number(self.effective_depth)),
            ("one-step gradient: error, cosine", self._gradient()),
        ]
        if self.margin is not None:
            lines += [
                (
                    "‖W‖, spectral radius",
                    f"{self.margin.norm:.4g}, {_number(self.spectral_radius)}",
                ),
                ("margin", f"{self.margin.value:.4g} ({self.margin.kind})"),
            ]
        return tuple(lines)

    def _gradient(self) -> str:
        return f"{_number(self.gradient_error)}, {_number(self.gradient_cosine)}"

    def __str__(self) -> str:
        wide = max(len(label) for label, _ in self.table)
        lines = [f"{self.verdict}: {self.reason} {_MEANING[self.verdict]}", ""]
        lines += [f"{label:<{wide}}  {value}" for label, value in self.table]
        lines += ["", "The rule, the first line that applies:", *self.rule.splitlines()]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


def diagnose(
    cell: EquilibriumCell | nn.Module | DeepEquilibrium,
    X: ArrayLike,
    *,
    max_steps: int = 300,
    rows: int = 512,
    tolerance: float = 1e-6,
    max_seconds: float = 300.0,
    width: int = 512,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> Diagnosis:
    """Iterate an equilibrium network from several starts and say what it is.

    f is evaluated 6·`max_steps` times on at most `rows` rows at the very most, and those which have
    settled are left out; memory is that of a few states of all rows, 64 MB each at most, for which
    fewer rows are taken if need be (16 at the least).  The starts are zero, random states of three
    sizes and the limit of another row.  If `max_seconds` end first, looked at after every
    evaluation of f, the verdict is "undecided", with what was measured until then; otherwise the
    answer is a function of the arguments.

    Parameters
    ----------
    cell : EquilibriumCell, Module or DeepEquilibrium
        A module is recognised as by `EquilibriumCell.from_module`; of a description, one network
        with random weights is drawn.
    X : array_like of shape (n, …)
        Rows of the kind that the network is used on.
    max_steps : int, default 300
        Budget of one start.
    rows : int, default 512
        How many rows are looked at; drawn from X if there are more.
    tolerance : float, default 1e-6
        Relative residual of a row that has settled.
    max_seconds : float, default 300
        By the clock.
    width : int, default 512
        Of the network that is drawn for a description.
    rng : int or Generator
        Of the choice of rows, the starts and the weights of a description.
    progress : bool
        Show a bar on a terminal.

    Raises
    ------
    InvalidInput
        X does not fit the cell; f changes the number of rows, keeps state or mixes rows.
    MissingPackage
        PyTorch, the extra ``torch``, is not installed.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> rng = np.random.default_rng(0)
    >>> W, U = 0.02 * rng.standard_normal((50, 50)), rng.standard_normal((50, 8))
    >>> cell = nsd.EquilibriumCell.from_weights(W, U, activation="tanh")
    >>> found = nsd.diagnose(cell, rng.standard_normal((100, 8)))
    >>> found.verdict, found.limits, found.effective_depth, found.margin.kind
    ('shallow', 1, 2, 'monotone')
    """
    owner = "diagnose"
    extras.require(owner, "torch")
    from notsodeep.trained.modules import as_cell

    max_steps = checks.integer_at_least(max_steps, 10, "max_steps", owner)
    rows = checks.positive_integer(rows, "rows", owner)
    tolerance = _tolerance(tolerance, owner)
    deadline = time.monotonic() + checks.positive_number(max_seconds, "max_seconds", owner)
    generator = checks.random_generator(rng, owner)
    choosing, starting, drawing = generator.spawn(3)
    known = as_cell(cell, X, width=width, rng=drawing)
    drive = known.drive(_chosen(X, known.width, rows, choosing))
    with progress_bar("Diagnosis", enabled=progress, unit="work") as advance:
        examination = _Examination(known, drive, max_steps, tolerance, starting, advance, deadline)
        return examination.diagnosis()


@dataclass(frozen=True, eq=False)
class _Method:
    """An iteration: its step, and the state of the network that its own state stands for."""

    name: str
    step: RowStep
    state_of: Callable[[FloatArray], FloatArray]
    start: FloatArray


class _Examination:
    """The parts of one diagnosis, which share a cell, some rows and a count of evaluations."""

    def __init__(
        self,
        cell: EquilibriumCell,
        drive: NDArray[Any],
        max_steps: int,
        tolerance: float,
        rng: np.random.Generator,
        advance: Callable[[int, int | None], None],
        deadline: float,
    ) -> None:
        self.cell, self.drive, self.rng = cell, drive, rng
        self.max_steps, self.tolerance = max_steps, tolerance
        # Limits are compared and steps counted against them: they are taken further than that, in
        # float32 as far as it goes.
        self.stop = tolerance * (1e-3 if drive.dtype == np.float64 else 1e-1)
        zero = np.zeros((len(drive), cell.width))
        self.own = _Method("its own, z ← f(z, x)", self._own_step, lambda z: z, zero)
        self._advance, self._done, self._deadline = advance, 0, deadline

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def diagnosis(self) -> Diagnosis:
        cell, count = self.cell, len(self.drive)
        own = self._follow(self.own)
        starts = {"zero": own, **self._other_starts(own)}
        notes = []
        margin = None
        if isinstance(cell, AffineCell):
            if cell.width > _LARGEST_SPECTRUM:
                notes.append(f"W is wider than {_LARGEST_SPECTRUM}: its margin was not looked for.")
            elif not self._late:
                margin = margin_of(cell, max_seconds=self._deadline - time.monotonic())
        method, main = self._settling(own, margin)
        if not np.isfinite(own.last).all():
            share = float(np.mean(~np.isfinite(own.last)))
            notes.append(f"On {share:.1%} of the rows f became NaN or infinite.")
        limits, several = _distinct_limits(list(starts.values()), self.tolerance)
        proved = margin is not None and margin.unique
        if proved:
            limits, several = min(limits, 1), 0.0  # starts that differ are not there yet
        if method is not self.own:
            limits = 1
            notes.append(
                f"Its own iteration settles on {own.settled.mean():.1%} of the rows; a margin "
                f"proves that there is one fixed point, and {method.name} finds it."
            )
        agreement, depth, radii, gradient = np.zeros(0), None, np.zeros(0), None
        known = main.settled
        decided = self._out_of_time(main, starts) or _unsettled_verdict(main)
        if decided is None and not proved:
            decided = _slow_elsewhere(starts)
        if decided is None:
            limit = method.state_of(main.states)
            agreement = self._agreement(method, limit, known)
            depth = _first_lasting(agreement)
            chosen = np.flatnonzero(known)[:_LOCAL_ROWS]
            decided = self._out_of_time(main, starts)
            if decided is None:
                radii, gradient = self._local(limit[chosen], self.drive[chosen])
                decided = _settled_verdict(several, depth, agreement)
        spectrum = self._spectrum()
        verdict, reason = decided
        longest = max(len(found.residuals) for found in starts.values())
        rates = main.rates[known] if known.any() else main.rates
        return Diagnosis(
            verdict=verdict,
            reason=reason,
            method=method.name,
            rows=count,
            width=cell.width,
            max_steps=self.max_steps,
            tolerance=self.tolerance,
            settled=float(own.settled.mean()),
            falling=float(own.falling.mean()),
            lost=float(own.lost.mean()),
            limits=limits,
            several=several,
            rate=_median(rates),
            local_radius=_median(radii),
            steps={k: main.steps_within(float(k), _SETTLED_SHARE) for k in TOLERANCES},
            effective_depth=depth,
            agreement=agreement,
            agreement_kind="state" if cell.readout is None else "class",
            gradient_error=None if gradient is None else gradient[0],
            gradient_cosine=None if gradient is None else gradient[1],
            margin=margin,
            spectral_radius=float(np.hypot(*spectrum.T).max()) if len(spectrum) else None,
            starts=tuple(starts),
            residuals=np.array([found.medians(longest) for found in starts.values()]),
            solver_residuals=np.zeros(0) if main is own else main.medians(len(main.residuals)),
            spectrum=spectrum,
            local_radii=radii,
            notes=tuple(notes),
        )

    def _own_step(self, z: FloatArray, rows: NDArray[np.int64]) -> FloatArray:
        return self.cell.step(z, self.drive[rows])

    def _follow(self, method: _Method, start: FloatArray | None = None) -> RowHistories:
        return follow(
            method.step,
            method.start if start is None else start,
            max_steps=self.max_steps,
            tolerance=self.tolerance,
            stop=self.stop,
            after_step=self._count,
        )

    def _count(self) -> bool:
        """Count an evaluation of f; say whether time is up."""
        self._done += 1
        self._advance(self._done, (len(_SIZES) + 3) * self.max_steps)
        return self._late

    def _out_of_time(
        self, main: RowHistories, starts: dict[str, RowHistories]
    ) -> tuple[Verdict, str] | None:
        if not self._late:
            return None
        return "undecided", (
            f"Time ended after {self._done} evaluations of f and {len(starts)} starts; "
            f"{main.settled.mean():.1%} of the rows had settled, {main.falling.mean():.1%} were "
            "approaching a limit."
        )

    def _other_starts(self, own: RowHistories) -> dict[str, RowHistories]:
        """Follow random starts in the size of the first images, and other rows' last states."""
        shape = own.states.shape
        with np.errstate(all="ignore"):
            first = self._own_step(self.own.start, np.arange(len(self.drive)))
        finite = first[np.isfinite(first)]
        unit = float(np.sqrt(np.mean(finite**2))) if len(finite) else 0.0
        unit = unit if 0.0 < unit < math.inf else 1.0
        found = {}
        for size in _SIZES:
            if not self._late:
                start = size * unit * self.rng.standard_normal(shape)
                found[f"random, {size:g}"] = self._follow(self.own, start)
        if own.settled.any() and not self._late:
            others = np.flatnonzero(own.settled)
            borrowed = others[np.searchsorted(others, np.arange(len(self.drive)) + 1) % len(others)]
            found["another row's limit"] = self._follow(self.own, own.states[borrowed])
        return found

    def _settling(self, own: RowHistories, margin: Margin | None) -> tuple[_Method, RowHistories]:
        """Return the iteration that finds the limits: its own, or else a splitting.

        A splitting is for cells with a proof that there is one fixed point, and is used if it
        settles on more rows.
        """
        cell = self.cell
        if not isinstance(cell, AffineCell) or margin is None or _unsettled_verdict(own) is None:
            return self.own, own
        if self._late or not (margin.unique and margin.slopes.monotone):
            return self.own, own
        import torch

        from notsodeep.trained.splittings import Splitting, choose_method

        drive = torch.as_tensor(self.drive)
        try:
            choice = choose_method(cell, drive, margin, "peaceman_rachford")
        except NotConverged:
            return self.own, own
        splitting = Splitting(cell, choice.method, choice.step, margin.beta)

        def step(s: FloatArray, rows: NDArray[np.int64]) -> FloatArray:
            state = torch.as_tensor(s)
            following = splitting.advance(state, splitting.resolvent(state), drive[rows])
            return np.asarray(following.numpy())

        method = _Method(
            f"Peaceman–Rachford, α = {choice.step:.3g}",
            step,
            lambda s: np.asarray(splitting.resolvent(torch.as_tensor(s)).numpy()),
            np.asarray(splitting.cold(drive).numpy()),
        )
        found = self._follow(method)
        better = found.settled.mean() > own.settled.mean()
        return (method, found) if better else (self.own, own)

    def _agreement(self, method: _Method, limit: FloatArray, known: BoolArray) -> FloatArray:
        """Return the share of rows with a limit on which 1, 2, … steps from zero agree with it."""
        rows = np.flatnonzero(known)
        limit = limit[rows]
        goal = None if self.cell.readout is None else self.cell.logits(limit).argmax(axis=1)
        size = np.linalg.norm(limit, axis=1)
        state, shares = method.start[rows], []
        for _ in range(self.max_steps):
            state = method.step(state, rows)
            late = self._count()
            z = method.state_of(state)
            if goal is None:
                agrees = np.linalg.norm(z - limit, axis=1) <= STATE_ERROR * size
            else:
                agrees = self.cell.logits(z).argmax(axis=1) == goal
            shares.append(float(agrees.mean()))
            near = np.linalg.norm(z - limit, axis=1) <= STATE_ERROR * size
            if late or (agrees.all() and near.all()):
                break
        return np.array(shares)

    def _local(
        self, limit: FloatArray, drive: NDArray[Any]
    ) -> tuple[FloatArray, tuple[float, float] | None]:
        from notsodeep.trained.histories import local_radii, one_step_gradient

        radii = local_radii(self.cell, limit, drive, self.rng)
        return radii, one_step_gradient(self.cell, limit, drive, self.rng)

    def _spectrum(self) -> FloatArray:
        cell = self.cell
        if not isinstance(cell, AffineCell) or cell.width > _LARGEST_SPECTRUM or self._late:
            return np.zeros((0, 2))
        eigenvalues = np.linalg.eigvals(cell.recurrent)
        return np.column_stack([eigenvalues.real, eigenvalues.imag])


def _unsettled_verdict(found: RowHistories) -> tuple[Verdict, str] | None:
    """Decide by the residuals alone; None if enough rows have settled."""
    lost, falling = float(found.lost.mean()), float(found.falling.mean())
    if lost > _LOST_SHARE:
        middle = float(np.median(found.last[found.lost]))
        words = f"the median residual of these is {middle:.3g}" if math.isfinite(middle) else ""
        words = words or "most of these are no longer finite"
        return "no fixed point", f"{lost:.1%} of the rows do not settle; {words}."
    if falling > _SLOW_SHARE:
        middle = float(np.median(found.last[found.falling]))
        reason = (
            f"{falling:.1%} of the rows still approach a limit; their residual is {middle:.3g}."
        )
        return "undecided", reason
    return None


def _slow_elsewhere(starts: dict[str, RowHistories]) -> tuple[Verdict, str] | None:
    """Leave open where other starts end which still move."""
    name = max(starts, key=lambda start: float(starts[start].falling.mean()))
    share = float(starts[name].falling.mean())
    if share > _SLOW_SHARE:
        return "undecided", f"Started from {name}, {share:.1%} of the rows still approach a limit."
    return None


def _settled_verdict(
    several: float, depth: int | None, agreement: FloatArray
) -> tuple[Verdict, str]:
    if several > _SEVERAL_SHARE:
        return "multi-stable", f"{several:.1%} of the rows have several limits."
    k = min(_SHALLOW_DEPTH, len(agreement))
    reason = f"{k} steps agree with the limit on {agreement[k - 1]:.1%} of the rows."
    return "shallow" if depth is not None and depth <= _SHALLOW_DEPTH else "iterative", reason


def _distinct_limits(found: list[RowHistories], tolerance: float) -> tuple[int, float]:
    """Return the most limits that a row has, and the share of the rows whose starts part.

    They do if there are two limits, or if some starts settle and others are lost.
    """
    counts = np.zeros(len(found[0].last), dtype=int)
    leaders: list[BoolArray] = []  # per start, the rows in which it ended where none before had
    for k, this in enumerate(found):
        new = this.settled.copy()
        for other, leads in zip(found[:k], leaders, strict=True):
            both = np.flatnonzero(new & leads)
            distance = np.linalg.norm(this.states[both] - other.states[both], axis=1)
            size = np.maximum(this.sizes[both], other.sizes[both])
            error = 2.0 * (this.errors[both] + other.errors[both])
            # Two ends are one limit if they are as near as their own errors allow; those are
            # estimated from the last steps and the rate, and doubled.
            new[both[distance <= _APART * tolerance * size + error]] = False
        leaders.append(new)
        counts += new
    lost = np.any([histories.lost for histories in found], axis=0)
    return int(counts.max()), float(np.mean((counts > 1) | (lost & (counts == 1))))


def _first_lasting(agreement: FloatArray) -> int | None:
    """Return the first step from which on the agreement is enough."""
    below = np.flatnonzero(agreement < _AGREEMENT)
    if not len(below):
        return 1
    return None if below[-1] == len(agreement) - 1 else int(below[-1]) + 2


def _median(values: FloatArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _tolerance(value: float, owner: str) -> float:
    number = checks.positive_number(value, "tolerance", owner)
    if not 1e-10 <= number <= 1e-4:
        requirement = "lie between 1e-10 and 1e-4, relative to the state"
        raise checks.invalid("tolerance", owner, requirement, f"{number:g}")
    return number


def _chosen(X: ArrayLike, width: int, rows: int, rng: np.random.Generator) -> Any:
    """Draw rows of X, as many as were asked for and as their states have room for."""
    values: Any = X.detach().cpu().numpy() if hasattr(X, "detach") else X
    array = checks.plain_array(values, "X", "diagnose")
    if array.ndim == 0 or len(array) == 0:
        raise checks.invalid("X", "diagnose", "have rows", f"shape {array.shape}")
    most = max(_FEWEST_ROWS, _STATE_BYTES // (8 * width))
    count = min(len(array), rows, most)
    return array[np.sort(rng.choice(len(array), count, replace=False))]

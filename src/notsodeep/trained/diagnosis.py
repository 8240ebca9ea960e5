"""What an equilibrium network does when it is iterated: does it settle, where, and how soon."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell
from notsodeep.networks.implicit import jacobian_product
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted
from notsodeep.trained.certificate import row_norms
from notsodeep.trained.margin import Margin, margin_of

BoolArray = NDArray[np.bool_]
Step = Callable[[Tensor, Tensor], Tensor]
"""Takes states of some rows, and which rows they are, to their next states."""

Verdict = Literal[
    "idle", "shallow", "settles", "orbits", "drifts", "several limits", "grows", "undecided"
]
Motion = Literal["orbits", "drifts", "grows"]

TOLERANCES = ("1e-2", "1e-3", "1e-6")
"""Relative residuals whose steps are counted."""
STATE_ERROR = 1e-2
"""Relative error within which a state agrees with another, where there are no classes."""

_FLOAT32_REST = 1e-5  # relative residual below which f in float32 may be at rest
_LEAST_FALL = 1e-6  # of log residual over the second half; rounding makes less
_GROWTH = 3.0  # of the median step, from the third quarter of the budget to the last
_RETURN = 0.15  # of the largest distance between states, within which an orbit returns
_PATH_STEPS, _PATH_ROWS, _PATH_UNITS = 1024, 48, 16  # whose last states are looked at for returns
_FIT_STEPS = 12  # of the last residuals, for the asymptotic rate
_BURN_IN, _MEASURED = 30, 30  # products of a power iteration
_LOST_SHARE, _SLOW_SHARE, _SEVERAL_SHARE = 0.05, 0.05, 0.01
_AGREEMENT, _SHALLOW_DEPTH = 0.995, 3
_APART = 100.0  # times the tolerance
_SETTLED_SHARE = 0.95  # of the rows, in counts of steps
_STATE_BYTES = 1 << 26  # of the states of all rows; fewer rows are looked at if need be
_FEWEST_ROWS, _LOCAL_ROWS = 16, 64
_MAX_MARGIN_WIDTH = 2048  # above which the margin is not looked for: it takes a minute
_SIZES = (0.1, 1.0, 10.0)  # of random starts, in units of the states f(0, x)

_RULE = f"""\
A row settles if its steps fall to the tolerance, or to the rounding of its precision. It still \
moves if they fall in the second half of the budget, with 95 % confidence; otherwise it is lost.
grows, orbits, drifts: more than {_LOST_SHARE:.0%} of the rows are lost, and of these the most \
become NaN or infinite, or take steps that grow by {_GROWTH:g} or more in the last half; or return \
to within {_RETURN:.0%} of the size of their path after a period; or do neither
undecided: more than {_SLOW_SHARE:.0%} of the rows still move; from other starts too, unless a \
margin proves that there is one limit
idle: every start settles, and the answer of step 1 is that of the limit on at least \
{_AGREEMENT:.1%} of the rows and stays so; without classes, the state itself, to ten tolerances
several limits: on more than {_SEVERAL_SHARE:.0%} of the rows starts end further apart than \
{_APART:g} tolerances and the estimated errors of both, or some settle and others do not
shallow: {_SHALLOW_DEPTH} steps agree with the limit on at least {_AGREEMENT:.1%} of the rows
settles: it does, but needs more steps than that"""

_MEANING: dict[Verdict, str] = {
    "idle": "The loop does nothing: one step is all of it.",
    "shallow": "A few steps do what the whole iteration does: compile it.",
    "settles": "It settles and needs its depth; explicit layers may still follow it.",
    "several limits": "No map of the input alone can follow it, if its start is free.",
    "orbits": "It goes round: a loop of fixed length, not an equilibrium.",
    "drifts": "It keeps moving without coming back: a loop of fixed length, not an equilibrium.",
    "grows": "It has no limit: a loop of fixed length, not an equilibrium.",
    "undecided": "The budget ended first; ask again with a larger max_steps.",
}


@dataclass(frozen=True, repr=False)
class Diagnosis(Plotted):
    """What was found by `diagnose`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0]], activation="tanh")
    >>> result = nsd.diagnose(cell, [[0.1], [0.7]])
    >>> print(str(result).splitlines()[0])
    settles: 3 steps agree with the limit on 50.0% of the rows. It settles and needs its depth;...
    >>> result.steps
    {'1e-2': 7, '1e-3': 10, '1e-6': 20}
    """

    _drawing: ClassVar[str] = "diagnosis"
    _derived: ClassVar[tuple[str, ...]] = ("rule",)

    verdict: Verdict  # by `rule`
    reason: str  # the numbers that decided
    # The iteration that steps and depths are of: the network's own, z ← f(z, x), or a splitting
    # where that does not settle and a margin proves that there is a fixed point.
    method: str
    rows: int
    width: int
    max_steps: int
    tolerance: float
    settled: float  # shares of the rows under the network's own iteration from zero; of `moving`
    moving: float  # the steps still fall
    lost: float
    motions: dict[Motion, float]  # of the rows that are lost: shares of those looked at
    period: float | None  # median of the rows that go round, in steps
    limits: int  # the largest number of distinct limits that starts of one row ended in
    several: float  # share of the rows with more than one
    rate: float | None  # median asymptotic ratio of successive residuals of `method`
    local_radius: float | None  # median spectral radius of ∂f/∂z at the limits
    # Steps of `method` after which 95 % of the rows stay within a relative residual.
    steps: dict[str, int | None]
    # The fewest steps from which on the truncation agrees with the limit on 99.5 % of the rows.
    effective_depth: int | None
    agreement: FloatArray  # share of the rows on which 1, 2, … steps agree with the limit
    # By the largest of several logits, or by a relative error of the state within 1 %.
    agreement_kind: Literal["class", "state"]
    margin: Margin | None  # of an affine cell
    starts: tuple[str, ...]
    residuals: FloatArray  # median of the network's own iteration, (starts, steps)
    solver_residuals: FloatArray  # that of `method`, if it is a splitting; empty otherwise
    local_radii: FloatArray  # of some rows
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """By which the verdict was found; the first line that applies counts."""
        return _RULE

    @property
    def table(self) -> tuple[tuple[str, str], ...]:
        """The numbers, in words."""
        shares = f"{self.settled:.1%}, {self.moving:.1%}, {self.lost:.1%}"
        lines = [
            ("rows, width of the state", f"{self.rows}, {self.width}"),
            ("settled, still moving, lost", shares),
            *((f"of the lost: {name}", f"{share:.1%}") for name, share in self.motions.items()),
            *((("period", _number(self.period)),) if self.period is not None else ()),
            ("iteration", self.method),
            ("limits of one row, at most", f"{self.limits} ({self.several:.1%} have several)"),
            ("rate", _number(self.rate)),
            ("local spectral radius", _number(self.local_radius)),
            *(
                (f"steps to {k} on {_SETTLED_SHARE:.0%} of the rows", _number(v))
                for k, v in self.steps.items()
            ),
            (f"effective depth (by {self.agreement_kind})", _number(self.effective_depth)),
        ]
        if self.margin is not None:
            lines += [
                ("‖W‖", f"{self.margin.norm:.4g}"),
                ("margin", f"{self.margin.value:.4g} ({self.margin.kind})"),
            ]
        return tuple(lines)

    def __str__(self) -> str:
        wide = max(len(label) for label, _ in self.table)
        lines = [f"{self.verdict}: {self.reason} {_MEANING[self.verdict]}", ""]
        lines += [f"{label:<{wide}}  {value}" for label, value in self.table]
        lines += ["", "The rule, the first line that applies:", *self.rule.splitlines()]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


@torch.no_grad()  # of the weights; torch.func still differentiates in the state
def diagnose(
    cell: EquilibriumCell | nn.Module,
    X: ArrayLike,
    *,
    max_steps: int = 300,
    rows: int = 512,
    tolerance: float = 1e-6,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> Diagnosis:
    """Iterate an equilibrium network from several starts and say what it is.

    f is evaluated 6·`max_steps` times on at most `rows` rows, and those which have settled are left
    out; memory is that of a few states of all rows, 64 MB each at most, for which fewer rows are
    taken if need be (16 at the least).  The starts are zero, random states of three sizes and the
    limit of another row.

    Parameters
    ----------
    cell : EquilibriumCell or Module
        A module is recognised as by `EquilibriumCell.from_module`.
    X : array_like of shape (n, …)
        Rows of the kind that the network is used on.
    max_steps : int, default 300
        Budget of one start.
    rows : int, default 512
        How many rows are looked at; drawn from X if there are more.
    tolerance : float, default 1e-6
        Relative residual of a row that has settled; 1e-5 at least in float32.
    rng : int or Generator
        Of the choice of rows and of the starts.
    progress : bool
        Show a bar on a terminal.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> rng = np.random.default_rng(0)
    >>> W, U = 0.02 * rng.standard_normal((50, 50)), rng.standard_normal((50, 8))
    >>> cell = nsd.EquilibriumCell.from_weights(W, U, activation="tanh")
    >>> result = nsd.diagnose(cell, rng.standard_normal((100, 8)))
    >>> result.verdict, result.limits, result.effective_depth, result.margin.kind
    ('shallow', 1, 2, 'monotone')
    """
    max_steps = checks.integer_at_least(max_steps, 10, "max_steps", "diagnose")
    rows = checks.positive_integer(rows, "rows", "diagnose")
    tolerance = checks.positive_number(tolerance, "tolerance", "diagnose")
    if not 1e-10 <= tolerance <= 1e-4:
        raise InvalidInput(f"tolerance must lie between 1e-10 and 1e-4, got {tolerance:g}.")
    choosing, starting = checks.random_generator(rng, "diagnose").spawn(2)
    if not isinstance(cell, EquilibriumCell):
        cell = EquilibriumCell.from_module(cell)
    drive = cell.drive(_chosen(X, cell.width, rows, choosing))
    with progress_bar("Diagnosis", enabled=progress, unit="work") as advance:
        return _Examination(cell, drive, max_steps, tolerance, starting, advance).diagnosis()


@dataclass(frozen=True, eq=False)
class RowHistories:
    """How the residuals of n rows went.

    The residual of a row is ‖f(z) − z‖ over the largest ‖f(z)‖ that the row has had: what contracts
    to zero falls, and what grows does not.
    """

    residuals: FloatArray  # (steps, n); NaN once a row has settled or left the finite numbers
    last: FloatArray  # each row's last one; infinite for a row that is no longer finite
    sizes: FloatArray  # the largest ‖f(z)‖ that each row has had, the unit of its residuals
    states: Tensor  # (n, width)
    settled: BoolArray  # within the tolerance
    moving: BoolArray  # not settled, and the steps still fell when the budget ended
    changes: FloatArray  # ‖f(z) − z‖, as the residuals
    path: FloatArray  # last states of the rows `followed`, in a few units: (steps, rows, units)
    followed: NDArray[np.int64]

    @property
    def lost(self) -> BoolArray:
        """Rows that cycle, wander or grow."""
        return ~(self.settled | self.moving)

    def motions(self) -> dict[int, tuple[Motion, int | None]]:
        """Return what the lost rows among those followed do, and their periods."""
        motions: dict[int, tuple[Motion, int | None]] = {}
        for place, row in enumerate(self.followed):
            if not self.lost[row]:
                continue
            if _grows(self.changes[:, row]):
                motions[int(row)] = ("grows", None)
            else:
                period = _period(self.path[:, place])
                motions[int(row)] = ("drifts" if period is None else "orbits", period)
        return motions

    @property
    def rates(self) -> FloatArray:
        """Asymptotic ratio of successive residuals of every row, by the last few; NaN if one."""
        rates = np.full(self.residuals.shape[1], np.nan)
        for row, column in enumerate(self.residuals.T):
            known = column[np.isfinite(column) & (column > 0.0)]
            # The last residuals of a row that has settled may be rounding errors.
            above = known[known > 10.0 * known.min()] if self.settled[row] and len(known) else known
            tail = (above if len(above) > 1 else known)[-_FIT_STEPS:]
            if len(tail) > 1:
                rates[row] = (tail[-1] / tail[0]) ** (1.0 / (len(tail) - 1))
        return rates

    @property
    def errors(self) -> FloatArray:
        """Estimated distance to the limit: the last step over 1 − ρ, ρ being the rate."""
        rate = np.clip(np.nan_to_num(self.rates, nan=0.5), 0.0, 1.0 - 1e-9)
        finite = np.isfinite(self.last) & np.isfinite(self.sizes)
        step = np.where(finite, self.last, np.inf) * np.where(finite, self.sizes, 1.0)
        return np.asarray(step / (1.0 - rate))

    def medians(self, steps: int) -> FloatArray:
        """Return the median residual of every step; a row that has settled keeps its last one."""
        filled = np.where(np.isfinite(self.residuals), self.residuals, self.last)
        curve = np.median(filled, axis=1)
        return np.concatenate([curve, np.full(steps - len(curve), curve[-1])])

    def steps_within(self, tolerance: float, share: float) -> int | None:
        """Return the first step from which on a share of the rows stays within a tolerance."""
        filled = np.where(np.isfinite(self.residuals), self.residuals, self.last)
        within = (filled <= tolerance).mean(axis=1) >= share
        if not within[-1]:
            return None
        outside = np.flatnonzero(~within)
        return int(outside[-1]) + 2 if len(outside) else 1


def follow(
    step: Step,
    start: Tensor,
    *,
    max_steps: int,
    tolerance: float,
    stop: float,
    after_step: Callable[[], object] = lambda: None,
) -> RowHistories:
    """Iterate z ← f(z) from `start`, each row until its residual is `stop` or it is not finite."""
    z = start.clone()
    count = len(z)
    residuals, changes = np.full((2, max_steps, count), np.nan)
    last, size = np.zeros(count), np.zeros(count)
    active = np.arange(count)
    followed = np.unique(np.linspace(0, count - 1, min(count, _PATH_ROWS)).astype(int))
    units = torch.eye(z.shape[1], dtype=torch.float64)
    if z.shape[1] > _PATH_UNITS:  # random directions keep distances, roughly
        seed = torch.Generator().manual_seed(0)
        units = torch.randn(z.shape[1], _PATH_UNITS, generator=seed, dtype=torch.float64)
    path: deque[FloatArray] = deque(maxlen=_PATH_STEPS)
    for k in range(max_steps):
        rows = torch.from_numpy(active)
        image = step(z[rows], rows)
        length, change = (
            row_norms(each.double()).numpy() for each in (image, image.double() - z[rows])
        )
        # Relative to the largest state so far: one that decays to zero settles too.
        size[active] = np.maximum(size[active], length)
        with np.errstate(all="ignore"):  # what grows is allowed to, and reported
            r = np.where(change == 0.0, 0.0, change / size[active])
        r[~np.isfinite(length) | ~np.isfinite(r)] = np.inf
        z[rows], last[active] = image, r
        residuals[k, active] = np.where(np.isfinite(r), r, np.nan)
        changes[k, active] = np.where(np.isfinite(r), change, np.nan)
        path.append((z[torch.from_numpy(followed)].double() @ units).numpy())
        active = active[(r > stop) & np.isfinite(r)]
        after_step()
        if not len(active):
            residuals, changes = residuals[: k + 1], changes[: k + 1]
            break
    moving = np.zeros(count, dtype=bool)
    if len(active):
        moving[active] = _falls(changes[len(changes) // 2 :, active])
    rest = tolerance if z.dtype == torch.float64 else max(tolerance, _FLOAT32_REST)
    settled = last <= rest
    return RowHistories(
        residuals,
        last,
        size,
        z,
        settled,
        moving & ~settled,
        changes,
        np.array(path),
        followed,
    )


def _grows(changes: FloatArray) -> bool:
    """Say whether steps become longer and longer, or end in NaN or infinity."""
    if not np.isfinite(changes[-1]):
        return True
    third, fourth = np.array_split(changes, 4)[2:]
    return bool(np.median(fourth) >= _GROWTH * np.median(third))


def _period(path: FloatArray) -> int | None:
    """Return after how many steps a path (steps, units) comes back and stays with itself.

    For every lag the distance is the median over the later half of the path; a path has to leave
    before it can return.
    """
    half = len(path) // 2
    later = path[half:]
    lags = np.arange(1, half + 1)
    distances = np.array(
        [np.median(np.linalg.norm(later - path[half - p : len(path) - p], axis=1)) for p in lags]
    )
    if half < 2 or not distances.max() > 0.0:
        return None
    away = int(np.argmax(distances >= 0.5 * distances.max()))
    back = distances[away + 1 :] <= _RETURN * distances.max()
    if not back.any():
        return None
    first = away + 1 + int(np.argmax(back))
    stop = first + int(np.argmin(np.append(back[first - away - 1 :], False)))
    return int(lags[first + int(np.argmin(distances[first:stop]))])


def _falls(residuals: FloatArray) -> BoolArray:
    """Say which columns fall: the slope of log r over steps is negative, its 95 % interval too.

    The noise of a chaotic iteration is correlated from step to step; the interval counts as many
    independent points as an autoregression of order one has.
    """
    y = np.log(np.maximum(residuals, np.finfo(float).tiny))
    count = len(y)
    if count < 4:
        return np.zeros(y.shape[1], dtype=bool)
    x = np.arange(count) - (count - 1) / 2.0
    slope = x @ y / (x @ x)
    noise = y - y.mean(axis=0) - x[:, None] * slope
    power = (noise**2).sum(axis=0)
    lag = (noise[1:] * noise[:-1]).sum(axis=0) / np.where(power > 0.0, power, 1.0)
    independent = np.clip(count * (1.0 - lag) / (1.0 + lag), 2.0, count)
    deviation = np.sqrt(power / (count - 2) * count / independent / (x @ x))
    return np.asarray((slope + 1.96 * deviation) * count < -_LEAST_FALL)


def local_radii(
    cell: EquilibriumCell, z: Tensor, drive: Tensor, rng: np.random.Generator
) -> FloatArray:
    """Return the spectral radius of ∂f/∂z at each row's state, shape (n,).

    Power iteration with Jacobian-vector products.  The largest eigenvalues may be a complex pair,
    under which the length of a vector oscillates: the radius is the geometric mean of its growth
    over many products.
    """
    apply = jacobian_product(lambda s: cell.step(s, drive), z, transposed=False)
    v = torch.as_tensor(rng.standard_normal(z.shape), dtype=z.dtype)
    v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
    total = torch.zeros(len(v), dtype=z.dtype)
    for k in range(_BURN_IN + _MEASURED):
        v = apply(v)
        length = torch.linalg.vector_norm(v, dim=1)
        if k >= _BURN_IN:
            total += torch.log(length)
        v = v / torch.where(length > 0.0, length, 1.0)[:, None]
    return np.asarray(torch.exp(total / _MEASURED).double().numpy())


@dataclass(frozen=True, eq=False)
class _Method:
    """An iteration: its step, and the state of the network that its own state stands for."""

    name: str
    step: Step
    state_of: Callable[[Tensor], Tensor]
    start: Tensor


class _Examination:
    """The parts of one diagnosis, which share a cell, some rows and a count of evaluations."""

    def __init__(
        self,
        cell: EquilibriumCell,
        drive: Tensor,
        max_steps: int,
        tolerance: float,
        rng: np.random.Generator,
        advance: Callable[[int, int | None], None],
    ) -> None:
        self.cell, self.drive, self.rng = cell, drive, rng
        self.max_steps, self.tolerance = max_steps, tolerance
        # Limits are compared and steps counted against them: they are taken further than that, in
        # float32 as far as it goes.
        self.stop = tolerance * (1e-3 if drive.dtype == torch.float64 else 1e-1)
        zero = drive.new_zeros(len(drive), cell.width)
        self.own = _Method("its own, z ← f(z, x)", self._own_step, lambda z: z, zero)
        self._advance, self._done = advance, 0

    def diagnosis(self) -> Diagnosis:
        cell, notes = self.cell, []
        margin = None
        if isinstance(cell, AffineDEQ):
            if cell.width > _MAX_MARGIN_WIDTH:
                notes.append(f"W is wider than {_MAX_MARGIN_WIDTH}: its margin was not looked for.")
            else:
                margin = margin_of(cell)
        own = self._follow(self.own)
        starts = {"zero": own, **self._other_starts(own)}
        method, main = self._settling(own, margin)
        if not np.isfinite(own.last).all():
            bad = ~np.isfinite(own.last)
            first = 1 + int(np.isfinite(own.residuals[:, bad]).sum(axis=0).min())
            notes.append(
                f"On {bad.mean():.1%} of the rows f became NaN or infinite, at step {first}."
            )
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
        agreement, kind, depth, radii = np.zeros(0), self._agreement_kind(), None, np.zeros(0)
        decided = _unsettled_verdict(main)
        motions = own.motions()
        periods = [period for _, period in motions.values() if period is not None]
        if decided is None and not proved:
            decided = _slow_elsewhere(starts)
        if decided is None:
            limit = method.state_of(main.states)
            agreement = self._agreement(method, limit, main.settled, kind)
            depth = _first_lasting(agreement)
            chosen = torch.from_numpy(np.flatnonzero(main.settled)[:_LOCAL_ROWS])
            radii = local_radii(cell, limit[chosen], self.drive[chosen], self.rng)
            idle = depth == 1 and all(each.settled.all() for each in starts.values())
            if idle and kind == "state":
                idle = self._same_at_once(method, limit, main.settled)
            decided = _settled_verdict(idle, several, depth, agreement)
        longest = max(len(each.residuals) for each in starts.values())
        return Diagnosis(
            verdict=decided[0],
            reason=decided[1],
            method=method.name,
            rows=len(self.drive),
            width=cell.width,
            max_steps=self.max_steps,
            tolerance=self.tolerance,
            settled=float(own.settled.mean()),
            moving=float(own.moving.mean()),
            lost=float(own.lost.mean()),
            motions=_shares([name for name, _ in motions.values()]),
            period=_median(np.array(periods, dtype=float)),
            limits=limits,
            several=several,
            rate=_median(main.rates[main.settled] if main.settled.any() else main.rates),
            local_radius=_median(radii),
            steps={k: main.steps_within(float(k), _SETTLED_SHARE) for k in TOLERANCES},
            effective_depth=depth,
            agreement=agreement,
            agreement_kind=kind,
            margin=margin,
            starts=tuple(starts),
            residuals=np.array([each.medians(longest) for each in starts.values()]),
            solver_residuals=np.zeros(0) if main is own else main.medians(len(main.residuals)),
            local_radii=radii,
            notes=tuple(notes),
        )

    def _own_step(self, z: Tensor, rows: Tensor) -> Tensor:
        return self.cell.step(z, self.drive[rows])

    def _follow(self, method: _Method, start: Tensor | None = None) -> RowHistories:
        return follow(
            method.step,
            method.start if start is None else start,
            max_steps=self.max_steps,
            tolerance=self.tolerance,
            stop=self.stop,
            after_step=self._count,
        )

    def _count(self) -> None:
        self._done += 1
        self._advance(self._done, (len(_SIZES) + 3) * self.max_steps)

    def _other_starts(self, own: RowHistories) -> dict[str, RowHistories]:
        """Follow random starts in the size of the first images, and other rows' last states."""
        first = self._own_step(self.own.start, torch.arange(len(self.drive)))
        finite = first[first.isfinite()].double()
        unit = float(finite.square().mean().sqrt()) if len(finite) else 0.0
        unit = unit if 0.0 < unit < math.inf else 1.0
        histories = {}
        for size in _SIZES:
            start = size * unit * self.rng.standard_normal(own.states.shape)
            histories[f"random, {size:g}"] = self._follow(
                self.own, torch.as_tensor(start).to(first)
            )
        if own.settled.any():
            others = np.flatnonzero(own.settled)
            borrowed = others[np.searchsorted(others, np.arange(len(self.drive)) + 1) % len(others)]
            histories["another row's limit"] = self._follow(self.own, own.states[borrowed])
        return histories

    def _settling(self, own: RowHistories, margin: Margin | None) -> tuple[_Method, RowHistories]:
        """Return the iteration that finds the limits: its own, or else a splitting.

        A splitting is for cells with a proof that there is one fixed point, and is used if it
        settles on more rows.
        """
        cell, drive = self.cell, self.drive
        if not isinstance(cell, AffineDEQ) or margin is None or _unsettled_verdict(own) is None:
            return self.own, own
        if not (margin.unique and margin.slopes.monotone):
            return self.own, own
        try:
            choice = cell.choose_method(drive, "peaceman_rachford", margin.lipschitz)
        except NotConverged:
            return self.own, own
        maps = cell.splitting(choice)

        def step(s: Tensor, rows: Tensor) -> Tensor:
            return maps.advance(s, maps.state(s), drive[rows])

        name = f"Peaceman–Rachford, α = {choice.step:.3g}"
        method = _Method(name, step, maps.state, maps.start(drive))
        histories = self._follow(method)
        better = histories.settled.mean() > own.settled.mean()
        return (method, histories) if better else (self.own, own)

    def _agreement_kind(self) -> Literal["class", "state"]:
        cell = self.cell
        if cell.has_readout and cell.logits(self.own.start[:1]).shape[1] > 1:
            return "class"
        return "state"

    def _agreement(
        self, method: _Method, limit: Tensor, settled: BoolArray, kind: str
    ) -> FloatArray:
        """Return the share of rows with a limit on which 1, 2, … steps from zero agree with it."""
        rows = torch.from_numpy(np.flatnonzero(settled))
        limit = limit[rows]
        goal = self.cell.logits(limit).argmax(dim=1) if kind == "class" else None
        state, shares = method.start[rows], []
        for _ in range(self.max_steps):
            state = method.step(state, rows)
            self._count()
            z = method.state_of(state)
            near = row_norms(z - limit) <= STATE_ERROR * row_norms(limit)
            agrees = near if goal is None else self.cell.logits(z).argmax(dim=1) == goal
            shares.append(float(agrees.double().mean()))
            if bool((agrees & near).all()):
                break
        return np.array(shares)

    def _same_at_once(self, method: _Method, limit: Tensor, settled: BoolArray) -> bool:
        """Say whether the first state is the limit itself on enough of the rows."""
        rows = torch.from_numpy(np.flatnonzero(settled))
        first = method.state_of(method.step(method.start[rows], rows))
        rest = self.tolerance if limit.dtype == torch.float64 else _FLOAT32_REST
        near = row_norms(first - limit[rows]) <= 10.0 * rest * row_norms(limit[rows])
        return bool(near.double().mean() >= _AGREEMENT)


def _shares(motions: list[Motion]) -> dict[Motion, float]:
    return {name: motions.count(name) / len(motions) for name in sorted(set(motions))}


def _unsettled_verdict(own: RowHistories) -> tuple[Verdict, str] | None:
    """Decide by the residuals alone; None if enough rows have settled."""
    lost, moving = float(own.lost.mean()), float(own.moving.mean())
    if lost > _LOST_SHARE:
        motions = own.motions()
        names = [name for name, _ in motions.values()] or ["drifts"]
        kind: Motion = max(("grows", "orbits", "drifts"), key=names.count)
        words = {
            "grows": "most of these become NaN or infinite, or take longer and longer steps",
            "drifts": "most of these keep moving without coming back",
            "orbits": "most of these go round",
        }[kind]
        periods = [period for _, period in motions.values() if period is not None]
        if kind == "orbits":
            words += f", with a period of {np.median(periods):g} steps"
        last = own.last[own.lost & np.isfinite(own.last)]
        if len(last):
            words += f"; their median residual is {np.median(last):.3g}"
        return kind, f"{lost:.1%} of the rows do not settle: {words}."
    if moving > _SLOW_SHARE:
        middle = float(np.median(own.last[own.moving]))
        return "undecided", f"{moving:.1%} of the rows still move; their residual is {middle:.3g}."
    return None


def _slow_elsewhere(starts: dict[str, RowHistories]) -> tuple[Verdict, str] | None:
    """Leave open where other starts end which still move."""
    name = max(starts, key=lambda start: float(starts[start].moving.mean()))
    share = float(starts[name].moving.mean())
    if share > _SLOW_SHARE:
        return "undecided", f"Started from {name}, {share:.1%} of the rows still move."
    return None


def _settled_verdict(
    idle: bool, several: float, depth: int | None, agreement: FloatArray
) -> tuple[Verdict, str]:
    if idle:
        return "idle", f"One step agrees with the limit on {agreement[0]:.1%} of the rows."
    if several > _SEVERAL_SHARE:
        return "several limits", f"{several:.1%} of the rows have several limits."
    k = min(_SHALLOW_DEPTH, len(agreement))
    reason = f"{k} steps agree with the limit on {agreement[k - 1]:.1%} of the rows."
    return "shallow" if depth is not None and depth <= _SHALLOW_DEPTH else "settles", reason


def _distinct_limits(starts: list[RowHistories], tolerance: float) -> tuple[int, float]:
    """Return the most limits that a row has, and the share of the rows whose starts part.

    They do if there are two limits, or if some starts settle and others are lost.
    """
    counts = np.zeros(len(starts[0].last), dtype=int)
    leaders: list[BoolArray] = []  # per start, the rows in which it ended where none before had
    for k, this in enumerate(starts):
        new = this.settled.copy()
        for other, leads in zip(starts[:k], leaders, strict=True):
            both = np.flatnonzero(new & leads)
            distance = row_norms((this.states[both] - other.states[both]).double()).numpy()
            size = np.maximum(this.sizes[both], other.sizes[both])
            error = 2.0 * (this.errors[both] + other.errors[both])
            # Two ends are one limit if they are as near as their own errors allow; those are
            # estimated from the last steps and the rate, and doubled.
            new[both[distance <= _APART * tolerance * size + error]] = False
        leaders.append(new)
        counts += new
    lost = np.any([histories.lost for histories in starts], axis=0)
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


def _chosen(X: ArrayLike, width: int, rows: int, rng: np.random.Generator) -> Any:
    """Draw rows of X, as many as were asked for and as their states have room for."""
    values: Any = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    array = checks.plain_array(values, "X", "diagnose")
    if array.ndim == 0 or len(array) == 0:
        raise InvalidInput(f"X must have rows, got shape {array.shape}.")
    most = max(_FEWEST_ROWS, _STATE_BYTES // (8 * width))
    count = min(len(array), rows, most)
    return array[np.sort(rng.choice(len(array), count, replace=False))]

"""Evidence for a verdict: accuracies, fidelity to a given DEQ, and cost, each with its error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from notsodeep.arrays import FloatArray
from notsodeep.records import Plotted, Record

ROLES = ("deq", "matched", "unmatched")

_LEVEL = 0.95
_STATE_ERROR = 1e-2  # relative, within which states agree where there are no classes
_MAX_SPREAD = 1.6  # upper over lower quartile of a time ratio: above, the machine had other work
_REPEATS = 9


@dataclass(frozen=True, repr=False)
class Accuracy(Record):
    """Shares of test rows that finite networks get right, draw by draw.

    Examples
    --------
    >>> right = np.ones((3, 20), bool)
    >>> accuracy = Accuracy.of_rows({"deq": right, "matched": right, "unmatched": right})
    >>> accuracy
    Accuracy(deq 100.0 ± 0.0 %, matched 100.0 ± 0.0 %, unmatched 100.0 ± 0.0 %; 3 draws)
    >>> [round(end, 1) for end in accuracy.difference]  # 20 rows do not show more
    [-13.9, 13.9]
    """

    draws: dict[str, tuple[float, ...]]  # by role; draws of one number share their weights
    row_error: float  # half-width of `row_interval`, in points

    @classmethod
    def of_rows(cls, right: Mapping[str, NDArray[np.bool_]]) -> Self:
        """Take them from who got which row right: arrays of shape (draws, rows), by role."""
        draws = {role: tuple(rows.mean(axis=1).tolist()) for role, rows in right.items()}
        differences = right["matched"].mean(axis=0) - right["deq"].mean(axis=0)
        return cls(draws, row_error(differences))

    @property
    def mean(self) -> dict[str, float]:
        """Mean over the draws."""
        return {role: float(np.mean(values)) for role, values in self.draws.items()}

    @property
    def deviation(self) -> dict[str, float]:
        """Standard deviation over the draws."""
        return {role: float(np.std(values, ddof=1)) for role, values in self.draws.items()}

    @property
    def difference(self) -> tuple[float, float]:
        """The 95 % interval of the mean of matched − deq, in percentage points.

        For other draws of the weights and other test rows: two independent errors, in squares.
        """
        gaps = 100.0 * np.subtract(self.draws["matched"], self.draws["deq"])
        mean, count = float(gaps.mean()), len(gaps)
        quantile = float(stats.t.ppf(0.5 + _LEVEL / 2.0, count - 1))
        half = math.hypot(quantile * float(gaps.std(ddof=1)) / math.sqrt(count), self.row_error)
        return mean - half, mean + half

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{role} {100 * mean:.1f} ± {100 * self.deviation[role]:.1f} %"
            for role, mean in self.mean.items()
        )
        return f"Accuracy({shown}; {len(self.draws['deq'])} draws)"


def row_error(differences: FloatArray) -> float:
    """Return the half-width, in points, of the 95 % interval of a mean over test rows.

    Rows on which two networks differ as they do on most rows, mostly not at all, say nothing about
    the others.  Of k others, the mean over all n rows has a t-interval with k − 1 degrees of
    freedom; it is never wider than the upper bound (Clopper and Pearson) of the share of such rows,
    and that bound alone is left where there are none, or one.

    Parameters
    ----------
    differences : ndarray of shape (n,)
        Of being right, in [−1, 1].

    Examples
    --------
    >>> round(row_error(np.zeros(20)), 1)  # 1 − 0.05^(1/20)
    13.9
    """
    values, counts = np.unique(differences, return_counts=True)
    rows, others = len(differences), len(differences) - int(counts.max())
    share = 1.0 - lower_bound(rows - others, rows)
    widest = (1.0 + abs(float(values[counts.argmax()]))) * share
    if others < 2:
        return 100.0 * widest
    quantile = float(stats.t.ppf(0.5 + _LEVEL / 2.0, others - 1))
    half = quantile * float(differences.std(ddof=1)) / math.sqrt(rows)
    return 100.0 * min(half, widest)


def lower_bound(successes: int, trials: int) -> float:
    """Return Clopper and Pearson's lower bound of a share at 95 %.

    Examples
    --------
    >>> round(lower_bound(100, 100), 4)  # 0.05^(1/100)
    0.9705
    """
    test = stats.binomtest(successes, trials, alternative="greater")
    return float(test.proportion_ci(_LEVEL).low)


@dataclass(frozen=True, repr=False)
class Fidelity(Record):
    """Whether a network decides as a DEQ does, on held-out rows.

    Bounds hold for data drawn as these rows are.

    Examples
    --------
    >>> exact = np.eye(3)[[0, 1, 2, 1]]
    >>> fidelity = fidelity_of(exact + 0.1, exact)
    >>> fidelity.agreement, round(fidelity.agreement_bound, 3), round(fidelity.logit_error, 4)
    (1.0, 0.473, 0.1732)
    """

    rows: int
    agreement: float  # share of rows of the same class; without a read-out, of states within 1 %
    agreement_bound: float  # Clopper and Pearson's lower bound of it at 95 %
    agreement_upper: float  # their upper bound at 95 %
    logit_error: float  # ‖o − o*‖/‖o*‖ over all rows
    logit_quantile: float  # ‖o − o*‖ of a new row is below it with a probability of 95 %
    certified: float | None = None  # share of rows whose class is proved; None: nothing can be
    accuracy: float | None = None  # with labels
    deq_accuracy: float | None = None
    accuracy_difference: tuple[float, float] | None = None  # 95 % interval, in points


def fidelity_of(
    scores: FloatArray,
    exact: FloatArray,
    *,
    proved: NDArray[np.bool_] | None = None,
    labels: NDArray[np.int64] | None = None,
    states: bool = False,
) -> Fidelity:
    """Compare logits, or states, with those of the DEQ, both of shape (n, K)."""
    distances = np.linalg.norm(scores - exact, axis=1)
    if states:
        same = distances <= _STATE_ERROR * np.linalg.norm(exact, axis=1)
    else:
        same = scores.argmax(axis=1) == exact.argmax(axis=1)
    size, rows, agreeing = float(np.linalg.norm(exact)), len(same), int(same.sum())
    fidelity = (
        rows,
        agreeing / rows,
        lower_bound(agreeing, rows),
        1.0 - lower_bound(rows - agreeing, rows),
        float(np.linalg.norm(distances)) / size if size else 0.0,
        conformal_quantile(distances),
        None if proved is None else float(proved.mean()),
    )
    if labels is None:
        return Fidelity(*fidelity)
    own, deq = (values.argmax(axis=1) == labels for values in (scores, exact))
    differences = own.astype(float) - deq
    centre, half = 100.0 * float(differences.mean()), row_error(differences)
    interval = (centre - half, centre + half)
    return Fidelity(*fidelity, float(own.mean()), float(deq.mean()), interval)


def conformal_quantile(distances: FloatArray) -> float:
    """Return the ⌈.95(n + 1)⌉-th smallest distance, infinite if there are too few.

    Examples
    --------
    >>> conformal_quantile(np.arange(1.0, 20.0)), conformal_quantile(np.ones(5))
    (19.0, inf)
    """
    # n + 1: the new row takes each place among the n with the same probability, whatever its law.
    rank = math.ceil((len(distances) + 1) * _LEVEL)
    return math.inf if rank > len(distances) else float(np.sort(distances)[rank - 1])


PointKind = Literal["tolerance", "truncated", "explicit", "hybrid"]


@dataclass(frozen=True, repr=False)
class FrontPoint(Record):
    """One way to get an answer: what it costs, and how good it is."""

    name: str
    kind: PointKind
    parameter: float  # the tolerance, the number of steps, or the number of layers
    steps: float  # of the solver, per row
    products: float  # multiplications per row over those of the reference
    ratio: float  # of times in one run: median over the repeats
    quartiles: tuple[float, float]  # the middle half of these ratios
    agreement: float | None = None  # with the converged DEQ on the held-out rows
    accuracy: float | None = None
    certified: float | None = None  # share of answers that come with a proof

    @property
    def unreliable(self) -> bool:
        """Whether the ratios scatter so much that the machine must have had other work."""
        return self.quartiles[1] > _MAX_SPREAD * self.quartiles[0]

    @property
    def time(self) -> str:
        """The ratio with its quartiles, marked where it is unreliable."""
        low, high = self.quartiles
        mark = ", unreliable: the machine was busy" if self.unreliable else ""
        return f"{self.ratio:.3g} × ({low:.3g}–{high:.3g}{mark})"


@dataclass(frozen=True, repr=False)
class Front(Plotted):
    """Cost against quality."""

    _drawing: ClassVar[str] = "front"

    points: tuple[FrontPoint, ...]
    reference: str  # the point that ratios refer to
    solver: str  # of the DEQ
    batch: int  # rows that were timed at once
    repeats: int
    threads: int
    library: str  # that computed all of it: "torch" or "numpy"
    chosen: int | None = None  # the loosest tolerance that keeps the accuracy

    @property
    def chosen_point(self) -> FrontPoint:
        """The loosest tolerance that keeps the accuracy."""
        return self.points[self.chosen or 0]

    def of_kind(self, kind: PointKind) -> list[FrontPoint]:
        """Return the points of a kind, in their order."""
        return [point for point in self.points if point.kind == kind]

    def point(self, kind: PointKind, parameter: float) -> FrontPoint:
        """Return the point of that kind and parameter."""
        return next(p for p in self.of_kind(kind) if p.parameter == parameter)

    def __str__(self) -> str:
        lines = [f"{'':<34}{'quality':>10}{'proved':>9}{'steps':>8}{'products':>10}  time"]
        for p in self.points:
            proved = "–" if p.certified is None else f"{p.certified:.1%}"
            quality = p.accuracy if p.agreement is None else p.agreement
            lines.append(
                f"{p.name:<34}{quality or 0.0:>10.2%}{proved:>9}{p.steps:>8.1f}{p.products:>10.2f}"
                f"  {p.time}"
            )
        note = f"{self.repeats} repeats, batches of {self.batch}, {self.threads} threads"
        return "\n".join([*lines, f"Ratios to {self.reference}; {self.solver}; {note}."])


class Way(NamedTuple):
    """A point of a front that is still to be timed, and a function that does its work once."""

    name: str
    kind: PointKind
    parameter: float
    run: Callable[[], object]
    products: float  # multiplications per row
    steps: float = 0.0
    agreement: float | None = None
    accuracy: float | None = None
    certified: float | None = None


def timed_front(
    ways: Sequence[Way],
    *,
    solver: str,
    batch: int,
    threads: int,
    library: str,
    chosen: int | None = None,
) -> Front:
    """Time all ways in turns; the reference is the last explicit network."""
    kinds = [way.kind for way in ways]
    reference = len(ways) - 1 - kinds[::-1].index("explicit")
    for way in ways:
        way.run()
    # Row by row all ways in turn, and ratios within a row: what slows the machine for a while slows
    # numerator and denominator.
    times = np.array([[seconds(way.run) for way in ways] for _ in range(_REPEATS)])
    quartiles = np.quantile(times / times[:, [reference]], (0.25, 0.5, 0.75), axis=0).T.tolist()
    unit = ways[reference].products
    points = tuple(
        FrontPoint(
            way.name,
            way.kind,
            float(way.parameter),
            float(way.steps),
            way.products / unit,
            middle,
            (low, high),
            way.agreement,
            way.accuracy,
            way.certified,
        )
        for way, (low, middle, high) in zip(ways, quartiles, strict=True)
    )
    return Front(points, ways[reference].name, solver, batch, _REPEATS, threads, library, chosen)


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin

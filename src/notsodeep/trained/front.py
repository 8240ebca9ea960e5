"""Fidelity against cost: the DEQ at several tolerances, its solver cut off, layers, the hybrid.

All times come from one run on the same rows, in turns, in float64; they are given as ratios to the
explicit network, since a ratio outlives the machine it was measured on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from notsodeep.arrays import FloatArray
from notsodeep.numerics.paired_times import seconds
from notsodeep.records import Plotted, Record
from notsodeep.trained.black_box import UnrolledFunction, least_tolerance, solve_tensors
from notsodeep.trained.cell import AffineCell, FunctionCell
from notsodeep.trained.explicit_layers import Layer
from notsodeep.trained.fidelity import Fidelity, fidelity_of
from notsodeep.trained.hybrid import HybridEquilibrium
from notsodeep.trained.network import ExplicitLayers
from notsodeep.trained.splittings import MethodChoice, MethodName, Splitting, Trial, solve_rows

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
USUAL = (1e-2, 1e-3)
"""Tolerances that practitioners use."""
TRUNCATIONS = (1, 2, 3, 5, 8, 12, 20)
BATCH = 512
"""Rows that are timed at once."""
PointKind = Literal["tolerance", "truncated", "explicit", "hybrid"]


@dataclass(frozen=True, repr=False)
class FrontPoint(Record):
    """One way to get an answer.

    Attributes
    ----------
    name : str
    kind : {"tolerance", "truncated", "explicit", "hybrid"}
    parameter : float
        The tolerance, the number of steps, or the number of layers.
    agreement, logit_error : float
        With the converged DEQ, on the held-out rows.
    certified : float or None
        Share of answers that come with a proof.
    steps : float
        Solver steps per row.
    work : float
        Multiplications per row, in units of those of the injection U x; of a black box,
        evaluations of f.
    ratio : float
        Median over the repeats of the time, over that of the explicit network beside it.
    quartiles : tuple of float
        The middle half of these ratios lies between them.
    """

    name: str
    kind: PointKind
    parameter: float
    agreement: float
    logit_error: float
    certified: float | None
    steps: float
    work: float
    ratio: float
    quartiles: tuple[float, float]


@dataclass(frozen=True, repr=False)
class Front(Plotted):
    """Cost against fidelity.

    Attributes
    ----------
    points : tuple of FrontPoint
    batch : int
        Rows that were timed at once.
    repeats, threads : int
    reference : str
        The point that the ratios refer to.
    solver : str
        The DEQ's: the fastest of those that solve it.
    """

    points: tuple[FrontPoint, ...]
    batch: int
    repeats: int
    threads: int
    reference: str
    solver: str = "the best of its solvers"

    _drawing: ClassVar[str] = "front"

    def point(self, kind: PointKind, parameter: float) -> FrontPoint:
        """Return the point of that kind and parameter."""
        return next(p for p in self.points if p.kind == kind and p.parameter == parameter)

    @property
    def headline(self) -> str:
        """What the explicit network saves, against the DEQ and against its solver cut off."""
        own = max((p for p in self.points if p.kind == "explicit"), key=lambda p: p.parameter)
        strictest = min(p.parameter for p in self.points if p.kind == "tolerance")
        times = [self.point("tolerance", tolerance) for tolerance in (*USUAL, strictest)]
        shown = ", ".join(f"{p.ratio:.1f} × at {p.parameter:g}" for p in times)
        cut = [p for p in self.points if p.kind == "truncated" and p.agreement >= own.agreement]
        cheapest = min(cut, key=lambda p: p.ratio, default=None)
        rest = (
            f"; the {cheapest.name} agrees as often and takes {cheapest.ratio:.1f} ×"
            if cheapest
            else f"; no solver cut off within {max(TRUNCATIONS)} steps agrees as often"
        )
        return (
            f"Against {own.name}, with an agreement of {own.agreement:.2%}, the DEQ by "
            f"{self.solver} takes {shown} of the time{rest}."
        )

    def __str__(self) -> str:
        lines = [
            f"{'':<34}{'agreement':>10}{'proved':>9}{'steps':>8}{'work':>7}{'time':>8}  quartiles"
        ]
        for p in self.points:
            proved = "–" if p.certified is None else f"{p.certified:.1%}"
            low, high = p.quartiles
            lines.append(
                f"{p.name:<34}{p.agreement:>10.2%}{proved:>9}{p.steps:>8.1f}{p.work:>7.2f}"
                f"{p.ratio:>8.2f}  {low:.2f}–{high:.2f}"
            )
        note = f"Batches of {self.batch}, {self.repeats} repeats, {self.threads} threads."
        return "\n".join(
            [*lines, f"Times are ratios to {self.reference}; the DEQ by {self.solver}. {note}"]
        )


def fastest_solver(cell: AffineCell, choice: MethodChoice, beta: float, drive: Tensor) -> Splitting:
    """Return the solver that takes the least time, of those that a choice has found to converge.

    The choice itself counts steps, which is reproducible; but a step of Anderson's method can cost
    several of another's, and a DEQ must not be called slow for the solver it was given.

    Parameters
    ----------
    cell : AffineCell
    choice : MethodChoice
    beta : float
        The largest slope of φ.
    drive : Tensor of shape (n, m)
        Of the rows to be timed.
    """
    fewest: dict[MethodName, Trial] = {}
    for trial in choice.trials:
        best = fewest.get(trial.method)
        if trial.steps is not None and (best is None or trial.steps < (best.steps or 0)):
            fewest[trial.method] = trial
    ways = [(trial.method, trial.step) for trial in fewest.values()]
    splittings = [Splitting(cell, *way, beta) for way in ways or [(choice.method, choice.step)]]

    def run(splitting: Splitting) -> None:
        solve_rows(splitting, drive, min(USUAL))

    for splitting in splittings:
        run(splitting)
    times = [[seconds(partial(run, splitting)) for splitting in splittings] for _ in range(3)]
    return splittings[int(np.argmin(np.median(times, axis=0)))]


def measure_front(
    cell: AffineCell,
    splitting: Splitting,
    layers: Sequence[Layer],
    readouts: Sequence[tuple[FloatArray, FloatArray]],
    fidelities: Sequence[Fidelity],
    hybrids: dict[str, HybridEquilibrium],
    X: FloatArray,
    exact: FloatArray,
    *,
    batch: int = BATCH,
    repeats: int = 7,
) -> Front:
    """Measure all points on held-out rows.

    Parameters
    ----------
    cell : AffineCell
    splitting : Splitting
        The DEQ's solver, see `fastest_solver`.
    layers, readouts, fidelities
        Of the explicit networks with 1, 2, … layers.
    hybrids : dict of str to HybridEquilibrium
        The hybrid, and the solver with the same early exit; empty if there are none.
    X, exact : ndarray
        Held-out rows, and the DEQ's logits there.
    batch, repeats : int
    """
    bench = _Bench(exact)
    rows = torch.as_tensor(X[: min(batch, len(X))])
    drive = torch.as_tensor(cell.drive(X))
    unit = cell.width * cell.inputs
    square, out = cell.width**2, cell.width * exact.shape[1]
    inject = _injection(cell)
    readout = cell.readout
    assert readout is not None
    C, c = torch.tensor(readout[0]).mT.contiguous(), torch.tensor(readout[1])
    for tolerance in TOLERANCES:
        solved = solve_rows(splitting, drive, tolerance)
        bench.add(
            (f"DEQ to {tolerance:g}", "tolerance", tolerance),
            cell.logits(solved.z.numpy()),
            lambda tol=tolerance: torch.addmm(c, solve_rows(splitting, inject(rows), tol).z, C),  # type: ignore[misc]
            steps=solved.steps,
            work=(unit + (solved.steps + 1) * square + out) / unit,
        )
    for count in TRUNCATIONS:
        bench.add(
            (f"solver cut off after {count}", "truncated", count),
            cell.logits(_truncated(splitting, drive, count).numpy()),
            lambda k=count: torch.addmm(c, _truncated(splitting, inject(rows), k), C),  # type: ignore[misc]
            steps=count,
            work=(unit + count * square + out) / unit,
        )
    for count, (own, fidelity) in enumerate(zip(readouts, fidelities, strict=True), 1):
        module = ExplicitLayers(cell, layers[:count], splitting.beta, own, torch.float64)
        bench.add(
            (f"{count} explicit layer{'s' * (count > 1)}", "explicit", count),
            fidelity,
            lambda net=module: net(rows),  # type: ignore[misc]
            work=(unit + sum(k.weight.size for k in layers[:count]) + own[0].size) / unit,
        )
    for name, hybrid in hybrids.items():
        scores = hybrid(torch.as_tensor(X)).numpy()
        record = hybrid.last_record
        assert record is not None
        passed = 1.0 - np.array([0.0, *record.certified_after])[:-1]
        of_layers = sum(
            share * (layer.weight.size + 2 * square + out)
            for share, layer in zip(passed, layers, strict=False)
        )
        proved = 1.0 - record.uncertified / max(record.rows, 1)
        bench.add(
            (name, "hybrid", len(record.certified_after)),
            replace(fidelity_of(scores, exact), certified=proved),
            lambda module=hybrid: module(rows),  # type: ignore[misc]
            steps=record.mean_steps,
            work=(unit + of_layers + record.mean_steps * (3 * square + out)) / unit,
        )
    return bench.front(len(rows), repeats, splitting.method.replace("_", " "))


def measure_function_front(
    cell: FunctionCell,
    solver: str,
    networks: Sequence[UnrolledFunction],
    fidelities: Sequence[Fidelity],
    drive: NDArray[Any],
    exact: FloatArray,
    *,
    batch: int = BATCH,
    repeats: int = 7,
) -> Front:
    """Measure a black box: f iterated to tolerances and cut off, and steps from a fitted start.

    Parameters
    ----------
    cell : FunctionCell
    solver : str
        One of `notsodeep.networks.SOLVERS`, which finds the fixed points.
    networks, fidelities
        Of 1, 2, … steps of f.
    drive, exact : ndarray
        Held-out rows as `cell.drive` returns them, and logits (or states) of their fixed points.
    batch, repeats : int
    """
    bench = _Bench(exact, states=cell.readout is None)
    x = torch.as_tensor(drive)
    rows = x[:batch]

    def scores(z: Tensor) -> Tensor:
        return z if cell.readout is None else cell.tensor_logits(z)

    def cut_off(x: Tensor, steps: int) -> Tensor:
        z = torch.zeros(len(x), cell.width, dtype=x.dtype)
        for _ in range(steps):
            z = cell.tensor_step(z, x)
        return scores(z)

    with torch.no_grad():
        for tolerance in TOLERANCES:
            if tolerance < least_tolerance(x.dtype):
                continue
            z, record = solve_tensors(cell, x, solver, tolerance)
            bench.add(
                (f"DEQ to {tolerance:g}", "tolerance", tolerance),
                scores(z).double().numpy(),
                lambda tol=tolerance: scores(solve_tensors(cell, rows, solver, tol)[0]),  # type: ignore[misc]
                steps=record.steps,
                work=record.steps,
            )
        for count in TRUNCATIONS:
            bench.add(
                (f"f cut off after {count}", "truncated", count),
                cut_off(x, count).double().numpy(),
                lambda k=count: cut_off(rows, k),  # type: ignore[misc]
                steps=count,
                work=count,
            )
    for network, fidelity in zip(networks, fidelities, strict=True):
        count = network.steps
        bench.add(
            (f"{count} step{'s' * (count > 1)} from a fitted start", "explicit", count),
            fidelity,
            lambda net=network: net(rows),  # type: ignore[misc]
            work=count,
        )
    return bench.front(len(rows), repeats, solver)


class _Bench:
    """Ways to get an answer, gathered first and then timed in turns.

    Parameters
    ----------
    exact : ndarray of shape (n, K)
        The converged DEQ's logits on the held-out rows.
    states : bool
        They are states.
    """

    def __init__(self, exact: FloatArray, *, states: bool = False) -> None:
        self.exact, self.states = exact, states
        self.facts: list[dict[str, Any]] = []
        self.runs: list[Callable[[], object]] = []

    def add(
        self,
        what: tuple[str, PointKind, float],
        answers: FloatArray | Fidelity,
        run: Callable[[], object],
        *,
        steps: float = 0.0,
        work: float,
    ) -> None:
        """Add a way: its name, kind and parameter; its answers, or how faithful they are; a run."""
        own = (
            answers
            if isinstance(answers, Fidelity)
            else fidelity_of(answers, self.exact, states=self.states)
        )
        self.facts.append(
            {
                **dict(zip(("name", "kind", "parameter"), what, strict=True)),
                "agreement": own.agreement,
                "logit_error": own.logit_error,
                "certified": own.certified,
                "steps": steps,
                "work": work,
            }
        )
        self.runs.append(run)

    def front(self, batch: int, repeats: int, solver: str) -> Front:
        """Time all ways; ratios are to the last explicit one."""
        reference = max(k for k, fact in enumerate(self.facts) if fact["kind"] == "explicit")
        with torch.no_grad():
            ratios = _timed(self.runs, reference, repeats)
        points = tuple(
            FrontPoint(**fact, ratio=ratio, quartiles=(low, high))
            for fact, (low, ratio, high) in zip(self.facts, ratios, strict=True)
        )
        threads = torch.get_num_threads()
        return Front(points, batch, repeats, threads, self.facts[reference]["name"], solver)


def _injection(cell: AffineCell) -> Callable[[Tensor], Tensor]:
    """Return x ↦ h with shift and scale folded into the weights, as the networks have it."""
    stem = cell.injection / cell.scale
    weight = torch.tensor(stem).mT.contiguous()
    bias = torch.tensor(cell.bias - stem @ cell.shift)
    return lambda x: torch.addmm(bias, x, weight)


def _truncated(splitting: Splitting, drive: Tensor, steps: int) -> Tensor:
    s, following = splitting.cold(drive), splitting.steps(drive)
    for _ in range(steps):
        s = following(s)
    return splitting.resolvent(s)


def _timed(
    runs: Sequence[Callable[[], object]], reference: int, repeats: int
) -> list[tuple[float, float, float]]:
    """Time all runs in turns; return quartiles of the ratios to the reference."""
    for run in runs:
        run()
    # Row by row all ways in turn, and ratios within a row: what slows the machine for a while slows
    # numerator and denominator.
    times = np.array([[seconds(run) for run in runs] for _ in range(repeats)])
    ratios = times / times[:, [reference]]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75), axis=0)
    return list(zip(low.tolist(), middle.tolist(), high.tolist(), strict=True))

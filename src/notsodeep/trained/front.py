"""Fidelity against cost: the DEQ at several tolerances, its solver cut off, layers, the hybrid.

All times come from one run on the same rows, in turns, in float64; they are given as ratios to the
explicit network, since a ratio outlives the machine it was measured on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from notsodeep.records import Plotted, Record
from notsodeep.trained.cell import AffineCell
from notsodeep.trained.explicit_layers import Layer
from notsodeep.trained.fidelity import Fidelity, FloatArray, fidelity_of
from notsodeep.trained.hybrid import HybridEquilibrium
from notsodeep.trained.network import ExplicitLayers
from notsodeep.trained.splittings import Splitting, seconds, solve_rows

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
USUAL = (1e-2, 1e-3)
"""Tolerances that practitioners use."""
TRUNCATIONS = (1, 2, 3, 5, 8, 12, 20)
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
        Multiplications per row, in units of those of the injection U x.
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
    """

    points: tuple[FrontPoint, ...]
    batch: int
    repeats: int
    threads: int
    reference: str

    _drawing: ClassVar[str] = "front"

    def point(self, kind: PointKind, parameter: float) -> FrontPoint:
        """Return the point of that kind and parameter."""
        return next(p for p in self.points if p.kind == kind and p.parameter == parameter)

    @property
    def headline(self) -> str:
        """What the explicit network saves, at the usual tolerances and at the strict one."""
        layers = max(int(p.parameter) for p in self.points if p.kind == "explicit")
        times = [self.point("tolerance", tolerance) for tolerance in (*USUAL, TOLERANCES[-1])]
        shown = ", ".join(f"{p.ratio:.1f} × at {p.parameter:g}" for p in times)
        own = self.point("explicit", layers)
        return (
            f"Against {layers} explicit layers, which agree on {own.agreement:.2%}, the DEQ with "
            f"its best solver takes {shown} of the time."
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
        return "\n".join([*lines, f"Times are ratios to {self.reference}. {note}"])


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
    batch: int = 512,
    repeats: int = 7,
) -> Front:
    """Measure all points on held-out rows.

    Parameters
    ----------
    cell : AffineCell
    splitting : Splitting
        The DEQ's best solver.
    layers, readouts, fidelities
        Of the explicit networks with 1, 2, … layers.
    hybrids : dict of str to HybridEquilibrium
        The hybrid, and the solver with the same early exit; empty if there are none.
    X, exact : ndarray
        Held-out rows, and the DEQ's logits there.
    batch, repeats : int
    """
    runs: list[Callable[[], object]] = []
    facts: list[tuple[str, PointKind, float, float, float, float | None, float, float]] = []
    rows = torch.as_tensor(X[: min(batch, len(X))])
    drive = torch.as_tensor(cell.drive(X))
    unit = cell.width * cell.inputs
    square, out = cell.width**2, cell.width * exact.shape[1]
    inject = _injection(cell)

    def note(
        name: str, kind: PointKind, parameter: float, scores: FloatArray, steps: float, work: float
    ) -> None:
        f = fidelity_of(scores, exact)
        facts.append((name, kind, parameter, f.agreement, f.logit_error, None, steps, work / unit))

    readout = cell.readout
    assert readout is not None
    C, c = torch.tensor(readout[0]).mT.contiguous(), torch.tensor(readout[1])
    for tolerance in TOLERANCES:
        solved = solve_rows(splitting, drive, tolerance)
        work = unit + (solved.steps + 1) * square + out
        name = f"DEQ to {tolerance:g}"
        note(name, "tolerance", tolerance, cell.logits(solved.z.numpy()), solved.steps, work)
        runs.append(
            lambda tol=tolerance: torch.addmm(c, solve_rows(splitting, inject(rows), tol).z, C)  # type: ignore[misc]
        )
    for count in TRUNCATIONS:
        states = _truncated(splitting, drive, count)
        name = f"solver cut off after {count}"
        work = unit + count * square + out
        note(name, "truncated", count, cell.logits(states.numpy()), count, work)
        runs.append(
            lambda k=count: torch.addmm(c, _truncated(splitting, inject(rows), k), C)  # type: ignore[misc]
        )
    reference = 0
    for count, (own, fidelity) in enumerate(zip(readouts, fidelities, strict=True), 1):
        module = ExplicitLayers(cell, layers[:count], splitting.beta, own, torch.float64)
        work = unit + sum(layer.weight.size for layer in layers[:count]) + own[0].size
        reference = len(facts)
        name = f"{count} explicit layer{'s' * (count > 1)}"
        facts.append(
            (name, "explicit", count, fidelity.agreement, fidelity.logit_error,
             fidelity.certified, 0.0, work / unit)
        )  # fmt: skip
        runs.append(lambda net=module: _without_gradient(net, rows))  # type: ignore[misc]
    for name, hybrid in hybrids.items():
        scores = hybrid(torch.as_tensor(X)).numpy()
        record = hybrid.last_record
        assert record is not None
        passed = 1.0 - np.array([0.0, *record.certified_after])[:-1]
        of_layers = sum(
            share * (layer.weight.size + 2 * square + out)
            for share, layer in zip(passed, layers, strict=False)
        )
        work = unit + of_layers + record.mean_steps * (3 * square + out)
        f = fidelity_of(scores, exact)
        proved = 1.0 - record.uncertified / max(record.rows, 1)
        facts.append(
            (name, "hybrid", float(len(record.certified_after)), f.agreement, f.logit_error,
             proved, record.mean_steps, work / unit)
        )  # fmt: skip
        runs.append(lambda module=hybrid: module(rows))  # type: ignore[misc]
    ratios = _timed(runs, reference, repeats)
    points = tuple(
        FrontPoint(*fact, ratio, (low, high))
        for fact, (low, ratio, high) in zip(facts, ratios, strict=True)
    )
    threads = torch.get_num_threads()
    return Front(points, len(rows), repeats, threads, facts[reference][0])


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


def _without_gradient(module: ExplicitLayers, rows: Tensor) -> Tensor:
    with torch.no_grad():
        scores: Tensor = module(rows)
    return scores


def _timed(
    runs: Sequence[Callable[[], object]], reference: int, repeats: int
) -> list[tuple[float, float, float]]:
    """Time all runs in turns; return quartiles of the ratios to the reference."""
    for run in runs:
        run()
    times = np.array([[seconds(run) for run in runs] for _ in range(repeats)])
    ratios = times / times[:, [reference]]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75), axis=0)
    return list(zip(low.tolist(), middle.tolist(), high.tolist(), strict=True))

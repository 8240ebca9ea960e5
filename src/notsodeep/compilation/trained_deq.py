"""Compile a given DEQ: solve, fit explicit layers, certify, compare, time."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.compilation.evidence import (
    Fidelity,
    Way,
    fidelity_of,
    lower_bound,
    seconds,
    timed_front,
)
from notsodeep.compilation.record import Arrays, Step, Store
from notsodeep.compilation.rows import CellRows, rows_for_cell
from notsodeep.compilation.trained_record import (
    DROPPED,
    CellSettings,
    Chain,
    Fidelities,
    Readout,
    RowCounts,
    Solved,
    Stability,
    TimedFront,
    TrainedCompilation,
    cell_arrays,
    chain_of,
    layer_arrays,
    network_digest,
    network_of,
    read_layers,
    run_directory,
)
from notsodeep.data import Dataset
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.files import sha256_of_array
from notsodeep.networks.affine import AffineDEQ, Splitting, solve_rows
from notsodeep.networks.cell import EquilibriumCell, Method, tolerance_for
from notsodeep.networks.function import FunctionDEQ
from notsodeep.networks.implicit import Solver, solve
from notsodeep.trained.certificate import Certifier
from notsodeep.trained.hybrid import HybridEquilibrium, first_check
from notsodeep.trained.layers import Layer, LayerProblem, fit_layers, preimages_of
from notsodeep.trained.margin import Margin, margin_of

_MAX_LAYERS = 4
_FUNCTION_STEPS = 3
_BATCH = 4096  # rows that are solved at once
_FIRST_STEPS, _LAST_STEPS = 300, 3000  # of all rows of a batch, and of those still open then
_PROBE_ROWS = 128  # by which hopeless networks are recognised, and other fixed points looked for
_PROBE_STEPS = 500
_SAME_STATE = 1e-3  # relative distance within which two solutions are one fixed point
_RIDGES = (1e-8, 1e-6, 1e-4, 1e-2)
_TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
_TRUNCATIONS = (1, 2, 3, 5, 8, 12, 20)
_TIMED = 512  # rows that are timed at once


@torch.no_grad()
def compile_cell(
    cell: EquilibriumCell,
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    random_state: int,
    out: str | Path | None,
    force: bool,
    log: Callable[[Step], object],
    **options: Any,
) -> TrainedCompilation:
    """Find explicit layers that decide as a given network does; see `notsodeep.compile`."""
    work_on = _AffineWork if isinstance(cell, AffineDEQ) else _FunctionWork
    settings = CellSettings(
        random_state=random_state, **{"tolerance": work_on.default_tolerance, **options}
    )
    X, y, X_test, y_test = _arrays(cell, X, y, X_test, y_test)
    rows = rows_for_cell(
        work_on.taken_rows(cell, X, "X"),
        y,
        None if X_test is None else work_on.taken_rows(cell, X_test, "X_test"),
        y_test,
        num_classes=_num_classes(cell, labels=y is not None),
        seed=settings.random_state,
    )
    work = work_on(cell, settings, rows)
    inputs = {"network": network_digest(cell)}
    named = zip(("X", "validation rows", "X_test", "y"), rows, strict=True)
    inputs |= {name: sha256_of_array(part) for name, part in named if part is not None}
    if out is None:
        return _compiled(work, Store(None, log), inputs)
    run = run_directory(out, settings, cell, inputs)
    with run.opened(force=force):
        store = Store(run, log)
        store.arrays("cell", lambda: cell_arrays(cell))
        compiled = _compiled(work, store, inputs)
        compiled.export(run)
        return compiled


def _compiled(work: _Work, store: Store, inputs: dict[str, str]) -> TrainedCompilation:
    solved = store.record("solved", Solved, work.solved, "fixed points")
    chain: list[Layer] = []  # as they are fitted; read from the store otherwise

    def heads() -> Chain:
        chain.extend(work.fitted_layers(solved))
        return chain_of(chain)

    stored = store.record("layers", Chain, heads, "explicit layers")
    weights = store.arrays("layers", lambda: work.weights(solved, chain or None))
    layers = read_layers(stored, weights)
    networks = work.networks(solved, layers, weights)
    fidelities = store.record(
        "fidelity",
        Fidelities,
        lambda: work.fidelities(solved, layers, networks),
        "fidelity",
    )
    timed = store.record(
        "front",
        TimedFront,
        lambda: work.front(solved, layers, networks, fidelities.by_layers),
        "timing",
    )
    directory = None if store.run is None else store.run.path
    return TrainedCompilation(
        work.settings, work.cell, layers, weights, solved, fidelities, timed, inputs, directory
    )


def _arrays(cell: EquilibriumCell, X: Any, y: Any, X_test: Any, y_test: Any) -> tuple[Any, ...]:
    """Take rows, labels and test rows out of a data set, which has its own."""
    if not isinstance(X, Dataset):
        return X, y, X_test, y_test
    kind = X.preprocessing.kind
    scaled = isinstance(cell, AffineDEQ) and bool(
        (cell.get_buffer("shift") != 0).any() or (cell.get_buffer("scale") != 1).any()
    )
    if kind not in ("none", "unit_range") and scaled:
        raise InvalidInput(
            "X must have the units of the network's own inputs, which it shifts and scales, got "
            f"rows prepared as {kind!r}. Load them with preprocessing='unit_range'."
        )
    # Labels of chosen classes are numbered anew: they are not the logits of a network any more.
    if X.provenance.options.get("classes"):
        raise InvalidInput(
            "X must have all classes of the set, in the order of the network's logits, got only "
            f"{', '.join(X.classes)}. Load it without classes=."
        )
    return X.X, X.y, X.X_test, X.y_test


def _num_classes(cell: EquilibriumCell, *, labels: bool) -> int:
    if not cell.has_readout:
        if labels:
            raise InvalidInput("y must be left out for a network without a read-out, got labels.")
        return 0
    return cell.logits(torch.zeros(1, cell.width, dtype=torch.float64)).shape[1]


class _Work(ABC):
    """What is computed for a network, each part when it is first asked for."""

    default_tolerance: float

    def __init__(self, cell: Any, settings: CellSettings, rows: CellRows) -> None:
        self.cell, self.settings, self.given = cell, settings, rows

    @staticmethod
    @abstractmethod
    def taken_rows(cell: Any, X: Any, name: str) -> NDArray[Any]:
        """Check rows as a user gives them."""

    @abstractmethod
    def drive(self, rows: NDArray[Any]) -> Tensor:
        """Return all of a step that depends on the rows."""

    @abstractmethod
    def solve(
        self, drive: Tensor, tolerance: float, max_steps: int = _LAST_STEPS
    ) -> tuple[Tensor, Tensor, int]:
        """Solve from zero; return states and residuals of the rows, and the number of steps."""

    @abstractmethod
    def describe(self) -> tuple[Margin | None, Method | None, str]:
        """Return the margin, the choice of the solver, and the solver in words."""

    @abstractmethod
    def fitted_layers(self, solved: Solved) -> tuple[Layer, ...]:
        """Fit layers, as many as are asked for or needed."""

    @abstractmethod
    def weights(self, solved: Solved, layers: Sequence[Layer] | None) -> Arrays:
        """Return what the explicit network is made of; `layers` if they were just fitted."""

    @abstractmethod
    def fidelities(
        self, solved: Solved, layers: Sequence[Layer], networks: Sequence[nn.Module]
    ) -> Fidelities:
        """Judge the networks of 1, 2, … layers, as they are handed over, on held-out rows."""

    @abstractmethod
    def front(
        self,
        solved: Solved,
        layers: Sequence[Layer],
        networks: Sequence[nn.Module],
        fidelities: Sequence[Fidelity],
    ) -> TimedFront:
        """Measure what all ways to an answer cost."""

    def solved(self) -> Solved:
        """Find the fixed points, and look for others."""
        margin, choice, words = self.describe()
        return Solved(margin, choice, words, self.counts, self._stability(margin))

    def networks(self, solved: Solved, layers: Sequence[Layer], weights: Arrays) -> list[nn.Module]:
        """Return the networks of the first 1, 2, … layers."""
        counts = range(1, (len(layers) or self.settings.layers or _FUNCTION_STEPS) + 1)
        return [network_of(self.cell, layers, weights, count) for count in counts]

    @cached_property
    def _settled(self) -> tuple[CellRows, list[FloatArray], RowCounts]:
        """The rows that have a fixed point within the tolerance, and their fixed points.

        A network that has none on too many rows is recognised by a few.
        """
        self._require_settled(self._fixed_points(self.given.train[:_PROBE_ROWS])[1])
        parts = [self.given.train, self.given.validation, self.given.test]
        found = [self._fixed_points(part) for part in parts]
        settled = np.concatenate([mask for _, mask in found])
        self._require_settled(settled)
        kept = [part[mask] for part, (_, mask) in zip(parts, found, strict=True)]
        labels = self.given.labels
        rows = CellRows(*kept, None if labels is None else labels[found[2][1]])
        counts = RowCounts(*map(len, kept), int((~settled).sum()))
        return rows, [states[mask] for states, mask in found], counts

    def _require_settled(self, settled: NDArray[np.bool_]) -> None:
        lost = int((~settled).sum())
        if lost > self.settings.unsettled_limit * len(settled):
            raise NotConverged(
                f"{lost} of {len(settled)} rows have no fixed point within the tolerance "
                f"{self.settings.tolerance:g}. Look at the network with notsodeep.diagnose; "
                "unsettled_limit= sets more rows aside."
            )

    def _fixed_points(self, rows: NDArray[Any]) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Solve in batches; a few rows that take long do not hold up the others."""
        states = np.zeros((len(rows), self.cell.width))
        settled = np.zeros(len(rows), dtype=bool)
        for begin in range(0, len(rows), _BATCH):
            drive = self.drive(rows[begin : begin + _BATCH])
            todo = torch.arange(len(drive))
            for budget in (_FIRST_STEPS, _LAST_STEPS, _LAST_STEPS):
                z, residuals, _ = self.solve(drive[todo], self.settings.tolerance, budget)
                done = residuals <= self.solvable(drive.dtype)
                states[begin + todo[done].numpy()] = z[done].double().numpy()
                settled[begin + todo[done].numpy()] = True
                todo = todo[~done & residuals.isfinite()]
                if not len(todo):
                    break
        return states, settled

    def solvable(self, dtype: torch.dtype) -> float:
        """Return the tolerance, or what the precision allows."""
        return tolerance_for(dtype, self.settings.tolerance)

    @property
    def settled_share(self) -> float:
        """Of the rows, that a solver has to settle."""
        return 1.0 - self.settings.unsettled_limit

    @property
    def rows(self) -> CellRows:
        """The rows that have a fixed point."""
        return self._settled[0]

    @property
    def states(self) -> list[FloatArray]:
        """Fixed points of the training, validation and test rows."""
        return self._settled[1]

    @property
    def counts(self) -> RowCounts:
        """How many rows there are, and how many were set aside."""
        return self._settled[2]

    @cached_property
    def exact(self) -> list[FloatArray]:
        """Logits of the fixed points; states without a read-out."""
        return [self.logits(z) for z in self.states]

    def logits(self, z: FloatArray) -> FloatArray:
        """Return the logits of states; states without a read-out."""
        if not self.cell.has_readout:
            return z
        return np.asarray(self.cell.logits(torch.as_tensor(z)).numpy())

    @property
    def options(self) -> dict[str, Any]:
        """How answers are compared: one logit, and a state, have no class."""
        return {"states": not self.cell.has_readout or self.exact[2].shape[1] == 1}

    def _stability(self, margin: Margin | None) -> Stability:
        """Iterate f from other starts, and see where rows that settle end."""
        if margin is not None and margin.unique:
            return Stability(0, True, 0.0, 0.0)
        drive = self.drive(self.rows.test[:_PROBE_ROWS])
        own = self.states[2][:_PROBE_ROWS]
        scale = float(np.sqrt(np.mean(own**2))) or 1.0
        noise = np.random.default_rng(self.settings.random_state).standard_normal(own.shape)
        single = drive.dtype == torch.float32
        solver = Solver(1e-5 if single else 1e-9, _PROBE_STEPS)
        several, other = np.zeros((2, len(own)), dtype=bool)
        for start in (2.0 * np.ones_like(own), -2.0 * np.ones_like(own), noise, 10.0 * noise):
            begin = torch.as_tensor(scale * start, dtype=drive.dtype)
            z, record = solve(lambda z: self.cell.step(z, drive), begin, solver)
            limit, settled = z.double().numpy(), (record.residuals <= record.tolerance).numpy()
            distance = np.linalg.norm(limit - own, axis=1)
            same = _SAME_STATE * (100.0 if single else 1.0)
            away = settled & (distance > same * np.linalg.norm(own, axis=1))
            several |= away
            if self.cell.has_readout:
                classes = (self.logits(values).argmax(axis=1) for values in (limit, own))
                other |= away & np.not_equal(*classes)
        return Stability(len(own), False, float(several.mean()), float(other.mean()))

    def _ways(
        self,
        readout: Callable[[Tensor], Tensor],
        inject: Callable[[Tensor], Tensor],
        product: float,
        fixed: float,
    ) -> list[Way]:
        """Solve to several tolerances: `product` multiplications a step, and `fixed` ones once."""
        exact = self.exact[2]
        drive, rows = self.drive(self.rows.test), torch.as_tensor(self.rows.test[:_TIMED])
        ways = []
        for tolerance in _TOLERANCES:
            if tolerance < self.solvable(drive.dtype):
                continue
            z, _, steps = self.solve(drive, tolerance)
            scores = readout(z).double().numpy()
            ways.append(
                Way(
                    f"DEQ to {tolerance:g}",
                    "tolerance",
                    tolerance,
                    lambda t=tolerance: readout(self.solve(inject(rows), t)[0]),  # type: ignore[misc]
                    fixed + steps * product,
                    steps,
                    fidelity_of(scores, exact, **self.options).agreement,
                )
            )
        return ways


class _AffineWork(_Work):
    """φ(Wz + Ux + b): explicit layers by regression, proofs by the margin."""

    default_tolerance = 1e-10

    @staticmethod
    def taken_rows(cell: Any, X: Any, name: str) -> NDArray[Any]:
        cell.require_readout()
        values = X.detach().cpu().double().numpy() if hasattr(X, "detach") else X
        rows: NDArray[Any] = checks.samples(values, name, "compile")
        if rows.shape[1] != cell.inputs:
            got = f"shape {rows.shape}"
            raise InvalidInput(f"{name} must have {cell.inputs} features, got {got}.")
        return rows

    def __init__(self, cell: AffineDEQ, settings: CellSettings, rows: CellRows) -> None:
        super().__init__(copy.deepcopy(cell).double(), settings, rows)

    def drive(self, rows: NDArray[Any]) -> Tensor:
        drive: Tensor = self.cell.drive(rows)
        return drive

    def describe(self) -> tuple[Margin | None, Method | None, str]:
        return self.margin, self.method, self.method.reason

    def solve(
        self, drive: Tensor, tolerance: float, max_steps: int = _LAST_STEPS
    ) -> tuple[Tensor, Tensor, int]:
        solved = solve_rows(self.splitting, drive, tolerance, max_steps=max_steps)
        return solved.z, solved.residuals, solved.steps

    @cached_property
    def margin(self) -> Margin:
        return margin_of(self.cell)

    @cached_property
    def method(self) -> Method:
        drive = self.drive(self.given.train)
        method: Method = self.cell.choose_method(
            drive, None, self.margin.lipschitz, self.settled_share
        )
        return method

    @cached_property
    def splitting(self) -> Splitting:
        return Splitting(self.cell.activation, self.cell.recurrent, self.method, self.margin.beta)

    def fastest(self) -> Splitting:
        """Return the solver that takes the least time, of those that the trials saw converge.

        The choice itself counts steps, which is reproducible; but a step of Anderson's method can
        cost several of another's, which is no merit of the explicit network.
        """
        best = {trial.name: trial for trial in sorted(
            (t for t in self.method.trials if t.steps), key=lambda t: -(t.steps or 0)
        )}  # fmt: skip
        drive = self.drive(self.rows.test[:_TIMED])
        splittings = [
            self.cell.splitting(Method(trial.name, trial.step)) for trial in best.values()
        ] or [self.splitting]
        runs = [partial(solve_rows, splitting, drive, 1e-3) for splitting in splittings]
        for run in runs:
            run()
        times = np.median([[seconds(run) for run in runs] for _ in range(3)], axis=0)
        return splittings[int(times.argmin())]

    @cached_property
    def certifier(self) -> Certifier | None:
        return Certifier(self.cell, self.margin) if self.margin.unique else None

    @cached_property
    def problem(self) -> LayerProblem:
        cell, rows, arrays = self.cell, self.rows, self.cell.arrays()
        return LayerProblem(
            cell,
            self.margin,
            self.drive(rows.train).numpy(),
            self.states[0],
            self.drive(rows.validation).numpy(),
            self.states[1],
            np.linalg.norm((rows.validation - arrays["shift"]) / arrays["scale"], axis=1),
            self.certifier,
        )

    def fitted_layers(self, solved: Solved) -> tuple[Layer, ...]:
        """Fit so many layers, or as many as the verdict's rule asks for on validation rows.

        Where these rows are too few for it, the network that agrees most is taken, and of equals
        the one whose logits are closest.
        """
        if self.settings.layers is not None:
            return fit_layers(self.problem, self.settings.layers)
        exact, chains, merits = self.exact[1], [], []
        for count in range(1, _MAX_LAYERS + 1):
            chains.append(fit_layers(self.problem, count))
            z = _states(self.problem, chains[-1], self.problem.drive_val)[-1]
            scores = self.logits(z)
            same = scores.argmax(axis=1) == exact.argmax(axis=1)
            if lower_bound(int(same.sum()), len(same)) >= self.settings.agreement_limit:
                return chains[-1]
            merits.append((float(same.mean()), -float(np.linalg.norm(scores - exact))))
        return chains[merits.index(max(merits))]

    def weights(self, solved: Solved, layers: Sequence[Layer] | None) -> Arrays:
        """Keep the DEQ's read-out after each layer, or refit it where that agrees more."""
        chain = self.fitted_layers(solved) if layers is None else layers
        arrays = self.cell.arrays()
        own, readouts = (arrays["C"], arrays["c"]), []
        labels = self.exact[1].argmax(axis=1)
        parts = (
            _states(self.problem, chain, h) for h in (self.problem.drive, self.problem.drive_val)
        )
        for z, z_validation in zip(*parts, strict=True):
            other = _refitted(z, self.exact[0], z_validation, self.exact[1])
            agreement = [
                np.mean((z_validation @ C.T + c).argmax(axis=1) == labels) for C, c in (own, other)
            ]
            # Ties keep the DEQ's own read-out, for which the certificate proves classes.
            readouts.append(other if agreement[1] > agreement[0] else own)
        return layer_arrays(chain, readouts)

    def fidelities(
        self, solved: Solved, layers: Sequence[Layer], networks: Sequence[nn.Module]
    ) -> Fidelities:
        test, labels = self.rows.test, self.rows.labels
        resolvents = [self.problem.resolvent(layer.step) for layer in layers]
        preimages, _ = preimages_of(layers, resolvents, self.drive(test))
        by_layers = []
        for s, resolvent, network in zip(preimages, resolvents, networks, strict=True):
            scores, proved = _scores(network, test), None
            if self.certifier is not None:
                certified = self.certifier.classes(
                    resolvent.preimage(s), *self.certifier.rows(test)
                )
                # Proved is what the network says, not what the DEQ's own read-out would say.
                same = certified.classes.numpy() == scores.argmax(axis=1)
                proved = certified.proved.numpy() & same
            by_layers.append(fidelity_of(scores, self.exact[2], proved=proved, labels=labels))
        dropped = [self.cell.activation(self.drive(part).numpy()) for part in self.rows[:3]]
        C, c = _refitted(dropped[0], self.exact[0], dropped[1], self.exact[1])
        cut = self.logits(self._cut_off(self.drive(test), len(layers)).numpy())
        baselines = {
            DROPPED: dropped[2] @ C.T + c,
            f"solver cut off after {len(layers)} steps": cut,
        }
        judged = {
            name: fidelity_of(scores, self.exact[2], labels=labels)
            for name, scores in baselines.items()
        }
        return Fidelities(tuple(by_layers), judged)

    def front(
        self,
        solved: Solved,
        layers: Sequence[Layer],
        networks: Sequence[nn.Module],
        fidelities: Sequence[Fidelity],
    ) -> TimedFront:
        cell, test, exact = self.cell, self.rows.test, self.exact[2]
        rows = torch.as_tensor(test[:_TIMED])
        inject, readout = _injection(cell), _readout(cell)
        unit, square, out = cell.width * cell.inputs, cell.width**2, cell.width * exact.shape[1]
        self.splitting = self.fastest()
        ways = self._ways(readout, inject, square, unit + square + out)
        drive = self.drive(test)
        for count in _TRUNCATIONS:
            scores = readout(self._cut_off(drive, count)).numpy()
            ways.append(
                Way(
                    f"solver cut off after {count}",
                    "truncated",
                    count,
                    lambda k=count: readout(self._cut_off(inject(rows), k)),  # type: ignore[misc]
                    unit + count * square + out,
                    count,
                    fidelity_of(scores, exact).agreement,
                )
            )
        hybrids = self._hybrids(solved, layers, fidelities)
        for name, hybrid in hybrids.items():
            scores, record = hybrid(torch.as_tensor(test)).numpy(), hybrid.last_record
            assert record is not None
            reach = 1.0 - np.array([0.0, *record.certified_after])[:-1]
            of_layers = sum(
                share * (layer.weight.size + 2 * square + out)
                for share, layer in zip(reach, layers, strict=False)
            )
            ways.append(
                Way(
                    name,
                    "hybrid",
                    len(record.certified_after),
                    lambda module=hybrid: module(rows),  # type: ignore[misc]
                    unit + of_layers + record.mean_steps * (3 * square + out),
                    record.mean_steps,
                    fidelity_of(scores, exact).agreement,
                    certified=1.0 - record.uncertified / max(record.rows, 1),
                )
            )
        sizes = np.cumsum([layer.weight.size for layer in layers])
        for count, (network, fidelity) in enumerate(zip(networks, fidelities, strict=True), 1):
            # All ways are timed in float64, in which the DEQ is solved.
            double = copy.deepcopy(network).double()
            ways.append(
                _explicit(count, "layer", double, rows, fidelity, unit + sizes[count - 1] + out)
            )
        name = f"the DEQ by {self.splitting.method.name.replace('_', ' ')}"
        front = timed_front(ways, **_conditions(name, len(rows)))
        records = [hybrid.last_record for hybrid in hybrids.values()] or [None, None]
        return TimedFront(front, *records)

    def _hybrids(
        self, solved: Solved, layers: Sequence[Layer], fidelities: Sequence[Fidelity]
    ) -> dict[str, HybridEquilibrium]:
        if self.certifier is None:
            return {}
        first = first_check([f.certified for f in fidelities])
        options: Any = {"tolerance": self.settings.tolerance, "first_check": first}
        chains = {"certified hybrid": layers, "solver with early exit": ()}
        return {
            name: HybridEquilibrium(self.cell, self.margin, chain, self.method, **options)
            for name, chain in chains.items()
        }

    def _cut_off(self, drive: Tensor, steps: int) -> Tensor:
        maps = self.splitting
        s, following = maps.start(drive), maps.stepper()
        for _ in range(steps):
            s = following(s, maps.turn(s, drive, maps.matrix))
        return maps.state(s)


class _FunctionWork(_Work):
    """Any f(z, x): steps of f from a linear start, judged by statistics alone."""

    default_tolerance = 1e-8

    @staticmethod
    def taken_rows(cell: Any, X: Any, name: str) -> NDArray[Any]:
        rows: NDArray[Any] = cell.drive(X).detach().cpu().numpy()
        return rows

    def drive(self, rows: NDArray[Any]) -> Tensor:
        return torch.as_tensor(rows)

    @cached_property
    def method(self) -> Method:
        """The first solver that solves enough of a few rows."""
        cell: FunctionDEQ = self.cell
        cell.method = cell.choose_method(self.drive(self.given.train), self.settled_share)
        return cell.method

    def solve(
        self, drive: Tensor, tolerance: float, max_steps: int = _LAST_STEPS
    ) -> tuple[Tensor, Tensor, int]:
        cell, _ = self.cell, self.method
        solved = cell.solve(drive, tolerance, max_steps=max_steps)
        return solved.z, solved.residuals, solved.steps

    def describe(self) -> tuple[Margin | None, Method | None, str]:
        return None, None, self.method.name.replace("plain", "plain iteration")

    def fitted_layers(self, solved: Solved) -> tuple[Layer, ...]:
        return ()

    def weights(self, solved: Solved, layers: Sequence[Layer] | None) -> Arrays:
        """Fit the start: z* by ridge regression on flattened rows."""
        train, validation = (
            part.reshape(len(part), -1).astype(np.float64) for part in self.rows[:2]
        )
        weight, bias = _refitted(train, self.states[0], validation, self.states[1])
        dtype = np.float32 if self.rows.test.dtype == np.float32 else np.float64
        return {"start": weight.astype(dtype), "start_bias": bias.astype(dtype)}

    def fidelities(
        self, solved: Solved, layers: Sequence[Layer], networks: Sequence[nn.Module]
    ) -> Fidelities:
        options: Any = {"labels": self.rows.labels, **self.options}
        exact, drive = self.exact[2], self.drive(self.rows.test)
        own = [fidelity_of(_scores(net, self.rows.test), exact, **options) for net in networks]
        baselines = {
            f"{k} step{'s' * (k > 1)} from zero": fidelity_of(
                self._read(self._cut_off(drive, k)).double().numpy(), exact, **options
            )
            for k in range(1, len(networks) + 1)
        }
        return Fidelities(tuple(own), baselines)

    def front(
        self,
        solved: Solved,
        layers: Sequence[Layer],
        networks: Sequence[nn.Module],
        fidelities: Sequence[Fidelity],
    ) -> TimedFront:
        """Measure f iterated to tolerances and cut off, and steps from a fitted start."""
        drive, rows = self.drive(self.rows.test), torch.as_tensor(self.rows.test[:_TIMED])
        ways = self._ways(self._read, lambda x: x, 1.0, 0.0)
        for count in _TRUNCATIONS:
            scores = self._read(self._cut_off(drive, count)).double().numpy()
            agreement = fidelity_of(scores, self.exact[2], **self.options).agreement
            run = lambda k=count: self._read(self._cut_off(rows, k))  # noqa: E731
            ways.append(
                Way(f"f cut off after {count}", "truncated", count, run, count, count, agreement)
            )
        for count, (network, fidelity) in enumerate(zip(networks, fidelities, strict=True), 1):
            ways.append(_explicit(count, "step", network, rows, fidelity, count))
        return TimedFront(timed_front(ways, **_conditions(f"f by {solved.solver}", len(rows))))

    @torch.no_grad()
    def _read(self, z: Tensor) -> Tensor:
        scores: Tensor = self.cell.logits(z) if self.cell.has_readout else z
        return scores

    @torch.no_grad()
    def _cut_off(self, drive: Tensor, steps: int) -> Tensor:
        z = torch.zeros(len(drive), self.cell.width, dtype=drive.dtype)
        for _ in range(steps):
            z = self.cell.step(z, drive)
        return z


@torch.no_grad()
def _scores(network: nn.Module, rows: NDArray[Any]) -> FloatArray:
    """Return the answers of a network, as it is handed over."""
    return np.asarray(network(torch.as_tensor(rows)).double().numpy())


def _explicit(
    count: int, what: str, network: nn.Module, rows: Tensor, fidelity: Fidelity, products: float
) -> Way:
    @torch.no_grad()
    def run() -> Tensor:
        answer: Tensor = network(rows)
        return answer

    return Way(
        f"{count} {'explicit layer' if what == 'layer' else 'step'}{'s' * (count > 1)}",
        "explicit",
        count,
        run,
        products,
        agreement=fidelity.agreement,
        certified=fidelity.certified,
    )


def _conditions(solver: str, batch: int) -> dict[str, Any]:
    threads = torch.get_num_threads()
    return {"solver": solver, "batch": batch, "threads": threads, "library": "torch"}


def _states(problem: LayerProblem, chain: Sequence[Layer], drive: FloatArray) -> list[FloatArray]:
    """Return z_k of all layers."""
    resolvents = [problem.resolvent(layer.step) for layer in chain]
    return [z.numpy() for z in preimages_of(chain, resolvents, torch.as_tensor(drive))[1]]


def _refitted(
    features: FloatArray, targets: FloatArray, validation: FloatArray, wanted: FloatArray
) -> Readout:
    """Fit targets by ridge regression; the ridge is chosen on validation rows."""
    mean, level = features.mean(axis=0), targets.mean(axis=0)
    centred = features - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / len(features))
    projected = vectors.T @ (centred.T @ (targets - level)) / len(features)
    scale = max(float(values.mean()), 1e-300)
    fits = []
    for ridge in _RIDGES:
        weights = (vectors @ (projected / (np.maximum(values, 0.0) + ridge * scale)[:, None])).T
        bias = level - weights @ mean
        error = float(np.linalg.norm(validation @ weights.T + bias - wanted))
        fits.append((error, len(fits), weights, bias))
    return min(fits)[2:]


def _injection(cell: AffineDEQ) -> Callable[[Tensor], Tensor]:
    """Return x ↦ h with shift and scale folded into the weights, as the networks have it."""
    arrays = cell.arrays()
    stem = arrays["U"] / arrays["scale"]
    weight = torch.tensor(stem).mT.contiguous()
    bias = torch.tensor(arrays["b"] - stem @ arrays["shift"])
    return lambda x: torch.addmm(bias, x, weight)


def _readout(cell: AffineDEQ) -> Callable[[Tensor], Tensor]:
    arrays = cell.arrays()
    C, c = torch.tensor(arrays["C"]).mT.contiguous(), torch.tensor(arrays["c"])
    return lambda z: torch.addmm(c, z, C)

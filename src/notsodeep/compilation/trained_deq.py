"""Compile a given DEQ: solve, fit explicit layers, certify, compare, time."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep._files import sha256_of_array
from notsodeep.arrays import FloatArray
from notsodeep.compilation.evidence import (
    Fidelity,
    PointKind,
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
from notsodeep.networks.affine import AffineDEQ, Splitting, solve_rows
from notsodeep.networks.cell import EquilibriumCell, Method, tolerance_for
from notsodeep.networks.implicit import Solver, solve
from notsodeep.trained.certificate import Certifier
from notsodeep.trained.hybrid import HybridEquilibrium, HybridRecord, first_check
from notsodeep.trained.layers import Layer, LayerProblem, fit_layers, preimages_of
from notsodeep.trained.margin import Margin, margin_of

_MAX_LAYERS = 4
_MAX_STEPS_OF_F = 8
_BATCH = 8192  # rows that are solved at once
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
    data: tuple[Any, Any, Any, Any],
    settings: CellSettings,
    out: str | Path | None,
    *,
    force: bool,
    log: Callable[[Step], object],
) -> TrainedCompilation:
    """Find explicit layers that decide as a given network does; see `notsodeep.compile`.

    `data` are X, y, X_test and y_test.
    """
    kind: Any = _AffineWork if isinstance(cell, AffineDEQ) else _Work
    work = kind(cell, settings, kind.rows_of(cell, _arrays(cell, *data), settings.random_state))
    inputs = {"network": network_digest(cell)}
    named = zip(("X", "validation rows", "X_test", "y"), work.given, strict=True)
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
    chain = store.record("layers", Chain, lambda: chain_of(*work.fitted), "explicit layers")
    weights = store.arrays("layers", work.weights)
    layers = read_layers(chain, weights)
    networks = [network_of(work.cell, layers, weights, k) for k in range(1, chain.count + 1)]
    fidelities = store.record(
        "fidelity", Fidelities, lambda: work.fidelities(layers, networks), "fidelity"
    )
    timed = store.record(
        "front", TimedFront, lambda: work.front(layers, networks, fidelities.by_layers), "timing"
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
    if kind not in ("none", "unit_range") and isinstance(cell, AffineDEQ):
        arrays = cell.arrays()
        if (arrays["shift"] != 0.0).any() or (arrays["scale"] != 1.0).any():
            raise InvalidInput(
                "X must have the units of the network's own inputs, which it shifts and scales, "
                f"got rows prepared as {kind!r}. Load them with preprocessing='unit_range'."
            )
    # Labels of chosen classes are numbered anew: they are not the logits of a network any more.
    if X.provenance.options.get("classes"):
        raise InvalidInput(
            "X must have all classes of the set, in the order of the network's logits, got only "
            f"{', '.join(X.classes)}. Load it without classes=."
        )
    return X.X, X.y, X.X_test, X.y_test


class _Work:
    """What is computed for any f(z, x), each part when it is first asked for.

    The explicit network is a linear start and steps of f, judged by statistics alone.
    """

    layer, cut, deq = "step", "f cut off", "f"  # names in the front

    def __init__(self, cell: Any, settings: CellSettings, rows: CellRows) -> None:
        self.cell, self.settings, self.given = cell, settings, rows

    @classmethod
    def rows_of(cls, cell: Any, data: tuple[Any, ...], seed: int) -> CellRows:
        """Check rows and labels, and divide them."""
        X, y, X_test, y_test = data
        held = None if X_test is None else cls.taken(cell, X_test, "X_test")
        if y is not None and not cell.has_readout:
            raise InvalidInput("y must be left out for a network without a read-out, got labels.")
        count = 0
        if cell.has_readout:
            count = cell.logits(torch.zeros(1, cell.width, dtype=torch.float64)).shape[1]
        return rows_for_cell(cls.taken(cell, X, "X"), y, held, y_test, num_classes=count, seed=seed)

    @staticmethod
    def taken(cell: Any, X: Any, name: str) -> NDArray[Any]:
        """Return rows as f takes them."""
        return np.asarray(cell.drive(X).detach().cpu().numpy())

    def drive(self, rows: NDArray[Any]) -> Tensor:
        """Return all of a step that depends on the rows."""
        return torch.as_tensor(rows)

    def inject(self, x: Tensor) -> Tensor:
        """Return the same for rows of a batch that is timed."""
        return x

    # Fixed points ----------------------------------------------------------------------------

    @cached_property
    def margin(self) -> Margin | None:
        """Why there is one fixed point; None of a function."""
        return None

    @cached_property
    def method(self) -> Method:
        """The solver."""
        method: Method = self.cell.choose_method(
            self.drive(self.given.train), settled_share=1.0 - self.settings.unsettled_limit
        )
        return method

    def solve(self, drive: Tensor, tolerance: float) -> Any:
        """Solve from zero."""
        self.cell.method = self.method
        return self.cell.solve(drive, tolerance)

    def solved(self) -> Solved:
        """Find the fixed points, and look for others."""
        return Solved(self.margin, self.method, self.counts, self.stability())

    @cached_property
    def settled(self) -> tuple[CellRows, list[FloatArray], RowCounts]:
        """The rows that have a fixed point within the tolerance, these, and how many they are.

        A network that has none on too many rows is recognised by a few.
        """
        self.fixed_points(self.given.train[:_PROBE_ROWS])
        found = [self.fixed_points(part) for part in self.given[:3]]
        masks, labels = [mask for _, mask in found], self.given.labels
        train, val, test = (p[mask] for p, mask in zip(self.given[:3], masks, strict=True))
        lost = sum(int((~mask).sum()) for mask in masks)
        return (
            CellRows(train, val, test, None if labels is None else labels[masks[2]]),
            [z[mask] for z, mask in found],
            RowCounts(len(train), len(val), len(test), lost),
        )

    def fixed_points(self, rows: NDArray[Any]) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return states, and which of them are within the tolerance; not too few."""
        parts = [
            self.solve(part, self.settings.tolerance)
            for part in torch.split(self.drive(rows), _BATCH)
        ]
        settled = torch.cat([part.settled for part in parts]).numpy()
        lost = int((~settled).sum())
        if lost > self.settings.unsettled_limit * len(rows):
            raise NotConverged(
                f"{lost} of {len(rows)} rows have no fixed point within the tolerance "
                f"{self.settings.tolerance:g}. Look at the network with notsodeep.diagnose; "
                "unsettled_limit= sets more rows aside."
            )
        return torch.cat([part.z for part in parts]).double().numpy(), settled

    @property
    def rows(self) -> CellRows:
        """The rows that have a fixed point."""
        return self.settled[0]

    @property
    def states(self) -> list[FloatArray]:
        """Fixed points of the training, validation and test rows."""
        return self.settled[1]

    @property
    def counts(self) -> RowCounts:
        """How many rows there are, and how many were set aside."""
        return self.settled[2]

    @cached_property
    def exact(self) -> list[FloatArray]:
        """Logits of the fixed points; states without a read-out."""
        return [self.read(torch.as_tensor(z)) for z in self.states]

    def read(self, z: Tensor) -> FloatArray:
        """Return logits of states; states without a read-out."""
        return np.asarray(self.answer(z).double().numpy())

    def answer(self, z: Tensor) -> Tensor:
        """Return the same as a tensor, to be timed."""
        scores: Tensor = self.cell.logits(z) if self.cell.has_readout else z
        return scores

    def compared(self, scores: FloatArray, **options: Any) -> Fidelity:
        """Compare answers on the test rows with the DEQ's; one logit, or a state, has no class."""
        exact = self.exact[2]
        return fidelity_of(
            scores, exact, states=not self.cell.has_readout or exact.shape[1] == 1, **options
        )

    def stability(self) -> Stability:
        """Iterate f from other starts, and see where rows that settle end."""
        if self.margin is not None and self.margin.unique:
            return Stability(0, True, 0.0, 0.0)
        drive, own = self.drive(self.rows.test[:_PROBE_ROWS]), self.states[2][:_PROBE_ROWS]
        single = drive.dtype == torch.float32
        solver = Solver(1e-5 if single else 1e-9, _PROBE_STEPS)
        same = _SAME_STATE * (100.0 if single else 1.0) * np.linalg.norm(own, axis=1)
        scale = float(np.sqrt(np.mean(own**2))) or 1.0
        noise = np.random.default_rng(self.settings.random_state).standard_normal(own.shape)
        several, other = np.zeros((2, len(own)), dtype=bool)
        for start in (2.0 * np.ones_like(own), -2.0 * np.ones_like(own), noise, 10.0 * noise):
            first = torch.as_tensor(scale * start, dtype=drive.dtype)
            z, record = solve(lambda z: self.cell.step(z, drive), first, solver)
            limit, settled = z.double().numpy(), (record.residuals <= record.tolerance).numpy()
            away = settled & (np.linalg.norm(limit - own, axis=1) > same)
            several |= away
            if self.cell.has_readout:
                classes = self.read(z).argmax(axis=1), self.exact[2][: len(own)].argmax(axis=1)
                other |= away & np.not_equal(*classes)
        return Stability(len(own), False, float(several.mean()), float(other.mean()))

    # The explicit network --------------------------------------------------------------------

    def chosen(self, candidates: Callable[[int], FloatArray], most: int) -> int:
        """Return how many layers the verdict's rule asks for on the validation rows.

        Where these rows are too few for it, the network that agrees most is taken, and of equals
        the one whose answers are closest.
        """
        if self.settings.layers is not None:
            return self.settings.layers
        exact, merits = self.exact[1], []
        for count in range(1, most + 1):
            scores = candidates(count)
            same = fidelity_of(scores, exact, states=not self.cell.has_readout).agreement
            if lower_bound(round(same * len(exact)), len(exact)) >= self.settings.agreement_limit:
                return count
            merits.append((same, -float(np.linalg.norm(scores - exact))))
        return 1 + merits.index(max(merits))

    @cached_property
    def start(self) -> Readout:
        """A linear start of f: z* by ridge regression on flattened rows."""
        train, validation = (
            part.reshape(len(part), -1).astype(np.float64) for part in self.rows[:2]
        )
        return _refitted(train, self.states[0], validation, self.states[1])

    @cached_property
    def fitted(self) -> tuple[tuple[Layer, ...], int]:
        """Layers, and how many there are, or how many steps of f."""
        rows = self.rows.validation
        first = rows.reshape(len(rows), -1) @ self.start[0].T + self.start[1]
        states = [torch.as_tensor(first, dtype=self.drive(rows).dtype)]

        def scores(count: int) -> FloatArray:
            states.append(self.cell.step(states[-1], self.drive(rows)))
            assert len(states) == count + 1  # asked for in turn
            return self.read(states[-1])

        return (), self.chosen(scores, _MAX_STEPS_OF_F)

    def weights(self) -> Arrays:
        """Return what the explicit network is made of."""
        dtype = np.float32 if self.rows.test.dtype == np.float32 else np.float64
        return {name: array.astype(dtype) for name, array in
                zip(("start", "start_bias"), self.start, strict=True)}  # fmt: skip

    # Evidence --------------------------------------------------------------------------------

    def fidelities(self, layers: Sequence[Layer], networks: Sequence[nn.Module]) -> Fidelities:
        """Judge the networks of 1, 2, … layers, as they are handed over, on held-out rows."""
        labels, test = self.rows.labels, torch.as_tensor(self.rows.test)
        scores = [network(test).double().numpy() for network in networks]
        proofs = self.proofs(layers, scores)
        judged = [
            self.compared(own, proved=proved, labels=labels)
            for own, proved in zip(scores, proofs, strict=True)
        ]
        simpler = self.simpler(len(networks))
        return Fidelities(
            tuple(judged), {n: self.compared(s, labels=labels) for n, s in simpler.items()}
        )

    def proofs(self, layers: Sequence[Layer], scores: Sequence[FloatArray]) -> list[Any]:
        """Return which rows are proved, for each network; nothing is known of f but its values."""
        return [None] * len(scores)

    def simpler(self, count: int) -> dict[str, FloatArray]:
        """Return answers of the baselines on the test rows."""
        drive = self.drive(self.rows.test)
        return {
            f"{k} step{'s' * (k > 1)} from zero": self.read(self.cut_off(drive, k))
            for k in range(1, count + 1)
        }

    def cut_off(self, drive: Tensor, steps: int) -> Tensor:
        """Return the state after some steps from zero."""
        z = torch.zeros(len(drive), self.cell.width, dtype=drive.dtype)
        for _ in range(steps):
            z = self.cell.step(z, drive)
        return z

    def products(self, layers: Sequence[Layer], networks: int) -> tuple[float, float, list[float]]:
        """Multiplications per row of a step, of all else, and of the networks; here steps of f."""
        return 1.0, 0.0, [float(count) for count in range(1, networks + 1)]

    def hybrids(self, layers: Sequence[Layer], fidelities: Sequence[Fidelity]) -> list[Any]:
        """Return the certified hybrid, and the solver with the same early exit, if there are."""
        return []

    def front(
        self, layers: Sequence[Layer], networks: Sequence[nn.Module], judged: Sequence[Fidelity]
    ) -> TimedFront:
        """Measure what all ways to an answer cost."""
        drive, rows = self.drive(self.rows.test), torch.as_tensor(self.rows.test[:_TIMED])
        step, once, explicit = self.products(layers, len(networks))
        ways: list[Way] = []

        def add(
            name: str, kind: PointKind, parameter: float, run: Any, cost: float, **of: Any
        ) -> None:
            ways.append(Way(name, kind, parameter, run, cost, **of))

        for tolerance in _TOLERANCES:
            if tolerance < tolerance_for(drive.dtype, self.settings.tolerance):
                continue
            solved = self.solve(drive, tolerance)
            add(
                f"DEQ to {tolerance:g}", "tolerance", tolerance,
                lambda t=tolerance: self.answer(self.solve(self.inject(rows), t).z),
                once + solved.steps * step,
                steps=solved.steps, agreement=self.compared(self.read(solved.z)).agreement,
            )  # fmt: skip
        for count in _TRUNCATIONS:
            judgement = self.compared(self.read(self.cut_off(drive, count)))
            add(
                f"{self.cut} after {count}", "truncated", count,
                lambda k=count: self.answer(self.cut_off(self.inject(rows), k)),
                once + count * step,
                steps=count, agreement=judgement.agreement,
            )  # fmt: skip
        records: list[HybridRecord | None] = [None, None]
        hybrids = self.hybrids(layers, judged)
        for k, hybrid in enumerate(hybrids):
            scores, record = hybrid(torch.as_tensor(self.rows.test)), hybrid.last_record
            records[k] = record
            reach = 1.0 - np.array([0.0, *record.certified_after])[:-1]
            checked = sum(
                share * (layer.weight.size + 2 * step)
                for share, layer in zip(reach, layers, strict=False)
            )
            add(
                ("certified hybrid", "solver with early exit")[k], "hybrid",
                len(record.certified_after), partial(hybrid, rows),
                once + checked + 3 * record.mean_steps * step,
                steps=record.mean_steps, agreement=self.compared(scores.numpy()).agreement,
                certified=1.0 - record.uncertified / max(record.rows, 1),
            )  # fmt: skip
        for count, (network, fidelity) in enumerate(zip(networks, judged, strict=True), 1):
            # All ways are timed in the precision in which the DEQ is solved.
            same = copy.deepcopy(network).to(drive.dtype)
            add(
                f"{count} {self.layer}{'s' * (count > 1)}", "explicit", count, partial(same, rows),
                explicit[count - 1], agreement=fidelity.agreement, certified=fidelity.certified,
            )  # fmt: skip
        front = timed_front(
            ways,
            solver=f"{self.deq} by {self.method.name.replace('_', ' ')}",
            batch=len(rows),
            threads=torch.get_num_threads(),
            library="torch",
        )
        return TimedFront(front, *records)


class _AffineWork(_Work):
    """What is computed for φ(Wz + Ux + b): layers by regression, proofs by the margin."""

    layer, cut, deq = "explicit layer", "solver cut off", "the DEQ"

    def __init__(self, cell: AffineDEQ, settings: CellSettings, rows: CellRows) -> None:
        super().__init__(copy.deepcopy(cell).double(), settings, rows)
        self.arrays = cell.arrays()
        stem = self.arrays["U"] / self.arrays["scale"]  # shift and scale folded into the weights
        self.stem = torch.tensor(stem).mT.contiguous()
        self.stem_bias = torch.tensor(self.arrays["b"] - stem @ self.arrays["shift"])
        self.splitting: Splitting | None = None  # the method's, unless another is faster

    @staticmethod
    def taken(cell: Any, X: Any, name: str) -> NDArray[Any]:
        cell.require_readout()
        values = X.detach().cpu().double().numpy() if hasattr(X, "detach") else X
        rows: NDArray[Any] = checks.samples(values, name, "compile")
        if rows.shape[1] != cell.inputs:
            got = f"shape {rows.shape}"
            raise InvalidInput(f"{name} must have {cell.inputs} features, got {got}.")
        return rows

    def drive(self, rows: NDArray[Any]) -> Tensor:
        drive: Tensor = self.cell.drive(rows)
        return drive

    def inject(self, x: Tensor) -> Tensor:
        return torch.addmm(self.stem_bias, x, self.stem)

    @cached_property
    def margin(self) -> Margin:
        return margin_of(self.cell)

    @cached_property
    def method(self) -> Method:
        share = 1.0 - self.settings.unsettled_limit
        lipschitz = self.margin.lipschitz
        drive = self.drive(self.given.train)
        method: Method = self.cell.choose_method(drive, lipschitz=lipschitz, settled_share=share)
        return method

    @cached_property
    def maps(self) -> Splitting:
        """The splitting of the method."""
        maps: Splitting = self.cell.splitting(self.method)
        return maps

    def solve(self, drive: Tensor, tolerance: float) -> Any:
        return solve_rows(self.maps, drive, tolerance)

    @cached_property
    def certifier(self) -> Certifier | None:
        if self.margin.unique:
            with contextlib.suppress(InvalidInput):  # a margin that rounding could have made
                return Certifier(self.cell, self.margin)
        return None

    @cached_property
    def problem(self) -> LayerProblem:
        train, validation = self.rows[:2]
        scaled = (validation - self.arrays["shift"]) / self.arrays["scale"]
        return LayerProblem(
            self.cell,
            self.margin,
            self.drive(train).numpy(),
            self.states[0],
            self.drive(validation).numpy(),
            self.states[1],
            np.linalg.norm(scaled, axis=1),
            self.certifier,
        )

    @cached_property
    def fitted(self) -> tuple[tuple[Layer, ...], int]:
        chains: dict[int, tuple[Layer, ...]] = {}

        def scores(count: int) -> FloatArray:
            chains[count] = fit_layers(self.problem, count)
            return self.read(self.states_of(chains[count], self.problem.drive_val)[-1])

        count = self.chosen(scores, _MAX_LAYERS)
        return chains.get(count) or fit_layers(self.problem, count), count

    def states_of(self, layers: Sequence[Layer], drive: FloatArray) -> list[Tensor]:
        resolvents = [self.problem.resolvent(layer.step) for layer in layers]
        return preimages_of(layers, resolvents, torch.as_tensor(drive))[1]

    def weights(self) -> Arrays:
        """Keep the DEQ's read-out after each layer, or refit it where that agrees more."""
        layers, _ = self.fitted
        own, readouts = (self.arrays["C"], self.arrays["c"]), []
        labels = self.exact[1].argmax(axis=1)
        parts = (self.states_of(layers, h) for h in (self.problem.drive, self.problem.drive_val))
        for z, z_val in ((a.numpy(), b.numpy()) for a, b in zip(*parts, strict=True)):
            other = _refitted(z, self.exact[0], z_val, self.exact[1])
            right = [np.sum((z_val @ C.T + c).argmax(axis=1) == labels) for C, c in (own, other)]
            # Ties keep the DEQ's own read-out, for which the certificate proves classes.
            readouts.append(other if right[1] > right[0] else own)
        return layer_arrays(layers, readouts)

    def proofs(self, layers: Sequence[Layer], scores: Sequence[FloatArray]) -> list[Any]:
        if self.certifier is None:
            return [None] * len(scores)
        resolvents = [self.problem.resolvent(layer.step) for layer in layers]
        preimages, _ = preimages_of(layers, resolvents, self.drive(self.rows.test))
        rows = self.certifier.rows(self.rows.test)
        proofs = []
        for s, resolvent, own in zip(preimages, resolvents, scores, strict=True):
            certified = self.certifier.classes(resolvent.preimage(s), *rows)
            # Proved is what the network says, not what the DEQ's own read-out would say.
            same = certified.classes.numpy() == own.argmax(axis=1)
            proofs.append(certified.proved.numpy() & same)
        return proofs

    def simpler(self, count: int) -> dict[str, FloatArray]:
        features = [self.cell.activation(self.drive(part).numpy()) for part in self.rows[:3]]
        C, c = _refitted(features[0], self.exact[0], features[1], self.exact[1])
        cut = self.read(self.cut_off(self.drive(self.rows.test), count))
        return {DROPPED: features[2] @ C.T + c, f"solver cut off after {count} steps": cut}

    def cut_off(self, drive: Tensor, steps: int) -> Tensor:
        s, following = self.maps.start(drive), self.maps.stepper()
        for _ in range(steps):
            s = following(s, self.maps.turn(s, drive, self.maps.matrix))
        return self.maps.state(s)

    def products(self, layers: Sequence[Layer], networks: int) -> tuple[float, float, list[float]]:
        once = self.cell.width * (self.cell.inputs + self.exact[2].shape[1])
        own = np.cumsum([layer.weight.size for layer in layers])
        return self.cell.width**2, once, [once + float(size) for size in own]

    def hybrids(self, layers: Sequence[Layer], fidelities: Sequence[Fidelity]) -> list[Any]:
        if self.certifier is None:
            return []
        first = first_check([fidelity.certified for fidelity in fidelities])
        options: Any = {"tolerance": self.settings.tolerance, "first_check": first}
        return [
            HybridEquilibrium(self.cell, self.margin, chain, self.method, **options)
            for chain in (layers, ())
        ]

    def front(
        self, layers: Sequence[Layer], networks: Sequence[nn.Module], judged: Sequence[Fidelity]
    ) -> TimedFront:
        """Measure all ways, the DEQ by the solver that takes the least time.

        Its choice counts steps, which is reproducible; but a step of Anderson's method can cost
        several of another's, which is no merit of the explicit network.
        """
        least = {t.name: t for t in sorted(self.method.trials, key=lambda t: -(t.steps or 0))}
        drive = self.drive(self.rows.test[:_TIMED])
        methods = [Method(t.name, t.step, (t,)) for t in least.values() if t.steps] or [self.method]
        runs = [partial(solve_rows, self.cell.splitting(m), drive, 1e-3) for m in methods]
        for run in runs:
            run()
        times = np.median([[seconds(run) for run in runs] for _ in range(3)], axis=0)
        self.method = methods[int(times.argmin())]
        self.maps = self.cell.splitting(self.method)
        return super().front(layers, networks, judged)


def _refitted(
    features: FloatArray, targets: FloatArray, validation: FloatArray, wanted: FloatArray
) -> Readout:
    """Fit targets by ridge regression; the ridge is chosen on validation rows."""
    mean, level = features.mean(axis=0), targets.mean(axis=0)
    centred = features - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / len(features))
    projected = vectors.T @ (centred.T @ (targets - level)) / len(features)
    scale = max(float(values.mean()), 1e-300)
    fits: list[tuple[float, int, FloatArray, FloatArray]] = []
    for ridge in _RIDGES:
        weights = (vectors @ (projected / (np.maximum(values, 0.0) + ridge * scale)[:, None])).T
        bias = level - weights @ mean
        error = float(np.linalg.norm(validation @ weights.T + bias - wanted))
        fits.append((error, len(fits), weights, bias))
    return min(fits)[2:]

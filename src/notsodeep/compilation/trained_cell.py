"""Compile a network with given weights: solve, fit, certify, compare, time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.compilation.pieces import MemoryPieces, Pieces
from notsodeep.compilation.trained_record import (
    CellSettings,
    TrainedCompilation,
    cell_arrays,
    layer_arrays,
    network_digest,
    read_layers,
    trained_run,
)
from notsodeep.data import draw_rows
from notsodeep.files import sha256_of_array
from notsodeep.trained.cell import AffineCell, EquilibriumCell, Readout
from notsodeep.trained.certificate import Certifier
from notsodeep.trained.explicit_layers import (
    Kinds,
    Layer,
    LayerProblem,
    fit_layers,
    moment_layers,
    preimages_of,
)
from notsodeep.trained.fidelity import (
    Fidelity,
    baseline_logits,
    fidelity_of,
    lower_bound,
    refitted,
)
from notsodeep.trained.front import BATCH, fastest_solver, measure_front
from notsodeep.trained.hybrid import HybridEquilibrium, first_check
from notsodeep.trained.margin import Margin, margin_of
from notsodeep.trained.network import ExplicitLayers
from notsodeep.trained.resolvent import Resolvent
from notsodeep.trained.splittings import (
    MethodChoice,
    Splitting,
    choose_method,
    require_solved,
    solve_rows,
)

Say = Callable[[str], Any]
Parts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Rows to fit, rows set apart to choose by, rows to judge on."""

LEAST_ROWS = 20
_MOST_LAYERS = 4
_OWNER = "compile"
_DISTIL_EPOCHS = 30
_BATCH = 8192  # rows that are solved at once


def compile_cell(
    cell: EquilibriumCell,
    X: Any,
    y: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    *,
    layers: int | None = None,
    kinds: Kinds = "auto",
    fit: str = "least_squares",
    distil: bool = False,
    width: int | None = None,
    tolerance: float = 1e-10,
    agreement_limit: float = 0.99,
    random_state: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    say: Say = lambda message: None,
) -> TrainedCompilation:
    """Find explicit layers that decide as a given network does; see `notsodeep.compile`."""
    if not isinstance(cell, AffineCell):
        remedy = (
            "Layers in closed form are made from W, U and b: give them with "
            "EquilibriumCell.from_weights, or from_module if the module consists of known parts."
        )
        requirement = "be an affine cell, φ(Wz + Ux + b)"
        raise checks.invalid("model", _OWNER, requirement, repr(cell), remedy)
    cell.require_readout(_OWNER)
    _check_settings(layers, kinds, fit, width, tolerance, agreement_limit)
    seed = checks.integer_at_least(random_state, 0, "random_state", _OWNER)
    parts, labels = divided_rows(cell, X, y, X_test, y_test, seed)
    settings = CellSettings(
        layers, kinds, fit, distil, width, tolerance, agreement_limit, seed, *map(len, parts)
    )
    job = _Job(cell, settings, parts, labels, say)
    digests = {"network": network_digest(cell), **job.digests}
    if out is None:
        pieces = MemoryPieces()
        job.gather(pieces)
        return TrainedCompilation.of_pieces(settings, cell, pieces, digests)
    run = trained_run(out, settings, cell, digests)
    with run.opened(force=force):
        run.arrays("cell", lambda: cell_arrays(cell))
        job.gather(run)
        compiled = TrainedCompilation.of_pieces(settings, cell, run, digests, run.path)
        compiled.finish(run)
        return compiled


class _Job:
    """What a compilation computes, piece by piece; whatever pieces share, when first asked for.

    A piece that is stored is not computed again, and so neither is what only that piece needs.
    """

    def __init__(
        self,
        cell: AffineCell,
        settings: CellSettings,
        parts: Parts,
        labels: NDArray[np.int64] | None,
        say: Say,
    ) -> None:
        self.cell, self.settings, self.labels, self.say = cell, settings, labels, say
        self.fitted, self.chosen, self.test = self.parts = parts

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the rows, and of the labels of those that are judged on."""
        found = dict(zip(("X", "rows set apart", "X_test"), self.parts, strict=True))
        digests = {name: sha256_of_array(rows) for name, rows in found.items()}
        return digests if self.labels is None else digests | {"y": sha256_of_array(self.labels)}

    def gather(self, pieces: Pieces) -> None:
        """Compute what is missing of the pieces."""

        def piece(name: str, words: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            if not pieces.has(name):
                self.say(words)
            return pieces.piece(name, compute)

        solver = piece("solver", "margin and solver", self._solver)
        self.margin = Margin.from_dict(solver["margin"])
        self.choice = MethodChoice.from_dict(solver["choice"])
        heads = piece("layers", "explicit layers", lambda: self._layers(pieces))
        self.chain, self.readouts = read_layers(heads["layers"], pieces.stored_arrays("layers"))
        piece("fidelity", "fidelity", self._fidelity)
        self.fidelities = [Fidelity.from_dict(f) for f in pieces.read("fidelity")["fidelities"]]
        piece("baselines", "baselines", self._baselines)
        piece("front", "the front", self._front)

    def _solver(self) -> dict[str, Any]:
        margin = margin_of(self.cell)
        choice = choose_method(self.cell, torch.as_tensor(self.cell.drive(self.fitted)), margin)
        return {"margin": margin.to_dict(), "choice": choice.to_dict()}

    @cached_property
    def splitting(self) -> Splitting:
        return Splitting(self.cell, self.choice.method, self.choice.step, self.margin.beta)

    @cached_property
    def certifier(self) -> Certifier | None:
        return Certifier(self.cell, self.margin) if self.margin.unique else None

    @cached_property
    def drives(self) -> list[FloatArray]:
        return [self.cell.drive(part) for part in self.parts]

    @cached_property
    def states(self) -> list[FloatArray]:
        """Fixed points of all rows, solved in batches: memory is that of the answers."""
        self.say(f"fixed points of {sum(map(len, self.parts))} rows by {self.choice.method}")
        found = []
        for drive in self.drives:
            states = np.empty_like(drive)
            for begin in range(0, len(drive), _BATCH):
                rows = slice(begin, begin + _BATCH)
                solved = solve_rows(
                    self.splitting, torch.as_tensor(drive[rows]), self.settings.tolerance
                )
                require_solved(solved, self.settings.tolerance)
                states[rows] = solved.z.numpy()
            found.append(states)
        return found

    @cached_property
    def exact(self) -> list[FloatArray]:
        return [self.cell.logits(z) for z in self.states]

    @cached_property
    def problem(self) -> LayerProblem:
        cell = self.cell
        return LayerProblem(
            cell,
            self.margin,
            self.drives[0],
            self.states[0],
            self.drives[1],
            self.states[1],
            np.linalg.norm((self.chosen - cell.shift) / cell.scale, axis=1),
            self.certifier,
        )

    def _layers(self, pieces: Pieces) -> dict[str, Any]:
        asked = self.settings
        chain = _fitted_chain(self.problem, self.exact[1], asked)
        readouts, refits = _readouts(self.problem, chain, self.exact)
        distilled = "not asked for"
        if asked.distil:
            self.say("refinement by gradient descent")
            chain, readouts, refits, distilled = _distilled(
                self.problem, chain, readouts, refits, self.parts[:2], self.exact, asked.seed
            )
        pieces.arrays("layers", lambda: layer_arrays(chain, readouts))
        heads = [layer.to_dict(arrays=False) for layer in chain]
        return {"layers": heads, "refitted": list(refits), "distilled": distilled}

    def _fidelity(self) -> dict[str, Any]:
        """Judge the networks of 1, 2, … layers, as they are handed over, on held-out rows."""
        cell, certifier, found = self.cell, self.certifier, []
        resolvents, drive = self._resolvents(), torch.as_tensor(self.drives[2])
        rows = None if certifier is None else certifier.rows(self.test)
        preimages, _ = preimages_of(self.chain, resolvents, drive)
        for k, s in enumerate(preimages):
            network = ExplicitLayers(cell, self.chain[: k + 1], self.margin.beta, self.readouts[k])
            with torch.no_grad():
                scores = network(torch.as_tensor(self.test)).double().numpy()
            proved = None
            if certifier is not None and rows is not None and s.shape[1] == cell.width:
                certified = certifier.classes(resolvents[k].preimage(s), *rows)
                # Proved is what the network says, not what the DEQ's own read-out would say.
                same = certified.classes.numpy() == scores.argmax(axis=1)
                proved = certified.proved.numpy() & same
            found.append(fidelity_of(scores, self.exact[2], proved=proved, labels=self.labels))
        return {"fidelities": [fidelity.to_dict() for fidelity in found]}

    def _resolvents(self) -> list[Resolvent]:
        return [Resolvent(self.cell.activation, k.step, self.margin.beta) for k in self.chain]

    def _baselines(self) -> dict[str, Any]:
        scores = baseline_logits(
            self.cell,
            self.splitting,
            len(self.chain),
            self.parts,
            (self.exact[0], self.exact[1]),
            self.settings.seed,
        )
        found = {
            name: fidelity_of(own, self.exact[2], labels=self.labels).to_dict()
            for name, own in scores.items()
        }
        return {"baselines": found}

    def _front(self) -> dict[str, Any]:
        hybrids: dict[str, HybridEquilibrium] = {}
        records: dict[str, Any] = {"hybrid": None, "cold": None}
        if self.certifier is not None and len(self.chain[-1].bias) == self.cell.width:
            options: Any = {
                "tolerance": self.settings.tolerance,
                "first_check": first_check(self.fidelities),
            }
            for key, name, part in (
                ("hybrid", "certified hybrid", self.chain),
                ("cold", "solver with early exit", ()),
            ):
                module = HybridEquilibrium(self.cell, self.margin, part, self.choice, **options)
                module(torch.as_tensor(self.test))
                assert module.last_record is not None
                hybrids[name], records[key] = module, module.last_record.to_dict()
        timed = torch.as_tensor(self.cell.drive(self.test[:BATCH]))
        front = measure_front(
            self.cell,
            fastest_solver(self.cell, self.choice, self.margin.beta, timed),
            self.chain,
            self.readouts,
            self.fidelities,
            hybrids,
            self.test,
            self.exact[2],
        )
        return {"front": front.to_dict(), **records}


def divided_rows(
    cell: EquilibriumCell, X: Any, y: Any, X_test: Any, y_test: Any, seed: int
) -> tuple[Parts, NDArray[np.int64] | None]:
    """Return rows to fit, to choose by and to judge on, and labels of the last.

    Which rows are which depends on their values and the seed, not on their order.
    """
    rows, labels = _rows(cell, X, y, "X", "y")
    generator = np.random.default_rng(seed)
    if X_test is None:
        if y_test is not None:
            raise checks.invalid("y_test", _OWNER, "come with X_test", "labels alone")
        _require_rows(len(rows), 3 * LEAST_ROWS, "X")
        order = draw_rows(rows.reshape(len(rows), -1), len(rows), generator)
        held = order[: max(LEAST_ROWS, len(rows) // 4)]
        test, labels = rows[held], None if labels is None else labels[held]
        rows = rows[order[len(held) :]]
    else:
        _require_rows(len(rows), 2 * LEAST_ROWS, "X")
        if y is not None and y_test is None:
            remedy = "Accuracies are those of the held-out rows: give both, or neither."
            raise checks.invalid("y_test", _OWNER, "come with y and X_test", "none", remedy)
        test, labels = _rows(cell, X_test, y_test, "X_test", "y_test")
        _require_rows(len(test), LEAST_ROWS, "X_test")
    order = draw_rows(rows.reshape(len(rows), -1), len(rows), generator)
    apart = max(LEAST_ROWS, len(rows) // 5)
    return (rows[order[apart:]], rows[order[:apart]], test), labels


def _fitted_chain(
    problem: LayerProblem, exact: FloatArray, asked: CellSettings
) -> tuple[Layer, ...]:
    """Fit so many layers, or as many as the rows set apart call for."""

    def chain_of(count: int) -> tuple[Layer, ...]:
        if asked.fit == "moments":
            return moment_layers(problem, count)
        return fit_layers(problem, count, kinds=asked.kinds, width=asked.width, rng=asked.seed)

    if asked.layers is not None:
        return chain_of(asked.layers)
    labels = exact.argmax(axis=1)
    best: tuple[tuple[float, float], tuple[Layer, ...]] | None = None
    for count in range(1, _MOST_LAYERS + 1):
        chain = chain_of(count)
        scores = problem.cell.logits(_states(problem, chain, problem.drive_apart)[-1])
        same = scores.argmax(axis=1) == labels
        # The verdict's own rule.  Where the rows set apart are too few for it, the network that
        # agrees most is taken, and of equals the one whose logits are closest.
        if lower_bound(int(same.sum()), len(same)) >= asked.agreement_limit:
            return chain
        merit = (float(same.mean()), -float(np.linalg.norm(scores - exact)))
        if best is None or merit > best[0]:
            best = merit, chain
    assert best is not None
    return best[1]


def _states(problem: LayerProblem, chain: Sequence[Layer], drive: FloatArray) -> list[FloatArray]:
    """Return z_k of all layers."""
    resolvents = [problem.resolvent(layer.step) for layer in chain]
    return [z.numpy() for z in preimages_of(chain, resolvents, torch.as_tensor(drive))[1]]


def _readouts(
    problem: LayerProblem, chain: Sequence[Layer], exact: Sequence[FloatArray]
) -> tuple[tuple[Readout, ...], tuple[bool, ...]]:
    """Keep the DEQ's read-out after each layer, or refit it where that agrees more."""
    own = problem.cell.readout
    assert own is not None
    labels = exact[1].argmax(axis=1)
    found: list[Readout] = []
    refits: list[bool] = []
    fitted = _states(problem, chain, problem.drive)
    apart = _states(problem, chain, problem.drive_apart)
    for z, z_apart in zip(fitted, apart, strict=True):
        other = refitted(z, exact[0], z_apart, exact[1])

        def agreement(readout: Readout, z: FloatArray = z_apart) -> float:
            return float(np.mean((z @ readout[0].T + readout[1]).argmax(axis=1) == labels))

        same_width = z.shape[1] == problem.cell.width
        # Ties keep the DEQ's own read-out, for which the certificate proves classes.
        refit = not same_width or agreement(other) > agreement(own)
        found.append(other if refit else own)
        refits.append(refit)
    return tuple(found), tuple(refits)


def _distilled(
    problem: LayerProblem,
    chain: tuple[Layer, ...],
    readouts: tuple[Readout, ...],
    refits: tuple[bool, ...],
    rows: Sequence[FloatArray],
    exact: Sequence[FloatArray],
    seed: int,
) -> tuple[tuple[Layer, ...], tuple[Readout, ...], tuple[bool, ...], str]:
    """Refine all weights by gradient descent on the DEQ's logits; keep it only if it wins.

    The network of all layers is trained, with early stop on the rows set apart, and kept if it
    agrees with the DEQ on more of them.  Shorter chains then get new read-outs.
    """
    torch.manual_seed(seed)
    module = ExplicitLayers(problem.cell, chain, problem.margin.beta, readouts[-1], torch.float64)
    for fixed in (module.stem, module.stem_bias):
        fixed.requires_grad_(False)
    X, apart = (torch.as_tensor(part) for part in rows)
    targets, targets_apart = torch.as_tensor(exact[0]), torch.as_tensor(exact[1])
    labels = targets_apart.argmax(dim=1)

    @torch.no_grad()
    def judged() -> tuple[float, float]:
        scores = module(apart)
        agreement = float((scores.argmax(dim=1) == labels).double().mean())
        return agreement, -float(nn.functional.mse_loss(scores, targets_apart))

    before = best = judged()
    kept = copy.deepcopy(module.state_dict())
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _DISTIL_EPOCHS)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_DISTIL_EPOCHS):
        order = torch.randperm(len(X), generator=generator)
        for begin in range(0, len(order), 128):
            batch = order[begin : begin + 128]
            loss = nn.functional.mse_loss(module(X[batch]), targets[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
        now = judged()
        if now > best:
            best, kept = now, copy.deepcopy(module.state_dict())
    words = f"agreement on rows set apart {before[0]:.2%} → {best[0]:.2%}"
    if best[0] <= before[0]:
        return chain, readouts, refits, f"{words}, not kept"
    module.load_state_dict(kept)
    refined = module.layers(chain)
    last = tuple(p.detach().numpy().copy() for p in (module.readout, module.readout_bias))
    others, flags = _readouts(problem, refined, exact)
    return (
        refined,
        (*others[:-1], (last[0], last[1])),
        (*flags[:-1], True),
        f"{words}, kept",
    )


def _check_settings(
    layers: int | None, kinds: str, fit: str, width: int | None, tolerance: float, limit: float
) -> None:
    if layers is not None:
        checks.positive_integer(layers, "layers", _OWNER)
    if width is not None:
        checks.positive_integer(width, "width", _OWNER)
    checks.known_name(kinds, get_args(Kinds), "kinds")
    checks.known_name(fit, ("least_squares", "moments"), "fit")
    checks.positive_number(tolerance, "tolerance", _OWNER)
    if not 0.0 < limit < 1.0:
        raise checks.invalid("agreement_limit", _OWNER, "lie between 0 and 1", limit)


def _rows(
    cell: EquilibriumCell, X: Any, y: Any, name: str, label_name: str
) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """Check rows, and labels as indices of logits."""
    if isinstance(cell, AffineCell):
        values = X.detach().cpu().double().numpy() if hasattr(X, "detach") else X
        rows: NDArray[Any] = checks.samples(values, name, _OWNER)
        if rows.shape[1] != cell.inputs:
            requirement = f"have {cell.inputs} features, as the network takes"
            raise checks.invalid(name, _OWNER, requirement, f"shape {rows.shape}")
    else:
        rows = cell.drive(X)
    if y is None:
        return rows, None
    labels = checks.plain_array(y, label_name, _OWNER)
    if labels.shape != (len(rows),) or labels.dtype.kind not in "iub":
        requirement = f"be a vector of {len(rows)} whole numbers, the indices of logits"
        raise checks.invalid(label_name, _OWNER, requirement, f"{labels.dtype} {labels.shape}")
    classes = cell.logits(np.zeros((1, cell.width))).shape[1]
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        requirement = f"be the indices of the network's {classes} logits, 0 to {classes - 1}"
        got = f"{labels.min()} to {labels.max()}"
        raise checks.invalid(label_name, _OWNER, requirement, got)
    return rows, labels.astype(np.int64)


def _require_rows(count: int, least: int, name: str) -> None:
    if count < least:
        raise checks.invalid(name, _OWNER, f"have at least {least} rows", count, "Pass more.")

"""Compile a network with given weights: solve, fit, certify, compare, time."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from notsodeep import checks
from notsodeep.compilation.trained_record import CellEvidence, CellSettings, TrainedCompilation
from notsodeep.data import draw_rows
from notsodeep.trained.baselines import baseline_logits, refitted
from notsodeep.trained.cell import AffineCell, EquilibriumCell, Readout
from notsodeep.trained.certificate import Certifier
from notsodeep.trained.explicit_layers import Kinds, Layer, LayerProblem, fit_layers, moment_layers
from notsodeep.trained.fidelity import Fidelity, fidelity_of
from notsodeep.trained.front import measure_front
from notsodeep.trained.hybrid import HybridEquilibrium, HybridRecord
from notsodeep.trained.margin import margin_of
from notsodeep.trained.network import ExplicitLayers
from notsodeep.trained.resolvent import Resolvent
from notsodeep.trained.splittings import Splitting, choose_method, require_solved, solve_rows

FloatArray = NDArray[np.float64]
Say = Callable[[str], Any]

LEAST_ROWS = 20
_MOST_LAYERS = 4
_ENOUGH = 0.999  # agreement on rows set apart, beyond which no layer is added
_OWNER = "compile"
_DISTIL_EPOCHS = 30


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
        raise checks.refusal("model", _OWNER, requirement, repr(cell), remedy)
    cell.require_readout(_OWNER)
    _check_settings(layers, kinds, fit, width, tolerance, agreement_limit)
    rows, labels = _rows(cell, X, y, "X", "y")
    generator = np.random.default_rng(
        checks.integer_at_least(random_state, 0, "random_state", _OWNER)
    )
    if X_test is None:
        order = draw_rows(rows, len(rows), generator)
        held = max(LEAST_ROWS, len(rows) // 4)
        _require_rows(len(rows), 3 * LEAST_ROWS, "X")
        test, labels_test = rows[order[:held]], None if labels is None else labels[order[:held]]
        rows = rows[order[held:]]
    else:
        _require_rows(len(rows), 2 * LEAST_ROWS, "X")
        test, labels_test = _rows(cell, X_test, y_test, "X_test", "y_test")
        _require_rows(len(test), LEAST_ROWS, "X_test")
    apart = max(LEAST_ROWS, len(rows) // 5)
    order = draw_rows(rows, len(rows), generator)
    chosen, fitted = rows[order[:apart]], rows[order[apart:]]

    say("margin and solver")
    margin = margin_of(cell)
    drives = [torch.as_tensor(cell.drive(part)) for part in (fitted, chosen, test)]
    choice = choose_method(cell, drives[0], margin)
    splitting = Splitting(cell, choice.method, choice.step, margin.beta)
    say(f"fixed points of {len(fitted) + apart + len(test)} rows by {choice.method}")
    states = []
    for drive in drives:
        solved = solve_rows(splitting, drive, tolerance)
        require_solved(solved, tolerance)
        states.append(solved.z.numpy())
    exact = [cell.logits(z) for z in states]
    certifier = Certifier(cell, margin) if margin.unique else None

    problem = LayerProblem(
        cell,
        margin,
        drives[0].numpy(),
        states[0],
        drives[1].numpy(),
        states[1],
        np.linalg.norm((chosen - cell.shift) / cell.scale, axis=1),
        certifier,
    )
    say("explicit layers")
    chain = _fitted_chain(problem, exact[1], layers, kinds, fit, width, random_state)
    readouts, refits = _readouts(problem, chain, exact)
    distilled = "not asked for"
    if distil:
        say("refinement by gradient descent")
        chain, readouts, refits, distilled = _distilled(
            problem, chain, readouts, refits, (fitted, chosen), exact, random_state
        )
    say("fidelity and baselines")
    fidelities = _fidelities(problem, chain, readouts, test, exact[2], labels_test)
    baselines = {
        name: fidelity_of(scores, exact[2], labels=labels_test)
        for name, scores in baseline_logits(
            cell, splitting, len(chain), (fitted, chosen, test), (exact[0], exact[1]), random_state
        ).items()
    }
    say("the front")
    hybrids: dict[str, HybridEquilibrium] = {}
    records: list[HybridRecord | None] = [None, None]
    if certifier is not None and len(chain[-1].bias) == cell.width:
        first = next(
            (k for k, f in enumerate(fidelities, 1) if (f.certified or 0) > 0.05), len(chain)
        )
        for index, (name, part) in enumerate(
            (("certified hybrid", chain), ("solver with early exit", ()))
        ):
            module = HybridEquilibrium(
                cell, margin, part, choice, tolerance=tolerance, first_check=first
            )
            module(torch.as_tensor(test))
            hybrids[name], records[index] = module, module.last_record
    front = measure_front(cell, splitting, chain, readouts, fidelities, hybrids, test, exact[2])
    settings = CellSettings(
        layers, kinds, fit, distil, width, tolerance, agreement_limit, random_state,
        len(fitted), len(chosen), len(test),
    )  # fmt: skip
    evidence = CellEvidence(
        margin, choice, tuple(fidelities), refits, baselines, front, records[0], records[1],
        distilled,
    )  # fmt: skip
    compiled = TrainedCompilation(settings, cell, chain, readouts, evidence)
    if out is not None:
        return dataclasses.replace(compiled, directory=compiled.save(out, force=force))
    return compiled


def _fitted_chain(
    problem: LayerProblem,
    exact: FloatArray,
    layers: int | None,
    kinds: Kinds,
    fit: str,
    width: int | None,
    seed: int,
) -> tuple[Layer, ...]:
    """Fit so many layers, or as many as the rows set apart call for."""

    def chain_of(count: int) -> tuple[Layer, ...]:
        if fit == "moments":
            return moment_layers(problem, count)
        return fit_layers(problem, count, kinds=kinds, width=width, rng=seed)

    if layers is not None:
        return chain_of(layers)
    labels = exact.argmax(axis=1)
    for count in range(1, _MOST_LAYERS + 1):
        chain = chain_of(count)
        z = _states(problem, chain, problem.drive_apart)[-1]
        if np.mean(problem.cell.logits(z).argmax(axis=1) == labels) >= _ENOUGH:
            break
    return chain


def _states(problem: LayerProblem, chain: Sequence[Layer], drive: FloatArray) -> list[FloatArray]:
    """Return z_k of all layers."""
    return [
        problem.resolvent(layer.step)(s).numpy()
        for layer, s in zip(chain, _preimages(problem, chain, drive), strict=True)
    ]


def _preimages(
    problem: LayerProblem, chain: Sequence[Layer], drive: FloatArray
) -> list[torch.Tensor]:
    """Return s_k of all layers."""
    inputs, found = torch.as_tensor(drive), []
    m = problem.cell.width
    for layer in chain:
        s = inputs @ torch.as_tensor(layer.weight).mT + torch.as_tensor(layer.bias)
        found.append(s)
        z = problem.resolvent(layer.step)(s)
        inputs = torch.cat([inputs[:, :m], z, inputs[:, m:]], dim=1)
    return found


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
        refit = not same_width or agreement(other) > agreement(own)
        found.append(other if refit else own)
        refits.append(refit)
    return tuple(found), tuple(refits)


def _fidelities(
    problem: LayerProblem,
    chain: Sequence[Layer],
    readouts: Sequence[Readout],
    test: FloatArray,
    exact: FloatArray,
    labels: NDArray[np.int64] | None,
) -> list[Fidelity]:
    """Judge the networks of 1, 2, … layers on held-out rows."""
    certifier, cell = problem.certifier, problem.cell
    drive = cell.drive(test)
    found = []
    for layer, s, readout in zip(chain, _preimages(problem, chain, drive), readouts, strict=True):
        resolvent = Resolvent(cell.activation, layer.step, problem.margin.beta)
        scores = resolvent(s).numpy() @ readout[0].T + readout[1]
        proved = None
        if certifier is not None and s.shape[1] == cell.width:
            certified = certifier.classes(resolvent.preimage(s), *certifier.rows(test))
            # Proved is what the network says, not what the DEQ's own read-out would say.
            same = certified.classes.numpy() == scores.argmax(axis=1)
            proved = certified.proved.numpy() & same
        found.append(fidelity_of(scores, exact, proved=proved, labels=labels))
    return found


def _distilled(
    problem: LayerProblem,
    chain: tuple[Layer, ...],
    readouts: tuple[Readout, ...],
    refits: tuple[bool, ...],
    rows: tuple[FloatArray, FloatArray],
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
        raise checks.refusal("agreement_limit", _OWNER, "lie between 0 and 1", limit)


def _rows(
    cell: AffineCell, X: Any, y: Any, name: str, label_name: str
) -> tuple[FloatArray, NDArray[np.int64] | None]:
    values = X.detach().cpu().double().numpy() if hasattr(X, "detach") else X
    rows = checks.samples(values, name, _OWNER)
    if rows.shape[1] != cell.inputs:
        requirement = f"have {cell.inputs} features, as the network takes"
        raise checks.refusal(name, _OWNER, requirement, f"shape {rows.shape}")
    if y is None:
        return rows, None
    labels = checks.plain_array(y, label_name, _OWNER)
    if labels.shape != (len(rows),) or labels.dtype.kind not in "iub":
        requirement = f"be a vector of {len(rows)} whole numbers, the indices of logits"
        raise checks.refusal(label_name, _OWNER, requirement, f"{labels.dtype} {labels.shape}")
    return rows, labels.astype(np.int64)


def _require_rows(count: int, least: int, name: str) -> None:
    if count < least:
        raise checks.refusal(name, _OWNER, f"have at least {least} rows", count, "Pass more.")

"""Compile any f(z, x): steps of f from a fitted start, judged by statistics alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.compilation.trained_cell import divided_rows
from notsodeep.compilation.trained_record import CellCompilation, FidelityEvidence
from notsodeep.compilation.verdict import Word
from notsodeep.errors import InvalidInput, NotSerialisable
from notsodeep.trained.black_box import UnrolledFunction, linear_start, solve_function
from notsodeep.trained.cell import FunctionCell
from notsodeep.trained.fidelity import fidelity_of
from notsodeep.trained.front import measure_function_front

_DEFAULT_LAYERS = 3
_OWNER = "compile"


@dataclass(frozen=True, eq=False, repr=False)
class BlackBoxCompilation(CellCompilation):
    """A few steps of f from a linear start, in place of the fixed point.

    Attributes
    ----------
    cell : FunctionCell
    weight, bias : ndarray
        Of the start.
    evidence : FidelityEvidence
        After 1, 2, … steps of f; baselines are as many steps from zero.
    solver : str
        That found the fixed points, and in how many steps.
    agreement_limit : float
    dtype : torch.dtype
    """

    cell: FunctionCell
    weight: FloatArray
    bias: FloatArray
    evidence: FidelityEvidence
    solver: str
    agreement_limit: float
    dtype: torch.dtype

    @cached_property
    def network(self) -> UnrolledFunction:
        """The explicit network, a torch module."""
        return self.network_of(len(self.evidence.fidelities))

    def network_of(self, layers: int) -> UnrolledFunction:
        """Return the network of so many steps of f."""
        steps = checks.positive_integer(layers, "layers", "network_of")
        return _network(self.cell, self.weight, self.bias, steps, self.dtype)

    def hybrid(self) -> NoReturn:
        """Raise: nothing can be certified about a function that is known by its values alone."""
        raise InvalidInput(
            "A black box has no certificate, and so no certified hybrid. If the network is "
            "φ(Wz + Ux + b), describe it by its weights, with EquilibriumCell.from_weights."
        )

    def save(self, directory: str | Path, *, force: bool = False) -> NoReturn:
        """Raise `NotSerialisable`: f is a Python function, and not data."""
        reject_directory(self.cell)

    @property
    def _limit(self) -> float:
        return self.agreement_limit

    def _headline(self, word: Word) -> str:
        return f"A few steps in place of the fixed point: {word}."

    def _reasons(self) -> list[str]:
        own = self.fidelity
        return [
            f"{len(self.evidence.fidelities)} steps of f from a linear start agree on "
            f"{own.agreement:.2%} of {own.rows} held-out rows, at least {own.agreement_bound:.2%} "
            "with 95 % confidence.",
            "Nothing is proved: f is known by its values alone.",
        ]

    def facts(self) -> list[tuple[str, str]]:
        """Return what a report says of the DEQ itself, as names and values."""
        return [
            ("network", repr(self.cell)),
            ("precision", str(self.dtype).removeprefix("torch.")),
            ("fixed point", "nothing is proved: f is known by its values alone"),
            ("solver", self.solver),
        ]


def reject_directory(cell: FunctionCell) -> NoReturn:
    """Say why the compilation of a function is not stored."""
    raise NotSerialisable(
        f"{cell!r} is a Python function, and not data: it cannot be written, and nothing that "
        "reads code from files is used here. Keep what you need of it: report(path) writes the "
        "evidence, network.state_dict() has the fitted start. A network φ(Wz + Ux + b) can be "
        "saved if it is given by its weights, with EquilibriumCell.from_weights."
    )


def compile_function(
    cell: FunctionCell,
    X: Any,
    y: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    *,
    layers: int | None = None,
    tolerance: float = 1e-8,
    agreement_limit: float = 0.99,
    random_state: int = 0,
    out: str | Path | None = None,
    say: Callable[[str], Any] = lambda message: None,
) -> BlackBoxCompilation:
    """Fit a start, take steps of f, and compare with the fixed points; see `notsodeep.compile`."""
    if out is not None:
        reject_directory(cell)
    count = checks.positive_integer(_DEFAULT_LAYERS if layers is None else layers, "layers", _OWNER)
    checks.positive_number(tolerance, "tolerance", _OWNER)
    if y is not None or y_test is not None:
        cell.require_readout("compile with labels")
    (rows, apart, test), labels = divided_rows(cell, X, y, X_test, y_test, random_state)
    say("fixed points of f")
    parts = np.cumsum([len(rows), len(apart)])
    found, name, taken = solve_function(cell, np.concatenate([rows, apart, test]), tolerance)
    states = np.split(found, parts)
    say("a linear start")
    start = linear_start(*(part.astype(np.float64) for part in (rows, states[0], apart, states[1])))
    dtype = torch.float32 if test.dtype == np.float32 else torch.float64
    say("fidelity")
    exact = states[2] if cell.readout is None else cell.logits(states[2])
    z = test.reshape(len(test), -1).astype(np.float64) @ start[0].T + start[1]
    cold = np.zeros_like(z)
    fidelities, baselines = [], {}
    for step in range(1, count + 1):
        z, cold = cell.step(z, test), cell.step(cold, test)
        own, other = (
            fidelity_of(
                state if cell.readout is None else cell.logits(state),
                exact,
                labels=labels,
                states=cell.readout is None,
            )
            for state in (z, cold)
        )
        fidelities.append(own)
        baselines[f"{step} step{'s' * (step > 1)} from zero"] = other
    say("the front")
    networks = [_network(cell, *start, step, dtype) for step in range(1, count + 1)]
    front = measure_function_front(cell, name, networks, fidelities, test, exact)
    evidence = FidelityEvidence(tuple(fidelities), baselines, front)
    solver = f"{name.replace('_', ' ')}, {taken} steps to {tolerance:g}"
    return BlackBoxCompilation(cell, *start, evidence, solver, agreement_limit, dtype)


def _network(
    cell: FunctionCell, weight: FloatArray, bias: FloatArray, steps: int, dtype: torch.dtype
) -> UnrolledFunction:
    return UnrolledFunction(cell, weight, bias, steps, dtype).eval().requires_grad_(False)

"""Compile any f(z, x): steps of f from a fitted start, judged by statistics alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.compilation.verdict import ReplacementVerdict, Word
from notsodeep.data import draw_rows
from notsodeep.errors import InvalidInput
from notsodeep.models import Conditions
from notsodeep.trained.black_box import UnrolledFunction, linear_start, solve_function
from notsodeep.trained.cell import FunctionCell
from notsodeep.trained.fidelity import Fidelity, fidelity_of

FloatArray = NDArray[np.float64]

_LEAST_ROWS = 20
_DEFAULT_LAYERS = 3
_OWNER = "compile"


@dataclass(frozen=True, eq=False, repr=False)
class BlackBoxCompilation:
    """A few steps of f from a linear start, in place of the fixed point.

    Attributes
    ----------
    cell : FunctionCell
    weight, bias : ndarray
        Of the start.
    fidelity_by_layers : dict of int to Fidelity
        After so many steps of f.  Without a read-out the states stand for logits.
    baselines : dict of str to Fidelity
        The same number of steps from zero.
    solver : str
        That found the fixed points, and in how many steps.
    agreement_limit : float
    dtype : torch.dtype
    """

    cell: FunctionCell
    weight: FloatArray
    bias: FloatArray
    fidelity_by_layers: dict[int, Fidelity]
    baselines: dict[str, Fidelity]
    solver: str
    agreement_limit: float
    dtype: torch.dtype

    @property
    def fidelity(self) -> Fidelity:
        """Agreement with the fixed point, with all steps; nothing of it is proved."""
        return self.fidelity_by_layers[max(self.fidelity_by_layers)]

    @cached_property
    def network(self) -> UnrolledFunction:
        """The explicit network, a torch module."""
        steps = max(self.fidelity_by_layers)
        module = UnrolledFunction(self.cell, self.weight, self.bias, steps, self.dtype)
        return module.eval().requires_grad_(False)

    def hybrid(self) -> Any:
        """Raise: nothing can be certified about a function that is known by its values alone."""
        raise InvalidInput(
            "A black box has no certificate, and so no certified hybrid. If the network is "
            "φ(Wz + Ux + b), describe it by its weights, with EquilibriumCell.from_weights."
        )

    @property
    def verdict(self) -> ReplacementVerdict:
        """Whether the steps may replace the fixed point, and by which rule."""
        own, limit = self.fidelity, self.agreement_limit
        word: Word = "not replaceable"
        if own.agreement >= limit:
            word = "replaceable" if own.agreement_bound >= limit else "not shown"
        steps = max(self.fidelity_by_layers)
        reasons = (
            f"{steps} steps of f from a linear start agree on {own.agreement:.2%} of {own.rows} "
            f"held-out rows, at least {own.agreement_bound:.2%} with 95 % confidence; "
            f"fixed points by {self.solver}.",
            "Nothing is proved: f is known by its values alone.",
        )
        rule = (
            f"Rule: replaceable if the lower 95 % bound of the agreement is at least {limit:.1%}."
        )
        headline = f"A few steps in place of the fixed point: {word}."
        return ReplacementVerdict(word, headline, rule, reasons, Conditions(()))

    def __repr__(self) -> str:
        own = self.fidelity
        return (
            f"BlackBoxCompilation({self.verdict.word}: {max(self.fidelity_by_layers)} steps, "
            f"agreement {own.agreement:.2%} (at least {own.agreement_bound:.2%}))"
        )

    def __str__(self) -> str:
        return str(self.verdict)


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
    say: Callable[[str], Any] = lambda message: None,
) -> BlackBoxCompilation:
    """Fit a start, take steps of f, and compare with the fixed points; see `notsodeep.compile`."""
    steps = checks.positive_integer(_DEFAULT_LAYERS if layers is None else layers, "layers", _OWNER)
    checks.positive_number(tolerance, "tolerance", _OWNER)
    drive, labels = cell.drive(X), None if y is None else np.asarray(y)
    generator = np.random.default_rng(random_state)
    order = draw_rows(drive.reshape(len(drive), -1), len(drive), generator)
    if X_test is None:
        held = order[: max(_LEAST_ROWS, len(order) // 4)]
        order = order[len(held) :]
        test, labels_test = drive[held], None if labels is None else labels[held]
    else:
        test, labels_test = cell.drive(X_test), None if y_test is None else np.asarray(y_test)
    if min(len(order), len(test)) < _LEAST_ROWS:
        got = f"{len(order)} to fit and {len(test)} to judge on"
        requirement = f"leave at least {_LEAST_ROWS} rows each to fit and to judge on"
        raise checks.refusal("X", _OWNER, requirement, got, "Pass more.")
    say("fixed points of f")
    states, name, taken = solve_function(cell, np.concatenate([drive[order], test]), tolerance)
    fitted, held_states = states[: len(order)], states[len(order) :]
    cut = max(1, len(order) // 5)
    rows = drive[order].astype(np.float64)
    weight, bias = linear_start(rows[cut:], fitted[cut:], rows[:cut], fitted[:cut])

    def scores(z: FloatArray) -> FloatArray:
        return z if cell.readout is None else cell.logits(z)

    exact = scores(held_states)
    by_layers, baselines = {}, {}
    z = test.reshape(len(test), -1).astype(np.float64) @ weight.T + bias
    cold = np.zeros_like(z)
    for count in range(1, steps + 1):
        z, cold = cell.step(z, test), cell.step(cold, test)
        by_layers[count] = fidelity_of(scores(z), exact, labels=labels_test)
        baselines[f"{count} steps from zero"] = fidelity_of(scores(cold), exact, labels=labels_test)
    dtype = torch.float32 if drive.dtype == np.float32 else torch.float64
    solver = f"{name.replace('_', ' ')} in {taken} steps"
    return BlackBoxCompilation(
        cell, weight, bias, by_layers, baselines, solver, agreement_limit, dtype
    )

"""Equilibrium networks known as functions: z = f(z, x) for any torch function or module f."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.networks.affine import readout_parameters
from notsodeep.networks.cell import (
    CHECKED_STEPS,
    MAX_STEPS,
    SETTLED_SHARE,
    EquilibriumCell,
    Method,
    Readout,
    Solved,
    Trial,
    stuck,
    tolerance_for,
)
from notsodeep.networks.implicit import SOLVERS, SolveRecord, implicit_layer, solve

FunctionMethod = Literal["plain", "anderson", "broyden"]

_TRIAL_ROWS = 64
_STATE_BYTES = 1 << 26  # of the states that are solved at once
_SAME_ROWS = 1e-3  # relative; float32 rounds differently in batches of different size


class FunctionDEQ(EquilibriumCell):
    """z* = f(z*, x) for any torch function f; see `EquilibriumCell.from_function`.

    Attributes
    ----------
    method : Method or None
        The solver: set it, or let the first batch decide.
    tolerance : float or None
        Of `states` and of gradients; 1e-10 in float64 and 1e-5 in float32 by default.
    record : SolveRecord or None
        Of the last solve of `states`.

    Examples
    --------
    >>> linear = nn.Linear(3, 3)
    >>> with torch.no_grad():
    ...     _ = linear.weight.mul_(0.5)
    >>> cell = EquilibriumCell.from_function(lambda z, x: torch.tanh(linear(z) + x), 3)
    >>> cell.states(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        f: Callable[[Tensor, Tensor], Tensor],
        state_shape: Sequence[int] | int,
        readout: Readout | Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if not callable(f):
            raise InvalidInput(f"f must be a function of tensors z and x, got {f!r}.")
        sizes = (state_shape,) if isinstance(state_shape, int) else tuple(state_shape)
        if not sizes:
            raise InvalidInput("state_shape must have at least one entry, got ().")
        owner = "EquilibriumCell.from_function"
        self.state_shape = tuple(
            checks.positive_integer(k, "each of state_shape", owner) for k in sizes
        )
        checks.enough_memory(32 * self.width, "States of two samples", "Use a smaller state.")
        self.function = f
        self.readout_function: Any = readout if callable(readout) else None
        pair = None if callable(readout) else readout
        self.readout, self.readout_bias = readout_parameters(pair, self.width)
        self.method: Method | None = None
        self.tolerance: float | None = None
        self.record: SolveRecord | None = None
        self._dtype: torch.dtype | None = None  # in which f works, and its read-out
        self._readout_dtype: torch.dtype | None = None

    @property
    def has_readout(self) -> bool:
        """Whether states have logits."""
        return self.readout is not None or self.readout_function is not None

    def drive(self, X: ArrayLike | Tensor) -> Tensor:
        """Return the rows in the precision that f works in, after trying f on two of them.

        That of its parameters, or else float64 if f takes it and float32 otherwise.  f must return
        states, row by row, leave its arguments alone, and do so again.
        """
        parameter = next((p for p in self.parameters() if p.is_floating_point()), None)
        if not isinstance(X, Tensor):
            X = torch.as_tensor(checks.real_array(X, "X", "EquilibriumCell"))
        if X.ndim == 0 or len(X) == 0:
            raise InvalidInput(f"X must have rows, got shape {tuple(X.shape)}.")
        device = X.device if parameter is None else parameter.device
        with torch.no_grad():
            rows = X[:2].detach().to(device)
            if isinstance(self.function, nn.Module) and parameter is not None:
                self._dtype = parameter.dtype
            if self._dtype is None:
                self._dtype = _first_that_works(self._try, rows)
            else:
                self._try(rows, self._dtype)
            if self.readout_function is not None:
                states = rows.new_zeros(len(rows), self.width, dtype=torch.float64)
                self._readout_dtype = _first_that_works(self._try_readout, states, self._dtype)
        return X.to(device, self._dtype)

    def step(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return f(z, x), its state in one row."""
        image: Tensor = self.function(z.reshape(-1, *self.state_shape), drive)
        return image.reshape(z.shape)

    def logits(self, z: Tensor) -> Tensor:
        """Return the read-out's value, of whatever shape, one row for each sample."""
        self.require_readout()
        if self.readout is not None and self.readout_bias is not None:
            return nn.functional.linear(z, self.readout.to(z.dtype), self.readout_bias.to(z.dtype))
        states = z.to(self._readout_dtype or z.dtype).reshape(-1, *self.state_shape)
        scores: Tensor = self.readout_function(states)
        return scores.reshape(len(z), -1).to(z.dtype)

    @torch.no_grad()
    def choose_method(self, drive: Tensor, settled_share: float = SETTLED_SHARE) -> Method:
        """Return the first solver that settles that share of at most 64 rows."""
        rows, trials = drive[:_TRIAL_ROWS], []
        for name in get_args(FunctionMethod):
            solved = self._solve(rows, name, None, None, MAX_STEPS)
            settles = solved.share >= settled_share
            trials.append(Trial(name, 1.0, solved.steps if settles else None))
            if settles:
                return Method(name, 1.0, tuple(trials))
        raise NotConverged(
            f"No solver found the fixed points of f on {len(rows)} rows ({', '.join(SOLVERS)}). "
            "Look at it with notsodeep.diagnose: it may be a loop of fixed length and no "
            "equilibrium.",
            tuple(trials),
        )

    @torch.no_grad()
    def solve(
        self,
        drive: Tensor,
        tolerance: float | None = None,
        *,
        start: Tensor | None = None,
        max_steps: int = MAX_STEPS,
    ) -> Solved:
        """Solve z = f(z, x) from zero, in batches whose states take 64 MB."""
        self.method = self.method or self.choose_method(drive)
        size = max(_TRIAL_ROWS, _STATE_BYTES // (8 * self.width))
        starts = [None] * len(drive) if start is None else torch.split(start, size)
        parts = [
            self._solve(rows, self.method.name, tolerance, first, max_steps)
            for rows, first in zip(torch.split(drive, size), starts, strict=False)
        ]
        z, residuals = (torch.cat([getattr(p, k) for p in parts]) for k in ("z", "residuals"))
        steps, goal = max(p.steps for p in parts), parts[0].tolerance
        return Solved(z, z, residuals, steps, goal)

    def _solve(
        self, rows: Tensor, name: str, tolerance: float | None, start: Tensor | None, most: int
    ) -> Solved:
        goal = tolerance_for(rows.dtype, tolerance)
        z = rows.new_zeros(len(rows), self.width) if start is None else start.clone()
        residuals = torch.full_like(z[:, 0], math.inf)
        left, step = torch.arange(len(rows), device=rows.device), 0
        while len(left) and step < most:
            x, solver = rows[left], SOLVERS[name](goal, min(CHECKED_STEPS, most - step))
            z[left], record = solve(lambda z, x=x: self.step(z, x), z[left], solver)
            step, earlier = step + record.steps, residuals[left]
            residuals[left] = record.residuals
            left = left[~((record.residuals <= goal) | stuck(record.residuals, earlier))]
        return Solved(z, z, residuals, step, goal)

    def states(self, x: Tensor) -> Tensor:
        """Return z*, differentiable in x and, if f is a module, in its parameters."""
        rows = self.drive(x)
        self.method = self.method or self.choose_method(rows.detach())
        module = self.function if isinstance(self.function, nn.Module) else None
        own = {} if module is None else dict(module.named_parameters())

        def f(z: Tensor, rows: Tensor, *parameters: Tensor) -> Tensor:
            if module is None:
                return self.step(z, rows)
            state = z.reshape(-1, *self.state_shape)
            values = dict(zip(own, parameters, strict=True))
            image: Tensor = torch.func.functional_call(module, values, (state, rows))
            return image.reshape(z.shape)

        solver = SOLVERS[self.method.name](tolerance_for(rows.dtype, self.tolerance), MAX_STEPS)
        start = rows.new_zeros(len(rows), self.width)
        z, self.record = implicit_layer(f, (rows, *own.values()), start, solver=solver)
        return z

    def _try(self, rows: Tensor, dtype: torch.dtype) -> None:
        """Try f on one and on two rows."""
        x, count = rows.to(dtype), len(rows) * self.width
        # No zeros: f may be blind to what it does to others.
        start = torch.linspace(-0.5, 0.5, count, dtype=dtype, device=rows.device)
        start = start.reshape(-1, *self.state_shape)
        try:
            given = start.clone()
            pair, again = self.function(given, x), self.function(start.clone(), x)
            single = self.function(start[:1].clone(), x[:1])
        except Exception as error:  # whatever a user's function raises
            shape = f"(n, {', '.join(map(str, self.state_shape))})"
            raise InvalidInput(
                f"f must take z of shape {shape} and rows of X, got {dtype}: "
                f"{type(error).__name__}: {error}."
            ) from error
        if not torch.equal(given, start):
            raise InvalidInput("f must leave z as it is, got a step that changes it in place.")
        _require_map(start, pair, again, single)

    def _try_readout(self, states: Tensor, dtype: torch.dtype) -> None:
        state = states.to(dtype).reshape(-1, *self.state_shape)
        try:
            scores = self.readout_function(state)
        except Exception as error:  # whatever a user's function raises
            raise InvalidInput(
                f"readout must take states of shape {tuple(state.shape)}, got {dtype}: "
                f"{type(error).__name__}: {error}."
            ) from error
        if not isinstance(scores, Tensor) or scores.ndim == 0 or len(scores) != len(states):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise InvalidInput(f"readout must return a tensor with a row per state, got {got}.")
        if not scores.is_floating_point():
            raise InvalidInput(f"readout must return real numbers, got {scores.dtype}.")

    def extra_repr(self) -> str:
        """Return the name of f, its state and whether there is a read-out."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        out = "with read-out" if self.has_readout else "no read-out"
        return f"{name}, state {self.state_shape}, {out}"

    def __repr__(self) -> str:
        return f"FunctionDEQ({self.extra_repr()})"


def _first_that_works(
    attempt: Callable[[Tensor, torch.dtype], None],
    rows: Tensor,
    first: torch.dtype = torch.float64,
) -> torch.dtype:
    """Return the first of two precisions in which an attempt raises nothing."""
    other = torch.float32 if first == torch.float64 else torch.float64
    try:
        attempt(rows, first)
    except InvalidInput as error:
        if error.__cause__ is None:  # it ran, and is no step
            raise
        try:
            attempt(rows, other)
        except InvalidInput:
            raise error from error.__cause__
        return other
    return first


def _require_map(start: Tensor, pair: Any, again: Any, single: Any) -> None:
    """Require that f returned states, row by row, and would do so again."""
    if not isinstance(pair, Tensor) or pair.dtype != start.dtype:
        got = pair.dtype if isinstance(pair, Tensor) else type(pair).__name__
        raise InvalidInput(f"f must return a tensor of the dtype of z, {start.dtype}, got {got}.")
    for image, rows in ((pair, len(start)), (single, 1)):
        expected = (rows, *start.shape[1:])
        if image.shape != expected:
            shapes = f"{expected}, got {tuple(image.shape)}"
            raise InvalidInput(f"f must return the shape of z, {shapes}.")
    if not torch.equal(pair.nan_to_num(), again.nan_to_num()):
        raise InvalidInput(
            "f must give the same answer twice, got two different ones. Switch a module that keeps "
            "state, or draws random numbers, to evaluation mode."
        )
    size = float(pair.nan_to_num().abs().max())
    gap = float((pair[:1] - single).nan_to_num().abs().max())
    if gap > _SAME_ROWS * max(size, float(np.finfo(np.float32).tiny)):
        raise InvalidInput(
            f"f must treat each sample by itself, got a row that changes by {gap:.2g} when another "
            "row is there. Switch batch normalisation to evaluation mode."
        )

"""Derivatives of a fixed point, of every order, without differentiating through its iteration.

For z* = f(z*, θ) with J = ∂f/∂z at z*: dz* = (I − J)⁻¹ (∂f/∂θ) dθ, so that a gradient g with
respect to z* becomes (∂f/∂θ)ᵀ u, where u = g + Jᵀ u.  That linear system is itself a function with
derivatives, by the same rule; hence gradients of gradients, and everything `torch.func` offers.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from notsodeep import checks
from notsodeep.networks.equilibrium_solvers import Solver, solve
from notsodeep.networks.fixed_point_problems import (
    BatchedProblem,
    Problem,
    directional_derivative,
    pullback,
)
from notsodeep.networks.solve_records import ImplicitRecord, Report, SolveRecord


@dataclass(frozen=True)
class Gradient(ABC):
    """How a fixed point is differentiated: what stands for (I − J)⁻¹."""

    name: ClassVar[str]

    @abstractmethod
    def resolvent(
        self, call: Call, transposed: bool, g: Tensor, z: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Return (I − J)⁻¹ g, or (I − Jᵀ)⁻¹ g if transposed, J = ∂f/∂z at (z, θ)."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `as_gradient` turns it back."""


@dataclass(frozen=True)
class Call:
    """One call of the implicit layer: everything about it that is not a tensor."""

    problem: Problem
    solver: Solver
    gradient: Gradient
    record: ImplicitRecord
    report: Report
    subject: str

    def keep(self, record: SolveRecord, parameters: Sequence[Tensor] = ()) -> None:
        """Keep a record; if it is one of a failure, look for the cause and report it."""
        self.record.keep(record)
        if record.converged is False:
            named = {self.problem.name_of(i): tensor for i, tensor in enumerate(parameters)}
            _finite_parameters(named, self.subject)
            self.report(record)

    def batched(self, state: bool, parameters: tuple[bool, ...]) -> Call:
        """Return the same call for many instances of the problem at once."""
        problem = BatchedProblem(self.problem, state, parameters)
        return dataclasses.replace(self, problem=problem)


class Equilibrium(torch.autograd.Function):
    """(start, θ) ↦ z*, as a differentiable function of θ."""

    @staticmethod
    def forward(call: Call, start: Tensor, *parameters: Tensor) -> Tensor:
        """Solve z = f(z, θ)."""
        z, record = solve(
            lambda z: call.problem.value(z, *parameters), start, call.solver, subject=call.subject
        )
        call.keep(record, parameters)
        return _not_an_input(z, start, *parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the solution and the parameters."""
        ctx.call = inputs[0]
        ctx.save_for_backward(output, *inputs[2:])
        ctx.save_for_forward(output, *inputs[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return (∂f/∂θ)ᵀ u, u = g + Jᵀ u."""
        call: Call = ctx.call
        z, *parameters = ctx.saved_tensors
        u = call.gradient.resolvent(call, True, gradients[0], z, *parameters)
        linear = call.problem.linearise(z, *parameters)
        return None, None, *linear.pull_parameters(u, ctx.needs_input_grad[2:])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return v = (∂f/∂θ) dθ + J v."""
        call: Call = ctx.call
        z, *parameters = ctx.saved_tensors
        directions = _filled(tangents[2:], parameters)
        drive = call.problem.linearise(z, *parameters).push_parameters(directions)
        return call.gradient.resolvent(call, False, drive, z, *parameters)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], call: Call, start: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, int]:
        """Solve all instances at once."""
        dims = in_dims[2:]
        batched = call.batched(True, tuple(dim is not None for dim in dims))
        begin = _to_front(start, in_dims[1], info.batch_size)
        return Equilibrium.apply(batched, begin, *map(_to_front, parameters, dims)), 0  # type: ignore[no-untyped-call]


class Resolvent(torch.autograd.Function):
    """(g, z, θ) ↦ u with u = g + J u, or u = g + Jᵀ u if transposed, J = ∂f/∂z at (z, θ)."""

    @staticmethod
    def forward(
        call: Call, solver: Solver, transposed: bool, g: Tensor, z: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Solve the linear system, from u = g."""
        linear = call.problem.linearise(z, *parameters)
        apply = linear.pull if transposed else linear.push
        u, record = solve(
            lambda u: g + apply(u),
            g,
            solver,
            direction="backward" if transposed else "ntk",
            subject=f"the {'gradient' if transposed else 'tangent'} of {call.subject}",
        )
        call.keep(record, parameters)
        return _not_an_input(u, g)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the solution and where J is taken."""
        ctx.call, _, ctx.transposed = inputs[:3]
        ctx.save_for_backward(output, *inputs[4:])
        ctx.save_for_forward(output, *inputs[4:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return w with the transposed system, and the gradient of left·J·right in (z, θ)."""
        call: Call = ctx.call
        u, *point = ctx.saved_tensors
        w = call.gradient.resolvent(call, not ctx.transposed, gradients[0], *point)
        # d(wᵀu) of (I − J)u = g is wᵀ(dJ)u: one form, whichever of the two systems was solved
        # first.
        left, right = (u, w) if ctx.transposed else (w, u)

        def pushed(*at: Tensor) -> Tensor:
            return call.problem.linearise(*at).push(right)

        return None, None, None, w, *pullback(pushed, *point)[1](left)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the solution of the same system for dg + (dJ) u."""
        call: Call = ctx.call
        u, *point = ctx.saved_tensors

        def moved(*at: Tensor) -> Tensor:
            linear = call.problem.linearise(*at)
            return linear.pull(u) if ctx.transposed else linear.push(u)

        directions = tuple(_filled(tangents[4:], point))
        drive = directional_derivative(moved, tuple(point), directions)
        if tangents[3] is not None:
            drive = drive + tangents[3]
        return call.gradient.resolvent(call, ctx.transposed, drive, *point)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        call: Call,
        solver: Solver,
        transposed: bool,
        g: Tensor,
        z: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, int]:
        """Solve all systems at once."""
        dims = in_dims[4:]
        batched = call.batched(dims[0] is not None, tuple(dim is not None for dim in dims[1:]))
        drive = _to_front(g, in_dims[3], info.batch_size)
        point = map(_to_front, (z, *parameters), dims)
        return Resolvent.apply(batched, solver, transposed, drive, *point), 0  # type: ignore[no-untyped-call]


def _not_an_input(result: Tensor, *inputs: Tensor) -> Tensor:
    """Copy a result that is one of the inputs itself, which autograd could not tell apart."""
    return result.clone() if any(result is tensor for tensor in inputs) else result


def _to_front(tensor: Tensor, dim: int | None, expand: int | None = None) -> Tensor:
    """Put the axis of instances first; where there is none, add one if `expand` is given."""
    if dim is not None:
        return tensor.movedim(dim, 0)
    return tensor if expand is None else tensor.expand(expand, *tensor.shape)


def _filled(tangents: Any, like: Any) -> list[Tensor]:
    return [torch.zeros_like(x) if t is None else t for t, x in zip(tangents, like, strict=True)]


def _finite_parameters(parameters: Mapping[str, Any], owner: str) -> None:
    """Require tensors without NaN and infinity; name the first that has some."""
    for name, tensor in parameters.items():
        bad = int((~tensor.isfinite()).sum())
        if bad:
            got = f"{bad} NaN or infinite entries of {tensor.numel()}"
            remedy = (
                "Look at the inputs first. If it is the weights, training has diverged: go back to "
                "the last good ones and lower the learning rate."
            )
            raise checks.invalid(name, owner, "be finite", got, remedy)

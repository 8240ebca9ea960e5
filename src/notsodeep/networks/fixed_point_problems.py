"""Fixed-point problems z = f(z, θ) and their derivatives at a solution.

A problem is given all its tensors: z of shape (..., m), and the parameters θ.  It must treat the
samples, the axes of z before the last one, independently, and be written in torch functions that
`torch.func` can differentiate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Map = Callable[..., Tensor]
"""Called as f(z, *parameters); returns a tensor of the shape of z."""


@dataclass(frozen=True)
class Linearisation:
    """The derivatives of f at a point (z, θ); J = ∂f/∂z.

    Attributes
    ----------
    push : callable
        v ↦ J v.
    pull : callable
        u ↦ Jᵀ u.
    push_parameters : callable
        (dθ_1, …) ↦ Σ ∂f/∂θ_i dθ_i.
    pull_parameters : callable
        u and which parameters are asked for ↦ ((∂f/∂θ_1)ᵀ u, …), None for the others.
    """

    push: Callable[[Tensor], Tensor]
    pull: Callable[[Tensor], Tensor]
    push_parameters: Callable[[Sequence[Tensor]], Tensor]
    pull_parameters: Callable[[Tensor, Sequence[bool]], tuple[Tensor | None, ...]]


class Problem(ABC):
    """A map f(z, θ) with a linearisation.  Everything is differentiable, again and again."""

    @abstractmethod
    def name_of(self, index: int) -> str:
        """Return what messages call a parameter."""

    @abstractmethod
    def value(self, z: Tensor, *parameters: Tensor) -> Tensor:
        """Evaluate f(z, θ), in the shape of z."""

    @abstractmethod
    def linearise(self, z: Tensor, *parameters: Tensor) -> Linearisation:
        """Return the derivatives at (z, θ)."""


@dataclass(frozen=True)
class GeneralProblem(Problem):
    """Any map of z and parameters; its derivatives come from `torch.func`."""

    function: Map

    def name_of(self, index: int) -> str:
        """Return "parameter 0" and so on."""
        return f"parameter {index}"

    def value(self, z: Tensor, *parameters: Tensor) -> Tensor:
        """Evaluate f(z, θ)."""
        return self.function(z, *parameters)

    def linearise(self, z: Tensor, *parameters: Tensor) -> Linearisation:
        """Return the derivatives at (z, θ)."""

        def of_state(state: Tensor) -> Tensor:
            return self.function(state, *parameters)

        def of_parameters(*values: Tensor) -> Tensor:
            return self.function(z, *values)

        _, pull = pullback(of_state, z)

        def pull_parameters(u: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
            every = pullback(of_parameters, *parameters)[1](u)
            return tuple(g if asked else None for g, asked in zip(every, needed, strict=True))

        def push(v: Tensor) -> Tensor:
            return directional_derivative(of_state, (z,), (v,))

        def push_parameters(tangents: Sequence[Tensor]) -> Tensor:
            return directional_derivative(of_parameters, parameters, tuple(tangents))

        return Linearisation(push, lambda u: pull(u)[0], push_parameters, pull_parameters)


@dataclass(frozen=True)
class BatchedProblem(Problem):
    """Many instances of a problem at once: what `torch.vmap` makes of it.

    Attributes
    ----------
    problem : Problem
        Of one instance.
    state_batched : bool
        Whether z is different for every instance, along a first axis.  If neither z nor any
        parameter is, only the directions of derivatives are.
    parameters_batched : tuple of bool
        Which parameters are different for every instance.
    """

    problem: Problem
    state_batched: bool
    parameters_batched: tuple[bool, ...]

    def name_of(self, index: int) -> str:
        """Return what messages call a parameter."""
        return self.problem.name_of(index)

    def value(self, z: Tensor, *parameters: Tensor) -> Tensor:
        """Evaluate f for every instance."""
        images: Tensor = self._each(self.problem.value)(z, *parameters)
        return images

    def linearise(self, z: Tensor, *parameters: Tensor) -> Linearisation:
        """Return the derivatives for every instance."""
        at = (z, *parameters)
        different = self.state_batched or any(self.parameters_batched)
        # A linearisation evaluates f once; the same point for all instances needs only one.
        shared = None if different else self.problem.linearise(*at)

        def linearise(*point: Tensor) -> Linearisation:
            return shared or self.problem.linearise(*point)

        def push(v: Tensor) -> Tensor:
            pushed: Tensor = self._each(lambda v, *point: linearise(*point).push(v), 0)(v, *at)
            return pushed

        def pull(u: Tensor) -> Tensor:
            pulled: Tensor = self._each(lambda u, *point: linearise(*point).pull(u), 0)(u, *at)
            return pulled

        def push_parameters(tangents: Sequence[Tensor]) -> Tensor:
            axes = tuple(map(_axis, self.parameters_batched))
            along = self._each(lambda ds, *point: linearise(*point).push_parameters(ds), axes)
            pushed: Tensor = along(tuple(tangents), *at)
            return pushed

        def pull_parameters(u: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
            def asked_for(u: Tensor, *point: Tensor) -> tuple[Tensor, ...]:
                every = linearise(*point).pull_parameters(u, needed)
                return tuple(g for g in every if g is not None)

            found = iter(self._each(asked_for, 0)(u, *at))
            # What the instances share collects the gradients of all of them.
            return tuple(
                (next(found) if batched else next(found).sum(0)) if asked else None
                for asked, batched in zip(needed, self.parameters_batched, strict=True)
            )

        return Linearisation(push, pull, push_parameters, pull_parameters)

    def _each(self, function: Callable[..., Any], *first: Any) -> Callable[..., Any]:
        """Map a function of (…, z, *parameters) over the instances; `first` are axes of the …."""
        axes = (*first, *map(_axis, (self.state_batched, *self.parameters_batched)))
        mapped: Callable[..., Any] = torch.func.vmap(function, in_dims=axes)
        return mapped


def _axis(batched: bool) -> int | None:
    return 0 if batched else None


def pullback(
    function: Callable[..., Any], *at: Tensor
) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
    """Return the value of a function, and u ↦ its transposed derivatives applied to u."""
    value, pull = torch.func.vjp(function, *at)  # type: ignore[misc]  # typed for has_aux too
    return value, pull


def directional_derivative(
    function: Map, at: tuple[Tensor, ...], directions: tuple[Tensor, ...]
) -> Tensor:
    """Return the derivative of `function` at a point along directions.

    By the gradient of a gradient that is linear, instead of by forward mode: torch's forward mode
    cannot be nested, and this may be called from inside of it.
    """
    value, pull = pullback(function, *at)
    _, push = pullback(pull, torch.zeros_like(value))
    return push(directions)[0]

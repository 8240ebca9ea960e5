"""The ways to differentiate a fixed point: exactly, or by one of two approximations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from notsodeep import checks
from notsodeep.networks import requirements
from notsodeep.networks.equilibrium_solvers import FixedPointIteration, Solver, as_solver
from notsodeep.networks.implicit_gradient import Call, Gradient, Resolvent
from notsodeep.networks.solve_records import SolveRecord


@dataclass(frozen=True)
class Implicit(Gradient):
    """The exact derivative: u = g + Jᵀ u is solved for.

    Attributes
    ----------
    solver : Solver
        With a tolerance of its own, relative to u: a loss in other units changes nothing.
    """

    solver: Solver = field(default_factory=FixedPointIteration)

    name: ClassVar[str] = "implicit"

    def resolvent(
        self, call: Call, transposed: bool, g: Tensor, z: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Solve the linear system."""
        u: Tensor = Resolvent.apply(call, self.solver, transposed, g, z, *parameters)  # type: ignore[no-untyped-call]
        return u

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"name": self.name, "solver": self.solver.to_dict()}


@dataclass(frozen=True)
class Phantom(Gradient):
    """An approximation: u ≈ λ Σ_{k < steps} (λJᵀ + (1 − λ)I)^k g, the phantom gradient.

    It is what differentiating through a few damped steps at z* gives (Geng, Zhang, Bai, Wang, Lin,
    *On Training Implicit Models*, NeurIPS 2021).

    Attributes
    ----------
    steps : int
    damping : float
        λ, 0 < λ ≤ 1.
    """

    steps: int = 5
    damping: float = 0.5

    name: ClassVar[str] = "phantom"

    def __post_init__(self) -> None:
        checks.positive_integer(self.steps, "steps", "Phantom")
        damping = checks.finite_number(self.damping, "damping", "Phantom")
        if not 0.0 < damping <= 1.0:
            raise checks.invalid("damping", "Phantom", "satisfy 0 < damping ≤ 1", damping)

    def resolvent(
        self, call: Call, transposed: bool, g: Tensor, z: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Add up the terms."""
        linear = call.problem.linearise(z, *parameters)
        apply = linear.pull if transposed else linear.push
        term = self.damping * g
        total = term
        for _ in range(self.steps - 1):
            term = self.damping * apply(term) + (1.0 - self.damping) * term
            total = total + term
        _note_approximation(self, call, transposed, self.steps - 1)
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class JacobianFree(Gradient):
    """The crudest approximation, and the cheapest: J is left out, u ≈ g."""

    name: ClassVar[str] = "jacobian_free"

    def resolvent(
        self, call: Call, transposed: bool, g: Tensor, z: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Return g."""
        _note_approximation(self, call, transposed, 0)
        return g

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"name": self.name}


def _note_approximation(gradient: Gradient, call: Call, transposed: bool, products: int) -> None:
    """Leave a record of a derivative that nothing was solved for."""
    call.keep(
        SolveRecord(
            direction="backward" if transposed else "ntk",
            subject=f"the gradient of {call.subject}",
            converged=None,
            steps=products,
            tolerance=math.nan,
            residuals=torch.empty(0),
            history=(),
            reason=f"approximated by choice ({gradient.name})",
        )
    )


GRADIENTS: dict[str, type[Gradient]] = {
    gradient.name: gradient for gradient in (Implicit, Phantom, JacobianFree)
}


def as_gradient(value: str | Mapping[str, Any] | Gradient) -> Gradient:
    """Turn a name, or the form made by `Gradient.to_dict`, into a gradient.

    Examples
    --------
    >>> as_gradient({"name": "phantom", "steps": 3})
    Phantom(steps=3, damping=0.5)
    """
    if isinstance(value, Gradient):
        return value
    if isinstance(value, Mapping):
        name, options = requirements.named_options(value, GRADIENTS, "gradient")
        if "solver" in options:
            options["solver"] = as_solver(options["solver"])
        return GRADIENTS[name](**options)
    return GRADIENTS[checks.known_name(value, GRADIENTS, "gradient")]()

"""Solvers for fixed points z = f(z) of tensors: one loop, one stopping rule.

The last axis holds the unknowns of one sample, the axes before it the samples, each a problem of
its own.  The loop ends when ‖f(z) − z‖ ≤ tolerance·‖f(z)‖ for every sample.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from notsodeep import checks
from notsodeep.networks import requirements
from notsodeep.networks.solve_records import Direction, SolveRecord

Advance = Callable[[Tensor, Tensor], Tensor]
"""Takes z and f(z), both of shape (..., m), and returns the next z."""

DEFAULT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


@dataclass(frozen=True)
class Solver(ABC):
    """How a fixed point is found.

    Attributes
    ----------
    tolerance : float or None
        For ‖f(z) − z‖/‖f(z)‖ of every sample; None is 1e-6 in float32 and 1e-12 in float64.
    max_steps : int
        Most evaluations of the map.
    """

    tolerance: float | None = None
    max_steps: int = 300

    name: ClassVar[str]

    def __post_init__(self) -> None:
        owner = type(self).__name__
        _optional_tolerance(self.tolerance, owner)
        checks.positive_integer(self.max_steps, "max_steps", owner)

    @property
    def others(self) -> str:
        """What to try when this solver fails, for messages."""
        names = (name for name in ("anderson", "broyden") if name != self.name)
        return " or ".join(f"solver={name!r}" for name in names)

    @abstractmethod
    def begin(self) -> Advance:
        """Return a function that makes the steps of one solve."""

    def tolerance_for(self, dtype: torch.dtype) -> float:
        """Return the tolerance, which must be above the rounding error of the dtype."""
        requirements.network_dtype(dtype, DEFAULT_TOLERANCE, f"the unknown of {self.name}")
        if self.tolerance is None:
            return DEFAULT_TOLERANCE[dtype]
        least = torch.finfo(dtype).eps
        return _solver_tolerance(self.tolerance, least, dtype, type(self).__name__)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `as_solver` turns it back."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class FixedPointIteration(Solver):
    """z ← f(z): the cheapest step, and the fastest way for maps that contract well."""

    name: ClassVar[str] = "fixed_point"

    def begin(self) -> Advance:
        """Return the step."""
        return lambda z, image: image


@dataclass(frozen=True)
class Anderson(Solver):
    """The best affine combination of the last few iterates, for every sample.

    With residuals g_i = f(z_i) − z_i it minimises ‖Σ α_i g_i‖² + ridge·(Σ ‖g_i‖²)·‖α‖² under
    Σ α_i = 1 and continues from Σ α_i f(z_i) (Walker, Ni, *Anderson acceleration for fixed-point
    iterations*, SIAM J. Numer. Anal. 2011).  Fewer evaluations than the plain iteration where the
    map contracts slowly, and often a fixed point where it does not contract.

    Attributes
    ----------
    memory : int
        Number of iterates combined.
    ridge : float or None
        Relative to the residuals; None is the rounding error of the dtype.
    """

    memory: int = 5
    ridge: float | None = None

    name: ClassVar[str] = "anderson"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer_at_least(self.memory, 2, "memory", "Anderson")
        if self.ridge is not None:
            checks.positive_number(self.ridge, "ridge", "Anderson")

    def begin(self) -> Advance:
        """Return the step, with an empty memory."""
        images: list[Tensor] = []
        residuals: list[Tensor] = []

        def advance(z: Tensor, image: Tensor) -> Tensor:
            images.append(image)
            residuals.append(image - z)
            del images[: -self.memory], residuals[: -self.memory]
            stacked = torch.stack(residuals, dim=-2)
            scale = largest_entry(stacked.flatten(-2))
            # A sample without any residual stays where it is, whatever the weights.
            stacked = stacked / torch.where(scale == 0.0, 1.0, scale)[..., None, None]
            # Normal equations, of memory × memory numbers for every sample and in one batched
            # product; they square the condition number, for which the ridge makes up.
            gram = stacked @ stacked.mT
            ridge = torch.finfo(z.dtype).eps if self.ridge is None else self.ridge
            diagonal = gram.diagonal(dim1=-2, dim2=-1)
            trace = diagonal.sum(-1, keepdim=True)
            diagonal += ridge * torch.where(trace == 0.0, 1.0, trace)
            # Lagrange: gram·α is constant, and the constant follows from Σ α = 1.
            weights = torch.linalg.solve(gram, torch.ones_like(gram[..., 0]))
            weights = weights / weights.sum(-1, keepdim=True)
            combined: Tensor = weights[..., None, :] @ torch.stack(images, dim=-2)
            return combined.squeeze(-2)

        return advance


@dataclass(frozen=True)
class Broyden(Solver):
    """Quasi-Newton steps, with an inverse Jacobian that is built up from the steps taken.

    For r(z) = f(z) − z the step is −H r, where H starts as −I, the plain iteration, and after
    every step Δz with change Δr gets the update H + (Δz − H Δr) Δzᵀ H/(Δzᵀ H Δr) (Broyden, *A class
    of methods for solving nonlinear simultaneous equations*, Math. Comp. 1965).

    Attributes
    ----------
    memory : int
        Number of updates kept; when there are more, H starts from −I again.
    """

    memory: int = 20

    name: ClassVar[str] = "broyden"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_integer(self.memory, "memory", "Broyden")

    def begin(self) -> Advance:
        """Return the step, with H = −I."""
        left: list[Tensor] = []
        right: list[Tensor] = []
        last: list[Tensor] = []  # z and r of the step before

        def inverse(v: Tensor, columns: list[Tensor], rows: list[Tensor]) -> Tensor:
            """Return H v, or Hᵀ v with the two lists exchanged."""
            result = -v
            for column, row in zip(columns, rows, strict=True):
                result = result + column * torch.linalg.vecdot(row, v)[..., None]
            return result

        def advance(z: Tensor, image: Tensor) -> Tensor:
            residual = image - z
            if last:
                step, change = z - last[0], residual - last[1]
                # The update does not depend on the length of the step; its products do.
                length = largest_entry(step)[..., None]
                length = torch.where(length == 0.0, 1.0, length)
                step, change = step / length, change / length
                # Each update was made for the H before it: dropping the oldest alone would spoil
                # the others.
                if len(left) == self.memory:
                    left.clear()
                    right.clear()
                moved = inverse(change, left, right)
                curvature = torch.linalg.vecdot(step, moved)[..., None]
                # A sample that no longer moves teaches nothing.
                update = torch.where(curvature == 0.0, 0.0, (step - moved) / curvature)
                row = inverse(step, right, left)
                left.append(update)
                right.append(row)
            last[:] = z, residual
            return z - inverse(residual, left, right)

        return advance


SOLVERS: dict[str, type[Solver]] = {
    solver.name: solver for solver in (FixedPointIteration, Anderson, Broyden)
}


def as_solver(value: str | Mapping[str, Any] | Solver) -> Solver:
    """Turn a name, or the form made by `Solver.to_dict`, into a solver.

    Examples
    --------
    >>> as_solver("fixed_point")
    FixedPointIteration(tolerance=None, max_steps=300)
    """
    if isinstance(value, Solver):
        return value
    if isinstance(value, Mapping):
        name, options = requirements.named_options(value, SOLVERS, "solver")
        return SOLVERS[name](**options)
    return SOLVERS[checks.known_name(value, SOLVERS, "solver")]()


def largest_entry(x: Tensor) -> Tensor:
    """Return the largest absolute value along the last axis."""
    return x.abs().amax(dim=-1)


def relative_residuals(z: Tensor, image: Tensor) -> tuple[Tensor, bool]:
    """Return ‖f(z) − z‖/‖f(z)‖ for every sample, and whether all f(z) are finite.

    Squares are zero in float32 for gradients of 1e-23, which would look converged, and infinite
    for 1e20.  Where that may be, samples are put into units of their own first.
    """
    gap = image - z
    change, size = (torch.linalg.vector_norm(x, dim=-1) for x in (gap, image))
    limits = torch.finfo(z.dtype)
    # Between these limits squares neither underflow nor overflow, nor do their sums: one pass.
    low, high = math.sqrt(limits.tiny) / limits.eps, math.sqrt(limits.max) * limits.eps
    if float(change.min()) > low and float(size.max()) < high:
        return change / size, True
    unit = torch.maximum(largest_entry(gap), largest_entry(image))
    scale = torch.where(unit == 0.0, 1.0, unit)[..., None]
    change, size = (torch.linalg.vector_norm(x / scale, dim=-1) for x in (gap, image))
    # A sample that is zero and stays zero is solved.
    return torch.where(change == 0.0, 0.0, change / size), bool(unit.isfinite().all())


def solve(
    function: Callable[[Tensor], Tensor],
    start: Tensor,
    solver: Solver,
    *,
    direction: Direction = "forward",
    subject: str = "the fixed point",
) -> tuple[Tensor, SolveRecord]:
    """Solve z = f(z) from `start`, of shape (..., m); return the last f(z) and the record."""
    tolerance = solver.tolerance_for(start.dtype)
    advance = solver.begin()
    z, image = start, start
    residuals = torch.zeros(start.shape[:-1], dtype=start.dtype, device=start.device)
    history: list[float] = []
    converged, reason = start.numel() == 0, "there was nothing to solve"
    while not converged:
        image = function(z)
        if image.shape != start.shape:
            _shape_of_state(tuple(image.shape), tuple(start.shape))
        residuals, finite = relative_residuals(z, image)
        history.append(float(residuals.max()))
        steps = len(history)
        if history[-1] <= tolerance:
            converged, reason = True, f"converged in {steps} steps"
        elif not finite:
            reason = f"the iterates grew without bound in {steps} steps"
            break
        elif steps == solver.max_steps:
            reason = f"no convergence in {steps} steps"
            break
        else:
            z = advance(z, image)
    record = SolveRecord(
        direction, subject, converged, len(history), tolerance, residuals, tuple(history), reason
    )
    # f(z), not z: it has been paid for, and where f contracts it is the better of the two.
    return image, record


def _shape_of_state(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Require that a map returns what it is given, a state of the same shape."""
    if shape != expected:
        raise checks.invalid(
            "problem", "implicit_layer", f"return the shape of z, {expected}", shape
        )


def _solver_tolerance(value: float, least: float, dtype: object, owner: str) -> float:
    """Require a relative tolerance that the precision can meet."""
    if value < least:
        requirement = f"be at least {least:.2g}, the rounding error of {dtype}"
        remedy = "Use float64, or leave tolerance=None for the default of the dtype."
        raise checks.invalid("tolerance", owner, requirement, f"{value:g}", remedy)
    return value


def _optional_tolerance(value: object, owner: str) -> None:
    """Require None, or a relative tolerance between zero and one."""
    if value is None:
        return
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0.0 < float(value) < 1.0:  # type: ignore[arg-type]
        requirement = "be None or a relative tolerance between 0 and 1"
        raise checks.invalid("tolerance", owner, requirement, repr(value))

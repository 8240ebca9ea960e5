"""Fixed points z = f(z, θ): solve for them, and differentiate them without their iteration.

For z* = f(z*, θ) and J = ∂f/∂z there, dz* = (I − J)⁻¹ (∂f/∂θ) dθ, so that a gradient g with respect
to z* becomes (∂f/∂θ)ᵀ u with u = g + Jᵀ u.  That linear system is itself a function with
derivatives by the same rule; hence derivatives of every order, and all that `torch.func` offers.

The last axis of z holds the unknowns of one row; every row is a problem of its own.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from notsodeep.errors import InvalidInput, NotConverged, NotConvergedWarning, UnknownName
from notsodeep.records import Plotted

Map = Callable[..., Tensor]
Step = Callable[[Tensor, Tensor], Tensor]
OnFailure = Literal["raise", "warn", "ignore"]

DEFAULT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
_SHOWN_RESIDUALS = 6


@dataclass(frozen=True, repr=False)
class SolveRecord(Plotted):
    """Outcome of one solve, and of the solves for derivatives of its result."""

    _drawing = "solve"

    converged: bool
    history: tuple[float, ...]  # the largest relative residual of the rows iterated, every step
    residuals: Tensor = field(repr=False, compare=False)  # last one of every row; inf: diverged
    tolerance: float
    reason: str
    derivatives: list[SolveRecord] = field(default_factory=list, repr=False, compare=False)

    @property
    def steps(self) -> int:
        """Evaluations of f."""
        return len(self.history)

    @property
    def residual(self) -> float:
        """The largest of the last residuals; zero if there were none."""
        return float(self.residuals.max()) if self.residuals.numel() else 0.0

    def __str__(self) -> str:
        return f"{self.reason} (residual {self.residual:.3g})"


@dataclass(frozen=True)
class Solver:
    """Plain iteration z ← f(z), until ‖f(z) − z‖ ≤ tolerance·‖f(z)‖ for every row.

    Parameters
    ----------
    tolerance : float, optional
        1e-6 in float32 and 1e-12 in float64 by default.
    max_steps : int
        Most evaluations of f.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> solver = Solver(tolerance=1e-4)
    >>> nsd.implicit_layer(lambda z: torch.cos(z), [], torch.zeros(1), solver=solver)[1].steps
    25
    """

    tolerance: float | None = None
    max_steps: int = 300

    name: ClassVar[str] = "plain"

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0.0 < self.tolerance < 1.0:
            raise InvalidInput(f"tolerance must be between 0 and 1, got {self.tolerance}.")
        for option in ("max_steps", "memory"):
            if getattr(self, option, 1) < 1:
                raise InvalidInput(f"{option} must be positive, got {getattr(self, option)}.")

    def stepper(self) -> Step:
        """Return (z, f(z)) ↦ next z, with a memory of its own."""
        return lambda z, image: image

    def tolerance_for(self, dtype: torch.dtype) -> float:
        """Return the tolerance, which must be above the rounding error of the dtype."""
        if dtype not in DEFAULT_TOLERANCE:
            raise InvalidInput(
                f"dtype must be torch.float32 or torch.float64, got {dtype}. A fixed point cannot "
                "be solved for in half precision: leave autocast off around it."
            )
        if self.tolerance is None:
            return DEFAULT_TOLERANCE[dtype]
        if self.tolerance < torch.finfo(dtype).eps:
            least = f"at least {torch.finfo(dtype).eps:.2g}, the rounding error of {dtype}"
            raise InvalidInput(f"tolerance must be {least}, got {self.tolerance:g}.")
        return self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `as_solver` turns it back."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Anderson(Solver):
    """The affine combination of the last f(z) with the least residual, for every row.

    With g_i = f(z_i) − z_i it minimises ‖Σ α_i g_i‖² under Σ α_i = 1 and continues from
    Σ α_i f(z_i) (Walker, Ni, *Anderson acceleration for fixed-point iterations*, SIAM J. Numer.
    Anal. 2011).  `memory` is the number of iterates combined.
    """

    memory: int = 5

    name: ClassVar[str] = "anderson"

    def stepper(self) -> Step:
        """Return the step, with an empty memory."""
        images: list[Tensor] = []
        gaps: list[Tensor] = []

        def step(z: Tensor, image: Tensor) -> Tensor:
            images.append(image)
            gaps.append(image - z)
            del images[: -self.memory], gaps[: -self.memory]
            stacked = torch.stack(gaps, dim=-2)
            stacked = stacked / _nonzero(stacked.abs().amax((-2, -1), keepdim=True))
            # Normal equations: memory × memory numbers for every row, in one batched product.
            # They square the condition number, for which the ridge makes up.
            gram = stacked @ stacked.mT
            diagonal = gram.diagonal(dim1=-2, dim2=-1)
            diagonal += torch.finfo(z.dtype).eps * _nonzero(diagonal.sum(-1, keepdim=True))
            # Lagrange: gram·α is constant, and the constant follows from Σ α = 1.
            weights = torch.linalg.solve(gram, torch.ones_like(gram[..., 0]))
            weights = weights / weights.sum(-1, keepdim=True)
            combined: Tensor = weights[..., None, :] @ torch.stack(images, dim=-2)
            return combined.squeeze(-2)

        return step


@dataclass(frozen=True)
class Broyden(Solver):
    """Quasi-Newton steps, with an inverse Jacobian that is built up from the steps taken.

    For r(z) = f(z) − z the step is −H r, where H starts as −I, the plain iteration, and after
    every step Δz with change Δr gets the update H + (Δz − H Δr) Δzᵀ H/(Δzᵀ H Δr) (Broyden, *A class
    of methods for solving nonlinear simultaneous equations*, Math. Comp. 1965).  After `memory`
    updates H starts from −I again.
    """

    memory: int = 20

    name: ClassVar[str] = "broyden"

    def stepper(self) -> Step:
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

        def step(z: Tensor, image: Tensor) -> Tensor:
            residual = image - z
            if last:
                moved, change = z - last[0], residual - last[1]
                # The update does not depend on the length of the step; its products do.
                length = _nonzero(moved.abs().amax(-1, keepdim=True))
                moved, change = moved / length, change / length
                # Each update was made for the H before it: dropping the oldest alone would spoil
                # the others.
                if len(left) == self.memory:
                    left.clear()
                    right.clear()
                image_of_change = inverse(change, left, right)
                curvature = torch.linalg.vecdot(moved, image_of_change)[..., None]
                # A row that no longer moves teaches nothing.
                update = torch.where(curvature == 0.0, 0.0, (moved - image_of_change) / curvature)
                row = inverse(moved, right, left)
                left.append(update)
                right.append(row)
            last[:] = z, residual
            return z - inverse(residual, left, right)

        return step


SOLVERS: dict[str, type[Solver]] = {each.name: each for each in (Solver, Anderson, Broyden)}


def as_solver(value: str | Mapping[str, Any] | Solver) -> Solver:
    """Turn a name, or the form made by `Solver.to_dict`, into a solver.

    Examples
    --------
    >>> as_solver({"name": "anderson", "memory": 8})
    Anderson(tolerance=None, max_steps=300, memory=8)
    """
    if isinstance(value, Solver):
        return value
    options = {"name": value} if isinstance(value, str) else dict(value)
    name = options.pop("name", None)
    if name not in SOLVERS:
        raise UnknownName(f"solver must be one of {', '.join(SOLVERS)}, got {name!r}.")
    try:
        return SOLVERS[name](**options)
    except TypeError:
        known = ", ".join(each.name for each in dataclasses.fields(SOLVERS[name]))
        raise UnknownName(f"Options of {name!r} must be among {known}, got {options}.") from None


def relative_residuals(z: Tensor, image: Tensor) -> Tensor:
    """Return ‖f(z) − z‖/‖f(z)‖ of every row, infinite where f(z) is not finite.

    Squares are zero in float32 for gradients of 1e-23, which would look converged, and infinite
    for 1e20.  Where that may be, rows are put into units of their own first.
    """
    gap = image - z
    change, size = (torch.linalg.vector_norm(x, dim=-1) for x in (gap, image))
    limits = torch.finfo(z.dtype)
    # Between these limits squares neither underflow nor overflow, nor do their sums: one pass.
    low, high = math.sqrt(limits.tiny) / limits.eps, math.sqrt(limits.max) * limits.eps
    if float(change.min()) > low and float(size.max()) < high:
        plain: Tensor = change / size
        return plain
    unit = torch.maximum(gap.abs(), image.abs()).amax(-1, keepdim=True)
    change, size = (torch.linalg.vector_norm(x / _nonzero(unit), dim=-1) for x in (gap, image))
    # A row that is zero and stays zero is solved; denormal numbers are known to their grid only.
    rounded = change * unit[..., 0] <= 2.0 * limits.tiny * limits.eps
    residuals = torch.where(rounded, 0.0, change / size)
    return torch.where(unit[..., 0].isfinite(), residuals, math.inf)


def solve(f: Map, start: Tensor, solver: Solver) -> tuple[Tensor, SolveRecord]:
    """Solve z = f(z) from `start`, of shape (..., m); return f(z) of every row and the record.

    A row is solved at its first residual within the tolerance, whatever the others do; a row that
    overflows is set aside, and the others go on.
    """
    tolerance, step = solver.tolerance_for(start.dtype), solver.stepper()
    z, image, answer = start, start, start
    residuals = torch.zeros(start.shape[:-1], dtype=start.dtype, device=start.device)
    active = torch.full(start.shape[:-1], start.numel() > 0, device=start.device)
    history: list[float] = []
    some_active, all_active, some_lost = start.numel() > 0, True, False
    while some_active and len(history) < solver.max_steps:
        image = f(z)
        if image.shape != start.shape:
            shapes = f"of z, {tuple(start.shape)}, got {tuple(image.shape)}"
            raise InvalidInput(f"f must return a tensor of the shape {shapes}.")
        residual = relative_residuals(z, image)
        residuals = residual if all_active else torch.where(active, residual, residuals)
        among = residual if all_active else torch.where(active, residual, 0.0)
        least, largest = (float(each) for each in torch.aminmax(among))
        history.append(largest)
        if not all_active or least <= tolerance or largest == math.inf:
            finished = active & (residual <= tolerance)
            if some_lost or largest == math.inf:
                lost = ~image.isfinite().all(dim=-1)
                some_lost, finished = some_lost or bool(lost.any()), active & (lost | finished)
                # A row that is lost must not reach what the solver remembers.
                z, kept = (torch.where(lost[..., None], 0.0, each) for each in (z, image))
            else:
                kept = image
            if bool(finished.any()):
                answer = torch.where(finished[..., None], image, answer)
                active = active & ~finished
                some_active, all_active = bool(active.any()), False
            image = kept
        if some_active:
            z = step(z, image)
    answer = torch.where(active[..., None], image, answer) if some_active else answer
    unsolved = int((residuals > tolerance).sum())
    reason = f"converged in {len(history)} steps" if history else "nothing to solve"
    if unsolved:
        diverged = unsolved > int(active.sum())
        what = "the iterates grew without bound" if diverged else "no convergence"
        rows = f" for {unsolved} of {active.numel()} rows" if active.numel() > 1 else ""
        reason = f"{what} in {len(history)} steps{rows}"
    return answer, SolveRecord(not unsolved, tuple(history), residuals, tolerance, reason)


def implicit_layer(
    f: Map,
    theta: Sequence[Tensor],
    z0: Tensor,
    *,
    solver: str | Mapping[str, Any] | Solver = "plain",
    backward: str | Mapping[str, Any] | Solver | int | None = None,
    on_failure: OnFailure = "raise",
) -> tuple[Tensor, SolveRecord]:
    """Solve z* = f(z*, θ); the result is differentiable in θ, any number of times.

    The iteration is not differentiated through: memory does not grow with its steps, and gradients
    are those of the fixed point itself.  Works with `torch.func` (grad, jacrev, jacfwd, vmap) and,
    outside the compiled graph, under `torch.compile`.  For many gradients at once use
    `torch.func.vmap`, not the ``is_grads_batched`` of `torch.autograd.grad`.

    Parameters
    ----------
    f : callable
        f(z, *theta), in the shape of z, each row by itself, in functions that `torch.func`
        differentiates.  Every tensor to be differentiated through must be in `theta`.
    theta : sequence of Tensor
    z0 : Tensor of shape (..., m)
        Where the solve begins; float32 or float64.
    solver : {"plain", "anderson", "broyden"}, dict or Solver
        A dict sets options: ``{"name": "anderson", "memory": 8}``.
    backward : solver or int, optional
        Of the linear system of the gradient; the same solver by default.  A number k takes k terms
        of its Neumann series instead, the phantom gradient (Geng et al., *On Training Implicit
        Models*, NeurIPS 2021); 1 leaves J out.
    on_failure : {"raise", "warn", "ignore"}
        What to do about a solve, forward or backward, that does not converge.

    Returns
    -------
    z : Tensor of shape (..., m)
    record : SolveRecord
        Of the solve; its `derivatives` gets the records of gradients as they are computed.

    Examples
    --------
    >>> theta = torch.tensor([0.5, 1.0], requires_grad=True)
    >>> z, record = implicit_layer(lambda z, t: torch.cos(t * z), [theta], torch.ones(2))
    >>> z, record.converged
    (tensor([0.9004, 0.7391], grad_fn=<...>), True)
    >>> z.sum().backward()
    >>> theta.grad  # −z sin(θz)/(1 + θ sin(θz))
    tensor([-0.3218, -0.2975])
    """
    if on_failure not in ("raise", "warn", "ignore"):
        raise UnknownName(f"on_failure must be raise, warn or ignore, got {on_failure!r}.")
    forward = as_solver(solver)
    if backward is None:
        backward = forward
    elif not isinstance(backward, int):
        backward = as_solver(backward)
    elif backward < 1:
        raise InvalidInput(f"backward must be at least one term, got {backward}.")
    call = _Call(f, forward, backward, on_failure, [])
    # A compiler cannot trace a loop whose length depends on the data.
    run = torch.compiler.disable(_run) if torch.compiler.is_compiling() else _run  # type: ignore[no-untyped-call]
    result: tuple[Tensor, SolveRecord] = run(call, z0.detach(), *theta)
    return result


def jacobian_product(f: Map, z: Tensor, theta: Sequence[Tensor] = (), *, transposed: bool) -> Map:
    """Return v ↦ J v, or Jᵀ v, for J = ∂f/∂z at (z, θ); differentiable itself."""
    value, pull = _vjp(lambda z: f(z, *theta), z)
    if transposed:
        return lambda u: pull(u)[0]
    # The transpose of a linear map by its gradient: torch's forward mode cannot be nested.
    push = _vjp(pull, torch.zeros_like(value))[1]
    return lambda v: push((v,))[0]


@dataclass(frozen=True)
class _Call:
    """One call of the implicit layer: everything about it that is not a tensor."""

    f: Map
    solver: Solver
    backward: Solver | int
    on_failure: OnFailure
    records: list[SolveRecord]
    graph: list[Tensor] = field(default_factory=list)  # f(z, θ) and θ of the last transposed solve

    def keep(self, record: SolveRecord, theta: Sequence[Tensor]) -> None:
        """Keep a record, and report a failure."""
        what = "The gradient of the fixed point" if self.records else "The fixed point"
        if self.records:
            self.records[0].derivatives.append(record)
        else:
            self.records.append(record)
        if record.converged:
            return
        for i, each in enumerate(theta):
            if bad := int((~each.isfinite()).sum()):
                raise InvalidInput(
                    f"theta[{i}] must be finite, got {bad} NaN or infinite entries of "
                    f"{each.numel()}. If it is the weights, training has diverged."
                )
        if self.on_failure == "ignore":
            return
        last = ", ".join(f"{residual:.2g}" for residual in record.history[-_SHOWN_RESIDUALS:])
        others = " or ".join(name for name in ("anderson", "broyden") if name != self.solver.name)
        message = (
            f"{what} was not found: {record.reason}. The last relative residuals were {last}; the "
            f"tolerance is {record.tolerance:.2g}. Try the solver {others}, more steps, or a map "
            "that contracts (smaller weights, or a larger width)."
        )
        if self.on_failure == "raise":
            raise NotConverged(message, record)
        warnings.warn(message, NotConvergedWarning, stacklevel=2)

    def resolvent(self, transposed: bool, g: Tensor, z: Tensor, *theta: Tensor) -> Tensor:
        """Return (I − J)⁻¹ g, or (I − Jᵀ)⁻¹ g."""
        if isinstance(self.backward, Solver):
            u: Tensor = _Resolvent.apply(self, transposed, g, z, *theta)  # type: ignore[no-untyped-call]
            return u
        apply, total = jacobian_product(self.f, z, theta, transposed=transposed), g
        for _ in range(self.backward - 1):
            total = g + apply(total)
        return total

    def batched(self, *dims: int | None) -> _Call:
        """Return the same call for many instances of the problem; `dims` are those of (z, θ)."""
        axes = tuple(None if dim is None else 0 for dim in dims)
        return dataclasses.replace(self, f=torch.func.vmap(self.f, in_dims=axes))


def _run(call: _Call, z0: Tensor, *theta: Tensor) -> tuple[Tensor, SolveRecord]:
    z: Tensor = _Equilibrium.apply(call, z0, *theta)  # type: ignore[no-untyped-call]
    return z, call.records[0]


class _Equilibrium(torch.autograd.Function):
    """(z0, θ) ↦ z*, as a differentiable function of θ."""

    @staticmethod
    def forward(call: _Call, z0: Tensor, *theta: Tensor) -> Tensor:
        z, record = solve(lambda z: call.f(z, *theta), z0, call.solver)
        call.keep(record, theta)
        return _not_an_input(z, z0, *theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.call = inputs[0]
        ctx.save_for_backward(output, *inputs[2:])
        ctx.save_for_forward(output, *inputs[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, *theta = ctx.saved_tensors
        u = ctx.call.resolvent(True, gradients[0], z, *theta)
        asked = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        value, *own = ctx.call.graph or [u.new_empty(0)]
        ctx.call.graph.clear()

        def of_asked(*values: Tensor) -> Tensor:
            every = list(theta)
            for i, value in zip(asked, values, strict=True):
                every[i] = value
            image: Tensor = ctx.call.f(z, *every)
            return image

        pulled: Sequence[Tensor | None]
        # The value of many instances has one axis more.
        if own and value.shape == u.shape and not torch.is_grad_enabled():
            pulled = torch.autograd.grad(value, [own[i] for i in asked], u, allow_unused=True)
        else:
            pulled = _vjp(of_asked, *(theta[i] for i in asked))[1](u)
        found: list[Tensor | None] = [None] * (2 + len(theta))
        for i, gradient in zip(asked, pulled, strict=True):
            found[2 + i] = gradient
        return tuple(found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        z, *theta = ctx.saved_tensors
        drive = _push(lambda *t: ctx.call.f(z, *t), theta, tangents[2:])
        pushed: Tensor = ctx.call.resolvent(False, drive, z, *theta)
        return pushed

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: _Call, z0: Tensor, *theta: Tensor) -> Any:
        start = _spread(z0, dims[1], info.batch_size)
        front = map(_to_front, theta, dims[2:])
        return _Equilibrium.apply(call.batched(0, *dims[2:]), start, *front), 0  # type: ignore[no-untyped-call]


class _Resolvent(torch.autograd.Function):
    """(g, z, θ) ↦ u with u = g + J u, or u = g + Jᵀ u if transposed, J = ∂f/∂z at (z, θ)."""

    @staticmethod
    def forward(call: _Call, transposed: bool, g: Tensor, z: Tensor, *theta: Tensor) -> Tensor:
        # Autograd itself is several times faster than `torch.func` for small tensors.
        with torch.enable_grad():
            point = [each.detach().requires_grad_() for each in (z, *theta)]
            value = call.f(*point)
            at, along = value, point[0]
            if transposed:
                call.graph[:] = [value, *point[1:]]
            else:
                along = torch.zeros_like(value, requires_grad=True)
                (at,) = torch.autograd.grad(value, point[0], along, create_graph=True)
        assert isinstance(call.backward, Solver)
        u, record = solve(
            lambda u: g + torch.autograd.grad(at, along, u, retain_graph=True)[0], g, call.backward
        )
        call.keep(record, theta)
        return _not_an_input(u, g)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.call, ctx.transposed = inputs[:2]
        ctx.save_for_backward(output, *inputs[3:])
        ctx.save_for_forward(output, *inputs[3:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        u, *point = ctx.saved_tensors
        w = ctx.call.resolvent(not ctx.transposed, gradients[0], *point)
        # d(wᵀu) of (I − J)u = g is wᵀ(dJ)u: one form, whichever of the two systems was solved.
        left, right = (u, w) if ctx.transposed else (w, u)

        def pushed(z: Tensor, *theta: Tensor) -> Tensor:
            return jacobian_product(ctx.call.f, z, theta, transposed=False)(right)

        return None, None, w, *_vjp(pushed, *point)[1](left)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        u, *point = ctx.saved_tensors

        def moved(z: Tensor, *theta: Tensor) -> Tensor:
            return jacobian_product(ctx.call.f, z, theta, transposed=ctx.transposed)(u)

        drive = _push(moved, point, tangents[3:])
        drive = drive if tangents[2] is None else drive + tangents[2]
        pushed: Tensor = ctx.call.resolvent(ctx.transposed, drive, *point)
        return pushed

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], call: _Call, transposed: bool, g: Tensor, *point: Tensor
    ) -> Any:
        drive = _spread(g, dims[2], info.batch_size)
        z = _spread(point[0], dims[3], info.batch_size)
        front = map(_to_front, point[1:], dims[4:])
        return _Resolvent.apply(call.batched(0, *dims[4:]), transposed, drive, z, *front), 0  # type: ignore[no-untyped-call]


def _push(f: Map, at: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
    """Return the derivative of f along tangents, by the gradient of its linear gradient."""
    along = (torch.zeros_like(x) if t is None else t for t, x in zip(tangents, at, strict=True))
    value, pull = _vjp(f, *at)
    pushed: Tensor = _vjp(pull, torch.zeros_like(value))[1](tuple(along))[0]
    return pushed


def _vjp(f: Callable[..., Any], *at: Tensor) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
    value, pull = torch.func.vjp(f, *at)  # type: ignore[misc]  # typed for has_aux too
    return value, pull


def _not_an_input(result: Tensor, *inputs: Tensor) -> Tensor:
    """Copy a result that is one of the inputs itself, which autograd could not tell apart."""
    return result.clone() if any(result is each for each in inputs) else result


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0.0, 1.0, x)


def _to_front(x: Tensor, dim: int | None) -> Tensor:
    return x if dim is None else x.movedim(dim, 0)


def _spread(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)

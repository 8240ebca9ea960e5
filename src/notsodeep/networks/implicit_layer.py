"""The implicit layer: problem, solver and gradient are separate arguments of one function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from notsodeep.networks.equilibrium_solvers import Solver, as_solver
from notsodeep.networks.fixed_point_problems import GeneralProblem, Map, Problem
from notsodeep.networks.gradient_choices import as_gradient
from notsodeep.networks.implicit_gradient import Call, Equilibrium, Gradient
from notsodeep.networks.solve_records import ImplicitRecord, OnFailure, Report, report_for


def implicit_layer(
    problem: Problem | Map,
    parameters: Sequence[Tensor],
    start: Tensor,
    *,
    solver: str | Mapping[str, Any] | Solver = "fixed_point",
    gradient: str | Mapping[str, Any] | Gradient = "implicit",
    on_failure: OnFailure | Report = "raise",
    subject: str = "the fixed point",
) -> tuple[Tensor, ImplicitRecord]:
    """Solve z* = f(z*, θ); the result is differentiable in θ, any number of times.

    The iteration is not differentiated through: memory does not grow with its steps, and gradients
    are those of the fixed point itself.  Works with `torch.func` (grad, jacrev, jacfwd, vmap) and,
    outside the compiled graph, under `torch.compile`.  For many gradients at once use
    `torch.func.vmap`, not the ``is_grads_batched`` of `torch.autograd.grad`.

    Parameters
    ----------
    problem : callable or Problem
        f(z, *parameters), in the shape of z, each sample by itself.  It must get every tensor that
        is to be differentiated through `parameters`.  A `Problem` brings its own derivatives.
    parameters : sequence of Tensor
        θ.
    start : Tensor of shape (..., m)
        Where the solve begins; float32 or float64.  The last axis holds the unknowns of a sample.
    solver : {"fixed_point", "anderson", "broyden"}, dict or Solver
        A dict names the solver and sets its options: ``{"name": "anderson", "memory": 8}``.
    gradient : {"implicit", "phantom", "jacobian_free"}, dict or Gradient
        "implicit" is exact; the others are approximations that save the backward solve.
    on_failure : {"raise", "warn", "ignore"} or callable
        What to do about a solve, forward or backward, that does not converge; a callable is given
        its record.
    subject : str
        What messages call z*.

    Returns
    -------
    z : Tensor of shape (..., m)
    record : ImplicitRecord
        The solve, and later those for its derivatives.

    Raises
    ------
    NotConverged
        With the record of the solve that failed.
    InvalidInput
        A parameter is not finite.

    Examples
    --------
    >>> theta = torch.tensor([0.5, 1.0], requires_grad=True)
    >>> z, record = implicit_layer(lambda z, t: torch.cos(t * z), [theta], torch.ones(2))
    >>> z, record.forward.converged
    (tensor([0.9004, 0.7391], grad_fn=<...>), True)
    >>> z.sum().backward()
    >>> theta.grad  # −z sin(θz)/(1 + θ sin(θz))
    tensor([-0.3218, -0.2975])
    """
    record, method = ImplicitRecord(), as_solver(solver)
    remedy = (
        f"The map may not contract. Try {method.others}, more steps, a better start, or a looser "
        "tolerance."
    )
    call = Call(
        problem if isinstance(problem, Problem) else GeneralProblem(problem),
        method,
        as_gradient(gradient),
        record,
        report_for(on_failure, remedy) if isinstance(on_failure, str) else on_failure,
        subject,
    )
    # A compiler cannot trace a loop whose length depends on the data.
    run = torch.compiler.disable(_run) if torch.compiler.is_compiling() else _run  # type: ignore[no-untyped-call]
    return run(call, start.detach(), *parameters), record


def _run(call: Call, start: Tensor, *parameters: Tensor) -> Tensor:
    z: Tensor = Equilibrium.apply(call, start, *parameters)  # type: ignore[no-untyped-call]
    return z

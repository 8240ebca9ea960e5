"""The solvers: one loop, one stopping rule, three kinds of steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from notsodeep.errors import InvalidInput, UnknownName
from notsodeep.networks.equilibrium_solvers import (
    Anderson,
    Broyden,
    FixedPointIteration,
    Solver,
    as_solver,
    solve,
)

SOLVERS = [FixedPointIteration(), Anderson(), Broyden(), Anderson(memory=2), Broyden(memory=3)]
every = pytest.mark.parametrize("solver", SOLVERS, ids=str)


def linear_problem(radius: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return M of the given spectral radius, b and the solutions of z = z Mᵀ + b."""
    generator = torch.Generator().manual_seed(3)
    M = torch.randn(30, 30, dtype=torch.float64, generator=generator)
    M *= radius / torch.linalg.eigvals(M).abs().max()
    b = torch.randn(8, 30, dtype=torch.float64, generator=generator)
    z = torch.linalg.solve(torch.eye(30, dtype=M.dtype) - M, b.mT).mT
    return M.to(dtype), b.to(dtype), z.to(dtype)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_systems(solver: Solver, dtype: torch.dtype) -> None:
    M, b, expected = linear_problem(0.6, dtype)
    z, record = solve(lambda z: z @ M.mT + b, torch.zeros_like(b), solver)
    assert record.converged
    assert z.dtype == dtype
    error = (z - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.max() < 50 * record.tolerance


@every
def test_the_record_is_what_happened(solver: Solver) -> None:
    M, b, _ = linear_problem(0.5, torch.float64)
    seen: list[Tensor] = []

    def function(z: Tensor) -> Tensor:
        seen.append(z)
        return z @ M.mT + b

    z, record = solve(function, b, solver)
    assert record.steps == len(seen) == len(record.history)
    images = [each @ M.mT + b for each in seen]
    residuals = [
        (image - each).norm(dim=1) / image.norm(dim=1)
        for each, image in zip(seen, images, strict=True)
    ]
    assert record.history == pytest.approx([float(r.max()) for r in residuals], rel=1e-12)
    assert record.history[-1] <= record.tolerance < record.history[-2]
    assert record.residual == record.history[-1]
    torch.testing.assert_close(record.residuals, residuals[-1])
    torch.testing.assert_close(z, images[-1])
    assert record.reason == f"converged in {record.steps} steps"


def test_acceleration_saves_evaluations() -> None:
    M, b, _ = linear_problem(0.95, torch.float64)
    steps = {}
    for solver in (FixedPointIteration(max_steps=2000), Anderson(memory=10), Broyden(memory=40)):
        _, record = solve(lambda z: z @ M.mT + b, b, solver)
        assert record.converged
        steps[solver.name] = record.steps
    assert steps["broyden"] < steps["anderson"] < steps["fixed_point"] / 2


def test_broyden_needs_no_contraction() -> None:
    M, b, expected = linear_problem(1.5, torch.float64)
    _, record = solve(lambda z: z @ M.mT + b, b, FixedPointIteration())
    assert record.converged is False
    z, record = solve(lambda z: z @ M.mT + b, b, Broyden(memory=80))
    assert record.converged
    torch.testing.assert_close(z, expected, rtol=1e-8, atol=1e-8)


@every
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_units_do_not_matter(solver: Solver, scale: float) -> None:
    """In float32 the squares of 1e-30 are zero, and those of 1e30 infinite."""
    M, b, expected = linear_problem(0.6, torch.float32)
    z, record = solve(lambda z: z @ M.mT + scale * b, scale * b, solver)
    assert record.converged
    assert record.steps > 10
    torch.testing.assert_close(z / scale, expected, rtol=1e-4, atol=1e-4)


@every
def test_every_sample_meets_the_tolerance(solver: Solver) -> None:
    """Slow samples decide, and large ones do not hide the others."""
    rates = torch.tensor([[0.1], [0.9], [0.5]], dtype=torch.float64)
    b = torch.tensor([[1e8, -1e8], [1e-8, 2e-8], [1.0, 3.0]], dtype=torch.float64)
    z, record = solve(lambda z: -rates * torch.sin(z / b) * b + b, b, solver)
    assert record.converged
    assert record.residuals.shape == (3,)
    assert (record.residuals <= record.tolerance).all()
    root = z / b
    torch.testing.assert_close(root, 1 - rates * torch.sin(root), rtol=1e-10, atol=0.0)


@every
def test_samples_that_are_zero_or_done(solver: Solver) -> None:
    M, b, _ = linear_problem(0.6, torch.float64)
    b[2] = 0.0
    z, record = solve(lambda z: z @ M.mT + b, b, solver)
    assert record.converged
    assert torch.equal(z[2], torch.zeros_like(z[2]))
    nothing, record = solve(lambda z: z, torch.zeros(4, 3), solver)
    assert record.converged
    assert record.steps == 1
    assert not nothing.any()
    empty, record = solve(lambda z: z, torch.zeros(0, 3), solver)
    assert record.converged
    assert record.steps == 0
    assert record.residual == 0.0
    assert empty.shape == (0, 3)


@every
def test_failures_have_a_reason(solver: Solver) -> None:
    _, record = solve(lambda z: 2 * z * (1 + z.abs()), torch.ones(2, 3), FixedPointIteration())
    assert record.converged is False
    assert "without bound" in record.reason
    assert record.steps < 20
    _, record = solve(lambda z: -z + 1, torch.zeros(2, 3), FixedPointIteration(max_steps=7))
    assert record.reason == "no convergence in 7 steps"
    assert record.steps == 7
    _, record = solve(lambda z: z * math.nan, torch.ones(2, 3), solver)
    assert record.converged is False
    assert record.steps == 1


def test_shapes_without_samples_or_with_many_axes() -> None:
    M, b, expected = linear_problem(0.6, torch.float64)
    for solver in SOLVERS:
        z, record = solve(lambda z: z @ M.mT + b[0], b[0], solver)
        assert record.residuals.shape == ()
        torch.testing.assert_close(z, expected[0], rtol=1e-9, atol=1e-9)
        folded = b.reshape(2, 4, 30)
        z, record = solve(lambda z, b=folded: z @ M.mT + b, folded, solver)
        assert record.residuals.shape == (2, 4)
        torch.testing.assert_close(z.reshape(8, 30), expected, rtol=1e-9, atol=1e-9)


def test_named_solvers() -> None:
    for solver in SOLVERS:
        assert as_solver(solver) is solver
        assert as_solver(solver.to_dict()) == solver
    assert as_solver("anderson") == Anderson()
    assert as_solver({"name": "broyden", "memory": 7}) == Broyden(memory=7)
    with pytest.raises(UnknownName, match="'anderson'"):
        as_solver("andersen")
    with pytest.raises(UnknownName, match="option of the solver 'anderson' 'memry'"):
        as_solver({"name": "anderson", "memry": 3})
    with pytest.raises(UnknownName, match="Unknown solver"):
        as_solver({"memory": 3})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedPointIteration(tolerance=0.0), "tolerance of FixedPointIteration"),
        (lambda: FixedPointIteration(tolerance="1e-3"), "between 0 and 1"),
        (lambda: Anderson(tolerance=2.0), "tolerance of Anderson"),
        (lambda: Broyden(max_steps=0), "max_steps of Broyden"),
        (lambda: Anderson(memory=1), "memory of Anderson .* at least 2"),
        (lambda: Anderson(ridge=-1.0), "ridge of Anderson must be positive"),
        (lambda: Broyden(memory=0), "memory of Broyden"),
        (lambda: solve(lambda z: z, torch.zeros(2), FixedPointIteration(1e-9)), "rounding error"),
        (lambda: solve(lambda z: z, torch.zeros(2).half(), Anderson()), "autocast"),
        (lambda: solve(lambda z: z[:1], torch.zeros(2, 2), Anderson()), r"shape of z, \(2, 2\)"),
    ],
)
def test_options_are_checked(make: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        make()

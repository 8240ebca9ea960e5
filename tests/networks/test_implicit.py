"""Fixed points: one loop and stopping rule, three kinds of steps, and what happens on failure."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged, NotConvergedWarning, UnknownName
from notsodeep.networks.implicit import Anderson, Broyden, Solver, as_solver, solve

SOLVERS = [Solver(), Anderson(), Broyden(), Anderson(memory=2), Broyden(memory=3)]
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
    """Every row is answered by its first f(z) with a residual within the tolerance."""
    M, b, _ = linear_problem(0.5, torch.float64)
    images: list[Tensor] = []
    residuals: list[Tensor] = []

    def f(z: Tensor) -> Tensor:
        images.append(z @ M.mT + b)
        residuals.append((images[-1] - z).norm(dim=1) / images[-1].norm(dim=1))
        return images[-1]

    z, record = solve(f, b, solver)
    assert record.steps == len(images) == len(record.history)
    within = torch.stack(residuals) <= record.tolerance
    first = within.int().argmax(0)
    assert first.max() + 1 == record.steps
    rows = torch.arange(len(b))
    torch.testing.assert_close(record.residuals, torch.stack(residuals)[first, rows])
    torch.testing.assert_close(z, torch.stack(images)[first, rows])
    open_rows = [r[first >= k].max() for k, r in enumerate(residuals)]
    assert record.history == pytest.approx([float(r) for r in open_rows], rel=1e-12)
    assert record.residual == record.residuals.max() <= record.tolerance < record.history[-2]
    assert record.reason == f"converged in {record.steps} steps"


@every
def test_rows_are_solved_whatever_the_others_do(solver: Solver) -> None:
    M, b, _ = linear_problem(0.6, torch.float64)

    def f(z: Tensor) -> Tensor:
        return z @ M.mT + b[: len(z)]

    def spoilt(z: Tensor) -> Tensor:
        image = f(z)
        image[1], image[2] = torch.nan, 1e30 * z[2].abs() + 1e200
        return image

    alone, _ = solve(f, torch.zeros_like(b), solver)
    z, record = solve(spoilt, torch.zeros_like(b), solver)
    good = [0, 3, 4, 5, 6, 7]
    torch.testing.assert_close(z[good], alone[good], rtol=1e-12, atol=1e-12)
    assert not record.converged
    assert (record.residuals[good] <= record.tolerance).all()
    assert record.residuals[[1, 2]].isinf().all()
    assert record.reason.endswith("for 2 of 8 rows")


def test_acceleration_saves_evaluations() -> None:
    M, b, _ = linear_problem(0.95, torch.float64)
    steps = {}
    for solver in (Solver(max_steps=2000), Anderson(memory=10), Broyden(memory=40)):
        _, record = solve(lambda z: z @ M.mT + b, b, solver)
        assert record.converged
        steps[solver.name] = record.steps
    assert steps["broyden"] < steps["anderson"] < steps["plain"] / 2


def test_broyden_needs_no_contraction() -> None:
    M, b, expected = linear_problem(1.5, torch.float64)
    assert not solve(lambda z: z @ M.mT + b, b, Solver())[1].converged
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
def test_every_row_meets_the_tolerance(solver: Solver) -> None:
    """Slow rows decide, and large ones do not hide the others."""
    rates = torch.tensor([[0.1], [0.9], [0.5]], dtype=torch.float64)
    b = torch.tensor([[1e8, -1e8], [1e-8, 2e-8], [1.0, 3.0]], dtype=torch.float64)
    z, record = solve(lambda z: -rates * torch.sin(z / b) * b + b, b, solver)
    assert record.converged
    assert (record.residuals <= record.tolerance).all()
    root = z / b
    torch.testing.assert_close(root, 1 - rates * torch.sin(root), rtol=1e-10, atol=0.0)


@every
def test_rows_that_are_zero_or_none(solver: Solver) -> None:
    M, b, _ = linear_problem(0.6, torch.float64)
    b[2] = 0.0
    z, record = solve(lambda z: z @ M.mT + b, b, solver)
    assert record.converged
    assert torch.equal(z[2], torch.zeros_like(z[2]))
    nothing, record = solve(lambda z: z, torch.zeros(4, 3), solver)
    assert (record.converged, record.steps, bool(nothing.any())) == (True, 1, False)
    empty, record = solve(lambda z: z, torch.zeros(0, 3), solver)
    assert (record.converged, record.steps, record.residual) == (True, 0, 0.0)
    assert empty.shape == (0, 3)


@every
def test_shapes_without_rows_or_with_many_axes(solver: Solver) -> None:
    M, b, expected = linear_problem(0.6, torch.float64)
    z, record = solve(lambda z: z @ M.mT + b[0], b[0], solver)
    assert record.residuals.shape == ()
    torch.testing.assert_close(z, expected[0], rtol=1e-9, atol=1e-9)
    folded = b.reshape(2, 4, 30)
    z, record = solve(lambda z: z @ M.mT + folded, folded, solver)
    assert record.residuals.shape == (2, 4)
    torch.testing.assert_close(z.reshape(8, 30), expected, rtol=1e-9, atol=1e-9)


def test_failures_have_a_reason() -> None:
    _, record = solve(lambda z: 2 * z * (1 + z.abs()), torch.ones(2, 3), Solver())
    assert not record.converged
    assert record.reason.startswith("the iterates grew without bound")
    assert record.steps < 20
    _, record = solve(lambda z: -z + 1, torch.zeros(3), Solver(max_steps=7))
    assert record.reason == "no convergence in 7 steps"
    for solver in SOLVERS:
        _, record = solve(lambda z: z * math.nan, torch.ones(2, 3), solver)
        assert (record.converged, record.steps) == (False, 1)


def test_named_solvers() -> None:
    for solver in SOLVERS:
        assert as_solver(solver) is solver
        assert as_solver(solver.to_dict()) == solver
    assert as_solver("anderson") == Anderson()
    for wrong in ("andersen", {"name": "anderson", "memry": 3}, {"memory": 3}):
        with pytest.raises(UnknownName, match=r"must be (one of|among)"):
            as_solver(wrong)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Solver(tolerance=0.0), "tolerance must be between 0 and 1"),
        (lambda: Broyden(max_steps=0), "max_steps must be positive"),
        (lambda: Anderson(memory=0), "memory must be positive"),
        (lambda: solve(lambda z: z, torch.zeros(2), Solver(1e-9)), "rounding error"),
        (lambda: solve(lambda z: z, torch.zeros(2).half(), Solver()), "autocast"),
        (lambda: solve(lambda z: z[:1], torch.zeros(2, 2), Solver()), r"shape of z, \(2, 2\)"),
        (lambda: nsd.implicit_layer(lambda z: z, [], torch.zeros(2), backward=0), "backward"),
        (
            lambda: nsd.implicit_layer(
                lambda z, t: t * z, [torch.tensor([math.nan])], torch.ones(2)
            ),
            r"theta\[0\] must be finite",
        ),
    ],
)
def test_options_are_checked(make: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        make()


def test_choices_on_failure() -> None:
    theta = torch.tensor([0.3, 0.9], dtype=torch.float64, requires_grad=True)
    start = torch.ones(2, dtype=torch.float64)

    def f(z: Tensor, t: Tensor) -> Tensor:
        return 3 * t * z + 1

    with pytest.raises(NotConverged, match="Try the solver anderson or broyden") as caught:
        nsd.implicit_layer(f, [theta], start)
    assert len(caught.value.record.history) == caught.value.record.steps
    with pytest.warns(NotConvergedWarning, match="fixed point was not found"):
        nsd.implicit_layer(f, [theta], start, on_failure="warn")
    assert not nsd.implicit_layer(f, [theta], start, on_failure="ignore")[1].converged
    with pytest.raises(UnknownName, match="on_failure"):
        nsd.implicit_layer(f, [theta], start, on_failure="rise")
    z, _ = nsd.implicit_layer(f, [theta], start, solver="broyden")
    torch.testing.assert_close(z, 1 / (1 - 3 * theta))


def test_forward_and_backward_have_their_own_solvers() -> None:
    M, b, _ = linear_problem(0.6, torch.float64)
    b.requires_grad_()

    def f(z: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(z) @ M.mT + b

    backward = Broyden(tolerance=1e-2)
    z, record = nsd.implicit_layer(f, [b], b, solver="anderson", backward=backward)
    z.sum().backward()
    assert (record.tolerance, record.derivatives[0].tolerance) == (1e-12, 1e-2)
    assert record.derivatives[0].steps < record.steps
    z, _ = nsd.implicit_layer(f, [b], b, backward=Solver(max_steps=2))
    with pytest.raises(NotConverged, match="gradient of the fixed point"):
        z.sum().backward()


def test_memory_does_not_grow_with_the_steps() -> None:
    """What autograd saves is the solution and the parameters, whatever the tolerance."""
    M, b, _ = linear_problem(0.6, torch.float64)
    b.requires_grad_()
    saved = []
    for tolerance in (1e-2, 1e-12):
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            nsd.implicit_layer(lambda z, b: z @ M.mT + b, [b], b, solver=Solver(tolerance))
        saved.append(count)
    assert saved[0] == saved[1]

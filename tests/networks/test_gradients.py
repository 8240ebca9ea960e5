"""Derivatives of the fixed point: against finite differences, against loops, of every order."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import notsodeep as nsd
from notsodeep.networks import Network, build, implicit_layer

# torch loads its forward-mode rules through its own old compiler, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script")

SMOOTH = ["tanh", "swish"]
KINKED = ["relu"]


def network(
    activation: str | nsd.activations.Activation = "tanh", backward: int | None = None
) -> Network:
    deq = nsd.DeepEquilibrium(activation, 0.2)
    module = build(deq, 4, 6, 2, rng=0, dtype=torch.float64)
    module.backward = backward
    return module.eval()


def inputs(count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, 4, dtype=torch.float64, generator=generator)


def outputs_of(module: Network) -> Callable[..., Tensor]:
    """Return f(parameters, X) for `torch.func`."""
    return lambda parameters, X: functional_call(module, parameters, (X,))


def parameters_of(module: Network) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


@pytest.mark.parametrize("activation", [*SMOOTH, *KINKED], ids=str)
def test_gradients_are_those_of_finite_differences(activation: str) -> None:
    deq = nsd.DeepEquilibrium(activation, 0.2)
    module = build(deq, 4, 3, 1, rng=0, dtype=torch.float64).eval()
    names = list(parameters_of(module))
    tensors = [inputs(2).requires_grad_()]
    tensors += [p.requires_grad_() for p in parameters_of(module).values()]

    def outputs(X: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(module, dict(zip(names, parameters, strict=True)), (X,))

    # Away from kinks: a step of 1e-6 changes pre-activations by about as much.
    drive = math.sqrt(0.8) * tensors[0] @ module.injection_1.mT
    preactivations = drive + math.sqrt(0.2) * module.features(tensors[0]) @ module.weight_1.mT
    for kink in module.model.activation.kinks:
        assert (preactivations - kink).abs().min() > 1e-4
    assert torch.autograd.gradcheck(outputs, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(outputs, tensors, check_fwd_over_rev=True)


def test_any_map_has_the_same_derivatives() -> None:
    """A problem without derivatives of its own gets them from `torch.func`."""

    def damped(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.sin(z @ a.mT) / 2 + b

    def solution(a: Tensor, b: Tensor) -> Tensor:
        return implicit_layer(damped, [a, b], torch.zeros_like(b))[0]

    generator = torch.Generator().manual_seed(1)
    a = torch.randn(3, 3, dtype=torch.float64, generator=generator) / 3
    b = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    tensors = (a.requires_grad_(), b.requires_grad_())
    assert torch.autograd.gradcheck(solution, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(solution, tensors, check_fwd_over_rev=True)
    fast, slow = jacrev(solution, (0, 1))(a, b), jacfwd(solution, (0, 1))(a, b)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    each = vmap(solution, in_dims=(None, 0))(a, b)
    torch.testing.assert_close(each, solution(a, b), rtol=1e-10, atol=1e-12)


def test_jacobians_are_those_of_a_loop() -> None:
    module, X = network(), inputs(4)
    parameters = parameters_of(module)
    outputs = module(X)
    loops = {
        name: torch.stack(
            [torch.autograd.grad(f, p, retain_graph=True)[0] for f in outputs.flatten()]
        )
        for name, p in module.named_parameters()
    }
    for jacobian in (jacrev, jacfwd):
        every = jacobian(outputs_of(module))(parameters, X)
        for name, expected in loops.items():
            found = every[name].reshape(expected.shape)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_gradients_of_single_samples_are_those_of_a_loop() -> None:
    module, X = network(), inputs(4)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return outputs_of(module)(parameters, x).square().sum()

    every = vmap(grad(loss), in_dims=(None, 0))(parameters_of(module), X)
    for i, x in enumerate(X):
        expected = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        for found, reference in zip(every.values(), expected, strict=True):
            torch.testing.assert_close(found[i], reference, rtol=1e-10, atol=1e-12)


def test_ensembles_are_solved_at_once() -> None:
    module, X = network(), inputs()
    base = parameters_of(module)
    scales = torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64)
    stacked = {name: scales[:, None, None] * p for name, p in base.items()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return outputs_of(module)(parameters, X).square().sum()

    together = grad(lambda every: vmap(loss)(every).sum())(stacked)
    for k, scale in enumerate(scales):
        alone = grad(loss)({name: scale * p for name, p in base.items()})
        for name in base:
            torch.testing.assert_close(together[name][k], alone[name], rtol=1e-10, atol=1e-12)
    # What all members share gets the sum of their gradients.
    shared = grad(lambda p: vmap(outputs_of(module), in_dims=(None, 0))(p, X).square().sum())(base)
    for name, expected in grad(loss)(base).items():
        torch.testing.assert_close(shared[name], expected, rtol=1e-10, atol=1e-12)


def test_second_and_third_derivatives_agree_between_modes() -> None:
    module, X = network("swish"), inputs()
    parameters = parameters_of(module)

    def loss(x: Tensor) -> Tensor:
        return outputs_of(module)(parameters, x).square().sum()

    x = X[0]
    curvature = hessian(loss)(x)
    torch.testing.assert_close(curvature, curvature.mT, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(jacrev(jacrev(loss))(x), curvature, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(vmap(hessian(loss))(X)[0], curvature, rtol=1e-10, atol=1e-12)
    third = jacfwd(jacrev(jacrev(loss)))(x)
    torch.testing.assert_close(third, jacrev(jacfwd(jacrev(loss)))(x), rtol=1e-9, atol=1e-11)
    step = 1e-5
    for i in range(2):
        shift = torch.zeros_like(x)
        shift[i] = step
        slope = (hessian(loss)(x + shift) - hessian(loss)(x - shift)) / (2 * step)
        torch.testing.assert_close(third[..., i], slope, rtol=1e-5, atol=1e-6)


def test_directional_derivative() -> None:
    module, X = network(), inputs()
    parameters = parameters_of(module)
    direction = torch.ones_like(X)

    def of_inputs(X: Tensor) -> Tensor:
        return outputs_of(module)(parameters, X)

    value, tangent = jvp(of_inputs, (X,), (direction,))
    torch.testing.assert_close(value, module(X))
    step = 1e-6
    slope = (of_inputs(X + step * direction) - of_inputs(X - step * direction)) / (2 * step)
    torch.testing.assert_close(tangent, slope, rtol=1e-7, atol=1e-9)
    assert module.record is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1e7])
def test_units_of_the_loss_do_not_matter(scale: float, dtype: torch.dtype) -> None:
    # An absolute tolerance would stop at once on a gradient of 1e-7.
    deq = nsd.DeepEquilibrium("tanh", 0.24)
    module = build(deq, 30, 100, 3, rng=0, dtype=dtype)
    X = torch.ones(5, 30, dtype=dtype) / 5

    def gradients(factor: float) -> list[Tensor]:
        loss = factor * module(X).square().sum()
        return list(torch.autograd.grad(loss, list(module.parameters())))

    for plain, scaled in zip(gradients(1.0), gradients(scale), strict=True):
        error = (scaled / scale - plain).norm() / plain.norm()
        assert error < 1e-6
    assert module.record is not None
    assert module.record.derivatives[-1].steps > 5


def test_exact_gradient_by_a_dense_solve() -> None:
    """u = (I − Jᵀ)⁻¹ g with a dense J, for every sample."""
    module = network()
    X = inputs()
    module(X).sum().backward()
    with torch.no_grad():
        A, B, a = module.weight_1, module.injection_1, module.readout
        h = math.sqrt(0.8) * X @ B.mT
        for _ in range(200):
            h = math.sqrt(0.8) * X @ B.mT + math.sqrt(0.2 / 6) * torch.tanh(h) @ A.mT
        slopes = (1 - torch.tanh(h) ** 2) / math.sqrt(6)
        expected = torch.zeros_like(A)
        for i in range(len(X)):
            J = math.sqrt(0.2) * A * slopes[i]
            u = torch.linalg.solve(torch.eye(6, dtype=A.dtype) - J.mT, slopes[i] * a.sum(0))
            expected += math.sqrt(0.2 / 6) * torch.outer(u, torch.tanh(h[i]))
    torch.testing.assert_close(module.weight_1.grad, expected, rtol=1e-10, atol=1e-12)


def unrolled_gradients(module: Network, X: Tensor, steps: int) -> Tensor:
    """Differentiate through steps that start at the fixed point."""
    A, B, a = (p.detach().clone().requires_grad_() for p in module.parameters())
    with torch.no_grad():
        h = (math.sqrt(0.8) * X @ B.mT).clone()
        for _ in range(200):
            h = math.sqrt(0.8) * X @ B.mT + math.sqrt(0.2 / 6) * torch.tanh(h) @ A.mT
    for _ in range(steps):
        h = math.sqrt(0.8) * X @ B.mT + math.sqrt(0.2 / 6) * torch.tanh(h) @ A.mT
    outputs = torch.tanh(h) / math.sqrt(6) @ a.mT
    return torch.autograd.grad(outputs.square().sum(), A)[0]


@pytest.mark.parametrize("steps", [1, 3, 5, 60])
def test_approximations_are_steps_differentiated_through(steps: int) -> None:
    module, X = network("tanh", steps), inputs()
    module(X).square().sum().backward()
    expected = unrolled_gradients(module, X, steps)
    torch.testing.assert_close(module.weight_1.grad, expected, rtol=1e-9, atol=1e-11)
    assert module.record is not None
    assert not module.record.derivatives  # nothing was solved for
    # Only many steps come near the exact gradient.
    exact = network("tanh")
    exact(X).square().sum().backward()
    assert exact.weight_1.grad is not None
    near = torch.allclose(expected, exact.weight_1.grad, rtol=1e-6)
    assert near == (steps == 60)


def test_approximations_work_with_torch_func() -> None:
    module, X = network("tanh", 4), inputs()
    every = jacrev(outputs_of(module))(parameters_of(module), X)
    forward = jacfwd(outputs_of(module))(parameters_of(module), X)
    for name in every:
        torch.testing.assert_close(every[name], forward[name], rtol=1e-10, atol=1e-12)


def test_only_what_is_asked_for_is_differentiated() -> None:
    module = network()
    X = inputs().requires_grad_()
    frozen = build(module.model, 4, 6, 2, rng=0, dtype=torch.float64, trainable="readout")
    (expected,) = torch.autograd.grad(module(X).sum(), X)
    (found,) = torch.autograd.grad(frozen(X).sum(), X)
    assert torch.equal(found, expected)
    A = module.weight_1.detach().requires_grad_()
    fixed = {"weight_1": A, "injection_1": module.injection_1.detach()}
    (alone,) = torch.autograd.grad(functional_call(module, fixed, (inputs(),)).sum(), A)
    module(inputs()).sum().backward()
    torch.testing.assert_close(alone, module.weight_1.grad)


# The compiler looks at .grad of everything that crosses a break in the graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        pytest.param(
            "inductor",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
            ],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")  # torch's own
def test_compiled_networks_give_the_same_results(backend: str) -> None:
    module = network().train()
    compiled = torch.compile(module, backend=backend)
    for X in (inputs(), 2 * inputs()):
        results = []
        for each in (module, compiled):
            module.zero_grad()
            outputs = each(X)
            outputs.square().sum().backward()
            results.append([outputs.detach(), *(p.grad.clone() for p in module.parameters())])
        for plain, other in zip(*results, strict=True):
            torch.testing.assert_close(plain, other, rtol=1e-12, atol=1e-13)
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X), rtol=1e-12, atol=1e-13)


def test_half_precision_is_refused() -> None:
    module = build(nsd.DeepEquilibrium("tanh", 0.2), 4, 6, 2, rng=0)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(nsd.errors.InvalidInput, match="autocast"),
    ):
        module(inputs().float())

"""Conjugate and tangent kernels of a finite module, at the weights it has now."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.errors import InvalidInput
from notsodeep.models import ConvolutionalModel, MonotoneEquilibrium
from notsodeep.networks.random import Network
from notsodeep.networks.readout import tensor_rows

_JACOBIAN_NUMBERS = 2**26  # of a batch; half a gigabyte in float64


class EmpiricalKernels(NamedTuple):
    """Both kernels of a finite network on data, of shape (n, n) or (n, m)."""

    ck: NDArray[Any]
    ntk: NDArray[Any]


def empirical_kernels(
    module: nn.Module,
    X: ArrayLike | Tensor,
    Y: ArrayLike | Tensor | None = None,
    *,
    batch_size: int = 256,
) -> EmpiricalKernels:
    """Compute the kernels of a finite network, in its precision and on its device.

    ck is z(x)·z(y), z the features; ntk the mean over the outputs k of ∇f_k(x)·∇f_k(y), gradients
    in all parameters that have requires_grad.

    Rings of dense layers made by `build` have weight gradients of the form δ ⊗ v, so that a layer
    contributes (δ(x)·δ(y))(v(x)·v(y)) to the tangent kernel and no Jacobian is ever formed; for a
    DEQ the δ come from one transposed solve for all outputs.  For any other module the Jacobians of
    a batch are formed.  The module is put into evaluation mode meanwhile.

    Parameters
    ----------
    module : torch.nn.Module
        With a method `features`, whose result is (n, m), and outputs of shape (n, K).
    X : array_like or Tensor of shape (n, p)
    Y : array_like or Tensor of shape (m, p), optional
        Without it the kernels are those of X with itself, exactly symmetric.
    batch_size : int
        Most samples worked on at a time.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("tanh", 0.2)
    >>> module = nsd.build(deq, 2, 1000, 10, rng=0, dtype=torch.float64)
    >>> X = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> exact = nsd.kernel(deq, X, kind="ntk", convention="feature")
    >>> bool(abs(nsd.empirical_kernels(module, X).ntk - exact).max() < 0.05)
    True
    """
    if not callable(getattr(module, "features", None)):
        got = type(module).__name__
        raise InvalidInput(f"module must be a torch module with a method features(X), got {got}.")
    if not any(p.requires_grad for p in module.parameters()):
        raise InvalidInput("module must have a parameter that requires gradients, got none.")
    size = checks.positive_integer(batch_size, "batch_size", "empirical_kernels")
    left = tensor_rows(X, module, "empirical_kernels")
    right = None if Y is None else tensor_rows(Y, module, "empirical_kernels")
    if right is not None and right.shape[1] != left.shape[1]:
        raise InvalidInput(f"Y must have {left.shape[1]} features as X, got {right.shape[1]}.")
    training = module.training
    module.eval()
    try:
        if isinstance(module, Network) and not isinstance(
            module.model, ConvolutionalModel | MonotoneEquilibrium
        ):
            conjugate, tangent = _by_layers(module, left, right, size)
        else:
            conjugate, tangent = _by_jacobians(module, left, right, size)
    finally:
        module.train(training)
    if Y is None:  # they are, up to rounding
        conjugate, tangent = (0.5 * (kernel + kernel.mT) for kernel in (conjugate, tangent))
    return EmpiricalKernels(conjugate.cpu().numpy(), tangent.cpu().numpy())


def _by_layers(module: Network, X: Tensor, Y: Tensor | None, size: int) -> tuple[Tensor, Tensor]:
    """Compute ZZᵀ, and with it Σ_l (mean_k Δ_lk Δ_lkᵀ) ∘ (V_l V_lᵀ)."""
    count = len(X) + (0 if Y is None else len(Y))
    numbers = count * module.width * (1 + len(module.layers) * module.out_features)
    remedy = "Use fewer samples at a time, fewer outputs, or a smaller width."
    checks.enough_memory(numbers * X.element_size(), "The gradients of all outputs", remedy)
    features, layers = _factors(module, X, size)
    features2, layers2 = (features, layers) if Y is None else _factors(module, Y, size)
    conjugate = features @ features2.mT
    tangent = torch.zeros_like(conjugate)
    if module.readout.requires_grad:
        tangent += conjugate
    if module.readout_bias is not None and module.readout_bias.requires_grad:
        tangent += 1.0
    for (delta, v), (delta2, v2) in zip(layers, layers2, strict=True):
        tangent += (v @ v2.mT) * (delta @ delta2.mT) / module.out_features
    return conjugate, tangent


def _factors(module: Network, X: Tensor, size: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the features, and δ (n, K·m) and v (n, d) of every layer that is trained."""
    batches = [_batch_factors(module, batch) for batch in torch.split(X, size)]
    layers = [
        tuple(torch.cat(parts) for parts in zip(*layer, strict=True))
        for layer in zip(*(layers for _, layers in batches), strict=True)
    ]
    return torch.cat([features for features, _ in batches]), layers  # type: ignore[return-value]


def _batch_factors(module: Network, X: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    with torch.no_grad():
        drives, weights = module.drives(X), module.weights()
    # What is added to the pre-activations of a layer, zero: δ is the gradient there.
    probes = [X.new_zeros(len(X), module.width, requires_grad=True) for _ in drives]
    with torch.enable_grad():
        driven = [drive + probe for drive, probe in zip(drives, probes, strict=True)]
        units = module.solved(driven, weights)
        features = units[-1] / module.width**0.5
        outputs = features @ module.readout.detach().mT
    inputs: dict[int, Tensor] = {}
    for k in range(len(module.layers)):
        read = {"weight": units[k - 1].detach(), "injection": X, "bias": X.new_ones(len(X), 1)}
        parts = [
            module.factor(f"{kind}_{k + 1}") * values
            for kind, values in read.items()
            if f"{kind}_{k + 1}" in trained
        ]
        if parts:
            inputs[k] = torch.cat(parts, dim=1)
    if not inputs:
        return features.detach(), []
    asked = [probes[k] for k in inputs]

    def gradients(direction: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, asked, direction, retain_graph=True)

    each = torch.eye(module.out_features, dtype=X.dtype, device=X.device)
    # One backward pass for all outputs at once; for a DEQ one transposed solve.
    deltas = torch.func.vmap(gradients)(each[:, None, :].expand(-1, len(X), -1))
    rows = (delta.transpose(0, 1).flatten(1) for delta in deltas)
    return features.detach(), list(zip(rows, inputs.values(), strict=True))


def _by_jacobians(
    module: nn.Module, X: Tensor, Y: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """Compute the kernels of any module from the Jacobians of batches."""
    trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
    fixed = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    fixed |= {n: b.detach() for n, b in module.named_buffers()}

    def outputs(values: dict[str, Tensor], batch: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, {**values, **fixed}, (batch,))
        return result

    def jacobian(batch: Tensor) -> Tensor:
        """Return ∇f_k(x), shape (b, K · parameters)."""
        every = torch.func.jacrev(outputs)(trained, batch)
        return torch.cat([j.flatten(2) for j in every.values()], dim=2).flatten(1)

    with torch.no_grad():
        num_outputs = module(X[:1]).shape[1]
        numbers = num_outputs * sum(p.numel() for p in trained.values())
        size = max(1, min(size, _JACOBIAN_NUMBERS // numbers))
        z = torch.cat([module.features(batch) for batch in torch.split(X, size)])  # type: ignore[operator]
        z2 = z if Y is None else torch.cat([module.features(b) for b in torch.split(Y, size)])  # type: ignore[operator]
    tangent = X.new_empty(len(z), len(z2))
    columns = torch.split(torch.arange(len(z2)), size)
    for row, rows in enumerate(torch.split(torch.arange(len(z)), size)):
        left = jacobian(X[rows])
        for column in range(row if Y is None else 0, len(columns)):  # one half is enough of X, X
            there = columns[column]
            right = (
                left if Y is None and column == row else jacobian((X if Y is None else Y)[there])
            )
            block = left @ right.mT / num_outputs
            tangent[rows[0] : rows[-1] + 1, there[0] : there[-1] + 1] = block
            if Y is None:
                tangent[there[0] : there[-1] + 1, rows[0] : rows[-1] + 1] = block.mT
    return z @ z2.mT, tangent

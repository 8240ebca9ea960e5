"""Conjugate and tangent kernels of a finite module, at the weights it has now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.errors import NotEnoughMemory
from notsodeep.networks import requirements
from notsodeep.networks.modules import FeatureNetwork
from notsodeep.networks.readout import as_tensor
from notsodeep.progress import progress_bar

KernelMatrix = NDArray[np.floating[Any]]

_LONG = 16  # batches beyond which a progress bar is worth showing


@dataclass(frozen=True)
class EmpiricalKernels:
    """Both kernels of a finite network on data.

    Attributes
    ----------
    ck : ndarray of shape (n, n) or (n, m)
        z(x)·z(y), z the last features.
    ntk : ndarray of shape (n, n) or (n, m)
        Mean over the outputs k of ∇f_k(x)·∇f_k(y), gradients in all that is trainable.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> module = nsd.build(nsd.ExplicitNetwork(["relu"]), 3, 64, 1, rng=0)
    >>> kernels = nsd.empirical_kernels(module, np.eye(3))
    >>> kernels.ck.shape, kernels.ntk.dtype
    ((3, 3), dtype('float32'))
    """

    ck: KernelMatrix
    ntk: KernelMatrix


def empirical_kernels(
    module: nn.Module,
    X: ArrayLike | Tensor,
    Y: ArrayLike | Tensor | None = None,
    *,
    batch_size: int = 256,
) -> EmpiricalKernels:
    """Compute the kernels of a finite network, in the module's precision and on its device.

    Dense networks made by `build` have weight gradients of the form δ ⊗ v, so that a layer
    contributes (δ(x)·δ(y))(v(x)·v(y)) to the tangent kernel and no Jacobian is ever formed; for a
    DEQ the δ come from one transposed solve for all outputs.  For any other module (convolutional
    ones too) the Jacobians of a batch are formed, (batch_size × outputs × parameters) numbers at a
    time.

    The module is put into evaluation mode meanwhile.

    Parameters
    ----------
    module : torch.nn.Module
        With a method `features`, whose result is (n, m), and outputs of shape (n, K).
    X : array_like or Tensor of shape (n, p)
    Y : array_like or Tensor of shape (m, p), optional
        Without it the kernels are those of X with itself, exactly symmetric.
    batch_size : int
        Samples worked on at a time.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.networks import build
    >>> deq = nsd.DeepEquilibrium("tanh", 0.2)
    >>> module = build(deq, 2, 1000, 10, rng=0, dtype=torch.float64)
    >>> X = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> empirical = empirical_kernels(module, X)
    >>> exact = nsd.kernel_pair(deq, X, convention="feature")
    >>> bool(abs(empirical.ntk - exact.ntk).max() < 0.05)
    True
    """
    owner = "empirical_kernels"
    _module_with_features(module, isinstance(module, nn.Module), owner)
    size = checks.positive_integer(batch_size, "batch_size", owner)
    left = _samples(module, X, "X", owner)
    right = None if Y is None else _samples(module, Y, "Y", owner)
    if right is not None and right.shape[1:] != left.shape[1:]:
        requirement = f"have as many features as X ({left.shape[1]})"
        raise checks.invalid("Y", owner, requirement, right.shape[1])
    training = module.training
    module.eval()
    try:
        if isinstance(module, FeatureNetwork) and module.by_layers:
            return _by_layers(module, left, right, size)
        return _by_jacobians(module, left, right, size)
    finally:
        module.train(training)


def _samples(module: nn.Module, X: ArrayLike | Tensor, name: str, owner: str) -> Tensor:
    """Bring samples into the dtype and onto the device of the module."""
    like = next(module.parameters())
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
    return as_tensor(checks.samples(array, name, owner), like)


def _batches(X: Tensor, size: int, description: str) -> Iterator[Tensor]:
    batches = torch.split(X, size)
    with progress_bar(description, enabled=len(batches) > _LONG) as advance:
        for number, batch in enumerate(batches):
            advance(number, len(batches))
            yield batch


@dataclass(frozen=True)
class _Factors:
    """What the kernels of a network made by `build` are made of.

    Attributes
    ----------
    features : Tensor of shape (n, m)
    deltas : tuple of Tensor of shape (n, K·m)
        For each trained hidden layer, the gradients of all outputs side by side.
    inputs : tuple of tuple of (float, Tensor of shape (n, d))
        For each trained hidden layer, its inputs in parts, with their factors.
    """

    features: Tensor
    deltas: tuple[Tensor, ...] = ()
    inputs: tuple[tuple[tuple[float, Tensor], ...], ...] = ()


def _by_layers(module: FeatureNetwork, X: Tensor, Y: Tensor | None, size: int) -> EmpiricalKernels:
    """Compute ZZᵀ + Σ_l (mean_k Δ_lk Δ_lkᵀ) ∘ (V_l V_lᵀ), and one more for a bias."""
    owner = "empirical_kernels"
    requirements.input_features(X, module.in_features, X.dtype, owner)
    count = len(X) + (0 if Y is None else len(Y))
    depth = 0 if module.trainable == "readout" else len(module.hidden_names)
    numbers = count * module.width * (1 + depth * module.out_features)
    _factors_fit(numbers * X.element_size(), owner)
    left = _factors(module, X, size)
    right = left if Y is None else _factors(module, Y, size)
    conjugate = left.features @ right.features.mT
    tangent = conjugate.clone()
    if module.readout_bias is not None:
        tangent += 1.0
    layers = zip(left.deltas, left.inputs, right.deltas, right.inputs, strict=True)
    for delta, inputs, delta2, inputs2 in layers:
        gram = torch.zeros_like(conjugate)
        for (factor, v), (_, v2) in zip(inputs, inputs2, strict=True):
            gram.addmm_(v, v2.mT, alpha=factor**2)
        tangent += gram * (delta @ delta2.mT) / module.out_features
    if left.deltas:
        tangent += module.other_gradients(left.features, left.deltas, right.features, right.deltas)
    return _answer(conjugate, tangent, symmetric=Y is None)


def _answer(conjugate: Tensor, tangent: Tensor, symmetric: bool) -> EmpiricalKernels:
    if symmetric:  # products are, up to rounding only
        conjugate, tangent = (0.5 * (kernel + kernel.mT) for kernel in (conjugate, tangent))
    return EmpiricalKernels(conjugate.cpu().numpy(), tangent.cpu().numpy())


def _factors(module: FeatureNetwork, X: Tensor, size: int) -> _Factors:
    """Collect the factors of all samples, a batch at a time."""
    found = [_batch_factors(module, batch) for batch in _batches(X, size, "gradients")]
    inputs = []
    for layer in zip(*(batch.inputs for batch in found), strict=True):
        parts = zip(*layer, strict=True)
        inputs.append(tuple((part[0][0], torch.cat([v for _, v in part])) for part in parts))
    return _Factors(
        torch.cat([batch.features for batch in found]),
        tuple(map(torch.cat, zip(*(batch.deltas for batch in found), strict=True))),
        tuple(inputs),
    )


def _batch_factors(module: FeatureNetwork, X: Tensor) -> _Factors:
    """Compute the factors of a few samples."""
    if module.trainable == "readout":
        with torch.no_grad():
            return _Factors(module.features(X))
    weights = (getattr(module, name).detach() for name in module.hidden_names)
    with torch.enable_grad():
        # Gradients are taken at the pre-activations; an X with gradients puts them into the graph.
        features, layers = module.hidden_pass(X.detach().requires_grad_(), *weights)
        outputs = features @ module.readout.detach().mT
    places = [layer.preactivations for layer in layers]

    def gradients(direction: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, places, direction, retain_graph=True)

    each = torch.eye(module.out_features, dtype=X.dtype, device=X.device)
    # One backward pass for all outputs at once; for a DEQ one transposed solve.
    deltas = torch.func.vmap(gradients)(each[:, None, :].expand(-1, len(X), -1))
    return _Factors(
        features.detach(),
        tuple(delta.transpose(0, 1).flatten(1) for delta in deltas),
        tuple(tuple((f, v.detach()) for f, v in layer.inputs) for layer in layers),
    )


def _by_jacobians(module: nn.Module, X: Tensor, Y: Tensor | None, size: int) -> EmpiricalKernels:
    """Compute the kernels of any module from the Jacobians of batches."""
    trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
    fixed = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    fixed |= {n: b.detach() for n, b in module.named_buffers()}

    def outputs(values: dict[str, Tensor], batch: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, {**values, **fixed}, (batch,))
        return result

    def jacobian(batch: Tensor) -> Tensor:
        """Return ∇f_k(x), shape (b, K, parameters)."""
        every = torch.func.jacrev(outputs)(trained, batch)
        return torch.cat([j.flatten(2) for j in every.values()], dim=2)

    other = X if Y is None else Y
    conjugate, tangent = X.new_empty(2, len(X), len(other)).unbind()
    with torch.no_grad():
        z = torch.cat([module.features(batch) for batch in torch.split(X, size)])  # type: ignore[operator]
        z2 = z if Y is None else torch.cat([module.features(b) for b in torch.split(Y, size)])  # type: ignore[operator]
        torch.matmul(z, z2.mT, out=conjugate)
    row = 0
    for batch in _batches(X, size, "Jacobians"):
        rows = slice(row, row + len(batch))
        left = jacobian(batch)
        column = row if Y is None else 0  # a symmetric kernel needs one half only
        for batch2 in torch.split(other[column:], size):
            columns = slice(column, column + len(batch2))
            right = left if Y is None and columns == rows else jacobian(batch2)
            block = left.flatten(1) @ right.flatten(1).mT / left.shape[1]
            tangent[rows, columns] = block
            if Y is None:
                tangent[columns, rows] = block.mT
            column = columns.stop
        row = rows.stop
    return _answer(conjugate, tangent, symmetric=Y is None)


def _module_with_features(module: object, is_module: bool, owner: str) -> None:
    """Require a torch module with a method `features` and at least one parameter."""
    if not is_module:
        requirement = "be a torch.nn.Module"
        remedy = "notsodeep.build makes one from a description."
        raise checks.invalid("module", owner, requirement, repr(module), remedy)
    if not callable(getattr(module, "features", None)):
        remedy = "Give it one that returns what its last linear layer is applied to."
        name = type(module).__name__
        raise checks.invalid(
            "module", owner, "have a method features(X)", f"{name} without one", remedy
        )
    if not any(p.requires_grad for p in module.parameters()):  # type: ignore[attr-defined]
        remedy = "A tangent kernel is about the gradients in trained weights."
        requirement = "have a parameter that requires gradients"
        raise checks.invalid("module", owner, requirement, "none", remedy)


def _factors_fit(needed: int, owner: str) -> None:
    """Reject kernels whose factors do not fit into the memory that is free now."""
    available = checks.available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"{owner} keeps the features and one gradient for every output of every sample: "
            f"{needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB of memory are free. Use "
            "fewer samples at a time (blocks of X and Y), fewer outputs, or a smaller width."
        )

"""Torch modules as equilibrium cells: what is certain by the types and parameters of their parts.

Recognised is forward(z, x) = φ(W z + U x + b) where the parts of the module are two
`torch.nn.Linear` (or one, if inputs are added as they are), one activation module of a known type,
and perhaps a third Linear from states to logits; forward has to confirm it, on states of every
size.  Networks made by `build` are recognised too.  Anything else is a function f(z, x).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from notsodeep.activations import (
    Activation,
    as_activation,
    elu,
    from_formula,
    leaky_relu,
    named,
    piecewise_linear,
)
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import InvalidInput
from notsodeep.models import MonotoneEquilibrium
from notsodeep.networks.cell import EquilibriumCell, Readout
from notsodeep.networks.random import Network

_PROBE_SIZES = (1e-2, 1.0, 30.0, 1e3)
_ROUNDINGS = 1e3  # of the dtype, relative to the size of W z + U x + b
_REMEDY = (
    "Give the arrays to EquilibriumCell.from_weights, or any f(z, x) to "
    "EquilibriumCell.from_function (here: state_shape=)."
)


def cell_of_module(
    module: nn.Module,
    *,
    activation: str | Activation | None = None,
    state_shape: Sequence[int] | int | None = None,
    readout: Readout | Callable[[Tensor], Tensor] | None = None,
    shift: ArrayLike | None = None,
    scale: ArrayLike | None = None,
) -> EquilibriumCell:
    """Make a cell of a module whose forward takes (z, x), or of one made by `build`.

    Parameters
    ----------
    module : Module
        In evaluation mode, if that makes a difference.
    activation : str or Activation, optional
        φ, where no part of the module is it (`torch.tanh` in forward, say).
    state_shape : tuple of int or int, optional
        With it, a module that is not recognised becomes a function f(z, x); see
        `EquilibriumCell.from_function`.
    readout : tuple of (C, c) or callable, optional
        From states to logits, where the module does not have it.
    shift, scale : float or array_like, optional
        Of the inputs, for recognised modules; see `EquilibriumCell.from_weights`.

    Examples
    --------
    >>> class Cell(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.state, self.input, self.phi = nn.Linear(8, 8), nn.Linear(3, 8), nn.Tanh()
    ...
    ...     def forward(self, z, x):
    ...         return self.phi(self.state(z) + self.input(x))
    >>> cell_of_module(Cell())
    AffineDEQ(tanh, width 8, 3 inputs, no read-out)
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"module must be a torch module, got {type(module).__name__}.")
    scaling: dict[str, Any] = {"shift": shift, "scale": scale}
    given = [activation, state_shape, readout, shift, scale]
    if isinstance(module, EquilibriumCell):
        if any(option is not None for option in given):
            raise InvalidInput("options must not be given for a cell, which has its own.")
        return module
    if isinstance(module, Network):
        return _built(module, scaling)
    why, cell = _recognised(module, activation, readout, scaling)
    if cell is not None:
        return cell
    if state_shape is None:
        raise InvalidInput(f"module must be recognised by its parts, got {why}. {_REMEDY}")
    if shift is not None or scale is not None or activation is not None:
        raise InvalidInput("shift, scale and activation must be left to f where it is a function.")
    step = _by_name(module)
    return EquilibriumCell.from_function(step or module, state_shape, readout)


def _recognised(
    module: nn.Module,
    activation: str | Activation | None,
    readout: Any,
    scaling: dict[str, Any],
) -> tuple[str, EquilibriumCell | None]:
    """Return the cell, or why there is none."""
    names = _arguments(module)
    if len(names) != 2:
        return f"forward({', '.join(names)}), which is no step f(z, x)", None
    step = _by_name(module) or module
    children = [part for part in module.children() if not isinstance(part, nn.ModuleDict)]
    linear = [part for part in children if isinstance(part, nn.Linear)]
    others = [part for part in children if not isinstance(part, nn.Linear)]
    known = [phi for part in others if (phi := _known(part)) is not None]
    if len(known) < len(others) or len(known) > 1:
        return ", ".join(type(part).__name__ for part in others), None
    if activation is not None:
        known = [as_activation(activation)]
    if not known:
        return "no activation module (pass activation=…)", None
    owned = {id(p) for part in linear for p in (*part.parameters(), *part.buffers())}
    if any(id(p) not in owned for p in (*module.parameters(), *module.buffers())):
        return "weights or buffers besides those of its Linear layers", None
    with torch.no_grad():
        for part in linear:  # older norms of weights are hooks, which set them at every call
            part(part.weight.new_zeros(1, part.in_features))
    for recurrent, *rest in permutations(linear):
        if recurrent.in_features != recurrent.out_features:
            continue
        width = recurrent.in_features
        for inputs, unused in ((rest[:1], rest[1:]), ([], rest)):
            if any(part.out_features != width for part in inputs) or len(unused) > 1:
                continue
            weights = _weights(recurrent, inputs[0] if inputs else None)
            if not _confirmed(step, *weights, known[0]):
                continue
            # A layer that the step does not use, from states and not from inputs, is the read-out.
            out = [part for part in unused if part.in_features == width != weights[1].shape[1]]
            pair = (out[0].weight, out[0].bias) if out and readout is None else readout
            if callable(pair):
                return "a read-out that is a function", None
            cell = EquilibriumCell.from_weights(*weights, known[0], pair, **scaling)
            return "", cell
    return "a forward that is not φ(W z + U x + b) of its Linear layers", None


def _arguments(module: nn.Module) -> list[str]:
    """Return the names of the arguments that forward needs."""
    arguments = inspect.signature(module.forward).parameters.values()
    return [a.name for a in arguments if a.default is a.empty and a.kind is a.POSITIONAL_OR_KEYWORD]


def _by_name(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the step with z first, where forward is (x, z); None where it has z first."""
    if _arguments(module) != ["x", "z"]:
        return None
    return _Swapped(module)


class _Swapped(nn.Module):
    """f(z, x) of a module whose forward takes (x, z)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        image: Tensor = self.module(x, z)
        return image


def _weights(recurrent: nn.Linear, inputs: nn.Linear | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return W, U and b; a parametrised weight as it is now."""
    W = recurrent.weight.detach()
    U = torch.eye(len(W)).to(W) if inputs is None else inputs.weight.detach()
    biases = [
        part.bias.detach()
        for part in (recurrent, inputs)
        if part is not None and part.bias is not None
    ]
    return W, U, torch.stack(biases).sum(dim=0) if biases else W.new_zeros(len(W))


@torch.no_grad()
def _confirmed(
    step: Callable[[Tensor, Tensor], Tensor], W: Tensor, U: Tensor, b: Tensor, phi: Activation
) -> bool:
    """Say whether forward is φ(W z + U x + b), up to rounding, on arguments of all sizes."""
    generator = torch.Generator().manual_seed(0)
    twin = torch_twin(phi)
    for size in _PROBE_SIZES:
        z, x = (size * torch.randn(16, k, generator=generator).to(W) for k in (len(W), U.shape[1]))
        try:
            images = step(z, x), step(z, x)
        except Exception:  # noqa: BLE001  # z and x the other way round, for instance
            return False
        if not torch.equal(*images):
            raise InvalidInput(
                "module must give the same answer twice, got two different ones. Switch it to "
                "evaluation mode."
            )
        u = z.double() @ W.double().mT + x.double() @ U.double().mT + b.double()
        unit = (z.abs() @ W.abs().mT + x.abs() @ U.abs().mT + b.abs() + 1.0).double()
        error = (images[0].double() - twin(u)).abs() if images[0].shape == z.shape else unit
        if not bool((error <= _ROUNDINGS * torch.finfo(W.dtype).eps * unit).all()):
            return False
    return True


_EXACT = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.SiLU: "swish",
    nn.Identity: "identity",
}


def _known(part: nn.Module) -> Activation | None:
    """Return the activation that a module is, by its exact type and its parameters."""
    kind = type(part)
    if part._forward_hooks or part._forward_pre_hooks:
        return None
    if kind in _EXACT:
        return named(_EXACT[kind])
    if kind is nn.Sigmoid:
        return from_formula("sigmoid(x)")
    if isinstance(part, nn.GELU) and kind is nn.GELU and part.approximate == "none":
        return named("gelu")
    if isinstance(part, nn.ELU) and kind is nn.ELU:
        return elu(part.alpha)
    if isinstance(part, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return leaky_relu(1.0, part.negative_slope)
    if isinstance(part, nn.Hardtanh) and kind in (nn.Hardtanh, nn.ReLU6):
        low, high = float(part.min_val), float(part.max_val)
        return piecewise_linear((low, high), (0.0, 1.0, 0.0), min(max(0.0, low), high))
    return None


def _built(network: Network, scaling: dict[str, Any]) -> EquilibriumCell:
    """Take √m z of a network made by `build`: affine if it has one layer, else a function."""
    if network.images or not network.closed:
        raise InvalidInput(f"module must have states that are rows, got {network.model}.")
    layer, *others = network.layers
    readout = network.readout.detach() / math.sqrt(network.width), network.readout_bias
    if not others and layer.normalise is None:
        monotone = isinstance(network.model, MonotoneEquilibrium)
        recurrent = network.weights()[0] if monotone else network.scaled("weight_1")
        return EquilibriumCell.from_weights(
            recurrent.detach(),
            network.scaled("injection_1").detach(),
            network.scaled("bias_1").detach() if layer.bias > 0.0 else None,
            layer.activation,
            readout,
            **scaling,
        )
    shift, scale = (
        torch.as_tensor(default if given is None else given).to(network.readout.detach())
        for given, default in zip(scaling.values(), (0.0, 1.0), strict=True)
    )

    def turn(z: Tensor, x: Tensor) -> Tensor:
        return network.turn(z, (x - shift) / scale)

    return EquilibriumCell.from_function(turn, network.width, readout)

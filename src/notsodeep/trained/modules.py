"""Torch modules as cells: what is made of parts that one can recognise.

Known are our own networks and heads; two `torch.nn.Linear`, one from states to states and one from
inputs to states, with an activation and perhaps a third one as read-out; and the monotone form with
parameters A, B (or S), U and a number m.  Anything else is a function f(z, x).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations import Activation, from_formula, leaky_relu, named
from notsodeep.models import DeepEquilibrium
from notsodeep.networks.build import build
from notsodeep.networks.heads import EquilibriumHead
from notsodeep.networks.modules import EquilibriumNetwork
from notsodeep.trained.cell import AffineCell, EquilibriumCell
from notsodeep.trained.equilibrium import GivenEquilibrium

_OWNER = "EquilibriumCell.from_module"
_BY_FUNCTION = (
    "Give the arrays to EquilibriumCell.from_weights, or any f(z, x) to "
    "EquilibriumCell.from_function."
)
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    nn.functional.relu: "relu",
    torch.tanh: "tanh",
    nn.functional.tanh: "tanh",
    torch.sin: "sin",
    torch.sigmoid: "sigmoid",
}
_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.SiLU: "swish",
    nn.GELU: "gelu",
    nn.Softplus: "softplus",
    nn.Identity: "identity",
    nn.Sigmoid: "sigmoid",
}
_SAME = 1e-4  # relative, of a step in float32


def as_cell(
    model: Any, X: ArrayLike, *, width: int, rng: int | np.random.Generator
) -> EquilibriumCell:
    """Return the cell of a model: given, of a module, or of one draw of a description."""
    if isinstance(model, EquilibriumCell):
        return model
    if isinstance(model, DeepEquilibrium):
        inputs = checks.samples(X, "X", "diagnose").shape[1]
        network = build(model, inputs, width, 1, rng=rng, dtype=torch.float64)
        return cell_of_module(network, keep_readout=False)
    if isinstance(model, nn.Module):
        return cell_of_module(model)
    requirement = "be an EquilibriumCell, a torch module or a DeepEquilibrium"
    raise checks.refusal("cell", "diagnose", requirement, type(model).__name__, _BY_FUNCTION)


def cell_of_module(
    module: nn.Module,
    *,
    activation: str | Activation | None = None,
    shift: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    keep_readout: bool = True,
) -> AffineCell:
    """Find z = φ(W z + U x + b), logits C z + c, in a module.

    If its ``forward`` takes two arguments, (z, x), it is compared with what was found.

    Parameters
    ----------
    module : Module
    activation : str or Activation, optional
        φ, where the module does not say.
    shift, scale : float or array_like, optional
        Of the inputs; see `EquilibriumCell.from_weights`.
    keep_readout : bool, default True

    Raises
    ------
    InvalidInput
        Its parts are not of a known form, or do not do what they look like; the message says how
        to go on.

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
    AffineCell(tanh, width 8, 3 inputs, no read-out)
    """
    if not isinstance(module, nn.Module):
        raise checks.refusal("module", _OWNER, "be a torch module", type(module).__name__)
    options: dict[str, Any] = {"shift": shift, "scale": scale}
    if isinstance(module, EquilibriumNetwork):
        return _own_network(module, keep_readout, options)
    if isinstance(module, GivenEquilibrium):
        return module.cell()
    if isinstance(module, EquilibriumHead):
        matrix = module.matrix
        return EquilibriumCell.from_weights(
            matrix, np.eye(len(matrix)), activation="identity", **options
        )
    found = _monotone(module) or _linear_layers(module)
    if found is None:
        parts = ", ".join(type(child).__name__ for _, child in module.named_children())
        requirement = "be made of parts that are recognised: two Linear, or A, B, m and U"
        raise checks.refusal("module", _OWNER, requirement, parts or "none", _BY_FUNCTION)
    W, U, b, readout = found
    phi = _activation(module) if activation is None else activation
    cell = EquilibriumCell.from_weights(W, U, b, phi, readout if keep_readout else None, **options)
    _require_same_step(module, cell)
    return cell


def _own_network(
    network: EquilibriumNetwork, keep_readout: bool, options: Mapping[str, Any]
) -> AffineCell:
    """Take z′ = √m z: z′ = φ(√(σa²/m) A z′ + √σb² B x) and f = (a/√m) z′."""
    description, root = network.description, math.sqrt(network.width)
    readout = (network.readout.detach() / root, network.readout_bias)
    return EquilibriumCell.from_weights(
        network.recurrent.detach() * (math.sqrt(description.sigma_a2) / root),
        network.injection.detach() * (math.sqrt(description.sigma_b2) * network.input_scale),
        None,
        description.activation,
        readout if keep_readout else None,
        **options,
    )


def _monotone(module: nn.Module) -> tuple[Any, Any, Any, Any] | None:
    """Find W = (1 − m)I − AᵀA + B − Bᵀ, with S for B in some code, in one of the submodules."""
    for name, part in module.named_modules():
        own = dict(part.named_parameters(recurse=False))
        skew = own.get("B", own.get("S"))
        if not {"A", "U"} <= own.keys() or skew is None:
            continue
        margin = getattr(part, "m", None)
        if not isinstance(margin, float | int | Tensor):
            requirement = f"have a number m beside A and U of {name or 'the module'}"
            raise checks.refusal("module", _OWNER, requirement, repr(margin), _BY_FUNCTION)
        number = float(margin.detach()) if isinstance(margin, Tensor) else float(margin)
        A, U = own["A"].detach().double(), own["U"]
        width = A.shape[1]
        W = (1.0 - number) * torch.eye(width) - A.mT @ A
        W = W + skew.detach().double() - skew.detach().double().mT
        others = [child for child in module.modules() if isinstance(child, nn.Linear)]
        _no_other_parameters(module, [*own.values(), *_parameters(others)])
        return W, U, own.get("b"), _readout(others, width)
    return None


def _linear_layers(module: nn.Module) -> tuple[Any, Any, Any, Any] | None:
    """Find W and U among the Linear layers by their shapes, and by elimination the read-out."""
    layers = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    square = {n: p for n, p in layers.items() if p.in_features == p.out_features}
    if len(layers) not in (2, 3) or not square:
        return None
    if len(square) > 1:
        remedy = f"Which of {', '.join(square)} is W cannot be told. {_BY_FUNCTION}"
        raise checks.refusal("module", _OWNER, "have one square Linear", len(square), remedy)
    ((name, recurrent),) = square.items()
    width = recurrent.in_features
    rest = [part for other, part in layers.items() if other != name]
    inputs = [part for part in rest if part.out_features == width]
    if len(inputs) != 1:
        return None
    _no_other_parameters(module, _parameters(layers.values()))
    biases = [part.bias.detach() for part in (recurrent, *inputs) if part.bias is not None]
    bias = torch.stack(biases).sum(dim=0) if biases else None
    others = [part for part in rest if part is not inputs[0]]
    return recurrent.weight, inputs[0].weight, bias, _readout(others, width)


def _readout(layers: list[nn.Linear], width: int) -> tuple[Tensor, Tensor | None] | None:
    if not layers:
        return None
    if len(layers) > 1 or layers[0].in_features != width:
        shapes = ", ".join(f"{part.in_features} → {part.out_features}" for part in layers)
        requirement = f"have one Linear from the {width} units of the state as its read-out"
        raise checks.refusal("module", _OWNER, requirement, shapes, _BY_FUNCTION)
    return layers[0].weight, layers[0].bias


def _parameters(layers: Any) -> list[Tensor]:
    return [parameter for layer in layers for parameter in layer.parameters()]


def _no_other_parameters(module: nn.Module, known: list[Tensor]) -> None:
    """Reject a module with more weights than were recognised, which do something unknown."""
    seen = {id(parameter) for parameter in known}
    # What m is made of, m_raw for instance, is one number and has been used.
    others = [n for n, p in module.named_parameters() if id(p) not in seen and p.numel() > 1]
    others += [name for name, _ in module.named_buffers()]
    if others:
        requirement = "have no weights and buffers besides those that are recognised"
        raise checks.refusal("module", _OWNER, requirement, ", ".join(others), _BY_FUNCTION)


def _activation(module: nn.Module) -> Activation:
    """Find the one activation among the submodules and the attributes."""
    parts: list[Any] = [*module.modules(), *vars(module).values()]
    found = {str(phi): phi for part in parts if (phi := _known_activation(part)) is not None}
    if len(found) != 1:
        got = ", ".join(found) or "none that is known"
        remedy = "Pass activation=…, a name or an Activation."
        raise checks.refusal("module", _OWNER, "have one activation", got, remedy)
    return next(iter(found.values()))


def _known_activation(part: Any) -> Activation | None:
    if isinstance(part, nn.LeakyReLU):
        return leaky_relu(1.0, part.negative_slope)
    if isinstance(part, nn.Hardtanh) and (part.min_val, part.max_val) == (-1.0, 1.0):
        return named("hard_tanh")
    name = _MODULES.get(type(part))
    if name is None and callable(part):
        try:
            name = _FUNCTIONS.get(part)
        except TypeError:  # not hashable
            return None
    if name is None:
        return None
    return from_formula("sigmoid(x)") if name == "sigmoid" else named(name)


@torch.no_grad()
def _require_same_step(module: nn.Module, cell: AffineCell) -> None:
    """Compare a module that is a step, forward(z, x), with the cell that was found in it."""
    arguments = inspect.signature(module.forward).parameters.values()
    needed = [a for a in arguments if a.default is a.empty and a.kind is a.POSITIONAL_OR_KEYWORD]
    if len(needed) != 2:
        return
    generator = torch.Generator().manual_seed(0)
    like = next(module.parameters())
    z, x = (torch.randn(4, k, generator=generator).to(like) for k in (cell.width, cell.inputs))
    first, again = module(z, x), module(z, x)
    if not torch.equal(first, again):
        remedy = "Switch it to evaluation mode, or let it forget what it has seen."
        requirement = "give the same answer twice"
        raise checks.refusal("module", _OWNER, requirement, "two different ones", remedy)
    raw = x.double().cpu().numpy() * cell.scale + cell.shift
    expected = torch.as_tensor(cell.step(z.double().cpu().numpy(), cell.drive(raw)))
    gap = float((first.cpu().double() - expected).abs().max()) if first.shape == z.shape else None
    if gap is None or gap > _SAME * max(1.0, float(expected.abs().max())):
        got = f"shape {tuple(first.shape)}" if gap is None else f"a difference of {gap:.2g}"
        requirement = "compute φ(W z + U x + b) from its Linear layers"
        raise checks.refusal("module", _OWNER, requirement, got, _BY_FUNCTION)

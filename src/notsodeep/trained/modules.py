"""Torch modules as cells: what is made of parts that one can recognise.

Known are our own networks, and three forms of public code, each with an activation and
perhaps a `torch.nn.Linear` as read-out:

* two `torch.nn.Linear`, from states to states and from inputs to states (or one alone, if inputs
  are added as they are);
* the monotone form W = (1 − m)I − AᵀA + B − Bᵀ of Winston and Kolter, 2020, with A, B (or S) and U
  as parameters or as Linear layers and a number m;
* the non-Euclidean form W = mI + D⁻¹AD − diag(|A|1) of Jafarpour, Davydov, Proskurnikov and Bullo,
  2021, with A, U, a positive vector D and m < 1.

A module that is a step itself, forward(z, x), is compared with what was found, and so tells its
activation where no part of it does, which of two square layers is W, and whether it mixes f with z:
a·z + c·f(z, x) has the fixed points of c/(1 − a)·f(z, x), as damping (a = 1 − α, c = α) and
residuals γ(z + f) have.  Anything else is a function f(z, x).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations import (
    Activation,
    as_activation,
    from_formula,
    leaky_relu,
    named,
    scaled,
)
from notsodeep.arrays import FloatArray
from notsodeep.models import DeepEquilibrium, MonotoneEquilibrium
from notsodeep.networks.build import build
from notsodeep.networks.cell_module import CellNetwork, MonotoneNetwork
from notsodeep.networks.modules import EquilibriumNetwork, ImplicitNetwork
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
    nn.functional.sigmoid: "sigmoid",
    nn.functional.silu: "swish",
    nn.functional.gelu: "gelu",
    nn.functional.softplus: "softplus",
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
_MOST_LINEAR = 3

T = TypeVar("T")
Weights = tuple[Any, Any, Any, Any]
"""W, U, b or None, and (C, c) or None."""


def as_cell(
    model: Any, X: ArrayLike, *, width: int, rng: int | np.random.Generator
) -> EquilibriumCell:
    """Return the cell of a model: given, of a module, or of one draw of a description."""
    if isinstance(model, EquilibriumCell):
        return model
    if isinstance(model, DeepEquilibrium | MonotoneEquilibrium):
        inputs = checks.samples(X, "X", "diagnose").shape[1]
        network = build(model, inputs, width, 1, rng=rng, dtype=torch.float64)
        return cell_of_module(network, keep_readout=False)
    if isinstance(model, nn.Module):
        return cell_of_module(model)
    requirement = "be an EquilibriumCell, a torch module, a DeepEquilibrium or a monotone one"
    raise checks.invalid("cell", "diagnose", requirement, type(model).__name__, _BY_FUNCTION)


def cell_of_module(
    module: nn.Module,
    *,
    activation: str | Activation | None = None,
    shift: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    keep_readout: bool = True,
) -> EquilibriumCell:
    """Find z = φ(W z + U x + b), logits C z + c, in a module.

    If its ``forward`` takes two arguments, (z, x), it is compared with what was found; otherwise
    the names and shapes of the parts are all there is to go by.

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
        raise checks.invalid("module", _OWNER, "be a torch module", type(module).__name__)
    options: dict[str, Any] = {"shift": shift, "scale": scale}
    if isinstance(module, EquilibriumNetwork):
        return _own_network(module, keep_readout, options)
    if isinstance(module, CellNetwork):
        return _own_cell(module, keep_readout, options)
    if isinstance(module, MonotoneNetwork):
        return _own_monotone(module, keep_readout, options)
    if isinstance(module, GivenEquilibrium):
        return module.cell()
    found = _monotone(module) or _linear_layers(module)
    if not found:
        parts = ", ".join(type(child).__name__ for _, child in module.named_children())
        requirement = "be made of parts that are recognised: two Linear, or A, B, m and U"
        raise checks.invalid("module", _OWNER, requirement, parts or "none", _BY_FUNCTION)
    known = [as_activation(activation)] if activation is not None else _activations(module)
    if _is_step(module):
        weights, phi = _of_step(module, found, known or _ALL_KNOWN)
    else:
        weights, phi = _only(found, "W among its square Linear layers"), _only(known, "activation")
    W, U, b, readout = weights
    return EquilibriumCell.from_weights(W, U, b, phi, readout if keep_readout else None, **options)


def _only(candidates: Sequence[T], what: str) -> T:
    if len(candidates) == 1:
        return candidates[0]
    got = " or ".join(map(str, candidates)) if what == "activation" else len(candidates)
    remedy = "Pass activation=…, a name or an Activation." if what == "activation" else _BY_FUNCTION
    raise checks.invalid("module", _OWNER, f"have one {what}", got or "none", remedy)


def _own_network(
    network: EquilibriumNetwork, keep_readout: bool, options: Mapping[str, Any]
) -> AffineCell:
    """Take z′ = √m z: z′ = φ(√(σa²/m) A z′ + √σb² B x) and f = (a/√m) z′."""
    description, root = network.description, math.sqrt(network.width)
    return EquilibriumCell.from_weights(
        network.recurrent.detach() * (math.sqrt(description.sigma_a2) / root),
        network.injection.detach() * (math.sqrt(description.sigma_b2) * network.input_scale),
        None,
        description.activation,
        _own_readout(network, keep_readout),
        **options,
    )


def _own_cell(
    network: CellNetwork, keep_readout: bool, options: Mapping[str, Any]
) -> EquilibriumCell:
    """Take √m z: of one layer an affine cell z′ = φ(√(w/m) A z′ + √u U x + √b β), else a function.

    Rings and normalised layers are no φ(W z + …) of one φ: their turn is the step.
    """
    layer, *others = network.description.cell
    weights = {name: getattr(network, name).detach() for name in network.hidden_names}
    readout = _own_readout(network, keep_readout)
    if others or layer.normalise != "none":
        matrices = [weights[f"weight_{k + 1}"] for k in range(1 + len(others))]
        shift, scale = (None if v is None else torch.as_tensor(v) for v in options.values())

        def turn(z: Tensor, x: Tensor) -> Tensor:
            rows = x if shift is None else x - shift.to(x)
            rows = rows if scale is None else rows / scale.to(x)
            return network.turn(z, *network.drives(rows, weights)[0], *matrices)

        return EquilibriumCell.from_function(turn, network.width, readout)
    return EquilibriumCell.from_weights(
        weights["weight_1"] * math.sqrt(layer.weight / network.width),
        weights["injection_1"] * math.sqrt(layer.inject),
        weights["shift_1"][:, 0] * math.sqrt(layer.bias) if layer.bias > 0.0 else None,
        layer.activation,
        readout,
        **options,
    )


def _own_monotone(
    network: MonotoneNetwork, keep_readout: bool, options: Mapping[str, Any]
) -> AffineCell:
    """Take y: y = φ(W y + √u U x + √c β) and f = (a/√m) y."""
    own = network.scaled({n: getattr(network, n).detach() for n in network.hidden_names})
    return EquilibriumCell.from_monotone(
        own["symmetric"],
        own["skew"],
        network.description.monotonicity,
        own["injection"],
        own["shift"][:, 0] if "shift" in own else None,
        network.description.activation,
        _own_readout(network, keep_readout),
        **options,
    )


def _own_readout(network: ImplicitNetwork, keep: bool) -> tuple[Tensor, Tensor | None] | None:
    """Return the read-out of √m times the features."""
    if not keep:
        return None
    return network.readout.detach() / math.sqrt(network.width), network.readout_bias


def _monotone(module: nn.Module) -> list[Weights]:
    """Find A, U and m in one of the submodules, with B (or S) or with D; see the module's head."""
    for name, part in module.named_modules():
        own: dict[str, Any] = dict(part.named_parameters(recurse=False))
        linear = {
            key: child for key, child in part.named_children() if isinstance(child, nn.Linear)
        }
        own |= {key: child.weight for key, child in linear.items()}
        skew, diagonal = own.get("B", own.get("S")), own.get("D")
        if not {"A", "U"} <= own.keys() or (skew is None and diagonal is None):
            continue
        margin = getattr(part, "m", None)
        if not isinstance(margin, float | int | Tensor):
            requirement = f"have a number m beside A and U of {name or 'the module'}"
            raise checks.invalid("module", _OWNER, requirement, repr(margin), _BY_FUNCTION)
        number = float(margin.detach()) if isinstance(margin, Tensor) else float(margin)
        A = own["A"].detach().double()
        identity = torch.eye(A.shape[1], dtype=A.dtype)
        if skew is not None:
            B = skew.detach().double()
            W = (1.0 - number) * identity - A.mT @ A + B - B.mT
        else:
            D = _positive(diagonal)
            W = number * identity + A * D / D[:, None] - torch.diag(A.abs().sum(dim=1))
        used = [child for key, child in linear.items() if key in ("A", "B", "S", "U")]
        bias = own.get("b", linear["U"].bias if "U" in linear else None)
        others = [c for c in module.modules() if isinstance(c, nn.Linear) and c not in used]
        _no_other_parameters(module, [*own.values(), *_parameters([*used, *others])])
        return [(W, own["U"], bias, _readout(others, len(W)))]
    return []


def _positive(diagonal: Any) -> Tensor:
    """Return the diagonal of D, given as a vector or as a matrix."""
    values: Tensor = diagonal.detach().double()
    values = values.diagonal() if values.ndim == 2 else values
    if not bool((values > 0.0).all()):
        raise checks.invalid("D", _OWNER, "be positive", float(values.min()), _BY_FUNCTION)
    return values


def _linear_layers(module: nn.Module) -> list[Weights]:
    """Return the ways to take Linear layers for W, U and a read-out that their shapes allow."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not 1 <= len(layers) <= _MOST_LINEAR or (len(layers) == 1 and not _is_step(module)):
        return []
    found: list[Weights] = []
    for recurrent, *rest in permutations(layers):
        width = recurrent.in_features
        inputs, others = rest[:1], rest[1:]
        if any(part.out_features != width for part in (recurrent, *inputs)):
            continue
        biases = [part.bias.detach() for part in (recurrent, *inputs) if part.bias is not None]
        bias = torch.stack(biases).sum(dim=0) if biases else None
        injection = inputs[0].weight if inputs else torch.eye(width)
        if not others or others[0].in_features == width:
            found.append((recurrent.weight, injection, bias, _readout(others, width)))
    if found:
        _no_other_parameters(module, _parameters(layers))
    return found


def _readout(layers: list[nn.Linear], width: int) -> tuple[Tensor, Tensor | None] | None:
    if not layers:
        return None
    if len(layers) > 1 or layers[0].in_features != width:
        shapes = ", ".join(f"{part.in_features} → {part.out_features}" for part in layers)
        requirement = f"have one Linear from the {width} units of the state as its read-out"
        raise checks.invalid("module", _OWNER, requirement, shapes, _BY_FUNCTION)
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
        raise checks.invalid("module", _OWNER, requirement, ", ".join(others), _BY_FUNCTION)


def _activations(module: nn.Module) -> list[Activation]:
    """Return the activations among the submodules and the attributes."""
    parts: list[Any] = [*module.modules(), *vars(module).values()]
    return list({str(phi): phi for part in parts if (phi := _known_activation(part))}.values())


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
    return None if name is None else _by_name(name)


def _by_name(name: str) -> Activation:
    return from_formula("sigmoid(x)") if name == "sigmoid" else named(name)


_ALL_KNOWN = [_by_name(name) for name in dict.fromkeys([*_FUNCTIONS.values(), *_MODULES.values()])]


def _is_step(module: nn.Module) -> bool:
    """Whether forward takes two arguments, z and x."""
    arguments = inspect.signature(module.forward).parameters.values()
    needed = [a for a in arguments if a.default is a.empty and a.kind is a.POSITIONAL_OR_KEYWORD]
    return len(needed) == 2


@torch.no_grad()
def _of_step(
    module: nn.Module, found: Sequence[Weights], known: Sequence[Activation]
) -> tuple[Weights, Activation]:
    """Choose the weights and φ by which forward(z, x) is a·z + c·φ(W z + U x + b).

    a and c are fitted to a few random states.  The fixed points are those of c/(1 − a)·φ, which is
    returned as φ.
    """
    generator = torch.Generator().manual_seed(0)
    like = next(module.parameters())
    best, answer = math.inf, None
    for weights in found:
        W, U, b, _ = (_plain(w) if isinstance(w, Tensor) else w for w in weights)
        z, x = (torch.randn(8, k, generator=generator).to(like) for k in (len(W), U.shape[1]))
        try:
            first, again = module(z, x), module(z, x)
        except Exception:  # noqa: BLE001  # z and x the other way round, for instance
            continue
        if not torch.equal(first, again):
            remedy = "Switch it to evaluation mode, or let it forget what it has seen."
            requirement = "give the same answer twice"
            raise checks.invalid("module", _OWNER, requirement, "two different ones", remedy)
        if first.shape != z.shape:
            continue
        target, state, rows = _plain(first).ravel(), _plain(z), _plain(x)
        u = state @ W.T + rows @ U.T + (0.0 if b is None else b)
        for phi in known:
            columns = np.stack([state.ravel(), phi(u).ravel()], axis=1)
            (a, c), *_ = np.linalg.lstsq(columns, target, rcond=None)
            error = np.abs(columns @ (a, c) - target).max() / max(1.0, np.abs(target).max())
            if error < best:
                best, answer = error, (weights, phi, a, c)
    if answer is None or best > _SAME or answer[2] > 1.0 - _SAME:
        got = f"a difference of {best:.2g}"
        if best <= _SAME:
            got = "z + f(z, x), whose fixed points are the zeros of f"
        requirement = "compute φ(W z + U x + b) from its Linear layers, or a mean of that and z"
        raise checks.invalid("module", _OWNER, requirement, got, _BY_FUNCTION)
    weights, phi, a, c = answer
    gain = float(c / (1.0 - a))
    return weights, phi if abs(gain - 1.0) <= _SAME else scaled(phi, gain)


def _plain(tensor: Tensor) -> FloatArray:
    return np.asarray(tensor.detach().cpu().double().numpy())

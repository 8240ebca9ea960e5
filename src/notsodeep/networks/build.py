"""Finite torch networks from their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch

from notsodeep import checks
from notsodeep.models import (
    ConvolutionalNetwork,
    DeepEquilibrium,
    ExplicitNetwork,
    MonotoneEquilibrium,
)
from notsodeep.networks.cell_module import CellNetwork, MonotoneNetwork
from notsodeep.networks.convolutional import ConvolutionalModule
from notsodeep.networks.equilibrium_solvers import Solver
from notsodeep.networks.implicit_gradient import Gradient
from notsodeep.networks.modules import (
    Description,
    EquilibriumNetwork,
    ExplicitModule,
    FeatureNetwork,
    ImplicitNetwork,
    Trainable,
)
from notsodeep.networks.solve_records import OnFailure

Initialisation = Literal["gaussian", "uniform", "rademacher"]
ReadoutStart = Literal["gaussian", "zeros"]


def build(
    model: Description,
    in_features: int,
    width: int,
    out_features: int,
    rng: int | np.random.Generator,
    *,
    trainable: Trainable = "all",
    initialisation: Initialisation = "gaussian",
    readout_start: ReadoutStart = "gaussian",
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    solver: str | Mapping[str, Any] | Solver | None = None,
    gradient: str | Mapping[str, Any] | Gradient | None = None,
    on_failure: OnFailure | None = None,
) -> ImplicitNetwork | ExplicitModule:
    """Build a torch module with random weights, in the scaling of the theory.

    A DEQ becomes f = a z*, z* = φ(√σa² A z* + √σb² B x)/√m; an explicit network f = a x_L,
    x_l = σ_l(W_l x_{l−1})/√m.  All weights are stored at mean zero and variance one, so that the
    kernels of the module tend to those of the model as m grows: its CK to the "feature" CK of a
    DEQ or to Σ_L, its NTK to the "feature" NTK or to Θ_L.

    Parameters
    ----------
    model : DeepEquilibrium, MonotoneEquilibrium or ExplicitNetwork
        Or a convolutional model, whose width is its number of channels.
    in_features, width, out_features : int
        p, m and K; every hidden layer has the same width.
    rng : int or numpy.random.Generator
        Seed, or generator.  The weights depend on nothing else; float32 weights are the float64
        ones, rounded.
    trainable : {"all", "readout"}
        Which weights are parameters.  With "readout" the others are buffers.
    initialisation : {"gaussian", "uniform", "rademacher"}
        Law of the hidden weights.  The read-out is always Gaussian.
    readout_start : {"gaussian", "zeros"}
        With "zeros" training starts at f = 0.
    bias : bool
        Whether the read-out has a bias; it starts at zero.  The theory has none.
    dtype : torch.float32 or torch.float64
    device : torch.device or str, optional
    solver : {"fixed_point", "anderson", "broyden"}, dict or Solver, optional
        Of DEQs only, as the two below; see `implicit_layer`.
    gradient : {"implicit", "phantom", "jacobian_free"}, dict or Gradient, optional
    on_failure : {"raise", "warn", "ignore"}, optional
        Without it a solve that fails raises in evaluation, and in training is counted and warned
        about once.

    Returns
    -------
    EquilibriumNetwork, CellNetwork, MonotoneNetwork, ConvolutionalModule or ExplicitModule

    Examples
    --------
    >>> import notsodeep as nsd
    >>> module = build(nsd.DeepEquilibrium("tanh", 0.2), 784, 256, 10, rng=0)
    >>> module(torch.ones(2, 784)).shape
    torch.Size([2, 10])
    >>> module.last_record.forward.converged
    True
    """
    owner = "build"
    if not isinstance(model, Description):
        requirement = (
            "be a DeepEquilibrium, a MonotoneEquilibrium, an ExplicitNetwork or a convolutional "
            "model"
        )
        raise checks.invalid("model", owner, requirement, repr(model))
    generator = checks.random_generator(rng, owner)
    checks.known_name(initialisation, get_args(Initialisation), f"initialisation of {owner}")
    checks.known_name(readout_start, get_args(ReadoutStart), f"readout_start of {owner}")
    given = {"solver": solver, "gradient": gradient, "on_failure": on_failure}
    if isinstance(model, ExplicitNetwork | ConvolutionalNetwork):
        _no_options_for(given, owner, "for an explicit network")
    options = {name: value for name, value in given.items() if value is not None}
    module: ImplicitNetwork | ExplicitModule = module_class(model)(
        model,
        in_features,
        width,
        out_features,
        trainable=trainable,
        bias=bias,
        dtype=dtype,
        device=device,
        **options,
    )
    _draw_weights(module, generator, initialisation, readout_start)
    return module


def module_class(model: Description) -> Any:
    """Return the class of modules that a description becomes."""
    if isinstance(model, ExplicitNetwork):
        return ExplicitModule
    if isinstance(model, MonotoneEquilibrium):
        return MonotoneNetwork
    if isinstance(model, DeepEquilibrium):
        return EquilibriumNetwork if model.is_vanilla else CellNetwork
    return ConvolutionalModule


def _draw_weights(
    module: FeatureNetwork,
    generator: np.random.Generator,
    initialisation: Initialisation,
    readout_start: ReadoutStart,
) -> None:
    """Fill the weights, always in the order hidden, read-out; biases stay zero."""
    with torch.no_grad():
        for name in module.hidden_names:
            weight = getattr(module, name)
            weight.copy_(_entries(generator, tuple(weight.shape), initialisation))
        if readout_start == "gaussian":
            shape = tuple(module.readout.shape)
            module.readout.copy_(_entries(generator, shape, "gaussian"))


def _entries(
    generator: np.random.Generator, shape: tuple[int, ...], initialisation: Initialisation
) -> torch.Tensor:
    """Draw entries of mean 0 and variance 1, in float64: the same numbers in every precision."""
    if initialisation == "gaussian":
        return torch.from_numpy(generator.standard_normal(shape))
    if initialisation == "uniform":
        return torch.from_numpy(generator.uniform(-np.sqrt(3.0), np.sqrt(3.0), shape))
    return torch.from_numpy(generator.choice(np.array([-1.0, 1.0]), shape))


def _no_options_for(options: Mapping[str, object], owner: str, why: str) -> None:
    """Reject options that are set but would have no effect; `why` completes the sentence."""
    for option, value in options.items():
        if value is not None:
            raise checks.invalid(option, owner, f"be left out {why}", repr(value))

"""Finite networks of the descriptions, as torch modules in the theory's scaling.

Weights are kept at unit variance and the factors √σa², √σb² and 1/√m are applied in `forward`, so
that at large width the kernels of a module are those of its description.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import NotEnoughMemory
from notsodeep.models import (
    ConvolutionalModel,
    DeepEquilibrium,
    ExplicitNetwork,
    MonotoneEquilibrium,
)
from notsodeep.networks import requirements
from notsodeep.networks.equilibrium_map import EquilibriumMap
from notsodeep.networks.equilibrium_solvers import Solver, as_solver
from notsodeep.networks.fixed_point_problems import Map, Problem
from notsodeep.networks.gradient_choices import as_gradient
from notsodeep.networks.implicit_gradient import Gradient
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.solve_records import (
    FailureCount,
    ImplicitRecord,
    OnFailure,
    Report,
    report_for,
)

Trainable = Literal["all", "readout"]
PRECISIONS = (torch.float32, torch.float64)
Description = DeepEquilibrium | MonotoneEquilibrium | ExplicitNetwork | ConvolutionalModel


@dataclass(frozen=True)
class HiddenLayer:
    """What a pass through a hidden layer h = W v leaves for derivatives in its weights W.

    Attributes
    ----------
    preactivations : Tensor of shape (n, m)
        h, or a term of it: what the gradient δ is taken with respect to.
    inputs : tuple of (float, Tensor of shape (n, d))
        v in parts, each with a factor; the gradient with respect to a part of W is factor·δᵀ v.
    """

    preactivations: Tensor
    inputs: tuple[tuple[float, Tensor], ...]


class FeatureNetwork(nn.Module, ABC):
    """Features of the input, and a linear read-out of them.

    The weights of a new module are zero: `build` draws them, `load_state_dict` loads them.

    Attributes
    ----------
    description : DeepEquilibrium, MonotoneEquilibrium, ExplicitNetwork or ConvolutionalModel
    in_features, width, out_features : int
        p, m and K.
    trainable : {"all", "readout"}
        Which weights are parameters; the others are buffers.
    hidden_names : tuple of str
        Names of the hidden weights.
    readout : Parameter of shape (K, m)
        Of a convolutional model (K, pooled pixels · m).
    readout_bias : Parameter of shape (K,), or None

    Examples
    --------
    >>> import notsodeep as nsd
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 4, 8, 2, rng=0, trainable="readout")
    >>> isinstance(net, FeatureNetwork), [name for name, _ in net.named_parameters()]
    (True, ['readout'])
    >>> net.features(torch.ones(3, 4)).shape
    torch.Size([3, 8])
    """

    by_layers: ClassVar[bool] = True
    """Whether the gradient of every hidden weight is a product δ ⊗ v; see `HiddenLayer`."""

    readout: nn.Parameter
    readout_bias: nn.Parameter | None

    def __init__(
        self,
        description: Description,
        in_features: int,
        width: int,
        out_features: int,
        *,
        trainable: Trainable = "all",
        bias: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        checks.known_name(trainable, get_args(Trainable), f"trainable of {owner}")
        requirements.network_dtype(dtype, PRECISIONS, owner)
        self.description = description
        self.in_features = checks.positive_integer(in_features, "in_features", owner)
        self.width = checks.positive_integer(width, "width", owner)
        self.out_features = checks.positive_integer(out_features, "out_features", owner)
        self.trainable = trainable
        shapes = self._shapes()
        self.hidden_names = tuple(shapes)
        if str(device) in ("None", "cpu"):
            count = sum(map(math.prod, shapes.values()))
            _weights_fit(count * dtype.itemsize, owner)
        for name, shape in shapes.items():
            weight = torch.zeros(shape, dtype=dtype, device=device)
            if trainable == "all":
                self.register_parameter(name, nn.Parameter(weight))
            else:
                self.register_buffer(name, weight)
        read = torch.zeros(out_features, self._features, dtype=dtype, device=device)
        self.readout = nn.Parameter(read)
        self.readout_bias = (
            nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device)) if bias else None
        )
        self._twins = tuple(map(torch_twin, self._activations()))

    @abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the hidden weights, in the order in which they are drawn."""

    @abstractmethod
    def _activations(self) -> Sequence[Activation]:
        """Return the activations of the layers."""

    @property
    def _features(self) -> int:
        """How many features the read-out sees."""
        return self.width

    @abstractmethod
    def hidden_pass(self, X: Tensor, *weights: Tensor) -> tuple[Tensor, tuple[HiddenLayer, ...]]:
        """Return the features for given hidden weights, and what each layer leaves behind."""

    def other_gradients(
        self, z: Tensor, deltas: Sequence[Tensor], z2: Tensor, deltas2: Sequence[Tensor]
    ) -> Tensor:
        """Return what weights without a place in the hidden layers add to the tangent kernel.

        Parameters
        ----------
        z, z2 : Tensor of shape (n, m) and (n2, m)
            Features of two sets of samples.
        deltas, deltas2 : sequence of Tensor of shape (n, K·m) and (n2, K·m)
            Gradients of all outputs at the pre-activations of every hidden layer.
        """
        del deltas, deltas2
        return z.new_zeros(len(z), len(z2))

    def features(self, X: Tensor) -> Tensor:
        """Return the last features, shape (n, m)."""
        owner = type(self).__name__
        requirements.input_features(X, self.in_features, self.readout.dtype, owner)
        return self.hidden_pass(X, *(getattr(self, name) for name in self.hidden_names))[0]

    def forward(self, X: Tensor) -> Tensor:
        """Return the outputs, shape (n, K)."""
        return nn.functional.linear(self.features(X), self.readout, self.readout_bias)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return (
            f"{self.description}, in_features={self.in_features}, width={self.width}, "
            f"out_features={self.out_features}, trainable={self.trainable!r}"
        )


class ExplicitModule(FeatureNetwork):
    """x_l = σ_l(W_l x_{l−1})/√m for l = 1 … L, x_0 = x, and f = a x_L.

    Attributes
    ----------
    weight_1, …, weight_L : Parameter or buffer
        W_l, of shape (m, p) for l = 1 and (m, m) after that.

    See `FeatureNetwork` for the other attributes, and `build` for the arguments.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu", "tanh"]), 4, 8, 2, rng=0)
    >>> {name: tuple(weight.shape) for name, weight in net.named_parameters()}
    {'weight_1': (8, 4), 'weight_2': (8, 8), 'readout': (2, 8)}
    """

    description: ExplicitNetwork

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            f"weight_{layer}": (self.width, self.in_features if layer == 1 else self.width)
            for layer in range(1, self.description.depth + 1)
        }

    def _activations(self) -> Sequence[Activation]:
        return self.description.activations

    def hidden_pass(self, X: Tensor, *weights: Tensor) -> tuple[Tensor, tuple[HiddenLayer, ...]]:
        """Return x_L, and W_l x_{l−1} and x_{l−1} for every l."""
        layers = []
        for weight, twin in zip(weights, self._twins, strict=True):
            layers.append(HiddenLayer(nn.functional.linear(X, weight), ((1.0, X),)))
            X = twin(layers[-1].preactivations) / math.sqrt(self.width)
        return X, tuple(layers)


class ImplicitNetwork(FeatureNetwork):
    """Features at a fixed point: what all networks with a solver have in common.

    Attributes
    ----------
    solver : Solver
    gradient : Gradient
    on_failure : {"raise", "warn", "ignore"} or None
        What happens if the fixed point, or a gradient, is not found.  None raises in evaluation,
        and in training counts in `failures` and warns the first time.
    failures : FailureCount
    last_record : ImplicitRecord or None
        Of the last pass, gradients included.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> net = nsd.build(nsd.MonotoneEquilibrium("relu"), 4, 16, 2, rng=0, solver="anderson")
    >>> isinstance(net, ImplicitNetwork), net.solver.name, net.last_record
    (True, 'anderson', None)
    """

    def __init__(
        self,
        description: Description,
        in_features: int,
        width: int,
        out_features: int,
        *,
        solver: str | Mapping[str, Any] | Solver = "fixed_point",
        gradient: str | Mapping[str, Any] | Gradient = "implicit",
        on_failure: OnFailure | None = None,
        **options: Any,
    ) -> None:
        super().__init__(description, in_features, width, out_features, **options)
        self.solver = as_solver(solver)
        self.gradient = as_gradient(gradient)
        if on_failure is not None:
            owner = f"on_failure of {type(self).__name__}"
            checks.known_name(on_failure, get_args(OnFailure), owner)
        self.on_failure = on_failure
        self.failures = FailureCount()
        self.last_record: ImplicitRecord | None = None

    def _solve(self, problem: Problem | Map, parameters: Sequence[Tensor], start: Tensor) -> Tensor:
        """Solve for the fixed point by the module's own solver, and keep the record."""
        remedy = self._remedy()
        report: Report
        if self.on_failure is not None:
            report = report_for(self.on_failure, remedy)
        else:
            report = self.failures.report(remedy) if self.training else report_for("raise", remedy)
        found, self.last_record = implicit_layer(
            problem,
            parameters,
            start,
            solver=self.solver,
            gradient=self.gradient,
            on_failure=report,
            subject=f"the fixed point of {self.description} of width {self.width}",
        )
        return found

    def _remedy(self) -> str:
        """Return what the message of a failed solve advises."""
        others = as_solver(self.solver).others
        return f"Use smaller weights, a larger width, {others}, or more steps."


class EquilibriumNetwork(ImplicitNetwork):
    """z* = φ(√σa² A z* + √σb² B x)/√m, and f = a z*.

    Attributes
    ----------
    recurrent : Parameter or buffer of shape (m, m)
        A.
    injection : Parameter or buffer of shape (m, p)
        B.
    input_scale : float
        What inputs are multiplied by; 1 except after `from_weights`.

    See `ImplicitNetwork` and `FeatureNetwork` for the other attributes, and `build` for the
    arguments.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> net = nsd.build(deq, 4, 64, 2, rng=0, solver="anderson")
    >>> net(torch.ones(3, 4)).sum().backward()
    >>> record = net.last_record
    >>> record.forward.converged, record.derivatives[0].converged, net.recurrent.grad.shape
    (True, True, torch.Size([64, 64]))
    """

    description: DeepEquilibrium
    recurrent: Tensor
    injection: Tensor

    def __init__(
        self,
        description: DeepEquilibrium,
        in_features: int,
        width: int,
        out_features: int,
        *,
        input_scale: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(description, in_features, width, out_features, **options)
        self.input_scale = checks.positive_number(input_scale, "input_scale", "EquilibriumNetwork")
        self._problem = EquilibriumMap(self._twins[0], math.sqrt(description.sigma_a2 / width))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        m = self.width
        return {"recurrent": (m, m), "injection": (m, self.in_features)}

    def _activations(self) -> Sequence[Activation]:
        return (self.description.activation,)

    def hidden_pass(self, X: Tensor, *weights: Tensor) -> tuple[Tensor, tuple[HiddenLayer, ...]]:
        """Return z*; A and B are one layer with the inputs √σa² z* and √σb² x.

        Its gradients are those with respect to √σb² B x, with z* following.
        """
        recurrent, injection = weights
        share_a, share_b = self.description.sigma_a2, self.description.sigma_b2
        X = X * (self.input_scale * math.sqrt(share_b))
        drive = nn.functional.linear(X, injection)
        h = self._solve(self._problem, (drive, recurrent), drive)
        z = self._twins[0](h) / math.sqrt(self.width)
        return z, (HiddenLayer(drive, ((math.sqrt(share_a), z), (1.0, X))),)

    def _remedy(self) -> str:
        bound, solver = self.description.contraction_bound, as_solver(self.solver)
        return (
            "At finite width it is sure to exist and be unique for "
            f"σa² < 1/(4L²) = {bound:.4g} only. Use a smaller sigma_a2, a larger width, "
            f"{solver.others}, or more steps: solver={{'name': {solver.name!r}, 'max_steps': …}}."
        )


def _weights_fit(needed: int, owner: str) -> None:
    """Reject weights that do not fit into the memory that is free now."""
    available = checks.available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The weights of {owner} need {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} "
            "GiB of memory are free. Use a smaller width."
        )

"""Finite networks of the described models: one torch module for all of them.

Weights are kept at unit variance and the factors √w, √u, √b and 1/√m are applied in `forward`, so
that at large width the kernels of a module are those of its model, convention "feature".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep import checks
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import InvalidInput
from notsodeep.models import (
    ConvolutionalModel,
    DeepEquilibrium,
    Dense,
    ExplicitNetwork,
    MonotoneEquilibrium,
    model_from_dict,
)
from notsodeep.networks.implicit import (
    DEFAULT_TOLERANCE,
    OnFailure,
    Solver,
    SolveRecord,
    as_solver,
    implicit_layer,
)

Trainable = Literal["all", "readout"]
Model = DeepEquilibrium | MonotoneEquilibrium | ExplicitNetwork | ConvolutionalModel


def ring_of(model: Model) -> tuple[Dense, ...]:
    """Return the layers of a model; the first reads the last, unless its weight is zero."""
    if isinstance(model, ExplicitNetwork):
        first, *others = model.activations
        return Dense(first, 0.0, inject=1.0), *(Dense(phi, 1.0) for phi in others)
    if isinstance(model, MonotoneEquilibrium):  # the variances of W are not those of one matrix
        return (Dense(model.activation, 1.0, inject=model.inject, bias=model.bias),)
    return tuple(model.cell)


class Network(nn.Module):
    """h_l = √w_l A_l z_{l−1} + √u_l U_l x + √b_l β_l, z_l = φ_l(h_l)/√m around a ring, f = a z_L.

    The first layer reads the last, and h_1 is solved for.  Where its weight is zero the ring is not
    closed, and the network explicit.  Convolutional models have the same ring over all pixels, with
    windows of weights.  A monotone model has W = (1 − μ)I − (a²/m) AᵀA + √(b²/m) (B − Bᵀ) in the
    place of √(w/m) A, and is solved by the Peaceman–Rachford splitting, h ← 2V(r + d) − r with
    r = 2φ(h) − h, V = (2I − W)⁻¹ and d the drive (Winston, Kolter, *Monotone operator equilibrium
    networks*, NeurIPS 2020), which converges for increasing φ with slopes of at most one.

    The weights of a new module are zero: `build` draws them, `load_state_dict` loads them.

    Parameters
    ----------
    model : DeepEquilibrium, MonotoneEquilibrium, ExplicitNetwork or convolutional model
    in_features, width, out_features : int
        p, m and K; the width of a convolutional model is its number of channels.
    trainable : {"all", "readout"}
        Which weights are parameters; the others are buffers.
    bias : bool
        Of the read-out.
    solver : str, dict or Solver
    dtype : torch.float32 or torch.float64

    Attributes
    ----------
    weight_l, injection_l, bias_l : Tensor of shape (m, m), (m, p) and (m,)
        A_l, U_l and β_l, where their variances are not zero; windows of shape (m, m, k, k) of a
        convolution.  A monotone model has `symmetric` and `skew`, A and B, in place of `weight_1`.
    readout, readout_bias : Parameter of shape (K, m) and (K,)
    backward : Solver, int or None
        Of gradients, see `implicit_layer`.
    on_failure : {"raise", "warn", "ignore"} or None
        None raises in evaluation and warns in training.
    record : SolveRecord or None
        Of the last solve.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> net = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 4, 64, 2, rng=0)
    >>> net(torch.ones(3, 4)).sum().backward()
    >>> net.record.converged, net.record.derivatives[0].converged, net.weight_1.grad.shape
    (True, True, torch.Size([64, 64]))
    """

    readout: nn.Parameter
    readout_bias: nn.Parameter | None

    def __init__(
        self,
        model: Model,
        in_features: int,
        width: int,
        out_features: int,
        *,
        trainable: Trainable = "all",
        bias: bool = False,
        solver: str | Mapping[str, Any] | Solver = "plain",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if not isinstance(model, Model):
            raise InvalidInput(f"model must be a model of a network, got {model!r}.")
        checks.known_name(trainable, get_args(Trainable), "trainable")
        if dtype not in DEFAULT_TOLERANCE:
            raise InvalidInput(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        for name, size in (("width", width), ("out_features", out_features)):
            checks.positive_integer(size, name, "Network")
        self.model, self.trainable = model, trainable
        self.in_features, self.width, self.out_features = in_features, width, out_features
        self.images = isinstance(model, ConvolutionalModel)
        if isinstance(model, ConvolutionalModel) and in_features != model.features:
            got = f"{model.features}, the numbers of an image, got {in_features}"
            raise InvalidInput(f"in_features must be {got}.")
        self.layers = ring_of(model)
        self.closed = self.layers[0].weight > 0.0
        self.solver, self.backward = as_solver(solver), None  # type: Solver, Solver | int | None
        self.on_failure: OnFailure | None = None
        self.record: SolveRecord | None = None
        self._phi = [torch_twin(layer.activation) for layer in self.layers]
        self._factors: dict[str, float] = {}
        pixels = pooled_pixels(model) if isinstance(model, ConvolutionalModel) else 1
        shapes = self._hidden_shapes()
        needed = sum(map(math.prod, shapes.values())) * dtype.itemsize
        if torch.get_default_device().type == "cpu":
            checks.enough_memory(needed, "The weights of a network", "Use a smaller width.")
        for name, shape in shapes.items():
            weight = torch.zeros(shape, dtype=dtype)
            if trainable == "all":
                self.register_parameter(name, nn.Parameter(weight))
            else:
                self.register_buffer(name, weight)
        self.readout = nn.Parameter(torch.zeros(out_features, pixels * width, dtype=dtype))
        self.readout_bias = nn.Parameter(torch.zeros(out_features, dtype=dtype)) if bias else None

    def _hidden_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the hidden weights as they are drawn; set their factors."""
        model, m, shapes = self.model, self.width, {}
        channels = self.in_features
        if isinstance(model, ConvolutionalModel):
            channels = model.image_shape[2]
        for k, layer in enumerate(self.layers, start=1):
            size = layer.size if self.images else 1  # type: ignore[attr-defined]
            window = (size, size) if self.images else ()
            weights = {f"weight_{k}": layer.weight / m}
            if isinstance(model, MonotoneEquilibrium):
                weights = {"symmetric": model.symmetric / m, "skew": model.skew / m}
            inputs = {f"injection_{k}": layer.inject}
            for names, tail in ((weights, (m, *window)), (inputs, (channels, *window))):
                for name, variance in names.items():
                    if variance > 0.0:
                        shapes[name] = (m, *tail)
                        self._factors[name] = math.sqrt(variance) / size
            if layer.bias > 0.0:
                shapes[f"bias_{k}"] = (m,)
                self._factors[f"bias_{k}"] = math.sqrt(layer.bias)
        return shapes

    def factor(self, name: str) -> float:
        """Return what a hidden weight is multiplied by."""
        return self._factors[name]

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Names of the hidden weights, in the order in which they are drawn."""
        return tuple(self._factors)

    def scaled(self, name: str) -> Tensor:
        """Return a hidden weight with its factor."""
        weight: Tensor = self._factors[name] * getattr(self, name)
        return weight

    def _applied(self, weight: Tensor, units: Tensor, stride: int = 1) -> Tensor:
        """Return W z of rows, or the convolution of images."""
        if not isinstance(self.model, ConvolutionalModel):
            return functional.linear(units, weight)
        reach = 4 * [weight.shape[-1] // 2]
        mode = "circular" if self.model.padding == "circular" else "constant"
        return functional.conv2d(functional.pad(units, reach, mode=mode), weight, stride=stride)

    def drives(self, X: Tensor) -> list[Tensor]:
        """Return √u_l U_l x + √b_l β_l of every layer; that of the first has the shape of h_1."""
        shape, stride = (*X.shape[:-1], self.width), 1
        if isinstance(self.model, ConvolutionalModel):
            height, width, channels = self.model.image_shape
            X = X.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
            stride, shape = self.model.stride, (len(X), self.width, *self.model.grid)
        drives = []
        for k, layer in enumerate(self.layers, start=1):
            drive = X.new_zeros(shape if k == 1 else ())
            if layer.inject > 0.0:
                drive = self._applied(self.scaled(f"injection_{k}"), X, stride)
            if layer.bias > 0.0:
                bias = self.scaled(f"bias_{k}")
                drive = drive + (bias[:, None, None] if self.images else bias)
            drives.append(drive)
        return drives

    def weights(self) -> list[Tensor]:
        """Return A_l of every layer, zero where there is none; W of a monotone model."""
        if not isinstance(self.model, MonotoneEquilibrium):
            none = torch.zeros((), dtype=self.readout.dtype, device=self.readout.device)
            return [getattr(self, f"weight_{k}", none) for k in range(1, len(self.layers) + 1)]
        W = (1.0 - self.model.monotonicity) * self._identity()
        if self.model.symmetric > 0.0:
            A = self.scaled("symmetric")
            W = W - A.mT @ A
        if self.model.skew > 0.0:
            B = self.scaled("skew")
            W = W + B - B.mT
        return [W]

    def _identity(self) -> Tensor:
        return torch.eye(self.width, dtype=self.readout.dtype, device=self.readout.device)

    def _read(self, k: int, weight: Tensor, units: Tensor, drive: Tensor) -> Tensor:
        """Return h of layer k, which reads units; the factor costs no pass over the weights."""
        factor = self._factors.get(f"weight_{k + 1}", 1.0)
        if units.ndim == 2:
            return torch.addmm(drive, units, weight.mT, alpha=factor)
        return factor * self._applied(weight, units) + drive

    def units(self, h: Tensor, drives: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Go from h of the first layer to the units φ_l(h_l) of every layer."""
        units: list[Tensor] = []
        for k, layer in enumerate(self.layers):
            if units:
                h = self._read(k, weights[k], units[-1], drives[k])
            h = normalised(h) if layer.normalise == "preactivation" else h
            made = self._phi[k](h)
            units.append(normalised(made) if layer.normalise == "feature" else made)
        return units

    def solved(self, drives: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the units of every layer, at the fixed point if there is one."""
        depth = len(drives)
        if not self.closed:
            return self.units(drives[0], drives, weights)
        f, theta = self._around, [*drives, *weights]
        if isinstance(self.model, MonotoneEquilibrium):
            f, theta = (
                self._splitting,
                [*drives, torch.linalg.inv(2.0 * self._identity() - weights[0])],
            )
        h, self.record = implicit_layer(
            lambda h, *theta: f(h, theta[:depth], theta[depth:]),
            theta,
            drives[0].flatten(-3 if self.images else -1),
            solver=self.solver,
            backward=self.backward,
            on_failure=self.on_failure or ("warn" if self.training else "raise"),
        )
        return self.units(h.reshape(drives[0].shape), drives, weights)

    def _around(self, h: Tensor, drives: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """Go around the ring once, from h of the first layer to itself."""
        last = self.units(h.reshape(drives[0].shape), drives, weights)[-1]
        return self._read(0, weights[0], last, drives[0]).reshape(h.shape)

    def turn(self, units: Tensor, X: Tensor) -> Tensor:
        """Go around the ring once for rows X, from the units of the last layer to themselves."""
        drives, weights = self.drives(X), self.weights()
        return self.units(self._read(0, weights[0], units, drives[0]), drives, weights)[-1]

    def _splitting(self, h: Tensor, drives: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """Take one step of Peaceman and Rachford; it has the fixed points of `_around`."""
        reflected = 2.0 * self._phi[0](h) - h
        return 2.0 * functional.linear(reflected + drives[0], weights[0]) - reflected

    def features(self, X: Tensor) -> Tensor:
        """Return what the read-out sees, shape (..., m); of images (..., pooled pixels · m)."""
        if not isinstance(X, Tensor) or X.dtype != self.readout.dtype:
            kind = X.dtype if isinstance(X, Tensor) else type(X)
            raise InvalidInput(f"X must be a tensor of {self.readout.dtype}, got {kind}.")
        if X.ndim == 0 or X.shape[-1] != self.in_features:
            got = f"{self.in_features} features along its last axis, got shape {tuple(X.shape)}"
            raise InvalidInput(f"X must have {got}.")
        units = self.solved(self.drives(X), self.weights())[-1] / math.sqrt(self.width)
        if not isinstance(self.model, ConvolutionalModel):
            return units
        pooling = self.model.pooling
        if pooling == "average":
            units = units.mean(dim=(-2, -1), keepdim=True)
        elif pooling != "flatten":
            if self.model.padding == "circular":
                reach = 0, int(pooling) - 1
                units = functional.pad(units, (*reach, *reach), mode="circular")
            units = functional.avg_pool2d(units, int(pooling), stride=1)
        flat = units.flatten(1) / math.sqrt(pooled_pixels(self.model))
        return flat.reshape(*X.shape[:-1], flat.shape[1])

    def forward(self, X: Tensor) -> Tensor:
        """Return the outputs, shape (..., K)."""
        return functional.linear(self.features(X), self.readout, self.readout_bias)

    def stored_form(self) -> dict[str, Any]:
        """Return everything but the weights as JSON; `from_stored` makes the network again."""
        backward = self.backward
        return {
            "model": self.model.to_dict(),
            "in_features": self.in_features,
            "width": self.width,
            "out_features": self.out_features,
            "trainable": self.trainable,
            "bias": self.readout_bias is not None,
            "solver": self.solver.to_dict(),
            "backward": backward.to_dict() if isinstance(backward, Solver) else backward,
            "on_failure": self.on_failure,
            "dtype": str(self.readout.dtype).removeprefix("torch."),
        }

    @classmethod
    def from_stored(cls, form: Mapping[str, Any]) -> Network:
        """Make a network of the form made by `stored_form`."""
        options = dict(form)
        backward, on_failure = options.pop("backward", None), options.pop("on_failure", None)
        options["model"] = model_from_dict(options["model"])
        options["dtype"] = {str(each).removeprefix("torch."): each for each in DEFAULT_TOLERANCE}[
            options["dtype"]
        ]
        network = cls(**options)
        network.backward = as_solver(backward) if isinstance(backward, dict) else backward
        network.on_failure = on_failure
        return network

    def extra_repr(self) -> str:
        """Describe the network, for `repr`."""
        sizes = f"{self.in_features}, {self.width}, {self.out_features}"
        solver = f", solver={self.solver}, backward={self.backward}" if self.closed else ""
        return f"{self.model}, {sizes}, trainable={self.trainable!r}{solver}"


def build(
    model: Model,
    in_features: int,
    width: int,
    out_features: int,
    rng: int | np.random.Generator,
    *,
    trainable: Trainable = "all",
    bias: bool = False,
    solver: str | Mapping[str, Any] | Solver = "plain",
    dtype: torch.dtype = torch.float32,
) -> Network:
    """Build a torch module with random weights, in the scaling of the theory.

    A DEQ becomes f = a z*, z* = φ(√σa² A z* + √σb² B x)/√m; an explicit network f = a x_L,
    x_l = σ_l(W_l x_{l−1})/√m; see `Network` for the others.  All weights have mean zero and
    variance one, so that the kernels of the module tend to those of the model as m grows: its CK
    to the "feature" CK of a DEQ or to Σ_L, its NTK to the "feature" NTK or to Θ_L.

    Parameters
    ----------
    model : DeepEquilibrium, MonotoneEquilibrium, ExplicitNetwork or convolutional model
    in_features, width, out_features : int
        p, m and K; every hidden layer has the same width, channels of a convolutional model.
    rng : int or numpy.random.Generator
        The weights depend on nothing else; float32 weights are the float64 ones, rounded.
    trainable : {"all", "readout"}
        Which weights are parameters.  With "readout" the others are buffers.
    bias : bool
        Whether the read-out has a bias, which starts at zero.  The theory has none.
    solver : {"plain", "anderson", "broyden"}, dict or Solver
        Of equilibrium models; see `implicit_layer`.
    dtype : torch.float32 or torch.float64

    Examples
    --------
    >>> import notsodeep as nsd
    >>> net = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 784, 256, 10, rng=0)
    >>> net(torch.ones(2, 784)).shape, net(torch.ones(784)).shape, net.record.converged
    (torch.Size([2, 10]), torch.Size([10]), True)
    """
    generator = checks.random_generator(rng, "build")
    sizes = in_features, width, out_features
    network = Network(model, *sizes, trainable=trainable, bias=bias, solver=solver, dtype=dtype)
    with torch.no_grad():
        for name in (*network.hidden_names, "readout"):
            weight = getattr(network, name)
            weight.copy_(torch.from_numpy(generator.standard_normal(tuple(weight.shape))))
    return network


def pooled_pixels(model: ConvolutionalModel) -> int:
    """Count the pixels that the read-out sees."""
    height, width = model.grid
    if model.pooling == "average":
        return 1
    if model.pooling == "flatten" or model.padding == "circular":
        return height * width
    return (height - int(model.pooling) + 1) * (width - int(model.pooling) + 1)


def normalised(units: Tensor) -> Tensor:
    """Layer normalisation over the units, without gains; zero for a row of equal units."""
    # Units of the largest keep squares in range, and the noise of equal units below `flat`.
    largest = units.detach().abs().amax(dim=-1, keepdim=True)
    units = units / torch.where(largest == 0.0, 1.0, largest)
    centred = units - units.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    flat = variance <= (8.0 * torch.finfo(units.dtype).eps) ** 2
    return torch.where(flat, 0.0, centred / torch.where(flat, 1.0, variance).sqrt())

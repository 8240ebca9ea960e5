"""Explicit layers for a given network, in closed form: no labels, no gradients.

Layer k is an ordinary dense layer, z_k = R(P_k [h, z_{k−1}, …, z_1, 1]), of the network's own
width.  P_k is the ridge regression onto the pre-images s* = (1 − α/β)z* + α(Wz* + h) of the fixed
points, of which z* = R_α(s*); or it is a step of a solver from the layer before, whose weights come
from W alone.  Which of these, and α and the ridge, is decided on validation rows, by the
certificate itself: the median of bound over margin.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep.activations import Activation, PiecewiseLinear, from_dict
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.networks.affine import AffineDEQ, Resolvent
from notsodeep.networks.function import FunctionDEQ
from notsodeep.records import Record
from notsodeep.trained.certificate import Certifier
from notsodeep.trained.margin import Margin

if TYPE_CHECKING:
    from notsodeep.networks.onnx import GraphBuilder

LayerKind = Literal["least squares", "Peaceman–Rachford", "forward–backward"]

RELATIVE_STEPS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""Steps α of the pre-images that are tried, times 1/‖G‖."""
RIDGES = (1e-9, 1e-7, 1e-5, 1e-3, 1e-1)
"""Ridges that are tried, relative to features of variance one."""


@dataclass(frozen=True, eq=False, repr=False)
class Layer(Record):
    """One dense layer: s = weight·[h, z_{k−1}, …, z_1] + bias, z = R_α(s)."""

    weight: FloatArray  # (m, k·m)
    bias: FloatArray
    step: float  # α
    kind: LayerKind  # where the weights come from
    ridge: float | None  # of a regression
    # Median of bound over margin on the validation rows; without a margin, the relative error of
    # the logits, or of the states.
    score: float


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """What layers are fitted to: rows with their fixed points, and validation rows."""

    cell: AffineDEQ
    margin: Margin
    drive: FloatArray  # h of the rows, (n, m)
    states: FloatArray  # and z*
    drive_val: FloatArray  # of the validation rows
    states_val: FloatArray
    sizes_val: FloatArray  # ‖(x − shift)/scale‖ of these
    certifier: Certifier | None  # None where nothing can be proved

    def resolvent(self, step: float) -> Resolvent:
        """Return R_α."""
        return Resolvent(self.cell.activation, step, self.margin.beta)

    def steps(self) -> list[float]:
        """Return the α to try: others than β only where R_α is piecewise linear."""
        if not (isinstance(self.cell.activation, PiecewiseLinear) and self.margin.slopes.monotone):
            return [self.margin.beta]
        grid = [factor / self.margin.lipschitz for factor in RELATIVE_STEPS]
        return [*grid, self.margin.beta]

    @torch.no_grad()
    def score(self, s: FloatArray, step: float) -> float:
        """Judge pre-images of the validation rows; the smaller the better."""
        resolvent = self.resolvent(step)
        t = resolvent.preimage(torch.as_tensor(s))
        if self.certifier is not None and self.cell.has_readout:
            rows = torch.as_tensor(self.drive_val), torch.as_tensor(self.sizes_val)
            score = float(self.certifier.classes(t, *rows).ratios.median())
            if np.isfinite(score):
                return score
        states = resolvent.phi(t), torch.as_tensor(self.states_val)
        if not self.cell.has_readout:
            return _relative_error(*states)
        # Without a lead on half of the rows the median ratio is infinite: such layers are still
        # ranked, but behind every one that has a ratio.
        logits = (self.cell.logits(z.to(self.cell.bias.dtype)) for z in states)
        return 1e6 * _relative_error(*logits)


def _relative_error(values: Tensor, targets: Tensor) -> float:
    norm = torch.linalg.vector_norm
    return float(norm(values - targets)) / max(float(norm(targets)), 1e-300)


def fit_layers(problem: LayerProblem, layers: int) -> tuple[Layer, ...]:
    """Fit a chain of layers, with the α that scores best on the validation rows."""
    chains = [_chain(problem, layers, step) for step in problem.steps()]
    return min(chains, key=lambda chain: chain[-1].score)


@torch.no_grad()
def _chain(problem: LayerProblem, layers: int, step: float) -> tuple[Layer, ...]:
    resolvent, m = problem.resolvent(step), problem.cell.width
    preactivations = problem.states @ problem.cell.arrays()["W"].T + problem.drive
    targets = resolvent.image(torch.as_tensor(preactivations)).numpy()
    inputs, inputs_val = problem.drive, problem.drive_val
    chain: list[Layer] = []
    for k in range(layers):
        candidates = _regressions(inputs, targets, step)
        if problem.margin.slopes.monotone:
            candidates += _solver_steps(problem, chain, inputs.shape[1], step)
        judged = [
            dataclasses.replace(c, score=problem.score(inputs_val @ c.weight.T + c.bias, step))
            for c in candidates
        ]
        layer = min(judged, key=lambda layer: layer.score)
        chain.append(layer)
        if k < layers - 1:
            inputs, inputs_val = (
                np.hstack([x[:, :m], _activated(resolvent, layer, x), x[:, m:]])
                for x in (inputs, inputs_val)
            )
    return tuple(chain)


def _activated(resolvent: Resolvent, layer: Layer, inputs: FloatArray) -> FloatArray:
    s = torch.as_tensor(inputs @ layer.weight.T + layer.bias)
    return np.asarray(resolvent.state(s).numpy())


def _regressions(inputs: FloatArray, targets: FloatArray, step: float) -> list[Layer]:
    """Return ridge regressions, one for each ridge, from one eigenvalue decomposition."""
    mean, target_mean = inputs.mean(axis=0), targets.mean(axis=0)
    centred = inputs - mean
    scale = np.sqrt(np.mean(centred**2, axis=0))
    scale[scale <= 1e-12 * max(float(scale.max()), 1e-300)] = np.inf  # constants: the bias has them
    centred /= scale
    values, vectors = np.linalg.eigh(centred.T @ centred / len(inputs))
    projected = vectors.T @ (centred.T @ (targets - target_mean)) / len(inputs)
    layers = []
    # All ridges from one decomposition, O(features³); each costs one more product.
    for ridge in RIDGES:
        damped = projected / (np.maximum(values, 0.0) + ridge)[:, None]
        weight = np.ascontiguousarray(((vectors @ damped) / scale[:, None]).T)
        bias = target_mean - weight @ mean
        layers.append(Layer(weight, bias, step, "least squares", ridge, np.inf))
    return layers


def _solver_steps(
    problem: LayerProblem, chain: Sequence[Layer], features: int, step: float
) -> list[Layer]:
    """Return the steps of solvers from the layer before, as dense layers.

    A step of Peaceman and Rachford starts from s and z = R(s); s is linear in what the layer before
    has read, which this layer reads too.
    """
    beta, m = problem.margin.beta, problem.cell.width
    identity = np.eye(m)
    G = identity / beta - problem.cell.arrays()["W"]
    of_s = np.zeros((m, features))  # s of the layer before, in terms of [h, z_{k−1}, …]
    of_z = np.zeros((m, features))
    if chain:
        before = chain[-1]
        of_z[:, m : 2 * m] = identity
        of_s = np.hstack([before.weight[:, :m], np.zeros((m, m)), before.weight[:, m:]])
        bias_s, bias_z = before.bias, np.zeros(m)
    else:
        bias_z = problem.cell.activation(np.zeros(m))
        bias_s = (1.0 - step / beta) * bias_z
    of_h = np.zeros((m, features))
    of_h[:, :m] = identity
    forward = of_z - step * (G @ of_z - of_h), bias_z - step * G @ bias_z
    inverse = np.linalg.inv(identity + step * G)
    reflected, bias_reflected = 2.0 * of_z - of_s, 2.0 * bias_z - bias_s
    through = 2.0 * inverse @ (reflected + step * of_h) - reflected
    bias_through = 2.0 * inverse @ bias_reflected - bias_reflected
    return [
        Layer(*forward, step, "forward–backward", None, np.inf),
        Layer(through, bias_through, step, "Peaceman–Rachford", None, np.inf),
    ]


def preimages_of(
    layers: Sequence[Layer], resolvents: Sequence[Resolvent], drive: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return s_k and z_k of all layers, for rows h."""
    preimages: list[Tensor] = []
    states: list[Tensor] = []
    for layer, resolvent in zip(layers, resolvents, strict=True):
        inputs = torch.cat([drive, *reversed(states)], dim=1)
        weight = torch.as_tensor(layer.weight, dtype=drive.dtype, device=drive.device)
        bias = torch.as_tensor(layer.bias, dtype=drive.dtype, device=drive.device)
        preimages.append(torch.addmm(bias, inputs, weight.mT))
        states.append(resolvent.state(preimages[-1]))
    return preimages, states


@dataclass(frozen=True, repr=False)
class LayersDescription(Record):
    """What an explicit network of a given DEQ looks like."""

    widths: tuple[int, ...]
    activations: tuple[str, ...]


class ExplicitLayers(nn.Module):
    """A plain feed-forward network: h = U(x − shift)/scale + b, dense layers, a read-out.

    Layer k reads [h, z_{k−1}, …, z_1].  The rows that it takes are those that the DEQ takes: their
    shift and scale are part of its first weights.

    Parameters
    ----------
    cell : AffineDEQ
    layers : sequence of Layer
    readout : tuple of (C, c)
    dtype : torch.dtype, default float32
    """

    def __init__(
        self,
        cell: AffineDEQ,
        layers: Sequence[Layer],
        readout: tuple[FloatArray, FloatArray],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        beta, arrays = cell.slopes.beta, cell.arrays()
        stem = arrays["U"] / arrays["scale"]
        values = [stem, arrays["b"] - stem @ arrays["shift"], *readout]
        values += [part for layer in layers for part in (layer.weight, layer.bias)]
        self._store(
            [Resolvent(cell.activation, layer.step, beta).activation for layer in layers],
            [torch.tensor(value, dtype=dtype) for value in values],
        )

    def _store(self, activations: Sequence[Activation], values: Sequence[Tensor]) -> None:
        """Store stem, its bias, C, c, and weight and bias of every layer."""
        self.activations = list(activations)
        self._twins = [torch_twin(activation) for activation in self.activations]
        stem, bias, C, c, *others = map(nn.Parameter, values)
        self.stem, self.stem_bias, self.readout, self.readout_bias = stem, bias, C, c
        self.weights, self.biases = nn.ParameterList(others[::2]), nn.ParameterList(others[1::2])
        self.in_features, self.out_features = stem.shape[1], len(c)

    def stored_form(self) -> dict[str, Any]:
        """Return everything but the weights as JSON; `from_stored` makes the network again."""
        parts = [self.stem, self.stem_bias, self.readout, self.readout_bias]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            parts += [weight, bias]
        return {
            "activations": [activation.to_dict() for activation in self.activations],
            "shapes": [list(part.shape) for part in parts],
            "dtype": str(self.stem.dtype).removeprefix("torch."),
        }

    @classmethod
    def from_stored(cls, form: Mapping[str, Any]) -> ExplicitLayers:
        """Make a network of the form made by `stored_form`, with weights of zero."""
        network = cls.__new__(cls)
        nn.Module.__init__(network)
        dtype = {"float32": torch.float32, "float64": torch.float64}[form["dtype"]]
        values = [torch.zeros(shape, dtype=dtype) for shape in form["shapes"]]
        network._store([from_dict(each) for each in form["activations"]], values)
        return network

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of rows, shape (n, K)."""
        return nn.functional.linear(self.features(x), self.readout, self.readout_bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the states of the last layer, shape (n, m)."""
        drive = nn.functional.linear(x.to(self.stem.dtype), self.stem, self.stem_bias)
        states: list[Tensor] = []
        for weight, bias, activation in zip(self.weights, self.biases, self._twins, strict=True):
            inputs = torch.cat([drive, *reversed(states)], dim=-1) if states else drive
            states.append(activation(nn.functional.linear(inputs, weight, bias)))
        return states[-1]

    @property
    def description(self) -> LayersDescription:
        """Widths and activations."""
        return LayersDescription(
            tuple(len(bias) for bias in self.biases), tuple(map(str, self.activations))
        )

    def append_to(self, graph: GraphBuilder, x: str) -> str:
        """Append the network to an ONNX graph; return the name of its logits."""
        from notsodeep.networks.onnx import apply_activation

        def linear(value: str, weight: Tensor, bias: Tensor) -> str:
            matrix = np.ascontiguousarray(weight.detach().cpu().numpy().T.astype(np.float32))
            product = graph.apply("MatMul", value, graph.constant(matrix, "weight"))
            vector = bias.detach().cpu().numpy().astype(np.float32)
            return graph.apply("Add", product, graph.constant(vector, "bias"))

        drive = linear(x, self.stem, self.stem_bias)
        states: list[str] = []
        for weight, bias, phi in zip(self.weights, self.biases, self.activations, strict=True):
            inputs = graph.apply("Concat", drive, *reversed(states), axis=1) if states else drive
            states.append(apply_activation(graph, phi, linear(inputs, weight, bias)))
        return linear(states[-1], self.readout, self.readout_bias)


class FunctionSteps(nn.Module):
    """z_0 = P x + q for flattened rows, then z_k = f(z_{k−1}, x); the read-out of the last.

    Nothing is known of f but its values, so nothing is proved of it.

    Parameters
    ----------
    cell : FunctionDEQ
    weight, bias : ndarray of shape (width, p) and (width,)
        P and q.
    steps : int
        Applications of f.
    dtype : torch.dtype
        In which f works.
    """

    def __init__(
        self,
        cell: FunctionDEQ,
        weight: FloatArray,
        bias: FloatArray,
        steps: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.cell, self.steps = copy.deepcopy(cell), steps
        self.weight = nn.Parameter(torch.tensor(weight, dtype=dtype))
        self.bias = nn.Parameter(torch.tensor(bias, dtype=dtype))

    def features(self, x: Tensor) -> Tensor:
        """Return the state after all steps, shape (n, width)."""
        rows = x.to(self.weight.dtype)
        z = nn.functional.linear(rows.flatten(1), self.weight, self.bias)
        for _ in range(self.steps):
            z = self.cell.step(z, rows)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; of a cell without a read-out, the state."""
        z = self.features(x)
        return self.cell.logits(z) if self.cell.has_readout else z

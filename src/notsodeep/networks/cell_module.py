"""General cells as torch modules, in the theory's scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.models import DeepEquilibrium
from notsodeep.networks.equilibrium_solvers import Solver, as_solver
from notsodeep.networks.gradient_choices import as_gradient
from notsodeep.networks.implicit_gradient import Gradient
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.modules import FeatureNetwork, HiddenLayer, Trainable
from notsodeep.networks.solve_records import FailureCount, ImplicitRecord, OnFailure, report_for


class CellNetwork(FeatureNetwork):
    """h_l = √w_l A_l z_{l−1} + √u_l U_l x + √b_l β_l, z_l = φ_l(h_l)/√m around a ring, f = a z_L.

    Attributes
    ----------
    weight_1, …, weight_L : Parameter or buffer of shape (m, m)
        A_l.
    injection_l : Parameter or buffer of shape (m, p)
        U_l, of the layers with an injection.
    shift_l : Parameter or buffer of shape (m, 1)
        β_l, of the layers with a bias.
    solver, gradient, on_failure, failures, last_record
        As in `EquilibriumNetwork`.

    See `FeatureNetwork` for the other attributes, and `build` for the arguments.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = [nsd.Dense("tanh", 0.3, inject=0.6, bias=0.1), nsd.Dense("relu", 0.5)]
    >>> net = nsd.build(nsd.DeepEquilibrium(cell=cell), 4, 64, 2, rng=0)
    >>> net(torch.ones(3, 4)).sum().backward()
    >>> net.hidden_names, net.last_record.derivatives[0].converged
    (('weight_1', 'injection_1', 'shift_1', 'weight_2'), True)
    """

    description: DeepEquilibrium

    def __init__(
        self,
        description: DeepEquilibrium,
        in_features: int,
        width: int,
        out_features: int,
        *,
        trainable: Trainable = "all",
        bias: bool = False,
        solver: str | Mapping[str, Any] | Solver = "fixed_point",
        gradient: str | Mapping[str, Any] | Gradient = "implicit",
        on_failure: OnFailure | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            description,
            in_features,
            width,
            out_features,
            description.weight_shapes(width, in_features),
            trainable=trainable,
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.solver = as_solver(solver)
        self.gradient = as_gradient(gradient)
        if on_failure is not None:
            checks.known_name(on_failure, get_args(OnFailure), "on_failure of CellNetwork")
        self.on_failure = on_failure
        self.failures = FailureCount()
        self.last_record: ImplicitRecord | None = None
        self._twins = tuple(torch_twin(layer.activation) for layer in description.cell)

    def _layer(self, index: int, units: Tensor, drive: Tensor, weight: Tensor) -> Tensor:
        """Return the units φ_l(h_l) of a layer that reads `units`."""
        layer = self.description.cell[index]
        field = drive + math.sqrt(layer.weight / self.width) * (units @ weight.mT)
        if layer.normalise == "preactivation":
            field = _normalised(field)
        made: Tensor = self._twins[index](field)
        return _normalised(made) if layer.normalise == "feature" else made

    def turn(self, units: Tensor, *parameters: Tensor) -> Tensor:
        """Go through the cell once; the parameters are all drives, then all weights."""
        depth = len(self.description.cell)
        for index in range(depth):
            units = self._layer(index, units, parameters[index], parameters[depth + index])
        return units

    def drives(
        self, X: Tensor, weights: Mapping[str, Tensor]
    ) -> tuple[list[Tensor], list[tuple[tuple[float, Tensor], ...]]]:
        """Return √u_l U_l x + √b_l β_l of every layer, and the factors and rows it is made of."""
        ones = torch.ones(len(X), 1, dtype=X.dtype, device=X.device)
        drives, sources = [], []
        for number, layer in enumerate(self.description.cell, start=1):
            parts = []
            if layer.inject > 0.0:
                parts.append((math.sqrt(layer.inject), X, weights[f"injection_{number}"]))
            if layer.bias > 0.0:
                parts.append((math.sqrt(layer.bias), ones, weights[f"shift_{number}"]))
            # A drive without parameters hangs on X: δ of the layer is taken there.
            drive = torch.zeros(self.width, dtype=X.dtype, device=X.device) + 0.0 * X[:, :1]
            for factor, rows, matrix in parts:
                drive = drive + factor * nn.functional.linear(rows, matrix)
            drives.append(drive)
            sources.append(tuple((factor, rows) for factor, rows, _ in parts))
        return drives, sources

    def hidden_pass(self, X: Tensor, *weights: Tensor) -> tuple[Tensor, tuple[HiddenLayer, ...]]:
        """Return z_L, and for every layer its drive and what its weights multiply."""
        given = dict(zip(self.hidden_names, weights, strict=True))
        drives, sources = self.drives(X, given)
        matrices = [given[f"weight_{number}"] for number in range(1, len(drives) + 1)]
        units, self.last_record = implicit_layer(
            self.turn,
            (*drives, *matrices),
            torch.zeros(len(X), self.width, dtype=X.dtype, device=X.device),
            solver=self.solver,
            gradient=self.gradient,
            on_failure=self._report(),
            subject=f"the fixed point of {self.description} of width {self.width}",
        )
        root = math.sqrt(self.width)
        layers, reads = [], units
        for index, (drive, matrix) in enumerate(zip(drives, matrices, strict=True)):
            weight = math.sqrt(self.description.cell[index].weight)
            layers.append(HiddenLayer(drive, ((weight, reads / root), *sources[index])))
            reads = self._layer(index, reads, drive, matrix)
        return units / root, tuple(layers)

    def _report(self) -> Any:
        others = as_solver(self.solver).others
        remedy = f"Use smaller weights, a larger width, {others}, or more steps."
        if self.on_failure is not None:
            return report_for(self.on_failure, remedy)
        return self.failures.report(remedy) if self.training else report_for("raise", remedy)


def _normalised(units: Tensor) -> Tensor:
    """Layer normalisation over the units, without gains."""
    centred = units - units.mean(dim=-1, keepdim=True)
    return centred / centred.square().mean(dim=-1, keepdim=True).sqrt()

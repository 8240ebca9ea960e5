"""General cells and monotone networks as torch modules, in the theory's scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from notsodeep.activations import Activation
from notsodeep.models import DeepEquilibrium, MonotoneEquilibrium
from notsodeep.networks.equilibrium_solvers import as_solver
from notsodeep.networks.modules import HiddenLayer, ImplicitNetwork


class CellNetwork(ImplicitNetwork):
    """h_l = √w_l A_l z_{l−1} + √u_l U_l x + √b_l β_l, z_l = φ_l(h_l)/√m around a ring, f = a z_L.

    Attributes
    ----------
    weight_1, …, weight_L : Parameter or buffer of shape (m, m)
        A_l.
    injection_l : Parameter or buffer of shape (m, p)
        U_l, of the layers with an injection.
    shift_l : Parameter or buffer of shape (m, 1)
        β_l, of the layers with a bias.

    See `ImplicitNetwork` and `FeatureNetwork` for the other attributes, and `build` for the
    arguments.

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

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {**self.description.weight_shapes(self.width, self.in_features)}

    def _activations(self) -> Sequence[Activation]:
        return [layer.activation for layer in self.description.cell]

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
        start = torch.zeros(len(X), self.width, dtype=X.dtype, device=X.device)
        units = self._solve(self.turn, (*drives, *matrices), start)
        root = math.sqrt(self.width)
        layers, reads = [], units
        for index, (drive, matrix) in enumerate(zip(drives, matrices, strict=True)):
            weight = math.sqrt(self.description.cell[index].weight)
            layers.append(HiddenLayer(drive, ((weight, reads / root), *sources[index])))
            reads = self._layer(index, reads, drive, matrix)
        return units / root, tuple(layers)


class MonotoneNetwork(ImplicitNetwork):
    """y = φ(W y + √u U x + √c β) with a monotone W, and f = a y/√m.

    W = (1 − μ)I − (a²/m) AᵀA + √(b²/m) (B − Bᵀ): the fixed point exists and is unique whatever A
    and B are, before and after training.  Plain iteration of φ(W y + …) need not find it.  Solved
    is h = 2V(r + d) − r, r = 2φ(h) − h, V = (2I − W)⁻¹, d the drive: the Peaceman–Rachford
    splitting of Winston and Kolter, *Monotone operator equilibrium networks*, 2020, with step one.
    Its unknown h = W y + d is the pre-activation, and it contracts for increasing φ with slopes of
    at most one.

    Attributes
    ----------
    symmetric, skew : Parameter or buffer of shape (m, m)
        A and B.
    injection : Parameter or buffer of shape (m, p)
        U.
    shift : Parameter or buffer of shape (m, 1)
        β, of a model with a bias.

    See `ImplicitNetwork` and `FeatureNetwork` for the other attributes, and `build` for the
    arguments.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> model = nsd.MonotoneEquilibrium("relu", monotonicity=0.2, symmetric=4.0, skew=4.0)
    >>> net = nsd.build(model, 4, 64, 2, rng=0)
    >>> net(torch.ones(3, 4)).sum().backward()
    >>> net.hidden_names, net.last_record.derivatives[0].converged
    (('symmetric', 'skew', 'injection'), True)
    """

    description: MonotoneEquilibrium
    symmetric: Tensor

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        m = self.width
        shapes = {"symmetric": (m, m), "skew": (m, m), "injection": (m, self.in_features)}
        return {**shapes, **({"shift": (m, 1)} if self.description.bias > 0.0 else {})}

    def _activations(self) -> Sequence[Activation]:
        return (self.description.activation,)

    def scaled(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights by their names, with the factors that the equation has."""
        model, m = self.description, self.width
        factors = {
            "symmetric": model.symmetric / m,
            "skew": model.skew / m,
            "injection": model.inject,
            "shift": model.bias,
        }
        return {name: math.sqrt(factors[name]) * weight for name, weight in weights.items()}

    def resolvent(self, scaled: Mapping[str, Tensor]) -> Tensor:
        """Return V = (2I − W)⁻¹; the symmetric part of 2I − W is at least 1 + μ."""
        A, B = scaled["symmetric"], scaled["skew"]
        identity = torch.eye(self.width, dtype=A.dtype, device=A.device)
        margin = 1.0 + self.description.monotonicity
        inverse: Tensor = torch.linalg.inv(margin * identity + A.mT @ A - B + B.mT)
        return inverse

    def drive(self, X: Tensor, scaled: Mapping[str, Tensor]) -> Tensor:
        """Return √u U x + √c β, shape (n, m)."""
        shift = scaled["shift"][:, 0] if "shift" in scaled else None
        return nn.functional.linear(X, scaled["injection"], shift)

    def turn(self, h: Tensor, drive: Tensor, resolvent: Tensor) -> Tensor:
        """Return 2V(r + d) − r, r = 2φ(h) − h."""
        reflected = 2.0 * self._twins[0](h) - h
        image: Tensor = 2.0 * (reflected + drive) @ resolvent.mT - reflected
        return image

    def hidden_pass(self, X: Tensor, *weights: Tensor) -> tuple[Tensor, tuple[HiddenLayer, ...]]:
        """Return y/√m, and the layer of U and β; for A and B see `other_gradients`."""
        scaled = self.scaled(dict(zip(self.hidden_names, weights, strict=True)))
        drive = self.drive(X, scaled)
        h = self._solve(self.turn, (drive, self.resolvent(scaled)), drive)
        inputs = [(math.sqrt(self.description.inject), X)]
        if "shift" in scaled:
            inputs.append((math.sqrt(self.description.bias), torch.ones_like(X[:, :1])))
        return self._twins[0](h) / math.sqrt(self.width), (HiddenLayer(drive, tuple(inputs)),)

    def other_gradients(
        self, z: Tensor, deltas: Sequence[Tensor], z2: Tensor, deltas2: Sequence[Tensor]
    ) -> Tensor:
        """Return what A and B add: df = g·(dW y + …), dW = −dAᵀA − AᵀdA + dB − dBᵀ.

        With the factors in A and B, the gradients are −(Ay ⊗ g + Ag ⊗ y) and g ⊗ y − y ⊗ g.
        """
        model, m = self.description, self.width
        A = math.sqrt(model.symmetric / m) * self.symmetric.detach()
        y, y2 = math.sqrt(m) * z, math.sqrt(m) * z2
        yy, AyAy = y @ y2.mT, (y @ A.mT) @ (y2 @ A.mT).mT
        total = torch.zeros_like(yy)
        for g, g2 in zip(torch.split(deltas[0], m, 1), torch.split(deltas2[0], m, 1), strict=True):
            Ag, Ag2, gy, yg = g @ A.mT, g2 @ A.mT, g @ y2.mT, y @ g2.mT
            of_A = AyAy * (g @ g2.mT) + (Ag @ Ag2.mT) * yy
            of_A += (y @ A.mT @ Ag2.mT) * gy + (Ag @ (y2 @ A.mT).mT) * yg
            of_B = 2.0 * ((g @ g2.mT) * yy - gy * yg)
            total += (model.symmetric * of_A + model.skew * of_B) / m
        return total / self.out_features

    def _remedy(self) -> str:
        others = as_solver(self.solver).others
        return f"It exists and is unique. Use a larger monotonicity, {others}, or more steps."


def _normalised(units: Tensor) -> Tensor:
    """Layer normalisation over the units, without gains."""
    centred = units - units.mean(dim=-1, keepdim=True)
    return centred / centred.square().mean(dim=-1, keepdim=True).sqrt()

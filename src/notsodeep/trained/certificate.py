"""How far a state is from the fixed point, and whether its class is proved to be the network's own.

For any u put z = φ(u) and v = u − (Wz + h).  Slopes in [0, β] give
(u_k − u*_k)(z_k − z*_k) ≥ (z_k − z*_k)²/β for every unit, and u − u* = W(z − z*) + v; the sum with
weights Λ_k is (z − z*)ᵀ S (z − z*) ≤ (z − z*)ᵀ Λv, so that ‖z − z*‖_S ≤ ‖Λv‖_{S⁻¹}.  If
o_i − o_j > ‖C_i − C_j‖_{S⁻¹}·‖Λv‖_{S⁻¹} for every j ≠ i, the network's class is i.  Of a
contraction with negative slopes, ℓ = sup|φ′|: ‖z − z*‖ ≤ ℓ‖v‖/(1 − ℓ‖W‖).

What is said is proved in float64 arithmetic, for the weights and rows as they are stored.  With the
unit roundoff ε a sum of k products is off by at most γ_k = kε/(1 − kε) times the sum of their
sizes, which Cauchy and Schwarz bound by products of norms; S is lowered by more than the backward
error of its Cholesky factorisation, so that the factor's own product lies below it; all slacks are
added to the bound before anything is compared.  Elementary functions are assumed to be right to 16
units in the last place; of φ = ψ − c that is the last place of ψ, and of a piecewise-linear φ that
of the terms of its sum.  Norms are taken in units of the largest entry, so that no square
underflows, and what underflows elsewhere is at most the least normal number for each operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from torch import Tensor

from notsodeep import checks
from notsodeep.activations import Activation, Centred, PiecewiseLinear, Scaled
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.networks.affine import AffineDEQ
from notsodeep.trained.margin import Margin, margin_of

_EPS = float(np.finfo(np.float64).eps)  # twice the unit roundoff
_LEAST_NORMAL = float(np.finfo(np.float64).tiny)
_OF_FUNCTIONS = 16.0  # rounding of φ, in units of the last place


@dataclass(frozen=True, eq=False)
class Certified:
    """Classes of a batch, and which of them are proved.

    Attributes
    ----------
    classes : Tensor of shape (n,)
        arg max of the read-out at z.
    proved : Tensor of bool, shape (n,)
    ratios : Tensor of shape (n,)
        Bound over margin, of the nearest rival; below one is a proof.
    states, scores, preactivations : Tensor
        z = φ(u), C z + c and W z + h.
    """

    classes: Tensor
    proved: Tensor
    ratios: Tensor
    states: Tensor
    scores: Tensor
    preactivations: Tensor


class Certifier:
    """Evaluates bounds for one network.

    Parameters
    ----------
    cell : AffineDEQ
        With a read-out, for classes.
    margin : Margin, optional

    Raises
    ------
    InvalidInput
        The network has no margin that proves anything.

    Examples
    --------
    >>> from notsodeep.networks.cell import EquilibriumCell
    >>> cell = EquilibriumCell.from_weights(
    ...     [[-9.0]], [[1.0]], activation="relu", readout=([[1.0], [-1.0]], [0.0, 0.25])
    ... )
    >>> certifier = Certifier(cell)
    >>> X = np.array([[1.0], [2.0]])
    >>> u = torch.tensor([[0.2], [0.21]], dtype=torch.float64)  # z* is 0.1 and 0.2
    >>> certifier.bounds(u, *certifier.rows(X)).round(decimals=4)  # in the norm of S = 10
    tensor([0.3162, 0.0316], dtype=torch.float64)
    >>> certifier.classes(u, *certifier.rows(X)).proved
    tensor([False,  True])
    """

    def __init__(self, cell: AffineDEQ, margin: Margin | None = None) -> None:
        known = margin_of(cell) if margin is None else margin
        if not known.unique:
            requirement = "have a margin that proves its fixed point"
            raise checks.invalid("the cell", "Certifier", requirement, known.reason)
        self.cell, self.margin = cell, known
        self._arrays = arrays = cell.arrays()
        root, factor = self._norm()
        m, p = cell.width, cell.inputs
        self._phi = torch_twin(cell.activation)
        self._recurrent = torch.tensor(arrays["W"]).mT.contiguous()
        self._injection = torch.tensor(arrays["U"]).mT.contiguous()
        self._bias = torch.tensor(arrays["b"])
        self._root = torch.tensor(root).mT.contiguous()
        # ‖K̂ − K‖ of the computed root, by the backward error of a triangular solve.
        # Where errors come from, each bounded by γ_k times a product of norms:
        #   u − (Wz + h)   sums of m + p products, and φ itself        → error in `_bounds`
        #   K·residual     a triangular solve, then a product          → _root_error, _root_size
        #   Cz + c         a sum of m products                         → slack in `classes`
        # Factors 1.1 and 1.01 cover the rounding of these norms themselves.
        spread = 1.1 * _gamma(m + 2) * factor
        size = 1.1 * _frobenius(root)
        self._root_error = (spread + _gamma(m + 4)) * size
        self._root_size = size
        self._of_state = _gamma(m + 4) + 2.0 * _OF_FUNCTIONS * _EPS
        self._sizes = tuple(1.01 * _frobenius(a) for a in (arrays["W"], arrays["U"], arrays["b"]))
        self._of_input = _gamma(p + 8)
        constant, steepness = _magnitudes(cell.activation)
        self._of_constant = m**0.5 * constant
        self._steepness = max(steepness, known.beta)
        self._underflow = (m + p + 8) ** 2 * _LEAST_NORMAL
        if cell.has_readout:
            weights, bias = arrays["C"], arrays["c"]
            self._readout = torch.tensor(weights).mT.contiguous(), torch.tensor(bias)
            self._distances = torch.tensor(self._class_distances(weights, factor))
            self._readout_sizes = (
                1.01 * max(map(_frobenius, weights)),
                float(np.abs(bias).max()),
            )

    def _norm(self) -> tuple[FloatArray, float]:
        """Return K with ‖Λv‖_{S⁻¹} ≤ ‖Kv‖, and ‖L⁻¹‖·‖L‖ (Frobenius) of its factor S ⪰ LLᵀ."""
        cell, margin = self.cell, self.margin
        identity = np.eye(cell.width)
        self._factor: FloatArray | None = None
        if margin.kind == "contraction":
            steep = margin.slopes.largest
            rest = margin.value - 4.0 * cell.width * _EPS
            return steep * (1.0 + 8.0 * _EPS) / rest * identity, 1.0
        scaled = margin.scaling[:, None] * (identity / margin.beta - self._arrays["W"])
        S = 0.5 * (scaled + scaled.T)
        most = _frobenius(S) + _frobenius(scaled)
        # S is formed with an error, and LLᵀ differs from what was factorised, by at most m γ_{m+1}
        # times norms (Higham, *Accuracy and Stability*, 2002, theorem 10.3); the factor 4 covers
        # both.
        slack = 4.0 * _EPS * (cell.width + 4) * cell.width * most
        try:
            L = cholesky(S - slack * identity, lower=True)
        except LinAlgError as error:
            requirement = "have a margin above rounding"
            raise checks.invalid("the cell", "Certifier", requirement, margin.value) from error
        self._factor = L
        inverse = solve_triangular(L, identity, lower=True)
        condition = 1.1 * _frobenius(inverse) * _frobenius(L)
        return np.asarray(inverse * margin.scaling), condition

    def _class_distances(self, weights: FloatArray, factor: float) -> FloatArray:
        """Return ‖C_i − C_j‖_{S⁻¹}, rounded up."""
        L = self._factor
        rows = weights.T if L is None else solve_triangular(L, weights.T, lower=True)
        unit = float(np.abs(rows).max()) or 1.0
        gaps = unit * np.linalg.norm((rows[:, :, None] - rows[:, None, :]) / unit, axis=0)
        error = 2.2 * _gamma(self.cell.width + 2) * factor * _frobenius(rows) + self._underflow
        return np.asarray(gaps * (1.0 + 1e-12) + error)

    def rows(self, X: ArrayLike) -> tuple[Tensor, Tensor]:
        """Return h and ‖(x − shift)/scale‖ of rows: the last arguments of `bounds`."""
        # The product is left to torch, like all that follow: threads of two libraries in turns
        # wait for each other, which made small batches twice as slow.
        shift, scale = self._arrays["shift"], self._arrays["scale"]
        inputs = torch.as_tensor((checks.samples(X, "X", "Certifier") - shift) / scale)
        drive = torch.addmm(self._bias, inputs, self._injection)
        return drive, row_norms(inputs)

    def bounds(self, u: Tensor, drive: Tensor, sizes: Tensor) -> Tensor:
        """Return an upper bound of ‖φ(u) − z*‖_S for every row.

        Parameters
        ----------
        u : Tensor of shape (n, m)
            Pre-activations, from wherever.
        drive, sizes : Tensor of shape (n, m) and (n,)
            As `rows` returns them.
        """
        z = self._phi(u)
        return self._bounds(u, z, torch.addmm(drive, z, self._recurrent), drive, sizes)

    def _bounds(
        self, u: Tensor, z: Tensor, preactivations: Tensor, drive: Tensor, sizes: Tensor
    ) -> Tensor:
        recurrent, injection, bias = self._sizes
        residual = u - preactivations
        gain = recurrent + 1.0 + 1.0 / self.margin.beta
        error = self._of_state * (gain * self._state_size(u, z))
        error = error + (self._of_input + self._of_state) * (injection * sizes + bias)
        error = error + self._of_state * row_norms(drive) + (gain + injection) * self._underflow
        measured = row_norms(residual @ self._root)
        bound: Tensor = measured + self._root_error * row_norms(residual) + self._root_size * error
        return bound * (1.0 + 64.0 * _EPS) + self._underflow

    def _state_size(self, u: Tensor, z: Tensor) -> Tensor:
        """Return the size in whose last places φ(u) may be off: of z, of u and of a constant."""
        size: Tensor = row_norms(z) + self._steepness * row_norms(u) + self._of_constant
        return size

    def classes(self, u: Tensor, drive: Tensor, sizes: Tensor) -> Certified:
        """Return the class at z = φ(u) of every row, and whether it is proved to be the network's.

        Parameters are those of `bounds`.  A row that is not finite is not proved.
        """
        self.cell.require_readout()
        z = self._phi(u)
        preactivations = torch.addmm(drive, z, self._recurrent)
        bounds = self._bounds(u, z, preactivations, drive, sizes)
        scores = torch.addmm(self._readout[1], z, self._readout[0])
        largest, bias = self._readout_sizes
        slack = 2.0 * self._of_state * (largest * self._state_size(u, z) + bias)
        slack = slack + (1.0 + largest) * self._underflow
        best, classes = scores.max(dim=1)
        lead = best[:, None] - scores - slack[:, None]
        needed = self._distances[classes] * bounds[:, None]
        # A lead that rounding alone could have made is none.
        ratios = torch.where(lead > 0.0, needed / lead, torch.inf)
        ratios.scatter_(1, classes[:, None], 0.0)  # no class is its own rival
        worst = ratios.amax(dim=1)
        # A bound that is not finite proves nothing.
        worst = torch.where(worst.isfinite() & bounds.isfinite(), worst, torch.inf)
        return Certified(classes, worst < 1.0, worst, z, scores, preactivations)


def row_norms(x: Tensor) -> Tensor:
    """Return the norms of rows, right also where their squares underflow or overflow."""
    unit = x.abs().amax(dim=1, keepdim=True)
    unit = torch.where((unit > 0.0) & unit.isfinite(), unit, 1.0)
    norms: Tensor = torch.linalg.vector_norm(x / unit, dim=1) * unit[:, 0]
    return norms


def _frobenius(values: FloatArray) -> float:
    unit = float(np.abs(values).max()) or 1.0
    return unit * float(np.linalg.norm(values / unit))


def _magnitudes(activation: Activation) -> tuple[float, float]:
    """Return c and L such that φ(x) is computed to the last places of |φ(x)| + L·|x| + c."""
    match activation:
        case Centred(base=base, constant=constant):
            offset, steepness = _magnitudes(base)
            return offset + abs(constant), steepness
        case Scaled(base=base, gain=gain, steepness=factor):
            offset, steepness = _magnitudes(base)
            return abs(gain) * offset, abs(gain) * factor * steepness
        case PiecewiseLinear(slopes=slopes, knots=knots):  # a sum of hinges
            changes = np.abs(np.diff(slopes))
            offset = abs(activation.value_at_zero) + float(changes @ np.abs(knots))
            return offset, float(np.abs(slopes).max() + changes.sum())
    return 0.0, float(activation.lipschitz)


def _gamma(terms: int) -> float:
    return terms * _EPS / (1.0 - terms * _EPS)

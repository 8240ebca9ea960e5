"""How far a state is from the fixed point, and whether its class is proved to be the network's own.

For any u put z = φ(u) and v = u − (Wz + h).  Slopes in [0, β] give
(u_k − u*_k)(z_k − z*_k) ≥ (z_k − z*_k)²/β for every unit, and u − u* = W(z − z*) + v; the sum with
weights Λ_k is (z − z*)ᵀ S (z − z*) ≤ (z − z*)ᵀ Λv.  Completing the square, z* lies in the ball of
radius ½‖Λv‖_{S⁻¹}, in the norm of S, about z − ½S⁻¹Λv.  If the logits there satisfy
o_i − o_j > ½‖C_i − C_j‖_{S⁻¹}·‖Λv‖_{S⁻¹} for every j ≠ i, the network's class is i; and every logit
o_k is known to ±½‖C_k‖_{S⁻¹}·‖Λv‖_{S⁻¹}.  Of a contraction with negative slopes, ℓ = sup|φ′|, the
ball is ‖z − z*‖ ≤ ℓ‖v‖/(1 − ℓ‖W‖).

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
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from torch import Tensor

from notsodeep import checks
from notsodeep.activations import Activation, Centred, PiecewiseLinear, Scaled
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import real_tensor
from notsodeep.records import Record
from notsodeep.trained.margin import Margin, margin_of

_EPS = float(np.finfo(np.float64).eps)  # twice the unit roundoff
_LEAST_NORMAL = float(np.finfo(np.float64).tiny)
_OF_FUNCTIONS = 16.0  # rounding of φ, in units of the last place


@dataclass(frozen=True, eq=False)
class Certified:
    """Classes of a batch, and which of them are proved."""

    classes: Tensor  # arg max of the scores, (n,)
    proved: Tensor  # bool, (n,)
    ratios: Tensor  # bound over margin, of the nearest rival; below one is a proof
    states: Tensor  # z = φ(u)
    scores: Tensor  # logits at the centre of the ball, (n, K)
    preactivations: Tensor  # W z + h


@dataclass(frozen=True, repr=False)
class StateCertificate(Record):
    """What is proved of the fixed points by states from anywhere; see `certify_states`."""

    classes: NDArray[np.int64]  # (n,)
    proved: NDArray[np.bool_]  # rows whose class is proved to be the DEQ's
    values: FloatArray  # logits at the centres of the balls, (n, K)
    half_widths: FloatArray  # every logit of the DEQ lies within them of `values`, (n, K)

    def __str__(self) -> str:
        return (
            f"{self.proved.mean():.1%} of {len(self.proved)} classes proved; logits known to "
            f"±{np.median(self.half_widths):.3g} in the median, ±{self.half_widths.max():.3g} at "
            "the most."
        )


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
        #   Cz + c         a sum of m products                         → slack in `_logits`
        #   CS⁻¹Λv         a triangular solve, then a sum of products  → slack in `_logits`
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
            self._measure_readout(weights, factor)
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

    def _measure_readout(self, weights: FloatArray, factor: float) -> None:
        """Prepare A = CL⁻ᵀ and the norms ‖C_k‖_{S⁻¹} and ‖C_i − C_j‖_{S⁻¹}, rounded up."""
        L = self._factor
        rows = weights.T if L is None else solve_triangular(L, weights.T, lower=True)
        unit = float(np.abs(rows).max()) or 1.0
        gaps = unit * np.linalg.norm((rows[:, :, None] - rows[:, None, :]) / unit, axis=0)
        sizes = unit * np.linalg.norm(rows / unit, axis=0)
        # ‖Â_k − A_k‖, by the backward error of the triangular solve.
        error = 1.1 * _gamma(self.cell.width + 2) * factor * _frobenius(rows) + self._underflow
        self._distances = torch.tensor(gaps * (1.0 + 1e-12) + 2.0 * error)
        self._lengths = torch.tensor(sizes * (1.0 + 1e-12) + error)
        # A contraction's ball has no other centre than z.
        self._shift = torch.tensor(0.0 * rows if L is None else rows)
        self._share = 1.0 if L is None else 0.5
        self._shift_error = error + _gamma(self.cell.width + 6) * float(self._lengths.max())

    def rows(self, X: ArrayLike) -> tuple[Tensor, Tensor]:
        """Return h and ‖(x − shift)/scale‖ of rows: the last arguments of `bounds`."""
        # The product is left to torch, like all that follow: threads of two libraries in turns
        # wait for each other, which made small batches twice as slow.
        shift, scale = (torch.tensor(self._arrays[name]) for name in ("shift", "scale"))
        inputs = (real_tensor(X, "X") - shift) / scale
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
        residual = u - torch.addmm(drive, z, self._recurrent)
        scaled, error = self._deviation(residual, u, z, drive, sizes)
        return self._total(scaled, error)

    def _deviation(
        self, residual: Tensor, u: Tensor, z: Tensor, drive: Tensor, sizes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return Kv, of norm ‖Λv‖_{S⁻¹}, and a bound of the norm of its error."""
        recurrent, injection, bias = self._sizes
        gain = recurrent + 1.0 + 1.0 / self.margin.beta
        error = self._of_state * (gain * self._state_size(u, z))
        error = error + (self._of_input + self._of_state) * (injection * sizes + bias)
        error = error + self._of_state * row_norms(drive) + (gain + injection) * self._underflow
        total: Tensor = self._root_error * row_norms(residual) + self._root_size * error
        return residual @ self._root, total * (1.0 + 64.0 * _EPS) + self._underflow

    def _total(self, scaled: Tensor, error: Tensor) -> Tensor:
        total: Tensor = row_norms(scaled) * (1.0 + 64.0 * _EPS) + error
        return total

    def _state_size(self, u: Tensor, z: Tensor) -> Tensor:
        """Return the size in whose last places φ(u) may be off: of z, of u and of a constant."""
        size: Tensor = row_norms(z) + self._steepness * row_norms(u) + self._of_constant
        return size

    def classes(self, u: Tensor, drive: Tensor, sizes: Tensor) -> Certified:
        """Return the class at z = φ(u) of every row, and whether it is proved to be the network's.

        Parameters are those of `bounds`.  A row that is not finite is not proved.
        """
        z, preactivations, scores, bounds, slack = self._logits(u, drive, sizes)
        best, classes = scores.max(dim=1)
        lead = best[:, None] - scores - slack[:, None]
        needed = self._share * self._distances[classes] * bounds[:, None]
        # A lead that rounding alone could have made is none.
        ratios = torch.where(lead > 0.0, needed / lead, torch.inf)
        ratios.scatter_(1, classes[:, None], 0.0)  # no class is its own rival
        worst = ratios.amax(dim=1)
        # A bound that is not finite proves nothing.
        worst = torch.where(worst.isfinite() & bounds.isfinite(), worst, torch.inf)
        return Certified(classes, worst < 1.0, worst, z, scores, preactivations)

    def outputs(self, u: Tensor, drive: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and half-widths, (n, K), within which the network's logits lie.

        Parameters are those of `bounds`.
        """
        _, _, scores, bounds, slack = self._logits(u, drive, sizes)
        # `slack` is that of a difference of two logits.
        widths = self._share * self._lengths * bounds[:, None] + slack[:, None]
        widths = widths * (1.0 + 8.0 * _EPS)
        return scores, torch.where(widths.isfinite() & scores.isfinite(), widths, torch.inf)

    def _logits(self, u: Tensor, drive: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        """Return z, W z + h, the logits at the centre, the bound, and the error of their gaps."""
        self.cell.require_readout()
        z = self._phi(u)
        preactivations = torch.addmm(drive, z, self._recurrent)
        scaled, error = self._deviation(u - preactivations, u, z, drive, sizes)
        scores = torch.addmm(self._readout[1], z, self._readout[0])
        scores = scores - 0.5 * (scaled @ self._shift)
        largest, bias = self._readout_sizes
        slack = 2.0 * self._of_state * (largest * self._state_size(u, z) + bias)
        slack = slack + (1.0 + largest) * self._underflow
        # ½(A_i − A_j)·Kv, with errors of A, of Kv and of the sum.
        slack = slack + float(self._lengths.max()) * error + self._shift_error * row_norms(scaled)
        return z, preactivations, scores, self._total(scaled, error), slack + self._underflow


def certify_states(
    cell: AffineDEQ, X: ArrayLike, u: ArrayLike | None = None, *, z: ArrayLike | None = None
) -> StateCertificate:
    """Prove what states from anywhere say of a network's fixed points, row by row.

    They may come from a truncated solver, from a copy with rounded weights, or from a device: what
    is proved is a statement about `cell`, in float64.

    Parameters
    ----------
    cell : AffineDEQ
        With a read-out and a margin.
    X : array_like of shape (n, p)
    u : array_like of shape (n, m), optional
        Pre-activations W z + U x + b.
    z : array_like of shape (n, m), optional
        States, of which pre-activations are made.  One of the two has to be given.

    Examples
    --------
    >>> from notsodeep.networks.cell import EquilibriumCell
    >>> cell = EquilibriumCell.from_weights([[-9.0]], [[1.0]], readout=([[1.0], [-1.0]], None))
    >>> result = certify_states(cell, [[1.0], [2.0]], z=[[0.11], [0.19]])  # z* is 0.1 and 0.2
    >>> result.proved, result.half_widths[:, 0].round(3)
    (array([ True,  True]), array([0.045, 0.045]))
    """
    certifier = Certifier(cell)
    drive, sizes = certifier.rows(X)
    if (u is None) == (z is None):
        raise InvalidInput("u or z must be given, got both or neither.")
    given = checks.real_array(u if z is None else z, "u" if z is None else "z", "certify_states")
    if given.shape != tuple(drive.shape):
        raise InvalidInput(f"states must have shape {tuple(drive.shape)}, got {given.shape}.")
    state = torch.as_tensor(given)
    if z is not None:
        state = torch.addmm(drive, state, certifier._recurrent)
    certified = certifier.classes(state, drive, sizes)
    values, widths = certifier.outputs(state, drive, sizes)
    return StateCertificate(
        certified.classes.numpy(), certified.proved.numpy(), values.numpy(), widths.numpy()
    )


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

"""Equilibrium networks that one has: z* = f(z*, x), by weights, by a module or by a function."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.records import Record

if TYPE_CHECKING:
    from notsodeep.networks.affine import AffineDEQ
    from notsodeep.networks.function import FunctionDEQ

Readout = tuple[ArrayLike, ArrayLike | None]
"""C of shape (classes, width) and c of shape (classes,), or None: logits are C z + c."""

MethodName = Literal["plain", "anderson", "broyden", "peaceman_rachford"]

MAX_STEPS = 3000
CHECKED_STEPS = 100
"""Steps after which rows that are done, and rows that are stuck, leave a batch."""
SETTLED_SHARE = 0.95
"""Of the rows of a trial, that a method must settle to be chosen."""
_STUCK = 0.9  # what converges in `MAX_STEPS` falls further than that in `CHECKED_STEPS`
_DEFAULT_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True, repr=False)
class Trial(Record):
    """One method that was tried."""

    name: MethodName
    step: float  # α
    steps: int | None  # to the tolerance of the trial; None if fewer than 95 % of the rows had it


@dataclass(frozen=True, repr=False)
class Method(Record):
    """The method by which a network is solved, and the trials it was chosen by."""

    name: MethodName
    step: float = 1.0  # α of a splitting
    trials: tuple[Trial, ...] = ()

    @property
    def reason(self) -> str:
        """Why it was chosen."""
        if not self.trials:
            return "The method was given."
        own = next(t for t in self.trials if (t.name, t.step) == (self.name, self.step))
        steps = "settled the most rows" if own.steps is None else f"needed {own.steps} steps"
        what = f"{self.name.replace('_', ' ')} with step {self.step:.4g}"
        return f"{what} {steps}, the best of {len(self.trials)} trials."


@dataclass(frozen=True, eq=False)
class Solved:
    """States of a batch, and how they were found."""

    z: Tensor  # (n, width)
    s: Tensor  # what the solver iterates: pre-images of the states, or the states themselves
    residuals: Tensor  # ‖z − f(z, x)‖/‖f(z, x)‖ of every row, shape (n,); infinite: diverged
    steps: int
    tolerance: float

    @property
    def settled(self) -> Tensor:
        """Rows whose residual is within the tolerance."""
        return self.residuals <= self.tolerance

    @property
    def converged(self) -> bool:
        """Whether all rows are."""
        return bool(self.settled.all())

    @property
    def share(self) -> float:
        """Share of the rows that are."""
        return float(self.settled.double().mean())

    def require(self) -> None:
        """Raise `NotConverged` if a row is not within the tolerance."""
        if not self.converged:
            raise NotConverged(
                f"{int((~self.settled).sum())} of {len(self.residuals)} rows have not reached the "
                f"tolerance {self.tolerance:g} in {self.steps} steps; the largest residual is "
                f"{float(self.residuals.max()):.3g}. notsodeep.diagnose tells whether there is a "
                "fixed point.",
                self,
            )


class EquilibriumCell(nn.Module):
    """One step f(z, x) of an equilibrium network, and its read-out, as a torch module.

    Made by `from_weights`, `from_monotone`, `from_file`, `from_module` or `from_function`.  Called
    on rows it returns the logits of their fixed points, differentiably.  Its parts take and return
    tensors with samples as rows, in the precision of the module; a state has shape (n, width)
    whatever the `state_shape` of one sample.

    Examples
    --------
    >>> cell = EquilibriumCell.from_weights(-0.5 * np.eye(2), np.eye(2), activation="relu")
    >>> drive = cell.drive([[3.0, -1.0]])  # all that depends on x, computed (and checked) once
    >>> cell.solve(drive).z
    tensor([[2., 0.]], dtype=torch.float64)
    """

    state_shape: tuple[int, ...]
    readout: nn.Parameter | None
    readout_bias: nn.Parameter | None

    @staticmethod
    def from_weights(
        W: ArrayLike,
        U: ArrayLike,
        b: ArrayLike | None = None,
        activation: str | Activation = "relu",
        readout: Readout | None = None,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
    ) -> AffineDEQ:
        """Describe z = φ(W z + U (x − shift)/scale + b), logits C z + c, in float64.

        Parameters
        ----------
        W : array_like of shape (m, m)
            Recurrent weights, of any size: nothing is assumed to contract.
        U : array_like of shape (m, p)
        b : array_like of shape (m,), optional
        activation : str or Activation, default "relu"
            φ.
        readout : tuple of (C, c), optional
            C of shape (classes, m), c of shape (classes,) or None.
        shift, scale : float or array_like of shape (p,), optional
            Of the rows the network was trained on, such as .1307 and .3081 for images in pixel/255.
            They stay with the network wherever it goes.

        Examples
        --------
        >>> EquilibriumCell.from_weights([[0.5]], [[1.0, 1.0]], activation="tanh")
        AffineDEQ(tanh, width 1, 2 inputs, no read-out)
        """
        from notsodeep.networks.affine import AffineDEQ

        return AffineDEQ(W, U, b, activation, readout, shift=shift, scale=scale)

    @staticmethod
    def from_monotone(
        A: ArrayLike,
        B: ArrayLike,
        m: float,
        U: ArrayLike,
        b: ArrayLike | None = None,
        activation: str | Activation = "relu",
        readout: Readout | None = None,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
    ) -> AffineDEQ:
        """Describe the monotone network with W = (1 − m)I − AᵀA + B − Bᵀ.

        With m > 0 and slopes of φ in [0, 1] it has one fixed point for every input (Winston,
        Kolter, *Monotone operator equilibrium networks*, NeurIPS 2020), in training too: A and B
        are its parameters.  The other arguments are those of `from_weights`.

        Examples
        --------
        >>> cell = EquilibriumCell.from_monotone([[1.0, 0.0]], np.zeros((2, 2)), 0.5, np.eye(2))
        >>> cell.recurrent.detach()
        tensor([[-0.5000,  0.0000],
                [ 0.0000,  0.5000]], dtype=torch.float64)
        """
        from notsodeep.networks.affine import AffineDEQ, Monotone

        form = Monotone(A, B, m)
        cell = AffineDEQ(form(form.A, form.B), U, b, activation, readout, shift=shift, scale=scale)
        nn.utils.parametrize.register_parametrization(cell, "recurrent", form)
        return cell

    @staticmethod
    def from_function(
        f: Callable[[Tensor, Tensor], Tensor],
        state_shape: Sequence[int] | int,
        readout: Readout | Callable[[Tensor], Tensor] | None = None,
    ) -> FunctionDEQ:
        """Describe any equilibrium network z = f(z, x): convolutions, norms, attention.

        Parameters
        ----------
        f : callable
            Of torch tensors z of shape (n, *state_shape) and x of shape (n, …); returns the shape
            of z.  Each sample by itself, and the same answer for the same arguments: a module with
            dropout or batch normalisation has to be in evaluation mode.
        state_shape : tuple of int, or int
            Of one sample.
        readout : tuple of (C, c), or callable, optional
            From states to logits; a callable takes tensors of shape (n, *state_shape).

        Examples
        --------
        >>> cell = EquilibriumCell.from_function(lambda z, x: torch.tanh(0.5 * z + x), (3,))
        >>> cell.solve(cell.drive(np.ones((1, 3)))).z
        tensor([[0.8952, 0.8952, 0.8952]], dtype=torch.float64)
        """
        from notsodeep.networks.function import FunctionDEQ

        return FunctionDEQ(f, state_shape, readout)

    @staticmethod
    def from_module(module: nn.Module, **options: Any) -> EquilibriumCell:
        """Read the weights off a module; see `notsodeep.networks.recognise.cell_of_module`."""
        from notsodeep.networks.recognise import cell_of_module

        return cell_of_module(module, **options)

    @staticmethod
    def from_file(path: str | os.PathLike[str], **options: Any) -> AffineDEQ:
        """Read a network from a file; see `notsodeep.networks.weights.load_cell`."""
        from notsodeep.networks.weights import load_cell

        return load_cell(path, **options)

    @property
    def width(self) -> int:
        """Number of entries of the state of one sample."""
        return math.prod(self.state_shape)

    @property
    @abstractmethod
    def has_readout(self) -> bool:
        """Whether states have logits."""

    @abstractmethod
    def drive(self, X: ArrayLike | Tensor) -> Tensor:
        """Return what rows contribute to every step, after checking them."""

    @abstractmethod
    def step(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return f(z, x), shape (n, width)."""

    @abstractmethod
    def logits(self, z: Tensor) -> Tensor:
        """Return the logits of states of shape (n, width), shape (n, K)."""

    @abstractmethod
    def solve(
        self,
        drive: Tensor,
        tolerance: float | None = None,
        *,
        start: Tensor | None = None,
        max_steps: int = MAX_STEPS,
    ) -> Solved:
        """Solve z = f(z, x) for the `drive` of n rows; the answer says which rows settled.

        The tolerance is that of ‖z − f(z, x)‖/‖f(z, x)‖ of every row, 1e-10 in float64 and 1e-5 in
        float32 by default; `start` is a state.
        """

    @abstractmethod
    def states(self, x: Tensor) -> Tensor:
        """Return z*, differentiable in x and all parameters."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the fixed points, of shape (n, K)."""
        self.require_readout()
        return self.logits(self.states(x))

    def require_readout(self) -> None:
        """Require a read-out, before any work."""
        if not self.has_readout:
            raise InvalidInput(
                "the cell must have a read-out, got none. Give readout=(C, c), by which logits are "
                "C z + c."
            )


def stuck(residuals: Tensor, before: Tensor) -> Tensor:
    """Say which rows have not come nearer in `CHECKED_STEPS` steps, or are not finite."""
    return ~(residuals <= _STUCK * before) | residuals.isinf()


def tolerance_for(dtype: torch.dtype, tolerance: float | None) -> float:
    """Return a tolerance that can be met in a dtype: no less than 1e-5 in float32."""
    if tolerance is None:
        return _DEFAULT_TOLERANCE[dtype]
    number = checks.positive_number(tolerance, "tolerance", "the solve")
    return max(number, 1e-5) if dtype == torch.float32 else number


def real_tensor(values: Any, name: str, *shape: int) -> Tensor:
    """Check an array of real finite numbers and copy it to float64, spread to a shape if given."""
    if isinstance(values, Tensor):
        if values.is_complex() or values.is_sparse or values.is_quantized or values.is_meta:
            kind = values.dtype if values.is_complex() else "a sparse, quantised or meta tensor"
            raise InvalidInput(f"{name} must be a dense array of real numbers, got {kind}.")
        values = values.detach().cpu().double().numpy()
    array: FloatArray = checks.real_array(values, name, "EquilibriumCell")
    if shape and array.shape not in ((), shape):
        one = "be one number, or " if len(shape) == 1 else ""
        raise InvalidInput(f"{name} must {one}have shape {shape}, got {array.shape}.")
    array = np.broadcast_to(array, shape) if shape else array
    return torch.tensor(np.array(array, dtype=np.float64, order="C"))

"""A given equilibrium network: z* = f(z*, x), with the weights, or the function, that one has."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks, extras
from notsodeep.activations import Activation, as_activation
from notsodeep.arrays import FloatArray

if TYPE_CHECKING:
    from torch import Tensor, nn

Readout = tuple[FloatArray, FloatArray]
"""C of shape (classes, width) and c of shape (classes,): logits are C z + c."""

_NO_READOUT = "Give readout=(C, c), by which logits are C z + c."
_SAME_ROWS = 1e-3  # relative; float32 rounds differently in batches of different size


@dataclass(frozen=True, eq=False, repr=False)
class EquilibriumCell(ABC):
    """One step of an equilibrium network, f(z, x), and its read-out.

    Made by `from_weights`, `from_monotone`, `from_file`, `from_module` or `from_function`.  All
    methods take and return samples as rows: a state is a float64 array of shape (n, width),
    whatever the `state_shape` of one sample.  A solve looks like ::

        drive = cell.drive(X)              # all that depends on X, computed (and checked) once
        z = np.zeros((len(X), cell.width))
        for _ in range(steps):
            z = cell.step(z, drive)        # f(z, x)
        scores = cell.logits(z)

    Attributes
    ----------
    state_shape : tuple of int
        Of the state of one sample.
    activation : Activation or None
        φ of an affine cell z = φ(Wz + Ux + b), None for a function.
    readout : tuple of (C, c), callable or None
        From states to logits.

    Examples
    --------
    >>> cell = EquilibriumCell.from_weights(-0.5 * np.eye(2), np.eye(2), activation="relu")
    >>> z, drive = np.zeros((1, 2)), cell.drive([[3.0, -1.0]])
    >>> for _ in range(60):
    ...     z = cell.step(z, drive)
    >>> z.round(6)
    array([[2., 0.]])
    """

    @classmethod
    def from_weights(
        cls,
        W: ArrayLike,
        U: ArrayLike,
        b: ArrayLike | None = None,
        activation: str | Activation = "relu",
        readout: tuple[ArrayLike, ArrayLike | None] | None = None,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
    ) -> AffineCell:
        """Describe z = φ(W z + U (x − shift)/scale + b), logits C z + c.

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

        Raises
        ------
        InvalidInput
            Shapes do not fit each other; an entry is NaN or infinite; a scale is not positive.

        Examples
        --------
        >>> cell = EquilibriumCell.from_weights([[0.5]], [[1.0, 1.0]], activation="tanh")
        >>> cell
        AffineCell(tanh, width 1, 2 inputs, no read-out)
        >>> cell.step(np.array([[0.2]]), cell.drive([[0.3, 0.4]])).round(6)
        array([[0.664037]])
        """
        owner = "EquilibriumCell.from_weights"
        recurrent = _matrix(W, "W", owner)
        width = recurrent.shape[0]
        if recurrent.shape[1] != width:
            raise checks.invalid("W", owner, "be square", f"shape {recurrent.shape}")
        injection = _matrix(U, "U", owner)
        if injection.shape[0] != width:
            remedy = "z = φ(W z + U x + b) takes U as (width, inputs), as torch.nn.Linear has it."
            requirement = f"have {width} rows, as W has"
            raise checks.invalid("U", owner, requirement, f"shape {injection.shape}", remedy)
        inputs = injection.shape[1]
        return AffineCell(
            (width,),
            as_activation(activation),
            _readout(readout, width, owner),
            recurrent,
            injection,
            _vector(0.0 if b is None else b, width, "b", owner),
            _vector(0.0 if shift is None else shift, inputs, "shift", owner),
            _scale(1.0 if scale is None else scale, inputs, owner),
        )

    @classmethod
    def from_monotone(
        cls,
        A: ArrayLike,
        B: ArrayLike,
        m: float,
        U: ArrayLike,
        b: ArrayLike | None = None,
        activation: str | Activation = "relu",
        readout: tuple[ArrayLike, ArrayLike | None] | None = None,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
    ) -> AffineCell:
        """Describe the monotone network with W = (1 − m)I − AᵀA + B − Bᵀ.

        The form is that of Winston and Kolter, *Monotone operator equilibrium networks*, 2020:
        sym(I − W) = mI + AᵀA.  The other parameters are those of `from_weights`.

        Parameters
        ----------
        A : array_like of shape (r, m)
            Of any rank.
        B : array_like of shape (m, m)
        m : float
            The margin.

        Examples
        --------
        >>> cell = EquilibriumCell.from_monotone([[1.0, 0.0]], np.zeros((2, 2)), 0.5, np.eye(2))
        >>> cell.recurrent
        array([[-0.5,  0. ],
               [ 0. ,  0.5]])
        """
        owner = "EquilibriumCell.from_monotone"
        first = _matrix(A, "A", owner)
        width = first.shape[1]
        skew = checks.matrix_of_shape(_plain(B), (width, width), "B", owner)
        margin = checks.finite_number(m, "m", owner)
        W = (1.0 - margin) * np.eye(width) - first.T @ first + skew - skew.T
        return cls.from_weights(W, U, b, activation, readout, shift=shift, scale=scale)

    @classmethod
    def from_function(
        cls,
        f: Callable[[Tensor, Tensor], Tensor],
        state_shape: Sequence[int] | int,
        readout: tuple[ArrayLike, ArrayLike | None] | Callable[[Tensor], Tensor] | None = None,
    ) -> FunctionCell:
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
            From states to logits; a callable takes and returns tensors.

        Examples
        --------
        >>> import torch
        >>> cell = EquilibriumCell.from_function(lambda z, x: torch.tanh(0.5 * z + x), (3,))
        >>> cell.step(np.zeros((2, 3)), cell.drive(np.ones((2, 3)))).round(4)
        array([[0.7616, 0.7616, 0.7616],
               [0.7616, 0.7616, 0.7616]])
        """
        owner = "EquilibriumCell.from_function"
        extras.require(owner, "torch")
        if not callable(f):
            raise checks.invalid("f", owner, "be a function of tensors z and x", repr(f))
        sizes = (state_shape,) if isinstance(state_shape, int) else tuple(state_shape)
        shape = tuple(checks.positive_integer(k, "each of state_shape", owner) for k in sizes)
        if not shape:
            raise checks.invalid("state_shape", owner, "have at least one entry", "()")
        known = readout if callable(readout) else _readout(readout, math.prod(shape), owner)
        return FunctionCell(shape, None, known, f)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **known: Any) -> AffineCell:
        """Read a network from ``.safetensors``, or from a ``.pt`` that holds tensors alone.

        Parameters
        ----------
        path : path
        **known
            ``activation``, ``shift`` and ``scale``, where the file's metadata do not have them;
            see `notsodeep.trained.files.load_cell`, which also returns the metadata.
        """
        from notsodeep.trained.files import load_cell

        return load_cell(path, **known).cell

    @classmethod
    def from_module(cls, module: nn.Module, **options: Any) -> EquilibriumCell:
        """Recognise the parts of a torch module; see `notsodeep.trained.modules`."""
        from notsodeep.trained.modules import cell_of_module

        return cell_of_module(module, **options)

    state_shape: tuple[int, ...]
    activation: Activation | None
    readout: Readout | Callable[[Any], Any] | None

    @property
    def width(self) -> int:
        """Number of entries of the state of one sample."""
        return math.prod(self.state_shape)

    @property
    @abstractmethod
    def is_affine(self) -> bool:
        """Whether the cell is φ(Wz + Ux + b) with known W, for which there are proofs."""

    @abstractmethod
    def drive(self, X: ArrayLike) -> NDArray[Any]:
        """Return what the rows X contribute to every step, after checking them."""

    @abstractmethod
    def step(self, z: FloatArray, drive: NDArray[Any]) -> FloatArray:
        """Return f(z, x), shape (n, width), for z of that shape and the `drive` of n rows."""

    @abstractmethod
    def tensor_step(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return f(z, x) for tensors, differentiably; z of shape (n, width) in drive's dtype."""

    @abstractmethod
    def tensor_logits(self, z: Tensor) -> Tensor:
        """Return the logits of states of shape (n, width), differentiably."""

    def logits(self, z: FloatArray) -> FloatArray:
        """Return the logits of states of shape (n, width), shape (n, classes).

        Raises
        ------
        InvalidInput
            The cell has no read-out.
        """
        if isinstance(self.readout, tuple):
            weights, bias = self.readout
            return np.asarray(z @ weights.T + bias)
        self.require_readout("logits")
        import torch

        with torch.no_grad():
            return _array(self.tensor_logits(torch.as_tensor(z)))

    def require_readout(self, owner: str) -> None:
        """Require a read-out, before any work."""
        if self.readout is None:
            raise checks.invalid("the cell", owner, "have a read-out", "none", _NO_READOUT)


@dataclass(frozen=True, eq=False, repr=False)
class AffineCell(EquilibriumCell):
    """z = φ(W z + h), h = U (x − shift)/scale + b; made by `EquilibriumCell.from_weights`.

    Attributes
    ----------
    recurrent, injection : ndarray of shape (m, m) and (m, p)
        W and U.
    bias : ndarray of shape (m,)
        b.
    shift, scale : ndarray of shape (p,)
    """

    activation: Activation
    readout: Readout | None
    recurrent: FloatArray
    injection: FloatArray
    bias: FloatArray
    shift: FloatArray
    scale: FloatArray

    @property
    def is_affine(self) -> bool:
        """True."""
        return True

    @property
    def inputs(self) -> int:
        """Number of features of a row."""
        return int(self.injection.shape[1])

    def drive(self, X: ArrayLike) -> FloatArray:
        """Return h = U (x − shift)/scale + b, shape (n, width).

        Raises
        ------
        InvalidInput
            X is no finite matrix with the cell's number of features.
        """
        return np.asarray(self.scaled(X) @ self.injection.T + self.bias)

    def scaled(self, X: ArrayLike) -> FloatArray:
        """Return (x − shift)/scale, shape (n, p); the errors are those of `drive`."""
        rows = checks.samples(_plain(X), "X", "EquilibriumCell.drive")
        if rows.shape[1] != self.inputs:
            requirement = f"have {self.inputs} features, as U has columns"
            raise checks.invalid("X", "EquilibriumCell.drive", requirement, f"shape {rows.shape}")
        return np.asarray((rows - self.shift) / self.scale)

    def step(self, z: FloatArray, drive: NDArray[Any]) -> FloatArray:
        """Return φ(W z + h)."""
        return self.activation(z @ self.recurrent.T + drive)

    def tensor_step(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return φ(W z + h)."""
        import torch

        from notsodeep.activations.torch_twins import torch_twin

        recurrent = torch.tensor(self.recurrent, dtype=drive.dtype, device=drive.device)
        return torch_twin(self.activation)(z @ recurrent.mT + drive)

    def tensor_logits(self, z: Tensor) -> Tensor:
        """Return C z + c."""
        return _affine_logits(z, self.readout, "logits")

    def __repr__(self) -> str:
        out = f"{len(self.readout[1])} classes" if self.readout else "no read-out"
        return f"AffineCell({self.activation}, width {self.width}, {self.inputs} inputs, {out})"


@dataclass(frozen=True, eq=False, repr=False)
class FunctionCell(EquilibriumCell):
    """z = f(z, x) for any torch function f; made by `EquilibriumCell.from_function`.

    Attributes
    ----------
    function : callable
        f.
    """

    activation: None
    readout: Readout | Callable[[Any], Any] | None
    function: Callable[[Any, Any], Any]

    @property
    def is_affine(self) -> bool:
        """False."""
        return False

    def drive(self, X: ArrayLike) -> NDArray[Any]:
        """Return X itself, in the precision that f works in, after trying f on two rows.

        float64 if f takes it, float32 otherwise (as of a module with float32 weights).

        Raises
        ------
        InvalidInput
            X has NaN; f fails on it, changes the shape or the number of rows, mixes rows, or gives
            another answer when it is asked again.
        """
        rows = checks.real_array(_plain(X), "X", "EquilibriumCell.drive")
        if rows.ndim == 0 or len(rows) == 0:
            raise checks.invalid("X", "EquilibriumCell.drive", "have rows", f"shape {rows.shape}")
        return rows.astype(self._precision(rows[:2]))

    def step(self, z: FloatArray, drive: NDArray[Any]) -> FloatArray:
        """Return f(z, x)."""
        import torch

        with torch.no_grad():
            state = torch.as_tensor(np.asarray(z, dtype=drive.dtype))
            return _array(self.tensor_step(state, torch.as_tensor(drive)))

    def tensor_step(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return f(z, x), its state in one row."""
        image: Tensor = self.function(z.reshape(-1, *self.state_shape), drive)
        return image.reshape(z.shape)

    def tensor_logits(self, z: Tensor) -> Tensor:
        """Return the read-out's value."""
        if callable(self.readout):
            scores: Tensor = self.readout(z.reshape(-1, *self.state_shape))
            return scores
        return _affine_logits(z, self.readout, "logits")

    def _precision(self, rows: FloatArray) -> type[np.float32] | type[np.float64]:
        """Try f on one and on two rows; return the precision in which it worked."""
        import torch

        failures = []
        for dtype in (torch.float64, torch.float32):
            x = torch.as_tensor(rows, dtype=dtype)
            # No zeros: f may be blind to what it does to others.
            count = len(x) * self.width
            start = torch.linspace(-0.5, 0.5, count, dtype=dtype).reshape(-1, *self.state_shape)
            try:
                with torch.no_grad():
                    pair, again = self.function(start, x), self.function(start, x)
                    single = self.function(start[:1], x[:1])
            except Exception as error:  # noqa: BLE001  # whatever a user's function raises
                failures.append(f"{dtype}: {type(error).__name__}: {error}")
                continue
            _require_map(start, pair, again, single)
            return np.float64 if dtype == torch.float64 else np.float32
        got = "; ".join(failures)
        remedy = f"It is called with z of shape (n, {', '.join(map(str, self.state_shape))})."
        raise checks.invalid("f", "EquilibriumCell.from_function", "take rows of X", got, remedy)

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        out = "no read-out" if self.readout is None else "with read-out"
        return f"FunctionCell({name}, state {self.state_shape}, {out})"


def _require_map(start: Tensor, pair: Any, again: Any, single: Any) -> None:
    """Require that f returned states, row by row, and would do so again."""
    import torch

    owner = "EquilibriumCell.from_function"
    if not isinstance(pair, torch.Tensor):
        raise checks.invalid("f", owner, "return a tensor", type(pair).__name__)
    for image, rows in ((pair, len(start)), (single, 1)):
        expected = (rows, *start.shape[1:])
        if image.shape != expected:
            remedy = "A step takes states to states: as many rows, each of the state's shape."
            requirement = f"return the shape of z, {expected}"
            raise checks.invalid("f", owner, requirement, tuple(image.shape), remedy)
    if not torch.equal(pair.nan_to_num(), again.nan_to_num()):
        got = "two different ones"
        remedy = (
            "A module that keeps state, or draws random numbers, has no fixed point: switch it to "
            "evaluation mode, or reset it in f."
        )
        raise checks.invalid("f", owner, "give the same answer twice", got, remedy)
    size = float(pair.nan_to_num().abs().max())
    gap = float((pair[:1] - single).nan_to_num().abs().max())
    if gap > _SAME_ROWS * max(size, 1e-30):
        got = f"a row that changes by {gap:.2g} when another row is there"
        remedy = "Switch batch normalisation to evaluation mode."
        raise checks.invalid("f", owner, "treat each sample by itself", got, remedy)


def _affine_logits(z: Tensor, readout: Any, owner: str) -> Tensor:
    import torch

    if readout is None:
        raise checks.invalid("the cell", owner, "have a read-out", "none", _NO_READOUT)
    weights, bias = (torch.tensor(v, dtype=z.dtype, device=z.device) for v in readout)
    return z @ weights.mT + bias


def _plain(values: Any) -> Any:
    """Let tensors through: off their graph and device, in a precision that NumPy knows."""
    return values.detach().cpu().double().numpy() if hasattr(values, "detach") else values


def _array(tensor: Tensor) -> FloatArray:
    return np.asarray(tensor.detach().cpu().double().numpy())


def _frozen(array: FloatArray) -> FloatArray:
    copy = np.array(array, dtype=np.float64, order="C")
    copy.flags.writeable = False
    return copy


def _matrix(values: Any, parameter: str, owner: str) -> FloatArray:
    array = checks.real_array(_plain(values), parameter, owner)
    if array.ndim != 2 or 0 in array.shape:
        raise checks.invalid(parameter, owner, "be a matrix", f"shape {array.shape}")
    return _frozen(array)


def _vector(values: Any, size: int, parameter: str, owner: str) -> FloatArray:
    array = checks.real_array(_plain(values), parameter, owner)
    if array.shape not in ((), (size,)):
        requirement = f"be one number, or have shape ({size},)"
        raise checks.invalid(parameter, owner, requirement, f"shape {array.shape}")
    return _frozen(np.broadcast_to(array, (size,)))


def _scale(values: Any, size: int, owner: str) -> FloatArray:
    array = _vector(values, size, "scale", owner)
    if not (array > 0.0).all():
        remedy = "Leave out features that are constant, or give them a scale of one."
        raise checks.invalid("scale", owner, "be positive", float(array.min()), remedy)
    return array


def _readout(value: Any, width: int, owner: str) -> Readout | None:
    if value is None:
        return None
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise checks.invalid("readout", owner, "be a pair (C, c)", type(value).__name__)
    weights = _matrix(value[0], "C of readout", owner)
    if weights.shape[1] != width:
        requirement = f"have {width} columns, the width of the state"
        raise checks.invalid("C of readout", owner, requirement, f"shape {weights.shape}")
    bias = _vector(0.0 if value[1] is None else value[1], len(weights), "c of readout", owner)
    return weights, bias

"""Equilibrium networks with given weights, z = φ(Wz + Ux + b): solved, differentiated, read out.

With β the largest slope of φ, 0 ∈ F(z) + Gz − h for G = I/β − W and F = φ⁻¹ − I/β is a sum of two
operators.  Peaceman–Rachford keeps a pre-image s of z = R(s), R the resolvent of F with step α, and
takes s to 2w − (2z − s), where (I + αG)w = 2z − s + αh.  It converges for every α where
sym(ΛG) ≻ 0 for a diagonal Λ, also where plain iteration, s ← β(Wz + h) and R(s) = φ(s/β), diverges.
A splitting is another map with the same fixed points: its derivatives are the same too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.activations import Activation, as_activation, scaled, with_skip
from notsodeep.activations.slopes import slope_range
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.errors import ConstantActivation, InvalidInput, NotConverged
from notsodeep.networks.cell import (
    CHECKED_STEPS,
    MAX_STEPS,
    SETTLED_SHARE,
    EquilibriumCell,
    Method,
    MethodName,
    Readout,
    Solved,
    Trial,
    real_tensor,
    stuck,
    tolerance_for,
)
from notsodeep.networks.implicit import (
    Anderson,
    Solver,
    SolveRecord,
    implicit_layer,
    relative_residuals,
)

_TRIAL_ROWS, _TRIAL_STEPS, _TRIAL_TOLERANCE = 64, 400, 1e-6
# Peaceman–Rachford converges for every step, at rates that depend on the spectrum of G in ways that
# no bound tells well; trials of a few rows do.
_RELATIVE_STEPS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)  # times 1/‖G‖


def resolvent(activation: Activation, step: float, beta: float) -> Activation:
    """Return R_α, R_α(s) = φ(t) with (1 − α/β)φ(t) + αt = s; φ itself is right for α = β only.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> t = 0.7
    >>> bool(abs(resolvent(named("tanh"), 0.05, 1.0)(0.95 * math.tanh(t) + 0.05 * t)
    ...          - math.tanh(t)) < 1e-15)
    True
    """
    slow = activation if step == 1.0 else scaled(activation, 1.0, 1.0 / step)
    return slow if step == beta else with_skip(slow, step / beta - 1.0)


class Resolvent:
    """R_α on tensors, and its pre-images: z = R_α(s) = φ(t), s = (1 − α/β)φ(t) + αt."""

    def __init__(self, activation: Activation, step: float, beta: float) -> None:
        self.step, self.share = step, 1.0 - step / beta
        self.activation = resolvent(activation, step, beta)
        self.phi = torch_twin(activation)
        self.state = torch_twin(self.activation)  # s ↦ z

    def preimage(self, s: Tensor) -> Tensor:
        """Return t."""
        t: Tensor = (s - self.share * self.state(s) if self.share else s) / self.step
        return t

    def image(self, t: Tensor) -> Tensor:
        """Return s."""
        return self.share * self.phi(t) + self.step * t


class Splitting(Resolvent):
    """A method for one network: maps of pre-images, on tensors of the dtype of W.

    Parameters
    ----------
    activation : Activation
    recurrent : Tensor of shape (m, m)
        W; the map is differentiable in it, through `matrix`.
    method : Method
    beta : float
    """

    def __init__(
        self, activation: Activation, recurrent: Tensor, method: Method, beta: float
    ) -> None:
        self.method, self.splits = method, method.name == "peaceman_rachford"
        super().__init__(activation, method.step if self.splits else beta, beta)
        self.recurrent = self.matrix = recurrent
        if self.splits:
            identity = torch.eye(len(recurrent), dtype=recurrent.dtype, device=recurrent.device)
            # Without a margin I + αG may be singular; the method then finds nothing, and says so.
            inverse, singular = torch.linalg.inv_ex(
                identity + self.step * (identity / beta - recurrent)
            )
            self.matrix = torch.full_like(inverse, torch.nan) if singular else inverse

    def advance(self, s: Tensor, z: Tensor, drive: Tensor, matrix: Tensor | None = None) -> Tensor:
        """Return the next pre-image; one product with a matrix of the width."""
        matrix = self.matrix if matrix is None else matrix
        if not self.splits:
            return self.step * torch.addmm(drive, z, matrix.mT)
        reflected = 2.0 * z - s
        following: Tensor = 2.0 * (reflected + self.step * drive) @ matrix.mT - reflected
        return following

    def turn(self, s: Tensor, drive: Tensor, matrix: Tensor) -> Tensor:
        """Return the next pre-image, as a function of all that it depends on."""
        return self.advance(s, self.state(s), drive, matrix)

    def start(self, drive: Tensor) -> Tensor:
        """Return the pre-image that a solve begins with: z = φ(0)."""
        return self.image(torch.zeros_like(drive))

    def residuals(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return ‖z − φ(Wz + h)‖/‖φ(Wz + h)‖ of every row."""
        return relative_residuals(z, self.phi(torch.addmm(drive, z, self.recurrent.mT)))

    def stepper(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return (s, its image) ↦ next s, with the memory that the method has."""
        return self.solver().stepper()

    def solver(self, tolerance: float | None = None, max_steps: int = MAX_STEPS) -> Solver:
        """Return the method as a solver of the implicit layer."""
        kind = Anderson if self.method.name == "anderson" else Solver
        return kind(tolerance, max_steps)


class AffineDEQ(EquilibriumCell):
    """z* = φ(W z* + U (x − shift)/scale + b), logits C z* + c; see `EquilibriumCell.from_weights`.

    Parameters
    ----------
    W, U, b : array_like of shape (m, m), (m, p) and (m,)
        Parameters of the module: `recurrent`, `injection` and `bias`; W may be parametrised.
    activation : str or Activation
    readout : tuple of (C, c), optional
        Parameters `readout` and `readout_bias`.
    shift, scale : float or array_like of shape (p,), optional
        Buffers of the module.

    Attributes
    ----------
    method : Method or None
        By which fixed points are solved: set it, or let the first batch decide.
    tolerance : float or None
        Of `states` and of gradients; 1e-10 in float64 and 1e-5 in float32 by default.
    record : SolveRecord or None
        Of the last solve of `states`.

    Examples
    --------
    >>> stiff = AffineDEQ([[-9.0]], [[1.0]], readout=([[1.0]], None))  # plain iteration diverges
    >>> x = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    >>> y = stiff(x)
    >>> y.item(), *torch.autograd.grad(y, x), stiff.method.name  # z = (1 + 9)⁻¹ x
    (0.1, tensor([[0.1000]], dtype=torch.float64), 'peaceman_rachford')
    """

    def __init__(
        self,
        W: ArrayLike,
        U: ArrayLike,
        b: ArrayLike | None = None,
        activation: str | Activation = "relu",
        readout: Readout | None = None,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
    ) -> None:
        super().__init__()
        recurrent, injection = _matrix(W, "W"), _matrix(U, "U")
        m, p = injection.shape
        if recurrent.shape != (m, m):
            shapes = f"{tuple(recurrent.shape)} and {tuple(injection.shape)}"
            raise InvalidInput(
                f"W and U must have shapes (m, m) and (m, p), got {shapes}: z = φ(W z + U x + b) "
                "takes U as torch.nn.Linear has it."
            )
        self.recurrent, self.injection = nn.Parameter(recurrent), nn.Parameter(injection)
        self.bias = nn.Parameter(real_tensor(0.0 if b is None else b, "b", m))
        self.readout, self.readout_bias = readout_parameters(readout, m)
        self.register_buffer("shift", real_tensor(0.0 if shift is None else shift, "shift", p))
        self.register_buffer("scale", real_tensor(1.0 if scale is None else scale, "scale", p))
        if not bool((self.get_buffer("scale") > 0.0).all()):
            raise InvalidInput("scale must be positive, got 0 or less. Drop constant features.")
        self.activation = as_activation(activation)
        self.slopes = slope_range(self.activation)
        if self.slopes.beta == 0.0:
            raise ConstantActivation(f"activation must not be constant, got {self.activation}.")
        self.state_shape, self.inputs = (m,), p
        self.method: Method | None = None
        self.tolerance: float | None = None
        self.record: SolveRecord | None = None
        self.metadata: dict[str, str] = {}  # of the file it was read from
        self._phi = torch_twin(self.activation)

    @property
    def has_readout(self) -> bool:
        """Whether there are C and c."""
        return self.readout is not None

    def arrays(self) -> dict[str, FloatArray]:
        """Return W, U, b, C, c, shift and scale in float64, by these names."""
        named = {
            "W": self.recurrent,
            "U": self.injection,
            "b": self.bias,
            "C": self.readout,
            "c": self.readout_bias,
            "shift": self.get_buffer("shift"),
            "scale": self.get_buffer("scale"),
        }
        return {
            name: tensor.detach().cpu().double().numpy()
            for name, tensor in named.items()
            if tensor is not None
        }

    def drive(self, X: ArrayLike | Tensor) -> Tensor:
        """Return h = U (x − shift)/scale + b, shape (n, width)."""
        if not isinstance(X, Tensor):
            X = real_tensor(X, "X")
        if X.ndim != 2 or X.shape[1] != self.inputs:
            raise InvalidInput(f"X must have {self.inputs} features, got shape {tuple(X.shape)}.")
        rows = X.to(self.bias.device, self.bias.dtype)
        rows = (rows - self.get_buffer("shift")) / self.get_buffer("scale")
        return nn.functional.linear(rows, self.injection, self.bias)

    def step(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return φ(W z + h)."""
        return self._phi(torch.addmm(drive, z, self.recurrent.mT))

    def logits(self, z: Tensor) -> Tensor:
        """Return C z + c."""
        self.require_readout()
        assert self.readout is not None
        return nn.functional.linear(z, self.readout, self.readout_bias)

    def splitting(self, method: Method | None = None) -> Splitting:
        """Return the maps of a method, of `self.method` by default."""
        method = method or self.method or Method("plain", self.slopes.beta)
        return Splitting(self.activation, self.recurrent, method, self.slopes.beta)

    @torch.no_grad()
    def solve(
        self,
        drive: Tensor,
        tolerance: float | None = None,
        *,
        start: Tensor | None = None,
        max_steps: int = MAX_STEPS,
        splitting: Splitting | None = None,
    ) -> Solved:
        """Solve z = φ(Wz + h) for all rows of h, by `self.method` unless a splitting is given."""
        if splitting is None:
            self.method = self.method or self.choose_method(drive)
            splitting = self.splitting()
        first = None
        if start is not None:
            first = splitting.image(torch.addmm(drive, start, self.recurrent.mT))
        return solve_rows(splitting, drive, tolerance, start=first, max_steps=max_steps)

    @torch.no_grad()
    def choose_method(
        self,
        drive: Tensor,
        only: MethodName | None = None,
        lipschitz: float | None = None,
        settled_share: float = SETTLED_SHARE,
    ) -> Method:
        """Return the method with the fewest steps in trial solves of at most 64 rows.

        Parameters
        ----------
        drive : Tensor of shape (n, m)
        only : str, optional
            The method of which only the step is to be chosen.
        lipschitz : float, optional
            The unit of the steps is 1/lipschitz, 1/‖G‖ by default.
        settled_share : float
            Of the rows, that a method must settle.
        """
        rows = drive[:: max(1, len(drive) // _TRIAL_ROWS)][:_TRIAL_ROWS].double()
        W, beta = self.recurrent.double(), self.slopes.beta
        norm = torch.linalg.matrix_norm
        identity = torch.eye(len(W), dtype=W.dtype, device=W.device)
        unit = max(lipschitz or float(norm(identity / beta - W, 2)), 1e-300)
        plain: list[tuple[MethodName, float]] = [("plain", beta), ("anderson", beta)]
        split: list[tuple[MethodName, float]] = [
            ("peaceman_rachford", factor / unit) for factor in _RELATIVE_STEPS
        ]
        # Of a contraction plain iteration is sure to converge, and costs no resolvent; ties go to
        # the first.
        contracts = float(norm(W, 2)) * self.slopes.largest < 1.0
        every = [*plain, *split] if contracts else [*split, *plain]
        # Negative slopes have no resolvent.
        every = every if self.slopes.monotone else plain
        candidates = [each for each in every if only in (None, each[0])]
        if not candidates:
            raise InvalidInput(f"{only} must have a resolvent, got negative slopes of φ.")
        trials: list[Trial] = []
        for name, step in candidates:
            # No trial may take longer than the best one so far: it would not be chosen.
            most = min((t.steps for t in trials if t.steps), default=_TRIAL_STEPS)
            maps = Splitting(self.activation, W, Method(name, step), beta)
            solved = solve_rows(maps, rows, _TRIAL_TOLERANCE, max_steps=most)
            steps = solved.steps if solved.share >= settled_share else None
            trials.append(Trial(name, step, steps))
        converged = [trial for trial in trials if trial.steps is not None]
        if not converged:
            raise NotConverged(
                f"No method found the fixed points of {len(rows)} rows to {_TRIAL_TOLERANCE:g} "
                f"within {_TRIAL_STEPS} steps. The network may have none there: look at it with "
                "notsodeep.diagnose.",
                tuple(trials),
            )
        best = min(converged, key=lambda trial: trial.steps or 0)
        return Method(best.name, best.step, tuple(trials))

    def states(self, x: Tensor) -> Tensor:
        """Return z*, differentiable any number of times in x and all parameters."""
        drive = self.drive(x)
        if self.method is None:
            self.method = self.choose_method(drive.detach())
        maps = self.splitting()
        solver = maps.solver(tolerance_for(drive.dtype, self.tolerance))
        start = maps.start(drive).detach()
        s, self.record = implicit_layer(maps.turn, (drive, maps.matrix), start, solver=solver)
        return maps.state(s)

    def extra_repr(self) -> str:
        """Return the numbers of a network."""
        out = "no read-out" if self.readout is None else f"{len(self.readout)} classes"
        return f"{self.activation}, width {self.width}, {self.inputs} inputs, {out}"

    def __repr__(self) -> str:
        return f"AffineDEQ({self.extra_repr()})"


@torch.no_grad()
def solve_rows(
    maps: Splitting,
    drive: Tensor,
    tolerance: float | None = None,
    *,
    start: Tensor | None = None,
    max_steps: int = MAX_STEPS,
) -> Solved:
    """Solve z = φ(Wz + h) for all rows of h, from the pre-images `start`.

    Steps that have become small, ‖z − z_before‖ ≤ tolerance·‖z‖ for every row, call for the
    residual, which alone decides.
    """
    goal = tolerance_for(drive.dtype, tolerance)
    s = maps.start(drive) if start is None else start
    z = maps.state(s)
    answer = Solved(z.clone(), s.clone(), torch.full_like(s[:, 0], math.inf), 0, goal)
    left = torch.arange(len(drive), device=drive.device)
    following, h, step, earlier = maps.stepper(), drive, 0, answer.residuals.clone()
    while len(left) and step < max_steps:
        step += 1
        s = following(s, maps.advance(s, z, h))
        before, z = z, maps.state(s)
        change = relative_residuals(before, z)
        small = (change <= goal) | change.isinf()
        if step < max_steps and not bool(small.all()) and step % CHECKED_STEPS:
            continue
        residuals = maps.residuals(z, h)
        answer.z[left], answer.s[left], answer.residuals[left] = z, s, residuals
        done = small & ((residuals <= goal) | residuals.isinf())
        if bool(done.all()):
            break
        if not step % CHECKED_STEPS:
            open_rows = ~(done | stuck(residuals, earlier))
            if not bool(open_rows.all()):
                # The memory of Anderson's method begins anew with the rows that are left.
                left, h, s, z, residuals = (each[open_rows] for each in (left, h, s, z, residuals))
                following = maps.stepper()
            earlier = residuals
    return dataclasses.replace(answer, steps=step)


class Monotone(nn.Module):
    """The parametrisation W = (1 − m)I − AᵀA + B − Bᵀ, for torch.nn.utils.parametrize."""

    def __init__(self, A: ArrayLike, B: ArrayLike, m: float) -> None:
        super().__init__()
        self.A = _matrix(A, "A")
        self.B = real_tensor(B, "B", self.A.shape[1], self.A.shape[1])
        self.margin = checks.finite_number(m, "m", "EquilibriumCell.from_monotone")

    def forward(self, A: Tensor, B: Tensor) -> Tensor:
        """Return W."""
        identity = torch.eye(len(B), dtype=B.dtype, device=B.device)
        return (1.0 - self.margin) * identity - A.mT @ A + B - B.mT

    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return the A and B that it was made with: W has many."""
        return self.A.to(W), self.B.to(W)


def _matrix(values: Any, name: str) -> Tensor:
    matrix = real_tensor(values, name)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InvalidInput(f"{name} must be a matrix, got shape {tuple(matrix.shape)}.")
    return matrix


def readout_parameters(
    value: Readout | None, width: int
) -> tuple[nn.Parameter, nn.Parameter] | tuple[None, None]:
    """Return C and c as parameters."""
    if value is None:
        return None, None
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InvalidInput(f"readout must be a pair (C, c), got {type(value).__name__}.")
    weights = _matrix(value[0], "C")
    if weights.shape[1] != width:
        raise InvalidInput(f"C must have {width} columns, got shape {tuple(weights.shape)}.")
    bias = real_tensor(0.0 if value[1] is None else value[1], "c", len(weights))
    return nn.Parameter(weights), nn.Parameter(bias)

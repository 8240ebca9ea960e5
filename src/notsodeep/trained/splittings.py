"""Methods that solve z = φ(Wz + h) for given weights, and the loop that runs them.

0 ∈ F(z) + Gz − h with G = β⁻¹I − W (see `notsodeep.trained.margin`) is a sum of two operators, of
which the resolvent of each is cheap: of F entry by entry, of G by one matrix.  All methods keep a
pre-image s of z = R_α(s):

* forward–backward, s ← z − α(Gz − h), for small steps, whatever the size of W;
* Peaceman–Rachford, s ← 2w − (2z − s) with (I + αG)w = 2z − s + αh, for every step.

Plain iteration is forward–backward with α = β; damped iteration averages it with z; Anderson's
combines it with earlier steps.

An answer is accepted on ‖z − φ(Wz + h)‖ ≤ tolerance·‖φ(Wz + h)‖ alone, never on small steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from notsodeep import checks
from notsodeep.errors import NotConverged
from notsodeep.networks.equilibrium_solvers import Anderson
from notsodeep.records import Record
from notsodeep.trained.cell import AffineCell
from notsodeep.trained.margin import Margin, margin_of
from notsodeep.trained.resolvent import Resolvent

MethodName = Literal["peaceman_rachford", "forward_backward", "plain", "damped", "anderson"]
METHODS: tuple[MethodName, ...] = (
    "peaceman_rachford",
    "forward_backward",
    "plain",
    "damped",
    "anderson",
)

DAMPING = 0.5
"""Weight of a new state in damped iteration."""
_MOST_STEPS = 3000
_TRIAL_ROWS = 64
_TRIAL_STEPS = 400
_TRIAL_TOLERANCE = 1e-6
# Peaceman–Rachford converges for every step, at rates that depend on the spectrum of G in ways that
# no bound tells well; trials of a few rows do.
_RELATIVE_STEPS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)  # times 1/‖G‖


@dataclass(frozen=True, repr=False)
class Trial(Record):
    """One method that was tried.

    Attributes
    ----------
    method : str
    step : float
        α.
    steps : int or None
        Until every row had the tolerance of the trial; None if one never had.
    """

    method: MethodName
    step: float
    steps: int | None


@dataclass(frozen=True, repr=False)
class MethodChoice(Record):
    """The method by which a network is solved, and why.

    Attributes
    ----------
    method : str
        One of `METHODS`.
    step : float
        α.
    reason : str
    trials : tuple of Trial
    """

    method: MethodName
    step: float
    reason: str
    trials: tuple[Trial, ...] = ()


class Splitting:
    """A method for one network: steps on tensors in float64 (or another dtype).

    Parameters
    ----------
    cell : AffineCell
    method : str
        One of `METHODS`.
    step : float
        α; the others than the first two methods ignore it.
    beta : float
        The largest slope of φ.
    dtype : torch.dtype
    device : torch.device or str

    Attributes
    ----------
    resolvent : Resolvent
    """

    def __init__(
        self,
        cell: AffineCell,
        method: MethodName,
        step: float,
        beta: float,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.method = method
        self.beta = beta
        self.step = step if method in ("peaceman_rachford", "forward_backward") else beta
        self.resolvent = Resolvent(cell.activation, self.step, beta)
        W = torch.tensor(cell.recurrent, dtype=torch.float64)
        identity = torch.eye(cell.width, dtype=torch.float64)
        G = identity / beta - W
        # Without a margin I + αG may be singular; the method then finds nothing, and says so.
        inverse, singular = torch.linalg.inv_ex(identity + self.step * G)
        inverse = torch.full_like(inverse, torch.nan) if singular else inverse
        self.recurrent = W.mT.contiguous().to(device, dtype)  # as rows are multiplied
        self.operator = G.mT.contiguous().to(device, dtype)
        self.inverse = inverse.mT.contiguous().to(device, dtype)

    def image(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return φ(Wz + h)."""
        return self.resolvent.phi(torch.addmm(drive, z, self.recurrent))

    def advance(self, s: Tensor, z: Tensor, drive: Tensor) -> Tensor:
        """Return the next pre-image; one product with a matrix of the width."""
        if self.method == "peaceman_rachford":
            reflected = 2.0 * z - s
            inner: Tensor = torch.add(reflected, drive, alpha=self.step) @ self.inverse
            return 2.0 * inner - reflected
        if self.method == "forward_backward":
            moved: Tensor = z - self.step * (z @ self.operator - drive)
            return moved
        return self.step * torch.addmm(drive, z, self.recurrent)

    def cold(self, drive: Tensor) -> Tensor:
        """Return the pre-image that a solve begins with: z = φ(0)."""
        return self.resolvent.image(torch.zeros_like(drive))

    def steps(self, drive: Tensor, start: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """Return the map from one pre-image to the next, with the memory it may need."""
        if self.method == "anderson":
            combine = Anderson().begin()
            return lambda s: combine(s, self.advance(s, self.resolvent(s), drive))
        if self.method == "damped":
            held = [self.resolvent(self.cold(drive) if start is None else start)]

            def average(s: Tensor) -> Tensor:
                held[0] = (1.0 - DAMPING) * held[0] + DAMPING * self.resolvent(s)
                return self.step * torch.addmm(drive, held[0], self.recurrent)

            return average
        return lambda s: self.advance(s, self.resolvent(s), drive)

    def residuals(self, z: Tensor, drive: Tensor) -> Tensor:
        """Return ‖z − φ(Wz + h)‖/‖φ(Wz + h)‖ of every row; zero where both are zero."""
        image = self.image(z, drive)
        gap = torch.linalg.vector_norm(z - image, dim=1)
        size = torch.linalg.vector_norm(image, dim=1)
        # 0/0 for rows whose fixed point is zero.
        return torch.where(gap == 0.0, 0.0, gap / size)


@dataclass(frozen=True, eq=False)
class Solved:
    """States of a batch, and how they were found.

    Attributes
    ----------
    z, s : Tensor of shape (n, m)
        States and their pre-images.
    residuals : Tensor of shape (n,)
    steps : int
    converged : bool
    """

    z: Tensor
    s: Tensor
    residuals: Tensor
    steps: int
    converged: bool


def solve_rows(
    splitting: Splitting,
    drive: Tensor,
    tolerance: float,
    *,
    start: Tensor | None = None,
    max_steps: int = _MOST_STEPS,
) -> Solved:
    """Solve z = φ(Wz + h) for all rows of h; the record says whether it was found.

    Steps that have become small, ‖z − z_before‖ ≤ tolerance·‖z‖ for every row, call for the
    residual, which alone decides.
    """
    s = splitting.cold(drive) if start is None else start
    following = splitting.steps(drive, start)
    z = splitting.resolvent(s)
    for step in range(1, max_steps + 1):
        s = following(s)
        before, z = z, splitting.resolvent(s)
        change = torch.linalg.vector_norm(z - before, dim=1)
        size = torch.linalg.vector_norm(z, dim=1)
        if bool((change <= tolerance * size).all()):
            residuals = splitting.residuals(z, drive)
            if bool((residuals <= tolerance).all()):
                return Solved(z, s, residuals, step, True)
        elif not bool(size.sum().isfinite()):
            break
    return Solved(z, s, splitting.residuals(z, drive), step, False)


def choose_method(
    cell: AffineCell, drive: Tensor, margin: Margin | None = None, method: str = "auto"
) -> MethodChoice:
    """Choose the method with the fewest steps in a few trial solves, among those that apply.

    Parameters
    ----------
    cell : AffineCell
    drive : Tensor of shape (n, m)
        Of typical rows; up to 64 of them are used.
    margin : Margin, optional
    method : str, default "auto"
        Or one of `METHODS`, of which then only the step is chosen.

    Raises
    ------
    NotConverged
        No method finds the fixed points of the trial rows.
    """
    owner = "choose_method"
    known = margin_of(cell) if margin is None else margin
    if method != "auto":
        checks.known_name(method, METHODS, "method")
    rows = drive[:: max(1, len(drive) // _TRIAL_ROWS)][:_TRIAL_ROWS].to(torch.float64)
    monotone = known.slopes.monotone
    candidates = [
        (name, step)
        for name, step in _candidates(known)
        if method in ("auto", name) and (monotone or name in ("plain", "damped", "anderson"))
    ]
    if not candidates:
        remedy = "φ has negative slopes, and so no resolvent: use 'plain', 'damped' or 'anderson'."
        raise checks.invalid("method", owner, "fit the activation", repr(method), remedy)
    trials: list[Trial] = []
    for name, step in candidates:
        # No trial may take longer than the best one so far: it would not be chosen.
        best = min((t.steps for t in trials if t.steps), default=_TRIAL_STEPS)
        splitting = Splitting(cell, name, step, known.beta)
        solved = solve_rows(splitting, rows, _TRIAL_TOLERANCE, max_steps=best)
        trials.append(Trial(name, splitting.step, solved.steps if solved.converged else None))
    fit = [trial for trial in trials if trial.steps is not None]
    if not fit:
        raise NotConverged(
            f"No method found the fixed points of {len(rows)} rows to {_TRIAL_TOLERANCE:g} within "
            f"{_TRIAL_STEPS} steps ({', '.join(sorted({t.method for t in trials}))}). "
            f"{known.reason} The network may have no fixed point there: look at it with "
            "notsodeep.diagnose.",
            tuple(trials),
        )
    # Equal numbers of steps: the first, which the margin recommends most.
    best_trial = min(fit, key=lambda trial: trial.steps or 0)
    words = (
        f"{best_trial.method.replace('_', ' ')} with step {best_trial.step:.4g} needed the fewest "
        f"steps, {best_trial.steps}, of {len(trials)} trials on {len(rows)} rows. {known.reason}"
    )
    return MethodChoice(best_trial.method, best_trial.step, words, tuple(trials))


def _candidates(margin: Margin) -> list[tuple[MethodName, float]]:
    """Methods and steps to try, those that the margin guarantees first."""
    length = max(margin.lipschitz, 1e-300)
    reflected: list[tuple[MethodName, float]] = [
        ("peaceman_rachford", factor / length) for factor in _RELATIVE_STEPS
    ]
    forward: list[tuple[MethodName, float]] = [("forward_backward", 1.0 / length)]
    if margin.kind in ("monotone", "scaled") and margin.value > 0.0:
        # The step that minimises the guaranteed rate √(1 − 2αμ + α²L²).
        forward.append(("forward_backward", margin.value / length**2))
    plain: list[tuple[MethodName, float]] = [
        ("plain", margin.beta),
        ("anderson", margin.beta),
        ("damped", margin.beta),
    ]
    # Of a contraction plain iteration is sure to converge, and costs no resolvent.
    contracts = margin.norm * margin.slopes.largest < 1.0
    return [*plain, *reflected, *forward] if contracts else [*reflected, *forward, *plain]


def solve(
    cell: AffineCell,
    X: object,
    *,
    tolerance: float = 1e-10,
    method: str = "auto",
    step: float | None = None,
    max_steps: int = _MOST_STEPS,
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], MethodChoice]:
    """Solve a given network for rows of X.

    Parameters
    ----------
    cell : AffineCell
    X : array_like of shape (n, p)
    tolerance : float, default 1e-10
        For ‖z − φ(Wz + h)‖/‖φ(Wz + h)‖ of every row.
    method : str, default "auto"
        "peaceman_rachford", "forward_backward", "plain", "damped" or "anderson".
    step : float, optional
        α; found by trial solves if it is left out.
    max_steps : int

    Returns
    -------
    z : ndarray of shape (n, m)
    choice : MethodChoice

    Raises
    ------
    NotConverged

    Examples
    --------
    >>> from notsodeep.trained import EquilibriumCell
    >>> cell = EquilibriumCell.from_weights([[-9.0]], [[1.0]])  # plain iteration diverges
    >>> z, choice = solve(cell, [[1.0], [-1.0]])
    >>> z.round(6).tolist(), choice.method
    ([[0.1], [0.0]], 'peaceman_rachford')
    """
    owner = "solve"
    checks.positive_number(tolerance, "tolerance", owner)
    drive = torch.as_tensor(cell.drive(X))  # type: ignore[arg-type]
    margin = margin_of(cell)
    if step is None:
        choice = choose_method(cell, drive, margin, method)
    else:
        name = checks.known_name(method, METHODS, "method")
        size = checks.positive_number(step, "step", owner)
        choice = MethodChoice(name, size, "method and step were given")  # type: ignore[arg-type]
    splitting = Splitting(cell, choice.method, choice.step, margin.beta)
    solved = solve_rows(splitting, drive, tolerance, max_steps=max_steps)
    require_solved(solved, tolerance)
    return np.asarray(solved.z.numpy()), choice


def require_solved(solved: Solved, tolerance: float) -> None:
    """Raise `NotConverged` if a row has not reached the tolerance."""
    if solved.converged:
        return
    open_rows = int((~(solved.residuals <= tolerance)).sum())
    raise NotConverged(
        f"{open_rows} of {len(solved.residuals)} rows have not reached the tolerance {tolerance:g} "
        f"in {solved.steps} steps; the largest residual is {float(solved.residuals.max()):.3g}. "
        "Use another method, a looser tolerance, or more steps; notsodeep.diagnose tells whether "
        "there is a fixed point.",
        solved,
    )

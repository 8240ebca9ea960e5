"""What a solve leaves behind, and what happens when it fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from notsodeep import checks
from notsodeep.errors import NotConverged, NotConvergedWarning
from notsodeep.records import Plotted

Direction = Literal["forward", "backward", "ntk"]
OnFailure = Literal["raise", "warn", "ignore"]
Report = Callable[["SolveRecord"], None]
"""What is done about a solve that failed."""

_SHOWN = 6  # residuals that a message shows


@dataclass(frozen=True, repr=False)
class SolveRecord(Plotted):
    """Outcome of one iterative solve.

    Attributes
    ----------
    direction : {"forward", "backward", "tangent"}
        The fixed point itself, the solve for a gradient, or that for a directional derivative.
    subject : str
        What was being solved for, as messages call it.
    converged : bool or None
        None for a gradient that is an approximation by choice, and is not solved for.
    steps : int
        Evaluations of the map.
    tolerance : float
        What every sample's relative residual had to be within.
    residuals : Tensor
        The last relative residual ‖f(z) − z‖/‖f(z)‖ of every sample.
    history : tuple of float
        The largest relative residual over the samples, at every step.
    reason : str
        Why the iteration ended, as a sentence.
    """

    _drawing = "solve"

    direction: Direction
    subject: str
    converged: bool | None
    steps: int
    tolerance: float
    residuals: Tensor = field(repr=False, compare=False)
    history: tuple[float, ...]
    reason: str

    @property
    def residual(self) -> float:
        """The largest of the last relative residuals; zero if there were none."""
        return self.history[-1] if self.history else 0.0

    def __str__(self) -> str:
        return f"{self.direction}: {self.reason} (residual {self.residual:.3g})"


@dataclass
class ImplicitRecord:
    """The solves that one call of `implicit_layer` has led to so far.

    Attributes
    ----------
    forward : SolveRecord or None
        None until the solve is done.
    derivatives : list of SolveRecord
        Solves for gradients and directional derivatives, in the order in which they were made.
    """

    forward: SolveRecord | None = None
    derivatives: list[SolveRecord] = field(default_factory=list)

    @property
    def backward(self) -> SolveRecord | None:
        """The last solve for a derivative, None if there was none yet."""
        return self.derivatives[-1] if self.derivatives else None

    def keep(self, record: SolveRecord) -> None:
        """Put a record in its place."""
        if record.direction == "forward":
            self.forward = record
        else:
            self.derivatives.append(record)


def failure_message(record: SolveRecord, remedy: str) -> str:
    """Say what failed, how the residual went, and what to do."""
    shown = ", ".join(f"{r:.2g}" for r in record.history[-_SHOWN:])
    first = "…, " if len(record.history) > _SHOWN else ""
    return (
        f"{record.subject[:1].upper()}{record.subject[1:]} was not found: {record.reason}. "
        f"The relative residuals were {first}{shown}; the tolerance is {record.tolerance:.2g}. "
        f"{remedy}"
    )


def report_for(on_failure: OnFailure, remedy: str) -> Report:
    """Return what one of the named choices does about a failure."""
    checks.known_name(on_failure, ("raise", "warn", "ignore"), "on_failure")

    def report(record: SolveRecord) -> None:
        if on_failure == "raise":
            raise NotConverged(failure_message(record, remedy), record)
        if on_failure == "warn":
            warnings.warn(failure_message(record, remedy), NotConvergedWarning, stacklevel=2)

    return report


@dataclass
class FailureCount:
    """Failures of a module in training: each is counted, the first of them also warned about."""

    forward: int = 0
    backward: int = 0

    def report(self, remedy: str) -> Report:
        """Return a report that counts, and warns the first time."""

        def report(record: SolveRecord) -> None:
            first = self.forward + self.backward == 0
            if record.direction == "forward":
                self.forward += 1
            else:
                self.backward += 1
            if first:
                message = failure_message(record, remedy)
                counted = "Further failures are counted in `module.failures`, not warned about."
                warnings.warn(f"{message} {counted}", NotConvergedWarning, stacklevel=2)

        return report

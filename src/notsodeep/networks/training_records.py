"""What a training run is asked to do, and what it says it did: frozen, with JSON forms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from notsodeep import checks
from notsodeep.records import Plotted, Record

Optimiser = Literal["sgd", "momentum", "adam"]
Schedule = Literal["constant", "cosine", "step"]
Loss = Literal["cross_entropy", "squared_error"]


@dataclass(frozen=True, repr=False)
class TrainingSettings(Record):
    """How to train.  The defaults are the mixture paper's for a read-out: plain SGD at rate 1.

    Parameters
    ----------
    epochs : int
        Passes over the data, at most.
    batch_size : int
        Samples in a step.
    learning_rate : float
        Rate of the first epoch.  Adam wants about 0.001 instead of 1.
    optimiser : {"sgd", "momentum", "adam"}
    momentum : float
        In [0, 1); of "momentum" only.
    weight_decay : float
        The gradient gets weight_decay·(weights) added, which is the penalty
        (weight_decay/2)·‖weights‖².
    scale_free_decay : float, optional
        The same for parameters whose scale does not matter, where decay only sets how far a step
        turns them; see `Normalised`.  That of all others if left out.
    schedule : {"constant", "cosine", "step"}
        Rate η_e of epoch e = 0 … E − 1: η; η(1 + cos(πe/E))/2; η·step_factor^⌊e/step_epochs⌋.
    step_epochs, step_factor : int, float
        Of "step" only.
    loss : {"cross_entropy", "squared_error"}
        Mean over samples of −log softmax(f)_y, or of ½‖f − t‖² with t the one-hot label.
    patience : int, optional
        Stop after so many epochs without a smaller validation loss, and take the best weights.
    cache_features : bool
        Where only the read-out is trained, compute the features once and keep them.
    seed : int
        Of the order of the samples: epoch e is a function of (seed, e) alone.

    Examples
    --------
    >>> settings = TrainingSettings(epochs=4, learning_rate=0.1, schedule="cosine")
    >>> [round(settings.rate(epoch), 3) for epoch in range(4)]
    [0.1, 0.085, 0.05, 0.015]
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1.0
    optimiser: Optimiser = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    step_epochs: int = 30
    step_factor: float = 0.1
    loss: Loss = "cross_entropy"
    patience: int | None = None
    cache_features: bool = True
    seed: int = 0
    scale_free_decay: float | None = None

    def __post_init__(self) -> None:
        owner = "TrainingSettings"
        plain: dict[str, Any] = {
            name: checks.positive_integer(getattr(self, name), name, owner)
            for name in ("epochs", "batch_size", "step_epochs")
        }
        for name in ("learning_rate", "step_factor"):
            plain[name] = checks.positive_number(getattr(self, name), name, owner)
        checks.known_name(self.optimiser, get_args(Optimiser), f"optimiser of {owner}")
        checks.known_name(self.schedule, get_args(Schedule), f"schedule of {owner}")
        checks.known_name(self.loss, get_args(Loss), f"loss of {owner}")
        plain["momentum"] = checks.share(self.momentum, "momentum", owner)
        plain["weight_decay"] = checks.at_least_zero(self.weight_decay, "weight_decay", owner)
        if self.scale_free_decay is not None:
            name = "scale_free_decay"
            plain[name] = checks.at_least_zero(self.scale_free_decay, name, owner)
        if self.patience is not None:
            plain["patience"] = checks.positive_integer(self.patience, "patience", owner)
        plain["seed"] = checks.integer_at_least(self.seed, 0, "seed", owner)
        for name, value in plain.items():  # as Python's own numbers, which have a JSON form
            object.__setattr__(self, name, value)

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        match self.schedule:
            case "cosine":
                return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * epoch / self.epochs))
            case "step":
                power: float = self.step_factor ** (epoch // self.step_epochs)
                return self.learning_rate * power
            case _:
                return self.learning_rate


@dataclass(frozen=True, repr=False)
class SolverSummary(Record):
    """What the equilibrium solver did over several batches, each one solve.

    Attributes
    ----------
    solves : int
    steps : int
        Evaluations of the map, added up.
    most_steps : int
        Those of the longest solve.
    largest_residual : float or None
        Largest relative residual that a solve ended with; None if one ended with none that is
        finite.
    failures : int
        Solves that ended without meeting their tolerance.

    Examples
    --------
    >>> summary = SolverSummary().plus(12, 1e-7, converged=True).plus(20, 1e-3, converged=False)
    >>> summary.solves, summary.mean_steps, summary.failures
    (2, 16.0, 1)
    """

    solves: int = 0
    steps: int = 0
    most_steps: int = 0
    largest_residual: float | None = 0.0
    failures: int = 0

    @property
    def mean_steps(self) -> float:
        """Steps of a solve, on average."""
        return self.steps / self.solves if self.solves else 0.0

    def plus(self, steps: int, residual: float, converged: bool) -> SolverSummary:
        """Count one more solve."""
        finite = self.largest_residual is not None and math.isfinite(residual)
        return SolverSummary(
            self.solves + 1,
            self.steps + steps,
            max(self.most_steps, steps),
            max(self.largest_residual or 0.0, residual) if finite else None,
            self.failures + (not converged),
        )


def summary_from(content: Mapping[str, Any] | None) -> SolverSummary | None:
    """Turn the form made by `dataclasses.asdict` back into a summary; None stays None."""
    return None if content is None else SolverSummary(**content)


@dataclass(frozen=True, repr=False)
class EpochRecord(Record):
    """One epoch.

    Attributes
    ----------
    epoch : int
        Counted from 0.
    learning_rate : float
    loss : float
        Mean over the epoch's samples, each at the weights before its step.
    accuracy : float or None
        Share of samples whose largest output is their class; None without class labels.
    validation_loss, validation_accuracy : float or None
        At the weights after the epoch.
    seconds : float
        Time of the epoch's steps, its validation and its measurements.
    forward, backward : SolverSummary or None
        What the equilibrium solver did in the epoch's steps, for the features and for their
        gradient; None where there is no solver.
    measured : dict or None
        What was measured after the epoch, as plain JSON values; None if nothing was.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.networks import train
    >>> data = nsd.data.load("digits", samples=60, rng=0)
    >>> net = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 64, 32, 10, rng=0, trainable="readout")
    >>> settings = TrainingSettings(epochs=2, cache_features=False)
    >>> last = train(net, data.X, data.y, settings).history[-1]
    >>> last.epoch, last.learning_rate, last.forward.failures, last.validation_loss
    (1, 1.0, 0, None)
    """

    epoch: int
    learning_rate: float
    loss: float
    accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float
    forward: SolverSummary | None
    backward: SolverSummary | None
    measured: dict[str, Any] | None = None


@dataclass(frozen=True, repr=False)
class Training(Plotted):
    """A training run that came to its end.

    Attributes
    ----------
    settings : TrainingSettings
    history : tuple of EpochRecord
    reason : str
        Why it ended, as a sentence.
    best_epoch : int or None
        Epoch with the smallest validation loss; its weights are the module's if `patience` was set.
    features : SolverSummary or None
        What the solver did while the features were computed, if they were cached.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.networks import train
    >>> data = nsd.data.load("digits", samples=100, rng=0)
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 64, 100, 10, rng=0)
    >>> result = train(net, data.X, data.y, TrainingSettings(epochs=5, learning_rate=0.1))
    >>> len(result.history), bool(result.history[-1].loss < result.history[0].loss)
    (5, True)
    """

    _drawing = "training"

    settings: TrainingSettings
    history: tuple[EpochRecord, ...]
    reason: str
    best_epoch: int | None
    features: SolverSummary | None

    @property
    def seconds(self) -> float:
        """Time of all epochs."""
        return sum(record.seconds for record in self.history)

    def __str__(self) -> str:
        last = self.history[-1]
        parts = [f"{len(self.history)} epochs in {self.seconds:.3g} s", f"loss {last.loss:.4g}"]
        for name, value in (
            ("accuracy", last.accuracy),
            ("validation loss", last.validation_loss),
            ("validation accuracy", last.validation_accuracy),
        ):
            if value is not None:
                parts.append(f"{name} {value:.4g}")
        return f"{', '.join(parts)}; {self.reason}"

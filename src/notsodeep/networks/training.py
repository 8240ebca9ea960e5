"""One plain training loop, with checkpoints that it can be resumed from to the last bit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.errors import InvalidInput, TrainingDiverged
from notsodeep.networks.checkpoints import (
    Checkpoint,
    checkpoint_lock,
    deferred_interrupt,
    read_checkpoint,
    write_checkpoint,
)
from notsodeep.networks.readout import count_solves
from notsodeep.networks.training_records import (
    EpochRecord,
    SolverSummary,
    Training,
    TrainingSettings,
    summary_from,
)
from notsodeep.networks.training_tasks import (
    Constrained,
    Normalised,
    Task,
    batch_count,
    batches,
    checked_samples,
    count_correct,
    fingerprints,
    make_task,
)
from notsodeep.progress import progress_bar

Measure = Callable[[int], dict[str, Any]]
"""Takes the number of an epoch and returns plain JSON values."""


def train(
    module: nn.Module,
    X: Any,
    y: Any,
    settings: TrainingSettings | None = None,
    *,
    validation: tuple[Any, Any] | None = None,
    measure: Measure | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
) -> Training:
    """Train the parameters of a module that have requires_grad, in place.

    Where the read-out alone is trained, the features are computed once and kept; the steps are
    the same as through the whole network, up to rounding.  A module with bounded weights, see
    `Constrained`, takes them back into their bounds after every step.

    Parameters
    ----------
    module : Module
        Takes rows (n, p) to outputs (n, K).
    X : array_like or Tensor of shape (n, p)
    y : array_like or Tensor
        Class labels 0 … K − 1, shape (n,); or real targets, shape (n, K), for squared error.
    settings : TrainingSettings, optional
    validation : tuple (X, y), optional
        Looked at after every epoch; needed for ``patience``.
    measure : callable, optional
        Called with the number of every epoch that ends, counted from 0, the module being in
        evaluation; what it returns, a JSON object, is kept in the history and in checkpoints.
    checkpoint : path, optional
        Directory for the state of the run.  If it holds one, the run resumes there, and on a
        CPU, with the same number of threads, ends in the same weights to the last bit as one that
        was never stopped.  Ctrl-C writes a checkpoint after the step in progress.
    checkpoint_seconds : float
        Time between checkpoints; one is written at the end in any case.
    progress : bool
        Show a bar on a terminal.

    Returns
    -------
    Training
        Loss, accuracy, validation and solver behaviour per epoch, and why it ended.

    Raises
    ------
    TrainingDiverged
        The loss is not finite.  The module keeps the weights that gave it; an earlier checkpoint
        stays.
    InvalidInput
        Data, targets or settings that do not fit, or a checkpoint of another run.
    DataCorrupted
        A damaged checkpoint.
    LockTimeout
        Another process is writing checkpoints into the same directory.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> X = torch.randn(200, 5, generator=rng)
    >>> net = nn.Linear(5, 2)
    >>> run = train(net, X, (X[:, 0] > 0).long(), TrainingSettings(epochs=20), progress=False)
    >>> run.history[-1].loss < run.history[0].loss
    True
    """
    settings = TrainingSettings() if settings is None else settings
    checks.at_least_zero(checkpoint_seconds, "checkpoint_seconds", "train")
    _matching_validation(settings.patience is not None, validation is not None, "train")
    _known_scales(module, settings, "train")
    samples = checked_samples(module, X, y, settings)
    beside = None if validation is None else checked_samples(module, *validation, settings)
    was_training = module.training
    with contextlib.ExitStack() as stack:
        stack.callback(module.train, was_training)
        if checkpoint is None:
            run = _Run(make_task(module, samples, beside, settings), measure)
            _loop(run, None, progress)
            return run.state.record(settings)
        directory = Path(checkpoint)
        stack.enter_context(checkpoint_lock(directory))
        identity = fingerprints(module, samples, beside, settings)
        stored = read_checkpoint(directory)
        if stored is not None:
            _same_run(stored.facts["run"], identity, directory)
            state = _State.from_dict(stored.facts["state"])
            if state.reason:
                _copy_into(module, _part(stored.tensors, "weights"))
                return state.record(settings)
        run = _Run(make_task(module, samples, beside, settings), measure)
        if stored is not None:
            run.restore(stored)
        _loop(run, _Keeper(directory, checkpoint_seconds, identity), progress)
        return run.state.record(settings)


def _loop(run: _Run, keeper: _Keeper | None, progress: bool) -> None:
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(progress_bar("Training", enabled=progress))
        interrupted = None if keeper is None else stack.enter_context(deferred_interrupt())
        while not run.state.reason:
            run.step()
            advance(run.steps_done, run.steps_in_all)
            if keeper is None or interrupted is None:
                continue
            stop = interrupted()
            keeper.after_step(run, at_once=stop)
            if stop or (run.state.reason and interrupted()):
                raise KeyboardInterrupt


_SUMMARIES = ("forward", "backward", "features")


@dataclass(eq=False)
class _State:
    """Where a run stands between two steps; with the tensors, all that a checkpoint holds."""

    epoch: int = 0
    batch: int = 0
    loss: float = 0.0  # sums over the epoch's samples so far
    correct: int = 0
    samples: int = 0
    seconds: float = 0.0
    forward: SolverSummary | None = None
    backward: SolverSummary | None = None
    history: list[EpochRecord] = field(default_factory=list)
    best_epoch: int | None = None
    best_loss: float = math.inf
    features: SolverSummary | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        return content | {"best_loss": None if math.isinf(self.best_loss) else self.best_loss}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> _State:
        best = content["best_loss"]
        return cls(
            **{
                **content,
                "best_loss": math.inf if best is None else best,
                **{name: summary_from(content[name]) for name in _SUMMARIES},
                "history": [EpochRecord.from_dict(record) for record in content["history"]],
            }
        )

    def record(self, settings: TrainingSettings) -> Training:
        return Training(settings, tuple(self.history), self.reason, self.best_epoch, self.features)


class _Run:
    """The moving parts: state, optimiser, and the weights inside the module."""

    def __init__(self, task: Task, measure: Measure | None) -> None:
        self.task, self.settings, self.measure = task, task.settings, measure
        self.state = _State(features=task.features)
        settings = task.settings
        self._optimiser = _make_optimiser(task)
        self._batches = batches(settings, task.training, 0)
        self._in_epoch = batch_count(settings, len(task.training))
        self._best: dict[str, Tensor] = {}
        # Only whole modules have parts, such as normalisation, that behave otherwise in training.
        self._enter_training()

    @property
    def steps_done(self) -> int:
        return self.state.epoch * self._in_epoch + self.state.batch

    @property
    def steps_in_all(self) -> int:
        return self.settings.epochs * self._in_epoch

    def step(self) -> None:
        """Take one optimiser step; after the last one of an epoch, close the epoch."""
        begin, state, task = time.perf_counter(), self.state, self.task
        indices = torch.as_tensor(next(self._batches), device=task.training.inputs.device)
        targets = task.training.targets[indices]
        for group in self._optimiser.param_groups:
            # A function of the epoch, set at every step: a run that resumes needs no scheduler
            # state.
            group["lr"] = self.settings.rate(state.epoch)
        self._optimiser.zero_grad()
        outputs = task.forward(task.training.inputs[indices])
        loss = task.loss(outputs, targets)
        value = self._finite(float(loss.detach()), "loss")
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        if isinstance(task.module, Constrained):
            # Projected gradient: back onto the bound after every step.
            task.module.constrain()
        state.loss += value * len(targets)
        state.samples += len(targets)
        if task.training.labelled:
            state.correct += count_correct(outputs.detach(), targets)
        if task.whole:
            state.forward, state.backward = count_solves(task.module, state.forward, state.backward)
        state.batch += 1
        state.seconds += time.perf_counter() - begin
        if state.batch == self._in_epoch:
            self._close_epoch()

    def _finite(self, value: float, name: str) -> float:
        if not math.isfinite(value):
            state, rate = self.state, self.settings.rate(self.state.epoch)
            raise TrainingDiverged(
                f"The {name} is {value} in epoch {state.epoch}, step {state.batch} (both counted "
                f"from 0), at learning rate {rate:g}. Use a smaller learning rate, and look for "
                "very large rows in X."
            )
        return value

    def _close_epoch(self) -> None:
        state, task, settings = self.state, self.task, self.settings
        begin = time.perf_counter()
        loss = accuracy = measured = None
        task.module.eval()
        if self.measure is not None:
            measured = self.measure(state.epoch)
        if task.validation is not None:
            loss, accuracy = task.evaluate(task.validation)
            self._finite(loss, "validation loss")
            if loss < state.best_loss:
                state.best_loss, state.best_epoch = loss, state.epoch
                if settings.patience is not None:
                    self._best = {k: v.detach().clone() for k, v in self._weights().items()}
        self._enter_training()
        state.history.append(
            EpochRecord(
                state.epoch,
                settings.rate(state.epoch),
                state.loss / state.samples,
                state.correct / state.samples if task.training.labelled else None,
                loss,
                accuracy,
                state.seconds + time.perf_counter() - begin,
                state.forward,
                state.backward,
                measured,
            )
        )
        state.epoch, state.batch = state.epoch + 1, 0
        state.loss, state.correct, state.samples, state.seconds = 0.0, 0, 0, 0.0
        state.forward = state.backward = None
        self._batches = batches(settings, task.training, state.epoch)
        self._end_if_due()

    def _end_if_due(self) -> None:
        state, patience = self.state, self.settings.patience
        waited = state.epoch - 1 - (-1 if state.best_epoch is None else state.best_epoch)
        if patience is not None and waited >= patience:
            state.reason = f"no smaller validation loss in {patience} epochs"
        elif state.epoch == self.settings.epochs:
            state.reason = f"all {state.epoch} epochs done"
        if state.reason:
            _copy_into(self.task.module, self._best)

    def _enter_training(self) -> None:
        self.task.module.train(self.task.whole)

    def _weights(self) -> dict[str, Tensor]:
        """Return everything in the module that a step may change."""
        weights: dict[str, Tensor] = dict(self.task.parameters)
        return weights | dict(self.task.module.named_buffers()) if self.task.whole else weights

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        found = {f"weights.{name}": tensor for name, tensor in self._weights().items()}
        found |= {f"best.{name}": tensor for name, tensor in self._best.items()}
        for index, entries in self._optimiser.state_dict()["state"].items():
            tensors = {key: value for key, value in entries.items() if value is not None}
            found |= {f"optimiser.{index}.{key}": value for key, value in tensors.items()}
        return found

    def restore(self, stored: Checkpoint) -> None:
        """Go back to a checkpoint of the same run."""
        _copy_into(self.task.module, _part(stored.tensors, "weights"))
        self._best = _part(stored.tensors, "best")
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(stored.tensors, "optimiser").items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
        form = self._optimiser.state_dict()
        self._optimiser.load_state_dict({**form, "state": moments})
        self.state = _State.from_dict(stored.facts["state"])
        whole_epoch = batches(self.settings, self.task.training, self.state.epoch)
        # The order is a function of seed and epoch, so that skipping what was done is all it takes.
        self._batches = islice(whole_epoch, self.state.batch, None)


@dataclass(eq=False)
class _Keeper:
    """Writes checkpoints: from time to time, at the end, and when asked to."""

    directory: Path
    seconds: float
    identity: Mapping[str, Any]
    last: float = field(default_factory=time.monotonic)

    def after_step(self, run: _Run, at_once: bool) -> None:
        due = time.monotonic() - self.last >= self.seconds
        if not (due or at_once or run.state.reason):
            return
        facts = {"run": self.identity, "state": run.state.to_dict()}
        write_checkpoint(self.directory, Checkpoint(run.tensors(), facts))
        self.last = time.monotonic()


def _make_optimiser(task: Task) -> torch.optim.Optimizer:
    settings, module = task.settings, task.module
    rate, decay = settings.learning_rate, settings.weight_decay
    bounded = module.bounded_names if isinstance(module, Constrained) else ()
    scale_free: tuple[str, ...] = ()
    if isinstance(module, Normalised) and settings.scale_free_decay is not None:
        scale_free = module.scale_free_names
    rest = [name for name in task.parameters if name not in (*scale_free, *bounded)]
    groups: list[dict[str, Any]] = [
        {"params": [task.parameters[name] for name in names if name in task.parameters]}
        | {"weight_decay": value}
        for names, value in (
            (rest, decay),
            (scale_free, settings.scale_free_decay),
            # Their norm is bounded already; decay would pull them inside and change what the bound
            # means.
            (bounded, 0.0),
        )
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimiser == "adam":
        return torch.optim.Adam(groups, lr=rate, weight_decay=decay)
    momentum = settings.momentum if settings.optimiser == "momentum" else 0.0
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, weight_decay=decay)


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the tensors of one part of a checkpoint, by their names in it."""
    prefix = f"{part}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


@torch.no_grad()
def _copy_into(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in values.items():
        places[name].copy_(tensor)


def _matching_validation(has_patience: bool, has_validation: bool, owner: str) -> None:
    """Require validation data for early stopping."""
    if has_patience and not has_validation:
        remedy = "Pass validation=(X_validation, y_validation), or leave patience out."
        raise checks.invalid("validation", owner, "be given with patience", None, remedy)


def _known_scales(module: nn.Module, settings: TrainingSettings, owner: str) -> None:
    """Require a module that names its parameters without a scale, if these have a decay."""
    if settings.scale_free_decay is not None and not isinstance(module, Normalised):
        requirement = "be left out: the module has no scale_free_names, which it would be for"
        raise checks.invalid("scale_free_decay", owner, requirement, settings.scale_free_decay)


def _same_run(stored: Mapping[str, Any], asked: Mapping[str, Any], directory: Path) -> None:
    """Require that a checkpoint belongs to the run that resumes from it."""
    settings, wanted = stored["settings"], asked["settings"]
    different = [
        f"{key} = {settings.get(key)!r} there, {wanted.get(key)!r} here"
        for key in sorted({*settings, *wanted})
        if settings.get(key) != wanted.get(key)
    ]
    different += [
        f"other {key}" for key in asked if key != "settings" and stored.get(key) != asked[key]
    ]
    if different:
        raise InvalidInput(
            f"The checkpoint in {directory} belongs to another run: {'; '.join(different)}. "
            "Resume with the same data, module and settings, or choose another directory."
        )

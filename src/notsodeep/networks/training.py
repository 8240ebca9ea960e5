"""One plain training loop, which resumes at the end of an epoch, to the last bit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep._files import lock, read_tensors, sha256_of_array, write_tensors
from notsodeep.errors import InvalidInput, TrainingDiverged
from notsodeep.networks.implicit import SolveRecord
from notsodeep.networks.random import Network
from notsodeep.networks.readout import features_of, tensor_rows, tensor_targets
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted, Record

Optimiser = Literal["sgd", "momentum", "adam"]
Schedule = Literal["constant", "cosine"]

_KIND = "training checkpoint"
_WRITING_SHARE = 0.05  # of the time, at most, goes into checkpoints


@dataclass(frozen=True, repr=False)
class TrainingSettings(Record):
    """How to train.  The defaults are the mixture paper's for a read-out: plain SGD at rate 1.

    Parameters
    ----------
    epochs, batch_size : int
    learning_rate : float
        Of the first epoch.  Adam wants about 0.001 instead of 1.
    optimiser : {"sgd", "momentum", "adam"}
    momentum : float
        In [0, 1); of "momentum" only.
    weight_decay : float
        The gradient gets weight_decay·(weights) added.
    schedule : {"constant", "cosine"}
        The rate of epoch e = 0 … E − 1 is η, or η(1 + cos(πe/E))/2.
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
    seed: int = 0

    def __post_init__(self) -> None:
        owner = "TrainingSettings"
        plain: dict[str, Any] = {
            name: checks.positive_integer(getattr(self, name), name, owner)
            for name in ("epochs", "batch_size")
        }
        plain["learning_rate"] = checks.positive_number(self.learning_rate, "learning_rate", owner)
        plain["momentum"] = checks.share(self.momentum, "momentum", owner)
        plain["weight_decay"] = checks.at_least_zero(self.weight_decay, "weight_decay", owner)
        plain["seed"] = checks.integer_at_least(self.seed, 0, "seed", owner)
        checks.known_name(self.optimiser, get_args(Optimiser), "optimiser")
        checks.known_name(self.schedule, get_args(Schedule), "schedule")
        for name, value in plain.items():  # as Python's own numbers, which have a JSON form
            object.__setattr__(self, name, value)

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * epoch / self.epochs))


@dataclass(frozen=True, repr=False)
class Training(Plotted):
    """A training run that came to its end.

    Every epoch has `loss`, `accuracy` (None without labels) and `seconds`; of networks with a
    solver `solver`, with the keys `mean_steps`, `most_steps`, `largest_residual` and `failures`,
    and `backward`, the same for gradients; and `measured`, what `after_epoch` returned.
    """

    _drawing = "training"

    settings: TrainingSettings
    history: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        last = self.history[-1]
        accuracy = "" if last["accuracy"] is None else f", accuracy {last['accuracy']:.4g}"
        seconds = sum(epoch["seconds"] for epoch in self.history)
        return f"{len(self.history)} epochs in {seconds:.3g} s, loss {last['loss']:.4g}{accuracy}"


def train(
    module: nn.Module,
    X: Any,
    y: Any,
    settings: TrainingSettings | None = None,
    *,
    decays: Mapping[str, float] | None = None,
    after_step: Callable[[], None] | None = None,
    after_epoch: Callable[[int], dict[str, Any]] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> Training:
    """Train the parameters of a module that have requires_grad, in place.

    Minimises −log softmax(f)_y for class labels, and ½‖f − t‖² for real targets.  Where the
    read-out of a `Network` alone is trained, the features are computed once.

    Parameters
    ----------
    module : Module
        Takes rows (n, p) to outputs (n, K).
    X : array_like or Tensor of shape (n, p)
    y : array_like or Tensor
        Class labels 0 … K − 1, shape (n,); or real targets, shape (n, K).
    settings : TrainingSettings, optional
    decays : dict of str to float, optional
        Weight decay of single parameters, by name, in place of that of the settings.
    after_step, after_epoch : callable, optional
        The first is called after every step, for instance to project onto a constraint; the second
        after every epoch, with its number, and returns a JSON object for the history.
    checkpoint : path, optional
        File for the state of the run, written at ends of epochs.  If it holds one of the same
        run (data, settings, architecture, solvers, fixed weights), the run resumes there, and on
        a CPU with the same number of threads ends in the same weights to the last bit.
    progress : bool
        Show a bar on a terminal.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> X = torch.randn(200, 5, generator=rng)
    >>> net = nn.Linear(5, 2)
    >>> run = train(net, X, (X[:, 0] > 0).long(), TrainingSettings(epochs=20), progress=False)
    >>> run.history[-1]["loss"] < run.history[0]["loss"]
    True
    """
    settings = settings or TrainingSettings()
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise InvalidInput("module must have a parameter with requires_grad, got none.")
    unknown = sorted({*(decays or {})} - {*trained})
    if unknown:
        raise InvalidInput(f"decays must name trained parameters, got {', '.join(unknown)}.")
    rows = tensor_rows(X, module, "train")
    targets = tensor_targets(y, len(rows), _num_outputs(module, rows), rows, "train")
    run = _Run(module, trained, settings, decays or {}, rows, targets)
    was_training = module.training
    with contextlib.ExitStack() as stack:
        stack.callback(module.train, was_training)
        advance = stack.enter_context(progress_bar("Training", enabled=progress))
        path, identity = None, {}
        if checkpoint is not None:
            path, identity = Path(checkpoint), run.identity()
            stack.enter_context(lock(path.with_name(f".{path.name}.lock")))
            run.resume(path, identity)
        if len(run.history) < settings.epochs:
            run.keep_features()
        written, cost = -math.inf, 0.0
        for epoch in range(len(run.history), settings.epochs):
            module.train(not run.cached)
            record = run.epoch(epoch, after_step or (lambda: None))
            if after_epoch is not None:
                module.eval()
                record["measured"] = after_epoch(epoch)
            run.history.append(record)
            begin = time.monotonic()
            due = (begin - written) * _WRITING_SHARE >= cost or epoch + 1 == settings.epochs
            if path is not None and due:
                facts = {"run": identity, "history": run.history}
                write_tensors(path, run.arrays(), {"kind": _KIND, **facts})
                written = time.monotonic()
                cost = written - begin
            advance(epoch + 1, settings.epochs)
    return Training(settings, tuple(run.history))


@torch.no_grad()
def _num_outputs(module: nn.Module, rows: Tensor) -> int:
    if isinstance(module, Network):
        return module.out_features
    was_training = module.training
    try:
        return int(module.eval()(rows[:1]).shape[-1])
    finally:
        module.train(was_training)


class _Run:
    """The moving parts of a run: weights inside the module, optimiser, history."""

    def __init__(
        self,
        module: nn.Module,
        trained: dict[str, nn.Parameter],
        settings: TrainingSettings,
        decays: Mapping[str, float],
        rows: Tensor,
        targets: Tensor,
    ) -> None:
        self.module, self.trained, self.settings, self.decays = module, trained, settings, decays
        self.inputs, self.targets = rows, targets
        self.history: list[dict[str, Any]] = []
        self.cached = isinstance(module, Network) and {*trained} <= {"readout", "readout_bias"}
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in trained.items():
            decay = float(decays.get(name, settings.weight_decay))
            groups.setdefault(decay, []).append(parameter)
        parts = [{"params": each, "weight_decay": decay} for decay, each in groups.items()]
        self.optimiser: torch.optim.Optimizer
        if settings.optimiser == "adam":
            self.optimiser = torch.optim.Adam(parts, lr=settings.learning_rate)
        else:
            momentum = settings.momentum if settings.optimiser == "momentum" else 0.0
            self.optimiser = torch.optim.SGD(parts, settings.learning_rate, momentum=momentum)

    def keep_features(self) -> None:
        """Take the features for inputs where the read-out alone is trained."""
        if self.cached:
            assert isinstance(self.module, Network)
            self.inputs = features_of(self.module, self.inputs)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return f for inputs, or for features."""
        if not self.cached:
            result: Tensor = self.module(inputs)
            return result
        assert isinstance(self.module, Network)
        return nn.functional.linear(inputs, self.module.readout, self.module.readout_bias)

    def epoch(self, epoch: int, after_step: Callable[[], None]) -> dict[str, Any]:
        """Go through the data once, in an order that is a function of (seed, epoch)."""
        begin, settings, count = time.perf_counter(), self.settings, len(self.inputs)
        order = torch.from_numpy(np.random.default_rng([settings.seed, epoch]).permutation(count))
        labelled = not self.targets.is_floating_point()
        total, correct = 0.0, 0
        solves: list[SolveRecord] = []
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate(epoch)
        for step, batch in enumerate(
            torch.split(order.to(self.inputs.device), settings.batch_size)
        ):
            targets = self.targets[batch]
            self.optimiser.zero_grad()
            outputs = self.outputs(self.inputs[batch])
            if labelled:
                loss = nn.functional.cross_entropy(outputs, targets)
                correct += int((outputs.detach().argmax(dim=1) == targets).sum())
            else:
                loss = 0.5 * (outputs - targets).square().sum(dim=1).mean()
            if not math.isfinite(float(loss.detach())):
                raise TrainingDiverged(
                    f"The loss is {float(loss.detach())} in epoch {epoch}, step {step} (counted "
                    f"from 0), at learning rate {settings.rate(epoch):g}. Use a smaller learning "
                    "rate, and look for very large rows in X."
                )
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
            after_step()
            total += float(loss.detach()) * len(targets)
            record = None if self.cached else getattr(self.module, "record", None)
            solves += [] if record is None else [record]
        return {
            "epoch": epoch,
            "learning_rate": settings.rate(epoch),
            "loss": total / count,
            "accuracy": correct / count if labelled else None,
            "seconds": time.perf_counter() - begin,
            "solver": _summary(solves),
            "backward": _summary([each for solve in solves for each in solve.derivatives]),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a step changes: the arrays of a checkpoint."""
        weights: dict[str, Tensor] = dict(self.trained)
        weights |= {} if self.cached else dict(self.module.named_buffers())
        every = {f"weights.{name}": tensor for name, tensor in weights.items()}
        for index, entries in self.optimiser.state_dict()["state"].items():
            for key, value in entries.items():
                if value is not None:
                    every[f"optimiser.{index}.{key}"] = value
        return {name: tensor.detach().cpu().numpy() for name, tensor in every.items()}

    @torch.no_grad()
    def resume(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Go back to the state in a file, if there is one; it must be of the same run."""
        if not path.exists():
            return
        arrays, facts = read_tensors(path)
        if facts.get("kind") != _KIND:
            raise InvalidInput(f"checkpoint must be the state of a training, got {path}.")
        differing = [key for key in identity if facts["run"].get(key) != identity[key]]
        if differing:
            raise InvalidInput(
                f"checkpoint must be of the same run, got other {', '.join(differing)} in "
                f"{path}. Choose another file."
            )
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        moments: dict[int, dict[str, Tensor]] = {}
        for name, array in arrays.items():
            tensor = torch.from_numpy(array)
            part, _, rest = name.partition(".")
            if part == "weights":
                state[rest].copy_(tensor)
            else:
                index, _, key = rest.partition(".")
                moments.setdefault(int(index), {})[key] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        self.history = list(facts["history"])

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with to be resumed."""
        # Buffers of a module that is trained as a whole may change; they are part of the state.
        changing = {*self.trained} | (
            set() if self.cached else {name for name, _ in self.module.named_buffers()}
        )
        fixed = {k: v for k, v in self.module.state_dict().items() if k not in changing}
        solvers = {
            f"{name}.{option}": repr(getattr(part, option))
            for name, part in self.module.named_modules()
            for option in ("solver", "backward")
            if not callable(getattr(part, option, print))
        }
        return {
            "settings": self.settings.to_dict(),
            "decays": dict(self.decays),
            "data": _digest({"inputs": self.inputs, "targets": self.targets}),
            "architecture": repr(self.module),
            "solvers": solvers,
            "fixed weights": _digest(fixed),
            "trained weights": {name: list(p.shape) for name, p in self.trained.items()},
        }


def _summary(solves: list[SolveRecord]) -> dict[str, Any] | None:
    if not solves:
        return None
    residual = max(solve.residual for solve in solves)
    return {
        "mean_steps": sum(solve.steps for solve in solves) / len(solves),
        "most_steps": max(solve.steps for solve in solves),
        "largest_residual": residual if math.isfinite(residual) else None,
        "failures": sum(not solve.converged for solve in solves),
    }


def _digest(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    found = {}
    for name, tensor in sorted(tensors.items()):
        values = sha256_of_array(tensor.detach().cpu().numpy())
        found[name] = f"{tensor.dtype} {list(tensor.shape)} {values}"
    return found

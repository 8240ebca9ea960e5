"""What a training run optimises: parameters, inputs, targets, loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.arrays import IntArray
from notsodeep.networks.modules import FeatureNetwork
from notsodeep.networks.persistence import sha256_of_tensors
from notsodeep.networks.readout import (
    CHUNK,
    features_fit,
    features_of,
    one_hot,
    tensor_rows,
    tensor_targets,
)
from notsodeep.networks.training_records import SolverSummary, TrainingSettings

_OWNER = "train"
_STATE_FORMAT = 1  # of what a checkpoint holds


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs (n, ·) with their class labels (n,) or real targets (n, K)."""

    inputs: Tensor
    targets: Tensor

    @property
    def labelled(self) -> bool:
        """Whether the targets are class labels."""
        return not self.targets.is_floating_point()

    def __len__(self) -> int:
        return len(self.inputs)


@runtime_checkable
class Constrained(Protocol):
    """A module some of whose parameters have bounds of their own, in place of weight decay.

    Attributes
    ----------
    bounded_names : tuple of str
        Names of these parameters.
    """

    bounded_names: tuple[str, ...]

    def constrain(self) -> None:
        """Take them back into their bounds; called after every step."""


@runtime_checkable
class Normalised(Protocol):
    """A module some of whose parameters have no scale, as a normalisation that follows undoes it.

    Weight decay cannot make such a layer simpler.  It balances the growth that steps bring, and so
    sets the angle of a step, about √(2 · rate · decay) at equilibrium.

    Attributes
    ----------
    scale_free_names : tuple of str
        Names of these parameters.
    """

    scale_free_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Task:
    """A map from inputs to outputs with a loss.

    Attributes
    ----------
    module : Module
    settings : TrainingSettings
    forward : callable
        The module, or its read-out alone where the inputs are its features.
    parameters : dict of str to Parameter
        Those that are trained.
    training : Samples
    validation : Samples or None
    features : SolverSummary or None
        What the solver did if the inputs are features that were solved for.
    whole : bool
        Whether a step goes through the whole module.
    """

    module: nn.Module
    settings: TrainingSettings
    forward: Callable[[Tensor], Tensor]
    parameters: dict[str, nn.Parameter]
    training: Samples
    validation: Samples | None
    features: SolverSummary | None
    whole: bool

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over the samples of a batch."""
        if self.settings.loss == "cross_entropy":
            return nn.functional.cross_entropy(outputs, targets)
        difference = outputs - one_hot(targets, outputs.shape[1], outputs.dtype)
        return 0.5 * difference.square().sum(dim=1).mean()

    @torch.no_grad()
    def evaluate(self, samples: Samples) -> tuple[float, float | None]:
        """Mean loss and accuracy over all samples, at the weights as they are now."""
        total, correct = 0.0, 0
        for start in range(0, len(samples), CHUNK):
            targets = samples.targets[start : start + CHUNK]
            outputs = self.forward(samples.inputs[start : start + CHUNK])
            total += float(self.loss(outputs, targets)) * len(targets)
            if samples.labelled:
                correct += count_correct(outputs, targets)
        accuracy = correct / len(samples) if samples.labelled else None
        return total / len(samples), accuracy


def count_correct(outputs: Tensor, labels: Tensor) -> int:
    """Count the samples whose largest output is their class."""
    return int((outputs.argmax(dim=1) == labels).sum())


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters with requires_grad, by name."""
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    _something_to_train(found, _OWNER)
    return found


def keeps_features(module: nn.Module, settings: TrainingSettings) -> TypeGuard[FeatureNetwork]:
    """Whether the read-out alone is trained, on features that are computed once."""
    readout_alone = {*trained_parameters(module)} <= {"readout", "readout_bias"}
    return settings.cache_features and readout_alone and isinstance(module, FeatureNetwork)


def checked_samples(
    module: nn.Module, X: Any, y: Any, settings: TrainingSettings, owner: str = _OWNER
) -> Samples:
    """Check data against a module and its loss, before any work."""
    rows = tensor_rows(X, module, owner)
    targets, labelled = tensor_targets(y, len(rows), _num_outputs(module, rows), rows, owner)
    if settings.loss == "cross_entropy":
        _class_targets(labelled, "cross entropy", owner)
    return Samples(rows, targets)


@torch.no_grad()
def _num_outputs(module: nn.Module, rows: Tensor) -> int:
    if isinstance(module, FeatureNetwork):
        return module.out_features
    was_training = module.training
    try:
        return int(module.eval()(rows[:1]).shape[-1])
    finally:
        module.train(was_training)


def make_task(
    module: nn.Module, training: Samples, validation: Samples | None, settings: TrainingSettings
) -> Task:
    """Compute the features now if they stay the same; otherwise go through the module later."""
    parameters = trained_parameters(module)
    if not keeps_features(module, settings):
        return Task(module, settings, module, parameters, training, validation, None, True)
    count = len(training) + (0 if validation is None else len(validation))
    size = training.inputs.element_size()
    wide = module.readout.shape[1]
    features_fit(count * wide * size, count, wide)
    module.eval()  # in which features that are not found are an error
    features, summary = features_of(module, training.inputs)
    kept = None
    if validation is not None:
        kept = Samples(features_of(module, validation.inputs)[0], validation.targets)

    def read_out(rows: Tensor) -> Tensor:
        return nn.functional.linear(rows, module.readout, module.readout_bias)

    samples = Samples(features, training.targets)
    return Task(module, settings, read_out, parameters, samples, kept, summary, False)


def fingerprints(
    module: nn.Module, training: Samples, validation: Samples | None, settings: TrainingSettings
) -> dict[str, Any]:
    """Return what a checkpoint must agree with to be resumed: settings, digests of the rest."""
    parameters = trained_parameters(module)
    frozen = {k: v for k, v in module.state_dict().items() if k not in parameters}
    if not keeps_features(module, settings):
        # Buffers may change while a whole module is trained; they are part of the state.
        frozen = {k: v for k, v in frozen.items() if k not in dict(module.named_buffers())}
    given = {"inputs": training.inputs, "targets": training.targets}
    if validation is not None:
        given |= {"validation": validation.inputs, "validation targets": validation.targets}
    return {
        "format": _STATE_FORMAT,
        "settings": settings.to_dict(),
        "data": sha256_of_tensors(given),
        "architecture": repr(module),
        "fixed weights": sha256_of_tensors(frozen),
        "trained weights": {name: list(parameter.shape) for name, parameter in parameters.items()},
    }


def batch_count(settings: TrainingSettings, num_samples: int) -> int:
    """Batches in an epoch."""
    return math.ceil(num_samples / settings.batch_size)


def batches(settings: TrainingSettings, samples: Samples, epoch: int) -> Iterator[IntArray]:
    """Yield the index arrays of an epoch, a function of (settings, labels, epoch) alone."""
    order = np.random.default_rng([settings.seed, epoch]).permutation(len(samples))
    for start in range(0, len(order), settings.batch_size):
        yield order[start : start + settings.batch_size]


def _something_to_train(names: Collection[str], owner: str) -> None:
    """Require at least one parameter with requires_grad."""
    if not names:
        remedy = "Build it with trainable='readout' or 'all'."
        raise checks.invalid("module", owner, "have a parameter with requires_grad", "none", remedy)


def _class_targets(are_labels: bool, needed_for: str, owner: str) -> None:
    """Require class labels where real targets make no sense."""
    if not are_labels:
        remedy = "Use loss='squared_error' for real targets."
        raise checks.invalid(
            "y", owner, f"hold class labels for {needed_for}", "real numbers", remedy
        )

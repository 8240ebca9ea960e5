"""What is trained to see neural collapse: data, backbone, head, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from experiments.collapse.backbones import FeatureScale
from experiments.collapse.head_names import (
    HEAD_ACTIVATIONS,
    HEAD_KINDS,
    HEAD_SOLVERS,
    HeadActivation,
    HeadKind,
    HeadSolver,
)
from notsodeep import checks
from notsodeep.networks.training import Schedule, TrainingSettings

Backbone = Literal["mlp", "resnet18"]
Classifier = Literal["learned", "fixed_etf"]


@dataclass(frozen=True)
class CollapseSettings:
    """One network with one head.  Two that differ in the head alone start from the same backbone.

    Parameters
    ----------
    head : str
        One of `experiments.collapse.head_names.HEAD_KINDS`; see `experiments.collapse.heads`.
    data : str
        A data set, as `notsodeep.data.load` knows it.
    samples, test_samples : int, optional
        Sizes of the balanced training and test parts; all there is if left out.
    num_majority, ratio : int and float, optional
        K_A and R: classes from K_A on keep one of R training samples.  Balanced if left out.
    backbone : {"mlp", "resnet18"}
        `Perceptron` with two layers of `width`, or `ResNet18` with `width` channels at first.
    width : int
    first_width : int, optional
        Of the perceptron's first layer; `width` if left out.
    feature_scale : {"learned", "fixed"}
        Whether the perceptron's features have scales that are learned, with weight decay, or not.
    spectral_budget : float
        s = ρ in (0, 1).
    truncated_steps : int
        T of the truncated DEQ.
    activation : {"identity", "tanh", "relu"}
        φ of the head.
    solver : {"paper", "strict"}
        Of a DEQ head: to a relative residual of 1e-3, or of 1e-6.
    classifier : {"learned", "fixed_etf"}
        Linear without bias, as in the layer-peeled model; or a fixed frame.
    epochs, batch_size, learning_rate, weight_decay, schedule
        Of SGD with momentum 0.9.  The head's matrix has its norm budget and no weight decay.
    scale_free_decay : float, optional
        Weight decay of the parameters of the backbone whose scale does not matter; `weight_decay`
        if left out.
    measure_every : int
        Epochs between measurements; the last epoch is always measured.
    seed : int
        Decides data, weights and the order of samples.
    """

    head: HeadKind
    data: str = "digits"
    samples: int | None = None
    test_samples: int | None = None
    num_majority: int | None = None
    ratio: float | None = None
    backbone: Backbone = "mlp"
    width: int = 64
    spectral_budget: float = 0.5
    truncated_steps: int = 3
    activation: HeadActivation = "identity"
    solver: HeadSolver = "paper"
    classifier: Classifier = "learned"
    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 0.05
    weight_decay: float = 5e-3
    schedule: Schedule = "cosine"
    measure_every: int = 1
    seed: int = 0
    first_width: int | None = None
    scale_free_decay: float | None = None
    feature_scale: FeatureScale = "learned"

    def __post_init__(self) -> None:
        owner = "CollapseSettings"
        checks.known_name(self.head, HEAD_KINDS, "head")
        checks.known_name(self.activation, HEAD_ACTIVATIONS, "activation")
        checks.known_name(self.solver, HEAD_SOLVERS, "solver")
        checks.known_name(self.backbone, get_args(Backbone), "backbone")
        checks.known_name(self.classifier, get_args(Classifier), "classifier")
        checks.known_name(self.feature_scale, get_args(FeatureScale), "feature_scale")
        for name in ("width", "truncated_steps", "measure_every"):
            checks.positive_integer(getattr(self, name), name, owner)
        for name in ("samples", "test_samples", "first_width"):
            if getattr(self, name) is not None:
                checks.positive_integer(getattr(self, name), name, owner)
        _contracting_budget(self.spectral_budget, owner)
        _complete_imbalance(self.num_majority, self.ratio, owner)
        if self.backbone != "mlp":
            _perceptron_only(self.first_width, None, "first_width", owner)
            _perceptron_only(self.feature_scale, "learned", "feature_scale", owner)
        self.training()

    def training(self) -> TrainingSettings:
        """Return what of the settings concerns the training loop."""
        return TrainingSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            optimiser="momentum",
            momentum=0.9,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            seed=self.seed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form, without what has its default and came later than stored runs.

        The name and the seed of a run are those of its form.
        """
        content = asdict(self)
        for name in ("first_width", "scale_free_decay", "feature_scale"):
            if content[name] == getattr(type(self), name):
                del content[name]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CollapseSettings:
        """Rebuild settings from their form; every key must be known."""
        known = [field.name for field in fields(cls)]
        for key in content:
            checks.known_name(key, known, "key of CollapseSettings")
        return cls(**content)


def _contracting_budget(value: object, owner: str) -> float:
    """Require 0 < ρ < 1, which is a norm budget for every head."""
    number = checks.finite_number(value, "spectral_budget", owner)
    if not 0.0 < number < 1.0:
        remedy = "It bounds the matrix of every head, and z = A z + h must contract."
        raise checks.invalid(
            "spectral_budget", owner, "satisfy 0 < spectral_budget < 1", number, remedy
        )
    return number


def _complete_imbalance(num_majority: object, ratio: object, owner: str) -> None:
    """Require both the number of majority classes and the ratio, or neither."""
    if (num_majority is None) != (ratio is None):
        names = ("num_majority", "ratio")
        missing, given = names if num_majority is None else reversed(names)
        remedy = "Leave out both for balanced classes."
        raise checks.invalid(missing, owner, f"be given with {given}", None, remedy)


def _perceptron_only(value: object, default: object, name: str, owner: str) -> None:
    """Require that what only a perceptron has is left out for other backbones."""
    if value != default:
        raise checks.invalid(name, owner, 'be left out: only the backbone "mlp" has it', value)

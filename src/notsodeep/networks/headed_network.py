"""A classifier on a head on a backbone."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn
from torch.nn.utils import skip_init

from notsodeep import checks
from notsodeep.networks.backbones import Perceptron, ResNet18, draw_weights
from notsodeep.networks.fixed_etf import FixedETF
from notsodeep.networks.heads import BoundedHead
from notsodeep.networks.solve_records import ImplicitRecord


class HeadedNetwork(nn.Module):
    """f(x) = W z + b with z = G h, h = backbone(x).

    Parameters
    ----------
    backbone : Perceptron or ResNet18
        Rows (n, p) to features h (n, d).
    head : BoundedHead
        h to z, both (n, d).
    classifier : Linear or FixedETF
        z to logits (n, K).

    Attributes
    ----------
    bounded_names : tuple of str
        The head's matrix: `train` takes it back into its ball after every step, which stands in
        place of weight decay.
    """

    bounded_names = ("head.matrix",)

    def __init__(
        self,
        backbone: Perceptron | ResNet18,
        head: BoundedHead,
        classifier: nn.Linear | FixedETF,
    ) -> None:
        super().__init__()
        _fitting_widths(
            backbone.num_features, head.num_features, classifier.in_features, "HeadedNetwork"
        )
        self.backbone = backbone
        self.head = head
        self.classifier = classifier

    @property
    def last_record(self) -> ImplicitRecord | None:
        """The solves of the last pass; None if the head has no solver."""
        record: ImplicitRecord | None = getattr(self.head, "last_record", None)
        return record

    def constrain(self) -> None:
        """Take the head's matrix back into its norm budget."""
        self.head.constrain()

    def features(self, X: Tensor) -> Tensor:
        """Return z, what the classifier is applied to, shape (n, d)."""
        z: Tensor = self.head(self.backbone(X))
        return z

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        logits: Tensor = self.classifier(self.features(X))
        return logits


def linear_classifier(
    num_features: int, num_classes: int, rng: int | np.random.Generator
) -> nn.Linear:
    """Make a classifier W z without a bias, as in the layer-peeled model, with random rows."""
    classifier: nn.Linear = skip_init(nn.Linear, num_features, num_classes, bias=False)  # type: ignore[no-untyped-call]
    draw_weights(classifier, checks.random_generator(rng, "linear_classifier"))
    return classifier


def _fitting_widths(backbone: int, head: int, classifier: int, owner: str) -> None:
    """Require that each part takes as many features as the part before it gives."""
    if not backbone == head == classifier:
        got = f"{backbone} of the backbone, {head} of the head, {classifier} of the classifier"
        raise checks.refusal("num_features", owner, "be the same for all three parts", got)

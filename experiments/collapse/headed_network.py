"""A network with a head: backbone, head, and a classifier, learned or fixed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from experiments.collapse.backbones import Perceptron, ResNet18, draw_weights
from experiments.collapse.heads import BoundedHead
from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.networks.implicit import SolveRecord


class FixedETF(nn.Module):
    """Logits scale·(E z) with the K rows of E fixed.

    Parameters
    ----------
    frame : array-like of shape (K, d)
        A simplex ETF, as `notsodeep.collapse.geometries` draws them.
    scale : float
        Length of the rows of the classifier.
    dtype, device
        Of the frame; it follows ``module.to(…)`` as parameters do.

    Attributes
    ----------
    weight : buffer of shape (K, d)
        scale·E; part of the ``state_dict``, but no parameter.
    bias : None
    in_features, out_features : int
        d and K.

    Examples
    --------
    >>> from notsodeep.collapse import simplex_etf
    >>> classifier = FixedETF(simplex_etf(4, 16, rng=0), scale=2.0)
    >>> classifier(torch.ones(3, 16)).shape, len(list(classifier.parameters()))
    (torch.Size([3, 4]), 0)
    """

    weight: Tensor
    bias: None = None

    def __init__(
        self,
        frame: object,
        scale: float = 1.0,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        rows = _simplex_frame(frame, "FixedETF")
        self.scale = checks.positive_number(scale, "scale", "FixedETF")
        self.out_features, self.in_features = rows.shape
        self.register_buffer("weight", torch.from_numpy(self.scale * rows).to(device, dtype))

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        return nn.functional.linear(z, self.weight)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, scale={self.scale:g}"


def _simplex_frame(frame: object, owner: str) -> FloatArray:
    """Require the rows of a simplex ETF: unit vectors whose cosines are all −1/(K − 1)."""
    rows = checks.samples(frame, "frame", owner)
    K = len(rows)
    gap = np.inf
    if K > 1:
        gap = float(np.abs(rows @ rows.T - (K * np.eye(K) - 1.0) / (K - 1.0)).max())
    if not gap < 1e-6:
        remedy = "notsodeep.collapse.simplex_etf(K, d, rng) makes one."
        got = f"a Gram matrix off by {gap:.2g}" if K > 1 else "one row"
        raise checks.invalid("frame", owner, "have the rows of a simplex ETF", got, remedy)
    return rows


class HeadedNetwork(nn.Module):
    """f(x) = W z with z = head(h), h = backbone(x).

    Parameters
    ----------
    backbone : Perceptron or ResNet18
        Rows (n, p) to features h (n, d).
    head : BoundedHead
        h to z, both (n, d).
    classifier : Linear or FixedETF
        z to logits (n, K).

    The head's matrix is to be taken back into its ball after every step, which stands in place of
    weight decay.
    """

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
    def scale_free_names(self) -> tuple[str, ...]:
        """Parameters of the backbone whose scale a normalisation undoes."""
        return tuple(f"backbone.{name}" for name in self.backbone.scale_free_names)

    def decays(self, scale_free_decay: float | None) -> dict[str, float]:
        """Return the weight decays of single parameters: that of others is in the settings.

        The norm of the head's matrix is bounded already; decay would pull it inside, and change
        what the bound means.
        """
        decays = {"head.matrix": 0.0}
        if scale_free_decay is not None:
            decays |= dict.fromkeys(self.scale_free_names, scale_free_decay)
        return decays

    @property
    def record(self) -> SolveRecord | None:
        """The solve of the last pass; None if the head has no solver."""
        record: SolveRecord | None = getattr(self.head, "record", None)
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
        raise checks.invalid("num_features", owner, "be the same for all three parts", got)

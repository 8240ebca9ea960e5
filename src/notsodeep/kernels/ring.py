"""Every model as a ring of layers: the one place that looks at model classes.

Layer l reads the covariance V of what the layer before passes on and makes of it
G = a_i a_j (w V + u x·y + b), where a normalises the pre-activations; it passes on
c_i c_j (E[φφ] − m_i m_j), where c and m normalise the features.  The first layer reads the last; in
an explicit network its weight is zero, so that the ring is not closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from notsodeep.activations import Activation
from notsodeep.errors import NotConverged
from notsodeep.models import (
    Convention,
    ConvolutionalModel,
    DeepEquilibrium,
    Dense,
    ExplicitNetwork,
    KernelModel,
    MonotoneEquilibrium,
)


class Hinge(NamedTuple):
    """φ(x) = right·x for x > 0, left·x for x < 0, less a constant.

    Pairs have closed forms in both = right² + left² and cross = 2·right·left.
    """

    both: float
    cross: float
    constant: float


def hinge_of(activation: Activation) -> Hinge | None:
    """Return the hinge that an activation is, or None."""
    if activation.hinge is None or not activation.kinks:
        return None
    left, right = activation.hinge
    return Hinge(right**2 + left**2, 2.0 * right * left, activation.shift)


@dataclass(frozen=True)
class Ring:
    """Layers of a model, and of which of them the kernel is.

    Attributes
    ----------
    name : str
        What messages call the model.
    layers : tuple of Dense
        Or of `Convolution`.
    feature : bool
        Whether the kernels are those of what the last layer passes on, or of what it reads.
    extra : float
        What the tangent kernel counts of the weight once more: weights that enter twice.
    """

    name: str
    layers: tuple[Dense, ...]
    feature: bool
    extra: float = 0.0

    @property
    def closed(self) -> bool:
        """Whether the first layer reads the last."""
        return self.layers[0].weight > 0.0

    @property
    def closed_form(self) -> bool:
        """Whether pairs have closed forms: every activation is linear or a hinge."""
        return all(layer.activation.uncentred.homogeneous for layer in self.layers)

    @property
    def homogeneous(self) -> bool:
        """Whether kernels scale with ‖x‖‖y‖."""
        return all(
            layer.activation.homogeneous and layer.bias == 0.0 and not normalises(layer)
            for layer in self.layers
        )

    def unstable(self, radius: float, where: str) -> NotConverged:
        """Build the error of a model without a stable equilibrium."""
        return NotConverged(
            f"The {self.name} has no stable equilibrium {where}, and so no kernel: the product of "
            f"w E φ′² over its layers reaches {radius:.4g} and must stay below 1. Use smaller "
            "weights."
        )

    def unsolved(self, what: str, residual: float) -> NotConverged:
        """Build the error of an equation that was not solved."""
        return NotConverged(
            f"{what} of the {self.name} did not converge: the relative residual is "
            f"{residual:.3g}. Use smaller weights."
        )


def normalises(layer: Dense) -> bool:
    """Whether a layer normalises its pre-activations or features."""
    return layer.normalise is not None


def ring_of(model: KernelModel, convention: Convention) -> Ring:
    """Return the ring of a model.

    A unit of a monotone network reacts on itself: its activation is what that makes of φ, and the
    symmetric part of its weights, r², is trained in two places.
    """
    feature = convention == "feature"
    if isinstance(model, ExplicitNetwork):
        first, *others = model.activations
        chain = (Dense(first, 0.0, inject=1.0), *(Dense(phi, 1.0) for phi in others))
        return Ring(str(model), chain, feature=True)
    if isinstance(model, MonotoneEquilibrium):
        response = model.response
        again = response.coupling**2
        weight = 2.0 * model.skew + again
        layer = Dense(response.activation, weight, inject=model.inject, bias=model.bias)
        return Ring(str(model), (layer,), feature, again)
    if isinstance(model, ConvolutionalModel):
        explicit = model.cell[0].weight == 0.0
        return Ring(str(model), model.cell, feature or explicit)
    assert isinstance(model, DeepEquilibrium)
    return Ring(str(model), model.cell, feature)

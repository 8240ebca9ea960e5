"""The explicit network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from notsodeep import checks
from notsodeep.activations import Activation, as_activation, centre
from notsodeep.models.equilibrium import require_varying
from notsodeep.records import Record


@dataclass(frozen=True, init=False, repr=False)
class ExplicitNetwork(Record):
    """A fully connected network x_l = σ_l(W_l x_{l−1})/√m_l, l = 1 … L.

    The W_l have i.i.d. entries of mean 0 and variance 1; widths are not part of the description.

    Parameters
    ----------
    activations : sequence of (str or Activation)
        σ_1, …, σ_L: one for each hidden layer.

    Examples
    --------
    >>> ExplicitNetwork(["relu", "tanh"]).depth
    2
    """

    _derived: ClassVar[tuple[str, ...]] = ("kind",)
    kind: ClassVar[str] = "explicit_network"

    activations: tuple[Activation, ...]

    def __init__(self, activations: Sequence[str | Activation]) -> None:
        layers = checked_activations(activations, "ExplicitNetwork")
        object.__setattr__(self, "activations", layers)

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return len(self.activations)

    def scales(self, tau0: float) -> tuple[float, ...]:
        """Return (τ_0, …, τ_L), where τ_l² = E σ_l²(τ_{l−1} ξ): the layers' root mean squares."""
        scales = [checks.data_scale(tau0, "tau0", "ExplicitNetwork")]
        for activation in self.activations:
            scales.append(math.sqrt(activation.moments(scales[-1]).square))
        return tuple(scales)

    def centred(self, tau0: float) -> ExplicitNetwork:
        """Return the same network with every σ_l centred at τ_{l−1}, for data of scale tau0."""
        scale = checks.data_scale(tau0, "tau0", "ExplicitNetwork.centred")
        layers = []
        for activation in self.activations:
            require_varying(activation, scale, "ExplicitNetwork.centred")
            layers.append(centre(activation, scale))
            scale = math.sqrt(layers[-1].moments(scale).square)
        return ExplicitNetwork(layers)

    def __str__(self) -> str:
        return f"network({', '.join(map(str, self.activations))})"

    def __repr__(self) -> str:
        return f"ExplicitNetwork(activations={self.activations!r})"


def checked_activations(
    activations: Sequence[str | Activation], owner: str
) -> tuple[Activation, ...]:
    """Require a sequence with one activation for each hidden layer, and at least one."""
    single = isinstance(activations, str | Activation) or not isinstance(activations, Sequence)
    if single or not activations:
        requirement = "be a list with one activation for each hidden layer, at least one"
        remedy = f"For one hidden layer write {owner}(['relu'])."
        raise checks.invalid("activations", owner, requirement, repr(activations), remedy)
    return tuple(map(as_activation, activations))

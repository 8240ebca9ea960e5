"""The explicit network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from notsodeep import checks
from notsodeep.activations import Activation, as_activation, centre, from_dict
from notsodeep.models.varying_activations import require_varying


@dataclass(frozen=True, init=False)
class ExplicitNetwork:
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

    activations: tuple[Activation, ...]

    def __init__(self, activations: Sequence[str | Activation]) -> None:
        if isinstance(activations, str | Activation) or not isinstance(activations, Sequence):
            requirement = "be a list with one activation for each hidden layer"
            remedy = "For one hidden layer write ExplicitNetwork(['relu'])."
            got = repr(activations)
            raise checks.invalid("activations", "ExplicitNetwork", requirement, got, remedy)
        if not activations:
            raise checks.invalid(
                "activations", "ExplicitNetwork", "have at least one entry", "none"
            )
        object.__setattr__(self, "activations", tuple(map(as_activation, activations)))

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
        """Return the same network with every σ_l centred at τ_{l−1}, for data of scale tau0.

        Raises
        ------
        ConstantActivation
            Some σ_l is constant, so that nothing would be left of it.
        """
        scale = checks.data_scale(tau0, "tau0", "ExplicitNetwork.centred")
        layers = []
        for activation in self.activations:
            require_varying(activation, scale, "ExplicitNetwork.centred")
            layers.append(centre(activation, scale))
            scale = math.sqrt(layers[-1].moments(scale).square)
        return ExplicitNetwork(layers)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `from_dict` turns it back."""
        return {"kind": "explicit_network", "activations": [a.to_dict() for a in self.activations]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExplicitNetwork:
        """Turn the form made by `to_dict` back into a network."""
        checks.stored_form(data, "explicit_network", {"activations"})
        return cls([from_dict(a) for a in data["activations"]])

    def __str__(self) -> str:
        return f"network({', '.join(map(str, self.activations))})"

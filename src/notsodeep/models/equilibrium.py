"""The deep equilibrium model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.activations import Activation, Centred, as_activation, centre, from_dict
from notsodeep.errors import InvalidInput, NotIntegrable, TheoryDoubtful
from notsodeep.models.varying_activations import require_varying
from notsodeep.numerics.fixed_point import FixedPoint, solve_fixed_point

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, init=False)
class DeepEquilibrium:
    """A vanilla deep equilibrium model: z* = φ(√σa² A z* + √σb² B x)/√m, σa² + σb² = 1.

    A and B have i.i.d. entries of mean 0 and variance 1; the width m is not part of the
    description.

    Parameters
    ----------
    activation : str or Activation
        φ; a name (see `notsodeep.activations.names`) or an activation.
    sigma_a2 : float
        σa² in [0, 1), the share of the variance that comes back through A.

    Examples
    --------
    >>> deq = DeepEquilibrium("relu", sigma_a2=0.2)
    >>> centred = deq.centred(tau0=1.0)
    >>> round(centred.tau_star, 6)
    0.926566
    """

    activation: Activation
    sigma_a2: float

    def __init__(self, activation: str | Activation, sigma_a2: float) -> None:
        object.__setattr__(self, "activation", as_activation(activation))
        object.__setattr__(self, "sigma_a2", _recurrent_variance(sigma_a2))

    @property
    def sigma_b2(self) -> float:
        """σb² = 1 − σa², the share of the variance that comes from the input."""
        return 1.0 - self.sigma_a2

    @property
    def contraction_bound(self) -> float:
        """1/(4L²), L the Lipschitz constant of φ: below it, z* is sure to exist and be unique."""
        lipschitz = self.activation.lipschitz
        return 0.25 / lipschitz / lipschitz if lipschitz > 0.0 else math.inf

    @property
    def tau_star(self) -> float:
        """τ*, for a centred model: the scale at which its activation has mean zero."""
        if isinstance(self.activation, Centred):
            return self.activation.scale
        raise InvalidInput(
            f"tau_star of DeepEquilibrium({self.activation}) is not defined: the model is not "
            "centred. Use deq.centred(tau0), with tau0 the root mean squared norm of the data."
        )

    def solve_tau_star(self, tau0: float, *, raises: bool = True) -> FixedPoint:
        """Solve τ² = σa² Var φ(τξ) + σb² τ0² for τ (the mixture paper's equation for τ*).

        Parameters
        ----------
        tau0 : float
            √(tr C°/p), the scale of the data; 1 after the usual preprocessing.
        raises : bool, default True
            Raise `NotConverged` if there is no solution; otherwise return the failed record.

        Returns
        -------
        FixedPoint
            `value` is τ (not τ²).

        Raises
        ------
        ConstantActivation
            φ is constant, and no theory is about it.
        """
        start = self.sigma_b2 * checks.data_scale(tau0, "tau0", "DeepEquilibrium.centred") ** 2
        # If φ hardly varies, τ* is where the iteration starts.
        require_varying(self.activation, math.sqrt(start), "DeepEquilibrium")

        name = f"τ* of the {self.activation} DEQ with sigma_a2 = {self.sigma_a2:g}"
        solution = self._solve_variance(start, "variance", name, raises=raises)
        return FixedPoint(
            np.sqrt(solution.value),
            solution.converged,
            solution.residual,
            solution.steps,
            solution.reason,
        )

    def preactivation_variance(self, squared_norm: float) -> float:
        """Solve q = σa² E φ²(√q ξ) + σb² ‖x‖²: the variance of a pre-activation of a wide network.

        Parameters
        ----------
        squared_norm : float
            ‖x‖².

        Raises
        ------
        NotConverged
            There is no solution.

        Examples
        --------
        >>> round(DeepEquilibrium("relu", sigma_a2=0.2).preactivation_variance(1.0), 6)
        0.888889
        """
        name = f"the variance of the {self} at ‖x‖² = {squared_norm:g}"
        start = self.sigma_b2 * squared_norm
        return float(self._solve_variance(start, "square", name, raises=True).value)

    def _solve_variance(
        self, start: float, moment: Literal["square", "variance"], name: str, *, raises: bool
    ) -> FixedPoint:
        """Solve q = σa² (a moment of φ(√q ξ)) + start, from below."""

        def image(q: FloatArray) -> FloatArray:
            try:
                moments = self.activation.moments(np.sqrt(q))
            except NotIntegrable:  # the iterates have run away
                return np.full_like(q, np.inf)
            return np.asarray(self.sigma_a2 * getattr(moments, moment) + start)

        remedy = "A smaller sigma_a2 makes it contract."
        return solve_fixed_point(image, start, raises=raises, name=name, remedy=remedy)

    def centred(self, tau0: float) -> DeepEquilibrium:
        """Return the same model with φ − E φ(τ*ξ) as its activation, for data of scale tau0.

        Raises
        ------
        ConstantActivation
            φ is constant, so that nothing would be left of it.
        """
        tau = float(self.solve_tau_star(tau0).value)
        return DeepEquilibrium(centre(self.activation, tau), self.sigma_a2)

    def is_centred_for(self, tau0: float, *, rtol: float = 1e-8) -> bool:
        """Whether the activation is centred, at the τ* that belongs to data of scale tau0."""
        if not isinstance(self.activation, Centred):
            return False
        tau = float(self.solve_tau_star(tau0).value)
        return math.isclose(self.activation.scale, tau, rel_tol=rtol)

    @classmethod
    def from_weights(
        cls, recurrent: ArrayLike, injection: ArrayLike, activation: str | Activation
    ) -> DeepEquilibrium:
        """Describe a DEQ z = φ(A z + B x) that exists already, by its weights.

        σa² = m·mean(A_ij²); the scale of B only changes the units of x, see
        `notsodeep.models.given_weights.analyse_weights`, which also reports every test.

        Parameters
        ----------
        recurrent, injection : array_like of shape (m, m), (m, p)
            A and B as they are used in the equation above.
        activation : str or Activation

        Warns
        -----
        TheoryDoubtful
            The weights do not look like independent draws of mean zero, or do not contract.
        """
        from notsodeep.models.given_weights import analyse_weights

        analysis = analyse_weights(recurrent, injection, activation)
        if any(verdict.holds is False for verdict in analysis.verdicts):
            warnings.warn(analysis.summary, TheoryDoubtful, stacklevel=2)
        return analysis.model

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `from_dict` turns it back."""
        return {
            "kind": "deep_equilibrium",
            "activation": self.activation.to_dict(),
            "sigma_a2": self.sigma_a2,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeepEquilibrium:
        """Turn the form made by `to_dict` back into a model."""
        checks.stored_form(data, "deep_equilibrium", {"activation", "sigma_a2"})
        return cls(from_dict(data["activation"]), data["sigma_a2"])

    def __str__(self) -> str:
        return f"DEQ({self.activation}, σa² = {self.sigma_a2:g})"


def _recurrent_variance(value: object, owner: str = "DeepEquilibrium") -> float:
    """Require 0 ≤ σa² < 1 (σb² = 1 − σa² must stay positive)."""
    number = checks.finite_number(value, "sigma_a2", owner)
    if not 0.0 <= number < 1.0:
        remedy = (
            "sigma_a2 is the share of variance carried by the recurrent weights A; the rest, "
            "1 − sigma_a2, goes to the input weights B. Values up to 0.25 are typical."
        )
        raise checks.refusal("sigma_a2", owner, "satisfy 0 ≤ sigma_a2 < 1", number, remedy)
    return number

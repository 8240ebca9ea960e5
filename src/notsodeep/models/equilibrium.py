"""The deep equilibrium model: a cell of dense layers, at rest."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation, Centred, as_activation, centre, from_dict
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotIntegrable, NotVanilla, TheoryDoubtful
from notsodeep.models.cell import Dense, Variances, checked_cell, solve_variances
from notsodeep.models.varying_activations import require_varying
from notsodeep.numerics.fixed_point import FixedPoint, solve_fixed_point


@dataclass(frozen=True, init=False, repr=False)
class DeepEquilibrium:
    """A deep equilibrium model: a cell of layers whose last feeds its first, at its fixed point.

    The vanilla model has one layer, z* = φ(√σa² A z* + √σb² B x)/√m with σa² + σb² = 1, and is
    described by φ and σa².  In general layer l is h_l = √w_l A_l z_{l−1} + √u_l U_l x + √b_l β_l,
    z_l = φ_l(h_l)/√m, see `Dense`; the last layer makes the state.  A, B, A_l, U_l and β_l have
    i.i.d. entries of mean 0 and variance 1; the width m is not part of the description.

    Parameters
    ----------
    activation : str or Activation
        φ of the vanilla model; a name (see `notsodeep.activations.names`) or an activation.
    sigma_a2 : float
        σa² in [0, 1), the share of the variance that comes back through A.
    cell : sequence of Dense
        The layers of any other model, instead of the two.

    Attributes
    ----------
    cell : tuple of Dense
        All that is stored.

    Examples
    --------
    >>> deq = DeepEquilibrium("relu", sigma_a2=0.2)
    >>> centred = deq.centred(tau0=1.0)
    >>> round(centred.tau_star, 6)
    0.926566
    >>> deq == DeepEquilibrium(cell=[Dense("relu", weight=0.2, inject=0.8)])
    True
    >>> ring = DeepEquilibrium(
    ...     cell=[Dense("tanh", 0.5, inject=0.6, bias=0.1), Dense("relu", 0.8, inject=0.3)]
    ... )
    >>> print(ring)
    DEQ(tanh(0.5, 0.6, 0.1) → relu(0.8, 0.3))
    """

    cell: tuple[Dense, ...]

    def __init__(
        self,
        activation: str | Activation | None = None,
        sigma_a2: float | None = None,
        *,
        cell: Sequence[Dense] | None = None,
    ) -> None:
        if (cell is None) == (activation is None) or (cell is not None and sigma_a2 is not None):
            raise InvalidInput(
                "DeepEquilibrium needs an activation and sigma_a2, or a cell. Got activation = "
                f"{activation!r}, sigma_a2 = {sigma_a2!r} and cell = {cell!r}."
            )
        if cell is None:
            assert activation is not None
            weight = _recurrent_variance(sigma_a2)
            layers: tuple[Dense, ...] = (Dense(as_activation(activation), weight, 1.0 - weight),)
        else:
            layers = checked_cell(cell, Dense, "DeepEquilibrium")
            if len(layers) == 1 and layers[0].is_vanilla:
                layers = (replace(layers[0], inject=1.0 - layers[0].weight),)
        object.__setattr__(self, "cell", layers)

    @property
    def is_vanilla(self) -> bool:
        """Whether the cell is one layer without bias and normalisation, and σa² + σb² = 1."""
        return len(self.cell) == 1 and self.cell[0].is_vanilla

    def _vanilla(self, quantity: str) -> Dense:
        """Return the layer of a vanilla model; what has not learned about cells fails here."""
        if self.is_vanilla:
            return self.cell[0]
        raise NotVanilla(
            f"{quantity} of the {self} is not defined, and what asked for it is about the vanilla "
            "model alone: one layer, no bias, no normalisation, inject = 1 − weight. Exact kernels "
            "cover every cell; the layers of this one are in its attribute `cell`."
        )

    @property
    def activation(self) -> Activation:
        """φ of a vanilla model."""
        return self._vanilla("activation").activation

    @property
    def sigma_a2(self) -> float:
        """σa² of a vanilla model, the share of the variance that comes back through A."""
        return self._vanilla("sigma_a2").weight

    @property
    def sigma_b2(self) -> float:
        """σb² = 1 − σa² of a vanilla model, the share of the variance that comes from the input."""
        return 1.0 - self._vanilla("sigma_b2").weight

    @property
    def contraction_bound(self) -> float:
        """1/(4L²), L the Lipschitz constant of φ: below it, z* is sure to exist and be unique.

        For a cell of several layers, 1/Π_l 4L_l²: the bound on the product of the weights.
        """
        lipschitz = [layer.activation.lipschitz for layer in self.cell]
        if min(lipschitz) == 0.0:
            return math.inf
        return math.prod(0.25 / constant / constant for constant in lipschitz)

    @property
    def tau_star(self) -> float:
        """τ*, for a centred model: the scale at which its (last) activation has mean zero."""
        last = self.cell[-1].activation
        if isinstance(last, Centred):
            return last.scale
        raise InvalidInput(
            f"tau_star of the {self} is not defined: the model is not centred. "
            "Use deq.centred(tau0), with tau0 the root mean squared norm of the data."
        )

    def solve_tau_star(self, tau0: float, *, raises: bool = True) -> FixedPoint:
        """Solve τ² = σa² Var φ(τξ) + σb² τ0² for τ (the mixture paper's equation for τ*).

        In a cell of several layers: τ_l² = w_l Var φ_{l−1}(τ_{l−1} ξ) + u_l τ0² around the ring.

        Parameters
        ----------
        tau0 : float
            √(tr C°/p), the scale of the data; 1 after the usual preprocessing.
        raises : bool, default True
            Raise `NotConverged` if there is no solution; otherwise return the failed record.

        Returns
        -------
        FixedPoint
            `value` is τ (not τ²); of the last layer, if there are several.

        Raises
        ------
        ConstantActivation
            φ is constant, and no theory is about it.
        """
        scale = checks.data_scale(tau0, "tau0", "DeepEquilibrium.centred")
        if not self.is_vanilla:
            variances, solution = self._centred_variances(scale, raises=raises)
            return replace(solution, value=variances.scales[-1, 0])
        start = self.sigma_b2 * scale**2
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

    def _centred_variances(self, tau0: float, *, raises: bool) -> tuple[Variances, FixedPoint]:
        for index, layer in enumerate(self.cell):
            if layer.bias > 0.0 or layer.normalise != "none":
                what = f"bias = {layer.bias:g}" if layer.bias > 0.0 else repr(layer.normalise)
                raise InvalidInput(
                    f"The {self} cannot be centred: layer {index + 1} has {what}. A bias leaves a "
                    "covariance between inputs at right angles even if every activation has mean "
                    "zero, and a normalised feature is centred already. Exact kernels and "
                    "equivalents of the model as it is need no centring."
                )
        variances, solution = solve_variances(
            self.cell,
            np.array([tau0**2]),
            moment="variance",
            raises=raises,
            name=f"the scale τ of the {self}",
        )
        for layer, scale in zip(self.cell, variances.scales[:, 0], strict=True):
            if solution.converged:
                require_varying(layer.activation, float(scale), "DeepEquilibrium")
        return variances, solution

    def preactivation_variance(self, squared_norm: float) -> float:
        """Solve q = σa² E φ²(√q ξ) + σb² ‖x‖²: the variance of a pre-activation of a wide network.

        Of a unit of the last layer, if there are several; 1 if it is normalised.

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
        if not self.is_vanilla:
            variances, _ = solve_variances(self.cell, np.array([squared_norm]), name=name)
            return float(variances.scales[-1, 0] ** 2)
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

        In a cell of several layers each φ_l is centred at the scale τ_l of its own layer.

        Raises
        ------
        ConstantActivation
            φ is constant, so that nothing would be left of it.
        InvalidInput
            The cell has biases or normalisation: centring is not defined for it.
        """
        if not self.is_vanilla:
            scale = checks.data_scale(tau0, "tau0", "DeepEquilibrium.centred")
            variances, _ = self._centred_variances(scale, raises=True)
            return DeepEquilibrium(
                cell=[
                    replace(layer, activation=centre(layer.activation, float(tau)))
                    for layer, tau in zip(self.cell, variances.scales[:, 0], strict=True)
                ]
            )
        tau = float(self.solve_tau_star(tau0).value)
        return DeepEquilibrium(centre(self.activation, tau), self.sigma_a2)

    def is_centred_for(self, tau0: float, *, rtol: float = 1e-8) -> bool:
        """Whether every activation is centred, at the τ that belongs to data of scale tau0."""
        if not self.is_vanilla:
            if any(
                not isinstance(layer.activation, Centred)
                or layer.bias > 0.0
                or layer.normalise != "none"
                for layer in self.cell
            ):
                return False
            sibling = self.centred(tau0)
            return all(
                isinstance(one.activation, Centred)
                and isinstance(two.activation, Centred)
                and math.isclose(one.activation.scale, two.activation.scale, rel_tol=rtol)
                for one, two in zip(self.cell, sibling.cell, strict=True)
            )
        if not isinstance(self.activation, Centred):
            return False
        tau = float(self.solve_tau_star(tau0).value)
        return math.isclose(self.activation.scale, tau, rel_tol=rtol)

    def weight_shapes(self, width: int, in_features: int) -> dict[str, tuple[int, int]]:
        """Names and shapes of the weights of a finite network of this cell, layer by layer."""
        shapes = {}
        for number, layer in enumerate(self.cell, start=1):
            shapes[f"weight_{number}"] = (width, width)
            if layer.inject > 0.0:
                shapes[f"injection_{number}"] = (width, in_features)
            if layer.bias > 0.0:
                shapes[f"shift_{number}"] = (width, 1)
        return shapes

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
        """Return a JSON form; `from_dict` turns it back.

        A vanilla model keeps the form with sigma_a2, so that stored files stay what they are.
        """
        if self.is_vanilla:
            return {
                "kind": "deep_equilibrium",
                "activation": self.activation.to_dict(),
                "sigma_a2": self.sigma_a2,
            }
        return {"kind": "deep_equilibrium", "cell": [layer.to_dict() for layer in self.cell]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeepEquilibrium:
        """Turn the form made by `to_dict` back into a model."""
        if isinstance(data, Mapping) and "cell" in data:
            checks.stored_form(data, "deep_equilibrium", {"cell"})
            if not isinstance(data["cell"], list):
                raise checks.invalid("cell", "a stored model", "be a list", repr(data["cell"]))
            return cls(cell=[Dense.from_dict(layer) for layer in data["cell"]])
        checks.stored_form(data, "deep_equilibrium", {"activation", "sigma_a2"})
        return cls(from_dict(data["activation"]), data["sigma_a2"])

    def __str__(self) -> str:
        if self.is_vanilla:
            return f"DEQ({self.activation}, σa² = {self.sigma_a2:g})"
        return f"DEQ({' → '.join(map(str, self.cell))})"

    def __repr__(self) -> str:
        if self.is_vanilla:
            return f"DeepEquilibrium(activation={self.activation!r}, sigma_a2={self.sigma_a2!r})"
        return f"DeepEquilibrium(cell={self.cell!r})"


def _recurrent_variance(value: object, owner: str = "DeepEquilibrium") -> float:
    """Require 0 ≤ σa² < 1 (σb² = 1 − σa² must stay positive)."""
    number = checks.finite_number(value, "sigma_a2", owner)
    if not 0.0 <= number < 1.0:
        remedy = (
            "sigma_a2 is the share of variance carried by the recurrent weights A; the rest, "
            "1 − sigma_a2, goes to the input weights B. Values up to 0.25 are typical."
        )
        raise checks.invalid("sigma_a2", owner, "satisfy 0 ≤ sigma_a2 < 1", number, remedy)
    return number

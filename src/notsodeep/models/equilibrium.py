"""The deep equilibrium model: a cell of dense layers, at rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation, Centred, as_activation, centre
from notsodeep.arrays import FloatArray
from notsodeep.errors import ConstantActivation, InvalidInput, NotVanilla
from notsodeep.models.layers import Dense, checked_cell, solve_variances
from notsodeep.records import Record

_ROUNDING = 4.0 * float(np.spacing(1.0))
_CENTRED = 1e-8  # relative difference of the scale of a centred activation and that of its layer


@dataclass(frozen=True, init=False, repr=False)
class DeepEquilibrium(Record):
    """A deep equilibrium model: a cell of layers whose last feeds its first, at its fixed point.

    Layer l is h_l = √w_l A_l z_{l−1} + √u_l U_l x + √b_l β_l, z_l = φ_l(h_l)/√m, see `Dense`; the
    last layer makes the state.  A_l, U_l and β_l have i.i.d. entries of mean 0 and variance 1; the
    width m is not part of the description.  The vanilla model has one layer,
    z* = φ(√σa² A z* + √σb² B x)/√m with σa² + σb² = 1, and is described by φ and σa².

    Parameters
    ----------
    activation : str or Activation
        φ of the vanilla model; a name (see `notsodeep.activations.names`) or an activation.
    sigma_a2 : float
        σa² in [0, 1), the share of the variance that comes back through A.
    cell : sequence of Dense
        The layers of any other model, instead of the two.

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

    _derived: ClassVar[tuple[str, ...]] = ("kind",)
    kind: ClassVar[str] = "deep_equilibrium"

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
                "DeepEquilibrium needs an activation and sigma_a2, or a cell, got activation = "
                f"{activation!r}, sigma_a2 = {sigma_a2!r} and cell = {cell!r}."
            )
        if cell is None:
            weight = checks.finite_number(sigma_a2, "sigma_a2", "DeepEquilibrium")
            if not 0.0 <= weight < 1.0:
                remedy = "The rest, 1 − sigma_a2, goes to the input; values up to 0.25 are typical."
                requirement = "satisfy 0 ≤ sigma_a2 < 1"
                raise checks.invalid("sigma_a2", "DeepEquilibrium", requirement, weight, remedy)
            cell = [Dense(as_activation(activation), weight, 1.0 - weight)]
        layers = checked_cell(cell, Dense, "DeepEquilibrium")
        object.__setattr__(self, "cell", layers)
        if self.is_vanilla:  # equal models have equal numbers, to the last bit
            layer = replace(layers[0], inject=1.0 - layers[0].weight)
            object.__setattr__(self, "cell", (layer,))

    @property
    def is_vanilla(self) -> bool:
        """Whether the cell is one layer without bias and normalisation, and σa² + σb² = 1.

        1 − 0.9 is not 0.1 in floating point: four units in the last place are granted.
        """
        first, *others = self.cell
        if others or first.bias > 0.0 or first.normalise is not None:
            return False
        return first.weight < 1.0 and abs(first.inject - (1.0 - first.weight)) <= _ROUNDING

    def _vanilla(self, quantity: str) -> Dense:
        """Return the layer of a vanilla model; what is about no other model fails here."""
        if self.is_vanilla:
            return self.cell[0]
        raise NotVanilla(
            f"{quantity} of the {self} is not defined: it belongs to the vanilla model of one "
            "layer, no bias, no normalisation, inject = 1 − weight. Its layers are in `cell`."
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
        return self._vanilla("sigma_b2").inject

    @property
    def contraction_bound(self) -> float:
        """Π_l 1/(4L_l²), L_l = Lip φ_l: z* exists and is unique if Π_l w_l is smaller."""
        lipschitz = [layer.activation.lipschitz for layer in self.cell]
        return math.inf if min(lipschitz) == 0.0 else math.prod(0.25 / c / c for c in lipschitz)

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

    def _centred_scales(self, tau0: float) -> FloatArray:
        """Solve τ_l² = w_l Var φ_{l−1}(τ_{l−1} ξ) + u_l τ0² around the ring for τ, shape (L,).

        With one layer this is the mixture paper's equation for τ*.
        """
        scale = checks.data_scale(tau0, "tau0", "DeepEquilibrium.centred")
        for index, layer in enumerate(self.cell):
            if layer.bias > 0.0 or layer.normalise is not None:
                what = f"bias = {layer.bias:g}" if layer.bias > 0.0 else repr(layer.normalise)
                raise InvalidInput(
                    f"The {self} cannot be centred: layer {index + 1} has {what}. Exact kernels "
                    "and equivalents of the model as it is need no centring."
                )
            if layer.inject > 0.0:  # before moments are asked of what only rounds
                start = math.sqrt(layer.inject) * scale
                require_varying(layer.activation, start, "DeepEquilibrium")
        squares, name = np.array([scale**2]), f"τ* of the {self}"
        variances, _ = solve_variances(self.cell, squares, moment="variance", name=name)
        for layer, tau in zip(self.cell, variances.scales[:, 0], strict=True):
            require_varying(layer.activation, float(tau), "DeepEquilibrium")
        return variances.scales[:, 0]

    def centred(self, tau0: float) -> DeepEquilibrium:
        """Return the same model with φ_l − E φ_l(τ_l ξ) in its layers, for data of scale tau0.

        Parameters
        ----------
        tau0 : float
            √(tr C°/p), the scale of the data; 1 after the usual preprocessing.

        Raises
        ------
        NotConverged
            There is no solution τ.
        ConstantActivation
            Some φ is constant, and nothing would be left of it.
        InvalidInput
            The cell has biases or normalisation: centring is not defined for it.
        """
        scales = self._centred_scales(tau0)
        return DeepEquilibrium(
            cell=[
                replace(layer, activation=centre(layer.activation, float(tau)))
                for layer, tau in zip(self.cell, scales, strict=True)
            ]
        )

    def is_centred_for(self, tau0: float) -> bool:
        """Whether every activation is centred, at the τ that belongs to data of scale tau0."""
        if any(
            not isinstance(layer.activation, Centred)
            or layer.bias > 0.0
            or layer.normalise is not None
            for layer in self.cell
        ):
            return False
        scales = self._centred_scales(tau0)
        return all(
            math.isclose(layer.activation.scale, tau, rel_tol=_CENTRED)  # type: ignore[attr-defined]
            for layer, tau in zip(self.cell, scales, strict=True)
        )

    def preactivation_variance(self, squared_norm: float) -> float:
        """Solve q = σa² E φ²(√q ξ) + σb² ‖x‖²: the variance of a pre-activation of a wide network.

        Of a unit of the last layer, if there are several; 1 if it is normalised.

        Examples
        --------
        >>> round(DeepEquilibrium("relu", sigma_a2=0.2).preactivation_variance(1.0), 6)
        0.888889
        """
        name = f"the variance of the {self} at ‖x‖² = {squared_norm:g}"
        variances, _ = solve_variances(self.cell, np.array([squared_norm]), name=name)
        return float(variances.scales[-1, 0] ** 2)

    def __str__(self) -> str:
        if self.is_vanilla:
            return f"DEQ({self.activation}, σa² = {self.sigma_a2:g})"
        return f"DEQ({' → '.join(map(str, self.cell))})"

    def __repr__(self) -> str:
        if self.is_vanilla:
            return f"DeepEquilibrium(activation={self.activation!r}, sigma_a2={self.sigma_a2!r})"
        return f"DeepEquilibrium(cell={self.cell!r})"


# Constant activations --------------------------------------------------------------------------

_SMALLEST = 1e-20  # standard deviation, at scales of one and more; least squares need room below
_TINIEST, _LARGEST = 1e-62, 1e60  # at any scale, as for data
_LOST = 1e-10  # share of E φ² below which the variance is looked for in the values themselves
_MEAN_ROUNDING = 1e-13  # standard deviation, relative to the mean, that is rounding


def require_varying(activation: Activation, scale: float, owner: str) -> None:
    """Require that φ(τξ), ξ ~ N(0, 1), varies: by more than rounding errors, and than 1e-20·τ.

    Centring, matching and the random-matrix equivalents divide by its variance.

    Examples
    --------
    >>> from notsodeep.activations import leaky_relu
    >>> require_varying(leaky_relu(1.0, 0.0), 1.0, "this example")
    >>> require_varying(leaky_relu(0.0, 0.0), 1.0, "this example")
    Traceback (most recent call last):
    ...
    notsodeep.errors.ConstantActivation: The activation of this example is constant, or ...
    """
    base = activation.uncentred
    deviation = base.cached("deviation", scale, lambda: _standard_deviation(base, scale))
    least = max(_SMALLEST * min(scale, 1.0), _TINIEST)
    if not deviation >= least:
        raise ConstantActivation(
            f"The activation of {owner} is constant, or effectively so: the standard deviation of "
            f"φ(τξ) must be at least {least:.1g} at τ = {scale:.6g}, got {deviation:.3g} for "
            f"φ = {base}. Use another activation, or one of usual size."
        )
    if deviation > _LARGEST:
        requirement = f"have a standard deviation of at most {_LARGEST:g} at τ = {scale:.6g}"
        got = f"{deviation:.3g} for φ = {base}"
        raise checks.invalid("activation", owner, requirement, got, "Its powers overflow.")


def _standard_deviation(activation: Activation, scale: float) -> float:
    """Return the standard deviation of φ(τξ); 0 if it is within rounding errors of the mean."""
    xi = np.linspace(-8.0, 8.0, 1601)
    weights = np.exp(-0.5 * xi**2)
    weights /= weights.sum()
    values = activation(scale * xi)
    seen = float(np.sqrt(weights @ (values - weights @ values) ** 2))
    if 0.0 < float(np.abs(values).max()) < _TINIEST:
        return seen  # no quadrature resolves denormal numbers
    moments = activation.moments(scale)
    variance, square = float(moments.variance), float(moments.square)
    if variance > _LOST * square:
        return float(np.sqrt(variance))
    return seen if seen > _MEAN_ROUNDING * float(np.sqrt(square)) else 0.0

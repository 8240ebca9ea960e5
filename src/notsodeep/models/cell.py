"""The cell of a deep equilibrium model: the layers that one turn of the iteration goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation, as_activation, from_dict
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged, NotIntegrable, QuadratureError
from notsodeep.numerics.fixed_point import FixedPoint, solve_fixed_point

Normalise = Literal["none", "preactivation", "feature"]

_ROUNDING = 4.0 * float(np.spacing(1.0))


@dataclass(frozen=True)
class Dense:
    """One layer of a cell: h = √weight·A z + √inject·U x + √bias·β, and φ(h)/√m is passed on.

    z is what the layer before passes on (the first layer reads the last), A, U and β have i.i.d.
    entries of mean 0 and variance 1, and m is the width.

    Parameters
    ----------
    activation : str or Activation
        φ.
    weight : float
        Variance of the weights on what the layer reads, at least 0.
    inject, bias : float, default 0
        Variances of the weights on the input x and of the bias, at least 0.
    normalise : {"none", "preactivation", "feature"}
        Layer normalisation over the units, of h or of φ(h), without gains or shifts of its own.

    Examples
    --------
    >>> layer = Dense("tanh", weight=0.5, inject=0.6, bias=0.1)
    >>> print(layer)
    tanh(0.5, 0.6, 0.1)
    >>> Dense.from_dict(layer.to_dict()) == layer
    True
    """

    kind: ClassVar[str] = "dense"

    activation: Activation
    weight: float
    inject: float = 0.0
    bias: float = 0.0
    normalise: Normalise = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", as_activation(self.activation))
        for name in ("weight", "inject", "bias"):
            object.__setattr__(self, name, _variance(getattr(self, name), name, self._owner))
        if self.normalise not in get_args(Normalise):
            requirement = "be 'none', 'preactivation' or 'feature'"
            remedy = "Normalisation with trained gains or over a batch has no kernel here."
            raise checks.invalid(
                "normalise", self._owner, requirement, repr(self.normalise), remedy
            )

    @property
    def _owner(self) -> str:
        return f"a {self.kind} layer"

    @property
    def is_vanilla(self) -> bool:
        """Whether a cell of this layer alone is the vanilla one: inject = 1 − weight, and no more.

        1 − 0.9 is not 0.1 in floating point: four units in the last place are granted.
        """
        plain = type(self) is Dense and self.bias == 0.0 and self.normalise == "none"
        return plain and self.weight < 1.0 and abs(self.inject - (1.0 - self.weight)) <= _ROUNDING

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `from_dict` turns it back."""
        form = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind, **form, "activation": self.activation.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Turn the form made by `to_dict` back into a layer."""
        names = {field.name for field in fields(cls)}
        checks.stored_form(data, cls.kind, names)
        return cls(
            **{**{name: data[name] for name in names}, "activation": from_dict(data["activation"])}
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read a layer as it is typed in a command: an activation and its options.

        Examples
        --------
        >>> Dense.from_text("tanh weight=.5 inject=.6 normalise=feature").inject
        0.6
        """
        words = str(text).split()
        owner = f"a {cls.kind} layer"
        if not words or "=" in words[0] or any(word.count("=") != 1 for word in words[1:]):
            requirement = "be an activation and options, like 'tanh weight=.5 inject=.6'"
            raise checks.invalid("text", owner, requirement, repr(text))
        return cls.from_options({"activation": words[0], **dict(w.split("=") for w in words[1:])})

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Make a layer from options by name, numbers being numbers or their text."""
        owner = f"a {cls.kind} layer"
        values: dict[str, Any] = {}
        for name, value in options.items():
            checks.known_name(name, [field.name for field in fields(cls)], f"option of {owner}")
            if name in ("weight", "inject", "bias"):
                try:
                    value = float(value)
                except (TypeError, ValueError):
                    raise checks.invalid(name, owner, "be a number", repr(value)) from None
            values[name] = value
        for name in ("activation", "weight"):
            if name not in values:
                raise checks.invalid(name, owner, "be given", "no such option")
        return cls(**values)

    def __str__(self) -> str:
        numbers = [self.weight, self.inject, self.bias]
        while len(numbers) > 1 and numbers[-1] == 0.0:
            numbers.pop()
        text = f"{self.activation}({', '.join(f'{number:g}' for number in numbers)})"
        return text if self.normalise == "none" else f"{text} with normalised {self.normalise}"


def checked_cell(cell: object, kind: type[Dense], owner: str) -> tuple[Dense, ...]:
    """Require a sequence of layers of one kind, of which at least one reads the input."""
    if isinstance(cell, Dense) or not isinstance(cell, Sequence) or isinstance(cell, str):
        remedy = f"Write cell=[{kind.__name__}('relu', weight=0.2, inject=0.8)]."
        raise checks.invalid("cell", owner, "be a list of layers", repr(cell), remedy)
    if not cell:
        remedy = f"Write cell=[{kind.__name__}('relu', weight=0.2, inject=0.8)]."
        raise checks.invalid("cell", owner, "have at least one layer", "none", remedy)
    for layer in cell:
        if type(layer) is not kind:
            raise checks.invalid("cell", owner, f"hold {kind.__name__} layers", repr(layer))
    if not any(layer.inject > 0.0 for layer in cell):
        remedy = (
            "Without it the state does not depend on x, and is zero if there is no bias. Give one "
            "of the layers inject > 0."
        )
        got = "inject = 0 in every layer"
        raise checks.invalid("cell", owner, "be driven by the input", got, remedy)
    return tuple(cell)


@dataclass(frozen=True)
class Variances:
    """Second moments inside a cell of L layers, for n samples.

    Attributes
    ----------
    incoming : ndarray of shape (L, n)
        C_l = w_l v_{l−1} + u_l ‖x‖² + b_l: the variance of a unit of h_l before normalisation.
    scales : ndarray of shape (L, n)
        √q_l, the standard deviation of what φ_l is applied to: q_l = C_l, or 1 if normalised.
    """

    incoming: FloatArray
    scales: FloatArray


def solve_variances(
    cell: Sequence[Dense],
    squared_norms: FloatArray,
    *,
    moment: Literal["square", "variance"] = "square",
    raises: bool = True,
    name: str = "the variance of the cell",
) -> tuple[Variances, FixedPoint]:
    """Solve for the variances of all layers at once: one scalar equation for each sample.

    The unknown is v, the second moment of what the last layer passes on.  One turn through the cell
    gives C_l = w_l v_{l−1} + u_l ‖x‖² + b_l, q_l = C_l, v_l = E φ_l²(√q_l ξ), and must end at v.
    Normalised pre-activations have q_l = 1, normalised features v_l = 1.  From v = 0 the iteration
    leads to the smallest solution.

    Parameters
    ----------
    cell : sequence of Dense
    squared_norms : ndarray of shape (n,)
        ‖x‖².
    moment : {"square", "variance"}
        With "variance", v_l = Var φ_l(√q_l ξ): the cell with every φ_l centred.
    raises : bool, default True
        Raise `NotConverged` if there is no solution.
    name : str
        What the message calls the solution.

    Returns
    -------
    Variances, FixedPoint
        The second is the record of the solve for v.
    """

    def image(state: FloatArray) -> FloatArray:
        # Squares of larger variances overflow in the moments; infinity ends the iteration with a
        # reason.
        if not (np.isfinite(state).all() and state.max(initial=0.0) < 1e200):
            return np.full_like(state, np.inf)
        return _turn(cell, np.maximum(state, 0.0), squared_norms, moment)[2]

    remedy = "Smaller weights make it contract."
    start = np.zeros_like(squared_norms)
    solution = solve_fixed_point(image, start, raises=raises, name=name, remedy=remedy)
    if not solution.converged:
        nothing = np.full((len(cell), *squared_norms.shape), np.nan)
        return Variances(nothing, nothing), solution
    incoming, scales, _ = _turn(cell, solution.value, squared_norms, moment)
    return Variances(incoming, scales), solution


def _turn(
    cell: Sequence[Dense],
    state: FloatArray,
    squared_norms: FloatArray,
    moment: Literal["square", "variance"] = "square",
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Go through the cell once: C and √q of every layer, and the second moment that comes out."""
    incoming, scales = np.empty((2, len(cell), *state.shape))
    for index, layer in enumerate(cell):
        incoming[index] = layer.weight * state + layer.inject * squared_norms + layer.bias
        variance = np.ones_like(state) if normalised(layer) else incoming[index]
        scales[index] = np.maximum(np.sqrt(variance), LEAST_SCALE)
        if layer.normalise == "feature":
            state = np.ones_like(state)
        else:
            try:
                state = np.asarray(getattr(layer.activation.moments(scales[index]), moment))
            except NotIntegrable:  # the iterates have run away
                state = np.full_like(state, np.inf)
    return incoming, scales, state


def stability(cell: Sequence[Dense], variances: Variances) -> FloatArray:
    """Π_l w_l E φ_l′²: the squared spectral radius of a turn's Jacobian at large width, (n,).

    Normalisation divides by the variance of what it normalises.
    """
    product = np.ones(variances.scales.shape[1:])
    for layer, incoming, scales in zip(cell, variances.incoming, variances.scales, strict=True):
        moments = layer.activation.moments(scales)
        factor = layer.weight * np.asarray(moments.slope_square)
        if normalised(layer):
            factor = factor / incoming
        if layer.normalise == "feature":
            factor = factor / moments.variance
        product = product * factor
    return product


# A kernel asks for the same two norms again with every block of its columns.
@lru_cache(maxsize=256)
def another_variance(cell: tuple[Dense, ...], squared_norm: float) -> float | None:
    """Return a second solution of the equation for the variance, if one is seen.

    `solve_variances` finds the smallest second moment v of the state.  Beyond it one turn must stay
    below v; where it comes back above, on a grid over eight decades, there is another solution.
    The grid ends earlier where an activation varies too fast to be integrated.
    """
    squares = np.array([squared_norm])
    state = solve_variances(cell, squares)[1].value
    largest = max(float(state[0]), 1e-3 * (squared_norm + sum(layer.bias for layer in cell)), 1e-30)
    grid = state[0] + largest * np.logspace(-2.0, 6.0, 81)
    image = np.empty(0)
    while grid.size and not image.size:
        try:
            with np.errstate(over="ignore"):
                image = _turn(cell, grid, np.full_like(grid, squared_norm))[2]
        except QuadratureError:
            grid = grid[: len(grid) // 2]
    # Just beyond the smallest solution the turn is below v by rounding only.
    above = np.flatnonzero(image > grid * (1.0 + 1e-9))
    return float(grid[above[0]]) if above.size else None


def require_one_variance(cell: tuple[Dense, ...], squared_norm: float, name: str) -> None:
    """Reject a cell called `name` whose equation for the variance is seen to have two solutions."""
    other = another_variance(cell, squared_norm)
    if other is not None:
        raise NotConverged(
            f"The variance of the {name} has several solutions at ‖x‖² = {squared_norm:.4g}: "
            f"besides the smallest there is one near E z² = {other:.4g}, and which of them a "
            "network settles at depends on its start. Use smaller weights, or an activation that "
            "grows at most linearly."
        )


def normalised(layer: Dense) -> bool:
    """Whether the pre-activations of a layer have variance one."""
    return layer.normalise == "preactivation"


def _variance(value: object, parameter: str, owner: str) -> float:
    number = checks.finite_number(value, parameter, owner)
    if number < 0.0:
        remedy = "It is the square of a standard deviation; 0 leaves the term out."
        raise checks.invalid(parameter, owner, "be a variance, at least 0", number, remedy)
    return number

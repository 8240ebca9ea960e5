"""The layers of a cell, which one turn of the iteration goes through, and their variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation, as_activation
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged, NotIntegrable, QuadratureError
from notsodeep.numerics.fixed_point import FixedPoint, solve_fixed_point
from notsodeep.records import Record

Normalise = Literal["preactivation", "feature"] | None


@dataclass(frozen=True, repr=False)
class Dense(Record):
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
    normalise : {None, "preactivation", "feature"}
        Layer normalisation over the units, of h or of φ(h), without gains or shifts of its own.

    Examples
    --------
    >>> layer = Dense("tanh", weight=0.5, inject=0.6, bias=0.1)
    >>> print(layer)
    tanh(0.5, 0.6, 0.1)
    >>> Dense.from_dict(layer.to_dict()) == layer
    True
    """

    _derived: ClassVar[tuple[str, ...]] = ("kind",)
    kind: ClassVar[str] = "dense"

    activation: Activation
    weight: float
    inject: float = 0.0
    bias: float = 0.0
    normalise: Normalise = None

    def __post_init__(self) -> None:
        owner = f"a {self.kind} layer"
        object.__setattr__(self, "activation", as_activation(self.activation))
        for name in ("weight", "inject", "bias"):
            variance = checks.at_least_zero(getattr(self, name), name, owner, "It is a variance.")
            object.__setattr__(self, name, variance)
        if self.normalise not in (None, "preactivation", "feature"):
            requirement = "be None, 'preactivation' or 'feature'"
            remedy = "Normalisation with trained gains or over a batch has no kernel here."
            raise checks.invalid("normalise", owner, requirement, repr(self.normalise), remedy)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read a layer as it is typed in a command: an activation and its options.

        Examples
        --------
        >>> Dense.from_text("tanh weight=.5 inject=.6 normalise=feature").inject
        0.6
        """
        activation, *options = str(text).split() or [""]
        pairs = [option.partition("=") for option in options]
        if not activation or "=" in activation or any(not value for _, _, value in pairs):
            requirement = "be an activation and options, like 'tanh weight=.5 inject=.6'"
            raise checks.invalid("text", f"a {cls.kind} layer", requirement, repr(text))
        return cls.from_options(activation=activation, **{name: value for name, _, value in pairs})

    @classmethod
    def from_options(cls, **options: object) -> Self:
        """Make a layer from options by name, numbers being numbers or their text."""
        owner = f"a {cls.kind} layer"
        for name, value in options.items():
            checks.known_name(name, [field.name for field in fields(cls)], f"option of {owner}")
            if name not in ("activation", "normalise"):
                try:
                    options[name] = int(str(value)) if name == "size" else float(str(value))
                except ValueError:
                    raise checks.invalid(name, owner, "be a number", repr(value)) from None
        for name in ("activation", "weight"):
            if name not in options:
                raise checks.invalid(name, owner, "be given", "no such option")
        return cls(**options)  # type: ignore[arg-type]

    def __str__(self) -> str:
        numbers = [self.weight, self.inject, self.bias]
        while len(numbers) > 1 and numbers[-1] == 0.0:
            numbers.pop()
        text = f"{self.activation}({', '.join(f'{number:g}' for number in numbers)})"
        return text if self.normalise is None else f"{text} with normalised {self.normalise}"


@dataclass(frozen=True, repr=False)
class Convolution(Dense):
    """One convolutional layer of a cell, on k × k windows around every pixel s.

    h_s = √(weight/k²) Σ_δ A_δ z_{s+δ} + √(inject/k²) Σ_δ U_δ x_{s+δ} + √bias·β.

    Parameters
    ----------
    activation, weight, inject, bias
        As for `Dense`; the bias is that of a channel, the same at every pixel.
    normalise : None
        Convolutions are not normalised.
    size : int, default 3
        k, odd.

    Examples
    --------
    >>> print(Convolution("relu", weight=0.2, inject=0.8, size=5))
    relu(0.2, 0.8) on 5 × 5
    """

    kind: ClassVar[str] = "convolution"

    size: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = f"a {self.kind} layer"
        if self.normalise is not None:
            raise checks.invalid("normalise", owner, "be None", repr(self.normalise))
        if checks.positive_integer(self.size, "size", owner) % 2 == 0:
            remedy = "A window around a pixel has an odd side."
            raise checks.invalid("size", owner, "be odd", self.size, remedy)

    def __str__(self) -> str:
        return f"{super().__str__()} on {self.size} × {self.size}"


Layer = TypeVar("Layer", bound=Dense)


def checked_cell(cell: object, layer_type: type[Layer], owner: str) -> tuple[Layer, ...]:
    """Require a sequence of layers of one type, of which at least one reads the input."""
    name = layer_type.__name__
    if not isinstance(cell, Sequence) or isinstance(cell, str) or not cell:
        remedy = f"Write cell=[{name}('relu', weight=0.2, inject=0.8)]."
        raise checks.invalid("cell", owner, "be a list of at least one layer", repr(cell), remedy)
    for layer in cell:
        if type(layer) is not layer_type:
            raise checks.invalid("cell", owner, f"hold {name} layers", repr(layer))
    if not any(layer.inject > 0.0 for layer in cell):
        remedy = "Without it the state does not depend on x: give one of the layers inject > 0."
        got = "inject = 0 in every layer"
        raise checks.invalid("cell", owner, "be driven by the input", got, remedy)
    return tuple(cell)


class Variances(NamedTuple):
    """Second moments inside a cell of L layers, for n samples; both of shape (L, n)."""

    incoming: FloatArray  # C_l = w_l v_{l−1} + u_l ‖x‖² + b_l, of h_l before normalisation
    scales: FloatArray  # √q_l, of what φ_l is applied to: q_l = C_l, or 1 if normalised


Moment = Literal["square", "variance"]


def solve_variances(
    cell: Sequence[Dense],
    squared_norms: FloatArray,
    *,
    moment: Moment = "square",
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
    name : str
        What the message calls the solution.

    Returns
    -------
    Variances, FixedPoint
        The second is the record of the solve for v.

    Raises
    ------
    NotConverged
        There is no solution.
    """

    def image(state: FloatArray) -> FloatArray:
        # Squares of larger variances overflow in the moments; infinity ends the iteration with a
        # reason.
        if not (np.isfinite(state).all() and state.max(initial=0.0) < 1e200):
            return np.full_like(state, np.inf)
        return _turn(cell, np.maximum(state, 0.0), squared_norms, moment)[1]

    remedy = "Smaller weights (a smaller sigma_a2) make it contract."
    start = np.zeros_like(squared_norms)
    solution = solve_fixed_point(image, start, name=name, remedy=remedy)
    return _turn(cell, solution.value, squared_norms, moment)[0], solution


def _turn(
    cell: Sequence[Dense], state: FloatArray, squared_norms: FloatArray, moment: Moment = "square"
) -> tuple[Variances, FloatArray]:
    """Go through the cell once: the variances, and the second moment that comes out."""
    incoming, scales = np.empty((2, len(cell), *state.shape))
    for index, layer in enumerate(cell):
        incoming[index] = layer.weight * state + layer.inject * squared_norms + layer.bias
        normalised = layer.normalise == "preactivation"
        q = np.ones_like(state) if normalised else incoming[index]
        scales[index] = np.maximum(np.sqrt(q), LEAST_SCALE)
        if layer.normalise == "feature":
            state = np.ones_like(state)
        else:
            try:
                state = np.asarray(getattr(layer.activation.moments(scales[index]), moment))
            except NotIntegrable:  # the iterates have diverged
                state = np.full_like(state, np.inf)
    return Variances(incoming, scales), state


def stability(cell: Sequence[Dense], variances: Variances) -> FloatArray:
    """Π_l w_l E φ_l′²: the squared spectral radius of a turn's Jacobian at large width, (n,).

    Normalisation divides by the variance of what it normalises.
    """
    product = np.ones(variances.scales.shape[1:])
    for layer, incoming, scales in zip(cell, variances.incoming, variances.scales, strict=True):
        moments = layer.activation.moments(scales)
        factor = layer.weight * np.asarray(moments.slope_square)
        if layer.normalise == "preactivation":
            factor = factor / incoming
        elif layer.normalise == "feature":
            factor = factor / moments.variance
        product = product * factor
    return product


def another_variance(cell: Sequence[Dense], squared_norm: float) -> float | None:
    """Return a second solution of the equation for the variance, if one is seen.

    `solve_variances` finds the smallest second moment v of the state.  Beyond it one turn must stay
    below v; where it comes back above, on a grid over eight decades, there is another solution.
    The grid ends earlier where an activation varies too fast to be integrated.
    """
    # A kernel asks for the same two norms again with every block of its columns.
    key = tuple(cell), squared_norm
    found: float | None = cell[0].activation.cached(
        "another variance", key, lambda: _another_variance(cell, squared_norm)
    )
    return found


def _another_variance(cell: Sequence[Dense], squared_norm: float) -> float | None:
    state = solve_variances(cell, np.array([squared_norm]))[1].value
    largest = max(float(state[0]), 1e-3 * (squared_norm + sum(layer.bias for layer in cell)), 1e-30)
    grid = state[0] + largest * np.logspace(-2.0, 6.0, 81)
    image = np.empty(0)
    while grid.size and not image.size:
        try:
            with np.errstate(over="ignore"):
                image = _turn(cell, grid, np.full_like(grid, squared_norm))[1]
        except QuadratureError:
            grid = grid[: len(grid) // 2]
    # Just beyond the smallest solution the turn is below v by rounding only.
    above = np.flatnonzero(image > grid * (1.0 + 1e-9))
    return float(grid[above[0]]) if above.size else None


def require_one_variance(cell: Sequence[Dense], squared_norm: float, name: str) -> None:
    """Reject a cell called `name` whose equation for the variance is seen to have two solutions."""
    other = another_variance(cell, squared_norm)
    if other is not None:
        raise NotConverged(
            f"The variance of the {name} has several solutions at ‖x‖² = {squared_norm:.4g}: "
            f"besides the smallest there is one near E z² = {other:.4g}, and which of them a "
            "network settles at depends on its start. Use smaller weights, or an activation that "
            "grows at most linearly."
        )

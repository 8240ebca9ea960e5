"""What the text of a formula proves: symmetry, homogeneity, and where it bends or varies fast.

Sampling can only suggest such facts: min(x, 10) looks odd on |x| ≤ 8, and a spike between two
samples is not there.  A formula says more.  Symmetry and homogeneity follow from those of its
parts.  For the rest every part is enclosed by interval arithmetic: over an interval of x, the range
of its values and of its slopes.  The functions in a formula have a known length on which they vary
(tanh: 1, within |argument| < 20), so an interval over which no argument moves by more than a few of
these lengths hides nothing, and an interval over which no argument of abs, relu, max and min can
change its sign has no kink.  Intervals that fail are halved.

The enclosures are not rounded outwards: they decide where to look, not what is true to the last
digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, expit

from notsodeep.activations.activation import Parity
from notsodeep.activations.expressions import Apply, Expression, Number
from notsodeep.arrays import FloatArray
from notsodeep.errors import QuadratureError

BoolArray = NDArray[np.bool_]

_LENGTHS = 12.0
"""A panel may span so many of the lengths on which a part of the formula varies.

With sixteen Gauss nodes the largest step is then 1.2 of them: whatever the part does is seen, and
the error estimate of the quadrature decides whether it is resolved.
"""

_FINEST = 1e-12  # intervals narrower than this, relative to max(1, |x|), are not halved again
_MOST_PANELS = 20_000
_MOST_KINKS = 64
_FARTHEST = 2.0**40  # numbers in a formula are at most 1e12


def parity(expression: Expression) -> Parity | None:
    """Return the symmetry that the formula proves, None where it proves none.

    Examples
    --------
    >>> from notsodeep.activations.expressions import parse
    >>> parity(parse("x / (1 + abs(x))")), parity(parse("cos(x**3)")), parity(parse("min(x, 10)"))
    ('odd', 'even', None)
    """
    match expression:
        case Number():
            return "even"
        case Apply(operation=operation, arguments=arguments):
            return _parity_of(operation, arguments)
        case _:
            return "odd"


def _parity_of(operation: str, arguments: tuple[Expression, ...]) -> Parity | None:
    parts = [parity(argument) for argument in arguments]
    if operation in ("add", "subtract"):
        # A zero is odd as well as even.
        parts = [p for p, a in zip(parts, arguments, strict=True) if a != Number(0.0)]
        return parts[0] if parts and len(set(parts)) == 1 else None
    if None in parts:
        return None
    if operation in ("multiply", "divide"):
        return "even" if parts[0] == parts[1] else "odd"
    if operation == "power":
        exponent = _constant(arguments[1])
        if parts[0] == "even":
            return "even"
        if not exponent.is_integer():
            return None
        return "odd" if exponent % 2 else "even"
    if all(part == "even" for part in parts):
        return "even"
    if operation in ("negative", "arctan", "erf", "sin", "tanh"):
        return "odd"
    return "even" if operation in ("abs", "cos") else None


def homogeneous(expression: Expression) -> bool:
    """Whether the formula proves f(cx) = c f(x) for every c > 0.

    Examples
    --------
    >>> from notsodeep.activations.expressions import parse
    >>> homogeneous(parse("max(x, 0.1 * x)")), homogeneous(parse("min(relu(x), 200)"))
    (True, False)
    """
    return _degree(expression) in (1.0, math.inf)


def _degree(expression: Expression) -> float | None:
    """Degree d with f(cx) = c^d f(x), c > 0; None if there is none to be seen, ∞ for f = 0."""
    match expression:
        case Number(value=value):
            return math.inf if value == 0.0 else 0.0
        case Apply(operation=operation, arguments=arguments):
            return _degree_of(operation, arguments)
        case _:
            return 1.0


def _degree_of(operation: str, arguments: tuple[Expression, ...]) -> float | None:
    degrees = [d for a in arguments if (d := _degree(a)) is not None]
    if len(degrees) < len(arguments):
        return None
    if operation == "multiply":
        return sum(degrees)
    if operation == "divide":
        return None if math.inf in degrees else degrees[0] - degrees[1]
    if operation == "power":
        return None if math.inf in degrees else degrees[0] * _constant(arguments[1])
    if operation == "sqrt":
        return 0.5 * degrees[0]
    if operation in ("add", "subtract", "max", "min", "negative", "abs", "relu"):
        of_parts = {d for d in degrees if d != math.inf}  # a zero has every degree
        return min(degrees) if len(of_parts) <= 1 else None
    return 0.0 if set(degrees) == {0.0} else None


def _constant(expression: Expression) -> float:
    assert isinstance(expression, Number)  # the grammar allows no other exponent
    return expression.value


class _Range(NamedTuple):
    """Lower and upper ends of a quantity, over each of many intervals of x."""

    low: FloatArray
    high: FloatArray

    @property
    def smallest(self) -> FloatArray:
        """Least |entry|."""
        return np.maximum(np.maximum(self.low, -self.high), 0.0)

    @property
    def largest(self) -> FloatArray:
        """Greatest |entry|."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def has_zero(self) -> BoolArray:
        return (self.low <= 0.0) & (self.high >= 0.0)


class _Enclosure(NamedTuple):
    """A part of a formula over many intervals: its values, and its slopes with respect to x."""

    value: _Range
    slope: _Range


class _Examination:
    """Encloses a formula over intervals and notes which of them hide something.

    Attributes
    ----------
    fast : ndarray of bool
        Some argument moves by more than a few lengths of its function.
    bent : ndarray of bool
        Some argument of abs, relu, max or min may change its sign.
    """

    def __init__(self, expression: Expression, left: FloatArray, right: FloatArray) -> None:
        self._left, self._right = left, right
        self.fast = np.zeros(left.shape, dtype=bool)
        self.bent = np.zeros(left.shape, dtype=bool)
        with np.errstate(all="ignore"):
            self._enclose(expression)

    def _enclose(self, expression: Expression) -> _Enclosure:
        match expression:
            case Number(value=value):
                return _Enclosure(self._exactly(value), self._exactly(0.0))
            case Apply(operation=operation, arguments=arguments):
                return self._apply(operation, [self._enclose(a) for a in arguments])
            case _:
                return _Enclosure(_Range(self._left, self._right), self._exactly(1.0))

    def _exactly(self, value: float) -> _Range:
        return _Range(np.full_like(self._left, value), np.full_like(self._left, value))

    def _apply(self, operation: str, parts: list[_Enclosure]) -> _Enclosure:
        values = [part.value for part in parts]
        slopes = [part.slope for part in parts]
        match operation:
            case "add" | "subtract":
                combine = _sum if operation == "add" else _difference
                return _Enclosure(combine(*values), combine(*slopes))
            case "negative":
                return _Enclosure(_negative(values[0]), _negative(slopes[0]))
            case "multiply":
                return _Enclosure(
                    _product(*values),
                    _sum(_product(slopes[0], values[1]), _product(values[0], slopes[1])),
                )
            case "divide":
                self._note_fast(parts[1], values[1].smallest)
                inverse = _inverse(values[1])
                quotient = _product(values[0], inverse)
                change = _difference(slopes[0], _product(quotient, slopes[1]))
                return _Enclosure(quotient, _product(inverse, change))
            case "max" | "min":
                # Two equal slopes make no kink, even where the values are equal.
                turns = _difference(*slopes).largest > 0.0
                self.bent |= _difference(*values).has_zero & turns
                return self._larger(*parts) if operation == "max" else self._smaller(*parts)
            case "relu":
                return self._apply("max", [parts[0], self._enclose(Number(0.0))])
            case "abs":
                return self._apply("max", [parts[0], self._apply("negative", parts)])
            case "power":
                return self._power(parts[0], float(values[1].low.flat[0]))
            case _:
                rule = _FUNCTIONS[operation]
                self._note_fast(parts[0], rule.length(values[0]))
                return _Enclosure(rule.value(values[0]), _product(rule.slope(values[0]), slopes[0]))

    def _note_fast(self, argument: _Enclosure, length: FloatArray) -> None:
        """Note intervals over which an argument may move by many of the given lengths."""
        moves = argument.slope.largest * (self._right - self._left)
        # Where a range is lost (0·∞), so is the claim that nothing is hidden.
        self.fast |= ~(moves <= _LENGTHS * length) & (length < math.inf)

    def _larger(self, a: _Enclosure, b: _Enclosure) -> _Enclosure:
        value = _Range(np.maximum(a.value.low, b.value.low), np.maximum(a.value.high, b.value.high))
        first, second = a.value.low > b.value.high, b.value.low > a.value.high
        either = _hull(a.slope, b.slope)
        slope = _Range(
            *(
                np.where(first, of_a, np.where(second, of_b, of_either))
                for of_a, of_b, of_either in zip(a.slope, b.slope, either, strict=True)
            )
        )
        return _Enclosure(value, slope)

    def _smaller(self, a: _Enclosure, b: _Enclosure) -> _Enclosure:
        negated = (self._apply("negative", [part]) for part in (a, b))
        return self._apply("negative", [self._larger(*negated)])

    def _power(self, base: _Enclosure, exponent: float) -> _Enclosure:
        if not (exponent.is_integer() and exponent >= 0.0):
            # Singular at zero, on the length of the distance to it.  Polynomials have no length.
            whole = exponent.is_integer()
            self._note_fast(base, base.value.smallest if whole else _distance(base.value))
        rate = _power_range(base.value, exponent - 1.0)
        # A negative exponent swaps the ends; `_product` orders them again.
        slope = _product(_Range(exponent * rate.low, exponent * rate.high), base.slope)
        return _Enclosure(_power_range(base.value, exponent), slope)


def _sum(a: _Range, b: _Range) -> _Range:
    return _known(a.low + b.low, a.high + b.high)


def _difference(a: _Range, b: _Range) -> _Range:
    return _known(a.low - b.high, a.high - b.low)


def _negative(a: _Range) -> _Range:
    return _Range(-a.high, -a.low)


def _product(a: _Range, b: _Range) -> _Range:
    corners = np.stack([a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high])
    # Zero times infinity is zero here: the infinite end is never reached.
    corners = np.where(np.isnan(corners), 0.0, corners)
    return _Range(corners.min(axis=0), corners.max(axis=0))


def _inverse(a: _Range) -> _Range:
    low = np.where(a.has_zero, -np.inf, 1.0 / a.high)
    return _Range(low, np.where(a.has_zero, np.inf, 1.0 / a.low))


def _hull(a: _Range, b: _Range) -> _Range:
    return _Range(np.minimum(a.low, b.low), np.maximum(a.high, b.high))


def _known(low: FloatArray, high: FloatArray) -> _Range:
    """Make a range of its ends, with the whole line where infinities cancelled."""
    return _Range(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))


def _power_range(a: _Range, exponent: float) -> _Range:
    if exponent == 0.0:
        return _Range(np.ones_like(a.low), np.ones_like(a.high))
    if exponent < 0.0:
        return _inverse(_power_range(a, -exponent))
    if not exponent.is_integer():  # defined for a ≥ 0 only
        a = _Range(np.maximum(a.low, 0.0), np.maximum(a.high, 0.0))
    if exponent.is_integer() and exponent % 2 == 0:
        return _Range(a.smallest**exponent, a.largest**exponent)
    return _Range(a.low**exponent, a.high**exponent)


class _FunctionRule(NamedTuple):
    """A function of one argument: range of values and slopes, and the length on which it varies.

    Where the function no longer varies the length is infinite.
    """

    value: Callable[[_Range], _Range]
    slope: Callable[[_Range], _Range]
    length: Callable[[_Range], FloatArray]


def _increasing(function: Callable[[FloatArray], Any]) -> Callable[[_Range], _Range]:
    return lambda a: _Range(function(a.low), function(a.high))


def _bell(function: Callable[[FloatArray], Any]) -> Callable[[_Range], _Range]:
    """Range of an even function that falls with |a|."""
    return lambda a: _Range(function(a.largest), function(a.smallest))


# Beyond `active` a function is constant to double precision: 1 − tanh 20 = 8e-18, 1 − erf 7 =
# 4e-23, sigmoid(−40) = 4e-18.
def _unit_within(active: float) -> Callable[[_Range], FloatArray]:
    return lambda a: np.where(a.smallest < active, 1.0, math.inf)


def _lipschitz_range(function: Callable[[FloatArray], Any]) -> Callable[[_Range], _Range]:
    """Range of sin or cos: from the middle, with slope 1, and never beyond ±1."""

    def enclose(a: _Range) -> _Range:
        middle, half = function(0.5 * (a.low + a.high)), 0.5 * (a.high - a.low)
        lost = ~np.isfinite(middle)
        low, high = np.maximum(middle - half, -1.0), np.minimum(middle + half, 1.0)
        return _Range(np.where(lost, -1.0, low), np.where(lost, 1.0, high))

    return enclose


def _positive(a: _Range) -> _Range:
    return _Range(np.maximum(a.low, 0.0), np.maximum(a.high, 0.0))


def _distance(a: _Range) -> FloatArray:
    """Distance to a singularity at 0 of what is defined for a > 0 only; elsewhere no claim."""
    return np.where(a.high <= 0.0, math.inf, np.maximum(a.low, 0.0))


def _everywhere(a: _Range) -> FloatArray:
    return np.ones_like(a.low)


_FUNCTIONS: dict[str, _FunctionRule] = {
    "arctan": _FunctionRule(
        _increasing(np.arctan),
        _bell(lambda a: 1.0 / (1.0 + a**2)),
        lambda a: np.maximum(1.0, a.smallest),
    ),
    "cos": _FunctionRule(
        _lipschitz_range(np.cos), lambda a: _negative(_lipschitz_range(np.sin)(a)), _everywhere
    ),
    "erf": _FunctionRule(
        _increasing(erf),
        _bell(lambda a: 2.0 / math.sqrt(math.pi) * np.exp(-(a**2))),
        _unit_within(7.0),
    ),
    # exp(−100) is nothing beside anything that double precision could add it to, and exp(700)
    # overflows when squared: the integral will say so.
    "exp": _FunctionRule(
        _increasing(np.exp),
        _increasing(np.exp),
        lambda a: np.where((a.high > -100.0) & (a.low < 700.0), 1.0, math.inf),
    ),
    "log": _FunctionRule(
        lambda a: _increasing(np.log)(_positive(a)),
        lambda a: _inverse(_positive(a)),
        _distance,
    ),
    "sigmoid": _FunctionRule(
        _increasing(expit), _bell(lambda a: expit(a) * expit(-a)), _unit_within(40.0)
    ),
    "sin": _FunctionRule(_lipschitz_range(np.sin), _lipschitz_range(np.cos), _everywhere),
    "softplus": _FunctionRule(
        _increasing(lambda a: np.logaddexp(0.0, a)), _increasing(expit), _unit_within(40.0)
    ),
    "sqrt": _FunctionRule(
        lambda a: _increasing(np.sqrt)(_positive(a)),
        lambda a: _inverse(_increasing(lambda b: 2.0 * np.sqrt(b))(_positive(a))),
        _distance,
    ),
    "tanh": _FunctionRule(
        _increasing(np.tanh), _bell(lambda a: 1.0 - np.tanh(a) ** 2), _unit_within(20.0)
    ),
}


def _octave_ends(reach: float) -> FloatArray:
    """0, ±1/2, ±1, ±2, … up to the first power of two at or beyond `reach`."""
    positive = np.ldexp(0.5, np.arange(max(1, math.ceil(math.log2(reach)) + 1) + 1))
    return np.concatenate([-positive[::-1], [0.0], positive])


def panel_ends(expression: Expression, reach: float) -> tuple[float, ...]:
    """Points in [−reach, reach] that cut octaves in which the formula varies fast.

    Between 0, ±1/2, ±1, ±2, ±4, … and these points, sixteen Gauss nodes see everything that the
    formula does.  Empty for a formula that varies slowly everywhere.

    Raises
    ------
    QuadratureError
        The points are too many.

    Examples
    --------
    >>> from notsodeep.activations.expressions import parse
    >>> panel_ends(parse("tanh(3 * x)"), 16.0)
    ()
    >>> len(panel_ends(parse("sin(9 * x)"), 16.0)), panel_ends(parse("tanh(45 * x)"), 2.0)
    (30, (-0.5, -0.25, 0.0, 0.25, 0.5))
    """
    # The same points serve every reach within an octave.
    return _panel_ends(expression, float(_octave_ends(reach)[-1]))


@lru_cache(maxsize=256)
def _panel_ends(expression: Expression, reach: float) -> tuple[float, ...]:
    ends = _octave_ends(reach)
    left, right = ends[:-1], ends[1:]
    found: list[FloatArray] = []
    count = 0
    while left.size:
        fast = _Examination(expression, left, right).fast
        wide = right - left > _FINEST * np.maximum(1.0, np.abs(left))
        left, right = left[fast & wide], right[fast & wide]
        middle = 0.5 * (left + right)
        found += [left, middle, right]
        count += middle.size
        if count > _MOST_PANELS:
            raise QuadratureError(
                f"The formula varies too fast to be integrated for |x| ≤ {reach:g}: more than "
                f"{_MOST_PANELS} panels would be needed, the first near x = {float(left[0]):.6g}. "
                "Use inputs of smaller norm, or a smoother formula."
            )
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()


def possible_kinks(expression: Expression) -> tuple[float, ...]:
    """Places where abs, relu, max or min may turn, wherever they are.

    Not all of them need be kinks (abs(x)**2 has none).  Octaves are searched outwards from 0; the
    search ends with the first that has more than a few dozen, as in abs(sin(x)).

    Examples
    --------
    >>> from notsodeep.activations.expressions import parse
    >>> possible_kinks(parse("min(relu(x - 8.5), 1e6)"))
    (8.5, 1000008.5)
    """
    ends = _octave_ends(_FARTHEST)
    positive = ends[ends > 0.0]
    found: list[float] = []
    for inner, outer in zip(np.concatenate([[0.0], positive[:-1]]), positive, strict=True):
        left, right = np.array([-outer, inner]), np.array([-inner, outer])
        while left.size:
            bent = _Examination(expression, left, right).bent
            left, right = left[bent], right[bent]
            # A kink never stops being one, and is located to this width; where a sign may change
            # without one, enclosures become tight and the interval drops out.
            narrow = right - left <= 1e-10 * np.maximum(1.0, np.abs(left))
            found += (0.5 * (left[narrow] + right[narrow])).tolist()
            left, right = left[~narrow], right[~narrow]
            if left.size > 4 * _MOST_KINKS or len(found) > 4 * _MOST_KINKS:
                return _merged(found)
            middle = 0.5 * (left + right)
            left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        if len(_merged(found)) > _MOST_KINKS:
            break
    return _merged(found)


def _merged(places: list[float]) -> tuple[float, ...]:
    """Places in increasing order, those of one kink as one, rounded as far as they are known."""
    merged: list[float] = []
    for place in sorted(places):
        if not merged or place - merged[-1] > 1e-8 * max(1.0, abs(place)):
            merged.append(place)
    return tuple(0.0 if abs(place) < 1e-9 else float(f"{place:.9g}") for place in merged)

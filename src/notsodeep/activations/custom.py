"""A user's own activation, from a formula or from any vectorised NumPy function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np

from notsodeep import checks
from notsodeep.activations import expressions, formula_analysis
from notsodeep.activations.activation import Activation, Parity, frozen_parameters
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotSerialisable, UndeclaredKink
from notsodeep.numerics.quadrature import gauss_legendre, resolved_samples
from notsodeep.numerics.smoothness import (
    is_rough,
    piecewise_derivative,
    resolving_radius,
    rough_points,
    unseen_panels,
)

ArrayFunction = Callable[[FloatArray], FloatArray]

REACH = 8.0
"""Functions are examined on [-REACH, REACH]: beyond, at unit scale, lies a mass of 1e-15."""

_FAR = np.logspace(1, 6, 6)


def require_usable(
    value: ArrayFunction,
    derivative: ArrayFunction,
    kinks: tuple[float, ...],
    owner: str,
    *,
    suspects: tuple[float, ...] = (),
    ends: tuple[float, ...] = (),
) -> None:
    """Reject what the theory cannot use, with the reason and the place.

    Parameters
    ----------
    value, derivative : callable
    kinks : tuple of float
        As declared.
    owner : str
        What messages call the function.
    suspects : tuple of float
        Further places, near and far, where there may be a kink.
    ends : tuple of float
        Ends of panels within which the function varies fast.

    Raises
    ------
    InvalidInput
        Not finite, not continuous, or with an unbounded slope somewhere on [-REACH, REACH].
    NotIntegrable
        No Gaussian second moment at scale 1.
    UndeclaredKink
        Not smooth at a point that is not among the kinks.
    """
    x = np.linspace(-REACH, REACH, 1601)
    _require_finite(value(x), x, f"The {owner}")
    rough = rough_points(value, REACH, (*kinks, *ends))
    # Over the 2e-10 that a jump is measured on, a slope of 5,000 would move a function as much.
    large = 1e-6 * max(1.0, float(np.abs(value(x)).max()))
    jumps = [point.position for point in rough if point.jump > large]
    jumps += [kink for kink in kinks if _jump(value, kink) > large]
    if jumps:
        raise InvalidInput(
            f"The {owner} is not continuous, or infinitely steep, near x = {jumps[0]:g}. "
            "An activation must be continuous with a bounded slope."
        )
    places = {point.position for point in rough} | set(_rough_suspects(value, suspects, kinks))
    if places:
        raise UndeclaredKink(_word_kinks(sorted(places), kinks, owner))
    # Just off the kinks, where a one-sided slope may be infinite (√|x|).
    near = np.array([k + s * 10.0**-e for k in kinks for s in (-1, 1) for e in (6, 9, 12)])
    points = np.concatenate([x, near])
    slopes = derivative(points)
    _require_finite(slopes, points, f"The slope of the {owner}")
    steepest = float(np.abs(slopes).max())
    # √|x| has the slope 5e5 at 1e-12.
    if steepest > 1e5 * (1.0 + float(np.abs(derivative(x[1::2])).max())):
        place = float(points[np.abs(slopes).argmax()])
        raise InvalidInput(
            f"The {owner} is infinitely steep near x = {place:.3g}: its slope reaches "
            f"{steepest:.3g}. An activation must have a bounded slope."
        )
    for _ in resolved_samples(
        lambda x: value(x)[None], np.array([1.0]), (*kinks, *ends), name=f"The {owner}"
    ):
        pass


def _rough_suspects(
    value: ArrayFunction, suspects: tuple[float, ...], kinks: tuple[float, ...]
) -> list[float]:
    """Those of the suspects that are kinks and were not declared."""
    known = np.unique([*suspects, *kinks])
    found = []
    for place in suspects:
        apart = np.abs(known - place)
        scale = max(1.0, abs(place))
        if any(abs(kink - place) <= 1e-6 * scale for kink in kinks):
            continue
        radius = 0.25 * min(scale, float(apart[apart > 1e-8 * scale].min(initial=scale)))
        if is_rough(value, place, radius):
            found.append(place)
    return found


def _jump(value: ArrayFunction, kink: float) -> float:
    """How much the function changes within 1e-12 of a kink."""
    step = 1e-12 * max(1.0, abs(kink))
    below, above = value(np.array([kink - step, kink + step]))
    return float(abs(above - below))


def _require_finite(values: FloatArray, x: FloatArray, what: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        raise InvalidInput(
            f"{what} must be finite for |x| ≤ {REACH:g}. Got {values[bad][0]} at "
            f"x = {x[bad][0]:.6g}, and at {int(bad.sum())} of {x.size} points. "
            "Guard that place: with max or abs in a formula, with np.where in a function."
        )


def _word_kinks(places: list[float], kinks: tuple[float, ...], owner: str) -> str:
    if len(places) > 8:
        return (
            f"The {owner} is not smooth at {len(places)} or more places (the first near "
            f"x = {places[0]:g}). It may be computed in single precision or be noisy: "
            "an activation must be smooth, in double precision, away from a few kinks."
        )
    declare = ", ".join(f"{k:g}" for k in sorted({*kinks, *places}))
    comma = "," if len({*kinks, *places}) == 1 else ""
    return (
        f"The {owner} has an undeclared kink near x = {', '.join(f'{p:g}' for p in places)}. "
        f"Declare it: kinks=({declare}{comma}), with the exact position."
    )


def require_symmetry(
    value: ArrayFunction, parity: Parity | None, homogeneous: bool, owner: str
) -> None:
    """Reject a declared parity or homogeneity that the function does not have.

    Looked at up to |x| = 10⁶: evidence, not proof, but the user's word stands beside it.
    """
    x = np.concatenate([np.linspace(0.0, REACH, 4001), np.geomspace(REACH, 1e6, 4001)])
    right, left = value(x), value(-x)
    size = np.maximum(np.abs(right), np.abs(left))
    if parity is not None:
        wrong = ~(np.abs(right + left if parity == "odd" else right - left) <= 1e-13 * size)
        if wrong.any():
            first = int(wrong.argmax())
            raise InvalidInput(
                f"parity of the {owner} must be what the function has. Got {parity!r}, but at "
                f"x = ±{x[first]:.6g} the values are {right[first]:.6g} and {left[first]:.6g}. "
                "Leave parity out."
            )
    if homogeneous:
        for sign in (1.0, -1.0):
            wrong = ~(np.abs(value(sign * x) - x * value(np.array([sign]))) <= 1e-13 * size)
            if wrong.any():
                raise InvalidInput(
                    f"The {owner} was declared homogeneous, φ(cx) = c φ(x) for every c > 0, but "
                    f"is not at x = {sign * float(x[wrong.argmax()]):.6g}. Leave homogeneous out."
                )


def largest_slope(derivative: ArrayFunction, ends: tuple[float, ...]) -> float:
    """Sup |φ′|: on a grid refined around its maximum; infinite if it keeps growing far out.

    `ends` are those of panels within which φ varies fast.
    """
    nodes, _ = gauss_legendre(16)
    panels = np.array(ends)
    inside = 0.5 * (panels[1:] + panels[:-1])[:, None] + 0.5 * np.diff(panels)[:, None] * nodes
    x = np.unique(np.concatenate([np.linspace(-REACH, REACH, 4001), inside.reshape(-1)]))
    for _ in range(4):
        slopes = np.abs(derivative(x))
        best = int(np.nanargmax(slopes))
        low, high = x[max(best - 1, 0)], x[min(best + 1, x.size - 1)]
        x = np.linspace(low, high, 201)
    largest = float(np.nanmax(slopes))
    # A careless formula may overflow far out (log(cosh(x))): what it says there is left aside.
    # Either side by itself, since exp grows on one of them only.
    for sign in (-1.0, 1.0):
        far = [float(s) for s in np.abs(derivative(sign * _FAR)) if math.isfinite(s)]
        if not far:
            continue
        # Up to 10⁶ slopes have settled if they ever do: that of x log x still grows by 18 % in the
        # last decade.  Before an overflow they need not have, but what overflows grows faster.
        enough = 1.01 if len(far) == len(_FAR) else 2.0
        if far[-1] > enough * max(largest, *far[:-1], 0.0):
            return math.inf
        largest = max(largest, *far)
    return largest


@dataclass(frozen=True, repr=False)
class Formula(Activation):
    """An activation given by a formula in x.

    Examples
    --------
    >>> mish = from_formula("x * tanh(softplus(x))")
    >>> mish, mish.to_dict()["parameters"]["formula"]
    (<activation x * tanh(softplus(x))>, 'x * tanh(softplus(x))')
    >>> round(float(mish.derivative(np.array(0.0))), 6)
    0.6
    """

    expression: expressions.Expression

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x)."""
        return expressions.value(self.expression, x)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x), exactly, by the chain rule."""
        return expressions.derivative(self.expression, x)

    def panel_ends(self, reach: float) -> tuple[float, ...]:
        """Points between which the formula varies slowly enough to be integrated."""
        return formula_analysis.panel_ends(self.expression, reach)

    def __str__(self) -> str:
        return str(dict(self.parameters)["formula"])


def from_formula(formula: str, *, kinks: Iterable[float] = ()) -> Formula:
    """Make an activation from a formula in x, such as ``"x / (1 + abs(x))"``.

    The formula is parsed by a small grammar and never run as code; see
    `notsodeep.activations.expressions` for what it may contain.  The result has an exact
    derivative, can be saved, and can be built into a torch network.  Parity and homogeneity are
    those that the formula proves; the Lipschitz constant is found numerically.

    Parameters
    ----------
    formula : str
    kinks : iterable of float
        Points where the function or one of its derivatives jumps.  Undeclared ones are found,
        wherever they are, and rejected with their position.

    Examples
    --------
    >>> softsign = from_formula("x / (1 + abs(x))", kinks=(0.0,))
    >>> float(softsign(1.0)), softsign.parity, round(softsign.lipschitz, 9)
    (0.5, 'odd', 1.0)
    """
    expression = expressions.parse(formula)
    declared = checks.increasing_points(kinks, "kinks", "from_formula")
    value = partial(expressions.value, expression)
    derivative = partial(expressions.derivative, expression)
    ends = formula_analysis.panel_ends(expression, 2.0 * REACH)
    suspects = formula_analysis.possible_kinks(expression)
    require_usable(
        value, derivative, declared, f"formula {formula!r}", suspects=suspects, ends=ends
    )
    return Formula(
        name="formula",
        parameters=frozen_parameters({"formula": formula.strip(), "kinks": declared}),
        kinks=declared,
        parity=formula_analysis.parity(expression),
        lipschitz=largest_slope(derivative, (*ends, *declared)),
        homogeneous=formula_analysis.homogeneous(expression),
        detected=True,
        expression=expression,
    )


@dataclass(frozen=True, repr=False)
class Function(Activation):
    """An activation given by a NumPy function.  It cannot be saved: a function is not data.

    Attributes
    ----------
    function : callable
    slope : callable or None
        The derivative, if the user gave one.
    torch : callable or None
        The same function on torch tensors, if the user gave one.
    radius : float
        Half the interval on which φ is interpolated where its derivative was not given.
    ends : tuple of float
        Ends of panels within which φ varies fast.

    Examples
    --------
    >>> square = from_function(np.square, name="square", parity="even")
    >>> square.parity, square.derivative(np.array([1.5])).round(9)
    ('even', array([3.]))
    """

    function: ArrayFunction
    slope: ArrayFunction | None
    torch: Callable[[Any], Any] | None
    radius: float
    ends: tuple[float, ...]

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x)."""
        return _quietly(self.function, x)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x): as given, or from local polynomials that do not reach across a kink."""
        if self.slope is not None:
            return _quietly(self.slope, x)
        return piecewise_derivative(self.value, x, self.kinks, self.radius)

    def panel_ends(self, reach: float) -> tuple[float, ...]:
        """Points found to cut the panels within which φ varies fast."""
        return tuple(end for end in self.ends if abs(end) <= reach)

    def to_dict(self) -> dict[str, Any]:
        """Reject: a Python function has no faithful JSON form."""
        raise NotSerialisable(
            f"{self.name} was made from a Python function, which cannot be saved. "
            "Write it as a formula (from_formula), or keep the code that makes it."
        )


def from_function(
    function: ArrayFunction,
    *,
    name: str,
    kinks: Iterable[float] = (),
    derivative: ArrayFunction | None = None,
    torch: Callable[[Any], Any] | None = None,
    parity: Parity | None = None,
    homogeneous: bool = False,
) -> Function:
    """Make an activation from any vectorised NumPy function.

    Everything the theory needs is tested here, before any work: that the function is elementwise
    and finite, has a Gaussian second moment at scale 1, and is smooth away from the declared kinks.
    The Lipschitz constant is found numerically (``detected`` is True).  A function can be known at
    some points only: spikes narrower than about 1e-4 may be missed, where a formula shows them.

    Parameters
    ----------
    function : callable
        Maps a float64 array to a float64 array of the same shape, entry by entry.
    name : str
    kinks : iterable of float
        Points where the function or one of its derivatives jumps.
    derivative : callable, optional
        Exact derivative; without it, φ is differentiated numerically (to about 1e-12).
    torch : callable, optional
        The same function on torch tensors; needed only to build finite networks.
    parity : {"odd", "even"}, optional
        Declare a symmetry, which makes kernels faster and, for nearly opposite inputs and kinked
        functions, more precise.  Tested up to |x| = 10⁶; beyond, it is your word.
    homogeneous : bool, default False
        Declare that φ(cx) = c φ(x) for every c > 0.  Tested likewise.

    Examples
    --------
    >>> mine = from_function(
    ...     lambda x: np.logaddexp(x, -x) - np.log(2), name="log_cosh", parity="even"
    ... )
    >>> mine.parity, round(mine.lipschitz, 9), mine.detected
    ('even', 1.0, True)
    """
    owner = "from_function"
    label = _label(name, owner)
    for parameter, given in (("function", function), ("derivative", derivative), ("torch", torch)):
        if not callable(given) and (parameter == "function" or given is not None):
            raise checks.invalid(parameter, owner, "be callable", repr(given))
    declared = checks.increasing_points(kinks, "kinks", owner)
    _elementwise(function, f"function {label!r}")
    if derivative is not None:
        _elementwise(derivative, f"derivative of {label!r}")
    value = partial(_quietly, function)
    ends = unseen_panels(value, declared)
    radius = resolving_radius(value, REACH, declared, ends) if derivative is None else 0.0
    slope = (
        partial(piecewise_derivative, value, kinks=declared, radius=radius)
        if derivative is None
        else partial(_quietly, derivative)
    )
    require_usable(value, slope, declared, f"function {label!r}", ends=ends)
    if parity is not None:
        checks.known_name(parity, get_args(Parity), "parity of from_function")
    require_symmetry(value, parity, bool(homogeneous), f"function {label!r}")
    return Function(
        name=label,
        parameters=(),
        kinks=declared,
        parity=parity,
        lipschitz=largest_slope(slope, (*ends, *declared)),
        homogeneous=bool(homogeneous),
        detected=True,
        function=function,
        slope=derivative,
        torch=torch,
        radius=radius,
        ends=ends,
    )


def _quietly(function: ArrayFunction, x: FloatArray) -> FloatArray:
    """Evaluate without floating-point warnings; what is not finite is reported by the checks."""
    with np.errstate(all="ignore"):
        return np.asarray(function(x), dtype=np.float64)


def _label(name: object, owner: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise checks.invalid("name", owner, "be a non-empty string", repr(name))
    return name.strip()


def _elementwise(function: Callable[[FloatArray], Any], owner: str) -> None:
    """Require that a function maps float64 arrays entry by entry to float64 arrays."""
    x = np.linspace(-2.0, 2.0, 12)[5 * np.arange(12) % 12]  # in no order that sorting would keep
    try:
        with np.errstate(all="ignore"):
            whole = function(x.copy())
            square = function(x.reshape(3, 4))
            part = function(x[:7].copy())
    except Exception as error:
        raise InvalidInput(
            f"The {owner} must accept NumPy arrays of any shape. It raised "
            f"{type(error).__name__}: {error}. Write it with NumPy functions "
            "(np.tanh, np.where, …), or wrap it in numpy.vectorize."
        ) from error
    for argument, result in ((x, whole), (x.reshape(3, 4), square), (x[:7], part)):
        shape = np.shape(result)
        if shape != argument.shape:
            requirement = "return an array of the shape it is given"
            got = f"shape {shape} for shape {argument.shape}"
            raise InvalidInput(f"The {owner} must {requirement}. Got {got}.")
        dtype = np.asarray(result).dtype
        if dtype != np.float64:
            raise InvalidInput(
                f"The {owner} must return float64 for float64 input. Got dtype {dtype}. "
                "Lower precision would spoil every moment; keep the computation in double."
            )
    if not np.array_equal(whole[:7], part, equal_nan=True):
        raise InvalidInput(
            f"The {owner} must be elementwise and deterministic: its value at a point changed with "
            "the other points in the array, or from one call to the next."
        )

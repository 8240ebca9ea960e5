"""A user's own activation, from a formula or from any vectorised NumPy function.

What the theory needs is tested on [−8, 8] when the activation is made: finite, continuous with a
bounded slope, smooth away from the declared kinks.  Symmetries and the Lipschitz constant are
looked for up to |x| = 10⁶; they are evidence, not proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from notsodeep import checks
from notsodeep.activations.activation import Activation, Parity
from notsodeep.activations.formulas import Formula
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotSerialisable, QuadratureError, UndeclaredKink
from notsodeep.numerics.quadrature import (
    ArrayFunction,
    gauss_legendre,
    gaussian_density,
    hermite_expansion,
)

RANGE = 8.0
"""Functions are examined on [-RANGE, RANGE]: beyond, at unit scale, lies a mass of 1e-15."""

_FAR = np.logspace(1, 6, 6)
_NODES = 16
_RADII = tuple(2.0**-k for k in range(13))
_ROUNDING = 5e-14  # Legendre coefficients below this, relative to the largest value, are noise
_KINK_WIDTH = 1e-4  # a panel this narrow that still fails contains a kink
_MAX_ROUGH_PANELS = 1024
_GRID = 1 << 18  # points that show what happens between the nodes of quadratures


@dataclass(frozen=True, repr=False)
class Custom(Activation):
    """An activation given by a formula in x, or by a NumPy function, which cannot be saved."""

    function: Formula | ArrayFunction
    torch: Callable[[Any], Any] | None = None  # the same function on tensors, if there is one
    radius: float = 0.0  # half the intervals on which a function without derivative is interpolated

    @property
    def formula(self) -> Formula | None:
        """The formula, unless φ is a Python function."""
        return self.function if isinstance(self.function, Formula) else None

    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x); what is not finite is reported by the checks, not by warnings."""
        return _evaluate(self.function, x)

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x): exactly, or from polynomials that do not reach across a kink."""
        if isinstance(self.function, Formula):
            return self.function.derivative(x)
        return piecewise_derivative(self.value, x, self.kinks, self.radius)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of a formula; a Python function has none."""
        if self.formula is None:
            raise NotSerialisable(
                f"{self.name} was made from a Python function, which cannot be saved. "
                "Write it as a formula (from_formula), or keep the code that makes it."
            )
        return super().to_dict()

    def __str__(self) -> str:
        return self.name if self.formula is None else self.formula.text


def from_formula(formula: str, *, kinks: Iterable[float] = ()) -> Custom:
    """Make an activation from a formula in x, such as ``"x / (1 + abs(x))"``.

    The formula is parsed by a small grammar and never run as code; see
    `notsodeep.activations.formulas` for what it may contain.  The result has an exact derivative,
    can be saved, and can be built into a torch network.

    Parameters
    ----------
    formula : str
    kinks : iterable of float
        Points where the function or one of its derivatives jumps.  Undeclared ones in [−8, 8] are
        rejected with their position.

    Examples
    --------
    >>> softsign = from_formula("x / (1 + abs(x))", kinks=(0.0,))
    >>> float(softsign(1.0)), softsign.parity, round(softsign.lipschitz, 9)
    (0.5, 'odd', 1.0)
    """
    parsed = Formula.parse(formula)
    declared = checks.increasing_points(kinks, "kinks", "from_formula")
    parameters = (("formula", parsed.text), ("kinks", declared))
    return _custom("formula", f"formula {formula!r}", parsed, declared, parameters=parameters)


def from_function(
    function: ArrayFunction,
    *,
    name: str,
    kinks: Iterable[float] = (),
    torch: Callable[[Any], Any] | None = None,
) -> Custom:
    """Make an activation from any vectorised NumPy function.

    It must be elementwise and finite, with a Gaussian second moment at scale 1, and smooth away
    from the declared kinks.  It is differentiated numerically, to about 1e-12.

    Parameters
    ----------
    function : callable
        Maps a float64 array to a float64 array of the same shape, entry by entry.
    name : str
    kinks : iterable of float
        Points where the function or one of its derivatives jumps.
    torch : callable, optional
        The same function on torch tensors; needed only to build finite networks.

    Examples
    --------
    >>> mine = from_function(lambda x: np.logaddexp(x, -x) - np.log(2), name="log_cosh")
    >>> mine.parity, round(mine.lipschitz, 9)
    ('even', 1.0)
    """
    owner = "from_function"
    if not isinstance(name, str) or not name.strip():
        raise checks.invalid("name", owner, "be a non-empty string", repr(name))
    for parameter, given in (("function", function), ("torch", torch)):
        if not callable(given) and (parameter == "function" or given is not None):
            raise checks.invalid(parameter, owner, "be callable", repr(given))
    label = f"function {name.strip()!r}"
    declared = checks.increasing_points(kinks, "kinks", owner)
    _require_elementwise(function, label)
    radius = resolving_radius(lambda x: _evaluate(function, x), declared)
    return _custom(name.strip(), label, function, declared, torch=torch, radius=radius)


def _custom(
    name: str,
    label: str,
    function: Formula | ArrayFunction,
    kinks: tuple[float, ...],
    **further: Any,
) -> Custom:
    """Examine a function and make an activation of it with the facts that were seen."""
    draft = Custom(name=name, kinks=kinks, lipschitz=math.inf, function=function, **further)
    _require_usable(draft, label)
    parity, homogeneous = _symmetries(draft.value)
    lipschitz = _largest_slope(draft.derivative, kinks)
    return replace(draft, parity=parity, lipschitz=lipschitz, homogeneous=homogeneous)


def _evaluate(function: Formula | ArrayFunction, x: FloatArray) -> FloatArray:
    with np.errstate(all="ignore"):
        return np.asarray(function(x), dtype=np.float64)


# Examination -----------------------------------------------------------------------------------


def _require_elementwise(function: Callable[[FloatArray], Any], label: str) -> None:
    """Require that a function maps float64 arrays entry by entry to float64 arrays."""
    x = np.linspace(-2.0, 2.0, 12)[5 * np.arange(12) % 12]  # in no order that sorting would keep
    arguments = x, x.reshape(3, 4), x[:7]
    copies = [argument.copy() for argument in arguments]
    try:
        with np.errstate(all="ignore"):
            results = [np.array(function(copy)) for copy in copies]
    except Exception as error:
        raise InvalidInput(
            f"The {label} must accept NumPy arrays of any shape. It raised "
            f"{type(error).__name__}: {error}. Write it with NumPy functions "
            "(np.tanh, np.where, …), or wrap it in numpy.vectorize."
        ) from error
    for argument, result in zip(arguments, results, strict=True):
        if result.shape != argument.shape or result.dtype != np.float64:
            raise InvalidInput(
                f"The {label} must return float64 arrays of the shape it is given, got shape "
                f"{result.shape} and dtype {result.dtype} for shape {argument.shape}."
            )
    unchanged = all(map(np.array_equal, arguments, copies))
    if not unchanged or not np.array_equal(results[0][:7], results[2], equal_nan=True):
        raise InvalidInput(
            f"The {label} must be elementwise and deterministic, and leave its argument as it is: "
            "its value at a point changed with the other points, or from one call to the next."
        )


def _require_usable(phi: Custom, label: str) -> None:
    """Reject what the theory cannot use, with the reason and the place."""
    x = np.linspace(-RANGE, RANGE, 1601)
    values = phi.value(x)
    _require_finite(values, x, f"The {label}")
    rough = rough_points(phi.value, phi.kinks)
    steps = np.array([1e-12 * max(1.0, abs(kink)) for kink in phi.kinks])
    beside = np.array(phi.kinks) + np.stack([-steps, steps])
    jumps = np.abs(phi.value(beside) - phi.value(np.array(phi.kinks))).max(axis=0)
    # A slope of 5,000 moves a function as much between the points that a jump is measured at; at a
    # declared kink one of 10⁵ does, and √|x|, whose one-sided slope is infinite.
    size = max(1.0, float(np.abs(values).max()))
    steep = [position for position, jump in rough if jump > 2.5e-4 * size]
    steep += [kink for kink, jump in zip(phi.kinks, jumps, strict=True) if jump > 1e-7 * size]
    if steep:
        raise InvalidInput(
            f"The {label} is not continuous, or infinitely steep, near x = {steep[0]:g}. "
            "An activation must be continuous with a bounded slope."
        )
    if rough:
        raise _undeclared([position for position, _ in rough], phi.kinks, label)
    points = np.concatenate([x, beside.reshape(-1)])
    _require_finite(phi.derivative(points), points, f"The slope of the {label}")
    hermite_expansion(phi.value, np.ones(1), 1, phi.kinks, name=f"The {label}")
    _require_visible(phi, label)


def _require_visible(phi: Custom, label: str) -> None:
    """Reject spikes between the nodes of quadratures: a dense grid gives the same moments."""

    def inside(x: FloatArray) -> FloatArray:
        return np.where(np.abs(x) < RANGE, phi.value(x), 0.0)

    ends = (-RANGE, *phi.kinks, RANGE)
    scales = np.array([1.0, 2.0])
    means, squares = hermite_expansion(inside, scales, 1, ends, name=f"The {label}")
    step = 2.0 * RANGE / _GRID
    x: FloatArray = -RANGE + step * (np.arange(_GRID, dtype=np.float64) + 0.5)
    values = phi.value(x)
    for scale, mean, square in zip(scales, means[:, 0], squares, strict=True):
        weights = gaussian_density(x / scale) * step / scale
        gap = max(
            abs(float(weights @ values) - mean) * math.sqrt(square),
            abs(float(weights @ values**2) - square),
        )
        if gap > 1e-6 * square:
            raise QuadratureError(
                f"The {label} varies too fast: what it does between the nodes of a quadrature "
                f"changes its moments by {gap / square:.2g}. Use a smoother function."
            )


def _require_finite(values: FloatArray, x: FloatArray, what: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        raise InvalidInput(
            f"{what} must be finite for |x| ≤ {RANGE:g}, got {values[bad][0]} at "
            f"x = {x[bad][0]:.6g}, and at {int(bad.sum())} of {x.size} points. "
            "Guard that place: with max or abs in a formula, with np.where in a function."
        )


def _undeclared(places: list[float], kinks: tuple[float, ...], label: str) -> UndeclaredKink:
    if len(places) > 8:
        return UndeclaredKink(
            f"The {label} is not smooth at {len(places)} or more places (the first near "
            f"x = {places[0]:g}). It may be computed in single precision or be noisy: "
            "an activation must be smooth, in double precision, away from a few kinks."
        )
    declare = ", ".join(f"{k:g}" for k in sorted({*kinks, *places}))
    comma = "," if len({*kinks, *places}) == 1 else ""
    return UndeclaredKink(
        f"The {label} has an undeclared kink near x = {', '.join(f'{p:g}' for p in places)}. "
        f"Declare it: kinks=({declare}{comma}), with the exact position."
    )


def _symmetries(value: ArrayFunction) -> tuple[Parity | None, bool]:
    """Return the parity of a function, and whether it is homogeneous, as seen up to 10⁶."""
    x = np.concatenate([np.linspace(0.0, RANGE, 4001), np.geomspace(RANGE, 1e6, 4001)])
    right, left = value(x), value(-x)
    small = 1e-13 * np.maximum(np.abs(right), np.abs(left))
    parity: Parity | None = None
    with np.errstate(invalid="ignore"):
        if (np.abs(right + left) <= small).all():
            parity = "odd"
        elif (np.abs(right - left) <= small).all():
            parity = "even"
        at_one = value(np.array([-1.0, 1.0]))
        straight = [np.abs(right - x * at_one[1]) <= small, np.abs(left - x * at_one[0]) <= small]
    return parity, bool(np.all(straight))


def _largest_slope(derivative: ArrayFunction, kinks: tuple[float, ...]) -> float:
    """Sup |φ′|: on a grid refined around its maximum; infinite if it keeps growing far out."""
    beside = [k + s * max(1.0, abs(k)) for k in kinks for s in (-1e-12, 1e-12)]
    x = np.unique(np.concatenate([np.linspace(-RANGE, RANGE, 4001), beside]))
    for _ in range(4):
        slopes = np.abs(derivative(x))
        best = int(np.nanargmax(slopes))
        low, high = x[max(best - 1, 0)], x[min(best + 1, x.size - 1)]
        x = np.linspace(low, high, 201)
    largest = float(np.nanmax(slopes))
    # A careless formula may overflow far out (log(cosh(x))): what it says there is passed over.
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


# Smoothness ------------------------------------------------------------------------------------


@cache
def _legendre_transform() -> FloatArray:
    """Matrix from values at the nodes to Legendre coefficients."""
    x, w = gauss_legendre(_NODES)
    basis = np.polynomial.legendre.legvander(x, _NODES - 1)
    return np.asarray(basis * w[:, None] * (np.arange(_NODES) + 0.5))


def _intervals(
    x: FloatArray, kinks: tuple[float, ...], radius: float
) -> tuple[FloatArray, FloatArray]:
    """Centres and radii of intervals that contain x and no kink in their interior."""
    ends = np.array([-math.inf, *kinks, math.inf])
    segment = np.searchsorted(ends, x)
    low, high = ends[segment - 1], ends[segment]
    # searchsorted puts a kink itself into the segment on its left, hence the slope there.
    local = np.minimum(radius, 0.5 * (high - low))
    return np.clip(x, low + local, high - local), local


def piecewise_derivative(
    function: ArrayFunction, x: FloatArray, kinks: tuple[float, ...], radius: float
) -> FloatArray:
    """Differentiate a function that is smooth between the kinks; at a kink, the slope on its left.

    At each point it is interpolated on an interval of that radius by a polynomial of degree 15,
    which is differentiated.  Near a kink the interval is pushed aside, to stay on one side of it.
    """
    centre, local = _intervals(x, kinks, radius)
    nodes, _ = gauss_legendre(_NODES)
    values = function(centre[..., None] + local[..., None] * nodes)
    with np.errstate(invalid="ignore"):  # where the function is not finite, neither is its slope
        coefficients = np.moveaxis(values @ _legendre_transform(), -1, 0)
        slopes = np.polynomial.legendre.legder(coefficients, axis=0)
        slope = np.polynomial.legendre.legval((x - centre) / local, slopes, tensor=False)
    return np.asarray(slope / local)


def resolving_radius(function: ArrayFunction, kinks: tuple[float, ...]) -> float:
    """Largest radius of intervals on which the polynomials reach rounding, on [−8, 8]."""
    x = np.linspace(-RANGE, RANGE, 801)
    nodes, _ = gauss_legendre(_NODES)
    # The largest that will do: differences amplify the rounding of f by 1/radius.
    for radius in _RADII:
        centre, local = _intervals(x, kinks, radius)
        values = function(centre[:, None] + local[:, None] * nodes)
        last = np.abs(values @ _legendre_transform()[:, -2:]).sum(axis=1)
        # Relative to the largest value anywhere: where f is small its slope matters less.
        if (last <= 1e-13 * np.abs(values).max()).all():
            return radius
    # Not resolved at any radius: the derivative is then as good as rounding allows, and it is the
    # quadrature that judges the function.
    return _RADII[-1]


def rough_points(
    function: ArrayFunction, kinks: tuple[float, ...] = ()
) -> list[tuple[float, float]]:
    """Locate undeclared kinks and jumps on [−8, 8]: positions to about 1e-6, and heights of jumps.

    A panel on which the Legendre coefficients do not fall to rounding level is halved.  A smooth
    function is resolved long before the panels become tiny; a kink never is, so the panel that
    keeps failing closes in on it.  A function that is rough everywhere (noise, single precision)
    gives a long list, not a long computation.
    """
    # Ends at irrational places, so that a kink at a round number is inside a panel and visible.
    grid = np.arange(-math.ceil(RANGE), math.ceil(RANGE) + 1) + (math.sqrt(2.0) - 1.0) / 3.0
    ends = np.concatenate([[-RANGE, RANGE], grid[np.abs(grid) < RANGE], kinks])
    ends = np.unique(ends[np.abs(ends) <= RANGE])
    results = []
    for left, right in sorted(_rough_panels(function, ends[:-1], ends[1:]))[:_MAX_ROUGH_PANELS]:
        x = np.linspace(left, right, 2001)
        values = function(x)
        position = float(x[1 + np.abs(np.diff(values, n=2)).argmax()])
        results.append((round(position, 6) + 0.0, float(np.abs(np.diff(values)).max())))
    return results


def _rough_panels(
    function: ArrayFunction, left: FloatArray, right: FloatArray
) -> list[tuple[float, float]]:
    """Halve the panels on which a function is not smooth until they are narrow; return those.

    If they become very many they are returned as they are.
    """
    x, _ = gauss_legendre(_NODES)
    narrow_panels: list[tuple[float, float]] = []
    while len(left):
        points = 0.5 * (left + right)[:, None] + 0.5 * (right - left)[:, None] * x
        values = function(points)
        # Rounding of x itself moves f by slope·|x|·eps, which matters where f passes through 0.
        slope = np.ptp(values, axis=1) / (right - left)
        size = np.abs(values).max(axis=1) + slope * np.abs(points).max(axis=1)
        last = np.abs(values @ _legendre_transform()[:, -2:]).sum(axis=1)
        rough = last > _ROUNDING * size + 1e-300
        left, right = left[rough], right[rough]
        narrow = right - left < _KINK_WIDTH
        narrow_panels += zip(left[narrow].tolist(), right[narrow].tolist(), strict=True)
        left, right = left[~narrow], right[~narrow]
        # A function that is rough everywhere would double its panels without end.
        if len(narrow_panels) + len(left) > _MAX_ROUGH_PANELS:
            return narrow_panels + list(zip(left.tolist(), right.tolist(), strict=True))
        middle = 0.5 * (left + right)
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    return narrow_panels

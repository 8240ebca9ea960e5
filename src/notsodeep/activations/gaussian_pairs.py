"""Expectations of an activation over a correlated Gaussian pair, each by its best route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.activations.activation import Activation
from notsodeep.activations.closed_forms import root_of
from notsodeep.activations.piecewise_linear import PiecewiseLinear
from notsodeep.activations.transformed import Centred
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, QuadratureError
from notsodeep.numerics.pair_quadrature import pair_quadrature
from notsodeep.numerics.quadrature import REACH

Method = Literal["auto", "closed_form", "series", "quadrature"]

TOLERANCE = 1e-13
"""Largest accepted bound on the remainder of a series, relative to the size of the kernel."""

MAX_TERMS = 256

LEAST_SCALE = 1e-30
"""Stands in for a standard deviation of zero: φ(1e-30·ξ) is φ(0) to rounding."""


@dataclass(frozen=True)
class PairExpectations:
    """E[φ(u)φ(v)] and E[φ′(u)φ′(v)] for centred Gaussian pairs (u, v).

    Attributes
    ----------
    value : ndarray
    derivative : ndarray
        Also ∂value/∂cov, by Price's theorem.
    methods : tuple of str
        The routes that were used for at least one pair.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> pairs = pair_expectations(named("tanh"), 1.0, 1.0, [0.0, 0.5])
    >>> pairs.value.round(6), pairs.derivative.round(6), pairs.methods
    (array([0.      , 0.186324]), array([0.366879, 0.384747]), ('series',))
    """

    value: FloatArray
    derivative: FloatArray
    methods: tuple[str, ...]


def pair_expectations(
    activation: Activation,
    var1: ArrayLike,
    var2: ArrayLike,
    cov: ArrayLike,
    *,
    method: Method = "auto",
) -> PairExpectations:
    """Compute E[φ(u)φ(v)] and E[φ′(u)φ′(v)], (u, v) ~ N(0, [[var1, cov], [cov, var2]]).

    Routes: a closed form where the activation has one; otherwise Mehler's series
    Σ_k a_k(√var1) a_k(√var2) ρ^k for the pairs whose remainder is provably negligible; otherwise
    two-dimensional quadrature split at the kinks.  The remainder after K terms is at most
    |ρ|^K √(r₁ r₂) with r = E φ² − Σ_{k<K} a_k² by Parseval, and likewise for the derivative.

    Parameters
    ----------
    activation : Activation
    var1, var2 : array_like
        Variances, at least 0.
    cov : array_like
        Covariance, |cov| ≤ √(var1·var2).  The three broadcast together.
    method : {"auto", "closed_form", "series", "quadrature"}
        Force one route.  A forced series that cannot meet the tolerance is an error.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> pair = pair_expectations(named("relu"), 1.0, 1.0, [0.0, 1.0])
    >>> pair.value * 2 * np.pi, pair.derivative
    (array([1.        , 3.14159265]), array([0.25, 0.5 ]))
    """
    checks.known_name(method, get_args(Method), "method of pair_expectations")
    scale1, scale2, rho, rest, shape = _standardised(var1, var2, cov)
    pairs = standardised_pairs(activation, scale1, scale2, rho, rest, method=method)
    return PairExpectations(
        pairs.value.reshape(shape), pairs.derivative.reshape(shape), pairs.methods
    )


def standardised_pairs(
    activation: Activation,
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    rest: FloatArray,
    *,
    method: Method = "auto",
) -> PairExpectations:
    """Compute `pair_expectations` from standard deviations, ρ and rest = 1 − |ρ|, all flat.

    For callers who know 1 − |ρ| to more digits than ρ itself holds.  Nothing is checked.
    """
    value, derivative = np.empty(rho.size), np.empty(rho.size)
    methods: list[str] = []
    todo = np.arange(rho.size)
    if method in ("auto", "closed_form"):
        pairs = activation.closed_form_pairs(scale1, scale2, rho, rest)
        if pairs is not None:
            return PairExpectations(*pairs, ("closed_form",))
        if method == "closed_form":
            raise InvalidInput(f"{activation} has no closed form for pairs. Use method='auto'.")
    if method in ("auto", "series"):
        done = _series(activation, scale1, scale2, rho, value, derivative)
        methods += ["series"] if done.any() else []
        todo = np.flatnonzero(~done)
        if method == "series" and todo.size:
            raise InvalidInput(
                f"A series of {MAX_TERMS} terms cannot reach the tolerance for {activation} at "
                f"ρ = {rho[todo[0]]:.6g}. Use method='auto'."
            )
    if todo.size:
        value[todo], derivative[todo] = pair_quadrature(
            lambda x: np.stack([activation.value(x), activation.derivative(x)]),
            scale1[todo],
            scale2[todo],
            rho[todo],
            root_of(rest[todo]),
            activation.kinks,
            activation.panel_ends(REACH * float(max(scale1.max(), scale2.max()))),
            name=str(activation),
        )
        methods.append("quadrature")
    return PairExpectations(value, derivative, tuple(methods))


def _standardised(
    var1: ArrayLike, var2: ArrayLike, cov: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, tuple[int, ...]]:
    """Check the covariance matrices; return flat standard deviations, ρ, 1 − |ρ| and the shape.

    A ρ within a few units in the last place of ±1 is taken as ±1: the rounding of cov alone can put
    it there, and √(1 − ρ²) would blow 1e-16 up to 1e-8.
    """
    owner = "pair_expectations"
    v1, v2 = (_variances(v, name, owner) for v, name in ((var1, "var1"), (var2, "var2")))
    c = checks.real_array(cov, "cov", owner)
    try:
        v1, v2, c = np.broadcast_arrays(v1, v2, c)
    except ValueError as error:
        got = f"shapes {v1.shape}, {v2.shape} and {c.shape}"
        raise checks.invalid("var1, var2 and cov", owner, "broadcast together", got) from error
    checks.covariances(v1, v2, c, owner)
    scale1, scale2 = (np.maximum(np.sqrt(v).reshape(-1), LEAST_SCALE) for v in (v1, v2))
    rho = c.reshape(-1) / (scale1 * scale2)
    rho = np.where(1.0 - np.abs(rho) < 1e-15, np.sign(rho), rho)
    return scale1, scale2, rho, 1.0 - np.abs(rho), c.shape


def _series(
    activation: Activation,
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    value: FloatArray,
    derivative: FloatArray,
) -> NDArray[np.bool_]:
    """Fill in the pairs for which Mehler's series is certain; say which."""
    scales, place = np.unique(np.stack([scale1, scale2]), return_inverse=True)
    first, second = place.reshape(2, -1)
    moments = activation.moments(scales)
    coefficients = activation.hermite_coefficients(scales, MAX_TERMS + 1)
    done = np.zeros(rho.size, dtype=bool)
    terms = 16
    while terms <= MAX_TERMS:
        a = coefficients[:, :terms]
        # Coefficients of φ′ at the same scale: E[φ′(τξ) h_k] = √(k+1) a_{k+1}/τ.
        b = coefficients[:, 1 : terms + 1] * np.sqrt(np.arange(1, terms + 1)) / scales[:, None]
        todo = np.flatnonzero(~done)
        i, j, r = first[todo], second[todo], rho[todo]
        ok = np.ones(todo.size, dtype=bool)
        for series, total in ((a, moments.square), (b, moments.slope_square)):
            # A remainder below the rounding of the total is not known, and counts as that much.
            left_over = np.sqrt(np.maximum(total - (series**2).sum(axis=1), 1e-16 * total))
            bound = np.abs(r) ** terms * left_over[i] * left_over[j]
            ok &= bound <= TOLERANCE * np.sqrt(total[i] * total[j])
        todo, i, j, r = todo[ok], i[ok], j[ok], r[ok]
        value[todo] = np.polynomial.polynomial.polyval(r, (a[i] * a[j]).T, tensor=False)
        derivative[todo] = np.polynomial.polynomial.polyval(r, (b[i] * b[j]).T, tensor=False)
        done[todo] = True
        terms *= 2
    return done


def _variances(values: object, parameter: str, owner: str) -> FloatArray:
    """Require finite numbers of at least zero."""
    array = checks.real_array(values, parameter, owner)
    if array.size and array.min() < 0.0:
        raise checks.invalid(parameter, owner, "be at least 0", f"a value of {float(array.min())}")
    return array


_TERMS = (32, 64, 128, 256)
_TOLERANCE = 1e-12


class DualDerivatives(NamedTuple):
    """f and its first three derivatives at one covariance."""

    value: float
    first: float
    second: float
    third: float


def dual_derivatives(activation: Activation, variance: float, covariance: float) -> DualDerivatives:
    """Compute f(G) = E[φ(u)φ(v)], f′, f″, f‴ for u, v of one variance q and covariance G, |G| < q.

    By Price's theorem f⁽ᵏ⁾ = E[φ⁽ᵏ⁾(u)φ⁽ᵏ⁾(v)] with weak derivatives.  For a piecewise-linear φ, φ″
    is a sum of point masses, and f″ a sum of values of the Gaussian density of (u, v); otherwise
    the derivatives are those of Mehler's series Σ a_k(√q)² (G/q)ᵏ, as long as its terms vanish.

    Raises
    ------
    QuadratureError
        256 terms of the series are not enough: |G| is too close to q for a kinked activation.
    """
    pair = pair_expectations(activation, variance, variance, covariance)
    value, first = float(pair.value), float(pair.derivative)
    # A constant changes f alone.
    inner = activation.base if isinstance(activation, Centred) else activation
    if isinstance(inner, PiecewiseLinear):
        return DualDerivatives(value, first, *_of_kinks(inner, variance, covariance))
    return DualDerivatives(value, first, *_of_series(inner, variance, covariance))


def _of_kinks(activation: PiecewiseLinear, q: float, G: float) -> tuple[float, float]:
    """f″ = Σ_ij j_i j_j p(k_i, k_j) for knots k with jumps j of the slope; f‴ = ∂f″/∂G."""
    if not activation.knots:
        return 0.0, 0.0
    jumps = np.diff(activation.slopes)
    k = np.asarray(activation.knots)
    x, y = k[:, None], k[None, :]
    determinant = q * q - G * G
    form = q * (x * x + y * y) - 2.0 * G * x * y
    density = np.exp(-0.5 * form / determinant) / (2.0 * np.pi * np.sqrt(determinant))
    # d log p/dG = G/det + xy/det − G·form/det².
    slope = (G + x * y) / determinant - G * form / determinant**2
    weights = np.outer(jumps, jumps)
    return float((weights * density).sum()), float((weights * density * slope).sum())


def _of_series(activation: Activation, q: float, G: float) -> tuple[float, float]:
    rho = G / q
    for terms in _TERMS:
        squares = activation.hermite_coefficients(np.array([np.sqrt(q)]), terms)[0] ** 2
        k = np.arange(terms)
        powers = rho ** np.maximum(k - 3, 0)
        third = squares * k * (k - 1) * (k - 2) * powers
        second = squares * k * (k - 1) * np.where(k > 2, powers * rho, 1.0)
        scale = max(float(squares.sum()), float(np.abs(third).sum()))
        if np.abs(third[-8:]).max() * terms <= _TOLERANCE * scale:
            return float(second.sum()) / q**2, float(third.sum()) / q**3
    raise QuadratureError(
        f"The second derivative of the dual function of {activation} needs more than "
        f"{_TERMS[-1]} terms at correlation {rho:.4g}. A smaller sigma_a2 lowers the correlation."
    )

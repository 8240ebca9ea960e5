"""Expectations of an activation over a correlated Gaussian pair, each by its best route."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.activations.activation import Activation
from notsodeep.activations.closed_forms import root_of
from notsodeep.arrays import FloatArray
from notsodeep.numerics.pair_quadrature import pair_quadrature

TOLERANCE = 1e-13
"""Largest accepted bound on the remainder of a series, relative to the size of the kernel."""

MAX_TERMS = 256

LEAST_SCALE = 1e-30
"""Stands in for a standard deviation of zero: φ(1e-30·ξ) is φ(0) to rounding."""


class PairExpectations(NamedTuple):
    """E[φ(u)φ(v)] and E[φ′(u)φ′(v)] for centred Gaussian pairs (u, v)."""

    value: FloatArray
    derivative: FloatArray  # also ∂value/∂cov, by Price's theorem


def pair_expectations(
    activation: Activation, var1: ArrayLike, var2: ArrayLike, cov: ArrayLike
) -> PairExpectations:
    """Compute E[φ(u)φ(v)] and E[φ′(u)φ′(v)], (u, v) ~ N(0, [[var1, cov], [cov, var2]]).

    Routes: a closed form where the activation has one; otherwise Mehler's series
    Σ_k a_k(√var1) a_k(√var2) ρ^k for the pairs whose remainder is provably negligible; otherwise
    two-dimensional quadrature split at the kinks.

    Parameters
    ----------
    activation : Activation
    var1, var2 : array_like
        Variances, at least 0.
    cov : array_like
        Covariance, |cov| ≤ √(var1·var2).  The three broadcast together.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> value, derivative = pair_expectations(named("relu"), 1.0, 1.0, [0.0, 1.0])
    >>> value * 2 * np.pi, derivative
    (array([1.        , 3.14159265]), array([0.25, 0.5 ]))
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
    # A ρ within a few units in the last place of ±1 is taken as ±1: the rounding of cov alone can
    # put it there, and √(1 − ρ²) would blow 1e-16 up to 1e-8.
    rho = np.where(1.0 - np.abs(rho) < 1e-15, np.sign(rho), rho)
    pairs = standardised_pairs(activation, scale1, scale2, rho, 1.0 - np.abs(rho))
    return PairExpectations(*(part.reshape(c.shape) for part in pairs))


def standardised_pairs(
    activation: Activation,
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    rest: FloatArray,
) -> PairExpectations:
    """Compute `pair_expectations` from standard deviations, ρ and rest = 1 − |ρ|, all flat.

    For callers who know 1 − |ρ| to more digits than ρ itself holds.  Nothing is checked.
    """
    pairs = activation.closed_form_pairs(scale1, scale2, rho, rest)
    if pairs is not None:
        return PairExpectations(*pairs)
    pairs, done = series_pairs(activation, scale1, scale2, rho)
    todo = np.flatnonzero(~done)
    if todo.size:
        columns = (column[todo] for column in (scale1, scale2, rho, rest))
        for part, exact in zip(pairs, quadrature_pairs(activation, *columns), strict=True):
            part[todo] = exact
    return pairs


def quadrature_pairs(
    activation: Activation,
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    rest: FloatArray,
) -> PairExpectations:
    """Compute `standardised_pairs` by quadrature: slow, and right for every activation."""

    def function(x: FloatArray) -> FloatArray:
        return np.stack([activation.value(x), activation.derivative(x)])

    root, kinks = root_of(rest), activation.kinks
    pairs = pair_quadrature(function, scale1, scale2, rho, root, kinks, name=str(activation))
    return PairExpectations(*pairs)


def series_pairs(
    activation: Activation, scale1: FloatArray, scale2: FloatArray, rho: FloatArray
) -> tuple[PairExpectations, NDArray[np.bool_]]:
    """Sum Mehler's series; also return for which pairs that is certain to be enough.

    By Parseval the remainder after K terms is at most |ρ|^K √(r₁ r₂) with r = E φ² − Σ_{k<K} a_k²,
    and likewise for the derivative.
    """
    value, derivative = np.empty(rho.size), np.empty(rho.size)
    scales, index = np.unique(np.stack([scale1, scale2]), return_inverse=True)
    first, second = index.reshape(2, -1)
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
            remainder = np.sqrt(np.maximum(total - (series**2).sum(axis=1), 1e-16 * total))
            bound = np.abs(r) ** terms * remainder[i] * remainder[j]
            ok &= bound <= TOLERANCE * np.sqrt(total[i] * total[j])
        todo, i, j, r = todo[ok], i[ok], j[ok], r[ok]
        value[todo] = np.polynomial.polynomial.polyval(r, (a[i] * a[j]).T, tensor=False)
        derivative[todo] = np.polynomial.polynomial.polyval(r, (b[i] * b[j]).T, tensor=False)
        done[todo] = True
        terms *= 2
    return PairExpectations(value, derivative), done


def _variances(values: object, parameter: str, owner: str) -> FloatArray:
    """Require finite numbers of at least zero."""
    array = checks.real_array(values, parameter, owner)
    if array.size and array.min() < 0.0:
        raise checks.invalid(parameter, owner, "be at least 0", f"a value of {float(array.min())}")
    return array

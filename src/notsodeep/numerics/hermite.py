"""Orthonormal Hermite polynomials and the coefficients of a function at many scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.numerics.quadrature import resolved_samples

LEAST_SQUARE = 1e-300
"""Stands in for E f² = 0, so that nothing is divided by zero."""


def iterate_hermite(x: FloatArray, terms: int) -> Iterator[FloatArray]:
    """Yield h_0(x), …, h_{terms−1}(x), the Hermite polynomials with E[h_j(ξ) h_k(ξ)] = δ_jk.

    Recurrence: √(k+1) h_{k+1} = x h_k − √k h_{k−1}.  Stable for all x; |h_k(x)| ≤ exp(x²/4).
    """
    previous = np.zeros_like(x)
    current = np.ones_like(x)
    for k in range(terms):
        yield current
        previous, current = (
            current,
            (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1),
        )


def hermite_polynomials(x: FloatArray, terms: int) -> FloatArray:
    """Stack h_0(x), …, h_{terms−1}(x); shape (terms, *x.shape)."""
    return np.stack(list(iterate_hermite(np.asarray(x, dtype=np.float64), terms)))


def hermite_expansion(
    function: Callable[[FloatArray], FloatArray],
    scales: FloatArray,
    terms: int,
    splits: tuple[float, ...] = (),
    *,
    name: str = "the function",
) -> tuple[FloatArray, FloatArray]:
    """Coefficients a_k(τ) = E[f(τξ) h_k(ξ)], k < terms, and E f²(τξ), for all scales at once.

    Parameters
    ----------
    function : callable
        Vectorised, smooth between the splits.
    scales : ndarray of shape (n_scales,)
        Positive.
    terms : int
    splits : tuple of float
        Kinks, and other points where panels must end.
    name : str
        What messages call the function.

    Returns
    -------
    coefficients : ndarray of shape (n_scales, terms)
    squares : ndarray of shape (n_scales,)

    Examples
    --------
    >>> coefficients, squares = hermite_expansion(lambda x: x**2, np.array([1.0, 2.0]), 4)
    >>> coefficients.round(12) + 0.0
    array([[1.        , 0.        , 1.41421356, 0.        ],
           [4.        , 0.        , 5.65685425, 0.        ]])
    >>> squares.round(12)
    array([ 3., 48.])
    """
    coefficients, squares = np.empty((len(scales), terms)), np.empty(len(scales))
    for part in resolved_samples(lambda x: function(x)[None], scales, splits, name=name):
        weighted = part.rule.weights * part.values[0]
        squares[part.index] = (weighted * part.values[0]).sum(axis=-1)
        # One set of nodes for all scales: one matrix product, and polynomials evaluated once.
        if part.rule.shared:
            coefficients[part.index] = weighted @ hermite_polynomials(part.rule.nodes[0], terms).T
        else:
            for k, polynomial in enumerate(iterate_hermite(part.rule.nodes, terms)):
                coefficients[part.index, k] = np.einsum("ij,ij->i", weighted, polynomial)
    return coefficients, squares


def unit_rows(coefficients: FloatArray, squares: FloatArray) -> FloatArray:
    """Coefficients in units of √(E f²): rows of norm at most one."""
    return np.asarray(coefficients / np.sqrt(np.maximum(squares, LEAST_SQUARE))[:, None])

"""The equation of the noise at real points outside its bulk, where isolated eigenvalues lie."""

from __future__ import annotations

import numpy as np
from numpy.polynomial.chebyshev import chebval
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.numerics.bulk_law import BulkLaw
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series

ComplexArray = NDArray[np.complex128]

_NEAREST = 0.9  # u up to which there is a series
_TERMS = 64
_RESOLVED = 1e-13


class OutsideBulk:
    """δ(z) of the Silverstein equation, for one z at a time and at little cost.

    With z = c + h(u + 1/u)/2, c and h the middle and half the length of the bulk, all z right of
    it are 0 < u < 1, and δ is analytic in |u| < 1 and real: a Chebyshev series on 0 < u ≤ 0.9.
    Elsewhere, or if the series does not reach rounding, the equation is solved; solutions are kept,
    since the search for eigenvalues begins at the same points for every model.
    """

    def __init__(self, bulk: BulkLaw) -> None:
        self._equation = bulk.equation
        low, high = bulk.support[0][0], bulk.support[-1][1]
        self._middle, self._half = 0.5 * (low + high), 0.5 * (high - low)
        self._series = self._fitted()
        self._solved: dict[float, ComplexArray] = {}

    def __call__(self, z: float) -> ComplexArray:
        """Return δ at z, shape (K,)."""
        if self._series is not None and z > self._middle + self._half:
            distance = (z - self._middle) / self._half
            u = 1.0 / (distance + np.sqrt(distance**2 - 1.0))
            if u <= _NEAREST:
                return np.asarray(chebval(2.0 * u / _NEAREST - 1.0, self._series), np.complex128)
        if z not in self._solved:
            self._solved[z] = self._equation.solve(np.array([z]))[0]
        return self._solved[z]

    def _fitted(self) -> FloatArray | None:
        """Coefficients of the series, shape (terms, K); None if they do not die out."""
        u = 0.5 * _NEAREST * (1.0 + chebyshev_points(_TERMS))
        z = self._middle + 0.5 * self._half * (u + 1.0 / u)
        series = chebyshev_series(self._equation.solve(z).real)
        tail = np.abs(series[-_TERMS // 8 :]).max(axis=0)
        resolved = (tail <= _RESOLVED * np.abs(series).max(axis=0)).all()
        return series if resolved else None

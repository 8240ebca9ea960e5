"""One activation between two sets of samples, prepared for the compiled loops."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep.activations import Activation, Centred, PiecewiseLinear
from notsodeep.activations.polynomial import AbstractPolynomial
from notsodeep.kernels import compiled
from notsodeep.kernels.sample_scales import SampleColumns, sample_columns

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TERMS = (48, 384)
"""Lengths of the series that are tried in turn; the longer one serves |ρ| up to about 0.92."""

SERIES_BOUND = 1e-14
"""Bound on what a series leaves out, relative to √(E φ²(u) E φ²(v)), and likewise for φ′."""


@dataclass(frozen=True)
class Series:
    """Hermite coefficients of the samples on both sides, and the terms needed at each |ρ|.

    Attributes
    ----------
    left : ndarray of shape (n, terms)
    right : ndarray of shape (terms, m + compiled.PADDING)
    table : ndarray of shape (compiled.BINS + 1,)
        Terms that suffice for |ρ| ≤ bin/BINS, or −1.
    """

    left: FloatArray
    right: FloatArray
    table: IntArray


class Layer:
    """An activation with what it is at every sample's scale.

    Attributes
    ----------
    everything, rows, columns : SampleColumns
        Of all samples, and of those on either side; the sides are the same if symmetric.
    degree : int or None
        Of a polynomial, whose series is finite.
    kind : int
        `compiled.SERIES` or `compiled.HINGE`.
    both, cross, constant : float
        Parameters of the hinge: right² + left², 2·right·left, and what centring subtracts.
    padded_scales, mean1, mean2 : ndarray
        τ of the columns, and E φ of rows and columns before centring; those about columns go a
        strip beyond the last.
    """

    def __init__(
        self, activation: Activation, scales1: FloatArray, scales2: FloatArray | None
    ) -> None:
        self.activation = activation
        everything = scales1 if scales2 is None else np.concatenate([scales1, scales2])
        self.everything = sample_columns(activation, everything)
        self._split = len(scales1)
        self._series: dict[int, Series] = {}
        self.symmetric = scales2 is None
        self.rows = self.everything.take(slice(None, self._split))
        beyond = slice(self._split, None)
        self.columns = self.rows if self.symmetric else self.everything.take(beyond)
        base = activation.base if isinstance(activation, Centred) else activation
        self.degree = base.degree if isinstance(base, AbstractPolynomial) else None
        self.constant = activation.constant if isinstance(activation, Centred) else 0.0
        self.kind, self.both, self.cross = compiled.SERIES, 0.0, 0.0
        # The means that the hinge loop takes off are those of the uncentred activation.
        self.mean1 = self.rows.mean + self.constant
        self.mean2 = padded(self.columns.mean + self.constant, 0.0)
        self.padded_scales = padded(self.columns.scales, 1.0)
        self._preparing = threading.Lock()
        if isinstance(base, PiecewiseLinear) and base.homogeneous and base.kinks:
            right, left = base.slopes[-1], base.slopes[0]
            self.kind = compiled.HINGE
            self.both, self.cross = right**2 + left**2, 2.0 * right * left

    @property
    def lengths(self) -> tuple[int, ...]:
        """Series lengths worth trying, the last one being final."""
        if self.kind == compiled.HINGE:
            return (1,)
        if self.degree is None:
            return TERMS
        step = compiled.TERMS_STEP
        return (max(step * -(-(self.degree + 1) // step), 2 * step),)

    def series(self, terms: int) -> Series:
        """Return the coefficients and the table of terms; trivial for the hinge."""
        with self._preparing:
            if terms not in self._series:
                self._series[terms] = self._make_series(terms)
        return self._series[terms]

    @property
    def prepared(self) -> tuple[int, ...]:
        """Lengths of the series that were made."""
        return tuple(self._series)

    def _make_series(self, terms: int) -> Series:
        n = len(self.rows.scales)
        if self.kind == compiled.HINGE:
            return Series(np.zeros((n, 1)), np.zeros((1, 1)), np.zeros(1, dtype=np.int64))
        coefficients = self.activation.hermite_coefficients(self.everything.scales, terms)
        if self.degree is None:
            table = terms_table(coefficients, self.everything)
        else:
            table = np.full(compiled.BINS + 1, terms, dtype=np.int64)
        left = coefficients[: self._split]
        right = left if self.symmetric else coefficients[self._split :]
        return Series(np.ascontiguousarray(left), padded(right.T, 0.0), table)


def padded(columns: FloatArray, padding: float) -> FloatArray:
    """Extend an array about columns by a strip, as the compiled loops want it."""
    wide = np.full((*columns.shape[:-1], columns.shape[-1] + compiled.PADDING), padding)
    wide[..., : columns.shape[-1]] = columns
    return wide


def terms_table(coefficients: FloatArray, columns: SampleColumns) -> IntArray:
    """Terms of Mehler's series that suffice for |ρ| ≤ bin/BINS, or −1 where all do not.

    By Parseval, what K terms leave of E[φφ] is at most |ρ|^K √(r_i r_j), r = E φ² − Σ_{k<K} a_k²;
    and of E[φ′φ′] at most |ρ|^{K−1} √(r′_i r′_j), r′ = E φ′² − Σ_{k<K} k a_k²/τ².
    """
    terms = coefficients.shape[1]
    left_over = np.empty((2, terms + 1))
    order = np.arange(terms)
    squares = coefficients**2
    for row, (energy, total) in enumerate(
        (
            (squares, columns.square),
            (squares * order / columns.scales[:, None] ** 2, columns.slope_square),
        )
    ):
        share = np.cumsum(energy, axis=1) / np.maximum(total, 1e-300)[:, None]
        left_over[row, 0] = 1.0
        # What rounding leaves of a vanishing remainder is not a remainder.
        left_over[row, 1:] = np.maximum(1.0 - share, 1e-15).max(axis=0)
    rho = (np.arange(compiled.BINS + 1) / compiled.BINS)[:, None]
    powers = np.arange(terms + 1)
    bound = np.maximum(rho**powers * left_over[0], rho ** np.maximum(powers - 1, 0) * left_over[1])
    enough = (bound <= SERIES_BOUND) & (powers > 0) & (powers % compiled.TERMS_STEP == 0)
    table = np.where(enough.any(axis=1), enough.argmax(axis=1), -1)
    return np.asarray(table, dtype=np.int64)

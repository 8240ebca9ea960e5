"""All pairs of some rows, for many models that are tried one after the other."""

from __future__ import annotations

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.kernels.exact import kinds_of
from notsodeep.kernels.ring import ring_of
from notsodeep.kernels.states import InputPairs, RingStates
from notsodeep.models import Convention, KernelModel


class FixedPairs:
    """All pairs of some rows, whose products serve any number of models.

    Nothing is fitted, and no matrix is made.

    Parameters
    ----------
    X : ndarray of shape (n, p)
    """

    def __init__(self, X: FloatArray) -> None:
        self._X = X
        self._rows, self._columns = np.triu_indices(len(X), 1)
        self._inner = (X @ X.T)[self._rows, self._columns]
        self._squares = np.einsum("ij,ij->i", X, X)

    def entries(self, matrix: FloatArray) -> FloatArray:
        """Those of a symmetric matrix above the diagonal, then those on it."""
        return np.concatenate([matrix[self._rows, self._columns], np.diag(matrix)])

    @property
    def multiplicity(self) -> FloatArray:
        """How often each of the entries stands in the matrix."""
        return np.concatenate([np.full(len(self._rows), 2.0), np.ones(len(self._X))])

    def matrix(self, entries: FloatArray) -> FloatArray:
        """Return the symmetric matrix that has these entries."""
        n = len(self._X)
        result = np.empty((n, n))
        result[self._rows, self._columns] = entries[: len(self._rows)]
        result[self._columns, self._rows] = entries[: len(self._rows)]
        result[np.arange(n), np.arange(n)] = entries[len(self._rows) :]
        return result

    def kernel(self, model: KernelModel, kind: str, convention: Convention) -> FloatArray:
        """Entries of the exact kernel of a model."""
        (which,) = kinds_of(kind)
        states = RingStates(ring_of(model, convention), self._squares)
        *both, left = states.loop(self._rows, self._columns, self._inner)
        values, diagonal = both[which], states.diagonal[which]
        if len(left):
            row, column = self._rows[left], self._columns[left]
            same = (self._X[row] == self._X[column]).all(axis=1)
            values[left[same]] = diagonal[row[same]]
            row, column, left = row[~same], column[~same], left[~same]
            if len(left):
                inputs = InputPairs.of(self._X[row], self._X[column])
                values[left] = states.careful(row, column, inputs)[which]
        return np.concatenate([values, diagonal])
